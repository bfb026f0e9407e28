// SPDX-License-Identifier: MIT
// Batch normalisation and its gradient.  CPU provider: cupy_training_ops/cpu/batch_norm.py
//
// Each operator has four kernels. __channels and __columns read what fits into a block once; of
// __channel_parts and __column_parts several blocks share the channels, which are read again from
// the L2 cache: see batch_norm/schedule.cuh.
#include "batch_norm/columns.cuh"
#include "batch_norm/pieces.cuh"
#include "batch_norm/schedule.cuh"
#include "batch_norm/sums.cuh"
#include "math/step.cuh"

// X and Y; scale, bias and their gradients; statistics.
#ifndef CTO_T
#define CTO_T float
#endif
#ifndef CTO_T1
#define CTO_T1 float
#endif
#ifndef CTO_T2
#define CTO_T2 float
#endif

namespace cto {

using namespace batch_norm;

using T = CTO_T;
using T1 = CTO_T1;
using T2 = CTO_T2;
using A = Acc<T>;

constexpr int THREADS = 256;
constexpr int BLOCKS = sizeof(A) == 8 ? 2 : 4;  // that share a multiprocessor, at least
constexpr int WIDTH = vec::WIDTH<T>;
constexpr int NBYTES = 128;  // that a thread has in flight, of all arrays
// Columns of a thread, and rows that it has in flight.
constexpr int COLUMNS = WIDTH < 4 ? WIDTH : 4;
constexpr int ROWS = 8;

// ---- what is computed of a channel --------------------------------------------------------------

// Of a channel, what its elements are mapped with.
struct Coefficients {
    A reference, offset, factor, term;

    __device__ void store(A* to) const {
        to[0] = reference, to[1] = offset, to[2] = factor, to[3] = term;
    }
    static __device__ Coefficients load(const A* from) {
        return {__ldcg(from), __ldcg(from + 1), __ldcg(from + 2), __ldcg(from + 3)};
    }
};

struct Rule {
    double epsilon, momentum, rest;  // rest: 1 - momentum
    bool unbiased;

    __device__ A inv_std(A variance) const {
        return 1 / step::square_root(variance + static_cast<A>(epsilon));
    }
};

template <class E>
__device__ __forceinline__ void store_if(E* to, i64 i, A value) {
    if (to) to[i] = from_acc<E>(value);
}

// Y = scale (X - mean) inv_std + bias. Elements are taken relative to the channel's first one: of
// numbers that lie close together the differences are exact.
struct Normalization {
    static constexpr int READ = 1;
    template <int N>
    using State = Moments<A, N>;

    const T* arrays[READ];
    const T1 *scale, *bias;
    const T2 *input_mean, *input_var;
    T* result;
    T2 *running_mean, *running_var, *saved_mean, *saved_inv_std;
    const Rule& rule;

    __device__ __forceinline__ A reference(i64 channel, i64 length, i64 n) const {
        const A first = n > 0 ? to_acc(arrays[0][channel * length]) : A(0);
        return isfinite(first) ? first : A(0);
    }
    __device__ __forceinline__ Coefficients of_variance(i64 channel, A reference, A offset,
                                                        A variance) const {
        const A factor = to_acc(scale[channel]) * rule.inv_std(variance);
        return {reference, offset, factor, to_acc(bias[channel])};
    }
    __device__ __forceinline__ Coefficients coefficients(i64 channel, const Moments<A>& of,
                                                         A reference) const {
        return of_variance(channel, reference, of.mean(), quotient_or_0(of.squares[0], of.n));
    }
    // Where nothing is summed.
    __device__ __forceinline__ Coefficients given(i64 channel) const {
        return of_variance(channel, to_acc(input_mean[channel]), 0, to_acc(input_var[channel]));
    }
    __device__ __forceinline__ void write(i64 channel, const Moments<A>& of, A reference) const {
        const A mean = reference + of.mean(), variance = quotient_or_0(of.squares[0], of.n);
        const A corrected = rule.unbiased && of.n > 1 ? of.squares[0] / (of.n - 1) : variance;
        store_if(saved_mean, channel, mean);
        store_if(saved_inv_std, channel, rule.inv_std(variance));
        store_if(running_mean, channel, running(input_mean[channel], mean, of.n));
        store_if(running_var, channel, running(input_var[channel], corrected, of.n));
    }
    __device__ __forceinline__ A running(T2 before, A now, A n) const {
        const A momentum = static_cast<A>(rule.momentum), rest = static_cast<A>(rule.rest);
        return n > 0 ? momentum * to_acc(before) + rest * now : to_acc(before);
    }
    static __device__ __forceinline__ A map(const Coefficients& of, A x) {
        return (x - of.reference - of.offset) * of.factor + of.term;
    }
};

// dX = scale inv_std (dY - mean of dY - xhat mean of dY xhat), xhat = (X - mean) inv_std.
struct Gradient {
    static constexpr int READ = 2;
    template <int N>
    using State = Slopes<A, N>;

