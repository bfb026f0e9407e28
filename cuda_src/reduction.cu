// SPDX-License-Identifier: MIT
// Sums, norms and finiteness checks.  CPU provider: cupy_training_ops/cpu/reduction.py
//
// Every kernel is one launch: where blocks share a result, the one that takes the last ticket
// finishes it, in an order that does not depend on which block that is.
#include "include/multi_tensor.cuh"
#include "include/reduce.cuh"

#ifndef CTO_Y
#define CTO_Y float
#endif

namespace cto {

using Y = CTO_Y;
using Acc = AccumulatorOf<T>::type;

// ---- ReduceSumTraining: (A, R, B) to (A, B) ---------------------------------------------------------

// Rows of an (A, R, B) array, `span` of them to a block; B columns make `n_tiles` tiles.
struct Slabs {
    i64 A, R, B, span;
    i32 n_spans, n_tiles;
};

// What one thread adds: N columns of one slab.
template <int N>
struct Columns {
    static constexpr int DEPTH = N == 1 ? 2 * UNROLL : UNROLL;  // rows in flight
    i64 width;
    Packet<Acc, N> sum{};

    __device__ explicit Columns(i64 width) : width(width) {}

    // Adds n rows, `step` rows apart.
    template <class E>
    __device__ __forceinline__ void add(const E* x, i32 n, u32 step) {
        const i64 pitch = step * width;
#pragma unroll 1
        for (; n > 0; n -= DEPTH, x += DEPTH * pitch) {
            Packet<E, N> loaded[DEPTH];
#pragma unroll
            for (int u = 0; u < DEPTH; ++u)
                if (u < n) loaded[u] = *reinterpret_cast<const Packet<E, N>*>(x + u * pitch);
#pragma unroll
            for (int u = 0; u < DEPTH; ++u)
                if (u < n) accumulate(loaded[u]);
        }
    }

    template <class E>
    __device__ __forceinline__ void accumulate(const Packet<E, N>& x) {
#pragma unroll
        for (int i = 0; i < N; ++i) sum.at[i] += to_accumulator(x.at[i]);
    }

    // Adds up the threads of the block that have the same columns; valid where threadIdx.y is 0.
    __device__ __forceinline__ void sum_over_y() {
        __shared__ Packet<Acc, N> of_thread[THREADS];
        const u32 i = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
        u32 half = 1;
        while (half < blockDim.y) half *= 2;
        for (half /= 2; half > 0; half /= 2) {
            __syncthreads();
            of_thread[i] = sum;
            __syncthreads();
            if (threadIdx.y < half && threadIdx.y + half < blockDim.y)
                accumulate(of_thread[i + half * blockDim.x]);
        }
    }

    template <class E>
    __device__ __forceinline__ void store(E* to) const {
        Packet<E, N> packet;
#pragma unroll
        for (int i = 0; i < N; ++i) packet.at[i] = from_accumulator<E>(sum.at[i]);
        *reinterpret_cast<Packet<E, N>*>(to) = packet;
    }
};

// How many of the n < 2^31 rows that begin with a thread's first are its own.
__device__ __forceinline__ i32 rows_of(i64 n) {
    return n <= 0 ? 0 : (static_cast<u32>(n) + blockDim.y - 1) / blockDim.y;
}

// A block of (columns, rows, slabs) threads; several spans only where it has one slab.
template <int N>
__device__ __forceinline__ void sum_columns(const T* x, Y* y, Acc* partials, u32* tickets,
                                            const Slabs& slabs) {
    const u32 n_tiles = slabs.n_tiles, n_spans = slabs.n_spans;
    const u32 tile = blockIdx.x % n_tiles, span = blockIdx.x / n_tiles % n_spans;
    const i64 a = static_cast<i64>(blockIdx.x / n_tiles / n_spans) * blockDim.z + threadIdx.z;
    const i64 column = (static_cast<i64>(tile) * blockDim.x + threadIdx.x) * N;
    const bool inside = a < slabs.A && column < slabs.B;
    const bool writes = inside && threadIdx.y == 0;
    const i64 row = span * slabs.span + threadIdx.y;  // the thread's first
    const i64 rest = slabs.R - row, own_span = slabs.span - threadIdx.y;
    Columns<N> columns(slabs.B);
    if (inside)
        columns.add(x + (a * slabs.R + row) * slabs.B + column,
                    rows_of(rest < own_span ? rest : own_span), blockDim.y);
    columns.sum_over_y();
    if (n_spans > 1) {
        Acc* const own = partials + a * n_spans * slabs.B + column;
        if (writes) columns.store(own + span * slabs.B);
        if (!arrives_last(tickets + a * n_tiles + tile, n_spans)) return;
        columns.sum = {};
        if (inside)
            columns.add(own + threadIdx.y * slabs.B,
                        rows_of(static_cast<i64>(n_spans) - threadIdx.y), blockDim.y);
        columns.sum_over_y();
    }
    if (writes) columns.store(y + a * slabs.B + column);
}

// Nothing to add: packets as they are.
struct Copy {
    template <class P>
    __device__ __forceinline__ P operator()(const P& x, int) const {
        return x;
    }
};

// ---- ReduceAllL2 ------------------------------------------------------------------------------------

// The wider of the two accumulators: double where either type is.
using Wider = decltype(Acc{} + AccumulatorOf<Y>::type{});

// Visitor that adds the squares of all elements.
struct SumOfSquares {
    Wider sum = 0;

