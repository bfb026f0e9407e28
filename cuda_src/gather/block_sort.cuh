// SPDX-License-Identifier: MIT
// The sort of radix_sort.cuh by one block in one launch, for so few entries that shared memory has
// room for two copies. The order is the same, so sums have the same bits.
#pragma once
#include "gather/radix_sort.cuh"

namespace cto::block_sort {

using namespace facts::gather;
using radix_sort::digit_of;
using radix_sort::radix;

using Entry = radix_sort::Entry<u32>;

constexpr int WARPS = ALONE_THREADS / WARP;

// Counts of digits, at the start of dynamic shared memory.
struct Digits {
    u16 seen[WARPS][RADIX];  // seen[w][d]: entries of warp w with digit d; then of warps before w
    u32 first[RADIX];        // place of the first entry with each digit
    u32 per_warp[WARPS];     // scratch of sum_before

    // Turns seen[w][digit] into the sum over the warps before w; returns the sum over all.
    __device__ __forceinline__ u32 count_earlier_warps(u32 digit) {
        u32 sum = 0;
#pragma unroll 8
        for (int warp = 0; warp < WARPS; ++warp) {
            const u16 own = seen[warp][digit];
            seen[warp][digit] = static_cast<u16>(sum);
            sum += own;
        }
        return sum;
    }
    // Sets `first`, and `seen` to the counts of earlier warps, from the warps' counts of the digits
    // of `pass`. Thread d computes those of digit d. Begins with a barrier, as all warps have to
    // have counted, and ends with one.
    __device__ __forceinline__ void place(const Pass& pass) {
        __syncthreads();
        const bool has_digit = threadIdx.x < radix(pass);
        const u32 count = has_digit ? count_earlier_warps(threadIdx.x) : 0;
        const u32 before = radix_sort::sum_before(count, per_warp);
        if (has_digit) first[threadIdx.x] = before;
        __syncthreads();
    }
};
static_assert(sizeof(Digits) % sizeof(Entry) == 0);

// The lanes of the warp whose entries are valid and have this lane's digit.
__device__ __forceinline__ u32 peers_of(u32 digit, bool valid) {
    u32 peers = __ballot_sync(ALL_LANES, valid);
#pragma unroll
    for (u32 bit = 1; bit < RADIX; bit *= 2) {
        const bool one = (digit & bit) != 0;
        const u32 ones = __ballot_sync(ALL_LANES, one);
        peers &= one ? ones : ~ones;
    }
    return peers;
}

// The n entries in shared memory: a warp has 32 * rows neighbouring ones, a thread `rows` of them,
// WARP apart. A pass moves them from `from` to `to`.
struct Entries {
    Entry* from;
    Entry* to;
    u16* ranks;  // of an entry: earlier entries of its warp with the same digit
    u32 rows, n;

    // The thread's first entry: each warp has `rows` rows of WARP neighbouring entries.
    __device__ __forceinline__ u32 first() const {
        return threadIdx.x / WARP * (WARP * rows) + threadIdx.x % WARP;
    }
    // The end of the thread's entries that exist: they are first(), first() + WARP, ... below it.
    __device__ __forceinline__ u32 last() const { return min(first() + WARP * rows, n); }

    // from[i] = entry_of(i) for the thread's entries, TOGETHER loads in flight: entry_of reads
    // global memory.
    template <class EntryOf>
    __device__ __forceinline__ void load(const EntryOf& entry_of) const {
        constexpr u32 TOGETHER = 4;
        for (u32 i = first(); i < last(); i += WARP * TOGETHER) {
            Entry loaded[TOGETHER];
#pragma unroll
            for (u32 d = 0; d < TOGETHER; ++d) loaded[d] = entry_of(min(i + WARP * d, n - 1));
#pragma unroll
            for (u32 d = 0; d < TOGETHER; ++d)
                if (i + WARP * d < last()) from[i + WARP * d] = loaded[d];
        }
    }
    // Sets `ranks`, and seen[d] to the number of the warp's entries with digit d of `pass`: 32
    // entries at a time, in which the first lane of those with one digit (before == 0) adds their
    // number.
    __device__ __forceinline__ void count(u16* seen, const Pass& pass) const {
        const u32 lane = threadIdx.x % WARP, end = first() + WARP * rows;
        for (u32 digit = lane; digit < radix(pass); digit += WARP) seen[digit] = 0;
        __syncwarp();
#pragma unroll 1
        for (u32 i = first(); i < end; i += WARP) {
            const bool exists = i < n;
            const u32 digit = exists ? digit_of(from[i].key, pass) : 0;
            const u32 peers = peers_of(digit, exists);
            const u32 before = __popc(peers & ((1u << lane) - 1u));
            const u32 earlier = seen[digit];
            __syncwarp();
            if (exists) ranks[i] = static_cast<u16>(earlier + before);
            if (exists && before == 0) seen[digit] = static_cast<u16>(earlier + __popc(peers));
            __syncwarp();
        }
    }
    // Moves each of the thread's entries from `from` to `to` by its digit of `pass`: to first of
    // the digit + those of earlier warps, both in `digits`, + its rank.
    __device__ __forceinline__ void move(const Digits& digits, const Pass& pass) const {
        const u16* const earlier = digits.seen[threadIdx.x / WARP];
#pragma unroll 1
        for (u32 i = first(); i < last(); i += WARP) {
            const Entry entry = from[i];
            const u32 digit = digit_of(entry.key, pass);
            to[digits.first[digit] + earlier[digit] + ranks[i]] = entry;
        }
        __syncthreads();
    }
};

// sorted = entry_of(0 .. all.n - 1) sorted by the lower all.bits bits of key, stably, all.width
// bits a pass, by the whole block, all.rows entries a thread. `shared`: dynamic shared memory, for
// Digits, two copies of the entries, and their ranks.
template <class EntryOf>
__device__ __forceinline__ void sort(const EntryOf& entry_of, Entry* __restrict__ sorted,
                                     const AllDigits& all, u8* shared) {
    Digits& digits = *reinterpret_cast<Digits*>(shared);
    Entry* const one = reinterpret_cast<Entry*>(shared + sizeof(Digits));
    Entry* const other = one + all.rows * ALONE_THREADS;
    Entries entries{/*from=*/one, /*to=*/other,
                    /*ranks=*/reinterpret_cast<u16*>(other + all.rows * ALONE_THREADS),
                    static_cast<u32>(all.rows), static_cast<u32>(all.n)};
    entries.load(entry_of);
#pragma unroll 1
    for (i32 shift = 0; shift < all.bits; shift += all.width) {
        const Pass pass{all.n, /*span=*/0, shift, /*bits=*/min(all.width, all.bits - shift),
                        /*blocks=*/1};
        entries.count(digits.seen[threadIdx.x / WARP], pass);
        digits.place(pass);
        entries.move(digits, pass);
        Entry* const moved = entries.to;
        entries.to = entries.from;
        entries.from = moved;
    }
    for (u32 i = threadIdx.x; i < entries.n; i += ALONE_THREADS) sorted[i] = entries.from[i];
}

}  // namespace cto::block_sort
