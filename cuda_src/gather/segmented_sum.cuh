// SPDX-License-Identifier: MIT
// Sums of slices that have the same key: a tree of partial sums over the sorted entries, then one
// sum for each row of the result.
//
// Node t of level l covers the FANOUT^l entries from t FANOUT^l on. Its sum is computed if they all
// have one key. So a segment, all entries with one key, is the sum of at most 2 FANOUT items a
// level, however long it is:
//
//     FANOUT = 4, segment of entries 2 .. 13:   [2 3] + node 1 + node 2 + [12 13]
//
// The edges, entries of a segment before its first and after its last node of level 1, are summed
// by the same launch: those before ([2 3]) in the place of node 0, which has no sum as it has two
// keys, those after ([12 13]) in places of their own. Which items are added in which order depends
// on the sorted keys alone: the same bits in each run.
//
// T is the type of the slices, Key that of row numbers and slice numbers. dy: the slices, [batch]
// [n_slices][width]; entries: {key = row of the result, position = slice}, sorted by key, the same
// for all batches; sizes: n_slices, n_rows, width; items: how a grid's blocks are divided among
// batches, nodes or rows, and columns (BatchItem); level: entries of a node, and where the sums of
// this level and of the one below begin.
#pragma once
#include "algorithm/reduce.cuh"
#include "core/vec.cuh"
#include "gather/slice_sums.cuh"

namespace cto::segmented_sum {

using namespace slice_sums;
using zeroed::Zeroed;

// Returns `sizes`, which the compiler then keeps in registers instead of reading launch parameters.
__device__ __forceinline__ Sizes in_registers(Sizes sizes) {
#ifndef __CUDA_CPU__
    asm("" : "+l"(sizes.n_slices), "+l"(sizes.n_rows), "+l"(sizes.width));
#endif
    return sizes;
}

// ---- what each thread does ----------------------------------------------------------------------

// The batch and item (a node or a row) of this thread, and which block of columns it has. No item
// if batch >= n_batches.
struct BatchItem {
    i64 batch, item;
    u32 column_block;

