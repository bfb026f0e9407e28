// SPDX-License-Identifier: MIT
// The two passes over columns in a launch each: a block has one part, whichever multiprocessor has room
// begins the next, and nothing waits for sums but the second launch. Rows that were read last are read
// first again, from the L2 cache.
#pragma once
#include "batch_norm/columns.cuh"
#include "batch_norm/schedule.cuh"

namespace cto::batch_norm::launches {

using namespace batch_norm::columns;
using namespace batch_norm::schedule;

// Neighbouring tiles of a part are next to each other, so that whole rows are read at a time.
__device__ __forceinline__ Item item_at(u32 number, const Schedule& schedule) {
    const u32 n_tiles = schedule.n_items / schedule.n_parts;
    return {number % n_tiles, number / n_tiles, schedule.sums};
}

// Shows `use` a thread's rows, N_ROWS of all arrays at a time, and once at least. Those before the
// last `cached` ones leave the L2 cache first.
template <int N_ROWS, class Op, class At, class Use>
__device__ __forceinline__ void each_rows(const Op& op, const Columns& columns, const At& at,
                                          i32 cached, const Use& use) {
    constexpr int DEPTH = N_ROWS / Op::READ;
    const i64 pitch = at.rows_on * columns.n_channels * columns.length;
    i64 element = at.element(columns);
    Rows<typename Op::T, WIDTH<Op>, Op::READ, DEPTH> rows;
    rows.n_columns = WIDTH<Op>;
    i32 left = at.n_rows;
#pragma unroll 1
    do {
        rows.n = left < DEPTH ? left : DEPTH;
        if (left > cached)
            rows.template load<true>(op.arrays, element, pitch, true);
        else
            rows.template load<false>(op.arrays, element, pitch, true);
        use(rows, element, pitch);
        element += DEPTH * pitch, left -= DEPTH;
    } while (left > 0);
}

// Parts take turns: what is read last is the end of the array.
template <class Op>
__device__ void sum_columns(const Op& op, const Columns& columns, const Schedule& schedule,
                            const Scratch<typename Op::A>& scratch) {
    using Walk = InColumns<Op, false>;
    __shared__ typename Op::A shared[Walk::SHARED];
    __shared__ bool last;
    const Walk walk{op, columns, nullptr, {}};
    const Item item = item_at(blockIdx.x, schedule);
    const u32 tile = schedule.first_tile + item.tile;
    const Place<Walk::COLUMNS> at(columns, tile, item.part);
    const i64 row = item.part * walk.n_channels() + walk.first_channel(tile);
    walk.sum_rows(at, tile, scratch.partials + row * Op::template State<1>::FIELDS, shared,
                  [&](const auto& use) {
                      each_rows<SUM_ROWS>(
                          op, columns, at, columns.cached,
                          [&](const auto& some, i64, i64) { use(some, Any<true>{}); });
                  });
    const Finish<Op, Walk> finish(op, walk, schedule, scratch, shared, tile);
    finish(item, last);
}

// Parts lie one behind the other, and go from the last one on.
template <class Op>
__device__ void map_columns(const Op& op, const Columns& columns, const Schedule& schedule,
                            const typename Op::A* coefficients) {
    using Walk = InColumns<Op, false>;
    using Of = OpCoefficients<Op>;
    __shared__ typename Op::A shared[COEFFICIENTS * THREADS];
    const Walk walk{op, columns, nullptr, {}};
    const Item item = item_at(schedule.n_items - 1 - blockIdx.x, schedule);
    const u32 tile = schedule.first_tile + item.tile;
    const Place<Walk::COLUMNS, false> at(columns, tile, item.part);
    Of of[Walk::COLUMNS];
    bool fetched = false;
    each_rows<ROWS<Op>>(op, columns, at, 0, [&](const auto& some, i64 element, i64 pitch) {
        if (!fetched)  // behind the first loads
            walk.fetch(of, at, tile, shared, [&](i64 channel) {
                return Of::template load<Memory::global>(coefficients + COEFFICIENTS * channel);
            });
        fetched = true;
        walk.write_rows(of, some, element, pitch, true);
    });
}

}  // namespace cto::batch_norm::launches
