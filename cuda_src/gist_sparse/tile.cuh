// SPDX-License-Identifier: MIT
// A tile of 16,384 bytes in the registers of a block: ROWS vectors of 16 bytes a thread. Vector
// `row` of thread t is vector row * THREADS_OF<ROWS> + t of the tile.
#pragma once
#include "core/vec.cuh"
#include "gist_sparse/facts.cuh"

namespace cto::gist_sparse::tile {

using namespace facts::gist_sparse;
template <int ROWS>
constexpr int THREADS_OF = TILE_NBYTES / (16 * ROWS);  // of a block with ROWS vectors a thread

template <class T>
constexpr int TILE = TILE_NBYTES / sizeof(T);  // elements of a tile

__device__ __forceinline__ int warp() { return threadIdx.x / WARP; }
__device__ __forceinline__ int lane() { return threadIdx.x % WARP; }

// ---- loads and stores at addresses of any alignment; aligned: at a multiple of sizeof(V) --------

// *from, byte by byte if it is not aligned.
template <class V>
__device__ __forceinline__ V load_any(const u8* from, bool aligned) {
    if (aligned) return *reinterpret_cast<const V*>(from);
    V loaded;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(V)); ++i)
        reinterpret_cast<u8*>(&loaded)[i] = from[i];
    return loaded;
}
// *to = value, byte by byte if `to` is not aligned.
template <class V>
__device__ __forceinline__ void store_any(u8* to, const V& value, bool aligned) {
    if (aligned) {
        *reinterpret_cast<V*>(to) = value;
        return;
    }
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(V)); ++i)
        to[i] = reinterpret_cast<const u8*>(&value)[i];
}

// ---- rows of a tile -----------------------------------------------------------------------------

// Index in the array of the first element of the thread's vector `row`.
template <class T, int ROWS>
__device__ __forceinline__ i64 element_of(i64 tile, int row) {
    return tile * TILE<T> +
           (row * THREADS_OF<ROWS> + static_cast<int>(threadIdx.x)) * vec::WIDTH<T>;
}

// loaded[row] = the thread's vector `row` of tile number `tile` of x, zeros after x[n - 1]. As
// uint4, because an array of bytes would take a register for each. BEFORE_STORES: loads are marked
// evict-last in the caches, else evict-first. aligned: x starts at a multiple of 16 bytes.
template <bool BEFORE_STORES, class T, int ROWS>
__device__ __forceinline__ void load_tile(const T* x, i64 tile, i64 n, bool aligned,
                                          uint4 (&loaded)[ROWS]) {
    if (aligned && (tile + 1) * TILE<T> <= n) {
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            const auto* from = reinterpret_cast<const uint4*>(x + element_of<T, ROWS>(tile, row));
            if constexpr (BEFORE_STORES && vec::HAS_PRIORITIES)
                loaded[row] = vec::load_before_stores(from);
            else
                loaded[row] = vec::load_streaming(from);
        }
        return;
    }
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        const auto elements =
            vec::load_elements<T, vec::WIDTH<T>>(x, element_of<T, ROWS>(tile, row), n);
        loaded[row] = *reinterpret_cast<const uint4*>(&elements);
    }
}

// y[...] = value, the thread's vector `row` of tile number `tile` of the n elements y; none from
// y[n] on. aligned: y starts at a multiple of 16 bytes.
template <class T, int ROWS>
__device__ __forceinline__ void store_row(T* y, i64 tile, int row, i64 n, bool aligned,
                                          const vec::Vec<T, vec::WIDTH<T>>& value) {
    const i64 first = element_of<T, ROWS>(tile, row);
    if (aligned && (tile + 1) * TILE<T> <= n)
        vec::store_streaming(reinterpret_cast<vec::Vec<T, vec::WIDTH<T>>*>(y + first), value);
    else
        vec::store_elements<T, vec::WIDTH<T>>(y, first, n, value);
}

// Copies the elements of tile number `tile` from `from` to `to`, both the bytes of n elements T.
// aligned: both start at multiples of 16 bytes.
template <class T, int ROWS>
__device__ __forceinline__ void copy_tile(const u8* from, u8* to, i64 tile, i64 n, bool aligned) {
    if (aligned) {
        uint4 loaded[ROWS];
        load_tile</*BEFORE_STORES=*/false>(reinterpret_cast<const T*>(from), tile, n,
                                           /*aligned=*/true, loaded);
#pragma unroll
        for (int row = 0; row < ROWS; ++row)
            store_row<T, ROWS>(reinterpret_cast<T*>(to), tile, row, n, /*aligned=*/true,
                               *reinterpret_cast<const vec::Vec<T, vec::WIDTH<T>>*>(&loaded[row]));
        return;
    }
    const i64 first = tile * TILE_NBYTES, nbytes = n * static_cast<i64>(sizeof(T));
    for (i64 i = first + threadIdx.x; i < first + TILE_NBYTES && i < nbytes; i += THREADS_OF<ROWS>)
        to[i] = from[i];
}

}  // namespace cto::gist_sparse::tile
