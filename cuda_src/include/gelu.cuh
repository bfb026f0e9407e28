// SPDX-License-Identifier: MIT
// Activations of the form x F(x), F a distribution function: Gelu (normal), FastGelu, QuickGelu
// (logistic).
//
// Their slopes satisfy slope(-x) = 1 - slope(x), so each is worked out where it falls to 0, at -t
// with t = |x|, and needs one exponential. t is cut off where that exponential is long zero: so
// infinities give limits, and NaN stays NaN.
#pragma once
#include "include/types.cuh"

namespace cto {

__device__ __forceinline__ bool is_positive(float x) { return bits_of(x) - 1u < 0x7F800000u; }
__device__ __forceinline__ bool is_positive(double x) { return x > 0.0; }

__device__ __forceinline__ float power_of_2(float x) { return exp2f(x); }
__device__ __forceinline__ double power_of_2(double x) { return exp2(x); }
__device__ __forceinline__ float reciprocal(float x) { return __fdividef(1.0f, x); }
__device__ __forceinline__ double reciprocal(double x) { return 1.0 / x; }

__device__ __forceinline__ float absolute(float x) { return fabsf(x); }
__device__ __forceinline__ double absolute(double x) { return fabs(x); }

template <class R>
__device__ __forceinline__ R magnitude(R x, double most) {
    return absolute(x) > R(most) ? R(most) : absolute(x);
}

// slope(x) from slope(-|x|).
template <class R>
__device__ __forceinline__ R mirrored(R x, R falling) {
    return x > R(0) ? R(1) - falling : falling;
}

// ---- x Phi(x) -----------------------------------------------------------------------------------

constexpr double NORMAL_END = 40;
constexpr double INV_SQRT_2PI = 0.39894228040143267794;

__device__ __forceinline__ float normal_exponential(float t) {
    return exp2f(t * t * -0.72134752f);  // e^(-t^2 / 2)
}

// e^(t^2 / 2) (Phi(-t) - t phi(t)) = (ROOT - t) Q(t), with the derivative's zero taken out so that
// it is accurate beside it. Q: a polynomial in 1 / (1 + 3/8 t), within 2e-8 e^(t^2 / 2) and 2e-6.
__device__ __forceinline__ float scaled_falling_slope(float t) {
    const float u = reciprocal(fmaf(0.375f, t, 1.0f));
    float q = 0.016877977f;
    q = fmaf(q, u, -0.07511837f);
    q = fmaf(q, u, 0.09157038f);
    q = fmaf(q, u, 0.02498406f);
    q = fmaf(q, u, 0.09640422f);
    q = fmaf(q, u, 0.11135978f);
    q = fmaf(q, u, 0.39899996f);
    return ((0.75179154f - t) - 1.211445e-8f) * q;
}

__device__ __forceinline__ float falling_normal_slope(float t) {
    return normal_exponential(t) * scaled_falling_slope(t);
}
__device__ __forceinline__ double falling_normal_slope(double t) {
    return 0.5 * erfc(t * 0.70710678118654752440) - t * INV_SQRT_2PI * exp(-0.5 * t * t);
}

// Phi(-t)
__device__ __forceinline__ float normal_tail(float t) {
    return normal_exponential(t) * fmaf(0.39894228f, t, scaled_falling_slope(t));
}
__device__ __forceinline__ double normal_tail(double t) {
    return 0.5 * erfc(t * 0.70710678118654752440);
}

template <class R>
__device__ __forceinline__ R gelu_value(R x) {
    const R t = magnitude(x, NORMAL_END);
    return (x > R(0) ? x : R(0)) - t * normal_tail(t);
}

template <class R>
__device__ __forceinline__ R gelu_slope(R x) {
    return mirrored(x, falling_normal_slope(magnitude(x, NORMAL_END)));
}

// ---- x s(v), s(v) = 1 / (1 + e^-v), v an odd function of x --------------------------------------

constexpr double LOGISTIC_END = 1000;
constexpr double LOG2_E = 1.44269504088896340736;

template <class R>
__device__ __forceinline__ R gated(R x, R v) {
    const R e = power_of_2(magnitude(v, LOGISTIC_END) * R(-LOG2_E));
    const R s = reciprocal(R(1) + e) * (v > R(0) ? R(1) : e);
    return s == R(0) ? s : x * s;
}

// s + w s (1 - s) at -v, for v >= 0 and w = x dv/dx: r (1 - w s) with r = s(-v), s = s(v).
template <class R>
__device__ __forceinline__ R falling_gate_slope(R v, R w) {
    const R e = power_of_2(v * R(-LOG2_E));
    const R s = reciprocal(R(1) + e);
    return e * s * (R(1) - w * s);
}

// QuickGelu: v = alpha x.
template <class R>
__device__ __forceinline__ R quick_gelu_slope(R v) {
    const R t = magnitude(v, LOGISTIC_END);
    return mirrored(v, falling_gate_slope(t, t));
}

// FastGelu: v = 2 u, u = sqrt(2 / pi) (x + 0.044715 x^3).
constexpr double FAST_END = 25;
constexpr double FAST_1 = 1.59576912160573071176;  // 2 sqrt(2 / pi)
constexpr double FAST_3 = 0.07135481627260024878;  // 2 sqrt(2 / pi) 0.044715

template <class R>
__device__ __forceinline__ R fast_gelu_value(R x) {
    return gated(x, x * (R(FAST_1) + R(FAST_3) * (x * x)));
}

template <class R>
__device__ __forceinline__ R fast_gelu_slope(R x) {
    const R t = magnitude(x, FAST_END);
    const R v = t * (R(FAST_1) + R(FAST_3) * (t * t));
    const R w = t * (R(FAST_1) + R(3 * FAST_3) * (t * t));
    return mirrored(x, falling_gate_slope(v, w));
}

}  // namespace cto
