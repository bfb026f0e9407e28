// SPDX-License-Identifier: MIT
// MSFP15: boxes of 8 elements share one 8-bit exponent E; value = (-1)^sign * M * 2^(E - 132).
//
// Byte j of a box: bit 7 = bit j of E, bit 6 = sign, bits 5..0 = M. The quantum of a box is the
// step of M, 2^(E - 132). A box with an infinity or a NaN has E = 255, and numbers of fewer bits
// (encode_nonfinite). E is the biased exponent of the largest float. Four bytes are computed at a
// time in one 32-bit word, M by exact floating-point arithmetic. Boxes with E <
// SMALLEST_EXACT_EXPONENT are encoded by integers: their quanta are so small that subnormal floats,
// which arithmetic flushes to 0, would matter. KEEP_SIGN: elements other than 0 get M >= 1, so that
// their signs survive.
#pragma once
#include "core/facts.cuh"
#include "core/vec.cuh"
#include "format/nan.cuh"

namespace cto::format::msfp15 {

constexpr u32 SMALLEST_EXACT_EXPONENT = 8;
constexpr u32 NOT_FINITE = facts::NOT_FINITE;

// A float with the same code as x. Codes depend on the upper seven bits of a fraction only, so a
// double is truncated; beyond float's range it becomes infinity or zero.
__device__ __forceinline__ float truncated(float x) { return x; }
__device__ __forceinline__ float truncated(__half x) { return to_acc(x); }
__device__ __forceinline__ float truncated(__nv_bfloat16 x) { return to_acc(x); }
__device__ __forceinline__ float truncated(bool x) { return x ? 1.0f : 0.0f; }
// x in float32, rounded towards 0; a subnormal becomes 0, too large a number infinity. 896 =
// difference of the biases, 1023 - 127.
__device__ __forceinline__ float truncated(double x) {
    const u64 bits = bits_of(x);
    const u32 sign = static_cast<u32>(bits >> 32) & 0x80000000u;
    const i32 exponent = static_cast<i32>((bits >> 52) & 0x7FF) - 896;
    if (exponent >= 255) return __uint_as_float(sign | 0x7F800000u);
    if (exponent <= 0) return __uint_as_float(sign);
    const u32 fraction = static_cast<u32>(bits >> 29) & 0x7FFFFFu;
    return __uint_as_float(sign | static_cast<u32>(exponent) << 23 | fraction);
}

// truncated(x), but a number other than 0 does not become 0, not even below float's normal numbers.
__device__ __forceinline__ float truncated_to_nonzero(__nv_bfloat16 x) {
    return __uint_as_float(static_cast<u32>(bits_of(x)) << 16);
}
// truncated(x), but numbers below the normal ones of float32 become subnormal ones that are not 0.
__device__ __forceinline__ float truncated_to_nonzero(double x) {
    const u64 bits = bits_of(x);
    const i32 exponent = static_cast<i32>((bits >> 52) & 0x7FF) - 896;
    if (exponent > 0 || bits << 1 == 0) return truncated(x);
    const u32 fraction = (static_cast<u32>(bits >> 29) & 0x7FFFFFu) | 0x800000u;
    const u32 sign = static_cast<u32>(bits >> 32) & 0x80000000u;
    return __uint_as_float(sign | fraction >> min(1 - exponent, 31) | 1u);
}
// truncated_to_nonzero(x) with KEEP_SIGN, else truncated(x).
template <bool KEEP_SIGN, class E>
__device__ __forceinline__ float truncated(E x) {
    if constexpr (KEEP_SIGN && (ARE_SAME<E, double> || ARE_SAME<E, __nv_bfloat16>))
        return truncated_to_nonzero(x);
    else
        return truncated(x);
}

// spread_nibble moves bit j of a nibble to bit 7 of byte j, j < 4; gather_nibble moves it back.
// 0x00204081 has bits 0, 7, 14 and 21: the product adds copies shifted so that bit j is at 8 j,
// too.
__device__ __forceinline__ u32 spread_nibble(u32 nibble) {
    return (nibble * 0x00204081u & 0x01010101u) << 7;
}
__device__ __forceinline__ u32 gather_nibble(u32 bytes) {
    return (bytes & 0x80808080u) * 0x00204081u >> 28;
}

// Low byte = floor(2 * quanta) + 1: quanta + 2^22 + 1/2 is truncated to multiples of 1/2. Half of
// it is `quanta`, |x| / quantum, rounded half up.
__device__ __forceinline__ u32 doubled_magnitude(float quanta) {
    return __float_as_uint(__fadd_rz(quanta, 4194304.5f)) & 0xFFu;
}

// Byte j = min(byte j of `doubled` / 2, 63), where bytes are at most 129.
__device__ __forceinline__ u32 halved(u32 doubled) {
    const u32 magnitudes = doubled >> 1 & 0x7F7F7F7Fu;  // 0 to 64
    return magnitudes - (magnitudes >> 6 & 0x01010101u);
}

// |x| / quantum, scale = 1 / quantum. KEEP_SIGN: at least 1/2, which rounds to M = 1, if x is not
// 0; tested by bits, because arithmetic takes subnormals for 0.
template <bool KEEP_SIGN>
__device__ __forceinline__ float in_quanta(float x, float scale) {
    const float quanta = fabsf(x) * scale;
    return KEEP_SIGN ? fmaxf(quanta, (bits_of(x) & 0x7FFFFFFFu) != 0 ? 0.5f : 0.0f) : quanta;
}

// Byte j = sign << 6 | M of x[j], j < 4; M = |x| * scale rounded half up, at most 63; scale =
// 2^(132 - E). Zeros have no sign, and without KEEP_SIGN subnormals have none.
template <bool KEEP_SIGN>
__device__ __forceinline__ u32 encode_four(const float* x, float scale) {
    u32 doubled = 0, signs = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        doubled |= doubled_magnitude(in_quanta<KEEP_SIGN>(x[j], scale)) << 8 * j;
        if (KEEP_SIGN ? bits_of(x[j]) > 0x80000000u : x[j] <= -0x1p-126f) signs |= 0x40u << 8 * j;
    }
    return signs | halved(doubled);
}

