// SPDX-License-Identifier: MIT
// Gradient of Y = A / B under broadcasting: dA sums dY / B and dB sums -(dY / B) (A / B) over the
// dimensions that A, or B, is repeated along.
//
// Where one of them, the whole, has every dimension of dY and the other is repeated, one pass
// writes the whole's gradient and sums the other's. What is summed is divided into spans: each
// gives a row of partial sums, and a second launch adds the rows up in a fixed order.
#pragma once
#include "algorithm/column_reduce.cuh"
#include "algorithm/reduce.cuh"
#include "core/fast_division.cuh"
#include "core/vec.cuh"
#include "elementwise/facts.cuh"

namespace cto::div_gradient {

using column_reduce::Columns;
using facts::elementwise::Broadcast;
using facts::elementwise::OuterKeptInner;
using fast_division::Divisor;
using vec::Vec;

template <class T>
struct DivGradient {
    Acc<T> da, db;
};

// Division as T needs it: 2 units of float are nothing in 2-byte types. Those of half are normal in
// float; a subnormal divisor of the others must not become zero.
__device__ __forceinline__ float divided(float x, float y, float) { return divide_subnormal(x, y); }
__device__ __forceinline__ float divided(float x, float y, __half) { return __fdividef(x, y); }
__device__ __forceinline__ float divided(float x, float y, __nv_bfloat16) {
    return fast_divide(x, y);
}
__device__ __forceinline__ double divided(double x, double y, double) { return x / y; }

template <class T>
__device__ __forceinline__ DivGradient<T> div_gradient(Acc<T> dy, Acc<T> a, Acc<T> b) {
    const Acc<T> da = divided(dy, b, T{});
    return {da, -da * divided(a, b, T{})};
}

// ---- one operand is the whole, the other is repeated --------------------------------------------

// B_IS_REPEATED: the other operand is B, else A.
template <class T, bool B_IS_REPEATED>
struct Operands {
    const T *dy, *whole, *repeated;
    T* d_whole;
};

template <int N, class T>
__device__ __forceinline__ Vec<T, N> vec_at(const T* from, i64 at) {
    return *reinterpret_cast<const Vec<T, N>*>(from + at);
}

// N elements of dY and the whole.
template <class T, int N>
struct Terms {
    i64 at;
    Vec<T, N> dy, whole;

    template <bool B_IS_REPEATED>
    __device__ Terms(const Operands<T, B_IS_REPEATED>& arrays, i64 at)
        : at(at), dy(vec_at<N>(arrays.dy, at)), whole(vec_at<N>(arrays.whole, at)) {}
};

// The whole's gradient is written, the other's is added to `sums`.
template <class T, int N, bool B_IS_REPEATED>
__device__ __forceinline__ void differentiate(const Operands<T, B_IS_REPEATED>& arrays,
                                              const Terms<T, N>& terms, const Acc<T> (&repeated)[N],
                                              Acc<T> (&sums)[N]) {
    Acc<T> d_whole[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const Acc<T> w = to_acc(terms.whole.at[i]);
        const Acc<T> a = B_IS_REPEATED ? w : repeated[i];
        const Acc<T> b = B_IS_REPEATED ? repeated[i] : w;
        const DivGradient<T> g = div_gradient<T>(to_acc(terms.dy.at[i]), a, b);
        d_whole[i] = B_IS_REPEATED ? g.da : g.db;
        sums[i] += B_IS_REPEATED ? g.db : g.da;
    }
    if (arrays.d_whole)
        *reinterpret_cast<Vec<T, N>*>(arrays.d_whole + terms.at) = vec::from_acc<T>(d_whole);
}

// All terms from `first` to before `end`, `step` apart; two are loaded before one is stored.
template <class T, int N, bool B_IS_REPEATED>
__device__ __forceinline__ void differentiate_all(const Operands<T, B_IS_REPEATED>& arrays,
                                                  i64 first, i64 end, i64 step,
                                                  const Acc<T> (&repeated)[N], Acc<T> (&sums)[N]) {
    i64 at = first;
#pragma unroll 1
    for (; at + step < end; at += 2 * step) {
        const Terms<T, N> one(arrays, at), other(arrays, at + step);
        differentiate(arrays, one, repeated, sums);
        differentiate(arrays, other, repeated, sums);
    }
    if (at < end) differentiate(arrays, Terms<T, N>(arrays, at), repeated, sums);
}

// One row is repeated: a thread has N columns of every blockDim.y-th row of a span.
template <int N, class T, bool B_IS_REPEATED>
__device__ __forceinline__ void sum_columns(const Operands<T, B_IS_REPEATED>& arrays,
                                            Acc<T>* partials, i64 rows, i64 columns,
                                            i64 span_rows) {
    const i64 column = (static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
    if (column >= columns) return;
    const Vec<T, N> loaded = vec_at<N>(arrays.repeated, column);
    Acc<T> repeated[N], sums[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
        repeated[i] = to_acc(loaded.at[i]);
        sums[i] = Acc<T>(0);
    }
    const i64 first = blockIdx.y * span_rows, end = min(rows, first + span_rows);
    differentiate_all(arrays, (first + threadIdx.y) * columns + column, end * columns,
                      blockDim.y * columns, repeated, sums);
    if (!partials) return;
    const i64 partial = static_cast<i64>(blockIdx.y) * blockDim.y + threadIdx.y;
#pragma unroll
    for (int i = 0; i < N; ++i) partials[partial * columns + column + i] = sums[i];
}

// What a group of lanes sums: a span of the terms of one kept element.
template <int THREADS>
struct Task {
    i64 number, kept, span;
    u32 lane;
    bool exists;

    __device__ Task(i64 n_kept, i64 n_spans, u32 lanes) {
        number = static_cast<i64>(blockIdx.x) * (THREADS / lanes) + threadIdx.x / lanes;
        span = number / n_kept;
        kept = number - span * n_kept;
        lane = threadIdx.x % lanes;
        exists = span < n_spans;
    }

    // To the partial sums, or to the output itself where there is one span and so no partials.
    template <class T>
    __device__ void emit(Acc<T> sum, Acc<T>* partials, T* out) const {
        if (!exists || lane != 0) return;
        if (partials)
            partials[number] = sum;
        else if (out)
            out[number] = from_acc<T>(sum);
    }
};

template <int N, int THREADS, class T, bool B_IS_REPEATED>
__device__ __forceinline__ void sum_outer_and_inner(const Operands<T, B_IS_REPEATED>& arrays,
                                                    Acc<T>* partials, T* d_repeated,
                                                    const OuterKeptInner& sizes) {
    const Task<THREADS> task(sizes.kept, sizes.n_spans, sizes.lanes);
    Acc<T> repeated[N], sums[N], sum = Acc<T>(0);
    if (task.exists) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            repeated[i] = to_acc(arrays.repeated[task.kept]);
            sums[i] = Acc<T>(0);
        }
        const i64 outer_first = task.span / sizes.inner_spans * sizes.outer_each;
        const i64 outer_end = min(sizes.outer, outer_first + sizes.outer_each);
        const i64 inner_first = task.span % sizes.inner_spans * sizes.inner_each;
        const i64 inner_end = min(sizes.inner, inner_first + sizes.inner_each);
#pragma unroll 1
        for (i64 o = outer_first; o < outer_end; ++o) {
            const i64 start = (o * sizes.kept + task.kept) * sizes.inner;
            differentiate_all(arrays, start + inner_first + task.lane * N, start + inner_end,
                              sizes.lanes * N, repeated, sums);
        }
#pragma unroll
        for (int i = 0; i < N; ++i) sum += sums[i];
    }
    task.emit(reduce::sum_lanes(sum, sizes.lanes), partials, d_repeated);
}

