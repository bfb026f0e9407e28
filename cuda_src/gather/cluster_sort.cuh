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

// Shared memory, before a span of sorted entries and one of those that arrive.
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

// The entries of a thread: `rows` of them, WARP apart, among its warp's own.
struct OwnEntries {
    Entry entry[CLUSTER_ITEMS];
    u32 rank[CLUSTER_ITEMS];  // among the entries of the warp with the same digit
    i32 rows;
    u32 first, end;  // of the block's span; what is behind the end is not there

    __device__ __forceinline__ OwnEntries(i32 rows, u32 end) : rows(rows), end(end) {
        first = threadIdx.x / WARP * (WARP * rows) + threadIdx.x % WARP;
    }
    __device__ __forceinline__ u32 at(int j) const { return first + WARP * j; }
    __device__ __forceinline__ bool exists(int j) const { return at(j) < end; }

    // `from` gives the entry at a place of the span, the last one again where there are no more.
    template <class From>
    __device__ __forceinline__ void load(const From& from) {
        if (end == 0) return;
        constexpr int TOGETHER = CLUSTER_ITEMS / 2;
#pragma unroll
        for (int j = 0; j < CLUSTER_ITEMS; j += TOGETHER) {
            if (j >= rows) break;
#pragma unroll
            for (int d = 0; d < TOGETHER; ++d) entry[j + d] = from(min(at(j + d), end - 1));
        }
    }
    // Leaves in `seen` how many entries of the warp have each digit.
    __device__ __forceinline__ void count(u16* seen, const Pass& pass) {
        const u32 lane = threadIdx.x % WARP;
        for (u32 digit = lane; digit < radix(pass); digit += WARP) seen[digit] = 0;
        __syncwarp();
#pragma unroll
        for (int j = 0; j < CLUSTER_ITEMS; ++j) {
            if (j >= rows) break;
            const u32 digit = digit_of(entry[j].key, pass);
            const u32 peers = radix_sort::peers_of(digit, pass.bits, exists(j));
            const u32 before = __popc(peers & ((1u << lane) - 1u));
            rank[j] = seen[digit] + before;
            __syncwarp();
            if (exists(j) && before == 0) seen[digit] += static_cast<u16>(__popc(peers));
            __syncwarp();
        }
    }
    __device__ __forceinline__ void put(Entry* sorted, const Digits& digits,
                                        const Pass& pass) const {
        const u16* const earlier = digits.seen[threadIdx.x / WARP];
#pragma unroll
        for (int j = 0; j < CLUSTER_ITEMS; ++j) {
            if (j >= rows) break;
            const u32 digit = digit_of(entry[j].key, pass);
            if (exists(j)) sorted[digits.first[digit] + earlier[digit] + rank[j]] = entry[j];
        }
    }
    // Takes the block's sorted entries instead, THREADS apart, and shows them to `visit`.
    template <class Visit>
    __device__ __forceinline__ void write(const Entry* sorted, const Digits& digits,
                                          const Pass& pass, const Visit& visit) {
#pragma unroll
        for (int j = 0; j < CLUSTER_ITEMS; ++j) {
            const u32 i = threadIdx.x + CLUSTER_THREADS * j;
            if (j >= rows || i >= end) break;
            entry[j] = sorted[i];
            rank[j] = digits.shift[digit_of(entry[j].key, pass)] + i;
        }
#pragma unroll
        for (int j = 0; j < CLUSTER_ITEMS; ++j) {
            if (j >= rows || threadIdx.x + CLUSTER_THREADS * j >= end) break;
            visit(rank[j], entry[j]);
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

// Sorts by one digit; `visit` gets where each entry goes, and the entry.
template <int BLOCKS, class Visit>
__device__ __forceinline__ void sort_by_digit(OwnEntries& own, Entry* sorted, Digits& digits,
                                              const Pass& pass, const Visit& visit) {
    own.count(digits.seen[threadIdx.x / WARP], pass);
    __syncthreads();
    const bool has_digit = threadIdx.x < radix(pass);
    const u32 count = has_digit ? digits.count_earlier_warps(threadIdx.x) : 0;
    const u32 before = radix_sort::sum_before(count, digits.of_warp);
    if (has_digit) {
        digits.found[threadIdx.x] = count;
        digits.first[threadIdx.x] = before;
    }
    cluster::sync<BLOCKS>();
    own.put(sorted, digits, pass);
    const u32 destination = first_destination<BLOCKS>(digits, pass);
    if (has_digit) digits.shift[threadIdx.x] = destination - before;
    __syncthreads();
    own.write(sorted, digits, pass, visit);
    cluster::sync<BLOCKS>();  // no block ends, or writes anew, while others read what it found
}

// entry_of(k) is entry k of all. `shared`: dynamic shared memory.
template <int BLOCKS, class EntryOf>
__device__ __forceinline__ void sort(const EntryOf& entry_of, Entry* __restrict__ to,
                                     const AllDigits& all, u8* shared) {
    Digits& digits = *reinterpret_cast<Digits*>(shared);
    Entry* const sorted = reinterpret_cast<Entry*>(shared + sizeof(Digits));
    Entry* const arrived = sorted + (1 << all.span_bits);
    const u32 first = blockIdx.x << all.span_bits, n = static_cast<u32>(all.n);
    OwnEntries own(all.rows, n <= first ? 0 : min(n - first, 1u << all.span_bits));
    own.load([&](u32 i) { return entry_of(first + i); });
#pragma unroll 1
    for (i32 shift = 0; shift < all.bits; shift += all.width) {
        const Pass pass{all.n, 0, shift, min(all.width, all.bits - shift)};
        if (shift + all.width >= all.bits) {
            sort_by_digit<BLOCKS>(own, sorted, digits, pass,
                                  [&](u32 place, const Entry& entry) { to[place] = entry; });
            return;
        }
        const u32 mask = (1u << all.span_bits) - 1;
        sort_by_digit<BLOCKS>(own, sorted, digits, pass, [&](u32 place, const Entry& entry) {
            cluster::of_block<BLOCKS>(arrived, place >> all.span_bits)[place & mask] = entry;
        });
        own.load([&](u32 i) { return arrived[i]; });
    }
}

}  // namespace cto::cluster_sort
