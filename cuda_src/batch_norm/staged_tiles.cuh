// SPDX-License-Identifier: MIT
// Channels that fit into the shared memory of a block, which reads them once. The array is a
// matrix, a channel is `length` of its columns, a tile some channels. A slot is W neighbouring
// columns of a row, of at most two channels; it is copied and read by one thread.
//
// A thread uses the slots that it copied itself. When a slot is used for the last time, the copy of
// a slot of a later tile to the same place begins: so global memory is busy all the time, except
// while sums of threads are added up.
#pragma once
#include "batch_norm/rows.cuh"
#include "batch_norm/tile_place.cuh"

namespace cto::batch_norm::staged_tiles {

using namespace batch_norm::rows;
using tile_place::Place;

// async_copy::wait for `last` known at run time: waits for all groups of copies but the last `last`
// ones, at most N.
template <int N = MOST_GROUPS - 1>
__device__ __forceinline__ void wait_but(int last) {
    if constexpr (N == 0)
        async_copy::wait<0>();
    else if (last >= N)
        async_copy::wait<N>();
    else
        wait_but<N - 1>(last);
}

// values[k][0] = its sum over the lanes of the warp, in each lane, for each k < K: an `Over` of
// sums.cuh for one channel.
template <class A>
struct OverLanes {
    // Adds up by shuffles; all lanes of the warp call it.
    template <int K>
    __device__ void operator()(A (&values)[K][1]) const {
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (u32 step = WARP / 2; step > 0; step /= 2)
                values[k][0] += __shfl_xor_sync(ALL_LANES, values[k][0], step);
    }
};

// Shared memory after the slots. thread_sums: FIELDS sums of each thread, for each of its up to two
// channels. For each channel of a tile: inputs (two numbers) and reference, in two copies, for this
// tile and the next; coefficients; totals, its FIELDS sums.
template <class A, int FIELDS>
struct Shared {
    A *thread_sums, *inputs, *references, *coefficients, *totals;

    // Lays the arrays out from `from` on. n_threads: threads with columns; channels: of a tile.
    __device__ Shared(A* from, u32 n_threads, u32 channels)
        : thread_sums(from),
          inputs(thread_sums + 2 * FIELDS * n_threads),
          references(inputs + 2 * 2 * channels),
          coefficients(references + 2 * channels),
          totals(coefficients + COEFFICIENTS * channels) {}
};

// The work of a block on its tiles. Shared memory has a ring of ring_rows slots for each thread and
// input array, then Shared:
//
//     slot `place` of thread t    byte (array * ring_rows + place) * slot_pitch + t * SLOT_NBYTES
//     row u of the tile           place (head + u) % ring_rows
//
// Rows are copied in groups of group_rows rows, tile_groups for a tile.
template <class Op, int W>
struct InShared {
    using T = typename Op::T;
    using A = typename Op::A;
    using State = typename Op::template State<1>;
    using Sums = typename Op::template State<W>;
    using Coefs = OpCoefficients<Op>;
    static constexpr int READ = Op::READ, FIELDS = State::FIELDS, DEPTH = STAGED_ROWS / READ;
    static constexpr u32 SLOT_NBYTES = W * sizeof(T);
    template <int N>
    using Rows = batch_norm::rows::Rows<T, W, READ, N>;

    const Op& op;
    const StagedTiles& tiles;
    Place<W> at;
    u8* own;         // the thread's first slot
    u32 slot_pitch;  // bytes from one slot of the thread to its next
    Shared<A, FIELDS> shared;
    u32 turn = 0;  // which copy of inputs and references is this tile's
    i32 head = 0;  // place in the ring of the tile's first row

    // op: the operator; tiles: sizes of the array, its tiles and the ring; memory: the block's
    // dynamic shared memory.
    __device__ InShared(const Op& op, const StagedTiles& tiles, u8* memory)
        : op(op),
          tiles(tiles),
          at(tiles),
          own(memory + threadIdx.x * SLOT_NBYTES),
          slot_pitch(at.n_threads() * SLOT_NBYTES),
          shared(reinterpret_cast<A*>(memory + READ * tiles.ring_rows * slot_pitch), at.n_threads(),
                 tiles.tile_channels) {}

