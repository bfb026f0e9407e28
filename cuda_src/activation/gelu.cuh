// SPDX-License-Identifier: MIT
// Activations of the form x F(x), F a distribution function: Gelu (normal), FastGelu, QuickGelu
// (logistic).
//
// Slopes (derivatives) satisfy slope(-x) = 1 - slope(x). So each is computed at -t, t = |x|, where
// it goes to 0 and needs one exponential. t is limited to where that exponential is zero: then
// infinite x gives the limit, and NaN stays NaN.
#pragma once
#include "activation/facts.cuh"
#include "math/exp.cuh"

namespace cto::math::gelu {

using facts::activation::NORMAL_END;

using namespace math::exp;

// |x|; in double by clearing the sign bit, as fabs would take as long as an addition.
__device__ __forceinline__ float absolute(float x) { return fabsf(x); }
__device__ __forceinline__ double absolute(double x) { return double_of(bits_of(x) << 1 >> 1); }
// True if x is positive; zeros and NaN may give either.
__device__ __forceinline__ bool is_rising(float x) { return x > 0.0f; }
__device__ __forceinline__ bool is_rising(double x) { return bits_of(x) >> 63 == 0; }

// min(|x|, most); NaN if x is NaN.
template <class R>
__device__ __forceinline__ R magnitude(R x, double most) {
    return absolute(x) > R(most) ? R(most) : absolute(x);
}
#if __CUDA_ARCH__ >= 800 && !defined(__CUDA_CPU__)
// By one instruction instead of two: saves 1 to 4 % of Gelu's time in 2-byte types on an H200.
__device__ __forceinline__ float magnitude(float x, double most) {
    float t;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(t) : "f"(fabsf(x)), "f"(static_cast<float>(most)));
    return t;
}
#endif

// slope(x), where falling = slope(-|x|): the derivative's symmetry slope(-x) = 1 - slope(x).
template <class R>
__device__ __forceinline__ R mirrored(R x, R falling) {
    return is_rising(x) ? R(1) - falling : falling;
}

// ---- x Phi(x): Phi is the standard normal distribution function, phi its density ----------------

constexpr double INV_SQRT_2PI = 0.39894228040143267794;

// e^(t^2 / 2) (Phi(-t) - t phi(t)), t >= 0: the slope of x Phi(x) at x = -t, without its
// exponential. Computed as (ROOT - t) Q(t). ROOT = 0.75179154 - 1.2e-8 is the zero of the slope; as
// a factor of its own it keeps the result accurate near it. Q is a polynomial in 1 / (1 + 3/8 t),
// off by at most 2e-8 e^(t^2 / 2) and 2e-6 up to t = 15; beyond, e^(-t^2 / 2) is zero in float.
__device__ __forceinline__ float scaled_falling_slope(float t) {
    const float u = reciprocal(fmaf(0.375f, t, 1.0f));
    const float q = polynomial(u, 0.016877977f, -0.07511837f, 0.09157038f, 0.02498406f, 0.09640422f,
                               0.11135978f, 0.39899996f);
    return ((0.75179154f - t) - 1.211445e-8f) * q;
}

// e^(t^2 / 2) Phi(-t), t >= 0: scaled_falling_slope(t) + e^(t^2 / 2) t phi(t), where the latter is
// t / sqrt(2 pi).
__device__ __forceinline__ float scaled_tail(float t) {
    return fmaf(0.39894228f, t, scaled_falling_slope(t));
}

// The Ratio {over, under} of e^(t^2 / 2) Phi(-t) / RAISED = over / under, for 0 <= t <= NORMAL_END:
// two polynomials, with an error of 1e-16 beside rounding. All coefficients are positive, so
// nothing cancels. RAISED = 2^512 keeps e^(-t^2 / 2), which is multiplied by it (math/exp.cuh),
// from becoming subnormal.
__device__ __forceinline__ Ratio scaled_tail(double t) {
    const double over =
        polynomial(t, 1.3963583253577922e-06, 3.7493618885895367e-05, 0.0004930549974805149,
                   0.004107558013654912, 0.02370833988017493, 0.09798059789703814,
                   0.2899593004962914, 0.5949236648320629, 0.7754795380464002, 0.5);
    const double under = polynomial(
        t, 3.5001512598676246e-06 * RAISED, 9.398256521565317e-05 * RAISED,
        0.0012394057490789322 * RAISED, 0.010390103611359577 * RAISED, 0.06065690078919798 * RAISED,
        0.25570908171081425 * RAISED, 0.7838116029095296 * RAISED, 1.717197137906116 * RAISED,
        2.5639534032835547 * RAISED, 2.3488436368956553 * RAISED, 1.0 * RAISED);
    return {over, under};
}

