// SPDX-License-Identifier: MIT
// Channels that fit into the shared memory of a block, which reads them once. As in columns.cuh the
// array is a matrix, a channel `length` of its columns, a tile some channels; here a slot has columns
// of at most two.
//
// Threads sum and write the slots that they copied themselves. As a slot is used for the last time,
// the copy of the next tile's begins to the same place, so that memory is idle only while the sums
// of threads are put together.
#pragma once
#include "batch_norm/columns.cuh"
#include "core/async_copy.cuh"

namespace cto::batch_norm::held {

using namespace batch_norm::sums;

// Waits for the first `group` + 1 of GROUPS groups of copies.
static_assert(GROUPS == 4);
__device__ __forceinline__ void wait_for(int group) {
    if (group == 0)
        async_copy::wait<3>();
    else if (group == 1)
        async_copy::wait<2>();
    else if (group == 2)
        async_copy::wait<1>();
    else
        async_copy::wait<0>();
}

template <class A>
struct OverLanes {
    template <int K>
    __device__ void operator()(A (&values)[K][1]) const {
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (u32 step = WARP / 2; step > 0; step /= 2)
                values[k][0] += __shfl_xor_sync(ALL_LANES, values[k][0], step);
    }
};

// Where a thread is in each tile, and which of its columns are of which channel.
template <int W>
struct Place {
    const Held& held;
    u32 x, y, height;
    u32 low;    // channel of the thread's first column in the tile; the next one's begins
    int split;  // so many columns on
    i64 pitch;  // from a row of the thread to its next

    __device__ explicit Place(const Held& held) : held(held) {
        x = threadIdx.x % held.width, y = threadIdx.x / held.width;
        height = blockDim.x / held.width;
        low = x * W / held.length;
        const u32 rest = (low + 1) * held.length - x * W;
        split = rest < W ? static_cast<int>(rest) : W;
        pitch = height * held.n_channels * held.length;
    }
    __device__ u32 channel(int i) const { return low + (i >= split); }
    __device__ u32 n_channels(u32 tile) const {
        const i64 rest = held.n_channels - first_channel(tile);
        return rest < held.channels ? static_cast<u32>(rest) : held.channels;
    }
    __device__ i64 first_channel(u32 tile) const { return static_cast<i64>(tile) * held.channels; }
    // Rows that the thread has of a tile.
    __device__ i32 rows(u32 tile) const {
        if (y >= height || tile >= held.n_tiles) return 0;
        if (x * W >= n_channels(tile) * held.length || y >= held.n_rows) return 0;
        return static_cast<i32>((held.n_rows - y + height - 1) / height);
    }
    __device__ i32 held_rows(u32 tile) const {
        const i32 n = rows(tile);
        return n < held.depth ? n : held.depth;
    }
    __device__ i64 element(u32 tile) const {
        const i64 row = held.n_channels * held.length;
        return y * row + first_channel(tile) * held.length + x * W;
    }
    // Slots of a row in shared memory, and where sums of the thread lie.
    __device__ u32 n_threads() const { return held.width * height; }
    __device__ u32 entry() const { return x * height + y; }
};

// Shared memory beside the slots: sums of each thread and group of columns, and of each channel
// what it is given, two references in turn, coefficients and sums.
template <class A, int FIELDS>
struct Shared {
    A *of_thread, *given, *references, *coefficients, *totals;

    __device__ Shared(A* from, u32 n_threads, u32 channels)
        : of_thread(from),
          given(of_thread + 2 * FIELDS * n_threads),
          references(given + 2 * channels),
          coefficients(references + 2 * channels),
          totals(coefficients + COEFFICIENTS * channels) {}
};

template <class Op, int W>
struct InShared {
    using T = typename Op::T;
    using A = typename Op::A;
    using State = typename Op::template State<1>;
    using Sums = typename Op::template State<W>;
    using Of = OpCoefficients<Op>;
    static constexpr int READ = Op::READ, FIELDS = State::FIELDS, DEPTH = HELD_ROWS / READ;
    static constexpr u32 SLOT_NBYTES = W * sizeof(T);
    using Rows = columns::Rows<T, W, READ, DEPTH>;

    const Op& op;
    const Held& held;
    Place<W> at;
    u8* own;         // the thread's first slot
    u32 slot_pitch;  // bytes from a slot of it to the next
    Shared<A, FIELDS> shared;
    u32 turn = 0;  // which references are in use

