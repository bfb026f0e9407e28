// SPDX-License-Identifier: MIT
// Moments of Adam in codes of 8 or 4 bits.  CPU provider: cupy_training_ops/families/adam/codes.py
//
// A second moment v is the upper bits of the float, relative to the largest of its block:
//
//     upper = float's exponent and first `fraction` bits of its fraction, as one number
//     code = max(upper - base, 0), 0 for 0
//
// `base` follows from the exponent of the block's largest element, so that the largest `upper` with
// that exponent has the largest code. A first moment m is relative to the power of two at or below
// the root of the second one, as that is after it was rounded.
//
// A block of CODED_BLOCK elements is a warp's, four a lane. Rounding is stochastic: the mean of
// many steps is right, where rounding to nearest would drop changes that are small beside the
// moment.
//
// "Exponent" is a float's 8 bits, with its bias of 127, throughout.
#pragma once
#include "adam/facts.cuh"
#include "core/vec.cuh"

namespace cto::codes {

using namespace facts::adam;
using vec::Vec;

constexpr int WIDTH = CODED_BLOCK / WARP;  // elements of a lane
static_assert(WIDTH == 4);

constexpr int FRACTION = 23, BIAS = 127;  // of float
constexpr u32 INFINITE = 0x7F800000u, SIGN = 0x80000000u, LARGEST = INFINITE - 1;

using Floats = float[WIDTH];
using Bits = u32[WIDTH];

// A hash of an element's index and the step's number: 32 pseudorandom bits, by multiplications with
// odd constants and shifts. First moments take the upper bits, second moments the lower ones.
__device__ __forceinline__ u32 noise(u32 element, u32 step) {
    u32 x = element * 0x9E3779B1u + step * 0x85EBCA77u;
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    return x ^ x >> 16;
}

// The float 2^(exponent - BIAS).
__device__ __forceinline__ float power(u32 exponent) {
    return __uint_as_float(exponent << FRACTION);
}

// The exponent of the power of two at or below the root of x >= 0: half of x's exponent, whose bias
// is added before and so halves to itself.
__device__ __forceinline__ u32 root_exponent(float x) {
    return (__float_as_uint(x) >> FRACTION) + BIAS >> 1;
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

// The exponent and the first `fraction` bits of the fraction, as one number, of a float >= 0 with
// these bits: rounded stochastically, by adding as many bits of noise as are cut off. Infinity
// stays infinite and NaN NaN, if there are bits of the fraction.
__device__ __forceinline__ u32 upper_of(u32 bits, u32 noise, int fraction) {
    const int shift = FRACTION - fraction;
    if (bits >= INFINITE) return (bits > INFINITE ? 0x7FC00000u : INFINITE) >> shift;
    return bits + (noise & (1u << shift) - 1) >> shift;  // 0 gives 0
}

// `base` (code = upper - base), where the block's largest element has this exponent: the largest
// `upper` with it, all `fraction` bits 1, gets the code TOP. At least 0.
template <int TOP>
__device__ __forceinline__ u32 base_of(u32 exponent, int fraction) {
    const int base = static_cast<int>((exponent << fraction) + (1u << fraction) - 1) - TOP;
    return static_cast<u32>(max(base, 0));
}

// The float >= 0 of a code: 0 for 0, else that whose `upper` is code + base.
__device__ __forceinline__ float decoded(u32 code, u32 base, int fraction) {
    return __uint_as_float(code == 0 ? 0 : code + base << FRACTION - fraction);
}

// Bytes [first, first + N) of an array; those from `end` on are 0. ARE_VECS: all N exist, and are
// loaded together.
template <bool ARE_VECS, int N>
__device__ __forceinline__ Vec<u8, N> bytes_of(const u8* from, i64 first, i64 end) {
    if constexpr (ARE_VECS)
        return *reinterpret_cast<const Vec<u8, N>*>(from + first);
    else
        return vec::load_elements<u8, N>(from, first, end);
}
// to[first + k] = row.at[k], k < N, first + k < end. ARE_VECS: all N exist, and are stored
// together.
template <bool ARE_VECS, int N>
__device__ __forceinline__ void put_bytes(u8* to, i64 first, i64 end, const Vec<u8, N>& row) {
    if constexpr (ARE_VECS)
        *reinterpret_cast<Vec<u8, N>*>(to + first) = row;
    else
        vec::store_elements(to, first, end, row);
}

// to[i] = from[i] in [first, end) by this block, unless they are one array, or there is none.
__device__ __forceinline__ void copy_bytes(const u8* from, u8* to, i64 first, i64 end) {
    if (!to || to == from) return;
#pragma unroll 1
    for (i64 i = first + threadIdx.x; i < end; i += blockDim.x) to[i] = from[i];
}

// Two formats, EightBits and FourBits, with these functions. m and v are the arrays of bytes of
// first and second moments of n elements; a lane has elements [i, i + WIDTH); all lanes of a warp
// call them. ARE_VECS: all these exist, and bytes are accessed in vectors.
//     load      decodes to mean and square
//     store     encodes mean and square, by the noise of each element; either array may be null
//     stay      copies the codes of elements [first, end), for a step that is skipped; first is a
//               multiple of CODED_BLOCK

// 8 bits. m: n codes. v: n codes, then a byte for each block, the exponent of its largest. A code
// of m: bit 7 the sign; the rest is 0 for 0, else counts floats of FIRST_BITS bits of the fraction
// from 2^(least - BIAS) on, over OCTAVES powers of two, up to TOP.
struct EightBits {
    static constexpr u32 TOP = 127;  // the largest code of |m|

    // The exponent of the least first moment with a code, beside this second one: the largest
    // code's is ROOM powers of two above the root.
    static __device__ __forceinline__ u32 least_of(float square) {
        return root_exponent(square) + ROOM + 1 - OCTAVES;
    }
    // The code of the first moment `mean` beside its second moment `square`, rounded stochastically
    // by `noise`, of which `draw` is the upper 23 bits.
    static __device__ __forceinline__ u32 first_code(float mean, float square, u32 noise) {
        const u32 bits = __float_as_uint(mean), size = bits & ~SIGN;
        const u32 least = least_of(square), draw = noise >> 9;
        u32 code;
        if (size < least << FRACTION) {  // code 1 with probability |mean| / 2^(least - BIAS)
            const float share = fabsf(mean) * power(FRACTION + 2 * BIAS - least);
            code = static_cast<u32>(share) > draw;
        } else {
            // Rounds stochastically to FIRST_BITS bits of the fraction: adds noise, cuts 20 bits.
            const u32 upper = size + (draw >> FIRST_BITS) >> FRACTION - FIRST_BITS;
            code = min(upper - (least << FIRST_BITS) + 1, TOP);
        }
        return bits >> 31 << 7 | code;
    }
    // The first moment of `code` beside its second moment `square`.
    static __device__ __forceinline__ float first_of(u32 code, float square) {
        const u32 base = (least_of(square) << FIRST_BITS) - 1;
        const float size = decoded(code & TOP, base, FIRST_BITS);
        return __uint_as_float(__float_as_uint(size) | (code > TOP ? SIGN : 0));
    }
    // mean, square = the lane's decoded moments. ARE_VECS: all its elements exist.
    template <bool ARE_VECS>
    static __device__ __forceinline__ void load(const u8* m, const u8* v, i64 i, i64 n,
                                                Floats& mean, Floats& square) {
        const auto first = bytes_of<ARE_VECS, WIDTH>(m, i, n);
        const auto second = bytes_of<ARE_VECS, WIDTH>(v, i, n);
        const u32 base = base_of<255>(v[n + i / CODED_BLOCK], SECOND_BITS);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
            square[k] = decoded(second.at[k], base, SECOND_BITS);
            mean[k] = first_of(first.at[k], square[k]);
        }
    }
    // Encodes the lane's moments; noises[k]: 32 random bits of element i + k. The largest second
    // moment of the warp gives the block's exponent; first moments are relative to the second ones
    // as decoded.
    template <bool ARE_VECS>
    static __device__ __forceinline__ void store(u8* m, u8* v, i64 i, i64 n, const Floats& mean,
                                                 const Floats& square, const Bits& noises) {
        Bits upper;
        u32 most = 0;
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
            upper[k] = upper_of(__float_as_uint(square[k]) & ~SIGN, noises[k], SECOND_BITS);
            most = max(most, upper[k]);
        }
        const u32 exponent = largest(most) >> SECOND_BITS;
        const u32 base = base_of<255>(exponent, SECOND_BITS);
        Vec<u8, WIDTH> first, second;
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
            // At least 1 unless it is 0: a divisor that became 0 would make the update huge.
            const int code = max(static_cast<int>(upper[k] - base), square[k] != 0 ? 1 : 0);
            second.at[k] = static_cast<u8>(code);
            const float rounded = decoded(code, base, SECOND_BITS);
            first.at[k] = static_cast<u8>(first_code(mean[k], rounded, noises[k]));
        }
        if (m) put_bytes<ARE_VECS>(m, i, n, first);
        if (!v) return;
        put_bytes<ARE_VECS>(v, i, n, second);
        if (threadIdx.x % WARP == 0) v[n + i / CODED_BLOCK] = static_cast<u8>(exponent);
    }
    // Copies the codes of elements [first, end) of n, with the exponents of their blocks, from m
    // and v to new_m and new_v.
    static __device__ __forceinline__ void stay(const u8* m, const u8* v, u8* new_m, u8* new_v,
                                                i64 first, i64 end, i64 n) {
        copy_bytes(m, new_m, first, end);
        copy_bytes(v, new_v, first, end);
        copy_bytes(v, new_v, n + first / CODED_BLOCK, n + (end + CODED_BLOCK - 1) / CODED_BLOCK);
    }
};

