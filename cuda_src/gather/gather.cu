// SPDX-License-Identifier: MIT
// Gradients of the gather operators.  CPU provider: cupy_training_ops/families/gather/reference.py
//
// dX[row] = sum of the slices dY[k] (`width` elements each) with target(k) == row; each operator
// has its own target(k), which is NOWHERE for an index out of range: targets.cuh. Ways:
//
//     few            each element of dX compares all targets
//     atomic         atomic additions, not deterministic
//     sort           entries (target, k) are sorted by target, then each row's slices summed
//     columns        gather_elements of elements that stay in their column: buckets of rows
#include "algorithm/map.cuh"
#include "core/slots.cuh"
#include "gather/atomic_sums.cuh"
#include "gather/block_sort.cuh"
#include "gather/column_sums.cuh"
#include "gather/columns.cuh"
#include "gather/facts.cuh"
#include "gather/radix_sort.cuh"
#include "gather/segmented_sum.cuh"
#include "gather/targets.cuh"

// Key: type of row numbers and slice numbers. INDEX: type of indices.
#ifndef CTO_KEY
#define CTO_KEY u32
#endif
#ifndef CTO_INDEX
#define CTO_INDEX i64
#endif

namespace cto {

using namespace atomic_sums;
using segmented_sum::in_registers;
using vec::Vec;
using zeroed::Zeroed;

using slots::ACC;
using slots::T;
using Key = CTO_KEY;
using INDEX = CTO_INDEX;
using GatherRow = targets::Row<INDEX>;
using GatherNDRow = targets::TupleRow<INDEX, Key>;
using GatherElement = targets::Element<INDEX, Key>;

using Entry = radix_sort::Entry<Key>;
using Carried = columns::EntryOf<T>;
static_assert(ARE_SAME<ACC, Acc<T>>);

constexpr int WIDTH = vec::WIDTH<T>;

// Blocks of gather__sum_rows on a multiprocessor: as many as registers allow.
constexpr int SUM_BLOCKS = sizeof(Key) == 8 ? 2 : sizeof(T) == 8 || sizeof(T) == 2 ? 3 : 4;

// ---- few slices and rows ------------------------------------------------------------------------

// dx[batch][row][column] = sum of dy[batch][k][column] over the slices k with target(k) == row, one
// of the n elements of dx a thread. row_of: shared memory, row_of[k] = target(k); a batch has at
// most THREADS slices. sizes: slices and rows of a batch, and elements of each.
template <class Target>
__device__ __forceinline__ void sum_few(Target target, const T* __restrict__ dy, T* __restrict__ dx,
                                        i32 n, Sizes sizes, i64 (&row_of)[THREADS]) {
    if (threadIdx.x < sizes.n_slices) row_of[threadIdx.x] = target(threadIdx.x);
    __syncthreads();
    const i32 i = static_cast<i32>(blockIdx.x) * THREADS + static_cast<i32>(threadIdx.x);
    if (i >= n) return;
    const i32 n_slices = static_cast<i32>(sizes.n_slices), width = static_cast<i32>(sizes.width);
    const i32 line = i / width, batch = line / static_cast<i32>(sizes.n_rows);
    const i64 row = line - batch * sizes.n_rows;
    const T* const slices = dy + batch * sizes.n_slices * width + (i - line * width);
    ACC sum = 0;
    for (i32 k = 0; k < n_slices; ++k)
        if (row_of[k] == row) sum += to_acc(slices[k * width]);
    dx[i] = from_acc<T>(sum);
}

// ---- deterministic: entries to sort; key n_rows, past the last row, for an index out of range ---

// Entry k = {target(k), k}; if dy is not null (slices of one element) {target(k), bits of dy[k]}.
// The key is n_rows for an index out of range.
template <class Target>
struct NewEntry {
    Target target;
    const T* dy;
    i64 n_rows;

    // Returns the entry of slice k.
    __device__ __forceinline__ Entry operator()(i64 k) const {
        const i64 row = target(k);
        Entry entry{static_cast<Key>(row == NOWHERE ? n_rows : row), static_cast<Key>(k)};
        if constexpr (sizeof(T) <= sizeof(Key))
            if (dy) entry.position = static_cast<Key>(bits_of(dy[k]));
        return entry;
    }
};

// Key k, computed from the indices; stores its entry too.
template <class Target>
struct NewKey {
    NewEntry<Target> next_entry;
    Entry* entries;

