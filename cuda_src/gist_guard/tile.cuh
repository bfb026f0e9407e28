// SPDX-License-Identifier: MIT
// A tile of eight elements, its codes, and how far they are off, in quanta: E is the tile's shared
// exponent, a quantum 2^(E - 127), a step of M a 32nd of it. In quanta no square leaves float's range.
#pragma once
#include "core/vec.cuh"
#include "format/msfp15.cuh"

namespace cto::gist_guard::tile {

using vec::Vec;

constexpr int TILE = 8;
constexpr u32 NOT_FINITE = 255;
constexpr float STEP = 0x1p-5f, HALF_STEP = 0x1p-6f, MOST_STEPS = 63 * STEP;
constexpr float TO_STEPS = 0x1p18f;  // from which on a float's unit is a step

template <class T>
using Unit = vec::Unit<T, vec::IN_WORDS<T, TILE>>;
template <class T>
using Loaded = Vec<typename Unit<T>::Held, TILE * sizeof(T) / sizeof(typename Unit<T>::Held)>;

__device__ __forceinline__ double quantum_of(u32 exponent) {
    return double_of(static_cast<u64>(896 + exponent) << 52);
}
// The unit of squares, a quantum's.
__device__ __forceinline__ double unit_of(u32 exponent) {
    return double_of(static_cast<u64>(769 + 2 * exponent) << 52);
}
__device__ __forceinline__ double widened(float x) { return widen_subnormal(x); }
__device__ __forceinline__ double widened(double x) { return x; }
// An element as it is, subnormal ones too.
template <class T>
__device__ __forceinline__ double element(T x) {
    return widened(format::msfp15::truncated<true>(x));
}
template <>
__device__ __forceinline__ double element<double>(double x) {
    return x;
}

// ---- loads and stores ---------------------------------------------------------------------------

// aligned: the array begins at a multiple of 16 bytes.
template <class T>
__device__ __forceinline__ Loaded<T> load_tile(const T* x, i64 first, i64 n, bool aligned) {
    if (aligned && first + TILE <= n) return *reinterpret_cast<const Loaded<T>*>(x + first);
    const auto elements = vec::load_elements<T, TILE>(x, first, n);
    return *reinterpret_cast<const Loaded<T>*>(&elements);
}
__device__ __forceinline__ void store_tile(u8* y, i64 tile, bool aligned, uint2 codes) {
    if (y == nullptr) return;
    if (aligned)
        reinterpret_cast<uint2*>(y)[tile] = codes;
    else
        vec::store_elements<u8, TILE>(y, tile * TILE, (tile + 1) * TILE,
                                      *reinterpret_cast<const Vec<u8, TILE>*>(&codes));
}

// ---- exponents, and elements in quanta ----------------------------------------------------------

__device__ __forceinline__ u32 exponent_of(const float (&x)[TILE]) {
    u32 largest = 0;
#pragma unroll
    for (int j = 0; j < TILE; ++j) largest = max(largest, bits_of(x[j]) & 0x7FFFFFFFu);
    return largest >> 23;
}
__device__ __forceinline__ u32 exponent_of(const double (&x)[TILE]) {
    u32 largest = 0;
#pragma unroll
    for (int j = 0; j < TILE; ++j)
        largest = max(largest, static_cast<u32>(bits_of(x[j]) >> 32) & 0x7FFFFFFFu);
    const u32 exponent = largest >> 20;
    return exponent > 896 ? min(exponent - 896, NOT_FINITE) : 0;
}

// Elements in quanta: the factor is subnormal where E is 254, and a float may be.
__device__ __forceinline__ float scale_of(float, u32 exponent) {
    return __uint_as_float(max(static_cast<i32>((254 - exponent) << 23), 0x00400000));
}
__device__ __forceinline__ double scale_of(double, u32 exponent) {
    return double_of(static_cast<u64>(1150 - exponent) << 52);
}
__device__ __forceinline__ float in_quanta(float x, float scale) {
    return multiply_subnormal(x, scale);
}
__device__ __forceinline__ double in_quanta(double x, double scale) { return x * scale; }

// Half a step where x is not 0, else less.
__device__ __forceinline__ float least_of(float x) {
    const u32 half_step = __float_as_uint(HALF_STEP);
    return __uint_as_float(min((bits_of(x) & 0x7FFFFFFFu) + (half_step - 1), half_step));
}
__device__ __forceinline__ float least_of(double x) {
    return bits_of(x) << 1 != 0 ? HALF_STEP : 0.0f;
}

// ---- codes --------------------------------------------------------------------------------------

// Byte BYTE of each of four words.
template <int BYTE>
__device__ __forceinline__ u32 gather_bytes(const u32* words) {
    constexpr u32 PAIR = BYTE | (BYTE + 4) << 4;
    return __byte_perm(__byte_perm(words[0], words[1], PAIR), __byte_perm(words[2], words[3], PAIR),
                       0x5410);
}

// Signs and M of four elements; M is in the lowest byte of a word, the sign in the highest bit. Zeros
// have no sign.
__device__ __forceinline__ u32 join_codes(const u32* magnitudes, const u32* signs) {
    const u32 sizes = gather_bytes<0>(magnitudes);
    const u32 negative = gather_bytes<3>(signs) & (sizes + 0x7F7F7F7Fu) & 0x80808080u;
    return sizes | negative >> 1;
}

__device__ __forceinline__ uint2 with_exponent(u32 low, u32 high, u32 exponent,
                                               bool keep_nonfinite) {
    const u32 lost = keep_nonfinite ? 0x80808080u : 0;
    if (exponent == NOT_FINITE) return make_uint2(lost, lost);
    return make_uint2(low | format::msfp15::spread_nibble(exponent & 15),
                      high | format::msfp15::spread_nibble(exponent >> 4));
}

// How far elements are from the first one, in quanta.
struct Spread {
    float sum, squares;
};

// A tile that is encoded; what is in quanta says nothing where the exponent is NOT_FINITE.
template <class T>
struct Tile {
    using A = Acc<T>;

