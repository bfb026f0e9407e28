// SPDX-License-Identifier: MIT
// The sort of radix_sort.cuh in one launch, of as many entries as a cluster of blocks holds in shared
// memory. The same order, and so the same bits of all that is summed by it.
//
// Each block has a span of the entries. For each digit it sorts them by it, tells the others how many of
// each digit it has, and writes them to the blocks whose span they belong to, entries with the same
// digit together.
#pragma once
#include "gather/cluster.cuh"
#include "gather/radix_sort.cuh"

namespace cto::cluster_sort {

using namespace facts::gather;
using radix_sort::digit_of;
using radix_sort::radix;

using Entry = radix_sort::Entry<u32>;

constexpr int WARPS = CLUSTER_THREADS / WARP;

// Shared memory, before what Span has there.
struct Digits {
    u16 seen[WARPS][RADIX];  // of each warp; then of the warps before it
    u32 found[RADIX];        // of the block, which others read
    u32 first[RADIX];        // where a digit's entries begin in the block
    u32 shift[RADIX];        // and how much further on they begin in the result
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

// The entries of a block. A thread has `rows` of them, WARP apart, among its warp's own: few
// instructions, each of which is fetched for one launch, and many warps to wait with.
struct Span {
    Entry* entries;
    Entry* sorted;
    u16* ranks;  // of entries, among those of the warp with the same digit
    i32 rows;
    u32 end;

    __device__ __forceinline__ u32 first() const {
        return threadIdx.x / WARP * (WARP * rows) + threadIdx.x % WARP;
    }
    // `entry_of` reads memory that is far: several are asked for before the first is put down.
    template <class EntryOf>
    __device__ __forceinline__ void load(const EntryOf& entry_of) const {
        constexpr u32 TOGETHER = 4;
        const u32 last = min(first() + WARP * rows, end);
        for (u32 i = first(); i < last; i += WARP * TOGETHER) {
            Entry loaded[TOGETHER];
#pragma unroll
            for (u32 d = 0; d < TOGETHER; ++d) loaded[d] = entry_of(min(i + WARP * d, end - 1));
#pragma unroll
            for (u32 d = 0; d < TOGETHER; ++d)
                if (i + WARP * d < last) entries[i + WARP * d] = loaded[d];
        }
    }
    // Leaves in `seen` how many entries of the warp have each digit.
    __device__ __forceinline__ void count(u16* seen, const Pass& pass) const {
        const u32 lane = threadIdx.x % WARP, last = first() + WARP * rows;
        for (u32 digit = lane; digit < radix(pass); digit += WARP) seen[digit] = 0;
        __syncwarp();
#pragma unroll 1
        for (u32 i = first(); i < last; i += WARP) {
            const bool exists = i < end;
            const u32 digit = exists ? digit_of(entries[i].key, pass) : 0;
            const u32 peers = peers_of(digit, exists);
            const u32 before = __popc(peers & ((1u << lane) - 1u));
            const u32 earlier = seen[digit];
            __syncwarp();
            if (exists) ranks[i] = static_cast<u16>(earlier + before);
            if (exists && before == 0) seen[digit] = static_cast<u16>(earlier + __popc(peers));
            __syncwarp();
        }
    }
    __device__ __forceinline__ void sort(const Digits& digits, const Pass& pass) const {
        const u16* const earlier = digits.seen[threadIdx.x / WARP];
        const u32 last = min(first() + WARP * rows, end);
#pragma unroll 1
        for (u32 i = first(); i < last; i += WARP) {
            const Entry entry = entries[i];
            const u32 digit = digit_of(entry.key, pass);
            sorted[digits.first[digit] + earlier[digit] + ranks[i]] = entry;
        }
    }
    // Shows `visit` where each entry goes, and the entry.
    template <class Visit>
    __device__ __forceinline__ void write(const Digits& digits, const Pass& pass,
                                          const Visit& visit) const {
#pragma unroll 2
        for (u32 i = threadIdx.x; i < end; i += CLUSTER_THREADS) {
            const Entry entry = sorted[i];
            visit(digits.shift[digit_of(entry.key, pass)] + i, entry);
        }
    }
};

// Where the block's first entry with digit threadIdx.x goes: after all entries with smaller digits,
// and after those of earlier blocks with the same one.
template <int BLOCKS>
__device__ __forceinline__ u32 first_destination(Digits& digits, const Pass& pass) {
    u32 total = 0, earlier = 0;
    if (threadIdx.x < radix(pass)) {
        u32 counts[BLOCKS];
#pragma unroll
        for (u32 block = 0; block < BLOCKS; ++block)
            counts[block] = *cluster::of_block<BLOCKS>(&digits.found[threadIdx.x], block);
#pragma unroll
        for (u32 block = 0; block < BLOCKS; ++block) {
            total += counts[block];
            if (block < blockIdx.x) earlier += counts[block];
        }
    }
    return radix_sort::sum_before(total, digits.of_warp) + earlier;
}

// Sorts by one digit. No block writes before all have sorted what they have, nor ends, or counts
// anew, before all have read what it found.
template <int BLOCKS, class Visit>
__device__ __forceinline__ void sort_by_digit(const Span& span, Digits& digits, const Pass& pass,
                                              bool is_last, const Visit& visit) {
    span.count(digits.seen[threadIdx.x / WARP], pass);
    __syncthreads();
    const bool has_digit = threadIdx.x < radix(pass);
    const u32 count = has_digit ? digits.count_earlier_warps(threadIdx.x) : 0;
    const u32 before = radix_sort::sum_before(count, digits.of_warp);
    if (has_digit) {
        digits.found[threadIdx.x] = count;
        digits.first[threadIdx.x] = before;
    }
    __syncthreads();
    span.sort(digits, pass);
    cluster::sync<BLOCKS>();
    const u32 destination = first_destination<BLOCKS>(digits, pass);
    if (has_digit) digits.shift[threadIdx.x] = destination - before;
    __syncthreads();
    span.write(digits, pass, visit);
    if (is_last)
        cluster::leave<BLOCKS>();
    else
        cluster::sync<BLOCKS>();
}

// entry_of(k) is entry k of all. `shared`: dynamic shared memory.
template <int BLOCKS, class EntryOf>
__device__ __forceinline__ void sort(const EntryOf& entry_of, Entry* __restrict__ to,
                                     const AllDigits& all, u8* shared) {
    Digits& digits = *reinterpret_cast<Digits*>(shared);
    const u32 size = 1u << all.span_bits, n = static_cast<u32>(all.n), first = blockIdx.x * size;
    Entry* const entries = reinterpret_cast<Entry*>(shared + sizeof(Digits));
    Entry* const sorted = entries + size;
    const Span span{entries, sorted, reinterpret_cast<u16*>(sorted + size), all.rows,
                    n <= first ? 0 : min(n - first, size)};
    span.load([&](u32 i) { return entry_of(first + i); });
#pragma unroll 1
    for (i32 shift = 0; shift < all.bits; shift += all.width) {
        const Pass pass{all.n, 0, shift, min(all.width, all.bits - shift), BLOCKS};
        const bool is_last = shift + all.width >= all.bits;
        sort_by_digit<BLOCKS>(span, digits, pass, is_last, [&](u32 place, const Entry& entry) {
            Entry* const block = cluster::of_block<BLOCKS>(entries, place >> all.span_bits);
            *(is_last ? to + place : block + (place & (size - 1))) = entry;
        });
    }
}

}  // namespace cto::cluster_sort