    template <int N>
    __device__ __forceinline__ void operator()(const Packet<T, N>& x) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const Wider wide = to_accumulator(x.at[i]);
            sum += wide * wide;
        }
    }
};

__device__ __forceinline__ float square_root(float x) { return sqrtf(x); }
__device__ __forceinline__ double square_root(double x) { return sqrt(x); }
__device__ __forceinline__ u32 square_root(u32 x) { return x; }  // of no operator
__device__ __forceinline__ u64 square_root(u64 x) { return x; }

// ---- IsAllFinite, All: one bit of a word tells ------------------------------------------------------

// Masks of a type's words, for each element: its top bit, its exponent, its fraction.
template <class E>
struct Format {
    using Word = u32;
    static constexpr u32 top = 0x80000000u, exponent = 0x7F800000u, fraction = 0x007FFFFFu;
};
template <>
struct Format<double> {
    using Word = u64;
    static constexpr u64 top = 1ull << 63, exponent = 0x7FFull << 52, fraction = (1ull << 52) - 1;
};
template <>
struct Format<__half> {
    using Word = u32;
    static constexpr u32 top = 0x80008000u, exponent = 0x7C007C00u, fraction = 0x03FF03FFu;
};
template <>
struct Format<__nv_bfloat16> {
    using Word = u32;
    static constexpr u32 top = 0x80008000u, exponent = 0x7F807F80u, fraction = 0x007F007Fu;
};
using Word = Format<T>::Word;

// The top bit of every NaN: an exponent of ones and any more carries into it.
__device__ __forceinline__ Word not_a_number(Word x) {
    return (x & ~Format<T>::top) + Format<T>::fraction;
}
// Of every NaN and infinity: an exponent of ones carries.
__device__ __forceinline__ Word not_finite(Word x) {
    constexpr Word lowest = Format<T>::exponent & ~(Format<T>::exponent << 1);
    return (x & Format<T>::exponent) + lowest;
}

struct NotFinite {
    static __device__ __forceinline__ Word test(Word x) { return not_finite(x); }
};
struct NotANumber {
    static __device__ __forceinline__ Word test(Word x) { return not_a_number(x); }
};
struct Infinite {
    static __device__ __forceinline__ Word test(Word x) { return not_finite(x) & ~not_a_number(x); }
};

// Visitor that tests all elements, as words.
template <class Test>
struct AnyOf {
    Word found = 0;

    __device__ __forceinline__ void operator()(const Packet<T, 16 / sizeof(T)>& x) {
        const auto& words = reinterpret_cast<const Packet<Word, 16 / sizeof(Word)>&>(x);
#pragma unroll
        for (int i = 0; i < 16 / sizeof(Word); ++i) found |= Test::test(words.at[i]);
    }
    __device__ __forceinline__ void operator()(const Packet<T, 1>& x) {
        Packet<T, 16 / sizeof(T)> alone{};
        alone.at[0] = x.at[0];
        (*this)(alone);
    }
    __device__ bool any() const { return found & Format<T>::top; }
};

// Visitor for bytes: the top bit of every byte that is zero.
struct AnyFalse {
    u32 found = 0;

    __device__ __forceinline__ void test(u32 x) { found |= (x - 0x01010101u) & ~x & 0x80808080u; }
    __device__ __forceinline__ void operator()(const Packet<u32, 4>& x) {
#pragma unroll
        for (int i = 0; i < 4; ++i) test(x.at[i]);
    }
    __device__ __forceinline__ void operator()(const Packet<u8, 1>& x) {
        test(0x01010100u | x.at[0]);
    }
    __device__ bool any() const { return found; }
};

// What blocks tell each other: who comes last, and whether one of them has found something.
struct Poll {
    u32 ticket, found;
};

// y = no block has found anything; written by the last block of the last launch.
__device__ __forceinline__ void report(bool found, Poll* poll, bool last_launch, bool* y) {
    const bool any = __syncthreads_or(found);
    if (any && threadIdx.x == 0) atomicOr(&poll->found, 1u);
    if (last_launch && arrives_last(&poll->ticket, gridDim.x) && threadIdx.x == 0)
        y[0] = atomicExch(&poll->found, 0u) == 0;
}

