// SPDX-License-Identifier: MIT
// Products of tiles of rows in shared memory. A warp has BANDS x 16 rows of the result (a band is
// 16 rows); its sums lie as fragments D of algorithm/tensor_core.cuh do: sums[m][n][i] of lane 4 g
// + t is
//
//     row 16 m + g + 8 (i / 2), column 8 n + 2 t + i % 2
//
// Tensor cores multiply types of 2 bytes, from 8.0 on; else products are made element by element.
#pragma once
#include "algorithm/tensor_core.cuh"
#include "attention/facts.cuh"
#include "core/async_copy.cuh"
#include "core/slots.cuh"

namespace cto::attention::tiles {

using namespace facts::attention;
using slots::T;
using Sum = Acc<T>;

constexpr int THREADS = WARPS * WARP;
constexpr int WIDTH = vec::WIDTH<T>;
// Elements from a row to the next in shared memory: 16 bytes beyond HEAD, so that the rows' vectors
// lie in different banks.
constexpr int PITCH = HEAD + WIDTH;

// A lane's part of a warp's BANDS x 16 rows and N columns of sums.
template <int BANDS, int N>
using Sums = Sum[BANDS][N / 8][4];

// Calls each(m, n, i, row, column) for the lane's elements [m][n][i] of Sums, at (row, column) of
// the warp's BANDS x 16 rows and N columns.
template <int BANDS, int N, class Each>
__device__ __forceinline__ void for_each(const Each& each) {
    const int lane = threadIdx.x % WARP, row = lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < BANDS; ++m)
#pragma unroll
        for (int n = 0; n < N / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                each(m, n, i, m * BAND + row + i / 2 * 8, n * 8 + column + i % 2);
}

// Where the n rows of one head lie in an array: row r is elements first + r * pitch + [0, width).
struct Rows {
    i64 first;
    int pitch, n, width;
};

// The block begins to copy LENGTH rows of an array `from`, row `first` of a head and those after
// it, to `tile` in shared memory, rows of HEAD elements PITCH apart; rows from n on and elements
// from width on are 0. async_copy::wait and a barrier have to follow.
template <int LENGTH>
__device__ __forceinline__ void load_rows(T* tile, const T* from, const Rows& rows, int first) {
    constexpr int IN_ROW = HEAD / WIDTH;
#pragma unroll 1  // else addresses take registers that sums need
    for (int index = threadIdx.x; index < LENGTH * IN_ROW; index += THREADS) {
        const int row = index / IN_ROW, column = index % IN_ROW * WIDTH;
        const bool exists = first + row < rows.n && column < rows.width;
        const T* const source =
            from + rows.first + static_cast<i64>(first + row) * rows.pitch + column;
        T* const to = tile + row * PITCH + column;
        if constexpr (ALIGNED) {
            async_copy::copy_or_zeros<16>(to, exists ? source : from, exists);
        } else {
#pragma unroll
            for (int j = 0; j < WIDTH; ++j)
                to[j] = exists && column + j < rows.width ? source[j] : from_acc<T>(Sum(0));
        }
    }
}

// Writes the warp's rows of results to rows `first`, `first` + 1, ... of a head in `to`: row 16 m +
// g + 8 half (of lane 4 g + t) is sums * factor(m, half), rounded to T. Rows from n on and elements
// from width on are not written.
template <int BANDS, class Factor>
__device__ __forceinline__ void store_rows(T* to, const Rows& rows, int first,
                                           const Sums<BANDS, HEAD>& sums, const Factor& factor) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int m = 0; m < BANDS; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = first + m * BAND + lane / 4 + half * 8;
            if (row >= rows.n) continue;
            const Sum times = factor(m, half);
#pragma unroll
            for (int n = 0; n < HEAD / 8; ++n) {
                const int column = n * 8 + lane % 4 * 2;
                const Sum pair[2] = {sums[m][n][2 * half] * times,
                                     sums[m][n][2 * half + 1] * times};
                const auto rounded = vec::from_acc<T>(pair);
                T* const place = to + rows.first + static_cast<i64>(row) * rows.pitch + column;
                if (ALIGNED && column < rows.width)
                    *reinterpret_cast<vec::Vec<T, 2>*>(place) = rounded;
                else
                    for (int j = 0; j < 2; ++j)
                        if (column + j < rows.width) place[j] = rounded.at[j];
            }
        }
}

// ---- products -----------------------------------------------------------------------------------

