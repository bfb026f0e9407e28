// SPDX-License-Identifier: MIT
// Sums of slices that share a key: a tree of partial sums over the sorted entries, then one sum a
// row.
//
// Node t of level l covers the FANOUT^l entries from t FANOUT^l on. Its sum is computed if they all
// have one key, so that a segment of any length is the sum of at most 2 FANOUT items a level. Which
// items, and in which order, follows from the sorted keys alone: the same bits, run after run.
#pragma once
#include "include/packets.cuh"
#include "include/radix_sort.cuh"

#ifndef CTO_ACC
#define CTO_ACC float
#endif

namespace cto {

using ACC = CTO_ACC;

constexpr int FANOUT = 32;
constexpr int DEPTH = sizeof(T) == 2 ? 2 : 4;  // slices whose loads are in flight together
#ifndef CTO_P
#define CTO_P 2
#endif
#ifndef CTO_D
#define CTO_D 4
#endif
#ifndef CTO_R
#define CTO_R 4
#endif
#ifndef CTO_MINB
#define CTO_MINB 2
#endif
constexpr int AHEAD = CTO_D;
constexpr int ROWS = CTO_R;  // of dX that a thread sums

// K slices of dY and G rows of dX in a batch, W elements each.
struct Sizes {
    i64 K, G, W;
};

template <class E>
__device__ __forceinline__ ACC widened(E x) {
    if constexpr (sizeof(ACC) == sizeof(double))
        return x;
    else
        return to_float(x);
}

template <class E>
__device__ __forceinline__ E rounded(ACC x) {
    if constexpr (sizeof(ACC) == sizeof(double))
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

    __device__ const T* at(Key i) const { return dy + static_cast<i64>(entries[i].position) * W; }
};

// Sums of the nodes of one level, of one batch.
struct NodeSums {
    using Element = ACC;
    const ACC* sums;
    i64 W;

    __device__ const ACC* at(Key node) const { return sums + static_cast<i64>(node) * W; }
};

// Both ends of a run: n items from `first` on, where `skipped` others lie between, from `middle`
// on.
struct Ends {
    Key first, n, middle, skipped;

    __device__ Key at(Key i) const { return first + i < middle ? first + i : first + i + skipped; }
};

template <class E, int N>
__device__ __forceinline__ Packet<E, N> rounded(const Packet<ACC, N>& sum) {
    Packet<E, N> packet;
#pragma unroll
    for (int i = 0; i < N; ++i) packet.at[i] = rounded<E>(sum.at[i]);
    return packet;
}

// What one thread adds of every slice: PACKETS packets of N elements, blockDim.x packets apart. One
// past the end of the slice is replaced by the first.
template <int N>
struct Columns {
    static constexpr int PACKETS = N == 1 ? 1 : CTO_P;
    i64 column[PACKETS];
    Packet<ACC, N> sum[PACKETS];

    __device__ Columns(i64 first, i64 W) : sum{} {
#pragma unroll
        for (int p = 0; p < PACKETS; ++p) {
            const i64 own = first + p * static_cast<i64>(blockDim.x * N);
            column[p] = own < W ? own : first;
        }
    }

    template <class Items>
    __device__ __forceinline__ void add(const Items& items, const Ends& ends) {
        Key i = 0;
#pragma unroll 1
        for (; i + DEPTH <= ends.n; i += DEPTH) add_some<DEPTH>(items, ends, i);
#pragma unroll 1
        for (; i < ends.n; ++i) add_some<1>(items, ends, i);
    }

    // Adds MANY slices in order, all of them loaded before the first is added.
    template <int MANY, class Items>
    __device__ __forceinline__ void add_some(const Items& items, const Ends& ends, Key i) {
        using Loaded = Packet<typename Items::Element, N>;
        Loaded loaded[MANY][PACKETS];
#pragma unroll
        for (int d = 0; d < MANY; ++d) {
            const auto* slice = items.at(ends.at(i + d));
#pragma unroll
            for (int p = 0; p < PACKETS; ++p)
                loaded[d][p] = *reinterpret_cast<const Loaded*>(slice + column[p]);
        }
#pragma unroll
        for (int d = 0; d < MANY; ++d)
#pragma unroll
            for (int p = 0; p < PACKETS; ++p) accumulate(sum[p], loaded[d][p]);
    }