    const T* arrays[READ];  // X, dY
    const T1* scale;
    const T2 *mean, *inv_std;
    T* result;
    T1 *scale_grad, *bias_grad;
    i64 n;  // elements of a channel

    __device__ __forceinline__ A reference(i64 channel, i64, i64) const {
        return to_acc(mean[channel]);
    }
    __device__ __forceinline__ Coefficients coefficients(i64 channel, const Slopes<A>& of,
                                                         A reference) const {
        const A inverse = to_acc(inv_std[channel]), count = static_cast<A>(n);
        const A slope = inverse * (of.product[0] * inverse / count);
        return {reference, of.sum[0] / count, to_acc(scale[channel]) * inverse, slope};
    }
    __device__ __forceinline__ Coefficients given(i64) const { return {}; }  // always summed
    __device__ __forceinline__ void write(i64 channel, const Slopes<A>& of, A) const {
        store_if(scale_grad, channel, of.product[0] * to_acc(inv_std[channel]));
        store_if(bias_grad, channel, of.sum[0]);
    }
    static __device__ __forceinline__ A map(const Coefficients& of, A x, A dy) {
        return ((dy - of.offset) - (x - of.reference) * of.term) * of.factor;
    }
};

// ---- channels in pieces -------------------------------------------------------------------------

// A thread has NBYTES of all arrays at a time, or fewer where slots are single elements.
template <class Op, int W>
constexpr int DEPTH = (W == 1 ? 16 : NBYTES / static_cast<int>(sizeof(T)) / W) / Op::READ;

template <class Op, int W>
using PieceBatch = Batch<T, W, Op::READ, DEPTH<Op, W>>;

template <class Op, class Held>
__device__ __forceinline__ A mapped(const Coefficients& of, const Held& held, int u, int i) {
    if constexpr (Op::READ == 1)
        return Op::map(of, held.at(0, u, i));
    else
        return Op::map(of, held.at(0, u, i), held.at(1, u, i));
}

template <class Op, int W>
__device__ __forceinline__ void write_batch(const Op& op, const Coefficients& of,
                                            const PieceBatch<Op, W>& batch, const Cursor<W>& first,
                                            const Pieces& pieces) {
    Cursor<W> at = first.again();
#pragma unroll
    for (int u = 0; u < DEPTH<Op, W>; ++u) {
        A values[W];
#pragma unroll
        for (int i = 0; i < W; ++i) values[i] = mapped<Op>(of, batch, u, i);
        if (u < batch.n)
            vec::store_streaming(reinterpret_cast<Vec<T, W>*>(op.result + at.element),
                                 vec::from_acc<T>(values));
        at.advance(pieces);
    }
}

// The whole channel in registers.
template <int W, class Op>
__device__ __forceinline__ void in_registers(const Op& op, const Pieces& pieces) {
    __shared__ A of_warp[2 * WARP];
    const i64 channel = blockIdx.x;
    const A references[1] = {op.reference(channel, pieces.length, pieces.n_slots)};
    Cursor<W> cursor(pieces, channel, 0);
    const Cursor<W> first = cursor;
    PieceBatch<Op, W> batch;
    batch.template load<true>(cursor, pieces, op.arrays);
    typename Op::template State<1> sums;
    sums.include(batch, static_cast<A>(batch.n * W), references);
    sums.join(OverBlock<A>{of_warp});
    if (threadIdx.x == 0) op.write(channel, sums, references[0]);
    if (op.result)
        write_batch<Op, W>(op, op.coefficients(channel, sums, references[0]), batch, first, pieces);
}

// One channel a tile, parts of which are so many slots.
template <class Op, int W>
struct InPieces {
    const Op& op;
    const Pieces& pieces;

