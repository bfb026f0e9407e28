// SPDX-License-Identifier: MIT
// Stable radix sort of (key, position) entries, the least significant digit first,
// two launches a digit.
//
// Each block owns a span of the entries, whole tiles of it. The first launch counts the digits of
// every span; the second sums those counts to know where each digit of its own span goes, and moves
// the entries tile by tile, each sorted in shared memory so that entries with the same digit are
// written together. No block waits for another, and the result depends on the keys alone.
//
// A Pass is a digit: bits [shift, shift + bits) of the keys of n entries, of which each of `blocks`
// blocks has `span`. per_warp: shared memory, scratch of sum_before.
#pragma once
#include "algorithm/scan.cuh"
#include "gather/facts.cuh"

namespace cto::radix_sort {

using namespace facts::gather;

constexpr int SORT_WARPS = SORT_THREADS / WARP;
constexpr int MAX_SCANNED = 16;  // find_starts scans up to so many entries a key, else it searches

// `position`: number of a slice, or the bits of an element (gather.cu); the sort only moves it
// along.
template <class Key>
struct alignas(2 * sizeof(Key)) Entry {
    Key key, position;
};

// How many values a digit has.
__device__ __forceinline__ u32 radix(const Pass& pass) { return 1u << pass.bits; }
// The digit of a key that a pass sorts by.
template <class Key>
__device__ __forceinline__ u32 digit_of(Key key, const Pass& pass) {
    return static_cast<u32>(key >> pass.shift) & (radix(pass) - 1);
}

// The entries of this block: [first, end).
__device__ __forceinline__ i64 first_of(const Pass& pass) { return blockIdx.x * pass.span; }
__device__ __forceinline__ i64 end_of(const Pass& pass) {
    return min(first_of(pass) + pass.span, pass.n);
}

// Returns `pass`, which the compiler then keeps in registers. Left in the launch parameters, it
// cost GatherGrad 3 % of its time on an H200.
__device__ __forceinline__ Pass in_registers(Pass pass) {
#ifndef __CUDA_CPU__
    asm("" : "+l"(pass.n), "+l"(pass.span), "+r"(pass.shift), "+r"(pass.bits), "+l"(pass.blocks));
#endif
    return pass;
}

// counts[block][digit] = how many keys of the block's span have the digit of `pass`; key_at(i) is
// key i. histogram: shared memory.
template <class KeyAt, class Key>
__device__ __forceinline__ void count_digits(KeyAt key_at, Key* __restrict__ counts, Pass pass,
                                             u32 (&histogram)[RADIX]) {
    // 64-bit keys are computed by 64-bit divisions, which leave few registers.
    constexpr int UNROLL = sizeof(Key) > 4 ? 1 : 4;
    histogram[threadIdx.x] = 0;
    __syncthreads();
    const i64 end = end_of(pass);
#pragma unroll(UNROLL)
    for (i64 i = first_of(pass) + threadIdx.x; i < end; i += SORT_THREADS)
        atomicAdd(&histogram[digit_of(key_at(i), pass)], 1u);
    __syncthreads();
    if (threadIdx.x < radix(pass))
        counts[blockIdx.x * radix(pass) + threadIdx.x] = histogram[threadIdx.x];
}

// The sum of `value` over the threads before this one. per_warp: shared memory; a barrier is needed
// before it is used again.
template <class Key, int WARPS>
__device__ __forceinline__ Key sum_before(Key value, Key (&per_warp)[WARPS]) {
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    Key sum = scan::sum_up_to_lane(value);
    if (lane == WARP - 1) per_warp[warp] = sum;
    __syncthreads();
    for (u32 w = 0; w < warp; ++w) sum += per_warp[w];
    return sum - value;
}

// Returns where this block's first entry with digit threadIdx.x of `pass` goes: after all entries
// with smaller digits, and after those of earlier blocks with the same one; counts[block][digit] as
// from count_digits. TOGETHER loads are in flight. per_warp: scratch of sum_before.
template <u32 TOGETHER, class Key>
__device__ __forceinline__ Key first_destination(const Key* __restrict__ counts, Pass pass,
                                                 Key (&per_warp)[SORT_WARPS]) {
    Key total = 0, earlier = 0;
    if (threadIdx.x < radix(pass)) {
        const u32 blocks = static_cast<u32>(pass.blocks);
#pragma unroll 1
        for (u32 first = 0; first < blocks; first += TOGETHER) {
            Key count[TOGETHER];
#pragma unroll
            for (u32 j = 0; j < TOGETHER; ++j)
                count[j] = first + j < blocks ? counts[(first + j) * radix(pass) + threadIdx.x] : 0;
            vec::all_are_asked_for();
#pragma unroll
            for (u32 j = 0; j < TOGETHER; ++j) {
                total += count[j];
                if (first + j < blockIdx.x) earlier += count[j];
            }
        }
    }
    return sum_before(total, per_warp) + earlier;
}

// The lanes, as bits, whose entries are valid and have this lane's digit of `bits` bits: for each
// bit, those whose bit is as this lane's stay.
__device__ __forceinline__ u32 peers_of(u32 digit, i32 bits, bool valid) {
    u32 peers = __ballot_sync(ALL_LANES, valid);
    for (i32 bit = 0; bit < bits; ++bit) {
        const bool one = digit >> bit & 1u;
        const u32 ones = __ballot_sync(ALL_LANES, one);
        peers &= one ? ones : ~ones;
    }
    return peers;
}

// A thread's ITEMS entries of a tile, WARP apart; a warp has 32 * ITEMS neighbouring ones.
template <class Key, int ITEMS>
struct TileItems {
    using Entry = radix_sort::Entry<Key>;
    Entry entry[ITEMS];
    u32 rank[ITEMS];  // earlier entries of the warp with the same digit
    i32 valid;        // entry[0 .. valid) exist