// sign << 6 | M of the subnormal float with these bits, fraction * 2^-149, in a box with E =
// shared_exponent; M >= 1 unless it is 0. fraction >> 16 >> E is 2 |x| / quantum, rounded down.
__device__ __forceinline__ u32 encode_subnormal(u32 bits, u32 shared_exponent) {
    const u32 fraction = bits & 0x7FFFFFu;
    const u32 magnitude = min((fraction >> 16 >> shared_exponent) + 1, 127u) >> 1;
    return fraction == 0 ? 0 : (bits >> 25 & 0x40u) | max(magnitude, 1u);
}

// encode_four by integers, for boxes with E = shared_exponent < SMALLEST_EXACT_EXPONENT. Without
// KEEP_SIGN subnormals are 0. `truncated` is 2 |x| / quantum, rounded down; 127 gives M = 63.
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

// The box of eight codes sign << 6 | M: puts bit j of E in bit 7 of byte j. E = 255, where an
// element is infinity or NaN: eight zeros.
__device__ __forceinline__ uint2 with_exponent(uint2 codes, u32 shared_exponent) {
    if (shared_exponent == NOT_FINITE) return make_uint2(0, 0);
    return make_uint2(codes.x | spread_nibble(shared_exponent & 15),
                      codes.y | spread_nibble(shared_exponent >> 4));
}

// ---- KEEP_SIGN, fast ----------------------------------------------------------------------------

// Eight elements: size[j] = |x[j]|; bit 7 of byte j of `negative` is its sign, of `nonzero` is set
// if it is not 0. HAS_SMALL: E < SMALLEST_EXACT_EXPONENT may occur.
template <bool HAS_SMALL>
struct Box {
    float size[8];
    uint2 negative, nonzero;

