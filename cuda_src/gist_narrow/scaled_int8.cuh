// SPDX-License-Identifier: MIT
// 8-bit integers round(x / s), s a bfloat16: the scale s of a block, its codes, and their decoding.
//
// A block with an infinity or a NaN has a negative scale, that of its finite elements: -128 is NaN,
// 127 and -127 are infinities, and finite elements have codes up to 126. Older encoders gave such a
// block NaN as its scale, with which all its elements are NaN.
#pragma once
#include "core/vec.cuh"
#include "format/nan.cuh"
#include "gist_narrow/facts.cuh"

namespace cto::format::scaled_int8 {

constexpr int LARGEST = 127, LARGEST_BESIDE_NONFINITE = 126;
constexpr int CODE_OF_INFINITY = 127, CODE_OF_NAN = -128;
constexpr u32 IS_NONFINITE = 0x8000;  // a bit of the scale of a block that is not finite
constexpr u32 INFINITY_BITS = 0x7F800000u;

// bfloat16(max(largest / MOST, INT8_LEAST_SCALE)) as bits. `largest`: bits of the largest finite
// magnitude of a block in float.
template <int MOST>
__device__ __forceinline__ u32 scale_of(u32 largest) {
    const float scale = __uint_as_float(largest) * (1.0f / MOST);
    return bits_of(from_acc<__nv_bfloat16>(
        fmaxf(scale, static_cast<float>(facts::gist_narrow::INT8_LEAST_SCALE))));
}

// The bfloat16 with these bits.
__device__ __forceinline__ float value_of(u32 scale) { return __uint_as_float(scale << 16); }

// x * inverse rounded to an integer, in -MOST to MOST.
template <int MOST>
__device__ __forceinline__ int rounded(float x, float inverse) {
    return min(max(__float2int_rn(x * inverse), -MOST), MOST);
}

// code (an int8) * scale (bits of a bfloat16), rounded to E; NaN if the scale is. A subnormal scale
// counts as 0; encoders write none.
template <class E>
__device__ __forceinline__ E decode(u8 code, int scale) {
    const u32 bits = static_cast<u32>(scale) & 0xFFFFu;
    const float s = bits & 0x7F80u ? value_of(bits) : 0.0f;
    const float y = static_cast<float>(static_cast<signed char>(code)) * s;
    return y == y ? from_acc<E>(static_cast<Acc<E>>(y)) : nan::of_sign<E>(0);
}

// The number of `code` in a block that is not finite, whose scale is negative: NaN, infinity, or
// code times the scale without its sign.
template <class E>
__device__ __forceinline__ E decode_nonfinite(u8 code, int scale) {
    const int number = static_cast<signed char>(code);
    if (number == CODE_OF_NAN) return nan::of_sign<E>(0);
    if (number != CODE_OF_INFINITY && number != -CODE_OF_INFINITY)
        return decode<E>(code, scale & ~static_cast<int>(IS_NONFINITE));
    const u32 sign = static_cast<u32>(number) & 0x80000000u;
    return from_acc<E>(static_cast<Acc<E>>(__uint_as_float(INFINITY_BITS | sign)));
}

}  // namespace cto::format::scaled_int8