// ---- any broadcasting ---------------------------------------------------------------------------

struct Offsets {
    i64 dy, a, b;

    __device__ void add(const Broadcast& dimensions, i64 index, i32 first, i32 end) {
        for (i32 d = end - 1; d >= first; --d) {
            const fast_division::Cell cell = fast_division::cell_at(index, dimensions.extent[d]);
            dy += cell.column * dimensions.dy[d];
            a += cell.column * dimensions.a[d];
            b += cell.column * dimensions.b[d];
            index = cell.row;
        }
    }
};

// The sum of a group of lanes' span; of_a: of dA's terms, else of dB's.
template <class T, int THREADS>
__device__ __forceinline__ Acc<T> sum_span(const T* dy, const T* a, const T* b,
                                           const Broadcast& dimensions, const Task<THREADS>& task,
                                           i64 summed, i64 span, u32 lanes, bool of_a) {
    Acc<T> sum = Acc<T>(0);
    if (!task.exists) return sum;
    Offsets start{};
    start.add(dimensions, task.kept, 0, dimensions.n_kept);
    const i64 end = min(summed, (task.span + 1) * span);
    for (i64 i = task.span * span + task.lane; i < end; i += lanes) {
        Offsets at = start;
        at.add(dimensions, i, dimensions.n_kept, dimensions.n);
        const DivGradient<T> g =
            div_gradient<T>(to_acc(dy[at.dy]), to_acc(a[at.a]), to_acc(b[at.b]));
        sum += of_a ? g.da : g.db;
    }
    return sum;
}

// ---- the second launch --------------------------------------------------------------------------

constexpr int FINISH_DEPTH = 4;  // rows of partial sums that a thread loads together

// Adds up rows of partial sums; thread (x, y) has every blockDim.y-th row of column x.
template <class T>
__device__ __forceinline__ void add_rows(const Acc<T>* partials, T* out, i64 rows, i64 columns,
                                         Vec<Acc<T>, 1> (&of_thread)[facts::MAX_THREADS]) {
    const i64 column = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    Columns<Acc<T>, 1, FINISH_DEPTH> own;
    if (column < columns)
        own.add(partials + threadIdx.y * columns + column,
                column_reduce::rows_of(rows - threadIdx.y), blockDim.y * columns);
    own.sum_over_y(of_thread);
    if (threadIdx.y == 0 && column < columns) own.store(out + column);
}

}  // namespace cto::div_gradient
