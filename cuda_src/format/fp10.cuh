// SPDX-License-Identifier: MIT
// FP10: 1 sign, 5 exponent (bias 15) and 4 fraction bits, the upper ten bits of a half; three codes
// in a word, the first in its lowest bits. Round to nearest even, overflow to infinity.
#pragma once
#include "core/types.cuh"
#include "format/nan.cuh"
#include "format/narrow_float.cuh"

namespace cto::format::fp10 {

using facts::FP10_IN_WORD;

constexpr int BITS = 10;
constexpr u32 INFINITY_CODE = 0x1F0;
constexpr u32 NAN_CODE = 0x1F8;

// x in FP10, rounded to nearest even; overflow gives infinity, a NaN keeps its sign.
__device__ __forceinline__ u32 to_fp10(float x) {
    const u32 magnitude = bits_of(x) & 0x7FFFFFFFu;
    const u32 code =
        min(narrow_float::rounded</*BIAS=*/15, /*FRACTION=*/4>(magnitude), INFINITY_CODE);
    return (bits_of(x) >> 22 & 0x200u) | (magnitude > 0x7F800000u ? NAN_CODE : code);
}
// The FP10 code of x: sign (bit 9), 5 bits of exponent, 4 of fraction, rounded to nearest even.
__device__ __forceinline__ u32 to_fp10(double x) {
    const u64 magnitude = bits_of(x) & 0x7FFFFFFFFFFFFFFFull;
    const u32 code =
        min(narrow_float::rounded</*BIAS=*/15, /*FRACTION=*/4>(magnitude), INFINITY_CODE);
    return (static_cast<u32>(bits_of(x) >> 54) & 0x200u) |
           (magnitude > 0x7FF0000000000000ull ? NAN_CODE : code);
}
__device__ __forceinline__ u32 to_fp10(__nv_bfloat16 x) {
    return to_fp10(__uint_as_float(static_cast<u32>(bits_of(x)) << 16));  // a NaN keeps its sign
}

// codes[i] = half i of `halves` in FP10, i < 2: its upper ten bits, rounded to nearest even by
// adding 31 + the lowest kept bit to the six dropped ones. Neither is NaN, so no carry leaves a
// half.
__device__ __forceinline__ void two_numbers_to_fp10(u32 halves, u32* codes) {
    const u32 rounded = halves + 0x001F001Fu + (halves >> 6 & 0x00010001u);
    codes[0] = rounded >> 6 & 0x3FFu;
    codes[1] = rounded >> 22;
}
// codes[i] = half i of the word `halves` in FP10, i < 2. `nan` has bit 0 or 16 set if half 0 or 1
// is NaN, as its magnitude + 0x3FF has the sign bit then; it is encoded as 0 of its sign, then gets
// NAN_CODE.
__device__ __forceinline__ void two_to_fp10(u32 halves, u32* codes) {
    const u32 nan = ((halves & 0x7FFF7FFFu) + 0x03FF03FFu) >> 15 & 0x00010001u;
    two_numbers_to_fp10(halves & ~(nan * 0x7FFFu), codes);
    codes[0] |= (nan & 1u) * NAN_CODE;
    codes[1] |= (nan >> 16) * NAN_CODE;
}

// codes[i] = x[i] in FP10, i < N.
template <class E, int N>
__device__ __forceinline__ void to_codes(const E* x, u32 (&codes)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) codes[i] = to_fp10(x[i]);
}
// codes[i] = x[i] in FP10, i < N, even: first all as if none were NaN; only if one is, all again by
// the slower two_to_fp10. magnitude + TO_NAN has the sign bit set exactly for a NaN.
template <int N>
__device__ __forceinline__ void to_codes(const __half* x, u32 (&codes)[N]) {
    constexpr u32 TO_NAN = 0x8000 - 0x7C01;
    const u32* const twos = reinterpret_cast<const u32*>(x);
    u32 unusual = 0;
#pragma unroll
    for (int i = 0; i < N; i += 2) {
        unusual |= (twos[i / 2] & 0x7FFF7FFFu) + TO_NAN * 0x00010001u;
        two_numbers_to_fp10(twos[i / 2], codes + i);
    }
    if ((unusual & 0x80008000u) == 0) return;
#pragma unroll
    for (int i = 0; i < N; i += 2) two_to_fp10(twos[i / 2], codes + i);
}

