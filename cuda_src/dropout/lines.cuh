// SPDX-License-Identifier: MIT
// Softmax and then dropout along lines of an array, and the gradient of both. A `Line` is a
// thread's part of a line; its slots (vectors) are in registers DEPTH at a time, a batch
// (algorithm/lines.cuh).
#pragma once
#include "algorithm/row_softmax.cuh"
#include "core/fast_division.cuh"
#include "dropout/operands.cuh"

namespace cto::dropped_softmax {

using random_mask::KeyedDraw;
using random_mask::marked;
using random_mask::Marks;
using random_mask::Neighbours;
using random_mask::scaled_or_0;
using row_softmax::Line;
using row_softmax::LineReader;
using row_softmax::LineWriter;
using row_softmax::OnlineSum;
using row_softmax::Place;

// The row of the bias that is added to a row of the data: row / rows if `inner` (`rows` neighbours
// share one), else row % rows (the bias has `rows` rows).
struct BiasRows {
    fast_division::Divisor rows;
    bool inner;

    // The row of the bias that is added to row `row` of data; 0 for a thread without a row (-1).
    __device__ i64 of(i64 row) const {
        const fast_division::Cell cell = fast_division::cell_at(row < 0 ? 0 : row, rows);
        return inner ? cell.row : cell.column;
    }
};

// Reader of the sums x + bias along a line, with the interface of lines::Reader. Each sum is
// computed once, when its elements are loaded, and stays in registers instead of them: a float
// takes no more registers than two elements of 2 bytes or more. Sums past the line's end are -inf.
// `edge`: the thread's sum outside whole slots.
template <class T, int W, int DEPTH>
struct SumReader {
    using A = Acc<T>;
    static constexpr bool IN_PAIRS = false;
    LineReader<T, W, DEPTH> x, bias;
    A edge;
    A registers[DEPTH][W];

    // Element i of the line is x[line.start + i] + bias[line.start + i].
    __device__ __forceinline__ SumReader(const Line<W, DEPTH>& line, const T* x, const T* bias)
        : x(line, x, /*fill=*/from_acc<T>(row_softmax::negative_infinity<A>())),
          bias(line, bias, /*fill=*/from_acc<T>(A(0))),
          edge(to_acc(this->x.edge) + to_acc(this->bias.edge)) {}

    // registers = x + bias of a batch of the line. STREAMS: by streaming loads.
    template <bool STREAMS = false>
    __device__ __forceinline__ void load(const Line<W, DEPTH>& line,
                                         typename row_softmax::Slots<W>::Count batch) {
        x.template load<STREAMS>(line, batch);
        bias.template load<STREAMS>(line, batch);
#pragma unroll
        for (int u = 0; u < DEPTH; ++u)
#pragma unroll
            for (int i = 0; i < W; ++i) registers[u][i] = x.at(u, i) + bias.at(u, i);
    }
    // The sum at element i of the thread's slot u of the batch.
    __device__ __forceinline__ A at(int u, int i) const { return registers[u][i]; }
    // max(least, the batch's sums).
    __device__ __forceinline__ A largest(A least) const {
#pragma unroll
        for (int u = 0; u < DEPTH; ++u)
#pragma unroll
            for (int i = 0; i < W; ++i) least = row_softmax::larger(least, registers[u][i]);
        return least;
    }
    __device__ void renew(u32) const {}  // sums are not packed 2-byte elements
};

// Writer, for lines::write (store, store_edge), of p, the softmax of a line, to `softmax`; mask =
// kept; dropped = kept ? p * scale : 0. Any of the arrays, which have one layout, may be null.
template <class T>
struct DropoutWriter {
    using Value = Acc<T>;
    T* dropped;
    bool* mask;
    T* softmax;
    KeyedDraw rule;  // which elements of the array are kept
    Value scale;

    // Writes the thread's slot u of a batch, if it exists: element i is p[i].
    template <int WIDTH, int DEPTH>
    __device__ __forceinline__ void store(const Line<WIDTH, DEPTH>& line,
                                          typename row_softmax::Slots<WIDTH>::Count batch, int u,
                                          const Value (&p)[WIDTH]) const {
        if (line.has(batch, u))
            store_at(line.start + line.head + line.slot(batch, u) * line.pitch, p);
    }
    // Writes the thread's element outside whole slots.
    template <int WIDTH, int DEPTH>
    __device__ __forceinline__ void store_edge(const Line<WIDTH, DEPTH>& line, Value p) const {
        const Value one[1] = {p};
        if (WIDTH > 1 && line.edge >= 0) store_at(line.start + line.edge, one);
    }

