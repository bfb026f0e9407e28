// SPDX-License-Identifier: MIT
// A map over a range of elements of several arrays, which may start at any element. Outputs may be
// inputs: an element is read and written by one thread, which loads all of its vectors before it
// stores the first.
//
// A Map has
//
//     Loaded<N>            type of the inputs of N elements
//     load(loaded, i)      reads the inputs of elements i, i + 1, ...
//     store(loaded, i)     computes and writes their outputs
//     head()               elements before the first aligned vector of the widest array
//     has_vecs_at(first)   true if vectors of all arrays are aligned from element `first` on
#pragma once
#include "core/vec.cuh"

namespace cto::range_map {

using vec::Vec;

// A vector is WIDTH elements; each of a block's THREADS threads has VECS of each array in flight.
template <int WIDTH, int VECS, int THREADS>
struct Tiling {
    static constexpr int width = WIDTH, vecs = VECS, threads = THREADS;
    static constexpr i64 tile = VECS * THREADS * WIDTH;
};

// True if a vector of WIDTH elements may be loaded from element `first` on: its address is aligned.
template <int WIDTH, class E>
__device__ __forceinline__ bool has_vecs_at(const E* array, int first) {
    return reinterpret_cast<u64>(array + first) % sizeof(Vec<E, WIDTH>) == 0;
}

// Loads, then stores, by `map`, this thread's MANY vectors of N elements, THREADS vectors apart;
// the block's first vector begins at element `first`, and those from `end` on are left out. Vectors
// lie before `end` as a whole or not at all.
template <int N, int MANY, int THREADS, class Map>
__device__ __forceinline__ void map_some(const Map& map, i64 first, i64 end) {
    typename Map::template Loaded<N> loaded[MANY];
    const i64 i = first + static_cast<i64>(threadIdx.x) * N;
#pragma unroll
    for (int u = 0; u < MANY; ++u)
        if (i + u * (THREADS * N) < end) map.load(loaded[u], i + u * (THREADS * N));
#pragma unroll
    for (int u = 0; u < MANY; ++u)
        if (i + u * (THREADS * N) < end) map.store(loaded[u], i + u * (THREADS * N));
}

// Calls `map` for a block's elements [first, end) of arrays of n, by the Tiling S: one by one, or
// by vectors if those of all arrays are aligned at the same elements. Then the block's are [first,
// end) + head, so that they begin with a vector; the block with element 0 maps the first `head` of
// all one by one, and the one with end == n those after the last whole vector.
template <class S, class Map>
__device__ __forceinline__ void map_range(const Map& map, i64 first, i64 end, i64 n) {
    constexpr int WIDTH = S::width, THREADS = S::threads;
    const int head = map.head();
    if (!map.has_vecs_at(head)) {
#pragma unroll 1
        for (i64 i = first; i < end; i += 4 * THREADS)
            map_some</*N=*/1, /*MANY=*/4, THREADS>(map, i, end);
        return;
    }
    if (first == 0) map_some</*N=*/1, /*MANY=*/1, THREADS>(map, 0, head < n ? head : n);
    const i64 whole = n <= head ? head : head + (n - head) / WIDTH * WIDTH;  // end of all vectors
    const i64 last = end + head < whole ? end + head : whole;
#pragma unroll 1
    for (i64 i = first + head; i < last; i += S::tile)
        map_some<WIDTH, S::vecs, THREADS>(map, i, last);
    if (end == n) map_some</*N=*/1, /*MANY=*/1, THREADS>(map, whole, n);
}

}  // namespace cto::range_map
