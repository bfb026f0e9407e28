// SPDX-License-Identifier: MIT
// Two passes over channels in one launch: the first sums elements, the second applies coefficients,
// and finds the elements in the L2 cache.
//
// A tile is some channels; it has n_parts items of work (parts, e.g. some of the rows) in each
// pass. Blocks take items by tickets, numbers of an atomic counter: first `lag` items are summed,
// then one is summed and one applied in turn.
//
//     ticket   0  1  2  3  4  5  6  7  8  9 10 11      6 items, lag 3
//     summed   0  1  2  3     4     5
//     applied              0     1     2  3  4  5
//
// The block that finishes last with a part of a tile adds up its parts, in their order; blocks that
// apply a part of the tile wait for that. There is no deadlock, however many blocks run at a time:
// a block waits only for earlier tickets, which running blocks have, and the earliest of them never
// waits.
#pragma once
#include "batch_norm/coefficients.cuh"
#include "batch_norm/sums.cuh"

namespace cto::batch_norm::schedule {

using namespace batch_norm::coefficients;
using namespace batch_norm::sums;
using zeroed::Zeroed;

// One part of a tile, to be summed or applied. tile: counted from schedule.first_tile.
struct Item {
    u32 tile, part;
    bool sums;  // first pass, else the second
};

// Number of tickets: one for each item and pass; a schedule has one of the passes, or both.
__device__ u32 count_tickets(const Schedule& schedule) {
    return schedule.n_items * (schedule.sums && schedule.applies ? 2 : 1);
}

// The item of a ticket. Item i is part i % n_parts of tile i / n_parts. From ticket `lag` on, even
// turns sum and odd ones apply, until all items are summed.
__device__ Item item_of(u32 ticket, const Schedule& schedule) {
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

// *from, by a load with acquire semantics: writes before the one that it reads are visible after
// it. Unlike a fence it does not wait for asynchronous copies.
__device__ __forceinline__ u32 load_acquire(const u32* from) {
    u32 loaded;
#ifdef __CUDA_CPU__
    loaded = *static_cast<const volatile u32*>(from);
    __threadfence();
#else
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(loaded) : "l"(from) : "memory");
#endif
    return loaded;
}

// Counters in global memory, 0 before and after the launch: the next ticket, then two for each
// tile, then one for each group of parts of each tile. tile: counted from schedule.first_tile.
struct Counters {
    Zeroed<u32>* counters;

    __device__ u32* ticket() const { return &counters->value; }
    // How many parts of the tile, or groups of parts, are summed.
    __device__ Zeroed<u32>* summed(u32 tile) const { return counters + 1 + 2 * tile; }
    // 0 until the tile's coefficients are complete, then 1 + the number of parts that have waited
    // for them.
    __device__ u32* applied(u32 tile) const { return &counters[2 + 2 * tile].value; }

    // How many parts of group `group` (of n_groups) of the item's tile are summed.
    __device__ Zeroed<u32>* summed_in_group(const Item& item, u32 n_groups, u32 group,
                                            const Schedule& schedule) const {
        const u32 n_tiles = schedule.n_items / schedule.n_parts;
        return counters + 1 + 2 * n_tiles + item.tile * n_groups + group;
    }

    // Tells waiting blocks that the tile's coefficients, which threads of this block have written,
    // are in memory. All threads call it.
    __device__ void finished(u32 tile) const {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) atomicExch(applied(tile), 1u);
    }
    // Waits until `finished` was called for the tile. All threads of a block call it, once for each
    // of the tile's n parts; the last call resets the counter to 0.
    __device__ void wait(u32 tile, u32 n) const {
        if (threadIdx.x == 0) {
            while (load_acquire(applied(tile)) < 1) {
            }
            atomicInc(applied(tile), n);
        }
        __syncthreads();
    }
};