    // The bits of the largest size.
    __device__ __forceinline__ u32 largest() const {
        u32 bits = 0;
#pragma unroll
        for (int j = 0; j < 8; ++j) bits = max(bits, bits_of(size[j]));
        return bits;
    }
};

// Byte j = byte BYTE of words[j], j < 4.
template <int BYTE>
__device__ __forceinline__ u32 gather_bytes(const u32* words) {
    constexpr u32 PAIR = BYTE | (BYTE + 4) << 4;
    return __byte_perm(__byte_perm(words[0], words[1], PAIR), __byte_perm(words[2], words[3], PAIR),
                       0x5410);
}
// Byte j = upper byte of 16-bit value j of the two words, j < 4.
__device__ __forceinline__ u32 gather_upper(const u32* pairs) {
    return __byte_perm(pairs[0], pairs[1], 0x7531);
}

// A float16 other than 0 is far above float's subnormals.
template <class E>
using BoxOf = Box<!ARE_SAME<E, __half>>;

// The Box of eight 2-byte elements in the four words `pairs`. there[i]: size + 0x7FFF carries into
// the sign bit exactly if the size is not 0.
template <class E>
__device__ __forceinline__ BoxOf<E> box_of_pairs(const u32* pairs) {
    u32 sizes[4], there[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        sizes[i] = pairs[i] & 0x7FFF7FFFu;
        there[i] = sizes[i] + 0x7FFF7FFFu;
    }
    BoxOf<E> box;
#pragma unroll
    for (int j = 0; j < 8; ++j) box.size[j] = vec::Unit<E, true>::at(sizes, j);
    box.negative = make_uint2(gather_upper(pairs), gather_upper(pairs + 2));
    box.nonzero = make_uint2(gather_upper(there), gather_upper(there + 2));
    return box;
}
// The Box of x[0..7]. Bit 31 of size + 0x7FFFFFFF is set if size is not 0.
__device__ __forceinline__ Box</*HAS_SMALL=*/true> box_of_floats(const float (&x)[8]) {
    u32 bits[8], there[8];
    Box</*HAS_SMALL=*/true> box;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        bits[j] = bits_of(x[j]);
        box.size[j] = __uint_as_float(bits[j] & 0x7FFFFFFFu);
        there[j] = (bits[j] & 0x7FFFFFFFu) + 0x7FFFFFFFu;
    }
    box.negative = make_uint2(gather_bytes</*BYTE=*/3>(bits), gather_bytes</*BYTE=*/3>(bits + 4));
    box.nonzero = make_uint2(gather_bytes</*BYTE=*/3>(there), gather_bytes</*BYTE=*/3>(there + 4));
    return box;
}
// The Box of x[0..7]: elements of 2 bytes two a word, others by way of float.
template <class E>
__device__ __forceinline__ BoxOf<E> box_of(const E* x) {
    if constexpr (sizeof(E) == 2) {
        return box_of_pairs<E>(reinterpret_cast<const u32*>(x));
    } else {
        float values[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) values[j] = truncated</*KEEP_SIGN=*/true>(x[j]);
        return box_of_floats(values);
    }
}

// Byte j = min(63, floor(size[j] * scale + 1/2)), j < 4; see doubled_magnitude.
__device__ __forceinline__ u32 round_four(const float* size, float scale) {
    u32 doubled[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) doubled[j] = __float_as_uint(__fmaf_rz(size[j], scale, 4194304.5f));
    return halved(gather_bytes</*BYTE=*/0>(doubled));
}

