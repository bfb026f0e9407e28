// SPDX-License-Identifier: MIT
// The two passes of batch_norm/schedule.cuh where blocks keep the last rows of what they have summed
// in shared memory.
//
// Tickets are first those of the parts that are summed, then those of pieces of what is left of
// them. A block that gets no more of the first ones finishes what it has kept, and goes on with
// pieces of any part. When it waits, all parts are with blocks that run, and none of them waits
// before it has summed its own: all come to an end.
#pragma once
#include "batch_norm/schedule.cuh"

namespace cto::batch_norm::kept {

using namespace batch_norm::schedule;

constexpr u32 NONE = ~0u;

template <class Op, class Walk>
struct Blocks {
    using A = typename Op::A;
    using Of = OpCoefficients<Op>;

    const Op& op;
    const Walk& walk;
    const Schedule& schedule;
    const Scratch<A>& scratch;
    u32* before;  // of each part that one that the same block has summed before it, or NONE
    A* shared;

    __device__ Item item(u32 number, bool sums) const {
        return {number / schedule.n_parts, number % schedule.n_parts, sums};
    }
    __device__ u32 n_sums() const { return schedule.sums ? schedule.n_items : 0; }
    __device__ u32 n_tickets() const {
        return n_sums() + (schedule.applies ? schedule.n_items * schedule.n_pieces : 0);
    }
    __device__ auto waiting(u32 tile) const {
        const u32 n = schedule.n_parts * (schedule.n_pieces + 1);
        return [this, tile, n] {
            if (schedule.sums) scratch.counters.wait(tile, n);
        };
    }
    __device__ auto of_channel() const {
        return [this](i64 channel) {
            return schedule.sums ? Of::template load<Memory::global>(scratch.coefficients +
                                                                     COEFFICIENTS * channel)
                                 : op.without_sums(channel);
        };
    }
    __device__ void sum(u32 number) const {
        const Item part = item(number, true);
        const u32 tile = schedule.first_tile + part.tile;
        const i64 row = part.part * walk.n_channels() + walk.first_channel(tile);
        walk.sum(tile, part.part, scratch.partials + row * Op::template State<1>::FIELDS, shared);
    }
    __device__ void finish(u32 number, bool& last) const {
        const Item part = item(number, true);
        Finish<Op, Walk>(op, walk, schedule, scratch, shared, schedule.first_tile + part.tile)(
            part, last);
    }
    // What is kept of the part that was summed last, and what others have as much of.
    __device__ void apply_own(u32 number) const {
        for (bool again = false; number != NONE; again = true, number = before[number]) {
            const Item part = item(number, false);
            walk.apply_kept(schedule.first_tile + part.tile, part.part, again, shared,
                            waiting(part.tile), of_channel());
        }
    }
    // Those that were summed last come first.
    __device__ void apply_piece(u32 number) const {
        const u32 turn = number / schedule.n_items;
        const Item part = item(number % schedule.n_items, false);
        walk.apply_piece(schedule.first_tile + part.tile, part.part, schedule.n_pieces - 1 - turn,
                         schedule.n_pieces, schedule.sums, shared, waiting(part.tile),
                         of_channel());
    }
};

template <class Op, class Walk>
__device__ void by_kept_parts(const Op& op, const Walk& walk, const Schedule& schedule,
                              const Scratch<typename Op::A>& scratch, u32* before) {
    __shared__ typename Op::A shared[Walk::SHARED];
    __shared__ u32 next[2];
    __shared__ bool last;
    const Blocks<Op, Walk> blocks{op, walk, schedule, scratch, before, shared};
    const u32 n_sums = blocks.n_sums(), n = blocks.n_tickets();
    u32* const counter = scratch.counters.ticket();
    u32 own = NONE, ahead = 0;
    const auto take = [&] {  // the counter wraps to zero
        if (threadIdx.x == 0) ahead = atomicInc(counter, n + gridDim.x - 1);
    };
    take();
    for (u32 turn = 0; true; turn ^= 1) {
        if (threadIdx.x == 0) next[turn] = ahead;
        __syncthreads();
        const u32 ticket = next[turn];
        if (ticket < n_sums) {
            if (threadIdx.x == 0) before[ticket] = own;
            own = ticket;
            blocks.sum(ticket);
            take();  // not before: blocks that begin later have parts, too
            blocks.finish(ticket, last);
            continue;
        }
        if (schedule.applies) blocks.apply_own(own);
        own = NONE;
        if (ticket >= n) return;
        take();
        blocks.apply_piece(ticket - n_sums);
    }
}

}  // namespace cto::batch_norm::kept
