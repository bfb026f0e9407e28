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
constexpr int DEPTH = 4;                               // slices whose loads are in flight together
constexpr int DEPTH_AT_ENDS = sizeof(T) == 2 ? 2 : 3;  // all that registers are left for

// K slices of dY and G rows of dX in a batch, W elements each.
struct Sizes {
    i64 K, G, W;
};

// Loaded past the caches where it takes 16 bytes: no other thread reads the same.
template <class P>
__device__ __forceinline__ P load_streaming(const P* from) {
    if constexpr (sizeof(P) == 16) {
        P packet;
        *reinterpret_cast<uint4*>(&packet) = __ldcs(reinterpret_cast<const uint4*>(from));
        return packet;
    } else {
        return *from;
    }
}

// Slices of one batch of dY in the order of the sorted entries, of which a thread takes N elements.
// Without dY the slices are elements, which stand in the entries where otherwise their positions do;
// there is one batch of one column then.
template <int N>
struct SortedSlices {
    using Element = T;
    const T* dy;
    const Entry* entries;
    i64 W;

    __device__ const T* at(Key i) const {
        const Key* const position = &entries[i].position;
        return N > 1 || dy ? dy + *position * W : reinterpret_cast<const T*>(position);
    }
};

// Sums of the nodes of one level, of one batch.
struct NodeSums {
    using Element = ACC;
    const ACC* sums;
    i64 W;

    __device__ const ACC* at(Key node) const { return sums + node * W; }
};

// Both ends of a run: n items from `first` on, where `skipped` others lie between, from `middle`
// on.
struct Ends {
    Key first, n, middle, skipped;

    __device__ Key at(Key i) const { return first + i < middle ? first + i : first + i + skipped; }
};

template <class E, int N>
__device__ __forceinline__ Packet<E, N> narrowed(const Packet<ACC, N>& sum) {
    Packet<E, N> packet;
#pragma unroll
    for (int i = 0; i < N; ++i) packet.at[i] = narrow<E>(sum.at[i]);
    return packet;
}

// What one thread adds of every slice: N elements of it, where the pointers to slices point.
template <int N>
struct Sum {
    Packet<ACC, N> value{};

    template <class E>
    static __device__ __forceinline__ Packet<E, N> load(const E* from) {
        return load_streaming(reinterpret_cast<const Packet<E, N>*>(from));
    }

    template <class E>
    __device__ __forceinline__ void add(const Packet<E, N>& packet) {
#pragma unroll
        for (int i = 0; i < N; ++i) value.at[i] += widened(packet.at[i]);
    }

    // Adds items in order, MANY of them loaded before the first is added.
    template <int MANY, class Items>
    __device__ __forceinline__ void add_all(const Items& items, const Ends& ends) {
        using E = typename Items::Element;
#pragma unroll 1
        for (Key first = 0; first < ends.n; first += MANY) {
            const E* slices[MANY];
            Packet<E, N> loaded[MANY];
#pragma unroll
            for (int d = 0; d < MANY; ++d)
                slices[d] = items.at(ends.at(min(first + d, ends.n - 1)));
#pragma unroll
            for (int d = 0; d < MANY; ++d)
                if (first + d < ends.n) loaded[d] = load(slices[d]);
#pragma unroll
            for (int d = 0; d < MANY; ++d)
                if (first + d < ends.n) add(loaded[d]);
        }
    }

