// SPDX-License-Identifier: MIT
// Moments of Adam in one byte each: the upper bits of the float, relative to its block.
// CPU provider: cupy_training_ops/families/adam/codes.py
//
//     upper = float's exponent and first BITS of its fraction, one number
//     code = max(upper - base, 0), 0 for 0; the first moment has its sign in bit 7
//
// `base` follows from the exponent of the block's largest element, so that its code is the largest. An
// array is n codes, and then that exponent, a byte for each block of CODED_BLOCK elements.
#pragma once
#include "adam/facts.cuh"
#include "core/types.cuh"

namespace cto::codes {

using facts::adam::CODED_BLOCK;
using facts::adam::FIRST_BITS;
using facts::adam::SECOND_BITS;

constexpr u32 INFINITE = 0x7F800000u, SIGN = 0x80000000u, LARGEST_EXPONENT = 255;

// A hash of element and step: 32 pseudorandom bits.
__device__ __forceinline__ u32 noise(u32 element, u32 step) {
    u32 x = element * 0x9E3779B1u + step * 0x85EBCA77u;
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    return x ^ x >> 16;
}

// BITS of the fraction are stored; TOP is the largest code.
template <int BITS, u32 TOP>
struct Format {
    static constexpr int SHIFT = 23 - BITS;
    static constexpr u32 REST = (1u << SHIFT) - 1;  // mask of the bits that are rounded off

    // The base of a block whose largest element has this exponent.
    static __device__ __forceinline__ u32 base(u32 exponent) {
        const u32 largest = (exponent << BITS) + (1u << BITS) - 1;
        return largest > TOP ? largest - TOP : 0;
    }
    // `upper` of a finite number >= 0, rounded: up if the bits that are cut off plus `added` carry.
    // added <= REST, so 0 gives 0.
    static __device__ __forceinline__ u32 upper(u32 bits, u32 added) {
        return bits + added >> SHIFT;
    }
    // `upper`, where NaN stays NaN and infinity stays infinity.
    static __device__ __forceinline__ u32 upper_of_any(u32 bits, u32 added) {
        if (bits >= INFINITE) return (bits > INFINITE ? 0x7FC00000u : INFINITE) >> SHIFT;
        return upper(bits, added);
    }
    static __device__ __forceinline__ u32 exponent(u32 upper) { return upper >> BITS; }
    static __device__ __forceinline__ u32 code(u32 upper, u32 base, int least) {
        return max(static_cast<int>(upper - base), least);
    }
    static __device__ __forceinline__ u32 bits(u32 code, u32 base) {
        return code == 0 ? 0 : code + base << SHIFT;
    }
};

using First = Format<FIRST_BITS, 127>;
using Second = Format<SECOND_BITS, 255>;

// The float of a code of a first moment (with a sign), of a second moment (without).
__device__ __forceinline__ float decoded_first(u32 code, u32 base) {
    return __uint_as_float(First::bits(code & 127u, base) | (code & 128u) << 24);
}
__device__ __forceinline__ float decoded_second(u32 code, u32 base) {
    return __uint_as_float(Second::bits(code, base));
}

// The largest of the warp's numbers, in each lane.
__device__ __forceinline__ u32 largest(u32 mine) {
#if defined(__CUDA_CPU__) || __CUDA_ARCH__ < 800
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        const u32 other = __shfl_xor_sync(ALL_LANES, mine, step);
        mine = other > mine ? other : mine;
    }
    return mine;
#else
    return __reduce_max_sync(ALL_LANES, mine);
#endif
}

// upper[k] = Format::upper of |x[k]|, rounded with added(k). Returns the exponent of the largest of the
// block, whose elements are those of this warp, four a lane.
template <class Format, class Added>
__device__ __forceinline__ u32 uppers(const float (&x)[4], const Added& added, u32 (&upper)[4]) {
    u32 most = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        upper[k] = Format::upper(__float_as_uint(x[k]) & ~SIGN, added(k));
        most = upper[k] > most ? upper[k] : most;
    }
    const u32 exponent = Format::exponent(largest(most));
    if (exponent < LARGEST_EXPONENT) return exponent;
#pragma unroll
    for (int k = 0; k < 4; ++k)
        upper[k] = Format::upper_of_any(__float_as_uint(x[k]) & ~SIGN, added(k));
    return LARGEST_EXPONENT;
}

// The codes of a block's first moments, four a lane; returns the block's exponent. Stochastic
// rounding, by the upper bits of the noise: the mean of many steps is right, where rounding to
// nearest would drop changes that are small beside the moment.
__device__ __forceinline__ u32 encode_first(const float (&x)[4], const u32 (&noises)[4],
                                            u8 (&codes)[4]) {
    u32 upper[4];
    const auto any = [&](int k) { return noises[k] >> (32 - First::SHIFT); };
    const u32 exponent = uppers<First>(x, any, upper), base = First::base(exponent);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const u32 sign = __float_as_uint(x[k]) >> 31 << 7;
        codes[k] = static_cast<u8>(sign | First::code(upper[k], base, 0));
    }
    return exponent;
}

// encode_first for second moments, rounded by the lower bits of the noise. The code is at least 1
// unless x[k] is 0: a divisor that became 0 would make the update huge.
__device__ __forceinline__ u32 encode_second(const float (&x)[4], const u32 (&noises)[4],
                                             u8 (&codes)[4]) {
    u32 upper[4];
    const auto any = [&](int k) { return noises[k] & Second::REST; };
    const u32 exponent = uppers<Second>(x, any, upper), base = Second::base(exponent);
#pragma unroll
    for (int k = 0; k < 4; ++k)
        codes[k] = static_cast<u8>(Second::code(upper[k], base, x[k] == 0 ? 0 : 1));
    return exponent;
}

}  // namespace cto::codes