    // Returns the key of slice k, and stores its entry.
    __device__ Key operator()(i64 k) const {
        const Entry entry = next_entry(k);
        entries[k] = entry;
        return entry.key;
    }
};

// Key i of entries in memory.
struct KnownKey {
    const Entry* entries;

    __device__ Key operator()(i64 i) const { return entries[i].key; }
};

// entries[k] = {target(k), or n_rows for NOWHERE; k, or with dy the bits of dy[k]};
// counts[block][digit] = how many of the block's keys have the digit of `pass`.
template <class Target>
__device__ __forceinline__ void make_keys(Target target, const T* dy, Entry* entries, Key* counts,
                                          i64 n_rows, Pass pass) {
    __shared__ u32 histogram[RADIX];
    radix_sort::count_digits(NewKey<Target>{{target, dy, n_rows}, entries}, counts, pass,
                             histogram);
}

// entries = the entries {target(k), or n_rows for NOWHERE; k, or with dy the bits of dy[k]} of all
// k sorted by key, equal keys in the order of k; one block. digits: how many entries, and bits of a
// pass. Does nothing for 64-bit keys.
template <class Target>
__device__ __forceinline__ void sort_keys(Target target, const T* dy, Entry* entries, i64 n_rows,
                                          const AllDigits& digits) {
    extern __shared__ __align__(16) u8 shared[];
    if constexpr (sizeof(Key) == sizeof(u32))
        block_sort::sort(NewEntry<Target>{target, dy, n_rows}, entries, digits, shared);
}

// ---- zeros and rounding -------------------------------------------------------------------------

// y[0 .. n) = 0
__device__ __forceinline__ void fill_with_zero(T* y, i64 n) {
    const Vec<T, WIDTH> zero{};
    const bool aligned = vec::bytes_past_16(y) == 0;
    const i64 first = static_cast<i64>(blockIdx.x) * (THREADS * ZERO_VECS) + threadIdx.x;
#pragma unroll
    for (int v = 0; v < ZERO_VECS; ++v) {
        const i64 at = (first + v * THREADS) * WIDTH;
        if (aligned && at + WIDTH <= n)
            vec::store_streaming(reinterpret_cast<Vec<T, WIDTH>*>(y + at), zero);
        else
            vec::store_elements(y, at, n, zero);
    }
}

using RoundTiling = map::Tiling</*IN=*/WIDTH, /*OUT=*/WIDTH, /*SHARE=*/1, ROUND_NBYTES, THREADS>;

// y[i] = sums[i] rounded to T.
struct Round {
    __device__ Vec<T, WIDTH> operator()(const Vec<ACC, WIDTH>& sums, int) const {
        return vec::from_acc<T>(sums.at);
    }
};

}  // namespace cto

using namespace cto;

// ---- entry points: few slices, keys, and atomic additions, of each operator ---------------------
//
// tuples, lines: how index tuples, or indices of elements, name rows of dx (targets.cuh). sizes:
// slices and rows of a batch, and elements of each. items: how blocks are divided among batches,
// slices or rows, and columns. pass, digits: the digits of keys that are sorted by.

