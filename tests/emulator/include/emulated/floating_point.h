// SPDX-License-Identifier: MIT
// Mathematical functions of CUDA that the C library lacks.
#pragma once

#include <cfenv>
#include <cmath>

#include "bits.h"

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline float rcbrtf(float x) { return 1.0f / std::cbrt(x); }
inline double rcbrt(double x) { return 1.0 / std::cbrt(x); }
inline double normcdf(double x) { return 0.5 * std::erfc(-x * 0.70710678118654752440); }
inline float normcdff(float x) { return static_cast<float>(normcdf(x)); }
inline double erfcx(double x) { return std::exp(x * x) * std::erfc(x); }
inline float erfcxf(float x) { return static_cast<float>(erfcx(x)); }
inline float fdividef(float x, float y) { return x / y; }
// Beyond 2^126 the GPU multiplies with a reciprocal of 0.
inline float __fdividef(float x, float y) {
  return std::fabs(y) > 0x1p126f && std::isfinite(y) ? x * std::copysign(0.0f, y) : x / y;
}
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float saturate(float x) { return __saturatef(x); }

inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __frsqrt_rn(float x) { return static_cast<float>(1.0 / std::sqrt(double{x})); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dsub_rn(double x, double y) { return x - y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __fma_rn(double x, double y, double z) { return std::fma(x, y, z); }
inline double __drcp_rn(double x) { return 1.0 / x; }
inline double __dsqrt_rn(double x) { return std::sqrt(x); }

// Directed rounding. Volatile keeps the operation between the two changes of mode.
#define CTO_ROUNDED(name, mode, type, parameters, operation) \
  inline type name parameters {                              \
    std::fesetround(mode);                                   \
    volatile type result = operation;                        \
    std::fesetround(FE_TONEAREST);                           \
    return result;                                           \
  }
#define CTO_ROUNDED_FAMILY(suffix, mode)                                                        \
  CTO_ROUNDED(__fadd_##suffix, mode, float, (volatile float x, float y), x + y)                 \
  CTO_ROUNDED(__fmul_##suffix, mode, float, (volatile float x, float y), x * y)                  \
  CTO_ROUNDED(__fmaf_##suffix, mode, float, (volatile float x, float y, float z),               \
              std::fma(x, y, z))                                                                \
  CTO_ROUNDED(__dadd_##suffix, mode, double, (volatile double x, double y), x + y)              \
  CTO_ROUNDED(__dmul_##suffix, mode, double, (volatile double x, double y), x * y)
CTO_ROUNDED_FAMILY(rz, FE_TOWARDZERO)
CTO_ROUNDED_FAMILY(rd, FE_DOWNWARD)
CTO_ROUNDED_FAMILY(ru, FE_UPWARD)
#undef CTO_ROUNDED_FAMILY
#undef CTO_ROUNDED

// Macros, because the C library declares functions of these names.
#define __expf(x) expf(x)
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define __tanhf(x) tanhf(x)
#define __sincosf(x, sine, cosine) sincosf(x, sine, cosine)

// CUDA's overloads. Where the signs of two integers differ, the result is unsigned.
#define CTO_EXTREMES(result, left, right)                                       \
  inline result min(left x, right y) {                                          \
    return static_cast<result>(x) < static_cast<result>(y) ? static_cast<result>(x) \
                                                           : static_cast<result>(y); \
  }                                                                             \
  inline result max(left x, right y) {                                          \
    return static_cast<result>(x) < static_cast<result>(y) ? static_cast<result>(y) \
                                                           : static_cast<result>(x); \
  }

#define CTO_INTEGER_EXTREMES(type)                          \
  CTO_EXTREMES(type, type, type)                            \
  CTO_EXTREMES(unsigned type, unsigned type, unsigned type) \
  CTO_EXTREMES(unsigned type, type, unsigned type)          \
  CTO_EXTREMES(unsigned type, unsigned type, type)

CTO_INTEGER_EXTREMES(int)
CTO_INTEGER_EXTREMES(long)
CTO_INTEGER_EXTREMES(long long)

#undef CTO_INTEGER_EXTREMES
#undef CTO_EXTREMES

inline float min(float x, float y) { return std::fmin(x, y); }
inline float max(float x, float y) { return std::fmax(x, y); }
inline double min(double x, double y) { return std::fmin(x, y); }
inline double max(double x, double y) { return std::fmax(x, y); }
inline double min(float x, double y) { return std::fmin(double{x}, y); }
inline double max(float x, double y) { return std::fmax(double{x}, y); }
inline double min(double x, float y) { return std::fmin(x, double{y}); }
inline double max(double x, float y) { return std::fmax(x, double{y}); }

inline unsigned umin(unsigned x, unsigned y) { return min(x, y); }
inline unsigned umax(unsigned x, unsigned y) { return max(x, y); }
inline long long llmin(long long x, long long y) { return min(x, y); }
inline long long llmax(long long x, long long y) { return max(x, y); }
