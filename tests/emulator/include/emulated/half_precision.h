// SPDX-License-Identifier: MIT
// Functions of half and bfloat16 that NVIDIA's headers define for the device only. They compute in
// float, or in double where a float product could round twice, and round once.
#pragma once

#include <cmath>

namespace emulator {

inline float to_float(__half x) { return __half2float(x); }
inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
T round_to(double x);
template <>
inline __half round_to<__half>(double x) {
  return __double2half(x);
}
template <>
inline __nv_bfloat16 round_to<__nv_bfloat16>(double x) {
  return __double2bfloat16(x);
}

template <typename T>
T clamp_to_unit(T x) {
  const float value = to_float(x);
  return round_to<T>(value > 0.0f ? (value < 1.0f ? value : 1.0f) : 0.0f);
}

template <typename T>
T clamp_negative(T x) {
  const float value = to_float(x);
  return value < 0.0f ? round_to<T>(0.0) : x;
}

template <typename T>
T fused_multiply_add(T a, T b, T c) {
  // Exact in double for half, and for bfloat16 unless the exponents are far apart.
  return round_to<T>(std::fma(static_cast<double>(to_float(a)), static_cast<double>(to_float(b)),
                              static_cast<double>(to_float(c))));
}

}  // namespace emulator

#define CTO_UNARY(name, expression)                                               \
  inline __half h##name(__half a) {                                               \
    const double x = emulator::to_float(a);                                       \
    return emulator::round_to<__half>(expression);                                \
  }                                                                               \
  inline __nv_bfloat16 h##name(__nv_bfloat16 a) {                                 \
    const double x = emulator::to_float(a);                                       \
    return emulator::round_to<__nv_bfloat16>(expression);                         \
  }                                                                               \
  inline __half2 h2##name(__half2 a) { return __half2(h##name(a.x), h##name(a.y)); } \
  inline __nv_bfloat162 h2##name(__nv_bfloat162 a) {                              \
    return __nv_bfloat162(h##name(a.x), h##name(a.y));                            \
  }

CTO_UNARY(sqrt, std::sqrt(x))
CTO_UNARY(rsqrt, 1.0 / std::sqrt(x))
CTO_UNARY(rcp, 1.0 / x)
CTO_UNARY(exp, std::exp(x))
CTO_UNARY(exp2, std::exp2(x))
CTO_UNARY(exp10, std::pow(10.0, x))
CTO_UNARY(log, std::log(x))
CTO_UNARY(log2, std::log2(x))
CTO_UNARY(log10, std::log10(x))
CTO_UNARY(sin, std::sin(x))
CTO_UNARY(cos, std::cos(x))
CTO_UNARY(tanh, std::tanh(x))
CTO_UNARY(tanh_approx, std::tanh(x))
CTO_UNARY(floor, std::floor(x))
CTO_UNARY(ceil, std::ceil(x))
CTO_UNARY(trunc, std::trunc(x))
CTO_UNARY(rint, std::nearbyint(x))

#undef CTO_UNARY

#define CTO_FUSED(scalar, pair)                                                           \
  inline scalar __hfma(scalar a, scalar b, scalar c) {                                    \
    return emulator::fused_multiply_add(a, b, c);                                         \
  }                                                                                       \
  inline scalar __hfma_sat(scalar a, scalar b, scalar c) {                                \
    return emulator::clamp_to_unit(__hfma(a, b, c));                                      \
  }                                                                                       \
  inline scalar __hfma_relu(scalar a, scalar b, scalar c) {                               \
    return emulator::clamp_negative(__hfma(a, b, c));                                     \
  }                                                                                       \
  inline pair __hfma2(pair a, pair b, pair c) {                                           \
    return pair(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));                            \
  }                                                                                       \
  inline pair __hfma2_sat(pair a, pair b, pair c) {                                       \
    return pair(__hfma_sat(a.x, b.x, c.x), __hfma_sat(a.y, b.y, c.y));                    \
  }                                                                                       \
  inline pair __hfma2_relu(pair a, pair b, pair c) {                                      \
    return pair(__hfma_relu(a.x, b.x, c.x), __hfma_relu(a.y, b.y, c.y));                  \
  }

CTO_FUSED(__half, __half2)
CTO_FUSED(__nv_bfloat16, __nv_bfloat162)

#undef CTO_FUSED