    // The task of thread (blockIdx, threadIdx.y). Grid x has the blocks of `fold` batches of n
    // items, column_blocks blocks for each blockDim.y items; grid z counts the folds. Blocks before
    // first_block are not counted.
    __device__ explicit BatchItem(Items items, u32 first_block = 0) {
        const u32 n_blocks = static_cast<u32>(items.column_blocks);
        const u32 own_block = blockIdx.x - first_block, block = own_block / n_blocks;
        const i64 i = static_cast<i64>(block) * blockDim.y + threadIdx.y;
        const bool inside = i < items.fold * items.n;
        const u32 in_fold = items.fold == 1 ? 0 : static_cast<u32>(i) / static_cast<u32>(items.n);
        batch = inside ? blockIdx.z * items.fold + in_fold : items.n_batches;
        item = i - in_fold * items.n;
        column_block = own_block - block * n_blocks;
    }
    // The thread's first column, if it has MANY vectors of N columns.
    template <int N, int MANY>
    __device__ i64 column() const {
        return (static_cast<i64>(column_block) * (MANY * blockDim.x) + threadIdx.x) * N;
    }
};

// ---- sums of nodes ------------------------------------------------------------------------------

// Returns `level`, which the compiler then keeps in registers. With it and the sizes left in the
// launch parameters, GatherGrad with equal indices took 2 % longer on an H200.
__device__ __forceinline__ Level in_registers(Level level) {
#ifndef __CUDA_CPU__
    asm("" : "+l"(level.unit), "+l"(level.begin), "+l"(level.begin_below), "+l"(level.total));
#endif
    return level;
}

// Edges of a node of level 1 with several keys (first_key to last_key), the sorted entries from
// number `first` on: *of_first = sum of the slices of its first key, if the node before begins with
// this key, too (it then has one key); *of_last = sum of those of its last key, if the node after
// ends with it. N columns each.
template <int N, class T, class Key>
__device__ __forceinline__ void sum_edges(const SortedSlices<T, Key, N>& slices, Key first_key,
                                          Key last_key, Key first, const Sizes& sizes,
                                          Acc<T>* of_last, Acc<T>* of_first) {
    const Entry<Key>* const entries = slices.entries;
    if (first > 0 && first_key < sizes.n_rows && entries[first - FANOUT].key == first_key) {
        Sum<Acc<T>, N> sum;
        sum.add_those_of(first_key, slices, first);
        sum.store(of_first);
    }
    const i64 end = static_cast<i64>(first) + 2 * FANOUT;
    if (end <= sizes.n_slices && last_key < sizes.n_rows && entries[end - 1].key == last_key) {
        Sum<Acc<T>, N> sum;
        sum.add_those_of(last_key, slices, first);
        sum.store(of_last);
    }
}

// sums[level.begin + node] = sum of the node's slices (level 1, level.unit == FANOUT) or child
// nodes, if it has one key that is a row; on level 1 a node with several keys gets its edges. A
// thread has N columns of one node; blocks before first_block have other work. sums:
// [batch][level.total][width]; dy: [batch][slice][width].
template <int N, class T, class Key>
__device__ __forceinline__ void sum_nodes(const T* __restrict__ dy,
                                          const Entry<Key>* __restrict__ entries, Acc<T>* sums,
                                          const Items& items, const Sizes& sizes,
                                          const Level& level, u32 first_block) {
    const BatchItem node(items, first_block);
    const i64 width = sizes.width, column = node.column<N, /*MANY=*/1>();
    if (node.batch >= items.n_batches || column >= width) return;
    const Key child = static_cast<Key>(node.item) * FANOUT;
    Key position[NODE_DEPTH<Key>];  // loaded with the keys, before these say if they are needed
    if (level.unit == FANOUT) {
#pragma unroll
        for (int d = 0; d < NODE_DEPTH<Key>; ++d) position[d] = entries[child + d].position;
    }
    const Key key = entries[node.item * level.unit].key;
    const Key last = entries[(node.item + 1) * level.unit - 1].key;
    vec::all_are_asked_for();
    // Several keys: only level 1 has edges. One key: it may be that of indices out of range.
    if (key != last ? level.unit > FANOUT : key >= sizes.n_rows) return;
    Acc<T>* const own = sums + node.batch * level.total * width + column;
    Sum<Acc<T>, N> sum;
    if (level.unit > FANOUT) {
        sum.add_children(NodeSums<Acc<T>, Key>{own + level.begin_below * width, width}, child);
    } else {
        const SortedSlices<T, Key, N> slices{dy + node.batch * sizes.n_slices * width + column,
                                             entries, width};
        if (key != last) {
            sum_edges(slices, key, last, child, sizes, own + (level.begin + node.item) * width,
                      own + (level.total - items.n + node.item) * width);
            return;
        }
        if (N > 1 || dy)
            sum.add_children(slices, child, position);
        else
            sum.template add_all<DEPTH>(
                slices,
                Ends<Key>{/*first=*/child, /*n=*/FANOUT, /*middle=*/child + FANOUT, /*skipped=*/0});
    }
    sum.store(own + (level.begin + node.item) * width);
}

// The parent of a block's nodes, summed in the same launch by the last of its children's blocks to
// arrive. Only for one batch, and if a block's nodes have one parent.
template <class Key>
struct Parent {
    u32 node, ticket, children;  // ticket: number of its counter; children: of a block
    Key first = 0, last = 0;     // keys of the node's entries

