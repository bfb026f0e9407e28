// SPDX-License-Identifier: MIT
// Included before every kernel source: CUDA C++ for g++ on a CPU.
#pragma once

#define __CUDA_CPU__ 1

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cassert>
#include <climits>
#include <cmath>
#include <type_traits>
#include <utility>

// Headers of CUDA 12.8 ask for it unprotected.
#ifndef __CUDA_ARCH_HAS_FEATURE__
#define __CUDA_ARCH_HAS_FEATURE__(feature) 0
#endif

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "../runtime/interface.h"
#include "emulated/qualifiers.h"
#include "emulated/async_copies.h"
#include "emulated/atomics.h"
#include "emulated/bits.h"
#include "emulated/conversions.h"
#include "emulated/floating_point.h"
#include "emulated/half_precision.h"
#include "emulated/memory.h"
#include "emulated/synchronization.h"
#include "emulated/matrix_products.h"
#include "emulated/warpgroup_products.h"
#include "emulated/trampoline.h"
