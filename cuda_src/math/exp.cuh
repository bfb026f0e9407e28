// SPDX-License-Identifier: MIT
// e^x, ln x; 2^x, e^(-t^2 / 2), 1 / x in the ranges that activations need. In float by the special
// function unit; in double by polynomials without branches, so that several evaluations overlap.
#pragma once
#include "core/types.cuh"

namespace cto::math::exp {

// Horner's rule: polynomial(x, a, b, c) = a x^2 + b x + c.
template <class R, class... Coefficients>
__device__ __forceinline__ R polynomial(R x, R highest, Coefficients... others) {
    R sum = highest;
    ((sum = fma(sum, x, others)), ...);
    return sum;
}

__device__ __forceinline__ float reciprocal(float x) { return __fdividef(1.0f, x); }

// 1 / x, exact to 20 bits.
__device__ __forceinline__ double approximate_reciprocal(double x) {
#ifdef __CUDA_CPU__
    return double_of(bits_of(1.0 / x) & 0xFFFFFFFF00000000u);
#else
    double y;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
    return y;
#endif
}

// 1 / x = y (1 + e + e^2 + ...), with y close to 1 / x and e = 1 - x y; the relative error is e^3.
// x is normal.
__device__ __forceinline__ double reciprocal(double x) {
    const double y = approximate_reciprocal(x);
    const double e = fma(-x, y, 1.0);
    return fma(y, fma(e, e, e), y);
}

// 1.5 * 2^52: the low bits of x + ROUNDER are x rounded to an integer, for |x| < 2^51.
constexpr double ROUNDER = 6755399441055744.0;
constexpr double LN2 = 0.69314718055994530942;

// e^(z / 2) for |z| <= ln 2, within 4e-16.
__device__ __forceinline__ double short_exponential(double z) {
    return polynomial(z, 2.684418561656403634e-10, 5.398392244362957435e-9, 9.688249091468043424e-8,
                      1.550091514364673471e-6, 0.00002170138827993070759, 0.00026041666827082834,
                      0.002604166666776624772, 0.02083333333319717065, 0.1249999999999932164,
                      0.5000000000000032218, 1.0);
}

// 2^x for -1500 <= x <= 0. In double 2^x = 2^(x - k) 2^k, k = x rounded. 2^k may be below the range
// of normal numbers, so it is multiplied in two steps, 2^(k + 512) and 2^-512.
__device__ __forceinline__ float power_of_2(float x) { return exp2f(x); }
__device__ __forceinline__ double power_of_2(double x) {
    const double rounded = x + ROUNDER;
    const double p = short_exponential((x - (rounded - ROUNDER)) * (2 * LN2));
    return p * double_of((bits_of(rounded) + 1535) << 52) * 0x1p-512;  // 1535 = bias 1023 + 512
}

// e^x for any x. In float the error is at most |x| + 2 units in the last place, as x log2 e is
// rounded. In double it is not inlined: several copies at once made kernels spill.
__device__ __forceinline__ float exponential(float x) { return exp2f(x * 1.44269504f); }
__device__ __noinline__ double exponential(double x) { return ::exp(x); }

__device__ __forceinline__ float logarithm(float x) { return logf(x); }
__device__ __forceinline__ double logarithm(double x) { return ::log(x); }

// e^(-t^2 / 2).
__device__ __forceinline__ float normal_exponential(float t) { return exp2f(t * t * -0.72134752f); }

// over / under, not yet divided: products of ratios then need one division.
struct Ratio {
    double over, under;
};

// RAISED e^(-t^2 / 2) for 0 <= t <= 40. With k = -t^2 / 2 / ln 2 rounded,
//     -t^2 / 2 = k ln 2 + r / 2           e^(-t^2 / 2) = 2^k e^(r / 2)
//     e^(r / 2) = (1 + z q) / (1 - z q)   z q = tanh(r / 4), q by polynomials in z^2
// 2^k is added to the exponent bits; the factor RAISED keeps them above 0. r is accurate because
// ln 2 = LN2_FIRST / (1 - LN2_LAST) is split so that k LN2_FIRST is exact:
//     z = -t^2 - 2 k LN2_FIRST + t^2 LN2_LAST, r = z (1 + LN2_LAST)
constexpr double RAISED = 0x1p512;
constexpr double LN2_FIRST = 0.693147180559663;      // 41 bits of ln 2
constexpr double LN2_LAST = 4.0734913673344604e-13;  // 1 - LN2_FIRST / ln 2

// RAISED e^(-t^2 / 2) as a Ratio: rounded = k + ROUNDER, whole = -2 k LN2_FIRST, q = odd / even,
// over = 2^(k + 512) (even + z odd), under = even - z odd.
__device__ __forceinline__ Ratio raised_normal_exponential(double t) {
    const double square = t * t, rounded = fma(square, -0.72134752044448170368, ROUNDER);
    const double whole = fma(rounded, -2 * LN2_FIRST, 2 * LN2_FIRST * ROUNDER);
    const double z = fma(square, LN2_LAST, fma(-t, t, whole)), w = z * z;
    const double odd =
        polynomial(w, 1.0326168505969556e-06, 0.0017359231413192984, 0.25000000000010186);
    const double even = polynomial(w, 6.198517363173251e-05, 0.02777702589862417, 1.0);
    const double over = fma(z, odd, even);
    return {double_of(bits_of(over) + ((bits_of(rounded) + 512) << 52)), fma(-z, odd, even)};
}

}  // namespace cto::math::exp
