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
    // Piece n_pieces is what is not loose; `kept`: its end is in shared memory.
    __device__ void apply(u32 number, u32 piece, bool kept) const {
        const Item part = item(number, false);
        const u32 tile = schedule.first_tile + part.tile,
                  n = schedule.n_parts * (schedule.n_pieces + 1);
        walk.apply_piece(
            tile, part.part, piece, schedule.n_pieces, kept, shared,
            [&] {
                if (schedule.sums) scratch.counters.wait(part.tile, n);
            },
            [&](i64 channel) {
                return schedule.sums ? Of::template load<Memory::global>(scratch.coefficients +
                                                                         COEFFICIENTS * channel)
                                     : op.without_sums(channel);
            });
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
    u32 ahead = 0, turn = 0;
    const auto take = [&] {  // the counter wraps to zero
        if (threadIdx.x == 0) ahead = atomicInc(counter, n + gridDim.x - 1);
    };
    const auto taken = [&] {
        turn ^= 1;
        if (threadIdx.x == 0) next[turn] = ahead;
        __syncthreads();
        return next[turn];
    };
    take();
    u32 ticket = taken(), own = NONE;
    for (; ticket < n_sums; ticket = taken()) {
        if (threadIdx.x == 0) before[ticket] = own;
        own = ticket;
        blocks.sum(ticket);
        take();  // not before: blocks that begin later have parts, too
        blocks.finish(ticket, last);
    }
    if (!schedule.applies) return;
    // What is not loose of the parts that the block has summed, the last one first, then loose pieces of
    // any; those that were summed last come first.
    for (bool is_own = own != NONE, kept = is_own; is_own || ticket < n; kept = false) {
        if (!is_own) take();
        const u32 number = is_own ? own : (ticket - n_sums) % schedule.n_items;
        const u32 turns = is_own ? 0 : (ticket - n_sums) / schedule.n_items + 1;
        blocks.apply(number, schedule.n_pieces - turns, kept);
        if (is_own)
            own = before[own], is_own = own != NONE;
        else
            ticket = taken();
    }
}

}  // namespace cto::batch_norm::kept