// dx[batch][row][column] = sum of dy[batch][k][column] over k with indices[k] == row. One of the n
// elements of dx a thread, at most THREADS slices k. sizes: n_slices and n_rows of a batch, and
// `width` of each.
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_grad__few(const INDEX* indices, const T* dy, T* dx, i32 n,
                     const __grid_constant__ Sizes sizes) {
    __shared__ i64 row_of[THREADS];
    sum_few(GatherRow{indices, sizes.n_rows}, dy, dx, n, sizes, row_of);
}
// dx[row][column] = sum of dy[k][column] over k whose index tuple names the row. One of the n
// elements of dx a thread, at most THREADS slices k. tuples: indices in a tuple, tuples of a batch,
// extents that they index. sizes: n_slices and n_rows of a batch, and `width` of each.
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_nd_grad__few(const INDEX* indices, const __grid_constant__ Tuples tuples, const T* dy,
                        T* dx, i32 n, const __grid_constant__ Sizes sizes) {
    __shared__ i64 row_of[THREADS];
    sum_few(GatherNDRow{indices, tuples}, dy, dx, n, sizes, row_of);
}
// dx[i] = sum of dy[k] over k whose index names element i in its line. One of the n elements of dx
// a thread, at most THREADS elements dy[k]. lines: extent and stride in dx of the axis, and those
// of the other dimensions. sizes: n_slices and n_rows of a batch, and `width` of each.
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_elements_grad__few(const INDEX* indices, const __grid_constant__ Lines lines,
                              const T* dy, T* dx, i32 n, const __grid_constant__ Sizes sizes) {
    __shared__ i64 row_of[THREADS];
    sum_few(GatherElement{indices, lines}, dy, dx, n, sizes, row_of);
}
// entries[k] = {target(k), k}, or with dy {target(k), bits of dy[k]}, where target(k) is the row
// that index k names, or n_rows for an index out of range; counts[block][digit] = how many of the
// block's targets have the digit of `pass`.
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    gather_grad__keys(const INDEX* indices, const T* dy, Entry* entries, Key* counts,
                      const __grid_constant__ Pass pass, i64 n_rows) {
    make_keys(GatherRow{indices, n_rows}, dy, entries, counts, n_rows, pass);
}
// entries[k] = {target(k), k}, or with dy {target(k), bits of dy[k]}, where target(k) is the row
// that index tuple k names, or n_rows for an index out of range; counts[block][digit] = how many of
// the block's targets have the digit of `pass`. tuples: indices in a tuple, tuples of a batch,
// extents that they index.
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    gather_nd_grad__keys(const INDEX* indices, const __grid_constant__ Tuples tuples, const T* dy,
                         Entry* entries, Key* counts, const __grid_constant__ Pass pass,
                         i64 n_rows) {
    make_keys(GatherNDRow{indices, tuples}, dy, entries, counts, n_rows, pass);
}
// entries[k] = {target(k), k}, or with dy {target(k), bits of dy[k]}, where target(k) is the
// element of dx that index k names in its line, or n_rows for an index out of range;
// counts[block][digit] = how many of the block's targets have the digit of `pass`. lines: extent
// and stride in dx of the axis, and those of the other dimensions.
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    gather_elements_grad__keys(const INDEX* indices, const __grid_constant__ Lines lines,
                               const T* dy, Entry* entries, Key* counts,
                               const __grid_constant__ Pass pass, i64 n_rows) {
    make_keys(GatherElement{indices, lines}, dy, entries, counts, n_rows, pass);
}
// entries = {target(k), k}, or with dy {target(k), bits of dy[k]}, in the order of target(k), and
// of k among equals, by one block; target(k) is the row that index k names. Empty for keys of 64
// bits. n_rows, the key of an index out of range, comes last. digits: number of entries, and bits
// of their keys.
extern "C" __global__ void __launch_bounds__(ALONE_THREADS, 1)
    gather_grad__sort(const INDEX* indices, const T* dy, Entry* entries,
                      const __grid_constant__ AllDigits digits, i64 n_rows) {
    sort_keys(GatherRow{indices, n_rows}, dy, entries, n_rows, digits);
}
// entries = {target(k), k}, or with dy {target(k), bits of dy[k]}, in the order of target(k), and
// of k among equals, by one block; target(k) is the row that index tuple k names. Empty for keys of
// 64 bits. tuples: indices in a tuple, tuples of a batch, extents that they index. n_rows, the key
// of an index out of range, comes last. digits: number of entries, and bits of their keys.
extern "C" __global__ void __launch_bounds__(ALONE_THREADS, 1)
    gather_nd_grad__sort(const INDEX* indices, const __grid_constant__ Tuples tuples, const T* dy,
                         Entry* entries, const __grid_constant__ AllDigits digits, i64 n_rows) {
    sort_keys(GatherNDRow{indices, tuples}, dy, entries, n_rows, digits);
}
// entries = {target(k), k}, or with dy {target(k), bits of dy[k]}, in the order of target(k), and
// of k among equals, by one block; target(k) is the element of dx that index k names in its line.
// Empty for keys of 64 bits. lines: extent and stride in dx of the axis, and those of the other
// dimensions. n_rows, the key of an index out of range, comes last. digits: number of entries, and
// bits of their keys.
extern "C" __global__ void __launch_bounds__(ALONE_THREADS, 1)
    gather_elements_grad__sort(const INDEX* indices, const __grid_constant__ Lines lines,
                               const T* dy, Entry* entries,
                               const __grid_constant__ AllDigits digits, i64 n_rows) {
    sort_keys(GatherElement{indices, lines}, dy, entries, n_rows, digits);
}
// sums[batch][row that index k names] += dy[batch][k], a slice, by atomic additions; nothing for an
// index out of range. items: how blocks share batches, slices and columns. sizes: n_slices and
// n_rows of a batch, and `width` of each.
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_grad__atomic(const INDEX* indices, const T* dy, ACC* sums,
                        const __grid_constant__ Items items, const __grid_constant__ Sizes sizes) {
    add_slices(GatherRow{indices, sizes.n_rows}, dy, sums, items, sizes);
}
// sums[row that index tuple k names] += dy[k], a slice, by atomic additions; nothing for a tuple
// out of range. tuples: indices in a tuple, tuples of a batch, extents that they index. items: how
// blocks share batches, slices and columns. sizes: n_slices and n_rows of a batch, and `width` of
// each.
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_nd_grad__atomic(const INDEX* indices, const __grid_constant__ Tuples tuples, const T* dy,
                           ACC* sums, const __grid_constant__ Items items,
                           const __grid_constant__ Sizes sizes) {
    add_slices(GatherNDRow{indices, tuples}, dy, sums, items, sizes);
}
// sums[element that index k names in its line] += dy[k], k < n, by atomic additions; nothing for an
// index out of range. lines: extent and stride in dx of the axis, and those of the other
// dimensions.
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_elements_grad__atomic(const INDEX* indices, const __grid_constant__ Lines lines,
                                 const T* dy, ACC* sums, i64 n) {
    add_elements(GatherElement{indices, lines}, dy, sums, n);
}
// sums[element that index k names in its line] += dy[k] by atomic additions, none for an index out
// of range, for `rows` rows of dy: in strips of STRIP_COLUMNS columns, blocks_a_strip blocks each,
// so that the lines of sums in use stay in the L2 cache.
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_elements_grad__atomic_strips(const INDEX* indices, const __grid_constant__ Lines lines,
                                        const T* dy, ACC* sums, i64 rows, i32 blocks_a_strip) {
    add_elements_by_strips(GatherElement{indices, lines}, dy, sums, rows, blocks_a_strip);
}

