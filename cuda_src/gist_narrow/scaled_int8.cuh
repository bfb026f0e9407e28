// SPDX-License-Identifier: MIT
// 8-bit integers round(x / s), s a bfloat16: the scale s of a block, its codes, and their decoding.
//
// A block with an infinity or a NaN has NaN as its scale and zeros as its codes.
#pragma once
#include "core/vec.cuh"
#include "format/nan.cuh"
#include "gist_narrow/facts.cuh"

namespace cto::format::scaled_int8 {

constexpr int LARGEST = 127;
constexpr u32 NAN_SCALE = 0x7FC0;

// bfloat16(max(largest / LARGEST, INT8_LEAST_SCALE)) as bits; NAN_SCALE if `largest` is not finite.
// `largest`: bits of a block's largest magnitude in float.
__device__ __forceinline__ u32 scale_of(u32 largest) {
    if (largest >= 0x7F800000u) return NAN_SCALE;
    const float scale = __uint_as_float(largest) * (1.0f / LARGEST);
    return bits_of(from_acc<__nv_bfloat16>(
        fmaxf(scale, static_cast<float>(facts::gist_narrow::INT8_LEAST_SCALE))));
}

__device__ __forceinline__ float value_of(u32 scale) { return __uint_as_float(scale << 16); }

// 1 / scale, by which elements are multiplied; 0 for NAN_SCALE.
__device__ __forceinline__ float inverse_of(u32 scale) {
    return scale == NAN_SCALE ? 0.0f : 1.0f / value_of(scale);
}

__device__ __forceinline__ int rounded(float x, float inverse) {
    if (inverse == 0) return 0;
    return min(max(__float2int_rn(x * inverse), -LARGEST), LARGEST);
}

// code * scale. A subnormal scale counts as 0; encoders write none.
template <class E>
__device__ __forceinline__ E decode(u8 code, int scale) {
    const u32 bits = static_cast<u32>(scale) & 0xFFFFu;
    const float s = bits & 0x7F80u ? value_of(bits) : 0.0f;
    const float y = static_cast<float>(static_cast<signed char>(code)) * s;
    return y == y ? from_acc<E>(static_cast<Acc<E>>(y)) : nan::of_sign<E>(0);
}

}  // namespace cto::format::scaled_int8
