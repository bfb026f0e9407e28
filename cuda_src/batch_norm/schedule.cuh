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
#include "batch_norm/coefficients.cuh"
#include "batch_norm/sums.cuh"

namespace cto::batch_norm::schedule {

using namespace batch_norm::coefficients;
using namespace batch_norm::sums;
using zeroed::Zeroed;

struct Item {
    u32 tile, part;
    bool sums;
};

// One ticket for each item and pass: the schedule may sum, or apply, or do both.
__device__ u32 count_tickets(const Schedule& schedule) {
    return schedule.n_items * (schedule.sums && schedule.applies ? 2 : 1);
}

// Ticket t with both passes: item t is summed for t < lag; then turn = t - lag is item lag + turn / 2 summed
// where turn is even, and item turn / 2 applied where turn is odd, until all n_items are summed; from then on
// item t - n_items is applied. Item i is part i % n_parts of tile i / n_parts.
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

// Writes from before this one can be read after it. A fence would wait for copies that are on their
// way as well.
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

// Counters in global memory: of tickets, then two for each tile, then those of groups of parts.
struct Counters {
    Zeroed<u32>* counters;

    __device__ u32* ticket() const { return &counters->value; }
    __device__ Zeroed<u32>* summed(u32 tile) const { return counters + 1 + 2 * tile; }
    // Counts parts that are applied, and one more once the tile's sums are finished.
    __device__ u32* applied(u32 tile) const { return &counters[2 + 2 * tile].value; }

    __device__ Zeroed<u32>* grouped(const Item& item, u32 n_groups, u32 group,
                                    const Schedule& schedule) const {
        const u32 n_tiles = schedule.n_items / schedule.n_parts;
        return counters + 1 + 2 * n_tiles + item.tile * n_groups + group;
    }

    __device__ void finished(u32 tile) const {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) atomicExch(applied(tile), 1u);
    }
    // Until a tile is finished; n times for each, of which the last one leaves zero behind.
    __device__ void wait(u32 tile, u32 n) const {
        if (threadIdx.x == 0) {
            while (load_acquire(applied(tile)) < 1) {
            }
            atomicInc(applied(tile), n);
        }
        __syncthreads();
    }
};

// Gives `work` the items of this block. The ticket of the next is taken ahead, so that a block need
// not wait for it. `next` is in shared memory: two entries, so that one can be written while the
// other is read.
template <class Work>
__device__ void each_item(const Schedule& schedule, const Counters& counters, u32 (&next)[2],
                          const Work& work) {
    const u32 n = count_tickets(schedule);
    const u32 last = n + gridDim.x - 1;  // of the tickets that are taken: the counter wraps to zero
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

// Scratch memory: for each part and tile FIELDS sums of the tile's channels side by side, four coefficients for each channel.
template <class A>
struct Scratch {
    A *partials, *coefficients;
    Counters counters;
};

// A tile's channels from the sums of its parts: some threads for each channel. Where a tile has many
// parts they are put together in groups first, each by the block that comes last; the sums of a
// group take the place of its first part's.
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

    // Thread t has channel x = t % width of the tile's `width` channels, and every height-th part
    // from y = t / width on; none where y is not below `height`.
    __device__ Finish(const Op& op, const Walk& walk, const Schedule& schedule,
                      const Scratch<A>& scratch, A* shared, u32 tile)
        : op(op), walk(walk), schedule(schedule), scratch(scratch), shared(shared), tile(tile) {
        width = walk.channels(tile), height = THREADS / width;
        x = threadIdx.x % width, y = threadIdx.x / width;
        partials = scratch.partials + walk.first_channel(tile) * State::FIELDS;
    }
    // Where the sums of part `part` of the tile begin.
    __device__ A* of_part(u32 part) const {
        return partials + part * walk.n_channels() * State::FIELDS;
    }
    // Sums of every `step`-th part from `first` on: AT_ONCE of a thread are on their way together, the
    // first ones stay in registers.
    __device__ State sums(u32 first, u32 end, u32 step) const {
        const u32 begin = y < height ? first + y * step : end, on = height * step;
        State kept[AT_ONCE];
        load(kept, begin, end, on);
        const auto each = [&](const auto& see) {
            show(kept, begin, end, on, see);
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
    // When a part has been summed. Where it was the last one the tile is finished, for blocks that
    // wait, and what is written of it follows.
    __device__ void operator()(const Item& item, bool& last) const {
        const u32 of_group = schedule.of_group, first = item.part / of_group * of_group;
        const u32 n = parts_of_group(first);
        const u32 n_groups = (schedule.n_parts - 1) / of_group + 1;
        const Counters& counters = scratch.counters;
        const i64 channel = walk.first_channel(tile) + x;
        A reference = 0;
        ChannelInputs<A> inputs{};
        State all;
        // One code for groups and tile: it is run seldom, and is in no cache when it is.
#pragma unroll 1
        for (bool whole = of_group == 1; true; whole = true) {
            auto* const ticket = whole
                                     ? counters.summed(item.tile)
                                     : counters.grouped(item, n_groups, first / of_group, schedule);
            if (!reduce::arrives_last(ticket, whole ? n_groups : n, last)) return;
            if (whole && y == 0)
                reference = op.reference(channel, walk.length(), 1),
                inputs = op.channel_inputs(channel);
            all =
                sums(whole ? 0 : first, whole ? schedule.n_parts : first + n, whole ? of_group : 1);
            if (whole) break;
            if (y == 0) all.store(of_part(first) + x, width);
        }
        if (y == 0)
            op.coefficients(inputs, all, reference)
                .store(scratch.coefficients + COEFFICIENTS * channel);
        if (schedule.applies) counters.finished(item.tile);
        if (y == 0) op.write(channel, all, reference);
    }

  private:
    // How many parts the group has whose first part is `first`.
    __device__ u32 parts_of_group(u32 first) const {
        const u32 rest = schedule.n_parts - first;
        return rest < schedule.of_group ? rest : schedule.of_group;
    }
    // some[k] = the thread's channel's sums of part part + k * on, if that is before `end`.
    __device__ void load(State (&some)[AT_ONCE], u32 part, u32 end, u32 on) const {
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; ++k)
            if (part + k * on < end) some[k] = State::load(of_part(part + k * on) + x, width);
    }
    // Calls see(some[k]) for each k whose part, part + k * on, is before `end`: `load` left the others unset.
    template <class See>
    static __device__ void show(const State (&some)[AT_ONCE], u32 part, u32 end, u32 on,
                                const See& see) {
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; ++k)
            if (part + k * on < end) see(some[k]);
    }
};

// Sums and applies the items of this block: walk.sum leaves a part's sums in `partials`, Finish makes
// `coefficients` of them, walk.apply maps a part's elements by these.
template <class Op, class Walk>
__device__ void by_schedule(const Op& op, const Walk& walk, const Schedule& schedule,
                            const Scratch<typename Op::A>& scratch) {
    using Of = OpCoefficients<Op>;
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
                    return schedule.sums ? Of::template load<Memory::global>(scratch.coefficients +
                                                                             COEFFICIENTS * channel)
                                         : op.without_sums(channel);
                });
        }
    });
}

}  // namespace cto::batch_norm::schedule