// ---- entry points: gather_elements_grad of elements that stay in their columns: columns.cuh -----
//
// For elements of 4 bytes at most; for longer ones two of the kernels are empty.
// indices and dy are [sort.rows][sort.columns]; a block has sort.span rows of COLUMNS columns. An
// entry is an element of dy, as bits, and its row of dx; RUN entries are a run.

// counts[column][span][bucket] = entries of the column that the span's block moves to the bucket,
// rounded up to whole runs in each tile. A block has COLUMNS columns of one span of rows of dy.
// lines: extent and stride in dx of the axis, and those of the other dimensions.
extern "C" __global__ void __launch_bounds__(columns::BLOCK)
    gather_elements_grad__count_buckets(const INDEX* indices, const __grid_constant__ Lines lines,
                                        u32* counts, const __grid_constant__ ColumnSort sort) {
    __shared__ u32 histogram[2][COLUMNS][BUCKETS];
    columns::count_buckets(indices, lines, counts, sort, histogram);
}
// entries[column] = {row of dx, dy} of the column's elements, by bucket of the row, in the order of
// dy in a bucket; {a row, 0} fills runs up. A block has COLUMNS columns of one span of rows of dy.
// lines: extent and stride in dx of the axis, and those of the other dimensions. counts: from
// gather_elements_grad__count_buckets.
extern "C" __global__ void __launch_bounds__(columns::BLOCK, 2)
    gather_elements_grad__move_to_buckets(const INDEX* indices, const __grid_constant__ Lines lines,
                                          const T* dy, const u32* counts, Carried* entries,
                                          const __grid_constant__ ColumnSort sort) {
    if constexpr (sizeof(T) <= sizeof(u32)) {
        __shared__ columns::Tile<T> tile;
        columns::move_to_buckets(indices, dy, lines, counts, entries, sort, tile);
    }
}
// dx[row][column], [n_rows][width], = sum of the entries of the column with this row. A block has
// BUCKET_ROWS rows, one bucket, of SUM_COLUMNS columns, a warp each; sums are in dynamic shared
// memory. entries: from gather_elements_grad__move_to_buckets, counts: from
// __count_buckets. sort: spans of rows of dy, and entries that a column has room for.
extern "C" __global__ void __launch_bounds__(SUM_COLUMNS* WARP, 2)
    gather__sum_buckets(const Carried* entries, const u32* counts, T* dx, i64 n_rows, i64 width,
                        const __grid_constant__ ColumnSort sort) {
    extern __shared__ __align__(16) u8 shared[];
    if constexpr (sizeof(T) <= sizeof(u32))
        column_sums::sum_buckets(entries, counts, dx, n_rows, width, sort,
                                 reinterpret_cast<column_sums::Sums<ACC>*>(shared));
}

