// SPDX-License-Identifier: MIT
// Sums of what all tiles before one have, while the tiles are worked on.
//
// Whoever works on a tile says how many it has, and each block adds up what was said of the tiles
// since its last one. In a chain each block would wait for the sum of the one before: a microsecond
// a block, while memory is busy.
//
// Tiles have to be taken by tickets, so that whoever waits for a tile waits for a block that runs;
// and a block may wait only for tiles before all those that it has taken and said nothing of.
#pragma once
#include "core/zeroed.cuh"

namespace cto::prefix {

using zeroed::Zeroed;

constexpr u32 MARK = 1u << 31;

// A tile's word is one more than what the tile has, perhaps with a mark, or zero where nothing was
// said yet.
__device__ __forceinline__ void say(Zeroed<u32>* words, u32 tile, u32 has, bool marked) {
    *static_cast<volatile u32*>(&words[tile].value) = has + 1 + (marked ? MARK : 0);
}

__device__ __forceinline__ u32 look(const Zeroed<u32>* words, u32 tile) {
    return *static_cast<const volatile u32*>(&words[tile].value);
}

__device__ __forceinline__ u32 warp_sum(u32 x) {
#pragma unroll
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2) x += __shfl_xor_sync(ALL_LANES, x, lanes);
    return x;
}

// The sum over some tiles, and whether one of them has a mark.
struct Heard {
    u64 sum;
    bool marked;
};

// The tiles from one to before another, whose words the threads of a block look at side by side.
// HAS_MARKS: some may have one.
template <int THREADS, bool HAS_MARKS>
class Span {
    static constexpr int EARLY =
        THREADS == 256 ? 3 : 6;  // words of a thread that are asked for at a time

    const Zeroed<u32>* words;
    u32 from, end;
    u32 asked[EARLY];

    __device__ __forceinline__ void ask() {
#pragma unroll
        for (int i = 0; i < EARLY; ++i) {
            const u32 tile = from + i * THREADS + threadIdx.x;
            asked[i] = tile < end ? look(words, tile) : 1;
        }
    }
    __device__ __forceinline__ bool answered() const {
        bool all = true;
#pragma unroll
        for (int i = 0; i < EARLY; ++i) all = all && asked[i] != 0;
        return __all_sync(ALL_LANES, all);
    }

  public:
    __device__ __forceinline__ Span(const Zeroed<u32>* words, u32 from, u32 end)
        : words(words), from(from), end(end) {
        ask();
    }

    // What a thread's tiles have, as soon as all is said, and whether one has a mark. The marks that
    // are added with the rest change the highest bit alone.
    __device__ __forceinline__ Heard heard() {
        u32 sum = 0, any = 0;
        while (true) {
            while (!answered()) ask();
#pragma unroll
            for (int i = 0; i < EARLY; ++i) {
                sum += asked[i] - 1;
                any |= asked[i];
            }
            from += EARLY * THREADS;
            if (from >= end)
                return HAS_MARKS ? Heard{sum & ~MARK, (any & MARK) != 0} : Heard{sum, false};
            ask();
        }
    }
};

// What all threads of a block have heard together. All of them call it, as a barrier; a warp's sum stays
// below 2^32.
template <bool HAS_MARKS, int WARPS>
__device__ __forceinline__ Heard of_block(const Heard& own, u32 (&parts)[WARPS]) {
    const u32 sum = warp_sum(static_cast<u32>(own.sum));
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = sum;
    Heard all{0, false};
    if constexpr (HAS_MARKS)
        all.marked = __syncthreads_or(own.marked) != 0;
    else
        __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS; ++i) all.sum += parts[i];
    return all;
}

}  // namespace cto::prefix