// Byte j = sign << 6 | M, j < 4: M = byte j of `magnitudes`, but 1 if that is 0 and the element is
// not. Bit 7 of byte j of `negative` is the element's sign, of `nonzero` is set if it is not 0.
__device__ __forceinline__ u32 with_signs(u32 magnitudes, u32 negative, u32 nonzero) {
    const u32 rounded_to_0 = ~(magnitudes + 0x7F7F7F7Fu);
    return magnitudes | (rounded_to_0 & nonzero & 0x80808080u) >> 7 |
           (negative & nonzero & 0x80808080u) >> 1;
}

// The eight bytes of a box: byte j = bit j of E << 7 | sign << 6 | M, M = |x| / 2^(E - 132) rounded
// half up, from 1 (but 0 of 0) to 63; shared_exponent = E. scale = 2^(132 - E), whose biased
// exponent is 259 - E. For a box of zeros `largest - 1` wraps around; any scale gives 0 then.
template <bool HAS_SMALL>
__device__ __forceinline__ uint2 encode_box(const Box<HAS_SMALL>& box, u32 shared_exponent) {
    const u32 largest = box.largest();
    u32 low, high;
    if (!HAS_SMALL || largest - 1 >= (SMALLEST_EXACT_EXPONENT << 23) - 1) {
        const float scale = __uint_as_float((259 - shared_exponent) << 23);
        low = round_four(box.size, scale), high = round_four(box.size + 4, scale);
    } else {
        low = encode_four_small</*KEEP_SIGN=*/true>(box.size, shared_exponent);
        high = encode_four_small</*KEEP_SIGN=*/true>(box.size + 4, shared_exponent);
    }
    const uint2 codes = make_uint2(with_signs(low, box.negative.x, box.nonzero.x),
                                   with_signs(high, box.negative.y, box.nonzero.y));
    return with_exponent(codes, shared_exponent);
}

// ---- boxes --------------------------------------------------------------------------------------

// E of the box x[0..7].
__device__ __forceinline__ u32 exponent_of(const float (&x)[8]) {
    u32 largest = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) largest = max(largest, bits_of(x[j]) & 0x7FFFFFFFu);
    return largest >> 23;
}

// The eight bytes of a box: byte j = bit j of E << 7 | sign << 6 | M, M = |x| / 2^(E - 132) rounded
// half up, at most 63; shared_exponent = E. Fewer registers but more instructions than encode_box
// of a Box.
template <bool KEEP_SIGN>
__device__ __forceinline__ uint2 encode_box(const float (&x)[8], u32 shared_exponent) {
    uint2 codes;
    if (shared_exponent >= SMALLEST_EXACT_EXPONENT) {
        const float scale = __uint_as_float((259 - shared_exponent) << 23);
        codes = make_uint2(encode_four<KEEP_SIGN>(x, scale), encode_four<KEEP_SIGN>(x + 4, scale));
    } else {
        codes = make_uint2(encode_four_small<KEEP_SIGN>(x, shared_exponent),
                           encode_four_small<KEEP_SIGN>(x + 4, shared_exponent));
    }
    return with_exponent(codes, shared_exponent);
}

// ---- boxes with infinities and NaNs -------------------------------------------------------------
//
// Byte j: bit 7 set, bit 6 = sign, bit 5 = bit j of F, bits 4..0 = M: 31 is NaN, 30 infinity, and
// the number of others is (-1)^sign * M * 2^(F - 131). A box of eight bytes 0x80, which older
// encoders wrote, is eight NaNs.

constexpr u32 CODE_OF_NAN = 31, CODE_OF_INFINITY = 30;
constexpr u32 ALL_NAN = 0x80808080u;
constexpr u32 TO_NEXT_EXPONENT = 0x140000;  // added to a size from 29.5 2^(F - 131) on

// The bits of |x| in float; without KEEP_SIGN subnormals are 0.
template <bool KEEP_SIGN, class E>
__device__ __forceinline__ u32 size_of(E x) {
    const u32 size = bits_of(truncated<KEEP_SIGN>(x)) & 0x7FFFFFFFu;
    return KEEP_SIGN || size >= 0x800000u ? size : 0;
}

