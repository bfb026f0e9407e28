// SPDX-License-Identifier: MIT
// The sort of radix_sort.cuh by one block and in one launch, of as many entries as shared memory holds
// twice. The same order, and so the same bits of all that is summed by it.
#pragma once
#include "gather/radix_sort.cuh"

namespace cto::block_sort {

using namespace facts::gather;
using radix_sort::digit_of;
using radix_sort::radix;

using Entry = radix_sort::Entry<u32>;

constexpr int WARPS = ALONE_THREADS / WARP;

// Shared memory, before what Entries has there.
struct Digits {
    u16 seen[WARPS][RADIX];  // of each warp; then of the warps before it
    u32 first[RADIX];        // where a digit's entries begin
    u32 of_warp[WARPS];

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
    // Where the entries of each digit begin; in `seen`, how many of it are those of earlier warps.
    __device__ __forceinline__ void place(const Pass& pass) {
        __syncthreads();
        const bool has_digit = threadIdx.x < radix(pass);
        const u32 count = has_digit ? count_earlier_warps(threadIdx.x) : 0;
        const u32 before = radix_sort::sum_before(count, of_warp);
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

// The n entries. A thread has `rows` of them, WARP apart, among its warp's own: few instructions, each
// of which is fetched for one launch, and many warps to wait with.
struct Entries {
    Entry* from;
    Entry* to;
    u16* ranks;  // among those of the warp with the same digit
    u32 rows, n;

    __device__ __forceinline__ u32 first() const {
        return threadIdx.x / WARP * (WARP * rows) + threadIdx.x % WARP;
    }
    __device__ __forceinline__ u32 last() const { return min(first() + WARP * rows, n); }

    // from[i] = entry_of(i) for the thread's entries: TOGETHER of them are asked for before the
    // first is put down, as entry_of reads memory that is far.
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
    // Leaves in `seen` how many entries of the warp have each digit.
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

// entry_of(k) is entry k of all. `shared`: dynamic shared memory.
template <class EntryOf>
__device__ __forceinline__ void sort(const EntryOf& entry_of, Entry* __restrict__ sorted,
                                     const AllDigits& all, u8* shared) {
    Digits& digits = *reinterpret_cast<Digits*>(shared);
    Entry* const one = reinterpret_cast<Entry*>(shared + sizeof(Digits));
    Entry* const other = one + all.rows * ALONE_THREADS;
    Entries entries{one, other, reinterpret_cast<u16*>(other + all.rows * ALONE_THREADS),
                    static_cast<u32>(all.rows), static_cast<u32>(all.n)};
    entries.load(entry_of);
#pragma unroll 1
    for (i32 shift = 0; shift < all.bits; shift += all.width) {
        const Pass pass{all.n, 0, shift, min(all.width, all.bits - shift), 1};
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
