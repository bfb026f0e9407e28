// SPDX-License-Identifier: MIT
// Prefix sum over tiles inside one launch: sum of the counts of all tiles before a tile.
//
// The block of a tile publishes its count in global memory (publish). Each block adds the counts of
// all tiles between its last tile and its next one to its running sum (Span). No chain of sums from
// block to block: that would cost a microsecond a block while memory is busy.
//
// No deadlock: blocks take tiles by tickets in ascending order, so a count that is waited for
// belongs to a block that runs; and a block may wait only for tiles before the first of its own
// that it has not published.
#pragma once
#include "core/zeroed.cuh"

namespace cto::prefix {

using zeroed::Zeroed;

constexpr u32 MARK = 1u << 31;

// words[tile] = has + 1, where `has` is the tile's count, with MARK if marked; 0 means not
// published yet. volatile: other blocks read it during the launch.
__device__ __forceinline__ void publish(Zeroed<u32>* words, u32 tile, u32 has, bool marked) {
    *static_cast<volatile u32*>(&words[tile].value) = has + 1 + (marked ? MARK : 0);
}

// The word that another block writes while this one runs: read from memory each time.
__device__ __forceinline__ u32 read_word(const Zeroed<u32>* words, u32 tile) {
    return *static_cast<const volatile u32*>(&words[tile].value);
}

// Sum of x over the lanes of a warp, in each.
__device__ __forceinline__ u32 warp_sum(u32 x) {
#pragma unroll
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2) x += __shfl_xor_sync(ALL_LANES, x, lanes);
    return x;
}

// The sum of the counts of some tiles, and true if one of them has a mark.
struct Total {
    u64 sum;
    bool marked;
};

// The words of tiles `from` to end - 1; thread t of the block reads those of tiles from + t,
// from + t + THREADS, .... The constructor issues the first loads, `total` waits for their values.
// HAS_MARKS: words may have a mark.
template <int THREADS, bool HAS_MARKS>
class Span {
    static constexpr int EARLY = THREADS == 256 ? 3 : 6;  // loads of a thread in flight

    const Zeroed<u32>* words;
    u32 from, end;
    u32 loaded_words[EARLY];

    // Loads the thread's next EARLY words; 1, a count of 0, past the end.
    __device__ __forceinline__ void load_words() {
#pragma unroll
        for (int i = 0; i < EARLY; ++i) {
            const u32 tile = from + i * THREADS + threadIdx.x;
            loaded_words[i] = tile < end ? read_word(words, tile) : 1;
        }
    }
    // True if all words that the warp has loaded were published.
    __device__ __forceinline__ bool are_published() const {
        bool all = true;
#pragma unroll
        for (int i = 0; i < EARLY; ++i) all = all && loaded_words[i] != 0;
        return __all_sync(ALL_LANES, all);
    }

  public:
    // words[tile]: written by `publish`; the span is tiles [from, end).
    __device__ __forceinline__ Span(const Zeroed<u32>* words, u32 from, u32 end)
        : words(words), from(from), end(end) {
        load_words();
    }

    // The sum of the counts in this thread's words; waits until all are published. Marks are summed
    // too, but they change only the highest bit, which is masked.
    __device__ __forceinline__ Total total() {
        u32 sum = 0, any = 0;
        while (true) {
            while (!are_published()) load_words();
#pragma unroll
            for (int i = 0; i < EARLY; ++i) {
                sum += loaded_words[i] - 1;
                any |= loaded_words[i];
            }
            from += EARLY * THREADS;
            if (from >= end)
                return HAS_MARKS ? Total{sum & ~MARK, (any & MARK) != 0} : Total{sum, false};
            load_words();
        }
    }
};

// The sum of `own` over the block's threads, and true if one is marked, in each of them; all call
// it, as it has a barrier. parts: shared memory. A warp's sum must be below 2^32. HAS_MARKS: words
// may have a mark; else the result has none.
template <bool HAS_MARKS, int WARPS>
__device__ __forceinline__ Total of_block(const Total& own, u32 (&parts)[WARPS]) {
    const u32 sum = warp_sum(static_cast<u32>(own.sum));
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = sum;
    Total all{0, false};
    if constexpr (HAS_MARKS)
        all.marked = __syncthreads_or(own.marked) != 0;
    else
        __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS; ++i) all.sum += parts[i];
    return all;
}

}  // namespace cto::prefix
