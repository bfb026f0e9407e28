// SPDX-License-Identifier: MIT
// Conversions between floating-point numbers and integers. Unlike C++ casts they saturate, and a
// NaN gives zero (32 bits) or the most significant bit (64 bits), as on the GPU.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

namespace emulator {

template <typename To>
To saturate_to(double rounded) {
  using Limits = std::numeric_limits<To>;
  if (std::isnan(rounded))
    return sizeof(To) == 8 ? static_cast<To>(uint64_t{1} << 63) : To{0};
  if (rounded <= static_cast<double>(Limits::min())) return Limits::min();
  if (rounded >= static_cast<double>(Limits::max())) return Limits::max();
  return static_cast<To>(rounded);
}

}  // namespace emulator

#define CTO_ROUNDED(name, from, to, rounded) \
  inline to name(from x) { return emulator::saturate_to<to>(rounded); }

#define CTO_TO_INTEGER(from, name, to)                              \
  CTO_ROUNDED(__##from##2##name##_rn, from, to, std::nearbyint(x))  \
  CTO_ROUNDED(__##from##2##name##_rz, from, to, std::trunc(x))      \
  CTO_ROUNDED(__##from##2##name##_rd, from, to, std::floor(x))      \
  CTO_ROUNDED(__##from##2##name##_ru, from, to, std::ceil(x))

#define CTO_TO_INTEGERS(from)                    \
  CTO_TO_INTEGER(from, int, int)                 \
  CTO_TO_INTEGER(from, uint, unsigned)           \
  CTO_TO_INTEGER(from, ll, long long)            \
  CTO_TO_INTEGER(from, ull, unsigned long long)

CTO_TO_INTEGERS(float)
CTO_TO_INTEGERS(double)

#undef CTO_TO_INTEGERS
#undef CTO_TO_INTEGER

inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }
inline double __ll2double_rn(long long x) { return static_cast<double>(x); }
inline double __ull2double_rn(unsigned long long x) { return static_cast<double>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }

#define CTO_HALF_TO_INTEGER(prefix, type, name, to, to_float)                \
  CTO_ROUNDED(prefix##name##_rn, type, to, std::nearbyint(to_float(x)))     \
  CTO_ROUNDED(prefix##name##_rd, type, to, std::floor(to_float(x)))         \
  CTO_ROUNDED(prefix##name##_ru, type, to, std::ceil(to_float(x)))

#define CTO_HALF_TO_INTEGERS(prefix, type, to_float)                            \
  CTO_HALF_TO_INTEGER(prefix, type, short, short, to_float)                     \
  CTO_HALF_TO_INTEGER(prefix, type, ushort, unsigned short, to_float)           \
  CTO_HALF_TO_INTEGER(prefix, type, int, int, to_float)                         \
  CTO_HALF_TO_INTEGER(prefix, type, uint, unsigned, to_float)                   \
  CTO_HALF_TO_INTEGER(prefix, type, ll, long long, to_float)                    \
  CTO_HALF_TO_INTEGER(prefix, type, ull, unsigned long long, to_float)

CTO_HALF_TO_INTEGERS(__half2, __half, __half2float)
CTO_HALF_TO_INTEGERS(__bfloat162, __nv_bfloat16, __bfloat162float)

#undef CTO_HALF_TO_INTEGERS
#undef CTO_HALF_TO_INTEGER
#undef CTO_ROUNDED
