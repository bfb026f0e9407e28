// SPDX-License-Identifier: MIT
// Stand-in for a header that the CUDA header wheel refers to and does not contain.
#pragma once

#define __host__
#define __device__
#define __global__
#define __constant__
#define __managed__
#define __shared__
#define __grid_constant__
#define __device_builtin__
#define __builtin_align__(bytes) __attribute__((aligned(bytes)))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __forceinline__ inline
#define __inline_hint__
#define __cdecl
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __cluster_dims__(...)
#define __maxnreg__(...)
