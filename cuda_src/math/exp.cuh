// SPDX-License-Identifier: MIT
// e^x, ln x; 2^x, e^(-t^2 / 2), 1 / x where activations need them. float: the special function unit's.
// double, for which there is none: polynomials without branches, so that several run side by side.
#pragma once
#include "core/types.cuh"

namespace cto::math::exp {

// From the highest power down.
template <class R, class... Coefficients>
__device__ __forceinline__ R polynomial(R x, R highest, Coefficients... others) {
    R sum = highest;
    ((sum = fma(sum, x, others)), ...);
    return sum;
}

__device__ __forceinline__ float reciprocal(float x) { return __fdividef(1.0f, x); }

// 1 / x to 20 bits.
__device__ __forceinline__ double approximate_reciprocal(double x) {
#ifdef __CUDA_CPU__
    return double_of(bits_of(1.0 / x) & 0xFFFFFFFF00000000u);
#else
    double y;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
    return y;
#endif
}

// For normal x. An error e of the first value leaves e^3.
__device__ __forceinline__ double reciprocal(double x) {
    const double y = approximate_reciprocal(x);
    const double e = fma(-x, y, 1.0);
    return fma(y, fma(e, e, e), y);
}

// Added to a double below 2^51 in magnitude, leaves its nearest integer in the low bits.
constexpr double ROUNDER = 6755399441055744.0;
constexpr double LN2 = 0.69314718055994530942;
constexpr double LN2_REST = 2.3190468138462995584e-17;  // ln 2 - LN2

// e^(z / 2) for |z| <= ln 2, within 4e-16.
__device__ __forceinline__ double short_exponential(double z) {
    return polynomial(z, 2.684418561656403634e-10, 5.398392244362957435e-9, 9.688249091468043424e-8,
                      1.550091514364673471e-6, 0.00002170138827993070759, 0.00026041666827082834,
                      0.002604166666776624772, 0.02083333333319717065, 0.1249999999999932164,
                      0.5000000000000032218, 1.0);
}

// 2^x for x from -1500 to 0. In double the factor 2^k is applied in two steps, since it may be
// below the range of normal numbers itself, and so may the result.
__device__ __forceinline__ float power_of_2(float x) { return exp2f(x); }
__device__ __forceinline__ double power_of_2(double x) {
    const double rounded = x + ROUNDER;
    const double p = short_exponential((x - (rounded - ROUNDER)) * (2 * LN2));
    return p * double_of((bits_of(rounded) + 1535) << 52) * 0x1p-512;  // 2^(k + 512) 2^-512
}

// e^x for any x. In float it is off by |x| + 2 units in the last place at most: x log2 e is rounded.
// In double it is called: several side by side, inlined, make kernels spill.
__device__ __forceinline__ float exponential(float x) { return exp2f(x * 1.44269504f); }
__device__ __noinline__ double exponential(double x) { return ::exp(x); }

__device__ __forceinline__ float logarithm(float x) { return logf(x); }
__device__ __forceinline__ double logarithm(double x) { return ::log(x); }

// e^(-t^2 / 2) for t up to 40. In double it is multiplied by RAISED, so that 2^k can be added to
// the exponent's bits; and t^2 is kept in two numbers, since rounded to one the result would be off
// by t^2 / 2 units in the last place.
constexpr double RAISED = 0x1p512;

__device__ __forceinline__ float normal_exponential(float t) { return exp2f(t * t * -0.72134752f); }
__device__ __forceinline__ double normal_exponential(double t) {
    const double square = t * t, rest = fma(t, t, -square);
    const double rounded = fma(square, -0.72134752044448170368, ROUNDER);
    const double k = rounded - ROUNDER;
    const double z = fma(k, -2 * LN2_REST, fma(k, -2 * LN2, -square)) - rest;
    return double_of(bits_of(short_exponential(z)) + ((bits_of(rounded) + 512) << 52));
}

}  // namespace cto::math::exp