// codes[i] = x[i] in FP10, i < N, even, by way of half, in which a bfloat16 from 2^-17 on is exact,
// or infinite if its code is. Only if one of the N is NaN, or smaller but not 0, all again by the
// slower to_fp10: magnitude + TO_... has the sign bit set exactly if the bfloat16 is at least
// 2^-17, not 0, NaN.
template <int N>
__device__ __forceinline__ void to_codes(const __nv_bfloat16* x, u32 (&codes)[N]) {
    constexpr u32 TO_LEAST = 0x8000 - 0x3700, TO_NONZERO = 0x7FFF, TO_NAN = 0x8000 - 0x7F81;
    u32 unusual = 0;
#pragma unroll
    for (int i = 0; i < N; i += 2) {
        const u32 two = reinterpret_cast<const u32*>(x)[i / 2], magnitudes = two & 0x7FFF7FFFu;
        unusual |= (magnitudes + TO_NONZERO * 0x00010001u) & ~(magnitudes + TO_LEAST * 0x00010001u);
        unusual |= magnitudes + TO_NAN * 0x00010001u;
        const __half2 halves =
            __floats2half2_rn(__uint_as_float(two << 16), __uint_as_float(two & 0xFFFF0000u));
        two_numbers_to_fp10(*reinterpret_cast<const u32*>(&halves), codes + i);
    }
    if ((unusual & 0x80008000u) == 0) return;
#pragma unroll
    for (int i = 0; i < N; ++i) codes[i] = to_fp10(x[i]);
}

// words[k] = the codes of x[3 k], x[3 k + 1] and x[3 k + 2], the first in the lowest bits, k <
// WORDS.
template <int WORDS, class E>
__device__ __forceinline__ void encode(const E* x, u32* words) {
    u32 codes[FP10_IN_WORD * WORDS];
    to_codes(x, codes);
#pragma unroll
    for (int k = 0; k < WORDS; ++k)
        words[k] = codes[3 * k] | codes[3 * k + 1] << BITS | codes[3 * k + 2] << 2 * BITS;
}

// The number of a code, rounded to E.
template <class E>
__device__ __forceinline__ E decode(u32 code) {
    return nan::converted<E>(__ushort_as_half(static_cast<u16>(code << 6)));
}

// y[i] = number of code i of the word, i < 3. For float, first all as if none were NaN, then the
// NaNs: bit 9 of code i in `beyond` is set if its magnitude is above infinity's. For other types
// the sparse decoder has too few registers for that.
template <class E>
__device__ __forceinline__ void decode_word(u32 word, E* y) {
    constexpr u32 EACH = 1u << 2 * BITS | 1u << BITS | 1u;
    constexpr bool ONE_BY_ONE = !ARE_SAME<E, float>;
#pragma unroll
    for (int i = 0; i < FP10_IN_WORD; ++i) {
        const u32 code = word >> i * BITS & 0x3FFu;
        if constexpr (ONE_BY_ONE)
            y[i] = decode<E>(code);
        else
            y[i] = from_acc<E>(to_acc(__ushort_as_half(static_cast<u16>(code << 6))));
    }
    if constexpr (ONE_BY_ONE) return;
    const u32 beyond = (word & 0x1FFu * EACH) + (0x1FFu - INFINITY_CODE) * EACH;
    if ((beyond & 0x200u * EACH) == 0) return;
#pragma unroll
    for (int i = 0; i < FP10_IN_WORD; ++i)
        if (beyond & 0x200u << i * BITS)
            y[i] = nan::of_sign<E>(word << (22 - i * BITS) & 0x80000000u);
}

// y[j] = number of code share * N + j of the WORDS words, j < N: a third of their codes; share: 0,
// 1 or 2. `words` is indexed by constants only, so that it stays in registers.
template <int N, int WORDS, class E>
__device__ __forceinline__ void decode_share(const u32* words, int share, E* y) {
    static_assert(3 * N == FP10_IN_WORD * WORDS, "three shares are all elements");
    constexpr int AT_ONCE = N < 4 ? N : 4;  // four codes in a row lie in two words at most
#pragma unroll
    for (int first = 0; first < N; first += AT_ONCE) {
        u32 low = 0, high = 0, skipped = 0;
#pragma unroll
        for (int s = 0; s < 3; ++s) {
            const int element = s * N + first, word = element / FP10_IN_WORD;
            if (share != s) continue;
            low = words[word];
            high = word + 1 < WORDS ? words[word + 1] : 0;
            skipped = element % FP10_IN_WORD * BITS;
        }
        const u64 codes =
            ((low & 0x3FFFFFFFu) | static_cast<u64>(high) << FP10_IN_WORD * BITS) >> skipped;
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j)
            y[first + j] = decode<E>(static_cast<u32>(codes >> j * BITS) & 0x3FFu);
    }
}

}  // namespace cto::format::fp10