    // Finds the node above those of this block, and starts to load the keys of its first and last
    // entry. parents: nodes of its level; blocks before first_block have other work.
    __device__ __forceinline__ Parent(const Entry<Key>* entries, const Items& items,
                                      const Level& level, const Parents& parents, u32 first_block) {
        const u32 block = blockIdx.x - first_block;
        const u32 n_blocks = static_cast<u32>(items.column_blocks);
        children = blockDim.y;
        node = block / n_blocks * children / FANOUT;
        ticket = node * n_blocks + block % n_blocks;
        if (node >= parents.n) return;
        const i64 unit = FANOUT * level.unit;
        first = entries[node * unit].key;
        last = entries[(node + 1) * unit - 1].key;
        vec::all_are_asked_for();  // starts the loads early
    }
    // True if all children are of one row of dX: then the parent has a sum, too.
    __device__ __forceinline__ bool has_sum(const Parents& parents, const Sizes& sizes) const {
        return node < parents.n && first == last && first < sizes.n_rows;
    }
    // sums[parents.begin + node] = sum of the sums of its FANOUT children, if it has_sum, by the
    // block that completes the last of them, N columns a thread. tickets: one counter for each
    // parent and block of columns. Blocks before first_block have other work.
    template <int N, class A>
    __device__ __forceinline__ void sum(A* sums, const Items& items, const Sizes& sizes,
                                        const Level& level, const Parents& parents,
                                        Zeroed<u32>* tickets, u32 first_block) const {
        __shared__ bool is_last;
        if (!has_sum(parents, sizes)) return;
        if (!reduce::arrives_last(tickets + ticket, FANOUT / children, is_last)) return;
        const i64 width = sizes.width,
                  column = BatchItem(items, first_block).column<N, /*MANY=*/1>();
        if (threadIdx.y > 0 || column >= width) return;
        Sum<A, N> sum;
        sums += column;
        sum.add_children(NodeSums<A, Key>{sums + level.begin * width, width},
                         static_cast<Key>(node) * FANOUT);
        sum.store(sums + (parents.begin + node) * width);
    }
};

// Blocks 0 to start_blocks - 1: starts[row] = how many entries have a smaller key. The others:
// sums[node] = sum of the slices of each node of this level that has one key. parents: the nodes of
// the next level; such a node is summed by the block that finishes its last child. tickets: a
// counter for each parent and column block, 0 before and after. `parent` is made first, so that its
// loads begin early. Starts are the same for all batches: blocks of z > 0 repeat none.
template <int N, class T, class Key>
__device__ __forceinline__ void starts_and_nodes(const T* __restrict__ dy,
                                                 const Entry<Key>* __restrict__ entries,
                                                 Acc<T>* sums, Key* __restrict__ starts,
                                                 const Items& items, const Sizes& sizes,
                                                 const Level& level, const Parents& parents,
                                                 Zeroed<u32>* tickets, u32 start_blocks) {
    if (blockIdx.x >= start_blocks) {
        const Parent<Key> parent(entries, items, level, parents, start_blocks);
        sum_nodes<N>(dy, entries, sums, items, sizes, level, start_blocks);
        parent.template sum<N>(sums, items, sizes, level, parents, tickets, start_blocks);
        return;
    }
    if (blockIdx.z > 0) return;
    const u32 thread = threadIdx.y * blockDim.x + threadIdx.x;
    radix_sort::find_start(entries, starts, sizes.n_slices, sizes.n_rows,
                           static_cast<i64>(blockIdx.x) * THREADS + thread);
}

// ---- sums of rows -------------------------------------------------------------------------------

// sum += the slices of the sorted entries [low, high) of n, a segment: first the edges of level 1,
// then on each level the nodes that no node of the next level covers. nodes: sums of level 1, the
// other `levels` follow; edges: at(t) is the sum of entries in node t after a segment's last node.
// Short segments are added slice by slice.
template <class T, class Key, int N>
__device__ __forceinline__ void add_segment(Sum<Acc<T>, N>& sum,
                                            const SortedSlices<T, Key, N>& slices,
                                            NodeSums<Acc<T>, Key> nodes,
                                            const NodeSums<Acc<T>, Key>& edges, Key low, Key high,
                                            Key n, i32 levels) {
    Key up = low / FANOUT + (low % FANOUT != 0), down = high / FANOUT;
    if (levels == 0 || up >= down) {
        sum.template add_all<DEPTH>(
            slices, Ends<Key>{/*first=*/low, /*n=*/high - low, /*middle=*/high, /*skipped=*/0});
        return;
    }
    n /= FANOUT;
    if (low % FANOUT != 0) sum.add(sum.load(nodes.at(up - 1)));
    if (high % FANOUT != 0 && down < n) sum.add(sum.load(edges.at(down)));
    if (down == n && high > down * FANOUT)
        sum.template add_all<DEPTH>(
            slices, Ends<Key>{/*first=*/down * FANOUT, /*n=*/high - down * FANOUT, /*middle=*/high,
                              /*skipped=*/0});
    // Of this level's nodes [low, high), the next level covers the children of its [up, down).
    for (i32 level = 1;; ++level) {
        low = up;
        high = down;
        up = low / FANOUT + (low % FANOUT != 0);
        down = high / FANOUT;
        const bool top = level == levels || up >= down;
        const Key skipped = top ? 0 : (down - up) * FANOUT;
        sum.template add_all<DEPTH>(nodes, Ends<Key>{/*first=*/low, /*n=*/high - low - skipped,
                                                     /*middle=*/up * FANOUT, skipped});
        if (top) return;
        nodes.sums += static_cast<i64>(n) * nodes.width;
        n /= FANOUT;
    }
}

// Rows [next, end) of dX, summed and stored one after the other by a thread. dx: row 0 at the
// thread's N columns; width: elements of a row; sum: of row `next` so far.
template <class T, class Key, int N>
struct Rows {
    T* dx;
    i64 width;
    Key next, end;
    Sum<Acc<T>, N> sum;

    // Stores the rows from `next` to row - 1: the current sum, then zeros.
    __device__ __forceinline__ void finish(Key row) {
#pragma unroll 1
        for (; next < row; ++next) {
            sum.store(dx + next * width);
            sum.value = {};
        }
    }