    template <class E>
    __device__ __forceinline__ void store(E* to) const {
        auto* at = reinterpret_cast<Packet<E, N>*>(to);
        if constexpr (sizeof(*at) == 16)
            store_streaming(at, narrowed<E>(value));
        else
            *at = narrowed<E>(value);
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
    const i64 W = sizes.W, column = node.column<N, 1>();
    if (node.batch >= items.B || column >= W) return;
    const Key key = entries[node.item * level.unit].key;
    if (key != entries[(node.item + 1) * level.unit - 1].key || key >= sizes.G) return;
    ACC* const own = sums + node.batch * level.total * W + column;
    const Key child = static_cast<Key>(node.item) * FANOUT;
    const Ends children{child, FANOUT, child + FANOUT, 0};
    Sum<N> sum;
    if (level.unit == FANOUT)
        sum.template add_all<DEPTH>(
            SortedSlices<N>{dy + node.batch * sizes.K * W + column, entries, W}, children);
    else
        sum.template add_all<DEPTH>(NodeSums{own + level.begin_below * W, W}, children);
    sum.store(own + (level.begin + node.item) * W);
}

// Adds the entries [low, high): on each level the ends that the next one does not cover.
template <int N>
__device__ __forceinline__ void add_segment(Sum<N>& sum, const SortedSlices<N>& slices,
                                            NodeSums nodes, Key low, Key high, Key n, i32 levels) {
    for (i32 level = 0;; ++level) {
        const Key up = low / FANOUT + (low % FANOUT != 0), down = high / FANOUT;
        const bool top = level == levels || up >= down;
        const Key skipped = top ? 0 : (down - up) * FANOUT;
        const Ends ends{low, high - low - skipped, up * FANOUT, skipped};
        if (level == 0) {
            sum.template add_all<DEPTH_AT_ENDS>(slices, ends);
        } else {
            sum.template add_all<DEPTH_AT_ENDS>(nodes, ends);
            nodes.sums += static_cast<i64>(n) * nodes.W;
        }
        if (top) return;
        low = up;
        high = down;
        n /= FANOUT;
    }
}

// Rows of dX whose sums are finished one after the other.
template <int N>
struct Rows {
    T* dx;
    i64 W;
    Key next, end;
    Sum<N> sum;

    // Stores the sum of every row before `row`.
    __device__ __forceinline__ void finish(Key row) {
#pragma unroll 1
        for (; next < row; ++next) {
            sum.store(dx + next * W);
            sum.value = {};
        }
    }

    // Adds n entries from `low` on, DEPTH of them loaded together whichever rows they go to.
    __device__ __forceinline__ void add_few(const SortedSlices<N>& slices, Key low, Key n) {
#pragma unroll 1
        for (Key first = 0; first < n; first += DEPTH) {
            Key key[DEPTH];
            const T* from[DEPTH];
            Packet<T, N> loaded[DEPTH];
#pragma unroll
            for (int d = 0; d < DEPTH; ++d) {
                const Key i = low + min(first + d, n - 1);
                key[d] = slices.entries[i].key;
                from[d] = slices.at(i);
            }
#pragma unroll
            for (int d = 0; d < DEPTH; ++d)
                if (first + d < n) loaded[d] = sum.load(from[d]);
#pragma unroll
            for (int d = 0; d < DEPTH; ++d) {
                if (first + d >= n) break;
                finish(key[d]);
                sum.add(loaded[d]);
            }
        }
        finish(end);
    }

    // Adds the entries of every row in turn, with the sums of whole nodes among them.
    __device__ __forceinline__ void add_many(const SortedSlices<N>& slices, const NodeSums& nodes,
                                             const Key* starts, Key K, i32 levels) {
#pragma unroll 1
        while (next < end) {
            add_segment(sum, slices, nodes, starts[next], starts[next + 1], K, levels);
            finish(next + 1);
        }
    }
};

// dX[b, g] = sum of the slices with key g, zero where there are none: every element written once.
// A thread sums `count` rows; no node lies among fewer than FANOUT entries.
template <int N>
__device__ __forceinline__ void sum_rows(const T* __restrict__ dy,
                                         const Entry* __restrict__ entries,
                                         const Key* __restrict__ starts,
                                         const ACC* __restrict__ sums, T* __restrict__ dx,
                                         const Items& items, const Sizes& sizes, i64 count,
                                         i64 n_nodes, i32 levels) {
    const BatchItem group(items);
    const i64 W = sizes.W, column = group.column<N, 1>();
    if (group.batch >= items.B || column >= W) return;
    const Key first = group.item * count, end = min((group.item + 1) * count, sizes.G);
    Rows<N> rows{dx + group.batch * sizes.G * W + column, W, first, end, {}};
    const SortedSlices<N> slices{dy + group.batch * sizes.K * W + column, entries, W};
    const NodeSums nodes{sums + group.batch * n_nodes * W + column, W};
    const Key low = starts[first], high = starts[end];
    if (high - low < FANOUT)
        rows.add_few(slices, low, high - low);
    else
        rows.add_many(slices, nodes, starts, sizes.K, levels);
}

}  // namespace cto
