// SPDX-License-Identifier: MIT
// OCP FP8 E5M2: round to nearest even straight from the source type, overflow to infinity.
//
// The hardware conversion of compute capability 8.9 and newer saturates, so it cannot be used.
#pragma once
#include "include/types.cuh"

namespace cto {

constexpr u32 E5M2_INFINITY = 0x7C;
constexpr u32 E5M2_NAN = 0x7E;

__device__ __forceinline__ u8 to_e5m2(__half x) {
    const u32 bits = bits_of(x);
    const u32 sign = bits >> 8 & 0x80u;
    if ((bits & 0x7FFFu) > 0x7C00u) return static_cast<u8>(sign | E5M2_NAN);
    return static_cast<u8>((bits + 0x7Fu + (bits >> 8 & 1u)) >> 8);
}

__device__ __forceinline__ u8 to_e5m2(float x) {
    const u32 sign = bits_of(x) >> 24 & 0x80u;
    const u32 magnitude = bits_of(x) & 0x7FFFFFFFu;
    u32 code;
    if (magnitude < 0x38800000u)  // below 2^-14: adding 2^7 rounds to the quantum 2^-16
        code = bits_of(__uint_as_float(magnitude) + 128.0f) - bits_of(128.0f);
    else  // two fraction bits stay; the exponent's bias goes from 127 to 15
        code = min(((magnitude + 0xFFFFFu + (magnitude >> 21 & 1u)) >> 21) - 448u, E5M2_INFINITY);
    return static_cast<u8>(sign | (magnitude > 0x7F800000u ? E5M2_NAN : code));
}

__device__ __forceinline__ u8 to_e5m2(double x) {
    const u32 sign = static_cast<u32>(bits_of(x) >> 56) & 0x80u;
    const u64 magnitude = bits_of(x) & 0x7FFFFFFFFFFFFFFFull;
    u64 code;
    if (magnitude < 0x3F10000000000000ull)  // below 2^-14: adding 2^36 rounds to the quantum 2^-16
        code = bits_of(__longlong_as_double(static_cast<i64>(magnitude)) + 0x1p36) -
               bits_of(0x1p36);
    else  // two fraction bits stay; the exponent's bias goes from 1023 to 15
        code = min(((magnitude + 0x1FFFFFFFFFFFFull + (magnitude >> 50 & 1u)) >> 50) - 4032ull,
                   static_cast<u64>(E5M2_INFINITY));
    if (magnitude > 0x7FF0000000000000ull) code = E5M2_NAN;
    return static_cast<u8>(sign | static_cast<u32>(code));
}

__device__ __forceinline__ u8 to_e5m2(__nv_bfloat16 x) { return to_e5m2(to_float(x)); }
__device__ __forceinline__ u8 to_e5m2(bool x) { return to_e5m2(to_float(x)); }

// A code is the upper byte of the half with the same value.
__device__ __forceinline__ __half from_e5m2(u8 code) {
    return __ushort_as_half(static_cast<u16>(code << 8));
}

}  // namespace cto