    __device__ i64 n_channels() const { return pieces.n_channels; }
    __device__ i64 length() const { return pieces.length; }
    __device__ i64 first_channel(u32 tile) const { return tile; }
    __device__ u32 channels(u32) const { return 1; }

    __device__ __forceinline__ void sum(u32 tile, u32 part, A* partials, A* shared) const {
        const A references[1] = {op.reference(tile, pieces.length, pieces.n_slots)};
        Cursor<W> cursor(pieces, tile, part);
        typename Op::template State<1> sums;
        PieceBatch<Op, W> batch;
#pragma unroll 1
        do {
            batch.template load<false>(cursor, pieces, op.arrays);
            sums.include(batch, static_cast<A>(batch.n * W), references);
        } while (cursor.left > 0);
        sums.join(OverBlock<A>{shared});
        if (threadIdx.x == 0) sums.store(partials);
    }
    // `of_channel` gives coefficients, from when `wait` has returned.
    template <class Wait, class OfChannel>
    __device__ __forceinline__ void apply(u32 tile, u32 part, const Wait& wait,
                                          const OfChannel& of_channel) const {
        Cursor<W> cursor(pieces, tile, part);
        Coefficients of;
        PieceBatch<Op, W> batch;
        bool waits = true;
#pragma unroll 1
        do {
            const Cursor<W> first = cursor;
            batch.template load<true>(cursor, pieces, op.arrays);
            if (waits) {
                wait();
                of = of_channel(tile);
                waits = false;
            }
            write_batch<Op, W>(op, of, batch, first, pieces);
        } while (cursor.left > 0);
    }
};

// ---- channels in columns ------------------------------------------------------------------------

template <class Op>
using ColumnRows = Rows<T, COLUMNS, Op::READ, ROWS / Op::READ>;

template <class Op>
struct InColumns {
    const Op& op;
    const Columns& columns;