// products = x y^T: x is the warp's BANDS x 16 rows, y N rows, both of HEAD elements in shared
// memory, PITCH apart.
template <int BANDS, int N>
__device__ __forceinline__ void multiply_rows(Sums<BANDS, N>& products, const T* x, const T* y) {
    for_each<BANDS, N>([&](int m, int n, int i, int, int) { products[m][n][i] = 0; });
    if constexpr (FRAGMENTS) {
        const T* const of_x = x + tensor_core::place_in_a<T, /*BY_ROWS=*/true>(PITCH);
        const T* const of_y = y + tensor_core::place_in_b<T, /*BY_COLUMNS=*/true>(PITCH);
#pragma unroll
        for (int k = 0; k < HEAD; k += 16) {
            tensor_core::A a[BANDS];
#pragma unroll
            for (int m = 0; m < BANDS; ++m)
                tensor_core::load_a</*BY_ROWS=*/true>(of_x + m * BAND * PITCH + k, PITCH, a[m]);
#pragma unroll
            for (int n = 0; n < N / 16; ++n) {
                tensor_core::B b, next;
                tensor_core::load_b</*BY_COLUMNS=*/true>(of_y + n * 16 * PITCH + k, PITCH, b, next);
#pragma unroll
                for (int m = 0; m < BANDS; ++m) {
                    tensor_core::multiply<T>(products[m][2 * n], a[m], b);
                    tensor_core::multiply<T>(products[m][2 * n + 1], a[m], next);
                }
            }
        }
    } else {
        const int lane = threadIdx.x % WARP;
        const T* const of_x = x + lane / 4 * PITCH;
        const T* const of_y = y + lane % 4 * 2 * PITCH;
#pragma unroll 2
        for (int k = 0; k < HEAD; k += WIDTH) {
            Sum rows[2 * BANDS][WIDTH];
#pragma unroll
            for (int i = 0; i < 2 * BANDS; ++i) vec::widen<T>(of_x + i * 8 * PITCH + k, rows[i]);
#pragma unroll
            for (int n = 0; n < N / 8; ++n)
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    Sum column[WIDTH];
                    vec::widen<T>(of_y + (n * 8 + c) * PITCH + k, column);
#pragma unroll
                    for (int i = 0; i < 2 * BANDS; ++i)
#pragma unroll
                        for (int j = 0; j < WIDTH; ++j)
                            products[i / 2][n][i % 2 * 2 + c] += rows[i][j] * column[j];
                }
        }
    }
}

// Two sums rounded to T (2 bytes), as a word, the first in its low half.
__device__ __forceinline__ u32 packed(const Sum* pair) {
    T both[2];
    vec::round_pair(pair, both);
    return static_cast<u32>(bits_of(both[0])) | static_cast<u32>(bits_of(both[1])) << 16;
}

// sums += p y: p is BANDS x 16 rows of N, in the warp's registers; y is N rows of HEAD elements in
// shared memory, PITCH apart. Tensor cores: two neighbouring fragments D of p, rounded, are a
// fragment A. Else: lane 4 g + t has columns 2 t and 2 t + 1 of every 8 of p, which it sends to the
// other three lanes of its row.
template <int BANDS, int N>
__device__ __forceinline__ void add_products(Sums<BANDS, HEAD>& sums, const Sums<BANDS, N>& p,
                                             const T* y) {
    if constexpr (FRAGMENTS) {
        const T* const of_y = y + tensor_core::place_in_b<T, /*BY_COLUMNS=*/false>(PITCH);
#pragma unroll
        for (int k = 0; k < N / 16; ++k) {
            tensor_core::A a[BANDS];
#pragma unroll
            for (int m = 0; m < BANDS; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i) a[m][i] = packed(p[m][2 * k + i / 2] + i % 2 * 2);
#pragma unroll
            for (int n = 0; n < HEAD / 16; ++n) {
                tensor_core::B b, next;
                tensor_core::load_b</*BY_COLUMNS=*/false>(of_y + k * 16 * PITCH + n * 16, PITCH, b,
                                                          next);
#pragma unroll
                for (int m = 0; m < BANDS; ++m) {
                    tensor_core::multiply<T>(sums[m][2 * n], a[m], b);
                    tensor_core::multiply<T>(sums[m][2 * n + 1], a[m], next);
                }
            }
        }
    } else {
        const int lane = threadIdx.x % WARP;
        const T* const of_y = y + lane % 4 * 2;
#pragma unroll
        for (int k = 0; k < N; k += 8)
#pragma unroll 1  // else the compiler takes long
            for (int source = 0; source < 4; ++source)
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    Sum row[BANDS][2];
#pragma unroll
                    for (int m = 0; m < BANDS; ++m)
#pragma unroll
                        for (int half = 0; half < 2; ++half)
                            row[m][half] = __shfl_sync(ALL_LANES, p[m][k / 8][2 * half + c],
                                                       lane / 4 * 4 + source);
#pragma unroll
                    for (int n = 0; n < HEAD / 8; ++n) {
                        const auto pair = *reinterpret_cast<const vec::Vec<T, 2>*>(
                            of_y + (k + 2 * source + c) * PITCH + n * 8);
#pragma unroll
                        for (int m = 0; m < BANDS; ++m)
#pragma unroll
                            for (int i = 0; i < 4; ++i)
                                sums[m][n][i] += row[m][i / 2] * to_acc(pair.at[i % 2]);
                    }
                }
    }
}

}  // namespace cto::attention::tiles