// 4 bits, the earlier of two elements in the lower ones of a byte: ceil(n / 2) bytes of codes, then
// two bytes for each block. In m these are a bfloat16 `part`, lower byte first, and a code is a
// sign (bit 3) and a level from 0 to LEVELS: |m| = level * part * the power of two at or below the
// root of v. In v they are the exponent of the block's largest, and its codes' bits of the
// fraction, up to MOST_BITS.
struct FourBits {
    static constexpr int NBYTES = WIDTH / 2;  // of a lane's codes

    // Code k of a row: bits 0 to 3 of a byte, then bits 4 to 7.
    static __device__ __forceinline__ u32 code_at(const Vec<u8, NBYTES>& row, int k) {
        return row.at[k / 2] >> 4 * (k % 2) & 15u;
    }
    // Two codes in a byte, the first in its lower half.
    static __device__ __forceinline__ Vec<u8, NBYTES> packed(const Bits& codes) {
        Vec<u8, NBYTES> row;
#pragma unroll
        for (int k = 0; k < NBYTES; ++k)
            row.at[k] = static_cast<u8>(codes[2 * k] | codes[2 * k + 1] << 4);
        return row;
    }
    // Index of the first of the two bytes of element i's block.
    static __device__ __forceinline__ i64 scale_of(i64 i, i64 n) {
        return (n + 1) / 2 + 2 * (i / CODED_BLOCK);
    }
    // mean, square = the lane's decoded moments; those of elements from n on are 0. ARE_VECS: all
    // exist.
    template <bool ARE_VECS>
    static __device__ __forceinline__ void load(const u8* m, const u8* v, i64 i, i64 n,
                                                Floats& mean, Floats& square) {
        const i64 end = (n + 1) / 2, scale = scale_of(i, n);
        const auto first = bytes_of<ARE_VECS, NBYTES>(m, i / 2, end);
        const auto second = bytes_of<ARE_VECS, NBYTES>(v, i / 2, end);
        const float part = __uint_as_float(m[scale] << 16 | static_cast<u32>(m[scale + 1]) << 24);
        const int fraction = min(static_cast<int>(v[scale + 1]), MOST_BITS);
        const u32 base = base_of<15>(v[scale], fraction);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
            const u32 code = code_at(first, k);
            square[k] = i + k < n ? decoded(code_at(second, k), base, fraction) : 0;
            const float level = __fmul_rn(static_cast<float>(code & LEVELS), part);
            const float size = __fmul_rn(level, power(root_exponent(square[k])));
            mean[k] = i + k < n ? code > LEVELS ? -size : size : 0;
        }
    }
    // codes = the lane's codes of second moments `square`, rounded by `noises`. Returns the two
    // bytes of the block, {exponent, fraction}: the most bits of the fraction with which no element
    // of the warp but 0 is below code 1; with 0 bits such elements get code 1.
    static __device__ __forceinline__ Vec<u8, 2> second_codes(const Floats& square,
                                                              const Bits& noises, Bits& codes) {
        int fraction = MOST_BITS;
        u32 exponent;
#pragma unroll 1
        for (;; --fraction) {
            u32 most = 0;
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) {
                codes[k] = upper_of(__float_as_uint(square[k]) & ~SIGN, noises[k], fraction);
                most = max(most, codes[k]);
            }
            exponent = largest(most) >> fraction;
            const u32 base = base_of<15>(exponent, fraction);
            bool is_below = false;
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) {
                const int code = static_cast<int>(codes[k] - base);
                is_below |= code < 1 && square[k] != 0;
                codes[k] = static_cast<u32>(max(code, square[k] != 0 ? 1 : 0));
            }
            if (fraction == 0 || !__any_sync(ALL_LANES, is_below)) break;
        }
        return {static_cast<u8>(exponent), static_cast<u8>(fraction)};
    }
    // Encodes the lane's moments; noises[k]: 32 random bits of element i + k. A first moment's
    // ratio is |m| over the power of two below the root of v; part = the block's largest ratio /
    // LEVELS, cut to a bfloat16; the level is ratio / part, rounded stochastically. Where the
    // largest ratio is below 2^LEAST_EXPONENT, part and levels are 0.
    template <bool ARE_VECS>
    static __device__ __forceinline__ void store(u8* m, u8* v, i64 i, i64 n, const Floats& mean,
                                                 const Floats& square, const Bits& noises) {
        const i64 end = (n + 1) / 2, scale = scale_of(i, n);
        const bool is_first_lane = threadIdx.x % WARP == 0;
        Bits codes;
        const Vec<u8, 2> of_second = second_codes(square, noises, codes);
        const u32 base = base_of<15>(of_second.at[0], of_second.at[1]);
        Floats ratio;
        u32 most = 0;
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
            const u32 root = root_exponent(decoded(codes[k], base, of_second.at[1]));
            ratio[k] =
                fminf(__fmul_rn(fabsf(mean[k]), power(2 * BIAS - root)), __uint_as_float(LARGEST));
            most = max(most, __float_as_uint(ratio[k]));
        }
        if (v) {
            put_bytes<ARE_VECS>(v, i / 2, end, packed(codes));
            if (is_first_lane)
                for (int k = 0; k < 2; ++k) v[scale + k] = of_second.at[k];
        }
        if (!m) return;
        most = largest(most);
        u32 bits = __float_as_uint(__fdiv_rn(__uint_as_float(most), LEVELS)) >> 16;
        if (most < static_cast<u32>(BIAS + LEAST_EXPONENT) << FRACTION) bits = 0;
        const float part = __uint_as_float(bits << 16);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
            const float share = __fmul_rn(static_cast<float>(noises[k] >> 12), 1.0f / (1 << 20));
            const float level = bits ? __fadd_rn(__fdiv_rn(ratio[k], part), share) : 0.0f;
            codes[k] = static_cast<u32>(fminf(level, LEVELS)) | __float_as_uint(mean[k]) >> 31 << 3;
        }
        put_bytes<ARE_VECS>(m, i / 2, end, packed(codes));
        if (!is_first_lane) return;
        m[scale] = static_cast<u8>(bits);
        m[scale + 1] = static_cast<u8>(bits >> 8);
    }
    // Copies the codes of elements [first, end) of n, with the two bytes of each of their blocks,
    // from m and v to new_m and new_v.
    static __device__ __forceinline__ void stay(const u8* m, const u8* v, u8* new_m, u8* new_v,
                                                i64 first, i64 end, i64 n) {
        const i64 last = (end + 1) / 2, scales = scale_of(first, n);
        const i64 last_scale = scale_of(end + CODED_BLOCK - 1, n);
        copy_bytes(m, new_m, first / 2, last);
        copy_bytes(v, new_v, first / 2, last);
        copy_bytes(m, new_m, scales, last_scale);
        copy_bytes(v, new_v, scales, last_scale);
    }
};

}  // namespace cto::codes
