// SPDX-License-Identifier: MIT
// Sums of what all tiles before one have, while the tiles are worked on: decoupled look-back
// (Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back", 2016).
//
// A tile's state is one word, written in one piece: its own sum, then that of it and all before it.
//
//     bit   63 ........ 2   1 0
//              the sum      0 nothing yet, 1 of the tile, 2 of all up to it
//
// Tiles are taken by tickets, so that whoever waits for a tile waits for a block that runs.
#pragma once
#include "core/types.cuh"

namespace cto::prefix {

constexpr u64 OF_TILE = 1, UP_TO_TILE = 2;

__device__ __forceinline__ void publish(u64* state, u64 sum, u64 kind) {
    *static_cast<volatile u64*>(state) = sum << 2 | kind;
}

__device__ __forceinline__ u64 await(const u64* state) {
    u64 word;
    do word = *static_cast<const volatile u64*>(state);
    while ((word & 3) == 0);
    return word;
}

__device__ __forceinline__ u64 warp_sum(u64 x) {
#pragma unroll
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2) x += __shfl_xor_sync(ALL_LANES, x, lanes);
    return x;
}

// The first thing said of a tile, by one thread.
__device__ __forceinline__ void publish_own(u64* states, i64 tile, u64 sum) {
    publish(states + tile, sum, tile == 0 ? UP_TO_TILE : OF_TILE);
}

// What all tiles before this one have; `sum` is its own. By a whole warp, after publish_own.
__device__ __forceinline__ u64 sum_before(u64* states, i64 tile, u64 sum) {
    if (tile == 0) return 0;
    const int lane = threadIdx.x % WARP;
    u64 before = 0;
    for (i64 nearest = tile - 1; true; nearest -= WARP) {
        const i64 place = nearest - lane;
        const u64 word = place >= 0 ? await(states + place) : UP_TO_TILE;
        const u32 complete = __ballot_sync(ALL_LANES, (word & 3) == UP_TO_TILE);
        const int last = complete ? __ffs(static_cast<int>(complete)) - 1 : WARP - 1;
        before += warp_sum(lane <= last ? word >> 2 : 0);
        if (complete) break;
    }
    if (lane == 0) publish(states + tile, before + sum, UP_TO_TILE);
    return before;
}

}  // namespace cto::prefix
