// SPDX-License-Identifier: MIT
// Sums over the lanes of a warp up to each of them.
#pragma once
#include "core/types.cuh"

namespace cto::scan {

// Inclusive prefix sum: `value` of lane 0 + ... + `value` of this lane. All lanes call it.
template <class Sum>
__device__ __forceinline__ Sum sum_up_to_lane(Sum value) {
    const u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (u32 step = 1; step < WARP; step *= 2) {
        const Sum before = __shfl_up_sync(ALL_LANES, value, step);
        if (lane >= step) value += before;
    }
    return value;
}

}  // namespace cto::scan
