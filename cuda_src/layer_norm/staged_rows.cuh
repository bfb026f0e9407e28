// SPDX-License-Identifier: MIT
// Loops over rows of matrices with asynchronous copies: while a row is used, the next ones are
// copied to shared memory.
//
// A block has `groups` groups of `threads` threads; each group has a row at a time. A row is
// divided into slots of W neighbouring elements, which the threads of the group share. A thread has
// the same columns in every row, so it can sum over rows in registers.
//
//     W > 1   slots begin at multiples of 16 bytes; a thread copies the slots that it reads itself,
//             so no barrier is needed. In SHIFTED rows the start of a row is not aligned: the
//             elements before the first slot and after the last, the edges, have one thread each.
//             All rows of a thread have the same number of edges
//     W = 1   rows begin anywhere; the group copies the aligned 16-byte words that contain the row,
//             and waits at a barrier before it reads elements
//
// Rows says how: `count` rows of `length` elements; a row has `slots` slots, a thread up to `depth`
// of them; shared memory has `stages` rows of each group. walk: the thread's place in the loop, a
// Walk.
#pragma once
#include "core/async_copy.cuh"
#include "core/vec.cuh"
#include "layer_norm/facts.cuh"
#include "layer_norm/group_barrier.cuh"

namespace cto::staged_rows {

using namespace facts::layer_norm;
using vec::Vec;

// Largest number of slots of a thread; half of it in SHIFTED rows.
template <class A, int W>
constexpr int DEPTH = (W > 1 ? VECTOR_COLUMNS<sizeof(A)> : SINGLE_COLUMNS<sizeof(A)>) / W;

// Elements of a slot: as many as fit into 16 bytes in both types.
template <class E, class F>
constexpr int WIDTH = 16 / (sizeof(E) > sizeof(F) ? sizeof(E) : sizeof(F));

// The state of a thread's loop over rows: which row, and which of its slots are the thread's. With
//     period = rows.period if SHIFTED, else 1
// group g of block b has rows (b / period * groups + g) * period + b % period + k * step(), k = 0,
// 1, ... Rows `period` apart begin at the same address modulo 16, and so all rows of a block do.
template <int W, bool SHIFTED = false>
struct Walk {
    const Rows& rows;
    u32 group, thread;  // the group of the thread, and its number in the group
    i64 row;            // the current row, which may be past the last
    i32 end;            // the thread's slots are below this
    i32 head = 0;       // elements before the first slot
    i32 stage = 0;      // buffer in shared memory of the current row

    static constexpr bool IS_SHIFTED = SHIFTED;

    // The thread's first row, by the formula above, and its slots: up to the row's last, with W = 1
    // also up to its warp's last.
    __device__ __forceinline__ explicit Walk(const Rows& rows) : rows(rows) {
        group = threadIdx.x / rows.threads;
        thread = threadIdx.x - group * rows.threads;
        const u32 period = SHIFTED ? rows.period : 1, round = blockIdx.x / period;
        row = (static_cast<i64>(round) * rows.groups + group) * period + blockIdx.x % period;
        const i32 of_warps = (thread / WARP + 1) * (WARP * rows.depth);
        end = W > 1 || rows.slots < of_warps ? rows.slots : of_warps;
        if constexpr (SHIFTED) {
            head = static_cast<i32>(-(row * rows.length) & (W - 1));
            end = static_cast<i32>((rows.length - head) / W);
        }
    }
    // Rows from one of the thread's to its next.
    __device__ i64 step() const { return static_cast<i64>(gridDim.x) * rows.groups; }
    // True if some group of the block has a row left.
    __device__ bool goes_on() const {
        return row - group * (SHIFTED ? rows.period : 1) < rows.count;
    }
    // The number in the row of the thread's slot u. With W = 1 a warp has neighbouring slots.
    __device__ __forceinline__ i32 slot(int u) const {
        if constexpr (W > 1) return thread + u * rows.threads;
        return thread / WARP * (WARP * rows.depth) + thread % WARP + u * WARP;
    }
    __device__ bool has(int u) const { return slot(u) < end; }
    // The thread's slots of row any_row are below this: none past the last row.
    __device__ i32 end_of(i64 any_row) const { return any_row < rows.count ? end : 0; }
    // First column of slot u.
    __device__ i64 column(int u) const { return (SHIFTED ? head : 0) + slot(u) * W; }
    // Index in the array of the first element of slot u in row any_row.
    __device__ i64 start(i64 any_row, int u) const { return any_row * rows.length + column(u); }
    // The column of this thread before or after the slots, or -1.
    __device__ i32 edge() const {
        const i32 in_slots = end * W, n_edges = static_cast<i32>(rows.length) - in_slots;
        const i32 own = static_cast<i32>(thread);
        return !SHIFTED || own >= n_edges ? -1 : own < head ? own : own + in_slots;
    }
    // The row whose copies begin while the current one is used: with W > 1 each slot, once read, is
    // replaced by that of the row `stages` later, in the same buffer; with W = 1 the next row is
    // copied to the other of two buffers.
    __device__ i64 later() const { return row + (W > 1 ? rows.stages : 1) * step(); }
    // Goes on to the thread's next row, and to its stage of the ring in shared memory.
    __device__ void advance() {
        row += step();
        stage = stage + 1 < rows.stages ? stage + 1 : 0;
    }
    // Waits for the current row's copies; with W > 1 those of the row after it may go on. With W =
    // 1 also a barrier: other threads made some of the copies, and may still read the row before.
    __device__ __forceinline__ void arrive() const {
        if (W > 1 && rows.stages > 1) {
            async_copy::wait<1>();
            return;
        }
        async_copy::wait<0>();
        if constexpr (W == 1) {
            if (rows.threads > WARP)
                __syncthreads();
            else
                __syncwarp();
        }
    }
};

// One array, and its buffers of rows in shared memory.
template <class E, int W>
struct Staged {
    using Type = E;
    static constexpr u32 SLOT_NBYTES = W * sizeof(E);

