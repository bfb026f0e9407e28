// SPDX-License-Identifier: MIT
// Stable radix sort of (key, position) entries, the least significant digit first, two launches a
// digit.
//
// Each block owns a span of the entries, whole tiles of it. The first launch counts the digits of
// every span; the second sums those counts to know where each digit of its own span goes, and moves
// the entries tile by tile. No block waits for another, and the result depends on the keys alone.
#pragma once
#include "include/types.cuh"

#ifndef CTO_KEY
#define CTO_KEY u32
#endif

namespace cto {

using Key = CTO_KEY;

constexpr int SORT_THREADS = 512;
constexpr int SORT_WARPS = SORT_THREADS / WARP;
constexpr int SORT_ITEMS = 4;  // entries of a tile that one thread moves
constexpr int SORT_TILE = SORT_THREADS * SORT_ITEMS;
constexpr int RADIX = SORT_THREADS;  // digits at most: a thread looks after one of them
constexpr int COUNT_UNROLL =
    sizeof(Key) == 4 ? 4 : 1;  // 64-bit divisions leave no registers for more

struct alignas(2 * sizeof(Key)) Entry {
    Key key, position;
};

// One digit of the keys, and the entries of a block: [first, end).
struct Pass {
    i64 n, span;  // of all entries; of one block, a multiple of SORT_TILE
    i32 shift, bits;

