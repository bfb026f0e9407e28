// SPDX-License-Identifier: MIT
// A barrier for some warps of a block.
#pragma once
#include "core/types.cuh"

namespace cto::group_barrier {

// Waits for the `threads` threads of a group, whole warps; groups are numbered from 0 to 14, as
// there are 16 barriers, of which __syncthreads has number 0.
__device__ __forceinline__ void sync(u32 group, u32 threads) {
#ifdef __CUDA_CPU__
    emulated_bar_sync(group + 1, threads);
#else
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(threads) : "memory");
#endif
}

}  // namespace cto::group_barrier
