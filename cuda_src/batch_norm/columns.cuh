// SPDX-License-Identifier: MIT
// Channels of few neighbouring elements, or of pieces that are not aligned to 16 bytes: the array
// is a matrix, and a channel is `length` neighbouring columns of it. Threads along a row have
// neighbouring columns, a slot of 16 bytes each.
#pragma once
#include "batch_norm/rows.cuh"

namespace cto::batch_norm::columns {

using namespace batch_norm::coefficients;
using namespace batch_norm::rows;
using namespace batch_norm::sums;

// Which rows and columns of the matrix are a thread's, in a tile (columns.tile_channels
// neighbouring channels) and a part of its rows. The parts of a tile have rows in turn, so that
// blocks that run at the same time read neighbouring rows. W: columns of a thread, its slot of 16
// bytes.
template <int W>
struct Place {
    i64 first;         // the tile's first column in the matrix
    u32 x, y, height;  // a block is width x height threads; those with y >= height have no rows
    u32 n_columns;     // of the tile
    u32 n_channels;    // of the tile
    i64 row, rows_on;  // the thread's rows are row, row + rows_on, ...
    i32 n_rows;        // of the thread in this part

    // Thread t has columns x * W to x * W + W - 1 of the tile, x = t % width, in rows (part + k *
    // n_parts) * height + t / width, k < n_rows.
    __device__ Place(const Columns& columns, u32 tile, u32 part) {
        x = threadIdx.x % columns.width, y = threadIdx.x / columns.width;
        height = blockDim.x / columns.width;
        const i64 channel = static_cast<i64>(tile) * columns.tile_channels;
        const i64 rest = columns.n_channels - channel;
        n_channels = rest < columns.tile_channels ? static_cast<u32>(rest) : columns.tile_channels;
        n_columns = n_channels * columns.length;
        first = channel * columns.length;
        const bool inside = y < height && x * W < n_columns;
        row = part * height + y, rows_on = columns.n_parts * height;
        const i64 turns = columns.turns, last = row + (turns - 1) * rows_on;
        n_rows = inside ? static_cast<i32>(last < columns.n_rows ? turns : turns - 1) : 0;
    }
    // Columns of the thread that are inside the tile.
    __device__ u32 own_columns() const {
        return x * W >= n_columns ? 0 : n_columns - x * W < W ? n_columns - x * W : W;
    }
    // see(i, channel, is_first) for each column i of the thread inside the tile: channel = (x * W +
    // i) / length, counted in the tile; is_first: it is the first column of its channel.
    template <class See>
    __device__ void each_channel(const Columns& columns, const See& see) const {
        const u32 n = own_columns(), length = columns.length;
        u32 channel = length > 1 ? x * W / length : x * W, past = x * W - channel * length;
#pragma unroll
        for (u32 i = 0; i < W; ++i) {
            if (i < n) see(i, channel, past == 0);
            const bool ends = ++past == length;
            channel += ends, past = ends ? 0 : past;
        }
    }
    // Index in the array of the thread's first column in its first row.
    __device__ i64 element(const Columns& columns) const {
        return row * columns.n_channels * columns.length + first + x * W;
    }
};

// Writes `values`, rounded, of the thread's columns of one row to `to`: all W as a vector if
// `aligned`, else the first n_columns one by one. Evict-first, as the caches are for elements that
// are read again.
template <class T, int W>
__device__ void store_slot(T* to, u32 n_columns, bool aligned, const Acc<T> (&values)[W]) {
    const auto rounded = vec::from_acc<T>(values);
    if (aligned)
        vec::store_streaming(reinterpret_cast<Vec<T, W>*>(to), rounded);
    else
        vec::store_elements(to, 0, n_columns, rounded);
}

// ---- operators ----------------------------------------------------------------------------------

// Rows, of all arrays, that a thread loads together: as many as there are registers for. Before 7.5
// addresses take more of them, and in compilers before CUDA 12.9 on 7.5, and on 9.0 of one array.
#if defined(__CUDA_ARCH__) && \
    (__CUDA_ARCH__ < 750 ||   \
     (__CUDA_ARCH__ < 800 && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ < 1209))
constexpr bool HAS_FEW_REGISTERS = true;
#else
constexpr bool HAS_FEW_REGISTERS = false;
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && \
    __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ < 1209
constexpr int ROWS_OF_ONE_ARRAY = 4;
#else
constexpr int ROWS_OF_ONE_ARRAY = 6;
#endif
template <class Op>
constexpr int ROWS = WIDTH<Op> <= 4      ? 8
                     : Op::READ == 1     ? ROWS_OF_ONE_ARRAY
                     : HAS_FEW_REGISTERS ? 6
                                         : 8;

// A thread's slots of these rows.
template <class Op>
using ColumnRows = Rows<typename Op::T, WIDTH<Op>, Op::READ, ROWS<Op> / Op::READ>;

// How by_schedule and by_own_parts go over channels in columns (their `Walk`): a tile is some
// channels, a part some of its rows, for a block. `sum` is a part's first pass, `apply` its second.
// RINGS: rows go through shared memory (Ring); slots are aligned then. `shared`: SHARED elements.
template <class Op, bool RINGS>
struct InColumns {
    using T = typename Op::T;
    using A = typename Op::A;
    static constexpr int COLUMNS = WIDTH<Op>;
    static constexpr int SHARED = 2 * COLUMNS * THREADS;  // elements of shared memory for sums
    static constexpr u32 MERGED_AT_ONCE = sizeof(A) == 8 ? 2 : 8;  // parts loaded together

