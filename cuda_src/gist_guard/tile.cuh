// SPDX-License-Identifier: MIT
// Measures of a tile of eight elements: the error of their codes, and deviations from means.
//
// E is the tile's shared exponent. Here a quantum is 2^(E - 127), and a step of M is 1/32 quantum.
// Elements are measured in quanta, so that squares stay in float's range.
#pragma once
#include "core/vec.cuh"
#include "format/msfp15.cuh"
#include "gist_guard/facts.cuh"

namespace cto::gist_guard::tile {

using namespace facts::gist_guard;
using vec::Vec;

using format::msfp15::NOT_FINITE;
constexpr float STEP = 0x1p-5f, HALF_STEP = 0x1p-6f, MOST_STEPS = 63 * STEP;
constexpr float TO_STEPS = 0x1p18f;  // x + TO_STEPS is rounded to multiples of STEP

// ---- tiles --------------------------------------------------------------------------------------

// Eight elements as loaded: two a word if they have 2 bytes. Unit<T>::at reads one.
template <class T>
using Unit = vec::Unit<T, vec::IN_WORDS<T, TILE>>;
template <class T>
using Tile = Vec<typename Unit<T>::Register, TILE * sizeof(T) / sizeof(typename Unit<T>::Register)>;

// Tile `tile` of x, zeros past x[n - 1]. aligned: x starts at a multiple of 16 bytes.
template <class T>
__device__ __forceinline__ Tile<T> load_tile(const T* x, i64 tile, i64 n, bool aligned) {
    const i64 first = tile * TILE;
    if (aligned && first + TILE <= n) return *reinterpret_cast<const Tile<T>*>(x + first);
    const auto elements = vec::load_elements<T, TILE>(x, first, n);
    return *reinterpret_cast<const Tile<T>*>(&elements);
}

// The shared exponent E of a tile: float's biased exponent of its largest magnitude; 255 if one is
// not finite.
__device__ __forceinline__ u32 exponent_of(const float (&x)[TILE]) {
    u32 largest = 0;
#pragma unroll
    for (int j = 0; j < TILE; ++j) largest = max(largest, bits_of(x[j]) & 0x7FFFFFFFu);
    return largest >> 23;
}
// E of a tile of doubles: biased exponent - 896 (1023 - 127), at least 0; 255 beyond float's range.
__device__ __forceinline__ u32 exponent_of(const double (&x)[TILE]) {
    u32 largest = 0;
#pragma unroll
    for (int j = 0; j < TILE; ++j)
        largest = max(largest, static_cast<u32>(bits_of(x[j]) >> 32) & 0x7FFFFFFFu);
    const u32 exponent = largest >> 20;
    return exponent > 896 ? min(exponent - 896, NOT_FINITE) : 0;
}

// ---- quanta -------------------------------------------------------------------------------------

// 2^(E - 127).
__device__ __forceinline__ double quantum_of(u32 exponent) {
    return double_of(static_cast<u64>(896 + exponent) << 52);
}
// 1 / quantum. For E = 254 that is a subnormal float.
__device__ __forceinline__ float scale_of(float, u32 exponent) {
    return __uint_as_float(max(static_cast<i32>((254 - exponent) << 23), 0x00400000));
}
__device__ __forceinline__ double scale_of(double, u32 exponent) {
    return double_of(static_cast<u64>(1150 - exponent) << 52);
}

// The least size of x for rounding: half a step, which rounds to M = 1, if x is not 0; else less.
__device__ __forceinline__ float least_of(float x) {
    const u32 half_step = __float_as_uint(HALF_STEP);
    return __uint_as_float(min((bits_of(x) & 0x7FFFFFFFu) + (half_step - 1), half_step));
}
__device__ __forceinline__ float least_of(double x) {
    return bits_of(x) << 1 != 0 ? HALF_STEP : 0.0f;
}

// |x| - |decoded x|, in quanta, of x = `quanta`: M = |x| / STEP rounded half up, from 1 (but 0 of
// 0) to 63. least = least_of(x).
template <class A>
__device__ __forceinline__ float off_of(A quanta, float least) {
    const float size = fabsf(format::msfp15::truncated(quanta));
    const float clamped = fminf(fmaxf(size, least), MOST_STEPS);
    const float at_step = __fadd_rz(__fadd_rz(clamped, HALF_STEP), TO_STEPS);
    return static_cast<float>(fabs(quanta) - static_cast<A>(at_step - TO_STEPS));
}

// ---- measures -----------------------------------------------------------------------------------

// x as a double, exactly, also if it is subnormal.
__device__ __forceinline__ double exactly(double x) { return x; }
template <class T>
__device__ __forceinline__ double exactly(T x) {
    return widen_subnormal(format::msfp15::truncated</*KEEP_SIGN=*/true>(x));
}

// Sums over the elements x of a tile that belong to one group; undefined if the tile is not finite.
struct Measured {
    double off;        // (decoded x - x)^2
    double from_tile;  // (x - the tile's mean)^2
    double distance;   // x - the group's origin
    double squares;    // (x - the group's origin)^2
};

// Measures elements [begin, end) of a tile of which [0, there) exist; WHOLE: all eight. origin:
// the group's first element. Deviations are summed as distances from element `begin`, which lose no
// digits if the mean is large: sum of (d - m)^2 = squares - m (2 sum - n m) for any m, here
// `within` of the mean of [begin, end), `from_tile` of the tile's. Then quanta are turned into the
// units of x.
template <bool WHOLE, class T>
__device__ __forceinline__ Measured measured(const Tile<T>& tile, double origin, int begin, int end,
                                             int there) {
    using A = Acc<T>;
    A x[TILE];
#pragma unroll
    for (int j = 0; j < TILE; ++j) x[j] = Unit<T>::at(tile.at, j);
    const u32 exponent = exponent_of(x);
    const A scale = scale_of(A(), exponent);
    float off = 0;
#pragma unroll
    for (int j = 0; j < TILE; ++j) {
        const float least = least_of(x[j]);
        x[j] = multiply_subnormal(x[j], scale);
        const float own = off_of(x[j], least);
        if (WHOLE || (j >= begin && j < end)) off += own * own;
    }
    A first = x[0];
#pragma unroll
    for (int j = 1; j < TILE; ++j)
        if (!WHOLE && j == begin) first = x[j];
    float sum = 0, squares = 0, of_tile = 0;
#pragma unroll
    for (int j = 0; j < TILE; ++j) {
        const float distance = WHOLE || j < there ? static_cast<float>(x[j] - first) : 0.0f;
        of_tile += distance;
        if (!WHOLE && (j < begin || j >= end)) continue;
        sum += distance;
        squares += distance * distance;
    }
    const float n = WHOLE ? TILE : static_cast<float>(end - begin), mean = sum / n;
    const float tile_mean = WHOLE ? mean : of_tile / static_cast<float>(there);
    const float within = fmaxf(squares - sum * mean, 0.0f);
    const float from_tile =
        WHOLE ? within : fmaxf(squares - tile_mean * (2 * sum - n * tile_mean), 0.0f);
    const double quantum = quantum_of(exponent), unit = quantum * quantum;
    const double distance = (exactly(first) + mean) * quantum - origin;
    // off, from_tile, distance, squares
    return {off * unit, from_tile * unit, n * distance, within * unit + n * (distance * distance)};
}

}  // namespace cto::gist_guard::tile