    // ---- rows ------------------------------------------------------------------------------------

    // Address of the thread's slot of its row u of the tile in the ring.
    __device__ u8* slot(int array, i32 u) const {
        const i32 place = head + u < tiles.ring_rows ? head + u : head + u - tiles.ring_rows;
        return own + (array * tiles.ring_rows + place) * slot_pitch;
    }
    // Begins to copy the thread's slots of N rows, the first at index `element` of the arrays, to
    // the places of rows u, u + 1, ... of the tile. Not ALL: only the first n.
    template <int N, bool ALL>
    __device__ void start(i64 element, i32 u, i32 n) const {
#pragma unroll
        for (int a = 0; a < READ; ++a) {
            u8* to = slot(a, u);
            const T* from = op.arrays[a] + element;
#pragma unroll
            for (int k = 0; k < N; ++k, to += slot_pitch, from += at.pitch)
                if (ALL || k < n) async_copy::copy<SLOT_NBYTES>(to, from);
        }
    }
    // Loads rows u, ..., u + N - 1 of the tile from shared memory. Not ALL: only the first n.
    template <int N, bool ALL>
    __device__ void load(Rows<N>& rows, i32 u, i32 n) const {
        rows.n = ALL ? N : n;
#pragma unroll
        for (int a = 0; a < READ; ++a) {
            const u8* from = slot(a, u);
#pragma unroll
            for (int k = 0; k < N; ++k, from += slot_pitch) {
                if (!ALL) rows.registers[a][k] = {};
                if (ALL || k < n)
                    rows.registers[a][k] = *reinterpret_cast<const typename Rows<N>::Slot*>(from);
            }
        }
    }
    // Writes the results of N rows, the first to index `element` of the array. coefs: of the
    // thread's columns. Not ALL: only the first rows.n.
    template <int N, bool ALL>
    __device__ void write(const Rows<N>& rows, const Coefs (&coefs)[W], i64 element) const {
        T* to = op.result + element;
        [[maybe_unused]] relu::Residuals<Op, W, N> residuals;
        if constexpr (Op::ADDS)
#pragma unroll
            for (int k = 0; k < N; ++k)
                residuals.load(op, k, element + k * at.pitch, ALL || k < rows.n);
#pragma unroll
        for (int k = 0; k < N; ++k, to += at.pitch) {
            A values[W];
#pragma unroll
            for (int i = 0; i < W; ++i) values[i] = map_element<Op>(coefs[i], rows, k, i);
            if constexpr (Op::ADDS) residuals.rectify(values, k);
            if (ALL || k < rows.n)
                relu::store_results(op, rows, k, to, element + k * at.pitch, values,
                                    [](T* to, const A(&results)[W]) {
                                        vec::store_streaming(reinterpret_cast<Vec<T, W>*>(to),
                                                             vec::from_acc<T>(results));
                                    });
        }
    }
    // Calls use(rows, element) for the thread's rows of the tile beyond the first staged_rows,
    // which are not in shared memory: they are read in both passes, in the second (LAST) from the
    // L2 cache.
    template <bool LAST, class Use>
    __device__ void each_loose(u32 tile, const Use& use) const {
        using Slot = typename Rows<DEPTH>::Slot;
        const i32 n = at.rows(tile);
#pragma unroll 1
        for (i32 u = tiles.staged_rows; u < n; u += DEPTH) {
            const i64 element = at.element(tile) + u * at.pitch;
            Rows<DEPTH> rows;
            rows.n = n - u < DEPTH ? n - u : DEPTH;
#pragma unroll
            for (int k = 0; k < DEPTH; ++k)
#pragma unroll
                for (int a = 0; a < READ; ++a) {
                    rows.registers[a][k] = {};
                    const auto* const from =
                        reinterpret_cast<const Slot*>(op.arrays[a] + element + k * at.pitch);
                    if (k < rows.n) rows.registers[a][k] = LAST ? vec::load_streaming(from) : *from;
                }
            use(rows, element);
        }
    }

