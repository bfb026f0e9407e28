// SPDX-License-Identifier: MIT
// Integer intrinsics and bit casts.
#pragma once

#include <cstdint>
#include <cstring>

namespace emulator {

template <typename To, typename From>
To bit_cast(const From& value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}

template <typename T>
T reverse_bits(T value) {
  T result = 0;
  constexpr unsigned bits = 8 * sizeof(T);
  for (unsigned i = 0; i < bits; ++i) result |= (value >> i & 1) << (bits - 1 - i);
  return result;
}

}  // namespace emulator

inline int __float_as_int(float x) { return emulator::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return emulator::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return emulator::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return emulator::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return emulator::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return emulator::bit_cast<double>(x); }
inline int __double2hiint(double x) { return static_cast<int>(__double_as_longlong(x) >> 32); }
inline int __double2loint(double x) { return static_cast<int>(__double_as_longlong(x)); }
inline double __hiloint2double(int high, int low) {
  return emulator::bit_cast<double>(static_cast<uint64_t>(static_cast<unsigned>(high)) << 32 |
                                    static_cast<unsigned>(low));
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) {
  return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) { return emulator::reverse_bits(x); }
inline unsigned long long __brevll(unsigned long long x) { return emulator::reverse_bits(x); }

inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned nibble = selector >> 4 * i & 0xF;
    const auto byte = static_cast<unsigned>(bytes >> 8 * (nibble & 7) & 0xFF);
    const unsigned sign = byte & 0x80 ? 0xFFu : 0u;
    result |= (nibble & 8 ? sign : byte) << 8 * i;
  }
  return result;
}

inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift) {
  return shift >= 32 ? low : __funnelshift_l(low, high, shift);
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
  return shift >= 32 ? high : __funnelshift_r(low, high, shift);
}

inline int __mulhi(int x, int y) { return static_cast<int>(static_cast<int64_t>(x) * y >> 32); }
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>(static_cast<uint64_t>(x) * y >> 32);
}
inline long long __mul64hi(long long x, long long y) {
  return static_cast<long long>(static_cast<__int128>(x) * y >> 64);
}
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}
inline int __mul24(int x, int y) {
  const auto low = [](int v) { return ((v & 0xFFFFFF) ^ 0x800000) - 0x800000; };
  return static_cast<int>(static_cast<int64_t>(low(x)) * low(y));
}
inline unsigned __umul24(unsigned x, unsigned y) { return (x & 0xFFFFFF) * (y & 0xFFFFFF); }
inline unsigned __sad(int x, int y, unsigned z) {
  const int64_t difference = static_cast<int64_t>(x) - y;
  return z + static_cast<unsigned>(difference < 0 ? -difference : difference);
}
inline unsigned __usad(unsigned x, unsigned y, unsigned z) { return z + (x < y ? y - x : x - y); }