  private:
    // Computes and writes elements [first, first + N) of each array; first is a multiple of N.
    template <int N>
    __device__ __forceinline__ void store_at(i64 first, const Value (&p)[N]) const {
        Neighbours<N> drawn{};
        if (rule.draws()) drawn.draw(rule.sequence, first);
        Value scaled[N];
        Marks<N> marks{};
#pragma unroll
        for (int i = 0; i < N; ++i)
            scaled[i] = marked(p[i], {drawn.words[i], rule.largest}, scale, marks.mark(i));
        put(softmax, first, p);
        if (mask) marks.store(mask + first);
        put(dropped, first, scaled);
    }
    // array[first + i] = values[i]; nothing if the array is null.
    template <class E, int N>
    static __device__ __forceinline__ void put(E* array, i64 first, const Acc<E> (&values)[N]) {
        if (array)
            vec::store_streaming(reinterpret_cast<vec::Vec<E, N>*>(array + first),
                                 vec::from_acc<E>(values));
    }
};

// Writes softmax of data + bias along one line, and its dropout, to `to`. W: elements of a slot.
// `threads` reduces over the line's threads; length: elements of a line; bias: rows as `data` has
// them, chosen by bias_rows.
template <class T, int W, int DEPTH, class Threads>
__device__ __forceinline__ void bias_softmax_line(const Line<W, DEPTH>& line,
                                                  const Threads& threads, const T* data,
                                                  const T* bias, const BiasRows& bias_rows,
                                                  i64 length, const DropoutWriter<T>& to) {
    using A = Acc<T>;
    // element line.start + i of `own` is that of the bias for element i of the line
    const T* const own = bias + (bias_rows.of(line.number) * length - line.start);
    SumReader<T, W, DEPTH> in(line, data, own);
    OnlineSum<A> of;
    const auto batch = row_softmax::read(line, of, in);
    of.join(threads);
    const A max = of.max, share = 1 / of.sum;
    const auto map = [=](Place<W>, A x) { return math::exp::exponential(x - max) * share; };
    row_softmax::write(line, batch, map, to, in);
}

// The gradient through dropout, and its sum along a line of softmax. keeps_all: there is no mask,
// all elements were kept. sum: of g * y over the elements that the thread has read.
template <class A>
struct Through {
    A scale;
    bool keeps_all;
    A sum = 0;

    // g, the gradient of the softmax's output y: dy * scale where the element is kept, else 0.
    __device__ __forceinline__ A gradient(A dy, bool kept) const {
        return scaled_or_0(dy, kept || keeps_all, scale);
    }
    // Adds a batch of elements (dy, kept, y); called by lines::read.
    template <class Each, class Renew, class Largest>
    __device__ __forceinline__ void include(const Each& each, const Renew&, const Largest&) {
        each([&](A dy, bool kept, A y) { sum += gradient(dy, kept) * y; });
    }
};

// Writes dx = y * (g - sum of g * y) along one line, the gradient of softmax and dropout; y is the
// softmax's output, g = through.gradient(dy, mask).
template <class T, int W, int DEPTH, class Threads>
__device__ __forceinline__ void gradient_line(const Line<W, DEPTH>& line, const Threads& threads,
                                              const T* dy, const bool* mask, const T* y, T* dx,
                                              Through<Acc<T>> through) {
    using A = Acc<T>;
    const T zero = from_acc<T>(A(0));
    LineReader<T, W, DEPTH> in_dy(line, dy, /*fill=*/zero), in_y(line, y, /*fill=*/zero);
    LineReader<bool, W, DEPTH> in_mask(line, mask, /*fill=*/false);
    const auto batch = row_softmax::read(line, through, in_dy, in_mask, in_y);
    const A sum = threads.sum(through.sum);
    const auto map = [=](Place<W>, A dy, bool kept, A y) {
        return y * (through.gradient(dy, kept) - sum);
    };
    row_softmax::write(line, batch, map, LineWriter<T, W, DEPTH>(line, dx), in_dy, in_mask, in_y);
}

}  // namespace cto::dropped_softmax