// x Phi(x) = max(x, 0) - t Phi(-t), t = |x|, where Phi(-t) = normal_exponential(t) *
// scaled_tail(t), the former e^(-t^2 / 2).
__device__ __forceinline__ float gelu_value(float x) {
    const float t = magnitude(x, NORMAL_END);
    return (is_rising(x) ? x : 0.0f) - t * (normal_exponential(t) * scaled_tail(t));
}
// d/dx (x Phi(x)), by its value Phi(-t) - t phi(t) at -t, t = |x|.
__device__ __forceinline__ float gelu_slope(float x) {
    const float t = magnitude(x, NORMAL_END);
    return mirrored(x, normal_exponential(t) * scaled_falling_slope(t));
}

// x Phi(x) in double: bell = RAISED e^(-t^2 / 2) and tail = scaled_tail(t) are ratios, so that one
// division is enough. RAISED is a factor of bell.over and tail.under, and cancels.
__device__ __forceinline__ double gelu_value(double x) {
    const double t = magnitude(x, NORMAL_END);
    const Ratio bell = raised_normal_exponential(t), tail = scaled_tail(t);
    const double over = t * (bell.over * tail.over);
    return fma(-over, reciprocal(bell.under * tail.under), is_rising(x) ? x : 0.0);
}
// d/dx (x Phi(x)) in double, by its value at -t, t = |x|:
//     Phi(-t) - t phi(t) = bell (tail - t / (sqrt(2 pi) RAISED)), over a common denominator.
__device__ __forceinline__ double gelu_slope(double x) {
    const double t = magnitude(x, NORMAL_END);
    const Ratio bell = raised_normal_exponential(t), tail = scaled_tail(t);
    const double slope = fma(t * (-INV_SQRT_2PI / RAISED), tail.under, tail.over);
    return mirrored(x, bell.over * slope * reciprocal(bell.under * tail.under));
}

// ---- x s(v), s(v) = 1 / (1 + e^-v), v an odd function of x --------------------------------------

constexpr double LOGISTIC_END = 1000;
constexpr double LOG2_E = 1.44269504088896340736;

// x s(v): x e / (1 + e) for v <= 0, else x / (1 + e), where e = e^-|v|. 0 where s(v) is 0, also for
// x = -inf.
template <class R>
__device__ __forceinline__ R gated(R x, R v) {
    const R e = power_of_2(magnitude(v, LOGISTIC_END) * R(-LOG2_E));
    const R s = reciprocal(R(1) + e) * (v > R(0) ? R(1) : e);
    return s == R(0) ? s : x * s;
}

// The derivative of x s(v(x)) at -x, for v = v(x) >= 0 and w = x v'(x). At x it is
// s(v) + w s(v) (1 - s(v)); at -x, where v and w change their signs, s(-v) (1 - w s(v)).
template <class R>
__device__ __forceinline__ R falling_gate_slope(R v, R w) {
    const R e = power_of_2(v * R(-LOG2_E));
    const R s = reciprocal(R(1) + e);
    return e * s * (R(1) - w * s);
}

// QuickGelu: d/dx (x s(v)) for v = alpha x, where x dv/dx = v.
template <class R>
__device__ __forceinline__ R quick_gelu_slope(R v) {
    const R t = magnitude(v, LOGISTIC_END);
    return mirrored(v, falling_gate_slope(t, t));
}

// FastGelu: v = 2 u, u = sqrt(2 / pi) (x + 0.044715 x^3).
constexpr double FAST_END = 22;
constexpr double FAST_1 = 1.59576912160573071176;  // 2 sqrt(2 / pi)
constexpr double FAST_3 = 0.07135481627260024878;  // 2 sqrt(2 / pi) 0.044715

// x s(v), v = FAST_1 x + FAST_3 x^3.
template <class R>
__device__ __forceinline__ R fast_gelu_value(R x) {
    return gated(x, x * (R(FAST_1) + R(FAST_3) * (x * x)));
}

// d/dx (x s(v)), v = FAST_1 x + FAST_3 x^3: computed at -|x|, then mirrored.
template <class R>
__device__ __forceinline__ R fast_gelu_slope(R x) {
    const R t = magnitude(x, FAST_END);
    const R v = t * (R(FAST_1) + R(FAST_3) * (t * t));
    const R w = t * (R(FAST_1) + R(3 * FAST_3) * (t * t));  // t dv/dt
    return mirrored(x, falling_gate_slope(v, w));
}

}  // namespace cto::math::gelu
