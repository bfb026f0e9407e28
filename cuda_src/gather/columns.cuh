// SPDX-License-Identifier: MIT
// GatherElements' gradient along an axis before the last: an element of dY is added to its own
// column of dX, so only rows have to be sorted.
//
// A bucket is BUCKET_ROWS rows of dX in one column. Three launches: (1) count how many elements of
// a column go to each bucket, (2) move them there in the order of dY, (3) a warp adds those of a
// bucket (column_sums.cuh). In (1) and (2) a block has COLUMNS columns, a warp each, and one of
// `spans` spans of rows; lane b of a warp has the counts of bucket b.
//
// The entries that a tile of dY gives to a bucket are filled up with entries of +0 to a multiple of
// RUN, so that whole vectors are written; writing parts of 32-byte sectors would cost twice as
// much. An index out of range becomes an entry of +0, too.
//
// indices and dy are [sort.rows][sort.columns], a span is sort.span rows; a column of dY has room
// for sort.capacity entries. lines: `extent` and `stride` in dX of the axis, and those of other
// dimensions.
#pragma once
#include "algorithm/scan.cuh"
#include "core/vec.cuh"
#include "gather/facts.cuh"

namespace cto::columns {

using namespace facts::gather;
using vec::Vec;

constexpr int BLOCK = COLUMNS * WARP;    // threads of the first two launches
constexpr int ITEMS = TILE_ROWS / WARP;  // elements of a tile that a thread has
constexpr int RANK_BITS = TILE_ROWS <= 256 ? 8 : 16, RANKS = 32 / RANK_BITS;  // ranks in a register
// Loads in flight of a thread that moves entries, as many as registers allow.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ >= 1200)
constexpr int LOADS = 1;
#else
constexpr int LOADS = 2;
#endif
static_assert(BUCKETS == WARP);

__device__ __forceinline__ u32 lane() { return threadIdx.x % WARP; }
__device__ __forceinline__ u32 warp() { return threadIdx.x / WARP; }

// An element of dY of NBYTES, as bits, and the row of dX that it is added to; in one word if NBYTES
// is 2 (rows then have 16 bits).
template <int NBYTES>
struct Entry;
template <>
struct alignas(8) Entry<4> {
    u32 row, value;

    // row: of dX; bits: the element.
    static __device__ Entry of(u32 row, u32 bits) { return {row, bits}; }
    // The row of dX.
    __device__ u32 target() const { return row; }
    __device__ u32 bits() const { return value; }
};
template <>
struct alignas(4) Entry<2> {
    u32 both;

    // both = the row in the upper 16 bits, the element's bits in the lower ones.
    static __device__ Entry of(u32 row, u32 bits) { return {row << 16 | bits}; }
    // The row of dX.
    __device__ u32 target() const { return both >> 16; }
    __device__ u32 bits() const { return both & 0xFFFFu; }
};
template <class T>
using EntryOf = Entry<sizeof(T) == 2 ? 2 : 4>;

// The bucket of an entry's row.
template <int NBYTES>
__device__ __forceinline__ u32 bucket_of(const Entry<NBYTES>& entry) {
    return entry.target() / BUCKET_ROWS % BUCKETS;
}

// The number with these bits in the type of the second argument, as a float.
__device__ __forceinline__ float value_of(u32 bits, float) { return __uint_as_float(bits); }
__device__ __forceinline__ float value_of(u32 bits, __half) {
    return to_acc(__ushort_as_half(static_cast<u16>(bits)));
}
__device__ __forceinline__ float value_of(u32 bits, __nv_bfloat16) {
    return to_acc(__ushort_as_bfloat16(static_cast<u16>(bits)));
}

// The part of dY that a block has: COLUMNS columns from `column` on, rows [first, end), which are
// span number `span`. Block number = column / COLUMNS * spans + span.
struct Part {
    i64 column;
    u32 first, end, span;