// Calls work(item) for each item of the schedule that this block takes. The next ticket is taken
// before the work on an item, to hide the latency of the atomic. counters.ticket() is the next
// ticket of all blocks. `next` is in shared memory: two entries, one is written while the other may
// still be read.
template <class Work>
__device__ void each_item(const Schedule& schedule, const Counters& counters, u32 (&next)[2],
                          const Work& work) {
    const u32 n = count_tickets(schedule);
    const u32 last = n + gridDim.x - 1;  // each block takes one too many; the last one resets to 0
    u32 ahead = 0;
    if (threadIdx.x == 0) ahead = atomicInc(counters.ticket(), last);
    for (u32 turn = 0; true; turn ^= 1) {
        if (threadIdx.x == 0) next[turn] = ahead;
        __syncthreads();
        const u32 own = next[turn];
        if (own >= n) return;
        if (threadIdx.x == 0) ahead = atomicInc(counters.ticket(), last);
        work(item_of(own, schedule));
    }
}

// ---- blocks that share channels -----------------------------------------------------------------

// Scratch memory in global memory. partials: for each part, and in it each tile, FIELDS arrays (the
// fields of Op::State) of one sum for each channel of the tile; coefficients: COEFFICIENTS numbers
// for each channel, a Coefficients.
template <class A>
struct Scratch {
    A *partials, *coefficients;
    Counters counters;
};

// Adds up the parts of a tile, and computes the coefficients of its channels: done by the block
// that finishes last. With many parts in two stages: the last block of a group of parts adds these
// up, and stores the sums in the place of the group's first part; then the last block of the tile
// adds up the groups. shared: Walk::SHARED elements of shared memory.
template <class Op, class Walk>
struct Finish {
    using A = typename Op::A;
    using State = typename Op::template State<1>;
    static constexpr u32 AT_ONCE = Walk::MERGED_AT_ONCE;

    const Op& op;
    const Walk& walk;
    const Schedule& schedule;
    const Scratch<A>& scratch;
    A* shared;
    u32 tile, width, height, x, y;
    A* partials;  // of the tile's first part

    // tile: its number among all tiles. Thread t has channel x = t % width of the tile's `width`
    // channels, and every height-th part from y = t / width on; none where y is not below `height`.
    __device__ Finish(const Op& op, const Walk& walk, const Schedule& schedule,
                      const Scratch<A>& scratch, A* shared, u32 tile)
        : op(op), walk(walk), schedule(schedule), scratch(scratch), shared(shared), tile(tile) {
        width = walk.channels(tile), height = THREADS / width;
        x = threadIdx.x % width, y = threadIdx.x / width;
        partials = scratch.partials + walk.first_channel(tile) * State::FIELDS;
    }
    // Where the sums of a part of the tile are in `partials`.
    __device__ A* part_sums(u32 part) const {
        return partials + part * walk.n_channels() * State::FIELDS;
    }
    // Returns the sums over parts first, first + step, ... below `end`, of the thread's channel, in
    // all threads that have it. A thread loads AT_ONCE parts together. join_all goes over the parts
    // twice; the first AT_ONCE stay in registers.
    __device__ State sums(u32 first, u32 end, u32 step) const {
        const u32 begin = y < height ? first + y * step : end, on = height * step;
        State first_parts[AT_ONCE];
        load(first_parts, begin, end, on);
        const auto each = [&](const auto& see) {
            show(first_parts, begin, end, on, see);
#pragma unroll 1
            for (u32 part = begin + AT_ONCE * on; part < end; part += AT_ONCE * on) {
                State some[AT_ONCE];
                load(some, part, end, on);
                show(some, part, end, on, see);
            }
        };
        State sums;
        sums.join_all(each, walk.over(x, y, width, height, shared));
        return sums;
    }
    // Called by a block when it has summed `item`. The last block of the tile stores the
    // coefficients, tells blocks that wait for them, and then writes the outputs of the channels
    // (Op::write). `last` is in shared memory.
    __device__ void operator()(const Item& item, bool& last) const {
        const u32 group_parts = schedule.group_parts, first = item.part / group_parts * group_parts;
        const u32 n = parts_of_group(first);
        const u32 n_groups = (schedule.n_parts - 1) / group_parts + 1;
        const Counters& counters = scratch.counters;
        const i64 channel = walk.first_channel(tile) + x;
        A reference = 0;
        ChannelInputs<A> inputs{};
        State all;
        // A loop of up to two rounds, group and tile, so that the code exists once: it runs rarely,
        // and then has to be loaded into the instruction cache.
#pragma unroll 1
        for (bool whole = group_parts == 1; true; whole = true) {
            auto* const ticket =
                whole ? counters.summed(item.tile)
                      : counters.summed_in_group(item, n_groups, first / group_parts, schedule);
            if (!reduce::arrives_last(ticket, whole ? n_groups : n, last)) return;
            if (whole && y == 0)
                reference = op.reference(channel, walk.length(), 1),
                inputs = op.channel_inputs(channel);
            all = sums(whole ? 0 : first, whole ? schedule.n_parts : first + n,
                       whole ? group_parts : 1);
            if (whole) break;
            if (y == 0) all.store(part_sums(first) + x, width);
        }
        if (y == 0)
            op.coefficients(inputs, all, reference)
                .store(scratch.coefficients + COEFFICIENTS * channel);
        if (schedule.applies) counters.finished(item.tile);
        if (y == 0) op.write(channel, all, reference);
    }

