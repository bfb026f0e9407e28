// SPDX-License-Identifier: MIT
// Sums of the entries that columns.cuh moves to buckets: a warp adds the entries of one bucket,
// which has BUCKET_ROWS rows of one column of dX, in shared memory.
#pragma once
#include "gather/columns.cuh"

namespace cto::column_sums {

using namespace columns;

constexpr int SUM_BATCH = 8;  // loads of a thread in flight together

// The sums of one bucket: at[row] is that of row `row` of the bucket.
template <class A>
struct Sums {
    A at[PADDED_ROWS];
};

// A lane that is adding to a sum leaves this mark in its place: a signalling NaN with the lane's
// number. No addition gives a signalling NaN, so a sum is never mistaken for a mark.
constexpr u32 LOCKED = 0x7F800000u | WARP;
__device__ __forceinline__ float lock_of(u32 lane) { return __uint_as_float(LOCKED | lane); }
__device__ __forceinline__ bool is_locked(float sum) {
    return (__float_as_uint(sum) & ~(WARP - 1u)) == LOCKED;
}
__device__ __forceinline__ u32 holder_of(float sum) { return __float_as_uint(sum) & (WARP - 1u); }

// lanes: a mask of lanes, among them this one. In the first of them, value = sum of the values of
// all of them, in order; in others `value` stays.
template <class A>
__device__ __forceinline__ void sum_of_lanes(u32 lanes, A& value) {
    const bool is_first = (lanes & ((1u << lane()) - 1u)) == 0;
    u32 left = is_first ? lanes & (lanes - 1u) : 0u;
    A sum = value;
    while (__any_sync(ALL_LANES, left != 0)) {
        const A other = __shfl_sync(ALL_LANES, value, left ? __ffs(static_cast<int>(left)) - 1 : 0);
        if (left) sum += other;
        left &= left - 1u;
    }
    value = sum;
}

// sums += the n entries of a bucket, 32 at a time, in a fixed order where several have one row.
template <class T>
struct BucketSums {
    Sums<Acc<T>>& sums;
    const EntryOf<T>* from;
    u32 n;

