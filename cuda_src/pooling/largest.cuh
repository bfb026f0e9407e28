// SPDX-License-Identifier: MIT
// The comparison for maximum pools.
#pragma once
#include "core/types.cuh"

namespace cto::pooling::largest {

// True if x, after y in a window, is the new maximum: x > y, or x is the first NaN. In assembly, as
// -ftz=true makes `>` flush subnormals.
__device__ __forceinline__ bool is_larger(float x, float y) {
#ifdef __CUDA_CPU__
    return x > y || (x != x && y == y);
#else
    u32 larger;
    asm("{ .reg .pred number, p; setp.num.f32 number, %2, %2; setp.gtu.and.f32 p, %1, %2, number; "
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(larger)
        : "f"(x), "f"(y));
    return larger != 0;
#endif
}
__device__ __forceinline__ bool is_larger(double x, double y) {
    return x > y || (isnan(x) && !isnan(y));
}

}  // namespace cto::pooling::largest