  private:
    // Parts of the group that begins with part `first`.
    __device__ u32 parts_of_group(u32 first) const {
        const u32 rest = schedule.n_parts - first;
        return rest < schedule.group_parts ? rest : schedule.group_parts;
    }
    // some[k] = sums of part (part + k * on) of the thread's channel, if that part is before `end`.
    __device__ void load(State (&some)[AT_ONCE], u32 part, u32 end, u32 on) const {
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; ++k)
            if (part + k * on < end) some[k] = State::load(part_sums(part + k * on) + x, width);
    }
    // see(some[k]) for those k that `load` has set.
    template <class See>
    static __device__ void show(const State (&some)[AT_ONCE], u32 part, u32 end, u32 on,
                                const See& see) {
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; ++k)
            if (part + k * on < end) see(some[k]);
    }
};

// A block's work in the passes that `schedule` has. op: what is computed (operators.cuh). walk:
// which elements a part has (InPieces or InColumns); walk.sum writes a part's sums to
// scratch.partials, Finish computes scratch.coefficients from them, walk.apply writes the results
// of a part's elements.
template <class Op, class Walk>
__device__ void by_schedule(const Op& op, const Walk& walk, const Schedule& schedule,
                            const Scratch<typename Op::A>& scratch) {
    using Coefs = OpCoefficients<Op>;
    __shared__ typename Op::A shared[Walk::SHARED];
    __shared__ u32 next[2];
    __shared__ bool last;
    constexpr int FIELDS = Op::template State<1>::FIELDS;
    each_item(schedule, scratch.counters, next, [&](const Item& item) {
        const u32 tile = schedule.first_tile + item.tile;
        const Counters& counters = scratch.counters;
        if (item.sums) {
            const i64 row = item.part * walk.n_channels() + walk.first_channel(tile);
            walk.sum(tile, item.part, scratch.partials + row * FIELDS, shared);
            const Finish<Op, Walk> finish(op, walk, schedule, scratch, shared, tile);
            finish(item, last);
        } else {
            walk.apply(
                tile, item.part, shared,
                [&] {
                    if (schedule.sums) counters.wait(item.tile, schedule.n_parts);
                },
                [&](i64 channel) {
                    return schedule.sums ? Coefs::template load<Memory::global>(
                                               scratch.coefficients + COEFFICIENTS * channel)
                                         : op.without_sums(channel);
                });
        }
    });
}

}  // namespace cto::batch_norm::schedule