    // ---- a tile ----------------------------------------------------------------------------------

    // Begins to copy the first ring_groups groups of rows: of the block's first tile, and of later
    // ones if there is room. Stores the references of the first tile's channels.
    __device__ void begin(u32 tile) {
        if (threadIdx.x < at.n_channels(tile))
            shared.references[threadIdx.x] = reference(tile, threadIdx.x);
        i32 first = 0;  // the group's first row, in its tile
        for (i32 group = 0; group < tiles.ring_groups; ++group) {
            const i32 n = rest_of(tile, first);
#pragma unroll 1
            for (i32 u = 0; u < n; ++u)
                start<1, /*ALL=*/true>(at.element(tile) + (first + u) * at.pitch,
                                       group * tiles.group_rows + u, 1);
            async_copy::commit();
            first += tiles.group_rows;
            if (first >= tiles.tile_groups * tiles.group_rows) first = 0, tile += gridDim.x;
        }
        __syncthreads();
    }
    // How many rows the thread has in the group of a tile that begins at row `first`; 0 or less if
    // none.
    __device__ i32 rest_of(u32 tile, i32 first) const {
        const i32 n = at.staged_rows(tile) - first;
        return n < tiles.group_rows ? n : tiles.group_rows;
    }
    // The number that is subtracted from elements of a channel of the tile before they are summed.
    __device__ A reference(u32 tile, u32 channel) const {
        return op.reference(at.first_channel(tile) + channel, tiles.length, tiles.n_rows);
    }
    // sums = the thread's sums over its rows of the tile, group by group as copies arrive.
    __device__ void sum(u32 tile, Sums& sums) const {
        A references[W];
#pragma unroll
        for (int i = 0; i < W; ++i)
            references[i] = shared.references[turn * tiles.tile_channels + at.channel(i)];
#pragma unroll 1
        for (i32 group = 0; group < tiles.tile_groups; ++group) {
            wait_but(tiles.ring_groups - 1 - group);
            const i32 first = group * tiles.group_rows, n = rest_of(tile, first);
            if (group == 0 && n > 0) begin_sums(sums, references);
            i32 u = 0;
#pragma unroll 1
            for (; u + DEPTH <= n; u += DEPTH) add<DEPTH>(sums, first + u);
#pragma unroll 1
            for (; u < n; ++u) add<1>(sums, first + u);
        }
        each_loose</*LAST=*/false>(tile, [&](const auto& rows, i64) { sums.add(rows); });
        sums.end(static_cast<A>(at.rows(tile)), references);
    }
    // Begins the sums with the thread's first row of the tile.
    __device__ void begin_sums(Sums& sums, const A (&references)[W]) const {
        Rows<1> row;
        load<1, /*ALL=*/true>(row, /*u=*/0, /*n=*/1);
        sums.begin(row, A(1), references);
    }
    // Adds rows u, ..., u + N - 1 of the tile.
    template <int N>
    __device__ void add(Sums& sums, i32 u) const {
        Rows<N> rows;
        load<N, /*ALL=*/true>(rows, u, N);
        sums.add(rows);
    }

    // ---- sums of channels ------------------------------------------------------------------------

