// SPDX-License-Identifier: MIT
// Channels of few neighbouring elements: the array is a matrix, and a channel is `length` of its
// columns. Threads along a row have neighbouring columns, a slot of 16 bytes each.
#pragma once
#include "core/vec.cuh"

namespace cto::batch_norm {

using vec::Vec;

struct Columns {
    i64 n_rows, n_channels;
    i64 span;      // rows of a part, below 2^31
    u32 length;    // columns of a channel
    u32 channels;  // of a tile
    u32 width;     // threads that share its rows
    bool aligned;  // whether each slot lies at a multiple of 16 bytes, in all arrays
};

// Where a thread is in its tile.
template <int W>
struct Place {
    i64 first;         // column of the tile in the matrix
    u32 x, y, height;  // threads of a column: `height`, none where y is not below
    u32 n_columns;     // of the tile
    u32 n_channels;
    i64 row;     // the thread's first one
    i32 n_rows;  // of the part, of the thread

    __device__ __forceinline__ Place(const Columns& columns, u32 tile, u32 part) {
        x = threadIdx.x % columns.width, y = threadIdx.x / columns.width;
        height = blockDim.x / columns.width;
        const i64 channel = static_cast<i64>(tile) * columns.channels;
        const i64 rest = columns.n_channels - channel;
        n_channels = rest < columns.channels ? static_cast<u32>(rest) : columns.channels;
        n_columns = n_channels * columns.length;
        first = channel * columns.length;
        row = part * columns.span + y;
        const i64 rows_left = columns.n_rows - row, own = columns.span - y;
        const i64 n = rows_left < own ? rows_left : own;
        const bool inside = y < height && x * W < n_columns && n > 0;
        n_rows = inside ? (static_cast<u32>(n) + height - 1) / height : 0;
    }
    // Columns of the thread that the tile has.
    __device__ __forceinline__ u32 own_columns() const {
        return x * W >= n_columns ? 0 : n_columns - x * W < W ? n_columns - x * W : W;
    }
    // The channel of the thread's column i in the tile.
    __device__ __forceinline__ u32 channel(const Columns& columns, int i) const {
        return (x * W + i) / columns.length;
    }
    // Whether it is the first thread of a channel, and this its first column.
    __device__ __forceinline__ bool leads(const Columns& columns, int i) const {
        return y == 0 && (x * W + i) < n_columns && (x * W + i) % columns.length == 0;
    }
    // The thread's first column in its first row.
    __device__ __forceinline__ i64 element(const Columns& columns) const {
        return row * columns.n_channels * columns.length + first + x * W;
    }
};

// DEPTH rows of a thread in each of READ arrays.
template <class T, int W, int READ, int N_ROWS>
struct Rows {
    static constexpr int DEPTH = N_ROWS;
    Vec<T, W> held[READ][DEPTH];
    i32 n;  // rows that there are
    u32 n_columns;

    template <bool LAST>
    __device__ __forceinline__ void load(const T* const (&arrays)[READ], i64 element, i64 pitch,
                                         bool aligned) {
#pragma unroll
        for (int u = 0; u < DEPTH; ++u)
#pragma unroll
            for (int a = 0; a < READ; ++a) {
                held[a][u] = {};  // left as it is, it would take registers all the time
                if (u < n) held[a][u] = load_slot<LAST>(arrays[a] + element + u * pitch, aligned);
            }
    }
    __device__ __forceinline__ Acc<T> at(int array, int u, int i) const {
        return to_acc(held[array][u].at[i]);
    }
    __device__ __forceinline__ Acc<T> any_of(int i, Acc<T>) const { return at(0, 0, i); }
    // Shows `see` the elements; of columns that are not the tile's, zeros.
    template <class See>
    __device__ __forceinline__ void each(const See& see) const {
#pragma unroll
        for (int u = 0; u < DEPTH; ++u) {
            if (u >= n) continue;
#pragma unroll
            for (int i = 0; i < W; ++i) {
                if constexpr (READ == 1)
                    see(i, at(0, u, i));
                else
                    see(i, at(0, u, i), at(1, u, i));
            }
        }
    }

  private:
    template <bool LAST>
    __device__ __forceinline__ Vec<T, W> load_slot(const T* from, bool aligned) const {
        const auto* const slot = reinterpret_cast<const Vec<T, W>*>(from);
        if (aligned) return LAST ? vec::load_streaming(slot) : *slot;
        return vec::load_elements<T, W>(from, 0, n_columns);
    }
};

// The columns of a thread in one row: past the caches, from which others are read again.
template <class T, int W>
__device__ __forceinline__ void store_slot(T* to, u32 n_columns, bool aligned,
                                           const Acc<T> (&values)[W]) {
    const auto rounded = vec::from_acc<T>(values);
    if (aligned)
        vec::store_streaming(reinterpret_cast<Vec<T, W>*>(to), rounded);
    else
        vec::store_elements(to, 0, n_columns, rounded);
}

}  // namespace cto::batch_norm
