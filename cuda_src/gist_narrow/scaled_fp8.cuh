// SPDX-License-Identifier: MIT
// 8-bit floats of x / 2^s: the scale s of a block, its codes, and their decoding.
//
// E5M2 has infinity and NaN. E4M3 has one NaN, 0x7F, and no infinity: in a block with infinities
// its largest code, 0x7E, is one, which bit 14 of the scale says by being unlike bit 15; that scale
// is larger by one, so that no finite element has this code. Scales are of finite elements only.
#pragma once
#include "core/vec.cuh"
#include "format/nan.cuh"
#include "format/narrow_float.cuh"

namespace cto::format::scaled_fp8 {

// The two formats. A float with LARGEST_EXPONENT (of 2) rounds beyond the largest code if its
// fraction is at least FIRST_BEYOND + TIE_STAYS: E4M3's largest number is even, so that a tie
// rounds down to it. Codes without the sign are NaN from FIRST_NAN on. (code & 0x7F) << AS_HALF are
// the bits of the half |number of code| / 2^UNSCALED. MARKS_INFINITY: infinity has a code only in
// blocks whose scale is marked.
struct E4m3 {
    static constexpr int BIAS = 7, FRACTION = 3, LARGEST_EXPONENT = 8;
    static constexpr u32 FIRST_BEYOND = 0x680000, TIE_STAYS = 1;
    static constexpr u32 INFINITY_CODE = 0x7E, NAN_CODE = 0x7F, FIRST_NAN = 0x7F;
    static constexpr int AS_HALF = 7, UNSCALED = 8;
    static constexpr bool MARKS_INFINITY = true;
};
struct E5m2 {
    static constexpr int BIAS = 15, FRACTION = 2, LARGEST_EXPONENT = 15;
    static constexpr u32 FIRST_BEYOND = 0x700000, TIE_STAYS = 0;
    static constexpr u32 INFINITY_CODE = 0x7C, NAN_CODE = 0x7E, FIRST_NAN = 0x7D;
    static constexpr int AS_HALF = 8, UNSCALED = 0;
    static constexpr bool MARKS_INFINITY = false;
};

// The bits of |x|, and of infinity in the type of the argument.
__device__ __forceinline__ u32 magnitude_of(float x) { return bits_of(x) & 0x7FFFFFFFu; }
__device__ __forceinline__ u64 magnitude_of(double x) { return bits_of(x) & 0x7FFFFFFFFFFFFFFFull; }
__device__ __forceinline__ u32 infinity_like(float) { return 0x7F800000u; }
__device__ __forceinline__ u64 infinity_like(double) { return 0x7FF0000000000000ull; }

// The smallest s at which magnitude / 2^s does not round beyond the largest code; 0 for zero.
// `magnitude` has the bits of a float; a subnormal one is shifted until bit 23 is set, and its
// exponent lowered as much.
template <class F>
__device__ __forceinline__ int scale_of(u32 magnitude) {
    if (magnitude == 0) return 0;
    const int shift = magnitude >> 23 ? 0 : __clz(static_cast<int>(magnitude)) - 8;
    const int exponent = static_cast<int>(magnitude >> 23) + (shift ? 1 - shift : 0) - 127;
    const u32 fraction = magnitude << shift & 0x7FFFFFu;
    return exponent - F::LARGEST_EXPONENT + (fraction >= F::FIRST_BEYOND + F::TIE_STAYS);
}
// scale_of for `magnitude` of the bits of a double.
template <class F>
__device__ __forceinline__ int scale_of(u64 magnitude) {
    if (magnitude == 0) return 0;
    const int shift = magnitude >> 52 ? 0 : __clzll(static_cast<i64>(magnitude)) - 11;
    const int exponent = static_cast<int>(magnitude >> 52) + (shift ? 1 - shift : 0) - 1023;
    const u64 fraction = magnitude << shift & 0xFFFFFFFFFFFFFull;
    const u64 first_beyond = (static_cast<u64>(F::FIRST_BEYOND) << 29) + F::TIE_STAYS;
    return exponent - F::LARGEST_EXPONENT + (fraction >= first_beyond);
}

constexpr int INFINITY_MARK = 0x4000;

// The scale of a block with infinities: larger by one, with bit 14 flipped, so that it differs from
// bit 15; and back, but still larger by one. Without the mark, scales are from -1082 to 1020.
__device__ __forceinline__ int marked(int scale) { return (scale + 1) ^ INFINITY_MARK; }
__device__ __forceinline__ int unmarked(int scale) { return scale ^ INFINITY_MARK; }
// True if bits 14 and 15 of a scale differ: its block has an infinity.
__device__ __forceinline__ bool is_marked(int scale) {
    return ((scale ^ scale >> 1) & INFINITY_MARK) != 0;
}

// 2^exponent = first * second: in one number of type A it may overflow or be subnormal. An exponent
// beyond what any finite product needs is clamped, so that both factors are normal.
template <class A>
struct Power {
    A first, second;
};
// 2^exponent as a product of two floats, as it may be beyond the range of one.
__device__ __forceinline__ Power<float> power_of_two(int exponent, float) {
    const int cut = min(max(exponent, -240), 240), half = cut >> 1;
    return {__uint_as_float((127 + half) << 23), __uint_as_float((127 + cut - half) << 23)};
}
// 2^exponent as a product of two doubles, as it may be beyond the range of one.
__device__ __forceinline__ Power<double> power_of_two(int exponent, double) {
    const int cut = min(max(exponent, -2040), 2046), half = cut >> 1;
    return {double_of(static_cast<u64>(1023 + half) << 52),
            double_of(static_cast<u64>(1023 + cut - half) << 52)};
}
// x * 2^exponent.
__device__ __forceinline__ float times(float x, const Power<float>& power) {
    return multiply_subnormal(multiply_subnormal(x, power.first), power.second);
}
__device__ __forceinline__ double times(double x, const Power<double>& power) {
    return x * power.first * power.second;
}

// element * power in F, rounded to nearest even; infinity and NaN included.
template <class F, class E>
__device__ __forceinline__ u32 encode(E element, const Power<Acc<E>>& power) {
    const auto x = to_acc(element);
    const auto magnitude = magnitude_of(x);
    u32 code = narrow_float::rounded<F::BIAS, F::FRACTION>(magnitude_of(times(x, power)));
    if (magnitude >= infinity_like(x))
        code = magnitude > infinity_like(x) ? F::NAN_CODE : F::INFINITY_CODE;
    return nan::sign_of(element) >> 24 | code;
}

// Byte j = x[j] in F, j < 4, for finite numbers that do not round beyond the largest code.
template <class F>
__device__ __forceinline__ u32 codes_of(const float (&x)[4]) {
#if !defined(__CUDA_CPU__) && __CUDA_ARCH__ >= 890
    u16 low, high;
    if constexpr (ARE_SAME<F, E4m3>) {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x[1]), "f"(x[0]));
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x[3]), "f"(x[2]));
    } else {
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x[1]), "f"(x[0]));
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x[3]), "f"(x[2]));
    }
    return low | static_cast<u32>(high) << 16;