    // The part of this block; sort: columns and rows of dY, rows of a span, and how many spans.
    __device__ explicit Part(const ColumnSort& sort) {
        const u32 strip = blockIdx.x / sort.spans;
        span = blockIdx.x - strip * sort.spans;
        column = static_cast<i64>(strip) * COLUMNS;
        first = span * sort.span;
        end = min(first + sort.span, static_cast<u32>(sort.rows));
    }
};

// The place of counts[column][span][lane()].
__device__ __forceinline__ i64 count_at(i64 column, u32 span, const ColumnSort& sort) {
    return (column * sort.spans + span) * BUCKETS + lane();
}

// The row of dX that an element of row `row` of dY is added to if its index is 0: the sum of
// coordinate times stride over the dimensions that a row's number counts (`lines.extents`), the
// last one first.
__device__ __forceinline__ u32 first_row(u32 row, const Lines& lines) {
    u32 to = 0;
#pragma unroll 1
    for (i32 j = static_cast<i32>(lines.n_outer) - 1; j > 0; --j) {
        const u32 extent = static_cast<u32>(lines.extents[j]), rest = row / extent;
        to += (row - rest * extent) * static_cast<u32>(lines.strides[j]);
        row = rest;
    }
    return to + row * static_cast<u32>(lines.strides[0]);
}

// {row of dX, bits of `value`} of an element of dY with this index, {0, 0} for an index out of
// range; first_row: the row for index 0, to which the index adds index * lines.stride.
template <class T>
__device__ __forceinline__ EntryOf<T> entry_of(i64 index, T value, u32 first_row,
                                               const Lines& lines) {
    const i64 i = index < 0 ? index + lines.extent : index;
    const bool exists = i >= 0 && i < lines.extent;
    return exists ? EntryOf<T>::of(first_row + static_cast<u32>(i) * static_cast<u32>(lines.stride),
                                   static_cast<u32>(bits_of(value)))
                  : EntryOf<T>::of(0, 0);
}

// ---- first launch -------------------------------------------------------------------------------

// `count` rounded up to whole runs.
__device__ __forceinline__ u32 in_runs(u32 count) { return (count + RUN - 1) / RUN * RUN; }

// index[j] = the index at row first + j * WARP of the thread's column, for rows before `end`;
// `indices` points to row 0 of that column, rows are `columns` elements apart.
template <class Index>
__device__ __forceinline__ void load_rows(const Index* __restrict__ indices, u32 first, u32 end,
                                          i64 columns, Index (&index)[ITEMS]) {
#pragma unroll
    for (int j = 0; j < ITEMS; ++j)
        if (first + j * WARP < end) index[j] = indices[(first + j * WARP) * columns];
}

// counts[column][span][bucket] = entries that the span gives to the bucket; those of each tile are
// rounded up to whole runs. Threads read rows: thread t has column t % COLUMNS; then each warp adds
// up the counts of its own column, lane b of bucket b. Two histograms, used in turn, so that one
// barrier a tile is enough. The indices of the next tile are loaded before this one is counted.
// sort: rows and columns of dY, and its spans; histogram: shared memory.
template <class Index>
__device__ __forceinline__ void count_buckets(const Index* __restrict__ indices, const Lines& lines,
                                              u32* __restrict__ counts, const ColumnSort& sort,
                                              u32 (&histogram)[2][COLUMNS][BUCKETS]) {
    const Part part(sort);
    histogram[0][warp()][lane()] = histogram[1][warp()][lane()] = 0;
    __syncthreads();
    const u32 own = threadIdx.x % COLUMNS;
    indices += part.column + own;
    const u32 end = part.column + own < sort.columns ? part.end : 0;
    Index next[ITEMS]{};
    load_rows(indices, part.first + threadIdx.x / COLUMNS, end, sort.columns, next);
    u32 total = 0;
    int place = 0;
    for (u32 tile = part.first; tile < part.end; tile += TILE_ROWS, place ^= 1) {
        const u32 first = tile + threadIdx.x / COLUMNS;
        Index index[ITEMS];
#pragma unroll
        for (int j = 0; j < ITEMS; ++j) index[j] = next[j];
        load_rows(indices, first + TILE_ROWS, end, sort.columns, next);
#pragma unroll
        for (int j = 0; j < ITEMS; ++j) {
            const u32 row = first + j * WARP;
            if (row >= end) break;
            const u32 to = entry_of(index[j], 0.0f, first_row(row, lines), lines).row;
            atomicAdd(&histogram[place][own][to / BUCKET_ROWS], 1u);
        }
        __syncthreads();
        total += in_runs(histogram[place][warp()][lane()]);
        histogram[place][warp()][lane()] = 0;
    }
    const i64 column = part.column + warp();
    if (column < sort.columns) counts[count_at(column, part.span, sort)] = total;
}

// ---- second launch ------------------------------------------------------------------------------

// The entries of a tile of dY, column by column, with room for the +0 entries that fill runs up.
template <class T>
struct Tile {
    alignas(16) EntryOf<T> at[COLUMNS][TILE_ROWS + (RUN - 1) * BUCKETS + 16 / sizeof(EntryOf<T>)];
};

// entries.at[c][r] = {row of dX, value} of the element of dY in row tile + r of column c of the
// block, r < TILE_ROWS, for rows before `end`; indices and dy begin at the block's first column,
// rows are `columns` elements apart. Neighbouring threads load neighbouring columns.
template <class T, class Index>
__device__ __forceinline__ void load_tile(const Index* __restrict__ indices,
                                          const T* __restrict__ dy, const Lines& lines, u32 tile,
                                          u32 end, i64 columns, Tile<T>& entries) {
    const u32 own = threadIdx.x % COLUMNS;
#pragma unroll 1
    for (u32 first = threadIdx.x / COLUMNS; first < TILE_ROWS; first += LOADS * WARP) {
        Index index[LOADS];
        T value[LOADS];
#pragma unroll
        for (int j = 0; j < LOADS; ++j) {
            const u32 row = tile + first + j * WARP;
            if (row >= end) continue;
            index[j] = __ldcs(indices + row * columns + own);
            value[j] = __ldcs(dy + row * columns + own);
        }
#pragma unroll
        for (int j = 0; j < LOADS; ++j) {
            const u32 row = tile + first + j * WARP;
            if (row >= end) break;
            entries.at[own][first + j * WARP] =
                entry_of(index[j], value[j], first_row(row, lines), lines);
        }
    }
}

// Returns where the first entry that span own_span of a column gives to bucket lane() goes in the
// column's entries: after those of smaller buckets, and those of earlier spans in this bucket.
// counts[column][span][bucket]: from count_buckets.
__device__ __forceinline__ u32 first_destination(const u32* __restrict__ counts, i64 column,
                                                 u32 own_span, const ColumnSort& sort) {
    u32 total = 0, earlier = 0;
    for (u32 span = 0; span < sort.spans; ++span) {
        const u32 count = counts[count_at(column, span, sort)];
        total += count;
        if (span < own_span) earlier += count;
    }
    return scan::sum_up_to_lane(total) - total + earlier;
}

// Sorts a column's entries of a tile by bucket, stably, and fills buckets up to whole runs; by a
// warp, in place in shared memory.
template <class T>
struct SortedColumn {
    using Entry = EntryOf<T>;
    u32 count;  // entries of bucket lane()
    u32 first;  // place of its first entry
    u32 n;      // entries of all buckets