    __device__ i64 n_channels() const { return columns.n_channels; }
    __device__ i64 length() const { return columns.length; }
    __device__ i64 first_channel(u32 tile) const {
        return static_cast<i64>(tile) * columns.channels;
    }
    __device__ u32 channels(u32 tile) const { return Place<COLUMNS>(columns, tile, 0).n_channels; }
    // The thread's rows, some at a time: in what order does not matter to the elements.
    template <bool LAST, class Use>
    __device__ __forceinline__ void visit(const Place<COLUMNS>& at, const Use& use) const {
        constexpr int DEPTH = ColumnRows<Op>::DEPTH;
        const i64 pitch = at.height * columns.n_channels * columns.length;
        i64 element = at.element(columns);
        ColumnRows<Op> rows;
        rows.n_columns = at.own_columns();
#pragma unroll 1
        for (i32 left = at.n_rows; left > 0; left -= DEPTH, element += DEPTH * pitch) {
            rows.n = left < DEPTH ? left : DEPTH;
            rows.template load<LAST>(op.arrays, element, pitch, columns.aligned);
            use(rows, element, pitch);
        }
    }
    __device__ __forceinline__ typename Op::template State<COLUMNS> summed(u32 tile, u32 part,
                                                                           A* shared) const {
        const Place<COLUMNS> at(columns, tile, part);
        A references[COLUMNS];
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) references[i] = reference(first_channel(tile), at, i);
        typename Op::template State<COLUMNS> sums;
        visit<false>(at, [&](const auto& rows, i64, i64) {
            sums.include(rows, static_cast<A>(rows.n), references);
        });
        sums.join(OverColumns<A, THREADS>{at.x, at.y, columns.width, at.height, at.n_columns,
                                          columns.length, shared});
        return sums;
    }
    __device__ __forceinline__ A reference(i64 first, const Place<COLUMNS>& at, int i) const {
        if (i >= static_cast<int>(at.own_columns())) return 0;
        return op.reference(first + at.channel(columns, i), columns.length, columns.n_rows);
    }
    // Gives `use` each channel of which this is the first thread, and its sums.
    template <class Use>
    __device__ __forceinline__ void lead(u32 tile, const typename Op::template State<COLUMNS>& sums,
                                         const Use& use) const {
        const Place<COLUMNS> at(columns, tile, 0);
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i)
            if (at.leads(columns, i))
                use(at.channel(columns, i), sums.of(i), reference(first_channel(tile), at, i));
    }
    __device__ __forceinline__ void sum(u32 tile, u32 part, A* partials, A* shared) const {
        const auto store = [&](u32 channel, const typename Op::template State<1>& of, A) {
            of.store(partials + channel * Op::template State<1>::FIELDS);
        };
        lead(tile, summed(tile, part, shared), store);
    }
    template <class Wait, class OfChannel>
    __device__ __forceinline__ void apply(u32 tile, u32 part, const Wait& wait,
                                          const OfChannel& of_channel) const {
        const Place<COLUMNS> at(columns, tile, part);
        wait();
        Coefficients of[COLUMNS];
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i)
            if (i < static_cast<int>(at.own_columns()))
                of[i] = of_channel(first_channel(tile) + at.channel(columns, i));
        apply_rows(at, of);
    }
    __device__ __forceinline__ void apply_rows(const Place<COLUMNS>& at,
                                               const Coefficients (&of)[COLUMNS]) const {
        visit<true>(at, [&](const ColumnRows<Op>& rows, i64 element, i64 pitch) {
#pragma unroll
            for (int u = 0; u < ColumnRows<Op>::DEPTH; ++u) {
                if (u >= rows.n) continue;
                A values[COLUMNS];
#pragma unroll
                for (int i = 0; i < COLUMNS; ++i) values[i] = mapped<Op>(of[i], rows, u, i);
                store_slot<T>(op.result + element + u * pitch, rows.n_columns, columns.aligned,
                              values);
            }
        });
    }
};

// A tile a block.
template <class Op>
__device__ __forceinline__ void in_one_block(const Op& op, const Columns& columns) {
    __shared__ A shared[2 * COLUMNS * THREADS];
    const InColumns<Op> walk{op, columns};
    const u32 tile = blockIdx.x;
    const i64 first = walk.first_channel(tile);
    const auto sums = walk.summed(tile, 0, shared);
    walk.lead(tile, sums, [&](u32 channel, const typename Op::template State<1>& of, A reference) {
        op.write(first + channel, of, reference);
    });
    if (!op.result) return;
    const Place<COLUMNS> at(columns, tile, 0);
    Coefficients of[COLUMNS];
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i)
        if (i < static_cast<int>(at.own_columns()))
            of[i] = op.coefficients(first + at.channel(columns, i), sums.of(i),
                                    walk.reference(first, at, i));
    walk.apply_rows(at, of);
}

// ---- blocks that share channels -----------------------------------------------------------------

// Scratch memory: FIELDS sums for each part and channel, four coefficients for each channel.
struct Scratch {
    A *partials, *coefficients;
    Counters counters;
};