#else
    u32 codes = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const u32 code = narrow_float::rounded<F::BIAS, F::FRACTION>(magnitude_of(x[j]));
        codes |= (code | (bits_of(x[j]) >> 24 & 0x80u)) << 8 * j;
    }
    return codes;
#endif
}

// The number of a code, times 2^s, rounded to E; power = 2^(s + UNSCALED).
template <class F, class E>
__device__ __forceinline__ E decode(u32 code, const Power<Acc<E>>& power) {
    const u32 magnitude = code & 0x7Fu;
    const u32 half = magnitude << F::AS_HALF | (code & 0x80u) << 8;
    if (magnitude >= F::FIRST_NAN) return nan::of_sign<E>(code << 24 & 0x80000000u);
    const Acc<E> value = to_acc(__ushort_as_half(static_cast<u16>(half)));
    return from_acc<E>(times(value, power));
}

// `decode` for a block with infinities.
template <class F, class E>
__device__ __forceinline__ E decode_marked(u32 code, const Power<Acc<E>>& power) {
    if ((code & 0x7Fu) != F::INFINITY_CODE) return decode<F, E>(code, power);
    const u32 sign = code << 24 & 0x80000000u;
    return from_acc<E>(static_cast<Acc<E>>(__uint_as_float(0x7F800000u | sign)));
}

// y[j] = decode(byte j of codes, power), j < 4: two at a time, which __byte_perm puts in the upper
// bytes of halves, then NaNs are put in their places. For AS_HALF = 8 this is no faster than
// `decode`.
template <class F, class E>
__device__ __forceinline__ void decode_four(u32 codes, const Power<Acc<E>>& power, E* y) {
#pragma unroll
    for (int pair = 0; pair < 4; pair += 2) {
        const u32 upper = __byte_perm(codes, 0, pair == 0 ? 0x1404 : 0x3424);
        const u32 halves = (upper & 0x7F007F00u) >> (8 - F::AS_HALF) | (upper & 0x80008000u);
        const float2 wide = __half22float2(*reinterpret_cast<const __half2*>(&halves));
        const Acc<E> values[2] = {times(Acc<E>(wide.x), power), times(Acc<E>(wide.y), power)};
        vec::round_pair(values, y + pair);
    }
    constexpr u32 TO_NAN = 0x80 - F::FIRST_NAN;
    if ((((codes & 0x7F7F7F7Fu) + TO_NAN * 0x01010101u) & 0x80808080u) == 0) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const u32 code = codes >> 8 * i & 0xFFu;
        if ((code & 0x7Fu) >= F::FIRST_NAN) y[i] = nan::of_sign<E>(code << 24 & 0x80000000u);
    }
}

}  // namespace cto::format::scaled_fp8