    template <class E>
    static __device__ __forceinline__ void accumulate(Packet<ACC, N>& sum, const Packet<E, N>& x) {
#pragma unroll
        for (int i = 0; i < N; ++i) sum.at[i] += widened(x.at[i]);
    }

    template <class E>
    __device__ __forceinline__ void store(E* to) const {
#pragma unroll
        for (int p = 0; p < PACKETS; ++p) {
            if (p > 0 && column[p] == column[0]) continue;
            auto* at = reinterpret_cast<Packet<E, N>*>(to + column[p]);
            if constexpr (sizeof(*at) == 16)
                store_streaming(at, rounded<E>(sum[p]));
            else
                *at = rounded<E>(sum[p]);
        }
    }

    // Stores the sum and starts the next one.
    __device__ __forceinline__ void flush(T* to) {
        store(to);
#pragma unroll
        for (int p = 0; p < PACKETS; ++p) sum[p] = {};
    }
};

// How B batches of n items of W columns meet a grid. A block takes y items and a run of columns;
// grid x counts the items of `fold` batches and in each the `column_blocks` runs, grid z the folds.
// fold n fits into 32 bits, or fold is 1.
struct Items {
    i64 B, n, fold, column_blocks;
};

// The batch and item of this thread, and which run of columns; no item where batch >= B.
struct BatchItem {
    i64 batch, item;
    u32 column_block;