    // Sums all rows from their n sorted entries, the first of which is number `low`; DEPTH slices
    // are loaded together, even if they are of different rows.
    __device__ __forceinline__ void add_few(const SortedSlices<T, Key, N>& slices, Key low, Key n) {
#pragma unroll 1
        for (Key first = 0; first < n; first += DEPTH) {
            Key key[DEPTH];
            const T* from[DEPTH];
            Vec<T, N> loaded[DEPTH];
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

    // Sums all rows one by one, by way of nodes in `levels` levels (add_segment); a row's entries
    // are [starts[row], starts[row + 1]) of n_slices. leaves_long: rows of LONG_ROW entries or more
    // are items of their own and are skipped.
    __device__ __forceinline__ void add_many(const SortedSlices<T, Key, N>& slices,
                                             const NodeSums<Acc<T>, Key>& nodes,
                                             const NodeSums<Acc<T>, Key>& edges, const Key* starts,
                                             Key n_slices, i32 levels, bool leaves_long) {
#pragma unroll 1
        while (next < end) {
            const Key low = starts[next], high = starts[next + 1];
            if (leaves_long && high - low >= LONG_ROW) {
                ++next;
                continue;
            }
            add_segment(sum, slices, nodes, edges, low, high, n_slices, levels);
            finish(next + 1);
        }
    }
};

// Returns the row of LONG_ROW entries or more whose first entry at a multiple of LONG_ROW is number
// `at` of n_slices; n_rows if there is none. Such a row has entry at - LONG_ROW / 2 or at +
// LONG_ROW / 2 - 1, too: if neither has the key, which is usual, its bounds, starts[row] and
// starts[row + 1], are not loaded.
template <class Key>
__device__ __forceinline__ Key long_row_at(Key at, const Entry<Key>* entries, const Key* starts,
                                           Key n_slices, i64 n_rows) {
    constexpr Key HALF = LONG_ROW / 2;
    const Key row = entries[at].key;
    const Key before = entries[max(at, HALF) - HALF].key;
    const Key behind = entries[min(at + HALF - 1, n_slices - 1)].key;
    if (row >= n_rows || (before != row && behind != row)) return n_rows;
    const Key low = starts[row], high = starts[row + 1];
    return high - low >= LONG_ROW && at - low < LONG_ROW ? row : n_rows;
}

// dx[batch][row] = sum of the slices whose key is the row, 0 if there are none; its entries are
// [starts[row], starts[row + 1]). A thread sums N columns of `count` rows. The first n_long items
// of the grid, one for every LONG_ROW entries, sum long rows instead: these take longest and often
// are neighbours, which one thread would sum one after the other. sums: [batch][n_nodes][width], of
// the nodes of all `levels`, then of the edges, one for each node of level 1.
template <int N, class T, class Key>
__device__ __forceinline__ void sum_rows(const T* __restrict__ dy,
                                         const Entry<Key>* __restrict__ entries,
                                         const Key* __restrict__ starts,
                                         const Acc<T>* __restrict__ sums, T* __restrict__ dx,
                                         Items items, Sizes sizes, i64 count, i64 n_nodes,
                                         i32 levels, i64 n_long) {
    const BatchItem task(items);
    const i64 width = sizes.width, column = task.column<N, /*MANY=*/1>();
    if (task.batch >= items.n_batches || column >= width) return;
    const Key n_slices = static_cast<Key>(sizes.n_slices);
    const bool is_long = task.item < n_long;
    Key first, end;
    if (is_long) {
        const Key at = static_cast<Key>(task.item) * LONG_ROW;
        first = long_row_at(at, entries, starts, n_slices, sizes.n_rows);
        if (first == sizes.n_rows) return;
        end = first + 1;
    } else {
        const i64 group = task.item - n_long;
        first = group * count;
        end = min((group + 1) * count, sizes.n_rows);
    }
    Rows<T, Key, N> rows{dx + task.batch * sizes.n_rows * width + column, width, /*next=*/first,
                         end, /*sum=*/{}};
    const SortedSlices<T, Key, N> slices{dy + task.batch * sizes.n_slices * width + column, entries,
                                         width};
    const NodeSums<Acc<T>, Key> nodes{sums + task.batch * n_nodes * width + column, width};
    const NodeSums<Acc<T>, Key> edges{nodes.sums + (n_nodes - n_slices / FANOUT) * width, width};
    const Key low = starts[first], high = starts[end];
    const bool leaves_long = n_long > 0 && !is_long;
    if (high - low < (leaves_long ? LONG_ROW : FANOUT))
        rows.add_few(slices, low, high - low);
    else
        rows.add_many(slices, nodes, edges, starts, n_slices, levels, leaves_long);
}

}  // namespace cto::segmented_sum
