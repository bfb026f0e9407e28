// SPDX-License-Identifier: MIT
// A map over a range of elements of several arrays, which may start anywhere and may be the same:
// every element is read and written by one thread, and a thread loads all of its vectors before it
// stores the first.
//
// A Map has a type Loaded<N> of what N elements are mapped from, load(loaded, i) and
// store(loaded, i), head() elements before the first vector of the array with the widest elements,
// and has_vecs_at(first): whether vectors of all arrays may start at the element `first`.
#pragma once
#include "core/vec.cuh"

namespace cto::range_map {

using vec::Vec;

// A vector is WIDTH elements, a thread has VECS of each array in flight.
template <int WIDTH, int VECS, int THREADS>
struct Tiling {
    static constexpr int width = WIDTH, vecs = VECS, threads = THREADS;
    static constexpr i64 tile = VECS * THREADS * WIDTH;
};

template <int WIDTH, class E>
__device__ __forceinline__ bool has_vecs_at(const E* array, int first) {
    return reinterpret_cast<u64>(array + first) % sizeof(Vec<E, WIDTH>) == 0;
}

// Stores map.load of the elements first, first + N, ... that fall to this thread, MANY in flight.
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

// The elements [first, end) of n: vectors where all arrays have theirs on the same elements, and
// single elements before the first and after the last of them.
template <class S, class Map>
__device__ __forceinline__ void map_range(const Map& map, i64 first, i64 end, i64 n) {
    constexpr int WIDTH = S::width, THREADS = S::threads;
    const int head = map.head();
    if (!map.has_vecs_at(head)) {
#pragma unroll 1
        for (i64 i = first; i < end; i += 4 * THREADS) map_some<1, 4, THREADS>(map, i, end);
        return;
    }
    if (first == 0) map_some<1, 1, THREADS>(map, 0, head < n ? head : n);
    const i64 whole = n <= head ? head : head + (n - head) / WIDTH * WIDTH;
    const i64 last = end + head < whole ? end + head : whole;
#pragma unroll 1
    for (i64 i = first + head; i < last; i += S::tile)
        map_some<WIDTH, S::vecs, THREADS>(map, i, last);
    if (end == n) map_some<1, 1, THREADS>(map, whole, n);
}

}  // namespace cto::range_map
