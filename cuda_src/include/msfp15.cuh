// SPDX-License-Identifier: MIT
// MSFP15: tiles of 8 elements share one 8-bit exponent E; value = (-1)^sign * M * 2^(E - 132).
//
// Byte j of a tile: bit 7 = bit j of E, bit 6 = sign, bits 5..0 = M.
#pragma once
#include "include/types.cuh"

namespace cto {

// The float32 bits of x, truncated: the rounding below only looks at the upper seven bits, and a
// double beyond float32's range becomes infinity or zero.
__device__ __forceinline__ u32 truncated_float_bits(float x) { return bits_of(x); }
__device__ __forceinline__ u32 truncated_float_bits(__nv_bfloat16 x) {
    return static_cast<u32>(bits_of(x)) << 16;
}
__device__ __forceinline__ u32 truncated_float_bits(__half x) { return bits_of(to_float(x)); }
__device__ __forceinline__ u32 truncated_float_bits(bool x) { return bits_of(to_float(x)); }
__device__ __forceinline__ u32 truncated_float_bits(double x) {
    const u64 bits = bits_of(x);
    const u32 sign = static_cast<u32>(bits >> 32) & 0x80000000u;
    const i32 exponent = static_cast<i32>((bits >> 52) & 0x7FF) - 896;
    if (exponent >= 255) return sign | 0x7F800000u;
    if (exponent <= 0) return sign;
    return sign | static_cast<u32>(exponent) << 23 | (static_cast<u32>(bits >> 29) & 0x7FFFFFu);
}

__device__ __forceinline__ u32 biased_exponent(u32 bits) { return (bits >> 23) & 0xFFu; }

// Sign and magnitude, rounded half up in magnitude, saturating at 63; zeros and subnormals give 0.
__device__ __forceinline__ u32 msfp15_element(u32 bits, u32 shared_exponent) {
    const u32 exponent = biased_exponent(bits);
    if (exponent == 0) return 0;
    const u32 shift = min(shared_exponent - exponent, 31u);
    const u32 truncated = ((bits & 0x7FFFFFu) | 0x800000u) >> 17 >> shift;
    return (bits >> 25 & 0x40u) | min(truncated + 1, 127u) >> 1;
}

// Eight float32 bit patterns to the eight bytes of their tile.
__device__ __forceinline__ u64 msfp15_encode(const u32 (&bits)[8], bool keep_nonfinite) {
    u32 shared_exponent = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) shared_exponent = max(shared_exponent, biased_exponent(bits[j]));
    if (shared_exponent == 255) return keep_nonfinite ? 0x8080808080808080ull : 0;
    u32 half[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const u32 top = (shared_exponent >> j & 1u) << 7;
        half[j / 4] |= (top | msfp15_element(bits[j], shared_exponent)) << 8 * (j % 4);
    }
    return static_cast<u64>(half[1]) << 32 | half[0];
}

// Bit j of E is the top bit of byte j.
__device__ __forceinline__ u32 msfp15_shared_exponent(u64 tile) {
    return static_cast<u32>((tile >> 7 & 0x0101010101010101ull) * 0x0102040810204080ull >> 56);
}

// M * 2^(E - 132) where it may be subnormal: by bits, since arithmetic flushes subnormals.
__device__ __forceinline__ u32 msfp15_small_magnitude(u32 m, u32 shared_exponent) {
    if (m == 0) return 0;
    const i32 leading = 31 - __clz(static_cast<i32>(m));
    const i32 exponent = static_cast<i32>(shared_exponent) - 5 + leading;
    if (exponent <= 0) return m << (shared_exponent + 17);
    return static_cast<u32>(exponent) << 23 | (m << (23 - leading) & 0x7FFFFFu);
}

// The float32 bits of the element in a byte. A zero magnitude decodes to +0 whatever its sign.
__device__ __forceinline__ u32 msfp15_decode(u32 byte, u32 shared_exponent) {
    const u32 m = byte & 0x3Fu;
    u32 magnitude;
    if (shared_exponent < 6) {
        magnitude = msfp15_small_magnitude(m, shared_exponent);
    } else {
        const float quantum = __uint_as_float((shared_exponent - 5) << 23);
        magnitude = __float_as_uint((__uint_as_float(0x4B000000u | m) - 8388608.0f) * quantum);
    }
    return magnitude | (m ? (byte & 0x40u) << 25 : 0u);
}

}  // namespace cto