    // Ranks each of the n_entries entries in its bucket, sums the counts of buckets up, and stores
    // the entries at first + rank, then +0 entries up to whole runs.
    __device__ __forceinline__ SortedColumn(Entry* entries, u32 n_entries) : count(0) {
        Entry entry[ITEMS];
        u32 ranks[ITEMS / RANKS] = {};
#pragma unroll
        for (int j = 0; j < ITEMS; ++j) {
            entry[j] = entries[lane() + j * WARP];
            ranks[j / RANKS] |= ranked(bucket_of(entry[j]), lane() + j * WARP < n_entries)
                                << RANK_BITS * (j % RANKS);
        }
        const u32 whole = in_runs(count), behind = scan::sum_up_to_lane(whole);
        first = behind - whole;
        n = __shfl_sync(ALL_LANES, behind, WARP - 1);
        __syncwarp();
#pragma unroll
        for (int j = 0; j < ITEMS; ++j) {
            const u32 rank = ranks[j / RANKS] >> RANK_BITS * (j % RANKS) & ((1u << RANK_BITS) - 1u);
            const u32 place = __shfl_sync(ALL_LANES, first, bucket_of(entry[j])) + rank;
            if (lane() + j * WARP < n_entries) entries[place] = entry[j];
        }
#pragma unroll
        for (u32 k = 0; k < RUN - 1; ++k)
            if (count + k < whole) entries[first + count + k] = Entry::of(lane() * BUCKET_ROWS, 0);
        count = whole;
        __syncwarp();
    }

