// SPDX-License-Identifier: MIT
// A thread's sums of N columns: of slices of dY in sorted order, and of sums of nodes.
//
// T is the type of the slices, Key that of row numbers and slice numbers.
#pragma once
#include "core/vec.cuh"
#include "gather/radix_sort.cuh"

namespace cto::slice_sums {

using namespace facts::gather;
using radix_sort::Entry;
using vec::Vec;

constexpr int DEPTH = 4;  // slices whose loads are in flight together
// Nodes whose loads are in flight together; positions of 64 bits take twice the registers.
template <class Key>
constexpr int NODE_DEPTH = sizeof(Key) == 8 ? 4 : 8;

// Slices of one batch of dY in the order of the sorted entries; dy points to the thread's N
// columns. If dy is null, a slice is one element, whose bits are in the entry in place of its
// position; then there is one batch of one column.
template <class T, class Key, int N>
struct SortedSlices {
    using Element = T;
    const T* dy;
    const Entry<Key>* entries;
    i64 width;

    // at(i): address of slice i in sorted order, = slice_of(place(i)). place(i): number of that
    // slice in dY, or i itself if dy is null.
    __device__ Key place(Key i) const { return N > 1 || dy ? entries[i].position : i; }
    // The slice of dY of entry `place`, or, for single elements, the bits that the entry has.
    __device__ const T* slice_of(Key place) const {
        return N > 1 || dy ? dy + place * width
                           : reinterpret_cast<const T*>(&entries[place].position);
    }
    __device__ const T* at(Key i) const { return slice_of(place(i)); }
};

// Sums of the nodes of one level and one batch, `width` elements apart; `sums` points to the
// thread's columns. at(node), or slice_of(place(node)): address of a node's sum, as SortedSlices
// has a slice's.
template <class A, class Key>
struct NodeSums {
    using Element = A;
    const A* sums;
    i64 width;

    __device__ Key place(Key node) const { return node; }
    __device__ const A* slice_of(Key node) const { return sums + node * width; }
    __device__ const A* at(Key node) const { return slice_of(node); }
};

// A list of n items: first, first + 1, ..., middle - 1, middle + skipped,
// middle + skipped + 1, ....
template <class Key>
struct Ends {
    Key first, n, middle, skipped;

    // Item i of the list.
    __device__ Key at(Key i) const { return first + i < middle ? first + i : first + i + skipped; }
};

// A thread's sum of slices, N neighbouring elements of each.
template <class A, int N>
struct Sum {
    Vec<A, N> value{};

    // from[0 .. N).
    template <class E>
    static __device__ __forceinline__ Vec<E, N> load(const E* from) {
        return vec::load_streaming(reinterpret_cast<const Vec<E, N>*>(from));
    }

    // value[i] += slice[i], i < N.
    template <class E>
    __device__ __forceinline__ void add(const Vec<E, N>& slice) {
#pragma unroll
        for (int i = 0; i < N; ++i) value.at[i] += to_acc(slice.at[i]);
    }

    // Adds the slices or nodes that `ends` lists, in order, MANY loads in flight; the places of the
    // next MANY are loaded with them. items: SortedSlices or NodeSums.
    template <int MANY, class Items, class Key>
    __device__ __forceinline__ void add_all(const Items& items, const Ends<Key>& ends) {
        using E = typename Items::Element;
        if (ends.n == 0) return;
        Key place[MANY];
#pragma unroll
        for (int d = 0; d < MANY; ++d)
            place[d] = items.place(ends.at(min(static_cast<Key>(d), ends.n - 1)));
#pragma unroll 1
        for (Key first = 0; first < ends.n; first += MANY) {
            Vec<E, N> loaded[MANY];
            // Past the end the last one again: loads under a condition would wait for earlier
            // additions.
#pragma unroll
            for (int d = 0; d < MANY; ++d) loaded[d] = load(items.slice_of(place[d]));
#pragma unroll
            for (int d = 0; d < MANY; ++d)
                place[d] = items.place(ends.at(min(first + MANY + d, ends.n - 1)));
            vec::all_are_asked_for();
#pragma unroll
            for (int d = 0; d < MANY; ++d)
                if (first + d < ends.n) add(loaded[d]);
        }
    }

    // Adds the FANOUT slices of a node of level 1, sorted entries `first` and on, in order;
    // position[d] is that of entry first + d. The positions of the next slices are loaded with
    // these.
    template <class T, class Key>
    __device__ __forceinline__ void add_children(const SortedSlices<T, Key, N>& slices, Key first,
                                                 Key (&position)[NODE_DEPTH<Key>]) {
#pragma unroll 1
        for (Key end = first + FANOUT; first < end; first += NODE_DEPTH<Key>) {
            Vec<T, N> loaded[NODE_DEPTH<Key>];
#pragma unroll
            for (int d = 0; d < NODE_DEPTH<Key>; ++d)
                loaded[d] = load(slices.dy + position[d] * slices.width);
#pragma unroll
            for (int d = 0; d < NODE_DEPTH<Key>; ++d)
                position[d] = slices.entries[min(first + NODE_DEPTH<Key> + d, end - 1)].position;
            vec::all_are_asked_for();
#pragma unroll
            for (int d = 0; d < NODE_DEPTH<Key>; ++d) add(loaded[d]);
        }
    }
    // Adds the FANOUT nodes from `first` on in order.
    template <class Key>
    __device__ __forceinline__ void add_children(const NodeSums<A, Key>& nodes, Key first) {
        const A* from = nodes.at(first);
#pragma unroll 1
        for (int i = 0; i < FANOUT; i += NODE_DEPTH<Key>) {
            Vec<A, N> loaded[NODE_DEPTH<Key>];
#pragma unroll
            for (int d = 0; d < NODE_DEPTH<Key>; ++d) loaded[d] = load(from + d * nodes.width);
            vec::all_are_asked_for();
#pragma unroll
            for (int d = 0; d < NODE_DEPTH<Key>; ++d) add(loaded[d]);
            from += NODE_DEPTH<Key> * nodes.width;
        }
    }

    // Adds the slices of the entries first .. first + FANOUT - 1 that have this key.
    template <class T, class Key>
    __device__ __forceinline__ void add_those_of(Key key, const SortedSlices<T, Key, N>& slices,
                                                 Key first) {
#pragma unroll 1
        for (Key end = first + FANOUT; first < end; first += NODE_DEPTH<Key>) {
            bool has_key[NODE_DEPTH<Key>];
            const T* from[NODE_DEPTH<Key>];
            Vec<T, N> loaded[NODE_DEPTH<Key>];
#pragma unroll
            for (int d = 0; d < NODE_DEPTH<Key>; ++d) {
                has_key[d] = slices.entries[first + d].key == key;
                from[d] = slices.at(first + d);
            }
#pragma unroll
            for (int d = 0; d < NODE_DEPTH<Key>; ++d)
                if (has_key[d]) loaded[d] = load(from[d]);
            vec::all_are_asked_for();
#pragma unroll
            for (int d = 0; d < NODE_DEPTH<Key>; ++d)
                if (has_key[d]) add(loaded[d]);
        }
    }

    // to[i] = value[i] rounded to E, i < N.
    template <class E>
    __device__ __forceinline__ void store(E* to) const {
        vec::store_streaming(reinterpret_cast<Vec<E, N>*>(to), vec::from_acc<E>(value.at));
    }
};

}  // namespace cto::slice_sums