    __device__ u32 radix() const { return 1u << bits; }
    __device__ u32 digit(Key key) const { return static_cast<u32>(key >> shift) & (radix() - 1); }
    __device__ i64 first() const { return blockIdx.x * span; }
    __device__ i64 end() const { return min(first() + span, n); }
};

// counts[block][digit] = how many of the block's keys have the digit; key_at(i) is key i.
template <class KeyAt>
__device__ __forceinline__ void count_digits(KeyAt key_at, Key* __restrict__ counts, Pass pass) {
    __shared__ u32 found[RADIX];
    found[threadIdx.x] = 0;
    __syncthreads();
    const i64 end = pass.end();
#pragma unroll(COUNT_UNROLL)
    for (i64 i = pass.first() + threadIdx.x; i < end; i += SORT_THREADS)
        atomicAdd(&found[pass.digit(key_at(i))], 1u);
    __syncthreads();
    if (threadIdx.x < pass.radix())
        counts[blockIdx.x * pass.radix() + threadIdx.x] = found[threadIdx.x];
}

// The sum of `value` over the threads before this one.
__device__ __forceinline__ Key sum_before(Key value) {
    __shared__ Key of_warp[SORT_WARPS];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    Key sum = value;
#pragma unroll
    for (u32 step = 1; step < WARP; step *= 2) {
        const Key other = __shfl_up_sync(ALL_LANES, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == 31) of_warp[warp] = sum;
    __syncthreads();
    for (u32 w = 0; w < warp; ++w) sum += of_warp[w];
    return sum - value;
}

// Where this block's first entry with digit threadIdx.x goes: after all entries with smaller
// digits, and after those of earlier blocks with the same one.
__device__ __forceinline__ Key first_destination(const Key* __restrict__ counts, Pass pass) {
    Key total = 0, earlier = 0;
    if (threadIdx.x < pass.radix()) {
#pragma unroll 8
        for (u32 block = 0; block < gridDim.x; ++block) {
            const Key count = counts[block * pass.radix() + threadIdx.x];
            total += count;
            if (block < blockIdx.x) earlier += count;
        }
    }
    return sum_before(total) + earlier;
}

// The lanes of the warp whose entries are valid and have this lane's digit.
__device__ __forceinline__ u32 peers_of(u32 digit, i32 bits, bool valid) {
    u32 peers = __ballot_sync(ALL_LANES, valid);
    for (i32 bit = 0; bit < bits; ++bit) {
        const bool one = digit >> bit & 1u;
        const u32 ones = __ballot_sync(ALL_LANES, one);
        peers &= one ? ones : ~ones;
    }
    return peers;
}

// The entries of a tile that one thread moves: SORT_ITEMS of them, WARP apart, in a run of its warp.
struct TileItems {
    Entry entry[SORT_ITEMS];
    u32 rank[SORT_ITEMS];  // among the entries of the warp with the same digit
    i32 valid;             // the first so many exist

    __device__ void load(const Entry* __restrict__ from, i64 tile, i64 end) {
        const i64 first = tile + threadIdx.x / WARP * (WARP * SORT_ITEMS) + threadIdx.x % WARP;
        valid = 0;
#pragma unroll
        for (int j = 0; j < SORT_ITEMS; ++j) {
            const bool exists = first + WARP * j < end;
            entry[j] = exists ? from[first + WARP * j] : Entry{0, 0};
            valid += exists;
        }
    }
    // Leaves in `seen` how many entries of the warp have each digit.
    __device__ void count(u32* seen, Pass pass) {
        const u32 lane = threadIdx.x % WARP;
        for (u32 digit = lane; digit < pass.radix(); digit += WARP) seen[digit] = 0;
        __syncwarp();
#pragma unroll
        for (int j = 0; j < SORT_ITEMS; ++j) {
            const u32 digit = pass.digit(entry[j].key);
            const u32 peers = peers_of(digit, pass.bits, j < valid);
            const u32 before = __popc(peers & ((1u << lane) - 1u));
            rank[j] = seen[digit] + before;
            __syncwarp();
            if (j < valid && before == 0) seen[digit] += __popc(peers);
            __syncwarp();
        }
    }
};

// Turns each warp's count of a digit into the count of the warps before it; returns the count of
// all.
__device__ __forceinline__ u32 count_earlier_warps(u32 (*seen)[RADIX], u32 digit) {
    u32 sum = 0;
#pragma unroll
    for (int warp = 0; warp < SORT_WARPS; ++warp) {
        const u32 own = seen[warp][digit];
        seen[warp][digit] = sum;
        sum += own;
    }
    return sum;
}

// Moves every entry of the block's span to its place by this digit, in the order they stand in.
__device__ __forceinline__ void scatter_by_digit(const Entry* __restrict__ from,
                                                 Entry* __restrict__ to,
                                                 const Key* __restrict__ counts, Pass pass) {
    __shared__ Key destination[RADIX];
    __shared__ u32 seen[SORT_WARPS][RADIX];
    const i64 end = pass.end();
    const u32 warp = threadIdx.x / WARP;
    destination[threadIdx.x] = first_destination(counts, pass);
    u32 moved = 0;  // entries of the last tile with digit threadIdx.x
    for (i64 tile = pass.first(); tile < end; tile += SORT_TILE) {
        TileItems items;
        items.load(from, tile, end);
        __syncwarp();
        items.count(seen[warp], pass);
        __syncthreads();
        destination[threadIdx.x] += moved;
        moved = threadIdx.x < pass.radix() ? count_earlier_warps(seen, threadIdx.x) : 0;
        __syncthreads();
#pragma unroll
        for (int j = 0; j < SORT_ITEMS; ++j) {
            const u32 digit = pass.digit(items.entry[j].key);
            if (j < items.valid)
                to[destination[digit] + seen[warp][digit] + items.rank[j]] = items.entry[j];
        }
    }
}

// starts[g] = how many of the n sorted keys are below g: where the entries with key g begin. Each
// step looks at three keys together, a quarter of what is left apart.
__device__ __forceinline__ void find_start(const Entry* __restrict__ sorted,
                                           Key* __restrict__ starts, i64 n, i64 g) {
    i64 start = 0, step = 1;
    while (step * 4 <= n) step *= 4;
    for (; step > 0; step /= 4) {
        i32 below = 0;
#pragma unroll
        for (i32 j = 1; j < 4; ++j) {
            const i64 i = start + j * step - 1;
            below += i < n && sorted[i].key < static_cast<Key>(g);
        }
        start += below * step;
    }
    starts[g] = static_cast<Key>(start);
}

}  // namespace cto