    // Stores the thread's sums in shared memory, one set (0 or 1) for each of its one or two
    // channels.
    __device__ void put(const Sums& sums) const {
        if (at.y >= at.height) return;
        put(sums.columns(0, at.split), 0);
        if (at.split < W) put(sums.columns(at.split, W), 1);
    }
    // Stores `sums` as the thread's set `group`.
    __device__ void put(const State& sums, int group) const {
        sums.store(sums_of(group) + at.entry(), at.n_threads());
    }
    // Set `group` (0 or 1) of thread_sums: field k of thread entry e at k * n_threads() + e.
    __device__ A* sums_of(int group) const {
        return shared.thread_sums + group * FIELDS * at.n_threads();
    }
    // The coefficients of a tile of one channel, in each thread. Each warp adds up its threads,
    // writes that to warp_sums, and after a barrier adds up all warps.
    __device__ Coefs finish_one(const Sums& sums) const {
        const u32 lane = threadIdx.x % WARP, n_warps = blockDim.x / WARP;
        A* const warp_sums = shared.thread_sums + turn * n_warps * FIELDS;
        State all;
        if (at.y < at.height) all = sums.columns(0, W);
        all.join(OverLanes<A>{});
        if (lane == 0) all.store(warp_sums + threadIdx.x / WARP * FIELDS);
        const A reference = shared.references[turn];  // after the barrier it may be overwritten
        __syncthreads();
        all = lane < n_warps ? State::from_shared(warp_sums + lane * FIELDS) : State{};
        all.join(OverLanes<A>{});
        if (threadIdx.x == 0) all.store(shared.totals);
        return op.coefficients(inputs_of(0), all, reference);
    }
    // The inputs of a channel of this tile, from shared memory.
    __device__ ChannelInputs<A> inputs_of(u32 channel) const {
        const A* const from = shared.inputs + 2 * (turn * tiles.tile_channels + channel);
        return {from[0], from[1]};
    }
    // coefs[i] = coefficients of the thread's column i, from the sums of all threads.
    __device__ void finish(u32 tile, const Sums& sums, Coefs (&coefs)[W]) const {
        if (tiles.tile_channels == 1) {
            const Coefs shared_coefs = finish_one(sums);
#pragma unroll
            for (int i = 0; i < W; ++i) coefs[i] = Op::fold(shared_coefs);
            return;
        }
        put(sums);
        __syncthreads();
        finish_each(tile);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < W; ++i)
            coefs[i] = Op::fold(Coefs::template load<Memory::shared>(shared.coefficients +
                                                                     COEFFICIENTS * at.channel(i)));
    }
    // Coefficients and sums of each channel of the tile, to shared memory; a warp takes a channel.
    __device__ void finish_each(u32 tile) const {
        const u32 lane = threadIdx.x % WARP, n_warps = blockDim.x / WARP;
#pragma unroll 1
        for (u32 c = threadIdx.x / WARP; c < at.n_channels(tile); c += n_warps) {
            State sums;
            sums.join_all([&](const auto& see) { each_entry(c, lane, see); }, OverLanes<A>{});
            if (lane > 0) continue;
            op.coefficients(inputs_of(c), sums, shared.references[turn * tiles.tile_channels + c])
                .store(shared.coefficients + COEFFICIENTS * c);
            sums.store(shared.totals + FIELDS * c);
        }
    }
    // Calls see(sums) for the thread_sums of a channel, of all threads with columns of it; lane
    // `lane` takes every WARP-th. Entries are numbered x * height + y.
    template <class See>
    __device__ void each_entry(u32 channel, u32 lane, const See& see) const {
        const u32 from = channel * tiles.length, first = from / W;
        const u32 end = ((from + tiles.length - 1) / W + 1) * at.height;
        // Threads below `ends` also have columns of the channel before: theirs of this one are set
        // 1.
        const u32 ends = first * W < from ? (first + 1) * at.height : 0;
#pragma unroll 4
        for (u32 entry = first * at.height + lane; entry < end; entry += WARP) {
            see(State::from_shared(sums_of(entry < ends) + entry, at.n_threads()));
        }
    }

    // ---- results ---------------------------------------------------------------------------------