// ---- entry points: the stages that all three share ----------------------------------------------

// counts[block][digit] = how many of the block's keys have the digit of `pass`.
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    gather__count(const Entry* entries, Key* counts, const __grid_constant__ Pass pass) {
    __shared__ u32 histogram[RADIX];
    radix_sort::count_digits(KnownKey{entries}, counts, pass, histogram);
}
// to = the entries `from` sorted by the digit of `pass`, stably. A block moves its span of them,
// SHORT_ITEMS entries a thread at a time; `counts` is from gather__count or a __keys kernel.
extern "C" __global__ void __launch_bounds__(SORT_THREADS, 2)
    gather__scatter(const Entry* from, Entry* to, const Key* counts,
                    const __grid_constant__ Pass pass) {
    __shared__ radix_sort::SortedTile<Key, SHORT_ITEMS<sizeof(Key)>> sorted;
    __shared__ Key per_warp[radix_sort::SORT_WARPS];
    radix_sort::scatter_by_digit(from, to, counts, pass, sorted, per_warp);
}
// to = the entries `from` sorted by the digit of `pass`, stably. A block moves its span of them,
// LONG_ITEMS entries a thread at a time; `counts` is from gather__count or a __keys kernel. For
// many entries.
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    gather__scatter__long(const Entry* from, Entry* to, const Key* counts,
                          const __grid_constant__ Pass pass) {
    __shared__ radix_sort::SortedTile<Key, LONG_ITEMS<sizeof(Key)>> sorted;
    __shared__ Key per_warp[radix_sort::SORT_WARPS];
    radix_sort::scatter_by_digit(from, to, counts, pass, sorted, per_warp);
}
// starts[key] = how many of the n sorted entries have a smaller key, key
// <= n_rows; one key a thread.
extern "C" __global__ void __launch_bounds__(THREADS)
    gather__starts(const Entry* sorted, Key* starts, i64 n, i64 n_rows) {
    radix_sort::find_start(sorted, starts, n, n_rows,
                           static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x);
}
// starts[key] = how many of the n sorted entries have a smaller key, key <= n_rows. STARTS_ROWS
// keys a block, which compares neighbouring entries instead of searching for each key.
extern "C" __global__ void __launch_bounds__(THREADS)
    gather__starts__many(const Entry* sorted, Key* starts, i64 n, i64 n_rows) {
    __shared__ i64 bounds[2];
    radix_sort::find_starts(sorted, starts, n, n_rows, bounds);
}
// Blocks 0 to start_blocks - 1: starts[row] = how many entries have a smaller key. The others:
// sums[node] = sum of the slices of dy of each node of this level of the tree (segmented_sum.cuh)
// that has one key, and of the level of `parents`. entries: sorted by key; items: which nodes and
// columns a block has; tickets: counters of finished children. Rows are whole 16-byte vectors on
// 16-byte boundaries. sizes: n_slices and n_rows of a batch, and `width` of each.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    gather__sum_nodes(const T* dy, const Entry* entries, ACC* sums, Key* starts,
                      const __grid_constant__ Items items, const __grid_constant__ Sizes sizes,
                      const __grid_constant__ Level level, const __grid_constant__ Parents parents,
                      Zeroed<u32>* tickets, u32 start_blocks) {
    segmented_sum::starts_and_nodes<WIDTH>(dy, entries, sums, starts, items, in_registers(sizes),
                                           in_registers(level), parents, tickets, start_blocks);
}
// Blocks 0 to start_blocks - 1: starts[row] = how many entries have a smaller key. The others:
// sums[node] = sum of the slices of dy of each node of this level of the tree that has one key, and
// of the level of `parents`, element by element, for rows that are not whole 16-byte vectors on
// 16-byte boundaries. entries: sorted by key; items: which nodes and columns a block has; tickets:
// counters of finished children. sizes: n_slices and n_rows of a batch, and `width` of each.
extern "C" __global__ void __launch_bounds__(THREADS, 2) gather__sum_nodes__scalar(
    const T* dy, const Entry* entries, ACC* sums, Key* starts, const __grid_constant__ Items items,
    const __grid_constant__ Sizes sizes, const __grid_constant__ Level level,
    const __grid_constant__ Parents parents, Zeroed<u32>* tickets, u32 start_blocks) {
    segmented_sum::starts_and_nodes</*N=*/1>(dy, entries, sums, starts, items, in_registers(sizes),
                                             in_registers(level), parents, tickets, start_blocks);
}
// dx[batch][row] = sum of the slices of dy whose key is the row, 0 if there are none. A thread sums
// a vector of columns of `count` rows; the first n_long items of the grid are long rows instead.
// entries: sorted by key, those of a row are [starts[row], starts[row + 1]). sums: those of the
// tree's n_nodes nodes in `levels` levels, and of edges. Rows are whole 16-byte vectors on 16-byte
// boundaries. sizes: n_slices and n_rows of a batch, and `width` of each.
extern "C" __global__ void __launch_bounds__(THREADS, SUM_BLOCKS)
    gather__sum_rows(const T* dy, const Entry* entries, const Key* starts, const ACC* sums, T* dx,
                     const __grid_constant__ Items items, const __grid_constant__ Sizes sizes,
                     i64 count, i64 n_nodes, i32 levels, i64 n_long) {
    segmented_sum::sum_rows<WIDTH>(dy, entries, starts, sums, dx, items, sizes, count, n_nodes,
                                   levels, n_long);
}
// dx[batch][row] = sum of the slices of dy whose key is the row, 0 if there are none, for rows that
// are not whole 16-byte vectors on 16-byte boundaries. A thread sums one column of `count` rows;
// the first n_long items of the grid are long rows instead. entries: sorted by key, those of a row
// are [starts[row], starts[row + 1]). sums: those of the tree's n_nodes nodes in `levels` levels,
// and of edges. sizes: n_slices and n_rows of a batch, and `width` of each.
extern "C" __global__ void __launch_bounds__(THREADS, SUM_BLOCKS)
    gather__sum_rows__scalar(const T* dy, const Entry* entries, const Key* starts, const ACC* sums,
                             T* dx, const __grid_constant__ Items items,
                             const __grid_constant__ Sizes sizes, i64 count, i64 n_nodes,
                             i32 levels, i64 n_long) {
    segmented_sum::sum_rows</*N=*/1>(dy, entries, starts, sums, dx, items, sizes, count, n_nodes,
                                     levels, n_long);
}
// y[i] = 0, i < n.
extern "C" __global__ void __launch_bounds__(THREADS) gather__zero(T* y, i64 n) {
    fill_with_zero(y, n);
}
// dx[i] = sums[i] rounded to T, i < n.
extern "C" __global__ void __launch_bounds__(THREADS) gather__round(const ACC* sums, T* dx, i64 n) {
    const bool aligned = vec::bytes_past_16(dx) == 0;
    map::map_vecs<RoundTiling>(aligned, sums, dx, n, n, Round{});
}