    const E* array;
    u8* own;  // in stage 0: this thread's first slot, or with W = 1 its group's row

    // Allocates the buffers at `shared`, and moves `shared` past them.
    template <bool SHIFTED>
    __device__ __forceinline__ Staged(const E* array, const Walk<W, SHIFTED>& walk, u8*& shared)
        : array(array) {
        own = shared + (W > 1 ? threadIdx.x * SLOT_NBYTES : walk.group * pitch(walk.rows));
        shared += walk.rows.stages * stage_nbytes(walk.rows);
    }
    // Bytes of a row's buffer with W = 1: 16-byte words for a row that begins anywhere in one.
    static __device__ u32 pitch(const Rows& rows) {
        return (static_cast<u32>(rows.length * sizeof(E)) + 15u) / 16u * 16u + 16u;
    }
    // Bytes of a stage: one row of each group of the block.
    static __device__ u32 stage_nbytes(const Rows& rows) {
        return W > 1 ? rows.depth * blockDim.x * SLOT_NBYTES : rows.groups * pitch(rows);
    }
    // `own` in stage `stage`.
    __device__ __forceinline__ u8* in_stage(const Rows& rows, i32 stage) const {
        return own + stage * stage_nbytes(rows);
    }
    // The place of the thread's slot u in a stage, for W > 1: a block's threads have neighbouring
    // ones.
    __device__ __forceinline__ u8* slot(const Rows& rows, int u, i32 stage) const {
        return in_stage(rows, stage) + u * blockDim.x * SLOT_NBYTES;
    }
    // Begins to copy slot u of a row to a stage; nothing if the row has no such slot.
    template <bool SHIFTED>
    __device__ __forceinline__ void start(const Walk<W, SHIFTED>& walk, i64 row, int u,
                                          i32 stage) const {
        if (walk.slot(u) < walk.end_of(row))
            async_copy::copy<SLOT_NBYTES>(slot(walk.rows, u, stage), array + walk.start(row, u));
    }
    // Begins to copy the 16-byte words that contain row number `row` to stage `stage`. Of the first
    // and last word only the row's elements are copied, one by one, as the rest may be outside the
    // array.
    __device__ __forceinline__ void start_words(const Walk<W>& walk, i64 row, i32 stage) const {
        if (row >= walk.rows.count) return;
        const E* const begin = array + row * walk.rows.length;
        const u32 before = vec::bytes_past_16(begin) / sizeof(E), end = before + walk.rows.slots;
        constexpr u32 N = vec::WIDTH<E>;
        E* const to = reinterpret_cast<E*>(in_stage(walk.rows, stage));
#pragma unroll 2
        for (u32 first = walk.thread * N; first < end; first += walk.rows.threads * N) {
            if (first >= before && first + N <= end) {
                async_copy::copy<16>(to + first, begin + (first - before));
            } else {
#pragma unroll 1
                for (u32 i = first; i < first + N; ++i)
                    if (i >= before && i < end) to[i] = begin[i - before];
            }
        }
    }
    // to[i] = element i of slot u of the current row, from shared memory.
    template <bool SHIFTED>
    __device__ __forceinline__ void read(const Walk<W, SHIFTED>& walk, int u,
                                         Acc<E> (&to)[W]) const {
        if constexpr (W > 1) {
            vec::widen<E>(slot(walk.rows, u, walk.stage), to);
        } else {
            const u32 before = vec::bytes_past_16(array + walk.row * walk.rows.length);
            const u8* const row = in_stage(walk.rows, walk.stage) + before;
            to[0] = to_acc(reinterpret_cast<const E*>(row)[walk.slot(u)]);
        }
    }
};

// Begins the copies of the first rows of `arrays`, a row for each stage. D: slots of a thread at
// most.
template <int D, int W, bool SHIFTED, class... E>
__device__ __forceinline__ void start_first(const Walk<W, SHIFTED>& walk,
                                            const Staged<E, W>&... arrays) {
    if constexpr (W == 1) {
        (arrays.start_words(walk, walk.row, /*stage=*/0), ...);
        async_copy::commit();
    } else {
        for (i32 stage = 0; stage < walk.rows.stages; ++stage) {
#pragma unroll
            for (int u = 0; u < D; ++u)
                (arrays.start(walk, walk.row + stage * walk.step(), u, stage), ...);
            async_copy::commit();
        }
    }
}

// Waits for the current row of all `arrays`; with W = 1, then begins the copies of the next one.
template <int W, bool SHIFTED, class... E>
__device__ __forceinline__ void arrive(const Walk<W, SHIFTED>& walk,
                                       const Staged<E, W>&... arrays) {
    walk.arrive();
    if constexpr (W == 1) {
        (arrays.start_words(walk, walk.later(), 1 - walk.stage), ...);
        async_copy::commit();
    }
}

// With W > 1: slot u of the current row has been read for the last time, so begins to copy the one
// of the later row that takes its place.
template <int W, bool SHIFTED, class... E>
__device__ __forceinline__ void replace(const Walk<W, SHIFTED>& walk, int u,
                                        const Staged<E, W>&... arrays) {
    if constexpr (W > 1) (arrays.start(walk, walk.later(), u, walk.stage), ...);
}

// Goes on to the next row.
template <int W, bool SHIFTED>
__device__ __forceinline__ void leave(Walk<W, SHIFTED>& walk) {
    if constexpr (W > 1) async_copy::commit();
    walk.advance();
}

// values[i] = sum of values[i] over the threads of a row, in each of them, i < N. Calls use the two
// halves of per_warp in turn, so one barrier a call is enough: slower warps still read the other
// half. OF_BLOCK: the block is one group; else groups use one of the hardware's few named barriers
// each.
template <class A, int N, bool OF_BLOCK>
struct RowSums {
    A (&per_warp)[2][N][WARP];  // shared memory
    u32 threads, group;
    u32 half = 0;