// Bits 6 and 4..0 of the code of x in a box with F = of_box; finite x have M <= `most`. The
// significand (24 bits) is shifted to 2 |x| / 2^(F - 131), then rounded half up.
template <bool KEEP_SIGN, class E>
__device__ __forceinline__ u32 code_beside_nonfinite(E x, u32 of_box, u32 most) {
    const u32 size = size_of<KEEP_SIGN>(x), exponent = size >> 23;
    const u32 sign = nan::sign_of(x) >> 25;
    if (exponent == NOT_FINITE) return sign | (nan::is_nan(x) ? CODE_OF_NAN : CODE_OF_INFINITY);
    if (size == 0) return 0;
    const u32 significand = (size & 0x7FFFFFu) | (exponent == 0 ? 0 : 0x800000u);
    const u32 magnitude = ((significand >> min(18 + of_box - max(exponent, 1u), 31u)) + 1) >> 1;
    return sign | max(min(magnitude, most), KEEP_SIGN ? 1u : 0u);
}

// The eight bytes of the box of x[0..7], of which one at least is not finite. x is indexed in
// loops, so that a rare box costs the others no registers: it is in memory.
template <bool KEEP_SIGN, class E>
__device__ __forceinline__ uint2 encode_nonfinite(const E* x) {
    u32 largest = 0;
#pragma unroll 1
    for (int j = 0; j < 8; ++j) {
        const u32 size = size_of<KEEP_SIGN>(x[j]);
        if (size < 0x7F800000u) largest = max(largest, size);
    }
    const u32 of_box = (largest + TO_NEXT_EXPONENT) >> 23;
    // With the next exponent M = 16 is a power of two above all elements, and may be infinity.
    const u32 most = of_box == largest >> 23 ? CODE_OF_INFINITY - 1 : 15;
    u64 codes = 0;
#pragma unroll 1
    for (int j = 7; j >= 0; --j)
        codes = codes << 8 | 0x80u | (of_box >> j & 1) << 5 |
                code_beside_nonfinite<KEEP_SIGN>(x[j], of_box, most);
    return make_uint2(static_cast<u32>(codes), static_cast<u32>(codes >> 32));
}

// encode_nonfinite of x[0..7], elements in registers.
template <bool KEEP_SIGN, class E>
__device__ __forceinline__ uint2 encode_copy(const E* x) {
    E in_memory[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) in_memory[j] = x[j];
    return encode_nonfinite<KEEP_SIGN>(in_memory);
}

// The eight bytes of the box of x[0..7], by the faster way for these parameters; sets
// shared_exponent to E. If that is NOT_FINITE, returns zeros: the caller calls encode_copy.
template <bool KEEP_SIGN, class E>
__device__ __forceinline__ uint2 encode_elements(const E* x, u32& shared_exponent) {
    if constexpr (KEEP_SIGN) {
        const auto box = box_of(x);
        shared_exponent = box.largest() >> 23;
        return encode_box(box, shared_exponent);
    } else {
        float values[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) values[j] = truncated(x[j]);
        shared_exponent = exponent_of(values);
        return encode_box</*KEEP_SIGN=*/false>(values, shared_exponent);
    }
}

// E of a box, whose bit j is bit 7 of byte j.
__device__ __forceinline__ u32 shared_exponent_of(uint2 codes) {
    return gather_nibble(codes.x) | gather_nibble(codes.y) << 4;
}

// 2^(E - 132), subnormal below E = 6.
__device__ __forceinline__ float quantum_of(u32 shared_exponent) {
    return __uint_as_float(shared_exponent < 6 ? 1u << (shared_exponent + 17)
                                               : (shared_exponent - 5) << 23);
}

// Byte j = 64 + M, or 64 - M if the sign bit is set, of code j, j < 4. So -0 decodes to 0.
__device__ __forceinline__ u32 offset_magnitudes(u32 codes) {
    const u32 magnitudes = codes & 0x3F3F3F3Fu;
    const u32 negative = (codes >> 6 & 0x01010101u) * 0xFFu;
    return ((0x40404040u + magnitudes) & ~negative) | ((0x40404040u - magnitudes) & negative);
}

