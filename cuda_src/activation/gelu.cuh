// SPDX-License-Identifier: MIT
// Activations of the form x F(x), F a distribution function: Gelu (normal), FastGelu, QuickGelu
// (logistic).
//
// Their slopes satisfy slope(-x) = 1 - slope(x), so each is worked out where it falls to 0, at -t
// with t = |x|, and needs one exponential. t is cut off where that exponential is long zero: so
// infinities give limits, and NaN stays NaN.
#pragma once
#include "activation/facts.cuh"
#include "math/exp.cuh"

namespace cto::math::gelu {

using facts::activation::NORMAL_END;

using namespace math::exp;

// By bits in double, whose every comparison and sign change takes as long as an addition.
__device__ __forceinline__ float absolute(float x) { return fabsf(x); }
__device__ __forceinline__ double absolute(double x) { return double_of(bits_of(x) << 1 >> 1); }
__device__ __forceinline__ bool is_rising(float x) { return x > 0.0f; }
__device__ __forceinline__ bool is_rising(double x) { return bits_of(x) >> 63 == 0; }

template <class R>
__device__ __forceinline__ R magnitude(R x, double most) {
    return absolute(x) > R(most) ? R(most) : absolute(x);
}
#if __CUDA_ARCH__ >= 800 && !defined(__CUDA_CPU__)
// The same in one instruction instead of two: 1 to 4 % of Gelu's time in 2-byte types on an H200.
__device__ __forceinline__ float magnitude(float x, double most) {
    float t;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(t) : "f"(fabsf(x)), "f"(static_cast<float>(most)));
    return t;
}
#endif

// slope(x) from slope(-|x|).
template <class R>
__device__ __forceinline__ R mirrored(R x, R falling) {
    return is_rising(x) ? R(1) - falling : falling;
}

// ---- x Phi(x) -----------------------------------------------------------------------------------

constexpr double INV_SQRT_2PI = 0.39894228040143267794;

// e^(t^2 / 2) (Phi(-t) - t phi(t)) = (ROOT - t) Q(t), with the derivative's zero taken out so that
// it is accurate beside it. Q: a polynomial in 1 / (1 + 3/8 t), within 2e-8 e^(t^2 / 2)
// and 2e-6 up to t = 15, beyond which e^(-t^2 / 2) is zero in float.
__device__ __forceinline__ float scaled_falling_slope(float t) {
    const float u = reciprocal(fmaf(0.375f, t, 1.0f));
    const float q = polynomial(u, 0.016877977f, -0.07511837f, 0.09157038f, 0.02498406f, 0.09640422f,
                               0.11135978f, 0.39899996f);
    return ((0.75179154f - t) - 1.211445e-8f) * q;
}

__device__ __forceinline__ float scaled_tail(float t) {
    return fmaf(0.39894228f, t, scaled_falling_slope(t));
}

// e^(t^2 / 2) Phi(-t) / RAISED = u P(v) up to NORMAL_END, u = 1 / (1 + 11/64 t) / RAISED, v that
// from -1 to 1. Within 1e-15 of it; the polynomial itself is within 4e-17 before its coefficients
// are rounded, and within 2e-16 after.
__device__ __forceinline__ double scaled_tail(double t) {
    const double u = reciprocal(fma(0.171875 * RAISED, t, RAISED));
    const double v = fma(u, 2.290909090909090909 * RAISED, -1.290909090909090909);
    const double p =
        polynomial(v, -9.62424186333475032e-11, -5.67848232990894754e-11, 1.44783309055485138e-9,
                   1.58555051585140063e-9, -1.47529954290777142e-8, -3.26863017473352735e-8,
                   1.17784329752465615e-7, 5.72120877504153472e-7, -1.88692300371915611e-7,
                   -7.6200957142035045e-6, -0.0000214883676394563641, 0.0000248803885782414963,
                   0.00043943022384376101, 0.0020876052150748572, 0.00672062536262957866,
                   0.0169464963854996069, 0.0353781560110922656, 0.0628512525870973262,
                   0.0964498272418884466, 0.128850462252186324, 0.150279916141497196);
    return u * p;
}
__device__ __forceinline__ double scaled_falling_slope(double t) {
    return fma(t, -INV_SQRT_2PI / RAISED, scaled_tail(t));
}

template <class R>
__device__ __forceinline__ R gelu_value(R x) {
    const R t = magnitude(x, NORMAL_END);
    return (is_rising(x) ? x : R(0)) - t * (normal_exponential(t) * scaled_tail(t));
}

template <class R>
__device__ __forceinline__ R gelu_slope(R x) {
    const R t = magnitude(x, NORMAL_END);
    return mirrored(x, normal_exponential(t) * scaled_falling_slope(t));
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
constexpr double FAST_END = 22;
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

}  // namespace cto::math::gelu
