// SPDX-License-Identifier: MIT
// The two passes of batch_norm/schedule.cuh over items (parts of tiles), but a block applies the
// items that it has summed itself: the last rows of the last one are still in its shared memory.
//
// Blocks take tickets for parts to sum; if the schedule only applies, for parts to apply. There is
// no deadlock: a block waits only when no tickets are left; then running blocks have all parts, and
// each sums its own before it waits.
#pragma once
#include "batch_norm/schedule.cuh"

namespace cto::batch_norm::own_parts {

using namespace batch_norm::schedule;

constexpr u32 NONE = ~0u;

// A block's work on an item in each pass. Items are numbered from 0 to schedule.n_items - 1.
template <class Op, class Walk>
struct Blocks {
    using A = typename Op::A;
    using Coefs = OpCoefficients<Op>;

    const Op& op;
    const Walk& walk;
    const Schedule& schedule;
    const Scratch<A>& scratch;
    u32* before;  // linked list: before[i] is the item that the same block summed before i, or NONE
    A* shared;    // Walk::SHARED elements of shared memory

    // Item `number` is part number % n_parts of tile number / n_parts (from schedule.first_tile
    // on).
    __device__ Item item(u32 number, bool sums) const {
        return {number / schedule.n_parts, number % schedule.n_parts, sums};
    }
    // Sums item `number`: writes its sums to scratch.partials.
    __device__ void sum(u32 number) const {
        const Item part = item(number, /*sums=*/true);
        const u32 tile = schedule.first_tile + part.tile;
        const i64 row = part.part * walk.n_channels() + walk.first_channel(tile);
        walk.sum(tile, part.part, scratch.partials + row * Op::template State<1>::FIELDS, shared);
    }
    // Counts item `number` as summed. The block that counts the last part of a tile stores its
    // channels' coefficients, releases blocks that wait for them, and writes the channels' outputs.
    // All threads call it. last: in shared memory, set to true in that block.
    __device__ void finish(u32 number, bool& last) const {
        const Item part = item(number, /*sums=*/true);
        const u32 tile = schedule.first_tile + part.tile;
        const Finish<Op, Walk> finish(op, walk, schedule, scratch, shared, tile);
        finish(part, last);
    }
    // Writes the results of item `number`, after a wait for its tile's coefficients. resident: its
    // last rows are still in shared memory. If nothing was summed, coefficients follow from inputs.
    __device__ void apply(u32 number, bool resident) const {
        const Item part = item(number, /*sums=*/false);
        walk.apply(
            schedule.first_tile + part.tile, part.part, resident, shared,
            [&] {
                if (schedule.sums) scratch.counters.wait(part.tile, schedule.n_parts);
            },
            [&](i64 channel) {
                return schedule.sums ? Coefs::template load<Memory::global>(scratch.coefficients +
                                                                            COEFFICIENTS * channel)
                                     : op.without_sums(channel);
            });
    }
};

// Sums the parts whose tickets the block takes, then applies the same parts in reverse order: the
// one summed last still has rows in shared memory. If the schedule only applies, applies the parts
// of its tickets. op: the operator (operators.cuh); walk: how it goes over a part (InColumns);
// scratch: partial sums, coefficients and counters; before[i]: set to the item that the same block
// summed before item i, or NONE.
template <class Op, class Walk>
__device__ void by_own_parts(const Op& op, const Walk& walk, const Schedule& schedule,
                             const Scratch<typename Op::A>& scratch, u32* before) {
    __shared__ typename Op::A shared[Walk::SHARED];
    __shared__ u32 next[2];
    __shared__ bool last;
    const Blocks<Op, Walk> blocks{op, walk, schedule, scratch, before, shared};
    const u32 n = schedule.n_items;
    // own: the last item that this block has summed; ahead: the next ticket, in thread 0. next has
    // two entries, so that one may be written while the other is read.
    u32 own = NONE, ahead = 0, turn = 0;
    const auto take = [&] {  // each block takes one ticket too many; the last one resets to 0
        if (threadIdx.x == 0) ahead = atomicInc(scratch.counters.ticket(), n + gridDim.x - 1);
    };
    const auto next_number = [&] {
        turn ^= 1;
        if (threadIdx.x == 0) next[turn] = ahead;
        __syncthreads();
        return next[turn];
    };
    take();
    u32 number = next_number();
    for (; schedule.sums && number < n; number = next_number()) {
        if (threadIdx.x == 0) before[number] = own;
        own = number;
        blocks.sum(number);
        take();  // only now, so that blocks that start later get parts, too
        blocks.finish(number, last);
    }
    if (!schedule.applies) return;
    if (schedule.sums) number = own;
    for (bool resident = schedule.sums; number < n; resident = false) {
        if (!schedule.sums) take();
        blocks.apply(number, resident);
        number = schedule.sums ? before[number] : next_number();
    }
}

}  // namespace cto::batch_norm::own_parts