    const Op& op;
    const Columns& columns;
    const u8* ring;           // shared memory
    async_copy::Place place;  // the same, as a destination of copies

    __device__ i64 n_channels() const { return columns.n_channels; }
    __device__ i64 length() const { return columns.length; }
    // The number of the tile's first channel.
    __device__ i64 first_channel(u32 tile) const {
        return static_cast<i64>(tile) * columns.tile_channels;
    }
    __device__ u32 channels(u32 tile) const { return Place<COLUMNS>(columns, tile, 0).n_channels; }
    // Calls use(rows, element, pitch) for the thread's rows, up to DEPTH at a time, in registers:
    // row u of them begins at index element + u * pitch of the array. In the second pass (LAST)
    // from the last rows back: what was read last is still in the L2 cache.
    template <bool LAST, class Use>
    __device__ void visit(const Place<COLUMNS>& at, const Use& use) const {
        constexpr int DEPTH = ColumnRows<Op>::DEPTH;
        const i64 pitch = pitch_of(at);
        i64 element = at.element(columns) + (LAST ? at.n_rows * pitch : 0);
        ColumnRows<Op> rows;
        rows.n_columns = at.own_columns();
#pragma unroll 1
        for (i32 left = at.n_rows; left > 0; left -= rows.n) {
            rows.n = LAST ? (left - 1) % DEPTH + 1 : left < DEPTH ? left : DEPTH;
            if (LAST) element -= rows.n * pitch;
            // Evict-first for rows that are not read again soon. With 2-byte types a second load in
            // the first pass would spill registers.
            if (LAST || (sizeof(T) > 2 && left > columns.cached))
                rows.template load</*STREAMING=*/true>(op.arrays, element, pitch, columns.aligned);
            else
                rows.template load</*STREAMING=*/false>(op.arrays, element, pitch, columns.aligned);
            use(rows, element, pitch);
            if (!LAST) element += DEPTH * pitch;
        }
    }
    // Elements from a row of the thread to its next.
    __device__ i64 pitch_of(const Place<COLUMNS>& at) const {
        return at.rows_on * columns.n_channels * columns.length;
    }
    // A Ring of rows [first, end) of the thread, whose place in the tile is `at`.
    template <bool LAST>
    __device__ Ring<Op, LAST> ring_of(const Place<COLUMNS>& at, i32 first, i32 end) const {
        const i64 pitch = pitch_of(at);
        return {op, ring, place, columns, at.element(columns) + first * pitch, pitch, end - first};
    }
    // For schedule.cuh's Finish, which adds up parts with width x height threads, one for each of
    // the tile's channels along x: the reduction over threads with the same x.
    __device__ OverColumns<A> over(u32 x, u32 y, u32 width, u32 height, A* shared) const {
        return {x, y, width, height, /*n_columns=*/width, /*length=*/1, shared};
    }
    // Writes the sums of rows of part `part`, for each channel of tile `tile`, to `partials`: field
    // k of channel c at k * channels(tile) + c.
    __device__ void sum(u32 tile, u32 part, A* partials, A* shared) const {
        const Place<COLUMNS> at(columns, tile, part);
        sum_rows(at, tile, partials, shared, [&](const auto& use) {
            if constexpr (RINGS) {
                auto rows = ring_of</*LAST=*/false>(at, 0, at.n_rows);
                rows.begin();
                rows.go_on([&](const auto& some, i64, i64, auto any) { use(some, any); });
            } else {
                visit</*LAST=*/false>(at,
                                      [&](const auto& some, i64, i64) { use(some, Any<true>{}); });
            }
        });
    }
    // Writes to `partials`, as `sum` does, the sums of the rows that each(see) passes to see(rows,
    // Any), some at a time. The first come with Any<true>: only that call has code to begin sums.
    template <class Each>
    __device__ void sum_rows(const Place<COLUMNS>& at, u32 tile, A* partials, A* shared,
                             const Each& each) const {
        A references[COLUMNS] = {};
        at.each_channel(columns, [&](u32 i, u32 channel, bool) {
            references[i] =
                op.reference(first_channel(tile) + channel, columns.length, columns.n_rows);
        });
        typename Op::template State<COLUMNS> sums;
        bool first = true;
        each([&](const auto& some, auto any) {
            if constexpr (any.is) {
                if (first) sums.begin(some, static_cast<A>(some.n), references);
                first = false;
            }
            sums.add(some);
        });
        sums.end(static_cast<A>(at.n_rows), references);
        sums.join(OverColumns<A>{at.x, at.y, columns.width, at.height, at.n_columns, columns.length,
                                 shared});
        if (at.y > 0) return;
        at.each_channel(columns, [&](u32 i, u32 channel, bool leads) {
            if (leads) sums.column(i).store(partials + channel, at.n_channels);
        });
    }
    // Writes the results of part `part` of tile `tile`. wait() returns when the tile's coefficients
    // are in memory; then load_coefs(channel) returns those of a channel.
    template <class Wait, class LoadCoefs>
    __device__ void apply(u32 tile, u32 part, A* shared, const Wait& wait,
                          const LoadCoefs& load_coefs) const {
        const Place<COLUMNS> at(columns, tile, part);
        OpCoefficients<Op> coefs[COLUMNS];
        wait();
        fetch(coefs, at, tile, shared, load_coefs);
        visit</*LAST=*/true>(at, [&](const auto& some, i64 element, i64 pitch) {
            write_rows(coefs, some, element, pitch, columns.aligned);
        });
    }
    // Writes the results of part `part` of tile `tile`, read by a Ring. resident: its last rows are
    // still in shared memory, as this is the part that the block summed last. wait() returns when
    // the tile's coefficients are in memory; then load_coefs(channel) returns those of a channel.
    template <class Wait, class LoadCoefs>
    __device__ void apply(u32 tile, u32 part, bool resident, A* shared, const Wait& wait,
                          const LoadCoefs& load_coefs) const {
        const Place<COLUMNS> at(columns, tile, part);
        const i32 n = at.n_rows,
                  overwritten =
                      resident ? Ring<Op, /*LAST=*/true>::count_overwritten(n, columns.ring_groups)
                               : n;
        auto rows = ring_of</*LAST=*/true>(at, 0, overwritten);
        if (resident)
            rows.begin_with_resident(at.element(columns) + overwritten * pitch_of(at), overwritten,
                                     n - overwritten);
        else
            rows.begin();
        OpCoefficients<Op> coefs[COLUMNS];
        wait();
        fetch(coefs, at, tile, shared, load_coefs);
        rows.go_on([&](const auto& some, i64 element, i64 pitch, auto) {
            write_rows(coefs, some, element, pitch, /*aligned=*/true);
        });
    }
    // coefs[i] = coefficients of the thread's column i. Thread c loads those of channel c of the
    // tile by load_coefs(channel), and passes them on in shared memory.
    template <class LoadCoefs>
    __device__ void fetch(OpCoefficients<Op> (&coefs)[COLUMNS], const Place<COLUMNS>& at, u32 tile,
                          A* shared, const LoadCoefs& load_coefs) const {
        if (threadIdx.x < at.n_channels)
            load_coefs(first_channel(tile) + threadIdx.x)
                .store(shared + COEFFICIENTS * threadIdx.x);
        __syncthreads();
        at.each_channel(columns, [&](u32 i, u32 channel, bool) {
            coefs[i] = Op::fold(
                OpCoefficients<Op>::template load<Memory::shared>(shared + COEFFICIENTS * channel));
        });
    }
    // Writes the results of rows in registers: those of row u to index element + u * pitch of the
    // array. coefs: of the thread's columns; aligned: slots are, in all arrays.
    template <class SomeRows>
    __device__ void write_rows(const OpCoefficients<Op> (&coefs)[COLUMNS], const SomeRows& rows,
                               i64 element, i64 pitch, bool aligned) const {
        [[maybe_unused]] relu::Residuals<Op, COLUMNS, SomeRows::DEPTH> residuals;
        if constexpr (Op::ADDS)
#pragma unroll
            for (int u = 0; u < SomeRows::DEPTH; ++u)
                residuals.load(op, u, element + u * pitch, u < rows.n, aligned, rows.n_columns);
#pragma unroll
        for (int u = 0; u < SomeRows::DEPTH; ++u) {
            if (u >= rows.n) continue;
            A values[COLUMNS];
#pragma unroll
            for (int i = 0; i < COLUMNS; ++i) values[i] = map_element<Op>(coefs[i], rows, u, i);
            if constexpr (Op::ADDS) residuals.rectify(values, u);
            const i64 at = element + u * pitch;
            relu::store_results(op, rows, u, op.result + at, at, values,
                                [&](T* to, const A(&results)[COLUMNS]) {
                                    store_slot<T>(to, rows.n_columns, aligned, results);
                                });
        }
    }
};

}  // namespace cto::batch_norm::columns