    // values[i] = its sum over the threads of a row, in each of them.
    __device__ __forceinline__ void operator()(A (&values)[N]) {
        over_lanes(values, threads < WARP ? threads : WARP);
        if (threads <= WARP) return;
        const u32 lane = threadIdx.x % WARP, n_warps = threads / WARP, first = group * n_warps;
        half ^= 1;
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (lane == 0) per_warp[half][i][threadIdx.x / WARP] = values[i];
        if (OF_BLOCK)
            __syncthreads();
        else
            group_barrier::sync(group, threads);
#pragma unroll
        for (int i = 0; i < N; ++i)
            values[i] = lane < n_warps ? per_warp[half][i][first + lane] : A(0);
        over_lanes(values, WARP);
    }

  private:
    // values[i] = its sum over `lanes` neighbouring lanes.
    static __device__ __forceinline__ void over_lanes(A (&values)[N], u32 lanes) {
#pragma unroll 1
        for (u32 step = 1; step < lanes; step *= 2)
#pragma unroll
            for (int i = 0; i < N; ++i) values[i] += __shfl_xor_sync(ALL_LANES, values[i], step);
    }
};

// of_columns[i] = its sum over the lanes of a warp that have the same columns of different rows:
// lanes `threads` apart, the threads of a row; nothing for threads >= WARP.
template <class A, int N>
__device__ __forceinline__ void sum_same_columns(u32 threads, A (&of_columns)[N]) {
#pragma unroll 1
    for (u32 step = threads; step < WARP; step *= 2)
#pragma unroll
        for (int i = 0; i < N; ++i)
            of_columns[i] += __shfl_xor_sync(ALL_LANES, of_columns[i], step);
}

// Sums over rows, in type A, of a thread's columns: of its D slots of W columns, and of its edge.
template <class A, int W, int D>
struct ColumnSums {
    Vec<A, W> per_slot[D] = {};
    A of_edge[1] = {};

