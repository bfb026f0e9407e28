// SPDX-License-Identifier: MIT
// Sums of slices that share a key: a tree of partial sums over the sorted entries, then one sum a row.
//
// Node t of level l covers the FANOUT^l entries from t FANOUT^l on. Its sum is computed if they all have
// one key, so that a segment of any length is the sum of at most 2 FANOUT items a level. Which items, and
// in which order, follows from the sorted keys alone: the same bits, run after run.
#pragma once
#include "include/packets.cuh"
#include "include/radix_sort.cuh"

#ifndef CTO_ACC
#define CTO_ACC float
#endif

namespace cto {

using Acc = CTO_ACC;

constexpr int FANOUT = 32;
constexpr int PACKETS = 2;  // of one slice that a thread adds
constexpr int DEPTH = 4;    // slices whose loads are in flight together

// B batches of K slices of dY and of G rows of dX, W elements each.
struct Sizes {
    i64 B, K, G, W;
};

template <class E>
__device__ __forceinline__ Acc widened(E x) {
    if constexpr (sizeof(Acc) == sizeof(double))
        return x;
    else
        return to_float(x);
}

template <class E>
__device__ __forceinline__ E rounded(Acc x) {
    if constexpr (sizeof(Acc) == sizeof(double))
        return x;
    else
        return from_float<E>(x);
}

// Slices of one batch of dY in the order of the sorted entries.
struct SortedSlices {
    using Element = T;
    const T* dy;
    const Entry* entries;
    i64 W;
    __device__ const T* at(i64 i) const { return dy + static_cast<i64>(entries[i].position) * W; }
};

// Sums of the nodes of one level, of one batch.
struct NodeSums {
    using Element = Acc;
    const Acc* sums;
    i64 W;
    __device__ const Acc* at(i64 node) const { return sums + node * W; }
};

// Two ends of a run of items: [first, middle) and [middle + skipped, ...), n in all.
struct Ends {
    i64 first, n, middle, skipped;
    __device__ i64 at(i64 i) const { return first + i < middle ? first + i : first + i + skipped; }
};

// The packets of a slice that one thread adds: PACKETS of N elements, blockDim.x packets apart.
template <int N>
struct Columns {
    i64 first, W;
    Packet<Acc, N> sum[PACKETS];

    __device__ Columns(i64 first, i64 W) : first(first), W(W), sum{} {}
    __device__ i64 column(int p) const { return first + p * static_cast<i64>(blockDim.x * N); }

    template <class Items>
    __device__ __forceinline__ void add(const Items& items, const Ends& ends) {
        for (i64 i = 0; i < ends.n; i += DEPTH) add_some(items, ends, i);
    }

    template <class Items>
    __device__ __forceinline__ void add_some(const Items& items, const Ends& ends, i64 i) {
        using E = typename Items::Element;
        const E* slices[DEPTH];
        Packet<E, N> loaded[DEPTH][PACKETS];
#pragma unroll
        for (int d = 0; d < DEPTH; ++d)
            if (i + d < ends.n) slices[d] = items.at(ends.at(i + d));
#pragma unroll
        for (int d = 0; d < DEPTH; ++d)
#pragma unroll
            for (int p = 0; p < PACKETS; ++p)
                if (i + d < ends.n && column(p) < W)
                    loaded[d][p] = *reinterpret_cast<const Packet<E, N>*>(slices[d] + column(p));
#pragma unroll
        for (int d = 0; d < DEPTH; ++d)
#pragma unroll
            for (int p = 0; p < PACKETS; ++p)
                if (i + d < ends.n && column(p) < W) accumulate(sum[p], loaded[d][p]);
    }

    template <class E>
    static __device__ __forceinline__ void accumulate(Packet<Acc, N>& sum, const Packet<E, N>& x) {
#pragma unroll
        for (int i = 0; i < N; ++i) sum.at[i] += widened(x.at[i]);
    }

    template <class E>
    __device__ __forceinline__ void store(E* to) const {
#pragma unroll
        for (int p = 0; p < PACKETS; ++p) {
            if (column(p) >= W) continue;
            Packet<E, N> packet;
#pragma unroll
            for (int i = 0; i < N; ++i) packet.at[i] = rounded<E>(sum[p].at[i]);
            *reinterpret_cast<Packet<E, N>*>(to + column(p)) = packet;
        }
    }
};

// Threads (x: columns, y: items) of a grid (x: B n items, y: columns): the item of this thread.
struct BatchItem {
    i64 batch, item;
    __device__ BatchItem(i64 B, i64 n) {
        const i64 i = static_cast<i64>(blockIdx.x) * blockDim.y + threadIdx.y;
        batch = B == 1 ? 0 : (i | n) >> 32 ? i / n : static_cast<u32>(i) / static_cast<u32>(n);
        item = i - batch * n;
    }
};

// for_each_column(f): f(first column) for the thread's packets, column blocks blockIdx.y, + gridDim.y...
template <int N, class F>
__device__ __forceinline__ void for_each_column(i64 W, F f) {
    const i64 block = static_cast<i64>(blockDim.x) * (PACKETS * N);
    for (i64 at = blockIdx.y * block; at < W; at += gridDim.y * block)
        f(at + static_cast<i64>(threadIdx.x) * N);
}

// The sum of the entries [low, high): whole nodes of the highest level, and on each level the ends.
template <int N>
__device__ __forceinline__ void add_segment(Columns<N>& columns, const SortedSlices& slices,
                                            NodeSums nodes, i64 low, i64 high, i32 levels, i64 K) {
    for (i32 level = 0;; ++level) {
        const i64 up = (low + FANOUT - 1) / FANOUT, down = high / FANOUT;
        const bool top = level == levels || up >= down;
        const i64 skipped = top ? 0 : (down - up) * FANOUT;
        const Ends ends{low, high - low - skipped, up * FANOUT, skipped};
        if (level == 0) {
            columns.add(slices, ends);
        } else {
            columns.add(nodes, ends);
            nodes.sums += K * nodes.W;
        }
        if (top) return;
        low = up, high = down, K /= FANOUT;
    }
}

// The sums of the nodes of one level, from the level below; n_below: nodes of the levels before this one.
template <int N>
struct SumNodes {
    const T* dy;
    const Entry* entries;
    Acc* sums;
    Sizes sizes;
    i32 level;
    i64 unit, n, before, n_nodes;  // FANOUT^level; nodes of this level, of lower ones, of all

    __device__ void operator()() const {
        const BatchItem at(sizes.B, n);
        if (at.batch >= sizes.B) return;
        const Key key = entries[at.item * unit].key;
        if (key != entries[(at.item + 1) * unit - 1].key || key >= sizes.G) return;
        Acc* const own = sums + at.batch * n_nodes * sizes.W;
        for_each_column<N>(sizes.W, [&](i64 column) {
        });
    }
};

}  // namespace cto