    // entries[j] = from[first + j * WARP + lane()].
    __device__ __forceinline__ void load(EntryOf<T> (&entries)[SUM_BATCH], u32 first) const {
#pragma unroll
        for (int j = 0; j < SUM_BATCH; ++j)
            if (first + j * WARP + lane() < n) entries[j] = from[first + j * WARP + lane()];
    }
    // For the `valid` lanes, of which several have one row: one of them, for which it returns true,
    // gets the row's sum in `sum` and the sum of their values in `value`. `sum` is what each lane
    // swapped out of sums.at[row]; it is `late` if that is the mark of a lane `before` it. Of two
    // lanes it is the one that came second, a + b being b + a. Three or more (a late lane before a
    // late one), which is rare, are summed in the order of lanes.
    __device__ __forceinline__ bool shares(u32 row, bool valid, float& sum, float& value) const {
        __syncwarp();
        const bool late = is_locked(sum);
        const u32 before = late ? holder_of(sum) : lane(),
                  all_late = __ballot_sync(ALL_LANES, late);
        if (__any_sync(ALL_LANES, late && (all_late >> before & 1u))) {
            const u32 same = __match_any_sync(ALL_LANES, valid ? row : BUCKET_ROWS + lane());
            sum_of_lanes(same, value);
            const u32 in_time = same & ~all_late;
            sum = __shfl_sync(ALL_LANES, sum, __ffs(static_cast<int>(in_time)) - 1);
            return valid && (same & ((1u << lane()) - 1u)) == 0;
        }
        const bool is_last = valid && holder_of(sums.at[row]) == lane();
        __syncwarp();
        const float other = __shfl_sync(ALL_LANES, value, before);
        sum = __shfl_sync(ALL_LANES, sum, before);
        if (late) value += other;
        return is_last;
    }
    // sums[row of the entry] += its value, for the entries of all lanes at once; without `valid` a
    // lane has none. A lane swaps the sum for its mark (lock_of); a lane that finds a mark shares
    // its row with another.
    __device__ __forceinline__ void add(const EntryOf<T>& entry, bool valid) const {
        const u32 row = entry.target() % BUCKET_ROWS;
        float value = value_of(entry.bits(), T()), sum = 0;
        valid = valid && entry.bits() != 0;
        if (valid) sum = atomicExch(&sums.at[row], lock_of(lane()));
        if (__any_sync(ALL_LANES, is_locked(sum))) valid = shares(row, valid, sum, value);
        if (valid) sums.at[row] = sum + value;
        __syncwarp();
    }
    // Adds all n entries; the next ones are loaded meanwhile.
    __device__ __forceinline__ void add_all() const {
        EntryOf<T> next[SUM_BATCH]{}, entries[SUM_BATCH];
        load(next, 0);
        for (u32 first = 0; first < n; first += SUM_BATCH * WARP) {
#pragma unroll
            for (int j = 0; j < SUM_BATCH; ++j) entries[j] = next[j];
            load(next, first + SUM_BATCH * WARP);
            vec::all_are_asked_for();
#pragma unroll
            for (int j = 0; j < SUM_BATCH; ++j) {
                if (first + j * WARP >= n) break;
                add(entries[j], first + j * WARP + lane() < n);
            }
        }
    }
};

// dx[first_row + row][first_column + c] = sums[c].at[row], rounded, row < BUCKET_ROWS, c <
// SUM_COLUMNS; dx has n_rows rows of `width` columns. By vectors of columns if aligned.
template <class T>
__device__ __forceinline__ void store_rows(const Sums<Acc<T>>* sums, T* __restrict__ dx,
                                           i64 first_row, i64 first_column, i64 n_rows, i64 width) {
    constexpr int N = vec::WIDTH<T>, VECS = SUM_COLUMNS / N;
    const bool by_vectors = width % N == 0 && vec::bytes_past_16(dx) == 0;
    for (u32 i = threadIdx.x; i < BUCKET_ROWS * VECS; i += SUM_COLUMNS * WARP) {
        const u32 row = i / VECS, own = i % VECS * N;
        const i64 column = first_column + own;
        if (first_row + row >= n_rows || column >= width) continue;
        Acc<T> of_row[N];
#pragma unroll
        for (int k = 0; k < N; ++k) of_row[k] = sums[own + k].at[row];
        const Vec<T, N> rounded = vec::from_acc<T>(of_row);
        T* const to = dx + (first_row + row) * width + column;
        if (by_vectors)
            *reinterpret_cast<Vec<T, N>*>(to) = rounded;
        else
            vec::store_elements<T, N>(to, 0, width - column, rounded);
    }
}

// dx[row][column], [n_rows][width], = sum of the entries of the column with this row; 0 if there
// are none. A block has one bucket of SUM_COLUMNS columns, a warp each. Lane b adds up how many
// entries bucket b of the column has, from counts[column][span][b]: the sum over smaller buckets is
// where the block's bucket begins. sums: shared memory, for each warp. sort: rows of dY cut into
// spans, and room of a column.
template <class T>
__device__ __forceinline__ void sum_buckets(const EntryOf<T>* __restrict__ entries,
                                            const u32* __restrict__ counts, T* __restrict__ dx,
                                            i64 n_rows, i64 width, const ColumnSort& sort,
                                            Sums<Acc<T>>* sums) {
    const u32 strips = static_cast<u32>((width + SUM_COLUMNS - 1) / SUM_COLUMNS);
    const u32 bucket = blockIdx.x / strips, strip = blockIdx.x - bucket * strips;
    const i64 first_column = static_cast<i64>(strip) * SUM_COLUMNS, column = first_column + warp();
    for (u32 row = lane(); row < BUCKET_ROWS; row += WARP) sums[warp()].at[row] = 0;
    __syncwarp();
    if (column < sort.columns) {
        u32 total = 0;
        for (u32 span = 0; span < sort.spans; ++span) total += counts[count_at(column, span, sort)];
        const u32 before = scan::sum_up_to_lane(total) - total;
        const u32 begin = __shfl_sync(ALL_LANES, before, bucket);
        const u32 n = __shfl_sync(ALL_LANES, total, bucket);
        BucketSums<T>{sums[warp()], entries + column * sort.capacity + begin, n}.add_all();
    }
    __syncthreads();
    store_rows(sums, dx, static_cast<i64>(bucket) * BUCKET_ROWS, first_column, n_rows, width);
}

}  // namespace cto::column_sums