    // Writes the results of the tile. After each group of rows is read, the copy of the group that
    // comes ring_groups groups later, to the same places, begins.
    __device__ void apply(u32 tile, const Coefs (&coefs)[W]) const {
        if (op.writes())
            each_loose</*LAST=*/true>(tile, [&](const auto& rows, i64 element) {
                write<DEPTH, /*ALL=*/false>(rows, coefs, element);
            });
        const i32 tile_rows = tiles.tile_groups * tiles.group_rows;
        i32 later_first = tiles.ring_groups * tiles.group_rows - tile_rows;
        u32 later_tile = tile + gridDim.x;
        while (later_first >= tile_rows) later_first -= tile_rows, later_tile += gridDim.x;
        const i64 start_of_tile = at.element(tile);
#pragma unroll 1
        for (i32 group = 0; group < tiles.tile_groups; ++group) {
            const i32 first = group * tiles.group_rows;
            apply_group(coefs, first, rest_of(tile, first), start_of_tile + first * at.pitch,
                        at.element(later_tile) + later_first * at.pitch,
                        rest_of(later_tile, later_first));
            async_copy::commit();
            later_first += tiles.group_rows;
            if (later_first >= tile_rows) later_first = 0, later_tile += gridDim.x;
        }
    }
    // Writes the results of n rows of the tile, from row `first` on, at index `element` of the
    // array, and begins to copy n_later rows, at index later_element, to their places. Rows are
    // at.pitch apart.
    __device__ void apply_group(const Coefs (&coefs)[W], i32 first, i32 n, i64 element,
                                i64 later_element, i32 n_later) const {
        const i32 both = n < n_later ? n : n_later, most = n < n_later ? n_later : n;
        const i64 step = DEPTH * at.pitch;
        i32 u = 0;
#pragma unroll 1
        for (; u + DEPTH <= both; u += DEPTH, element += step, later_element += step)
            apply_rows<DEPTH, /*ALL=*/true>(coefs, first + u, element, DEPTH, later_element, DEPTH);
#pragma unroll 1
        for (; u < most; u += DEPTH, element += step, later_element += step)
            apply_rows<DEPTH, /*ALL=*/false>(coefs, first + u, element, n - u, later_element,
                                             n_later - u);
    }
    // Writes the results of rows u, ..., u + N - 1 of the tile, at index `element` of the array,
    // and begins to copy N later rows, at index later_element, to their places. Not ALL: only the
    // first n, and n_later.
    template <int N, bool ALL>
    __device__ void apply_rows(const Coefs (&coefs)[W], i32 u, i64 element, i32 n,
                               i64 later_element, i32 n_later) const {
        Rows<N> rows;
        load<N, ALL>(rows, u, n);
        start<N, ALL>(later_element, u, n_later);
        if (op.writes()) write<N, ALL>(rows, coefs, element);
    }

    // All work on a tile, whose copies have begun: sums, coefficients, results, outputs of
    // channels. Begins copies of later tiles. Thread c < n_channels reads and writes the numbers of
    // channel c.
    __device__ void use(u32 tile) {
        const u32 channel = threadIdx.x, next = tile + gridDim.x;
        const bool leads = channel < at.n_channels(tile);
        ChannelInputs<A> inputs{};
        A next_reference = 0;
        if (leads) inputs = op.channel_inputs(at.first_channel(tile) + channel);
        if (next < tiles.n_tiles && channel < at.n_channels(next))
            next_reference = reference(next, channel);
        Sums sums;
        sum(tile, sums);
        A* const to = shared.inputs + 2 * (turn * tiles.tile_channels + channel);
        if (leads) to[0] = inputs.first, to[1] = inputs.second;
        if (channel < tiles.tile_channels)
            shared.references[(1 - turn) * tiles.tile_channels + channel] = next_reference;
        Coefs coefs[W];
        finish(tile, sums, coefs);
        apply(tile, coefs);
        if (leads)
            op.write(at.first_channel(tile) + channel,
                     State::from_shared(shared.totals + FIELDS * channel),
                     shared.references[turn * tiles.tile_channels + channel]);
        turn = 1 - turn;
        head += tiles.ring_step;
        if (head >= tiles.ring_rows) head -= tiles.ring_rows;
    }
};

// Block b has tiles b, b + gridDim.x, ...: it copies their elements to shared memory (`memory`)
// once, in slots of W elements, sums them, and writes results (op).
template <int W, class Op>
__device__ void in_shared(const Op& op, const StagedTiles& tiles, u8* memory) {
    InShared<Op, W> block(op, tiles, memory);
    block.begin(blockIdx.x);
#pragma unroll 1
    for (u32 tile = blockIdx.x; tile < tiles.n_tiles; tile += gridDim.x) block.use(tile);
}

}  // namespace cto::batch_norm::staged_tiles