  private:
    // Returns how many entries of this lane's `bucket` came before this one; adds the warp's valid
    // entries, one a lane, to `count` of each lane's bucket. same: lanes with an entry of this
    // lane's bucket; own: lanes with one of bucket lane(); both by a ballot for each bit of a
    // bucket.
    __device__ __forceinline__ u32 ranked(u32 bucket, bool valid) {
        u32 same = __ballot_sync(ALL_LANES, valid), own = same;
#pragma unroll
        for (u32 bit = 1; bit < BUCKETS; bit *= 2) {
            const u32 ones = __ballot_sync(ALL_LANES, bucket & bit);
            same &= bucket & bit ? ones : ~ones;
            own &= lane() & bit ? ones : ~ones;
        }
        const u32 rank =
            __shfl_sync(ALL_LANES, count, bucket) + __popc(same & ((1u << lane()) - 1u));
        count += __popc(own);
        return rank;
    }
};

// to[column][0 .. capacity) = the column's entries by bucket, in the order of dY in a bucket;
// counts: from count_buckets. A block loads a tile of indices and dy to shared memory (`entries`),
// each warp sorts one of its columns and writes it by vectors. Lane b knows where bucket b goes:
// entry i of the sorted tile goes to place i + shift of its bucket's lane.
template <class T, class Index>
__device__ __forceinline__ void move_to_buckets(const Index* __restrict__ indices,
                                                const T* __restrict__ dy, const Lines& lines,
                                                const u32* __restrict__ counts,
                                                EntryOf<T>* __restrict__ to, const ColumnSort& sort,
                                                Tile<T>& entries) {
    const Part part(sort);
    const i64 column = part.column + warp();
    const u32 loaded_end =  // for the column that this thread loads
        part.column + threadIdx.x % COLUMNS < sort.columns ? part.end : 0;
    u32 destination =
        column < sort.columns ? first_destination(counts, column, part.span, sort) : 0;
    indices += part.column;
    dy += part.column;
    to += column * sort.capacity;
    constexpr int N = 16 / sizeof(EntryOf<T>);
    static_assert(RUN % N == 0);
    EntryOf<T>* const own = entries.at[warp()];
    for (u32 tile = part.first; tile < part.end; tile += TILE_ROWS) {
        load_tile(indices, dy, lines, tile, loaded_end, sort.columns, entries);
        __syncthreads();
        const SortedColumn<T> sorted(own,
                                     column < sort.columns ? min(part.end - tile, TILE_ROWS) : 0);
        const u32 shift = destination - sorted.first;
        for (u32 first = 0; first < sorted.n; first += WARP * N) {
            const u32 i = first + lane() * N;
            Vec<EntryOf<T>, N> entries_of_run{};
            if (i < sorted.n)
                entries_of_run = *reinterpret_cast<const Vec<EntryOf<T>, N>*>(own + i);
            const u32 own_shift = __shfl_sync(ALL_LANES, shift, bucket_of(entries_of_run.at[0]));
            if (i < sorted.n)
                *reinterpret_cast<Vec<EntryOf<T>, N>*>(to + static_cast<u32>(own_shift + i)) =
                    entries_of_run;
        }
        destination += sorted.count;
        __syncthreads();
    }
}

}  // namespace cto::columns