// The sums of a tile's channels from those of its parts; y threads for each channel.
template <class Op, class Walk>
__device__ __forceinline__ void finish(const Op& op, const Walk& walk, u32 tile,
                                       const Schedule& schedule, const Scratch& scratch,
                                       A* shared) {
    using State = typename Op::template State<1>;
    const u32 width = walk.channels(tile), height = THREADS / width;
    const u32 x = threadIdx.x % width, y = threadIdx.x / width;
    const i64 channel = walk.first_channel(tile) + x;
    State sums;
#pragma unroll 1
    for (u32 part = y; y < height && part < schedule.n_parts; part += height)
        sums.merge(
            State::load(scratch.partials + (part * walk.n_channels() + channel) * State::FIELDS));
    sums.join(OverColumns<A, THREADS>{x, y, width, height, width, 1, shared});
    if (y == 0) {
        const A reference = op.reference(channel, walk.length(), 1);
        op.write(channel, sums, reference);
        op.coefficients(channel, sums, reference).store(scratch.coefficients + 4 * channel);
    }
    if (schedule.applies) scratch.counters.finished(tile);
}

template <int SHARED, class Op, class Walk>
__device__ __forceinline__ void by_schedule(const Op& op, const Walk& walk,
                                            const Schedule& schedule, const Scratch& scratch) {
    __shared__ A shared[SHARED];
    __shared__ u32 next;
    __shared__ bool last;
    constexpr int FIELDS = Op::template State<1>::FIELDS;
    each_item(schedule, scratch.counters, next, [&](const Item& item) {
        const u32 tile = schedule.first_tile + item.tile;
        const Counters& counters = scratch.counters;
        if (item.sums) {
            const i64 row = item.part * walk.n_channels() + walk.first_channel(tile);
            walk.sum(tile, item.part, scratch.partials + row * FIELDS, shared);
            if (reduce::arrives_last(counters.summed(item.tile), schedule.n_parts, last))
                finish(op, walk, tile, schedule, scratch, shared);
        } else {
            walk.apply(
                tile, item.part,
                [&] {
                    if (schedule.sums) counters.wait(item.tile, schedule.n_parts);
                },
                [&](i64 channel) {
                    return schedule.sums ? Coefficients::load(scratch.coefficients + 4 * channel)
                                         : op.given(channel);
                });
        }
    });
}

}  // namespace cto

