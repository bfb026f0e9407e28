// SPDX-License-Identifier: MIT
// Numbers that all elements of an optimizer's step share: the divisor of gradients, the corrections of
// moments. In double, so that they are rounded once, to the type of the weights.
#pragma once
#include "core/types.cuh"

namespace cto::step {

// Gradients are scaled: g_scaled = loss_scale g, with |g_scaled| = norm. Returns their divisor:
// loss_scale, or norm / max_norm to clip |g| to max_norm. A norm that is NaN clips nothing.
__device__ __forceinline__ double gradient_divisor(double loss_scale, double norm,
                                                   double max_norm) {
    return max_norm > 0 && norm > loss_scale * max_norm ? norm / max_norm : loss_scale;
}

// True if a step with these numbers is possible; else it is skipped, and changes nothing.
__device__ __forceinline__ bool allows_step(double rate, double loss_scale) {
    return isfinite(rate) && loss_scale > 0 && isfinite(loss_scale);
}

// 1 - beta^t; 1 for t <= 0.
__device__ __forceinline__ double bias_correction(double beta, i64 t) {
    return t > 0 ? 1.0 - pow(beta, static_cast<double>(t)) : 1.0;
}

// of_moments = {1 - alpha^t, 1 - beta^t}, in shared memory. A power takes longer than an element,
// so two warps compute one each, at the same time. Ends with __syncthreads.
__device__ __forceinline__ void bias_corrections(double alpha, double beta, i64 t,
                                                 double (&of_moments)[2]) {
    const u32 moment = threadIdx.x / WARP;
    if (threadIdx.x % WARP == 0 && moment < 2)
        of_moments[moment] = bias_correction(moment == 0 ? alpha : beta, t);
    __syncthreads();
}

__device__ __forceinline__ float square_root(float x) { return sqrtf(x); }
__device__ __forceinline__ double square_root(double x) { return sqrt(x); }
// The root of x within 2 units in the last place.
__device__ __forceinline__ float fast_square_root(float x) {
#ifdef __CUDA_CPU__
    return sqrtf(x);
#else
    float root;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(x));
    return root;
#endif
}

}  // namespace cto::step
