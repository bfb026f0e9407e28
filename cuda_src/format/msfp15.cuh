// SPDX-License-Identifier: MIT
// MSFP15: boxes of 8 elements share one 8-bit exponent E; value = (-1)^sign * M * 2^(E - 132).
//
// Byte j of a box: bit 7 = bit j of E, bit 6 = sign, bits 5..0 = M. Four bytes are worked on at a
// time in one 32-bit word, and M is found by floating-point arithmetic that is exact; boxes so
// small that subnormals come near half a quantum are encoded by bits.
#pragma once
#include "core/types.cuh"

namespace cto::format::msfp15 {

constexpr u32 SMALLEST_EXACT_EXPONENT = 8;
constexpr u32 NAN_BITS = 0x7FFFFFFFu;  // what a GPU makes of any NaN

// A float that rounds as x does: only the upper seven bits count, so a double is truncated, and
// becomes infinity or zero beyond float's range.
__device__ __forceinline__ float truncated(float x) { return x; }
__device__ __forceinline__ float truncated(__half x) { return to_acc(x); }
__device__ __forceinline__ float truncated(__nv_bfloat16 x) { return to_acc(x); }
__device__ __forceinline__ float truncated(bool x) { return x ? 1.0f : 0.0f; }
__device__ __forceinline__ float truncated(double x) {
    const u64 bits = bits_of(x);
    const u32 sign = static_cast<u32>(bits >> 32) & 0x80000000u;
    const i32 exponent = static_cast<i32>((bits >> 52) & 0x7FF) - 896;
    if (exponent >= 255) return __uint_as_float(sign | 0x7F800000u);
    if (exponent <= 0) return __uint_as_float(sign);
    const u32 fraction = static_cast<u32>(bits >> 29) & 0x7FFFFFu;
    return __uint_as_float(sign | static_cast<u32>(exponent) << 23 | fraction);
}

// The same where signs are kept: what is not zero stays so, below float's normal numbers too.
__device__ __forceinline__ float truncated_to_nonzero(__nv_bfloat16 x) {
    return __uint_as_float(static_cast<u32>(bits_of(x)) << 16);
}
__device__ __forceinline__ float truncated_to_nonzero(double x) {
    const u64 bits = bits_of(x);
    const i32 exponent = static_cast<i32>((bits >> 52) & 0x7FF) - 896;
    if (exponent > 0 || bits << 1 == 0) return truncated(x);
    const u32 fraction = (static_cast<u32>(bits >> 29) & 0x7FFFFFu) | 0x800000u;
    const u32 sign = static_cast<u32>(bits >> 32) & 0x80000000u;
    return __uint_as_float(sign | fraction >> min(1 - exponent, 31) | 1u);
}
template <bool KEEP_SIGN, class E>
__device__ __forceinline__ float truncated(E x) {
    if constexpr (KEEP_SIGN && (ARE_SAME<E, double> || ARE_SAME<E, __nv_bfloat16>))
        return truncated_to_nonzero(x);
    else
        return truncated(x);
}

// Bit j of a nibble to bit 7 of byte j, and back.
__device__ __forceinline__ u32 spread_nibble(u32 nibble) {
    return (nibble * 0x00204081u & 0x01010101u) << 7;
}
__device__ __forceinline__ u32 gather_nibble(u32 bytes) {
    return (bytes & 0x80808080u) * 0x00204081u >> 28;
}

// Twice a size in quanta, truncated, plus one, in the low byte: at 2^22 a float's unit is one half.
__device__ __forceinline__ u32 doubled_magnitude(float quanta) {
    return __float_as_uint(__fadd_rz(quanta, 4194304.5f)) & 0xFFu;
}

// |x| / quantum; KEEP_SIGN: what is not zero is one half at least, which is rounded to M = 1. The
// test is of bits: arithmetic takes subnormals for zeros.
template <bool KEEP_SIGN>
__device__ __forceinline__ float in_quanta(float x, float scale) {
    const float quanta = fabsf(x) * scale;
    return KEEP_SIGN ? fmaxf(quanta, (bits_of(x) & 0x7FFFFFFFu) != 0 ? 0.5f : 0.0f) : quanta;
}

// Sign and M of four elements, rounded half up in magnitude, at most 63. Zeros have no sign, nor have
// subnormals where signs are not kept.
template <bool KEEP_SIGN>
__device__ __forceinline__ u32 encode_four(const float* x, float scale) {
    u32 doubled = 0, signs = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        doubled |= doubled_magnitude(in_quanta<KEEP_SIGN>(x[j], scale)) << 8 * j;
        if (KEEP_SIGN ? bits_of(x[j]) > 0x80000000u : x[j] <= -0x1p-126f) signs |= 0x40u << 8 * j;
    }
    const u32 magnitudes = doubled >> 1 & 0x7F7F7F7Fu;  // 0 to 64
    return signs | (magnitudes - (magnitudes >> 6 & 0x01010101u));
}