    // Loads the thread's ITEMS entries of the tile of `from` that begins at entry `tile`, those
    // before `end`. A warp has WARP * ITEMS neighbours.
    __device__ void load(const Entry* __restrict__ from, i64 tile, i64 end) {
        const i64 first = tile + threadIdx.x / WARP * (WARP * ITEMS) + threadIdx.x % WARP;
        valid = 0;
#pragma unroll
        for (int j = 0; j < ITEMS; ++j) {
            const bool exists = first + WARP * j < end;
            entry[j] = exists ? from[first + WARP * j] : Entry{0, 0};
            valid += exists;
        }
    }
    // Sets `rank`, and seen[d] to the number of the warp's entries with digit d of `pass`: 32
    // entries at a time, in which the first lane of those with one digit (before == 0) adds their
    // number.
    __device__ void count(u16* seen, Pass pass) {
        const u32 lane = threadIdx.x % WARP;
        for (u32 digit = lane; digit < radix(pass); digit += WARP) seen[digit] = 0;
        __syncwarp();
#pragma unroll
        for (int j = 0; j < ITEMS; ++j) {
            const u32 digit = digit_of(entry[j].key, pass);
            const u32 peers = peers_of(digit, pass.bits, j < valid);
            const u32 before = __popc(peers & ((1u << lane) - 1u));
            rank[j] = seen[digit] + before;
            __syncwarp();
            if (j < valid && before == 0) seen[digit] += static_cast<u16>(__popc(peers));
            __syncwarp();
        }
    }
};

// A tile, ITEMS entries a thread, sorted by one digit in shared memory. Thread d < radix computes
// the counts of digit d.
template <class Key, int ITEMS>
struct SortedTile {
    using Entry = radix_sort::Entry<Key>;
    static constexpr int size = SORT_THREADS * ITEMS;
    u16 seen[SORT_WARPS]
            [RADIX];   // seen[w][d]: entries of warp w with digit d; then of warps before w
    u32 first[RADIX];  // place of a digit's first entry in the tile
    Key shift[RADIX];  // place of a digit's entry in the result - that in the tile
    Entry entries[size];