using namespace cto;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    batch_norm_internal__channels(const T* x, const T1* scale, const T1* bias, const T2* input_mean,
                                  const T2* input_var, T* y, T2* running_mean, T2* running_var,
                                  T2* saved_mean, T2* saved_inv_std,
                                  const __grid_constant__ Rule rule,
                                  const __grid_constant__ Pieces pieces) {
    const Normalization op{{x},          scale,       bias,       input_mean,    input_var, y,
                           running_mean, running_var, saved_mean, saved_inv_std, rule};
    in_registers<WIDTH>(op, pieces);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) batch_norm_internal__channel_parts(
    const T* x, const T1* scale, const T1* bias, const T2* input_mean, const T2* input_var, T* y,
    T2* running_mean, T2* running_var, T2* saved_mean, T2* saved_inv_std,
    const __grid_constant__ Rule rule, const __grid_constant__ Pieces pieces, A* partials,
    A* coefficients, u32* counters, const __grid_constant__ Schedule schedule) {
    const Normalization op{{x},          scale,       bias,       input_mean,    input_var, y,
                           running_mean, running_var, saved_mean, saved_inv_std, rule};
    by_schedule<2 * THREADS>(op, InPieces<Normalization, WIDTH>{op, pieces}, schedule,
                             {partials, coefficients, {counters}});
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    batch_norm_internal__single_channel_parts(const T* x, const T1* scale, const T1* bias,
                                              const T2* input_mean, const T2* input_var, T* y,
                                              T2* running_mean, T2* running_var, T2* saved_mean,
                                              T2* saved_inv_std, const __grid_constant__ Rule rule,
                                              const __grid_constant__ Pieces pieces, A* partials,
                                              A* coefficients, u32* counters,
                                              const __grid_constant__ Schedule schedule) {
    const Normalization op{{x},          scale,       bias,       input_mean,    input_var, y,
                           running_mean, running_var, saved_mean, saved_inv_std, rule};
    by_schedule<2 * THREADS>(op, InPieces<Normalization, 1>{op, pieces}, schedule,
                             {partials, coefficients, {counters}});
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    batch_norm_internal__columns(const T* x, const T1* scale, const T1* bias, const T2* input_mean,
                                 const T2* input_var, T* y, T2* running_mean, T2* running_var,
                                 T2* saved_mean, T2* saved_inv_std,
                                 const __grid_constant__ Rule rule,
                                 const __grid_constant__ Columns columns) {
    const Normalization op{{x},          scale,       bias,       input_mean,    input_var, y,
                           running_mean, running_var, saved_mean, saved_inv_std, rule};
    in_one_block(op, columns);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) batch_norm_internal__column_parts(
    const T* x, const T1* scale, const T1* bias, const T2* input_mean, const T2* input_var, T* y,
    T2* running_mean, T2* running_var, T2* saved_mean, T2* saved_inv_std,
    const __grid_constant__ Rule rule, const __grid_constant__ Columns columns, A* partials,
    A* coefficients, u32* counters, const __grid_constant__ Schedule schedule) {
    const Normalization op{{x},          scale,       bias,       input_mean,    input_var, y,
                           running_mean, running_var, saved_mean, saved_inv_std, rule};
    by_schedule<2 * COLUMNS * THREADS>(op, InColumns<Normalization>{op, columns}, schedule,
                                       {partials, coefficients, {counters}});
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    batch_normalization_grad__channels(const T* x, const T* dy, const T1* scale, const T2* mean,
                                       const T2* inv_std, T* dx, T1* scale_grad, T1* bias_grad,
                                       i64 n, const __grid_constant__ Pieces pieces) {
    const Gradient op{{x, dy}, scale, mean, inv_std, dx, scale_grad, bias_grad, n};
    in_registers<WIDTH>(op, pieces);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    batch_normalization_grad__channel_parts(const T* x, const T* dy, const T1* scale,
                                            const T2* mean, const T2* inv_std, T* dx,
                                            T1* scale_grad, T1* bias_grad, i64 n,
                                            const __grid_constant__ Pieces pieces, A* partials,
                                            A* coefficients, u32* counters,
                                            const __grid_constant__ Schedule schedule) {
    const Gradient op{{x, dy}, scale, mean, inv_std, dx, scale_grad, bias_grad, n};
    by_schedule<2 * THREADS>(op, InPieces<Gradient, WIDTH>{op, pieces}, schedule,
                             {partials, coefficients, {counters}});
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    batch_normalization_grad__single_channel_parts(const T* x, const T* dy, const T1* scale,
                                                   const T2* mean, const T2* inv_std, T* dx,
                                                   T1* scale_grad, T1* bias_grad, i64 n,
                                                   const __grid_constant__ Pieces pieces,
                                                   A* partials, A* coefficients, u32* counters,
                                                   const __grid_constant__ Schedule schedule) {
    const Gradient op{{x, dy}, scale, mean, inv_std, dx, scale_grad, bias_grad, n};
    by_schedule<2 * THREADS>(op, InPieces<Gradient, 1>{op, pieces}, schedule,
                             {partials, coefficients, {counters}});
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    batch_normalization_grad__columns(const T* x, const T* dy, const T1* scale, const T2* mean,
                                      const T2* inv_std, T* dx, T1* scale_grad, T1* bias_grad,
                                      i64 n, const __grid_constant__ Columns columns) {
    const Gradient op{{x, dy}, scale, mean, inv_std, dx, scale_grad, bias_grad, n};
    in_one_block(op, columns);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    batch_normalization_grad__column_parts(const T* x, const T* dy, const T1* scale, const T2* mean,
                                           const T2* inv_std, T* dx, T1* scale_grad, T1* bias_grad,
                                           i64 n, const __grid_constant__ Columns columns,
                                           A* partials, A* coefficients, u32* counters,
                                           const __grid_constant__ Schedule schedule) {
    const Gradient op{{x, dy}, scale, mean, inv_std, dx, scale_grad, bias_grad, n};
    by_schedule<2 * COLUMNS * THREADS>(op, InColumns<Gradient>{op, columns}, schedule,
                                       {partials, coefficients, {counters}});
}