    __device__ InShared(const Op& op, const Held& held, u8* memory)
        : op(op),
          held(held),
          at(held),
          own(memory + threadIdx.x * SLOT_NBYTES),
          slot_pitch(at.n_threads() * SLOT_NBYTES),
          shared(reinterpret_cast<A*>(memory + READ * held.depth * at.n_threads() * SLOT_NBYTES),
                 at.n_threads(), held.channels) {}

    __device__ u8* slot(int array, i32 u) const {
        return own + (array * held.depth + u) * slot_pitch;
    }
    // Begins to copy a thread's rows first to end - 1, DEPTH of them at most.
    __device__ void start(i64 element, i32 first, i32 end) const {
#pragma unroll
        for (int u = 0; u < DEPTH; ++u)
#pragma unroll
            for (int a = 0; a < READ; ++a)
                if (first + u < end)
                    async_copy::copy<SLOT_NBYTES>(slot(a, first + u),
                                                  op.arrays[a] + element + u * at.pitch);
    }
    __device__ void load(Rows& rows, i32 first, i32 end) const {
        rows.n = end - first < DEPTH ? end - first : DEPTH;
#pragma unroll
        for (int u = 0; u < DEPTH; ++u)
#pragma unroll
            for (int a = 0; a < READ; ++a) {
                rows.held[a][u] = {};
                if (u < rows.n)
                    rows.held[a][u] =
                        *reinterpret_cast<const typename Rows::Slot*>(slot(a, first + u));
            }
    }
    // Rows that are not held are read again, from the L2 cache.
    template <bool LAST>
    __device__ void load_loose(Rows& rows, i64 element, i32 n) const {
        using Slot = typename Rows::Slot;
        rows.n = n < DEPTH ? n : DEPTH;
#pragma unroll
        for (int u = 0; u < DEPTH; ++u)
#pragma unroll
            for (int a = 0; a < READ; ++a) {
                rows.held[a][u] = {};
                const auto* const from =
                    reinterpret_cast<const Slot*>(op.arrays[a] + element + u * at.pitch);
                if (u < rows.n) rows.held[a][u] = LAST ? vec::load_streaming(from) : *from;
            }
    }
    template <bool LAST, class Use>
    __device__ void each_loose(u32 tile, const Use& use) const {
        const i32 n = at.rows(tile);
#pragma unroll 1
        for (i32 u = held.depth; u < n; u += DEPTH) {
            const i64 element = at.element(tile) + u * at.pitch;
            Rows rows;
            load_loose<LAST>(rows, element, n - u);
            use(rows, element);
        }
    }
    __device__ void begin(u32 tile) const {
        if (threadIdx.x < at.n_channels(tile))
            shared.references[threadIdx.x] = reference(tile, threadIdx.x);
        const i32 n = at.held_rows(tile);
        for (int group = 0; group < GROUPS; ++group) {
            const i32 first = group * held.of_group;
            const i32 end = first + held.of_group < n ? first + held.of_group : n;
#pragma unroll 1
            for (i32 u = first; u < end; u += DEPTH) start(at.element(tile) + u * at.pitch, u, end);
            async_copy::commit();
        }
        __syncthreads();
    }
    __device__ A reference(u32 tile, u32 channel) const {
        return op.reference(at.first_channel(tile) + channel, held.length, held.n_rows);
    }