// Sign and M of a subnormal number, which are kept.
__device__ __forceinline__ u32 encode_subnormal(u32 bits, u32 shared_exponent) {
    const u32 fraction = bits & 0x7FFFFFu;
    const u32 magnitude = min((fraction >> 16 >> shared_exponent) + 1, 127u) >> 1;
    return fraction == 0 ? 0 : (bits >> 25 & 0x40u) | max(magnitude, 1u);
}

// The same by bits, for boxes in which floating-point arithmetic would meet subnormals; without
// KEEP_SIGN those are zeros.
template <bool KEEP_SIGN>
__device__ __forceinline__ u32 encode_four_small(const float* x, u32 shared_exponent) {
    u32 codes = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const u32 bits = bits_of(x[j]);
        const u32 exponent = bits >> 23 & 0xFFu;
        if (exponent == 0) {
            if (KEEP_SIGN) codes |= encode_subnormal(bits, shared_exponent) << 8 * j;
            continue;
        }
        const u32 truncated =
            ((bits & 0x7FFFFFu) | 0x800000u) >> 17 >> (shared_exponent - exponent);
        constexpr u32 LEAST = KEEP_SIGN ? 1 : 0;
        codes |= ((bits >> 25 & 0x40u) | max(min(truncated + 1, 127u) >> 1, LEAST)) << 8 * j;
    }
    return codes;
}

// The eight bytes of a box.
template <bool KEEP_SIGN>
__device__ __forceinline__ uint2 encode_box(const float (&x)[8], bool keep_nonfinite) {
    u32 largest = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) largest = max(largest, bits_of(x[j]) & 0x7FFFFFFFu);
    const u32 shared_exponent = largest >> 23;
    if (shared_exponent == 255) {
        const u32 codes = keep_nonfinite ? 0x80808080u : 0;
        return make_uint2(codes, codes);
    }
    uint2 codes;
    if (shared_exponent >= SMALLEST_EXACT_EXPONENT) {
        const float scale = __uint_as_float((259 - shared_exponent) << 23);
        codes = make_uint2(encode_four<KEEP_SIGN>(x, scale), encode_four<KEEP_SIGN>(x + 4, scale));
    } else {
        codes = make_uint2(encode_four_small<KEEP_SIGN>(x, shared_exponent),
                           encode_four_small<KEEP_SIGN>(x + 4, shared_exponent));
    }
    codes.x |= spread_nibble(shared_exponent & 15);
    codes.y |= spread_nibble(shared_exponent >> 4);
    return codes;
}

__device__ __forceinline__ u32 shared_exponent_of(uint2 codes) {
    return gather_nibble(codes.x) | gather_nibble(codes.y) << 4;
}

// 2^(E - 132), subnormal below E = 6, or NaN for a box that kept a non-finite value.
__device__ __forceinline__ float quantum_of(u32 shared_exponent, bool keep_nonfinite) {
    if (keep_nonfinite && shared_exponent == 255) return __uint_as_float(NAN_BITS);
    return __uint_as_float(shared_exponent < 6 ? 1u << (shared_exponent + 17)
                                               : (shared_exponent - 5) << 23);
}

// Four codes to 64 + M or 64 - M by sign, a byte each, so that a zero M loses its sign.
__device__ __forceinline__ u32 offset_magnitudes(u32 codes) {
    const u32 magnitudes = codes & 0x3F3F3F3Fu;
    const u32 negative = (codes >> 6 & 0x01010101u) * 0xFFu;
    return ((0x40404040u + magnitudes) & ~negative) | ((0x40404040u - magnitudes) & negative);
}

// Byte j of `offset` behind the leading bits of 2^23 is 2^23 + 64 + the signed M, exactly.
__device__ __forceinline__ float decode_element(u32 offset, int j, float quantum) {
    const u32 bits = __byte_perm(offset, 0x4B000000u, 0x7540 | j);
    return multiply_subnormal(__uint_as_float(bits) - 8388672.0f, quantum);
}

template <class Y>
__device__ __forceinline__ Y from_decoded(float x) {
    return from_acc<Y>(x);
}
template <>
__device__ __forceinline__ double from_decoded<double>(float x) {
    return widen_subnormal(x);
}

// The first N elements of four codes.
template <int N, class Y>
__device__ __forceinline__ void decode_four(u32 codes, float quantum, Y* y) {
    const u32 offset = offset_magnitudes(codes);
#pragma unroll
    for (int j = 0; j < N; ++j) y[j] = from_decoded<Y>(decode_element(offset, j, quantum));
}

// Share number `share` of a box, N elements.
template <int N, class Y>
__device__ __forceinline__ void decode_share(uint2 codes, int share, bool keep_nonfinite, Y* y) {
    const float quantum = quantum_of(shared_exponent_of(codes), keep_nonfinite);
    if constexpr (N == 8) {
        decode_four<4>(codes.x, quantum, y);
        decode_four<4>(codes.y, quantum, y + 4);
    } else {
        const u32 half = share * N & 4 ? codes.y : codes.x;
        decode_four<N>(half >> 8 * (share * N & 3), quantum, y);
    }
}

}  // namespace cto::format::msfp15