    __device__ explicit BatchItem(const Items& items) {
        const u32 n_blocks = static_cast<u32>(items.column_blocks), block = blockIdx.x / n_blocks;
        const i64 i = static_cast<i64>(block) * blockDim.y + threadIdx.y;
        const bool inside = i < items.fold * items.n;
        const u32 in_fold = items.fold == 1 ? 0 : static_cast<u32>(i) / static_cast<u32>(items.n);
        batch = inside ? blockIdx.z * items.fold + in_fold : items.B;
        item = i - in_fold * items.n;
        column_block = blockIdx.x - block * n_blocks;
    }
    // The thread's first column, where it takes MANY runs of N columns.
    template <int N, int MANY>
    __device__ i64 column() const {
        return (static_cast<i64>(column_block) * (MANY * blockDim.x) + threadIdx.x) * N;
    }
};

// One level of the tree: FANOUT^l entries a node, and where among the sums of all `total` nodes
// this level's begin and those of the level below.
struct Level {
    i64 unit, begin, begin_below, total;
};

template <int N>
__device__ __forceinline__ void sum_nodes(const T* __restrict__ dy,
                                          const Entry* __restrict__ entries, ACC* sums,
                                          const Items& items, const Sizes& sizes,
                                          const Level& level) {
    const BatchItem node(items);
    const i64 W = sizes.W;
    Columns<N> columns(node.column<N, Columns<N>::PACKETS>(), W);
    if (node.batch >= items.B || columns.column[0] >= W) return;
    const Key key = entries[node.item * level.unit].key;
    if (key != entries[(node.item + 1) * level.unit - 1].key || key >= sizes.G) return;
    ACC* const own = sums + node.batch * level.total * W;
    const Key child = static_cast<Key>(node.item) * FANOUT;
    const Ends children{child, FANOUT, child + FANOUT, 0};
    if (level.unit == FANOUT)
        columns.add(SortedSlices{dy + node.batch * sizes.K * W, entries, W}, children);
    else
        columns.add(NodeSums{own + level.begin_below * W, W}, children);
    columns.store(own + (level.begin + node.item) * W);
}

// Adds the entries [low, high): on each level the ends that the next one does not cover.
template <int N>
__device__ __forceinline__ void add_segment(Columns<N>& columns, const SortedSlices& slices,
                                            NodeSums nodes, Key low, Key high, Key n, i32 levels) {
    for (i32 level = 0;; ++level) {
        const Key up = low / FANOUT + (low % FANOUT != 0), down = high / FANOUT;
        const bool top = level == levels || up >= down;
        const Key skipped = top ? 0 : (down - up) * FANOUT;
        const Ends ends{low, high - low - skipped, up * FANOUT, skipped};
        if (level == 0) {
            columns.add(slices, ends);
        } else {
            columns.add(nodes, ends);
            nodes.sums += static_cast<i64>(n) * nodes.W;
        }
        if (top) return;
        low = up;
        high = down;
        n /= FANOUT;
    }
}

template <class P>
__device__ __forceinline__ P load_once(const P* from) {
#ifdef CTO_LD
    if constexpr (sizeof(P) == 16) {
        P p;
        *reinterpret_cast<uint4*>(&p) = __ldcs(reinterpret_cast<const uint4*>(from));
        return p;
    }
#endif
    return *from;
}

// Rows [row, end) with the entries [low, high): AHEAD slices are loaded before the first is added,
// whichever rows they go to.
template <int N>
__device__ __forceinline__ void sum_short_rows(Columns<N>& columns, const SortedSlices& slices,
                                               T* dx, Key row, Key end, Key low, Key high) {
    using Loaded = Packet<T, N>;
    constexpr int P = Columns<N>::PACKETS;
#pragma unroll 1
    for (Key i = low; i < high; i += AHEAD) {
        Entry entry[AHEAD];
        Loaded loaded[AHEAD][P];
#pragma unroll
        for (int d = 0; d < AHEAD; ++d)
            entry[d] = i + d < high ? slices.entries[i + d] : Entry{end, 0};
#pragma unroll
        for (int d = 0; d < AHEAD; ++d)
#pragma unroll
            for (int p = 0; p < P; ++p)
                if (i + d < high)
                    loaded[d][p] = load_once(reinterpret_cast<const Loaded*>(
                        slices.dy + static_cast<i64>(entry[d].position) * slices.W + columns.column[p]));
#pragma unroll
        for (int d = 0; d < AHEAD; ++d) {
            if (i + d >= high) break;
#pragma unroll 1
            for (; row < entry[d].key; ++row) columns.flush(dx + static_cast<i64>(row) * slices.W);
#pragma unroll
            for (int p = 0; p < P; ++p) columns.accumulate(columns.sum[p], loaded[d][p]);
        }
    }
#pragma unroll 1
    for (; row < end; ++row) columns.flush(dx + static_cast<i64>(row) * slices.W);
}

// dX[b, g] = sum of the slices with key g, zero where there are none: every element written once.
template <int N>
__device__ __forceinline__ void sum_rows(const T* __restrict__ dy,
                                         const Entry* __restrict__ entries,
                                         const Key* __restrict__ starts,
                                         const ACC* __restrict__ sums, T* __restrict__ dx,
                                         const Items& items, const Sizes& sizes, i64 n_nodes,
                                         i32 levels) {
    const BatchItem group(items);
    const i64 W = sizes.W;
    Columns<N> columns(group.column<N, Columns<N>::PACKETS>(), W);
    if (group.batch >= items.B || columns.column[0] >= W) return;
    const i64 first = group.item * ROWS, end = min(first + ROWS, sizes.G);
    const Key low = starts[first], high = starts[end];
    const SortedSlices slices{dy + group.batch * sizes.K * W, entries, W};
    T* const to = dx + group.batch * sizes.G * W;
    if (high - low < FANOUT) {
        sum_short_rows(columns, slices, to, static_cast<Key>(first), static_cast<Key>(end), low,
                       high);
        return;
    }
    const NodeSums nodes{sums + group.batch * n_nodes * W, W};
#pragma unroll 1
    for (i64 row = first; row < end; ++row) {
        add_segment(columns, slices, nodes, starts[row], starts[row + 1],
                    static_cast<Key>(sizes.K), levels);
        columns.flush(to + row * W);
    }
}

}  // namespace cto