    __device__ void sum(u32 tile, Sums& sums) const {
        A references[W];
#pragma unroll
        for (int i = 0; i < W; ++i)
            references[i] = shared.references[turn * held.channels + at.channel(i)];
        const i32 n = at.held_rows(tile);
#pragma unroll 1
        for (int group = 0; group < GROUPS; ++group) {
            wait_for(group);
            const i32 first = group * held.of_group;
            const i32 end = first + held.of_group < n ? first + held.of_group : n;
#pragma unroll 1
            for (i32 u = first; u < end; u += DEPTH) {
                Rows rows;
                load(rows, u, end);
                if (u == 0) sums.begin(rows, static_cast<A>(rows.n), references);
                sums.add(rows);
            }
        }
        each_loose<false>(tile, [&](const Rows& rows, i64) { sums.add(rows); });
        sums.end(static_cast<A>(at.rows(tile)), references);
    }
    // The sums of columns, put where those of their channels are made.
    __device__ void put(const Sums& sums) const {
        if (at.y >= at.height) return;
        put(sums.of_columns(0, at.split), 0);
        if (at.split < W) put(sums.of_columns(at.split, W), 1);
    }
    __device__ void put(const State& sums, int group) const {
        A fields[FIELDS];
        sums.store(fields);
#pragma unroll
        for (int f = 0; f < FIELDS; ++f) field(group, f)[at.entry()] = fields[f];
    }
    __device__ A* field(int group, int f) const {
        return shared.of_thread + (group * FIELDS + f) * at.n_threads();
    }
    // By a warp for each channel.
    __device__ void finish(u32 tile) const {
        const u32 lane = threadIdx.x % WARP, n_warps = blockDim.x / WARP;
#pragma unroll 1
        for (u32 c = threadIdx.x / WARP; c < at.n_channels(tile); c += n_warps) {
            State sums;
            sums.join_all([&](const auto& see) { each_entry(c, lane, see); }, OverLanes<A>{});
            if (lane > 0) continue;
            const Given<A> given{shared.given[2 * c], shared.given[2 * c + 1]};
            op.coefficients(given, sums, shared.references[turn * held.channels + c])
                .store(shared.coefficients + COEFFICIENTS * c);
            sums.store(shared.totals + FIELDS * c);
        }
    }
    template <class See>
    __device__ void each_entry(u32 channel, u32 lane, const See& see) const {
        const u32 from = channel * held.length, first = from / W;
        const u32 end = ((from + held.length - 1) / W + 1) * at.height;
        const u32 ends = first * W < from ? (first + 1) * at.height : 0;  // the channel before
#pragma unroll 4
        for (u32 entry = first * at.height + lane; entry < end; entry += WARP) {
            A fields[FIELDS];
#pragma unroll
            for (int f = 0; f < FIELDS; ++f) fields[f] = field(entry < ends, f)[entry];
            see(State::of_fields(fields));
        }
    }
    __device__ void apply(u32 tile, u32 next) const {
        Of of[W];
#pragma unroll
        for (int i = 0; i < W; ++i)
            of[i] = Of::template load<Memory::shared>(shared.coefficients +
                                                      COEFFICIENTS * at.channel(i));
        if (op.result)
            each_loose<true>(tile,
                             [&](const Rows& rows, i64 element) { write(rows, of, element); });
        const i32 n = at.held_rows(tile), n_next = at.held_rows(next);
        const i32 most = n > n_next ? n : n_next;
        const i64 shift = at.element(next) - at.element(tile);
        i64 element = at.element(tile);
#pragma unroll 1
        for (int group = 0; group < GROUPS; ++group) {
            const i32 first = group * held.of_group;
            const i32 end = first + held.of_group < most ? first + held.of_group : most;
#pragma unroll 1
            for (i32 u = first; u < end; u += DEPTH, element += DEPTH * at.pitch) {
                Rows rows;
                load(rows, u, n < end ? n : end);
                start(element + shift, u, n_next < end ? n_next : end);
                if (op.result) write(rows, of, element);
            }
            async_copy::commit();
        }
    }
    __device__ void write(const Rows& rows, const Of (&of)[W], i64 element) const {
#pragma unroll
        for (int u = 0; u < DEPTH; ++u) {
            if (u >= rows.n) continue;
            A values[W];
#pragma unroll
            for (int i = 0; i < W; ++i) values[i] = mapped<Op>(of[i], rows, u, i);
            vec::store_streaming(
                reinterpret_cast<vec::Vec<T, W>*>(op.result + element + u * at.pitch),
                vec::from_acc<T>(values));
        }
    }
    // A tile whose copies are on their way, and those of the next.
    __device__ void use(u32 tile, u32 next) {
        const u32 channel = threadIdx.x;
        const bool leads = channel < at.n_channels(tile);
        Given<A> given{};
        A later = 0;
        if (leads) given = op.given(at.first_channel(tile) + channel);
        if (next < held.n_tiles && channel < at.n_channels(next)) later = reference(next, channel);
        Sums sums;
        sum(tile, sums);
        put(sums);
        if (leads)
            shared.given[2 * channel] = given.first, shared.given[2 * channel + 1] = given.second;
        if (channel < held.channels)
            shared.references[(1 - turn) * held.channels + channel] = later;
        __syncthreads();
        finish(tile);
        __syncthreads();
        apply(tile, next);
        if (leads) {
            A fields[FIELDS];
#pragma unroll
            for (int f = 0; f < FIELDS; ++f) fields[f] = shared.totals[FIELDS * channel + f];
            op.write(at.first_channel(tile) + channel, State::of_fields(fields),
                     shared.references[turn * held.channels + channel]);
        }
        turn = 1 - turn;
    }
};

template <int W, class Op>
__device__ void in_shared(const Op& op, const Held& held, u8* memory) {
    InShared<Op, W> block(op, held, memory);
    block.begin(blockIdx.x);
#pragma unroll 1
    for (u32 tile = blockIdx.x; tile < held.n_tiles; tile += gridDim.x)
        block.use(tile, tile + gridDim.x);
}

}  // namespace cto::batch_norm::held