    // sums[blockIdx.x][column] = sum over all rows of the block, nothing if `sums` is null. Groups
    // in one warp are added by shuffles; others, `sharers` of them, each write a line to `shared`,
    // over its rows, and these lines are added. With one sharer no line is needed.
    template <class AWalk>
    __device__ __forceinline__ void store(const AWalk& walk, A* sums, u8* shared) {
        if (!sums) return;
        const u32 threads = walk.rows.threads > WARP ? walk.rows.threads : WARP;
        const u32 sharers = blockDim.x / threads;
        A* const line = sums + blockIdx.x * walk.rows.length;
        A* const of_sharer = reinterpret_cast<A*>(shared);
#pragma unroll
        for (int u = 0; u < D; ++u) sum_same_columns(walk.rows.threads, per_slot[u].at);
        if (AWalk::IS_SHIFTED) sum_same_columns(walk.rows.threads, of_edge);
        __syncthreads();
        if (threadIdx.x % threads < walk.rows.threads)
            put(walk, sharers == 1 ? line : of_sharer + threadIdx.x / threads * walk.rows.length);
        if (sharers == 1) return;
        __syncthreads();
        for (i32 column = threadIdx.x; column < walk.rows.length; column += blockDim.x) {
            A sum = 0;
            for (u32 other = 0; other < sharers; ++other)
                sum += of_sharer[other * walk.rows.length + column];
            line[column] = sum;
        }
    }

  private:
    // to[column] = the thread's sum of each of its columns, those of its slots and of its edge.
    template <class AWalk>
    __device__ __forceinline__ void put(const AWalk& walk, A* to) const {
        constexpr bool SHIFTED = AWalk::IS_SHIFTED;
#pragma unroll
        for (int u = 0; u < D; ++u) {
            if (!walk.has(u)) continue;
            A* const slot = to + walk.column(u);
            if constexpr (!SHIFTED) *reinterpret_cast<Vec<A, W>*>(slot) = per_slot[u];
#pragma unroll
            for (int i = 0; SHIFTED && i < W; ++i) slot[i] = per_slot[u].at[i];
        }
        if (SHIFTED && walk.edge() >= 0) to[walk.edge()] = of_edge[0];
    }
};

// Scale or bias of the slots of SHIFTED rows, in shared memory as accumulators: slots are not
// aligned in the array itself. Chunks of 16 bytes lie so that a warp's accesses have no bank
// conflicts.
template <class A, int W>
struct InShared {
    static constexpr int CHUNK = 16 / sizeof(A), CHUNKS = W < CHUNK ? 1 : W / CHUNK;
    using Chunk = Vec < A, W<CHUNK ? W : CHUNK>;

    Chunk* own;  // this thread's first chunk

    // Copies the scale or bias `from` to memory at `shared`, and moves `shared` past it. The groups
    // of a block fill it together; a barrier must follow.
    template <class E>
    __device__ __forceinline__ InShared(const E* from, const Walk<W, /*SHIFTED=*/true>& walk,
                                        u8*& shared)
        : own(reinterpret_cast<Chunk*>(shared) + walk.thread) {
        const i32 threads = walk.rows.threads;
        shared += walk.rows.depth * CHUNKS * threads * sizeof(Chunk);
        for (i32 u = walk.group; u < walk.rows.depth; u += walk.rows.groups) {
            if (walk.slot(u) >= walk.end) continue;
#pragma unroll
            for (int i = 0; i < W; ++i)
                own[(u * CHUNKS + i / CHUNK) * threads].at[i % CHUNK] =
                    to_acc(from[walk.column(u) + i]);
        }
    }
    // to[i] = the number of column i of slot u, from shared memory.
    __device__ __forceinline__ void read(const Walk<W, /*SHIFTED=*/true>& walk, int u,
                                         A (&to)[W]) const {
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const Chunk chunk = own[(u * CHUNKS + c) * walk.rows.threads];
#pragma unroll
            for (int i = 0; i < W / CHUNKS; ++i) to[c * CHUNK + i] = chunk.at[i];
        }
    }
};

}  // namespace cto::staged_rows