template <class Test>
__device__ __forceinline__ void none_of(const Pointers<CAPACITY>& arrays, const TensorSizes& sizes,
                                        Poll* poll, bool last_launch, bool* y) {
    AnyOf<Test> tested;
    visit_tensors<T>(arrays, sizes, tested);
    report(tested.any(), poll, last_launch, y);
}

}  // namespace cto

using namespace cto;

// Many rows: `lanes` threads each, a power of two.
extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_sum_training__rows(const T* x, Y* y, i64 n_rows, i64 length, u32 lanes) {
    const u32 lane = threadIdx.x & (lanes - 1);
    const i64 row = static_cast<i64>(blockIdx.x) * (THREADS / lanes) + threadIdx.x / lanes;
    const Run<T> run(x + row * length, row < n_rows ? length : 0);
    Sum<T> visit;
    visit_packets(run, 0, run.packets, lane, lanes, visit);
    visit_edges(run, lane, lanes, visit);
    const Acc sum = sum_lanes(visit.sum, lanes);
    if (lane == 0 && row < n_rows) y[row] = from_accumulator<Y>(sum);
}

// Long rows: n_spans blocks each, with so many packets a block.
extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_sum_training__long_rows(const T* x, Y* y, Acc* partials, u32* tickets, i64 length,
                                   i64 span, u32 n_spans) {
    const i64 row = blockIdx.x / n_spans;
    const Run<T> run(x + row * length, length);
    const i64 first = blockIdx.x % n_spans * span;
    Sum<T> visit;
    visit_packets(run, first, span, threadIdx.x, THREADS, visit);
    if (first == 0) visit_edges(run, threadIdx.x, THREADS, visit);
    Acc sum = sum_block(visit.sum);
    if (n_spans > 1) {
        if (threadIdx.x == 0) partials[blockIdx.x] = sum;
        if (!arrives_last(tickets + row, n_spans)) return;
        sum = sum_partials(partials + row * n_spans, n_spans);
    }
    if (threadIdx.x == 0) y[row] = from_accumulator<Y>(sum);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_sum_training__columns(const T* x, Y* y, Acc* partials, u32* tickets, Slabs slabs) {
    sum_columns<16 / sizeof(T)>(x, y, partials, tickets, slabs);
}

// Where 16 bytes of x do not always lie in one row, or not on a 16-byte boundary.
extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_sum_training__single_columns(const T* x, Y* y, Acc* partials, u32* tickets,
                                        Slabs slabs) {
    sum_columns<1>(x, y, partials, tickets, slabs);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_sum_training__copy(const T* x, T* y, i64 n, bool aligned) {
    constexpr int N = 16 / sizeof(T);
    using Division = Packets<N, N, 1, 16 * UNROLL>;
    if (aligned)
        map_packets<true, Division>(x, y, n, n, Copy{});
    else
        map_packets<false, Division>(x, y, n, n, Copy{});
}

// Each launch adds gridDim.x partial sums from first_partial on; the last knows n_partials > 0.
extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_all_l2(Pointers<CAPACITY> arrays, TensorSizes sizes, Wider* partials, u32* ticket, Y* y,
                  u32 first_partial, u32 n_partials) {
    SumOfSquares visit;
    visit_tensors<T>(arrays, sizes, visit);
    const Wider sum = sum_block(visit.sum);
    if (threadIdx.x == 0) partials[first_partial + blockIdx.x] = sum;
    if (n_partials == 0 || !arrives_last(ticket, gridDim.x)) return;
    const Wider total = sum_partials(partials, n_partials);
    if (threadIdx.x == 0) y[0] = from_accumulator<Y>(square_root(total));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    is_all_finite(Pointers<CAPACITY> arrays, TensorSizes sizes, Poll* poll, bool* y,
                  bool last_launch) {
    none_of<NotFinite>(arrays, sizes, poll, last_launch, y);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    is_all_finite__isinf_only(Pointers<CAPACITY> arrays, TensorSizes sizes, Poll* poll, bool* y,
                              bool last_launch) {
    none_of<Infinite>(arrays, sizes, poll, last_launch, y);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    is_all_finite__isnan_only(Pointers<CAPACITY> arrays, TensorSizes sizes, Poll* poll, bool* y,
                              bool last_launch) {
    none_of<NotANumber>(arrays, sizes, poll, last_launch, y);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    all(const bool* x, bool* y, Poll* poll, i64 n) {
    constexpr i64 TILE = UNROLL * THREADS;
    const Run<u8, Packet<u32, 4>> run(reinterpret_cast<const u8*>(x), n);
    AnyFalse tested;
    for (i64 first = blockIdx.x * TILE; first < run.packets; first += gridDim.x * TILE)
        visit_packets(run, first, TILE, threadIdx.x, THREADS, tested);
    if (blockIdx.x == 0) visit_edges(run, threadIdx.x, THREADS, tested);
    report(tested.any(), poll, true, y);
}