    // Turns seen[w][digit] into the sum over the warps before w; returns the sum over all.
    __device__ u32 count_earlier_warps(u32 digit) {
        u32 sum = 0;
#pragma unroll
        for (int warp = 0; warp < SORT_WARPS; ++warp) {
            const u16 own = seen[warp][digit];
            seen[warp][digit] = static_cast<u16>(sum);
            sum += own;
        }
        return sum;
    }
    // Sets `first` and `shift` for the digits of `pass`. destination: where the block's next entry
    // with digit threadIdx.x goes in the result; moves on by the tile's count. per_warp: scratch of
    // sum_before.
    __device__ void place_digits(Key& destination, Pass pass, Key (&per_warp)[SORT_WARPS]) {
        const bool has_digit = threadIdx.x < radix(pass);
        const u32 count = has_digit ? count_earlier_warps(threadIdx.x) : 0;
        const Key before = sum_before(static_cast<Key>(count), per_warp);
        if (has_digit) {
            first[threadIdx.x] = static_cast<u32>(before);
            shift[threadIdx.x] = destination - before;
        }
        destination += count;
    }
    // Moves the thread's entries, `items`, to their places in `entries`, sorted by the digit of
    // `pass`: first of the digit + those of earlier warps + rank.
    __device__ void put(const TileItems<Key, ITEMS>& items, Pass pass) {
#pragma unroll
        for (int j = 0; j < ITEMS; ++j) {
            const u32 digit = digit_of(items.entry[j].key, pass);
            const u32 earlier = seen[threadIdx.x / WARP][digit] + items.rank[j];
            if (j < items.valid) entries[first[digit] + earlier] = items.entry[j];
        }
    }
    // Writes the first n entries of the tile, sorted by the digit of `pass`, to their places in the
    // result `to`.
    __device__ void write(Entry* __restrict__ to, i64 n, Pass pass) const {
#pragma unroll
        for (u32 i = threadIdx.x; i < size; i += SORT_THREADS) {
            if (i >= n) return;
            const Entry entry = entries[i];
            to[static_cast<Key>(shift[digit_of(entry.key, pass)] + i)] = entry;
        }
    }
};

// Moves every entry of the block's span of `from` to its place in `to` by the digit of `pass`,
// stably: a tile, ITEMS entries a thread, at a time. counts[block][digit]: from count_digits.
// Barriers: all warps have counted; all digits have places; the tile is sorted in `sorted`, shared
// memory.
template <class Key, int ITEMS>
__device__ __forceinline__ void scatter_by_digit(const Entry<Key>* __restrict__ from,
                                                 Entry<Key>* __restrict__ to,
                                                 const Key* __restrict__ counts, Pass pass,
                                                 SortedTile<Key, ITEMS>& sorted,
                                                 Key (&per_warp)[SORT_WARPS]) {
    pass = in_registers(pass);
    const i64 end = end_of(pass);
    TileItems<Key, ITEMS> items;
    items.load(from, first_of(pass), end);
    constexpr u32 TOGETHER = ITEMS <= SHORT_ITEMS<sizeof(Key)> ? 128 / sizeof(Key) : 8;
    Key destination = first_destination<TOGETHER>(counts, pass, per_warp);
    for (i64 tile = first_of(pass); tile < end; tile += sorted.size) {
        items.count(sorted.seen[threadIdx.x / WARP], pass);
        __syncthreads();
        sorted.place_digits(destination, pass, per_warp);
        __syncthreads();
        sorted.put(items, pass);
        if (tile + sorted.size < end)  // while this tile is written
            items.load(from, tile + sorted.size, end);
        __syncthreads();
        sorted.write(to, end - tile, pass);
    }
}

// ---- where the entries of each key start --------------------------------------------------------

// Returns how many of the sorted keys are less than `key`, which is known to be from `start` to
// `end`. Each step compares three keys, `step` entries apart, and moves `start` behind those that
// are less.
template <class Key>
__device__ __forceinline__ i64 count_below(const Entry<Key>* __restrict__ sorted, i64 start,
                                           i64 end, i64 key) {
    i64 step = 1;
    while (step * 4 <= end - start) step *= 4;
    for (; step > 0; step /= 4) {
        i32 below = 0;
#pragma unroll
        for (i32 j = 1; j < 4; ++j) {
            const i64 i = start + j * step - 1;
            below += i < end && sorted[i].key < static_cast<Key>(key);
        }
        start += below * step;
    }
    return start;
}

// starts[key] = how many of the n sorted entries have a smaller key, for one key; nothing for a key
// above n_keys.
template <class Key>
__device__ __forceinline__ void find_start(const Entry<Key>* __restrict__ sorted,
                                           Key* __restrict__ starts, i64 n, i64 n_keys, i64 key) {
    if (key <= n_keys) starts[key] = static_cast<Key>(count_below(sorted, 0, n, key));
}

// starts[key] = how many of the n sorted entries have a smaller key, for the block's STARTS_ROWS
// keys, of those from 0 to n_keys. Only the first and the last are searched among all n `sorted`
// entries (bounds, in shared memory). Then the entries between are scanned: if the keys of entries
// i - 1 and i differ, starts[key] = i for all keys after that of i - 1 up to that of i. If there
// are too many entries to scan, every key is searched.
template <class Key>
__device__ __forceinline__ void find_starts(const Entry<Key>* __restrict__ sorted,
                                            Key* __restrict__ starts, i64 n, i64 n_keys,
                                            i64 (&bounds)[2]) {
    const i64 first = static_cast<i64>(blockIdx.x) * STARTS_ROWS;
    const i64 end = min(first + STARTS_ROWS, n_keys + 1);
    if (threadIdx.x < 2)
        bounds[threadIdx.x] =
            count_below(sorted, 0, n, threadIdx.x == 0 ? first : min(end, n_keys));
    __syncthreads();
    const i64 low = bounds[0], high = bounds[1];
    if (high - low > MAX_SCANNED * STARTS_ROWS) {
        for (i64 key = first + threadIdx.x; key < end; key += blockDim.x)
            starts[key] = static_cast<Key>(count_below(sorted, low, high, key));
        return;
    }
    for (i64 i = low + threadIdx.x; i <= high; i += blockDim.x) {
        i64 key = i == low ? first : static_cast<i64>(sorted[i - 1].key) + 1;
        const i64 last = i == high ? end - 1 : static_cast<i64>(sorted[i].key);
        for (; key <= last; ++key) starts[key] = static_cast<Key>(i);
    }
}

}  // namespace cto::radix_sort
