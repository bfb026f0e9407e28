// SPDX-License-Identifier: MIT
// Work on channels in two passes of which the second finds the elements in the L2 cache, by one
// launch.
//
// A tile of channels has n_parts items of work, in each pass. Blocks take them by tickets: the
// first `lag` items are summed ahead, then one is summed and one applied in turn.
//
//     ticket   0  1  2  3  4  5  6  7  8  9 10 11      6 items, lag 3
//     summed   0  1  2  3     4     5
//     applied              0     1     2  3  4  5
//
// The block that sums the last part of a tile finishes its sums, in the order of the parts; blocks
// that apply a part wait for it. A block so waits only for items whose tickets come before its own.
// They are held by blocks that run, and of those the one with the first ticket never waits: all
// come to an end, however many blocks a device runs at a time.
#pragma once
#include "algorithm/reduce.cuh"

namespace cto::batch_norm {

struct Schedule {
    u32 first_tile;
    u32 n_items;         // of one pass
    u32 n_parts;         // of each tile
    u32 lag;             // from n_parts - 1 to n_items
    bool sums, applies;  // the passes that there are
};

struct Item {
    u32 tile, part;
    bool sums;
};

__device__ __forceinline__ u32 count_tickets(const Schedule& schedule) {
    return schedule.n_items * (schedule.sums && schedule.applies ? 2 : 1);
}

__device__ __forceinline__ Item item_of(u32 ticket, const Schedule& schedule) {
    bool sums = schedule.sums;
    u32 item = ticket;
    if (schedule.sums && schedule.applies && ticket >= schedule.lag) {
        const u32 turn = ticket - schedule.lag;
        const bool summed = turn >= 2 * (schedule.n_items - schedule.lag);
        sums = !summed && turn % 2 == 0;
        item = summed ? ticket - schedule.n_items : turn / 2 + (sums ? schedule.lag : 0);
    }
    return {item / schedule.n_parts, item % schedule.n_parts, sums};
}

// Counters in global memory, all zero between two launches: of tickets, then two for each tile.
struct Counters {
    u32* counters;

    __device__ u32* ticket() const { return counters; }
    __device__ u32* summed(u32 tile) const { return counters + 1 + 2 * tile; }
    // Of parts that are applied, and one more from when the tile's sums are finished.
    __device__ u32* applied(u32 tile) const { return counters + 2 + 2 * tile; }

    __device__ __forceinline__ void finished(u32 tile) const {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) atomicExch(applied(tile), 1u);
    }
    // Once by each block that applies a part; the last one leaves zero behind.
    __device__ __forceinline__ void wait(u32 tile, u32 n_parts) const {
        if (threadIdx.x == 0) {
            while (*static_cast<volatile u32*>(applied(tile)) == 0) {
            }
            __threadfence();
            atomicInc(applied(tile), n_parts);
        }
        __syncthreads();
    }
};

// Gives `work` the items of this block. The ticket of the next is taken ahead, so that a block need
// not wait for it. `next` is in shared memory.
template <class Work>
__device__ __forceinline__ void each_item(const Schedule& schedule, const Counters& counters,
                                          u32& next, const Work& work) {
    const u32 n = count_tickets(schedule);
    const u32 last = n + gridDim.x - 1;  // of the tickets that are taken: the counter wraps to zero
    u32 ahead = 0;
    if (threadIdx.x == 0) ahead = atomicInc(counters.ticket(), last);
    while (true) {
        if (threadIdx.x == 0) next = ahead;
        __syncthreads();
        const u32 own = next;
        __syncthreads();
        if (own >= n) return;
        if (threadIdx.x == 0) ahead = atomicInc(counters.ticket(), last);
        work(item_of(own, schedule));
    }
}

}  // namespace cto::batch_norm
