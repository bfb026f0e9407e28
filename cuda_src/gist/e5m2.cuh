// SPDX-License-Identifier: MIT
// OCP FP8 E5M2: round to nearest even straight from the source type, overflow to infinity.
//
// The hardware conversion of compute capability 8.9 and newer saturates, so it cannot be used.
#pragma once
#include "core/types.cuh"
#include "format/narrow_float.cuh"

namespace cto::format::e5m2 {

constexpr u32 INFINITY_CODE = 0x7C;
constexpr u32 NAN_CODE = 0x7E;

// x in E5M2, rounded to nearest even; overflow gives infinity, a NaN keeps its sign.
__device__ __forceinline__ u8 to_e5m2(float x) {
    const u32 sign = bits_of(x) >> 24 & 0x80u;
    const u32 magnitude = bits_of(x) & 0x7FFFFFFFu;
    const u32 code =
        min(narrow_float::rounded</*BIAS=*/15, /*FRACTION=*/2>(magnitude), INFINITY_CODE);
    return static_cast<u8>(sign | (magnitude > 0x7F800000u ? NAN_CODE : code));
}

// The E5M2 code of x, rounded to nearest even: sign (bit 7), 5 bits of exponent, 2 of fraction.
__device__ __forceinline__ u8 to_e5m2(double x) {
    const u32 sign = static_cast<u32>(bits_of(x) >> 56) & 0x80u;
    const u64 magnitude = bits_of(x) & 0x7FFFFFFFFFFFFFFFull;
    const u32 code =
        min(narrow_float::rounded</*BIAS=*/15, /*FRACTION=*/2>(magnitude), INFINITY_CODE);
    return static_cast<u8>(sign | (magnitude > 0x7FF0000000000000ull ? NAN_CODE : code));
}

__device__ __forceinline__ u8 to_e5m2(bool x) { return to_e5m2(x ? 1.0f : 0.0f); }

// Byte j = the upper byte of 16-bit value j of the two words, j < 4.
__device__ __forceinline__ u32 upper_bytes(u32 low, u32 high) {
    return __byte_perm(low, high, 0x7531);
}

// Two halves without signs, each rounded to nearest even at its upper byte, which then is its E5M2
// code: 127 + the lowest kept bit is added to the dropped byte.
__device__ __forceinline__ u32 round_halves(u32 magnitudes) {
    return magnitudes + 0x007F007Fu + (magnitudes >> 8 & 0x00010001u);
}

// Byte j = half j of the words {low, high} in E5M2, j < 4, with its sign from bit 7 of byte j of
// `signs`. Byte j of `nan` is 1 for a NaN: its magnitude + 0x3FF has the sign bit set.
__device__ __forceinline__ u32 halves_to_e5m2(u32 low, u32 high, u32 signs) {
    low &= 0x7FFF7FFFu;
    high &= 0x7FFF7FFFu;
    const u32 codes = upper_bytes(round_halves(low), round_halves(high));
    const u32 nan = upper_bytes(low + 0x03FF03FFu, high + 0x03FF03FFu) >> 7 & 0x01010101u;
    const u32 nan_bytes = nan * 0xFFu;
    return (codes & ~nan_bytes) | (0x7E7E7E7Eu & nan_bytes) | (signs & 0x80808080u);
}

// Byte j = x[j] in E5M2, j < 4.
template <class E>
__device__ __forceinline__ u32 four_to_e5m2(const E* x) {
    u32 codes = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) codes |= static_cast<u32>(to_e5m2(x[j])) << 8 * j;
    return codes;
}

// Byte j = x[j] in E5M2, j < 4.
__device__ __forceinline__ u32 four_to_e5m2(const __half* x) {
    const u32* words = reinterpret_cast<const u32*>(x);
    return halves_to_e5m2(words[0], words[1], upper_bytes(words[0], words[1]));
}

// Byte j = x[j] in E5M2, j < 4, by way of half: exact from 2^-17 on, below which E5M2 is 0. Signs
// are taken from x, because the conversion loses that of a NaN.
__device__ __forceinline__ u32 four_to_e5m2(const __nv_bfloat16* x) {
    const u32* words = reinterpret_cast<const u32*>(x);
    const __half2 low = __floats2half2_rn(to_acc(x[0]), to_acc(x[1]));
    const __half2 high = __floats2half2_rn(to_acc(x[2]), to_acc(x[3]));
    return halves_to_e5m2(*reinterpret_cast<const u32*>(&low), *reinterpret_cast<const u32*>(&high),
                          upper_bytes(words[0], words[1]));
}

// The number of a code, as a half: the code is its upper byte.
__device__ __forceinline__ __half from_e5m2(u8 code) {
    return __ushort_as_half(static_cast<u16>(code << 8));
}

}  // namespace cto::format::e5m2
