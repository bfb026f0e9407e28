// SPDX-License-Identifier: MIT
// Moments in bytes: the upper bits of each float, counted down from the largest of its block.
// CPU provider: cupy_training_ops/families/adam/codes.py
//
// An array of n codes is followed by a byte for each block: the exponent of its largest. A code is
// the float's exponent and the first BITS of its fraction, as one number, less that of the block's
// least; 0 is 0. First moments have a sign above it.
#pragma once
#include "adam/facts.cuh"
#include "core/types.cuh"

namespace cto::codes {

using facts::adam::CODED_BLOCK;
using facts::adam::FIRST_BITS;
using facts::adam::SECOND_BITS;

constexpr u32 INFINITE = 0x7F800000u, SIGN = 0x80000000u, LARGEST_EXPONENT = 255;

// 32 bits that look random, of an element and a step.
__device__ __forceinline__ u32 noise(u32 element, u32 step) {
    u32 x = element * 0x9E3779B1u + step * 0x85EBCA77u;
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    return x ^ x >> 16;
}

// BITS of the fraction are kept; TOP is the largest code.
template <int BITS, u32 TOP>
struct Format {
    static constexpr int SHIFT = 23 - BITS;
    static constexpr u32 REST = (1u << SHIFT) - 1;

    // What is subtracted from a block's upper bits, so that the largest is coded as TOP at most.
    static __device__ __forceinline__ u32 base(u32 exponent) {
        const u32 largest = (exponent << BITS) + (1u << BITS) - 1;
        return largest > TOP ? largest - TOP : 0;
    }
    // The upper bits of a finite number that is not negative, once `added` (REST at most) was added to
    // all of them: 0 for 0.
    static __device__ __forceinline__ u32 upper(u32 bits, u32 added) {
        return bits + added >> SHIFT;
    }
    // `upper` where NaN and infinities stay what they are.
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

__device__ __forceinline__ float decoded_first(u32 code, u32 base) {
    return __uint_as_float(First::bits(code & 127u, base) | (code & 128u) << 24);
}
__device__ __forceinline__ float decoded_second(u32 code, u32 base) {
    return __uint_as_float(Second::bits(code, base));
}

// The largest of a warp's numbers.
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

// upper[k] = exponent and first BITS of the fraction of |x[k]|, after added(k), less than one unit of them,
// was added to its bits to round it. Returns the exponent of the largest of the block, which is a warp's.
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

// The codes of a block's first moments, four a lane; returns the block's exponent. A number is rounded up
// with the probability of its distance from the one below, by the upper bits of its noise: so a moment
// follows a mean that moves slowly, where rounding to nearest would leave it.
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

// The codes of second moments, as encode_first's, but rounded by the lower bits of noise. What is not 0
// is never coded as 0.
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