    A quanta[TILE];   // elements
    float off[TILE];  // |element| - M steps
    u32 exponent;
    uint2 codes;

    __device__ __forceinline__ Tile(const Loaded<T>& x, bool keep_nonfinite) {
#pragma unroll
        for (int j = 0; j < TILE; ++j) quanta[j] = Unit<T>::at(x.at, j);
        exponent = exponent_of(quanta);
        const A scale = scale_of(A(), exponent);
        u32 magnitudes[TILE], signs[TILE];
#pragma unroll
        for (int j = 0; j < TILE; ++j) encode(j, scale, magnitudes[j], signs[j]);
        codes = with_exponent(join_codes(magnitudes, signs), join_codes(magnitudes + 4, signs + 4),
                              exponent, keep_nonfinite);
    }

    // The sum of the squares of what is off.
    __device__ __forceinline__ float error() const {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < TILE; ++j) sum += off[j] * off[j];
        return sum;
    }
    // Of the first n elements; a mean of differences loses no digits of large numbers.
    template <bool WHOLE>
    __device__ __forceinline__ Spread spread(int n) const {
        Spread found{0, 0};
#pragma unroll
        for (int j = 1; j < TILE; ++j) {
            const float distance = WHOLE || j < n ? static_cast<float>(quanta[j] - quanta[0]) : 0;
            found.sum += distance;
            found.squares += distance * distance;
        }
        return found;
    }
    // The same of elements from `begin` to before `end`, and how far they are from the first of them.
    __device__ __forceinline__ float error(int begin, int end) const {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < TILE; ++j) sum += j >= begin && j < end ? off[j] * off[j] : 0.0f;
        return sum;
    }
    __device__ __forceinline__ Spread spread(int begin, int end, A& first) const {
        first = quanta[0];
#pragma unroll
        for (int j = 1; j < TILE; ++j) first = j == begin ? quanta[j] : first;
        Spread found{0, 0};
#pragma unroll
        for (int j = 0; j < TILE; ++j) {
            const float distance =
                j >= begin && j < end ? static_cast<float>(quanta[j] - first) : 0.0f;
            found.sum += distance;
            found.squares += distance * distance;
        }
        return found;
    }

  private:
    // M = |element| in steps, rounded half up, from 1 (but 0 of 0) to 63. Only its upper bits count.
    __device__ __forceinline__ void encode(int j, A scale, u32& magnitude, u32& sign) {
        const float least = least_of(quanta[j]);
        quanta[j] = in_quanta(quanta[j], scale);
        const float size = format::msfp15::truncated(quanta[j]);
        const float clamped = fminf(fmaxf(fabsf(size), least), MOST_STEPS);
        const float at_step = __fadd_rz(__fadd_rz(clamped, HALF_STEP), TO_STEPS);
        magnitude = __float_as_uint(at_step);
        sign = __float_as_uint(size);
        off[j] = static_cast<float>(fabs(quanta[j]) - static_cast<A>(at_step - TO_STEPS));
    }
};

// Squares of distances from the mean of n elements.
template <bool WHOLE>
__device__ __forceinline__ float deviation_of(const Spread& spread, int n) {
    const float mean = WHOLE ? spread.sum / TILE : spread.sum / static_cast<float>(n);
    return fmaxf(spread.squares - spread.sum * mean, 0.0f);
}

}  // namespace cto::gist_guard::tile
