// SPDX-License-Identifier: MIT
// Gradient of Y = A / B under broadcasting: dA sums dY / B and dB sums -(dY / B) (A / B) over the
// dimensions that A, or B, is repeated along.
//
// Where one of them, the whole, has every dimension of dY and the other is repeated, one pass
// writes the whole's gradient and sums the other's. What is summed is divided into spans: each
// gives a row of partial sums, and a second launch adds the rows up in a fixed order.
// B_IS_REPEATED: whole = A, repeated = B, else the other way round; arrays: dY, both operands, and
// d_whole.
#pragma once
#include "algorithm/column_reduce.cuh"
#include "algorithm/reduce.cuh"
#include "core/fast_division.cuh"
#include "core/vec.cuh"
#include "elementwise/facts.cuh"

namespace cto::div_gradient {

using column_reduce::Columns;
using facts::elementwise::Broadcast;
using facts::elementwise::OuterMiddleInner;
using fast_division::Divisor;
using vec::Elements;
using vec::Vec;

// The gradient with respect to one element of A and one of B.
template <class T>
struct DivGradient {
    Acc<T> da, db;
};

// x / y, as exact as the type of the third argument, the arrays' T, needs: for 2-byte T an error of
// 2 units of float is lost in rounding. A subnormal half is a normal float; other subnormal
// divisors must not be flushed to zero.
__device__ __forceinline__ float divided(float x, float y, float) { return divide_subnormal(x, y); }
__device__ __forceinline__ float divided(float x, float y, __half) { return __fdividef(x, y); }
__device__ __forceinline__ float divided(float x, float y, __nv_bfloat16) {
    return fast_divide(x, y);
}
__device__ __forceinline__ double divided(double x, double y, double) { return x / y; }

// da = dy / b, db = -(dy / b) * (a / b).
template <class T>
__device__ __forceinline__ DivGradient<T> div_gradient(Acc<T> dy, Acc<T> a, Acc<T> b) {
    const Acc<T> da = divided(dy, b, T{});
    return {da, -da * divided(a, b, T{})};
}

// set(b), then divides(x) = divided(x, b, T{}), bit for bit, for many x: 1 / b is computed once.
template <class T>
struct Denominator {
    Acc<T> value;
    __device__ __forceinline__ void set(Acc<T> b) { value = b; }
    __device__ __forceinline__ Acc<T> divides(Acc<T> x) const { return divided(x, value, T{}); }
};
// x / b = x * (1 / b).
template <>
struct Denominator<__half> {
    float reciprocal;
    __device__ __forceinline__ void set(float b) { reciprocal = fast_reciprocal(b); }
    __device__ __forceinline__ float divides(float x) const { return x * reciprocal; }
};
// x / b = (x scale) * (1 / (b scale)): `scale` brings 1 / b into the range of normal numbers.
template <>
struct Denominator<__nv_bfloat16> {
    float scale, reciprocal;
    __device__ __forceinline__ void set(float b) {
        const float size = fabsf(b);
        scale = size > 0x1p126f ? 0.25f : size < 0x1p-126f ? 0x1p24f : 1.0f;
        reciprocal = fast_reciprocal(multiply_subnormal(b, scale));
    }
    __device__ __forceinline__ float divides(float x) const {
        return multiply_subnormal(multiply_subnormal(x, scale), reciprocal);
    }
};

// An element x of the repeated operand, which is B (IS_B) or A: set(x), then gradient(dy, element
// of the whole operand) = div_gradient of them, for many elements.
template <class T, bool IS_B>
struct Repeated {
    Denominator<T> b;
    __device__ __forceinline__ void set(Acc<T> x) { b.set(x); }
    __device__ __forceinline__ DivGradient<T> gradient(Acc<T> dy, Acc<T> a) const {
        const Acc<T> da = b.divides(dy);
        return {da, -da * b.divides(a)};
    }
};
// A is repeated: set(a), then gradient(dy, b).
template <class T>
struct Repeated<T, /*IS_B=*/false> {
    Acc<T> a;
    __device__ __forceinline__ void set(Acc<T> x) { a = x; }
    __device__ __forceinline__ DivGradient<T> gradient(Acc<T> dy, Acc<T> b) const {
        return div_gradient<T>(dy, a, b);
    }
};

// ---- one operand is whole (has the shape of dY), the other is repeated --------------------------

// dY and both operands, whole = A and repeated = B if B_IS_REPEATED, else the other way round; and
// d_whole, the gradient of `whole`, which may be null.
template <class T, bool B_IS_REPEATED>
struct Operands {
    const T *dy, *whole, *repeated;
    T* d_whole;
};

// N elements of dY and of the whole operand.
template <class T, int N>
struct Terms {
    Elements<T, N> dy, whole;