// (byte j of `offset` - 64) * quantum: the byte as low bits of the float 2^23 (0x4B000000) gives
// 2^23 + 64 + M, exactly; 8388672 = 2^23 + 64.
__device__ __forceinline__ float decode_element(u32 offset, int j, float quantum) {
    const u32 bits = __byte_perm(offset, 0x4B000000u, 0x7540 | j);
    return multiply_subnormal(__uint_as_float(bits) - 8388672.0f, quantum);
}

// x rounded to Y; a double of a subnormal float is exact.
template <class Y>
__device__ __forceinline__ Y from_decoded(float x) {
    return from_acc<Y>(x);
}
template <>
__device__ __forceinline__ double from_decoded<double>(float x) {
    return widen_subnormal(x);
}

// y[j] = the number of code j, byte j of `codes`, j < N <= 4.
template <int N, class Y>
__device__ __forceinline__ void decode_four(u32 codes, float quantum, Y* y) {
    const u32 offset = offset_magnitudes(codes);
#pragma unroll
    for (int j = 0; j < N; ++j) y[j] = from_decoded<Y>(decode_element(offset, j, quantum));
}

// y[j] = element first + j, j < n, of the box of bytes `codes`, which encode_nonfinite or an older
// encoder wrote. F is bit 5 of the bytes, which << 2 moves to bit 7; quantum_of(F + 1) = 2^(F -
// 131).
template <class Y>
__device__ __forceinline__ void decode_nonfinite(uint2 codes, int first, int n, Y* y) {
    const bool all_nan = codes.x == ALL_NAN && codes.y == ALL_NAN;
    const u32 of_box = gather_nibble(codes.x << 2) | gather_nibble(codes.y << 2) << 4;
    const float quantum = quantum_of(of_box + 1);
#pragma unroll 1
    for (int j = 0; j < n; ++j) {
        const int place = first + j;
        const u32 code = (place < 4 ? codes.x : codes.y) >> 8 * (place & 3);
        const u32 magnitude = code & 31u, sign = code << 25 & 0x80000000u;
        float size = multiply_subnormal(static_cast<float>(magnitude), quantum);
        if (magnitude == CODE_OF_INFINITY) size = __uint_as_float(0x7F800000u);
        y[j] = from_decoded<Y>(__uint_as_float(bits_of(size) | (magnitude == 0 ? 0 : sign)));
        if (magnitude == CODE_OF_NAN || all_nan) y[j] = nan::of_sign<Y>(all_nan ? 0 : sign);
    }
}

// y[j] = element share * N + j of the box of bytes `codes`, j < N; N divides 8. With
// keep_nonfinite, E = 255 marks a box with infinities or NaNs; else it is an exponent as others.
template <int N, class Y>
__device__ __forceinline__ void decode_share(uint2 codes, int share, bool keep_nonfinite, Y* y) {
    const u32 shared_exponent = shared_exponent_of(codes);
    if (keep_nonfinite && shared_exponent == NOT_FINITE) {
        Y in_memory[N];  // as decode_nonfinite indexes it in a loop
        decode_nonfinite(codes, share * N, N, in_memory);
#pragma unroll
        for (int j = 0; j < N; ++j) y[j] = in_memory[j];
        return;
    }
    const float quantum = quantum_of(shared_exponent);
    if constexpr (N == 8) {
        decode_four</*N=*/4>(codes.x, quantum, y);
        decode_four</*N=*/4>(codes.y, quantum, y + 4);
    } else {
        const u32 half = share * N & 4 ? codes.y : codes.x;
        decode_four<N>(half >> 8 * (share * N & 3), quantum, y);
    }
}

}  // namespace cto::format::msfp15