    // Loads N elements of dY and of the whole operand, from index `at` on.
    template <bool B_IS_REPEATED>
    __device__ __forceinline__ void load(const Operands<T, B_IS_REPEATED>& arrays, i64 at) {
        dy.load(arrays.dy + at);
        whole.load(arrays.whole + at);
    }
};

// d_whole[at + i] = gradient of whole[at + i], sums[i] += gradient of repeated[i], i < N; terms:
// the elements from index `at` on of dY and `whole`. d_whole may be null.
template <class T, int N, bool B_IS_REPEATED>
__device__ __forceinline__ void differentiate(const Operands<T, B_IS_REPEATED>& arrays,
                                              const Terms<T, N>& terms, i64 at,
                                              const Repeated<T, B_IS_REPEATED> (&repeated)[N],
                                              Acc<T> (&sums)[N]) {
    Acc<T> d_whole[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const DivGradient<T> g = repeated[i].gradient(terms.dy.at(i), terms.whole.at(i));
        d_whole[i] = B_IS_REPEATED ? g.da : g.db;
        sums[i] += B_IS_REPEATED ? g.db : g.da;
    }
    if (arrays.d_whole)
        *reinterpret_cast<Vec<T, N>*>(arrays.d_whole + at) = vec::from_acc<T>(d_whole);
}

// Calls `differentiate` at indices first, first + step, ... below `end` (each of N elements, with
// the same `repeated` and `sums`); DEPTH loads come before the first store.
template <int DEPTH, class T, int N, bool B_IS_REPEATED>
__device__ __forceinline__ void differentiate_all(const Operands<T, B_IS_REPEATED>& arrays,
                                                  i64 first, i64 end, i64 step,
                                                  const Repeated<T, B_IS_REPEATED> (&repeated)[N],
                                                  Acc<T> (&sums)[N]) {
#pragma unroll 1
    for (i64 at = first; at < end; at += DEPTH * step) {
        Terms<T, N> terms[DEPTH];
#pragma unroll
        for (int u = 0; u < DEPTH; ++u)
            if (at + u * step < end) terms[u].load(arrays, at + u * step);
#pragma unroll
        for (int u = 0; u < DEPTH; ++u)
            if (at + u * step < end) differentiate(arrays, terms[u], at + u * step, repeated, sums);
    }
}

// Calls `differentiate` at indices first, first + step, ... below `end` (each of N elements, with
// the same `repeated` and `sums`), for many of them: each round of the loop loads two, without a
// branch.
template <class T, int N, bool B_IS_REPEATED>
__device__ __forceinline__ void differentiate_many(const Operands<T, B_IS_REPEATED>& arrays,
                                                   i64 first, i64 end, i64 step,
                                                   const Repeated<T, B_IS_REPEATED> (&repeated)[N],
                                                   Acc<T> (&sums)[N]) {
    i64 at = first;
    Terms<T, N> one, other;
#pragma unroll 1
    for (; at + step < end; at += 2 * step) {
        one.load(arrays, at);
        other.load(arrays, at + step);
        differentiate(arrays, one, at, repeated, sums);
        differentiate(arrays, other, at + step, repeated, sums);
    }
    if (at >= end) return;
    one.load(arrays, at);
    differentiate(arrays, one, at, repeated, sums);
}

// d_whole = gradient of `whole`, and partials[blockIdx.y * blockDim.y + threadIdx.y][column] = sum
// over the thread's rows of the gradient of repeated[column]; dY and `whole` are [rows, columns].
// Block y has a span of span_rows rows, a thread N columns of every blockDim.y-th row of it.
// `partials` may be null.
template <int N, class T, bool B_IS_REPEATED>
__device__ __forceinline__ void sum_columns(const Operands<T, B_IS_REPEATED>& arrays,
                                            Acc<T>* partials, i64 rows, i64 columns,
                                            i64 span_rows) {
    const i64 column = (static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
    if (column >= columns) return;
    Elements<T, N> loaded;
    loaded.load(arrays.repeated + column);
    Repeated<T, B_IS_REPEATED> repeated[N];
    Acc<T> sums[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
        repeated[i].set(loaded.at(i));
        sums[i] = Acc<T>(0);
    }
    const i64 first = blockIdx.y * span_rows, end = min(rows, first + span_rows);
    differentiate_many(arrays, (first + threadIdx.y) * columns + column, end * columns,
                       blockDim.y * columns, repeated, sums);
    if (!partials) return;
    const i64 partial = static_cast<i64>(blockIdx.y) * blockDim.y + threadIdx.y;
#pragma unroll
    for (int i = 0; i < N; ++i) partials[partial * columns + column + i] = sums[i];
}

// Vectors of each array that a thread loads before it stores. Where each element divides by another
// B, and for elements above 2 bytes, there are registers for fewer.
template <class T, bool B_IS_REPEATED>
constexpr int DEPTH = B_IS_REPEATED && sizeof(T) == 2 ? 4 : 2;

// The gradient of each of n_elements elements is a sum, divided into n_spans spans. A group of
// `lanes` threads adds up one span of one element; group `number` of the grid has span = number /
// n_elements, element = number % n_elements. lane: number of the thread in its group; exists: its
// group has a span. A block has THREADS threads.
template <int THREADS>
struct Task {
    i64 number, element, span;
    u32 lane;
    bool exists;

    // The task of the calling thread's group of lanes: a span, of n_spans, of the sum for one of
    // n_elements elements.
    __device__ Task(i64 n_elements, i64 n_spans, u32 lanes) {
        number = static_cast<i64>(blockIdx.x) * (THREADS / lanes) + threadIdx.x / lanes;
        span = n_spans == 1 ? number >= n_elements : number / n_elements;
        element = number - span * n_elements;
        lane = threadIdx.x % lanes;
        exists = span < n_spans;
    }

    // partials[span][element] = sum, or with one span, where partials is null, out[element] = sum,
    // by lane 0; `out` may be null.
    template <class T>
    __device__ void emit(Acc<T> sum, Acc<T>* partials, T* out) const {
        if (!exists || lane != 0) return;
        if (partials)
            partials[number] = sum;
        else if (out)
            out[number] = from_acc<T>(sum);
    }
};

// Writes d_whole, and for each element of `repeated` the sum of its gradient over a span, to
// partials[span][element], or with one span to d_repeated. dY and the whole operand are [outer,
// middle, inner], `repeated` is [middle]. A task's span is outer_each rows by inner_each columns of
// [outer, inner]; its `lanes` threads take vectors of N in turn. sizes: these numbers, how many
// spans there are along `inner` (inner_spans) and in all (n_spans).
template <int N, int THREADS, class T, bool B_IS_REPEATED>
__device__ __forceinline__ void sum_outer_and_inner(const Operands<T, B_IS_REPEATED>& arrays,
                                                    Acc<T>* partials, T* d_repeated,
                                                    const OuterMiddleInner& sizes) {
    const Task<THREADS> task(sizes.middle, sizes.n_spans, sizes.lanes);
    Repeated<T, B_IS_REPEATED> repeated[N];
    Acc<T> sums[N], sum = Acc<T>(0);
    if (task.exists) {
        Repeated<T, B_IS_REPEATED> value;
        value.set(to_acc(arrays.repeated[task.element]));
#pragma unroll
        for (int i = 0; i < N; ++i) {
            repeated[i] = value;
            sums[i] = Acc<T>(0);
        }
        const i64 outer_span = sizes.inner_spans == 1 ? task.span : task.span / sizes.inner_spans;
        const i64 outer_first = outer_span * sizes.outer_each;
        const i64 outer_end = min(sizes.outer, outer_first + sizes.outer_each);
        const i64 inner_span = task.span - outer_span * sizes.inner_spans;
        const i64 inner_first = inner_span * sizes.inner_each;
        const i64 inner_end = min(sizes.inner, inner_first + sizes.inner_each);
#pragma unroll 1
        for (i64 o = outer_first; o < outer_end; ++o) {
            const i64 start = (o * sizes.middle + task.element) * sizes.inner;
            differentiate_all<DEPTH<T, B_IS_REPEATED>>(arrays, start + inner_first + task.lane * N,
                                                       start + inner_end, sizes.lanes * N, repeated,
                                                       sums);
        }
#pragma unroll
        for (int i = 0; i < N; ++i) sum += sums[i];
    }
    task.emit(reduce::sum_lanes(sum, sizes.lanes), partials, d_repeated);
}

// ---- any broadcasting ---------------------------------------------------------------------------

// Offsets of one element of the broadcast shape in dY, A and B.
struct Offsets {
    i64 dy, a, b;

    // Adds the offsets of the position that is number `index` in row-major order over dimensions
    // [first, end), from the last one on: its coordinate there is index % extent.
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

// Returns the sum of one lane, of the gradient of element task.element of A (of_a) or B: the whole
// sum has `summed` terms, numbered along the dimensions it is summed over, `span` of them a task;
// the lane adds every `lanes`-th of the task's, from its task.lane-th on. dimensions: extents,
// first those of the gradient, then the summed ones, and strides in dy, a and b.
template <class T, int THREADS>
__device__ __forceinline__ Acc<T> sum_span(const T* dy, const T* a, const T* b,
                                           const Broadcast& dimensions, const Task<THREADS>& task,
                                           i64 summed, i64 span, u32 lanes, bool of_a) {
    Acc<T> sum = Acc<T>(0);
    if (!task.exists) return sum;
    Offsets start{};
    start.add(dimensions, task.element, 0, dimensions.n_gradient);
    const i64 end = min(summed, (task.span + 1) * span);
    for (i64 i = task.span * span + task.lane; i < end; i += lanes) {
        Offsets at = start;
        at.add(dimensions, i, dimensions.n_gradient, dimensions.n);
        const DivGradient<T> g =
            div_gradient<T>(to_acc(dy[at.dy]), to_acc(a[at.a]), to_acc(b[at.b]));
        sum += of_a ? g.da : g.db;
    }
    return sum;
}

// ---- the second launch --------------------------------------------------------------------------

constexpr int FINISH_DEPTH = 4;  // rows of partial sums that a thread loads together

// out[column] = sum of partials[row][column], [rows, columns], rounded. Thread (x, y) adds every
// blockDim.y-th row of column blockIdx.x * blockDim.x + x, from row y on; then a block adds its
// threads' sums. per_thread: shared memory.
template <class T>
__device__ __forceinline__ void add_rows(const Acc<T>* partials, T* out, i64 rows, i64 columns,
                                         Vec<Acc<T>, 1> (&per_thread)[facts::MAX_THREADS]) {
    const i64 column = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    Columns<Acc<T>, /*N=*/1, FINISH_DEPTH> own;
    if (column < columns)
        own.add(partials + threadIdx.y * columns + column,
                column_reduce::rows_of(rows - threadIdx.y), blockDim.y * columns);
    own.sum_over_y(per_thread);
    if (threadIdx.y == 0 && column < columns) own.store(out + column);
}

}  // namespace cto::div_gradient
