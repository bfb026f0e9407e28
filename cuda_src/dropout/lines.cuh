// SPDX-License-Identifier: MIT
// Dropout over the lines of algorithm/row_softmax.cuh, with the softmax that it follows.
#pragma once
#include "algorithm/row_softmax.cuh"
#include "core/fast_division.cuh"
#include "dropout/operands.cuh"

namespace cto::dropped_softmax {

using random_mask::Draw;
using random_mask::Neighbours;
using random_mask::scaled_or_0;
using row_softmax::Line;
using row_softmax::OnlineSum;
using row_softmax::Place;
using row_softmax::Reader;
using row_softmax::Writer;

// A row of the bias for each row of the data: `repeats` of them share one, or follow one another.
struct BiasRows {
    fast_division::Divisor rows;  // that share a row, or that there are
    bool inner;                   // neighbours share a row

    __device__ i64 of(i64 row) const {
        const fast_division::Cell cell = fast_division::cell_at(row < 0 ? 0 : row, rows);
        return inner ? cell.row : cell.column;
    }
};

// OnlineSum of the sums of two elements each.
template <class A>
struct BiasedSum {
    OnlineSum<A> of;

    template <class Each, class Renew, class Largest>
    __device__ __forceinline__ void include(const Each& each, const Renew& renew, const Largest&) {
        const auto largest = [&](A least) {
            each([&](A x, A bias) { least = row_softmax::larger(least, x + bias); });
            renew();
            return least;
        };
        of.include([&](auto see) { each([&](A x, A bias) { see(x + bias); }); }, renew, largest);
    }
};

// Of a softmax: itself, which of its elements are kept, and those scaled; each may be missing.
template <class T>
struct DropoutWriter {
    using Value = Acc<T>;
    T* dropped;
    bool* mask;
    T* softmax;
    Draw rule;
    Value scale;

    template <int WIDTH, int DEPTH>
    __device__ __forceinline__ void store(const Line<WIDTH, DEPTH>& line,
                                          typename row_softmax::Slots<WIDTH>::Count batch, int u,
                                          const Value (&p)[WIDTH]) const {
        if (line.has(batch, u))
            store_at(line.start + line.head + line.slot(batch, u) * line.pitch, p);
    }
    template <int WIDTH, int DEPTH>
    __device__ __forceinline__ void store_edge(const Line<WIDTH, DEPTH>& line, Value p) const {
        const Value one[1] = {p};
        if (WIDTH > 1 && line.edge >= 0) store_at(line.start + line.edge, one);
    }

  private:
    // Neighbours, from this element of the array on.
    template <int N>
    __device__ __forceinline__ void store_at(i64 first, const Value (&p)[N]) const {
        Neighbours<N> drawn{};
        if (rule.draws()) drawn.draw(rule.stream, first);
        Value scaled[N];
        bool kept[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            kept[i] = rule.keeps(drawn.words[i]);
            scaled[i] = scaled_or_0(p[i], kept[i], scale);
        }
        put(softmax, first, p);
        put(mask, first, kept);
        put(dropped, first, scaled);
    }
    template <class E, int N>
    static __device__ __forceinline__ void put(E* array, i64 first, const Acc<E> (&values)[N]) {
        if (array)
            vec::store_streaming(reinterpret_cast<vec::Vec<E, N>*>(array + first),
                                 vec::from_acc<E>(values));
    }
};

template <class T, int W, int DEPTH, class Threads>
__device__ __forceinline__ void bias_softmax_line(const Line<W, DEPTH>& line,
                                                  const Threads& threads, const T* data,
                                                  const T* bias, const BiasRows& bias_rows,
                                                  i64 length, const DropoutWriter<T>& to) {
    using A = Acc<T>;
    const T* const own = bias + (bias_rows.of(line.number) * length - line.start);
    Reader<T, W, DEPTH> in(line, data, from_acc<T>(row_softmax::negative_infinity<A>()));
    Reader<T, W, DEPTH> in_bias(line, own, from_acc<T>(A(0)));
    BiasedSum<A> sum;
    const auto batch = row_softmax::read(line, sum, in, in_bias);
    sum.of.join(threads);
    const A max = sum.of.max, share = 1 / sum.of.sum;
    const auto map = [=](Place<W>, A x, A b) {
        return math::exp::exponential(x + b - max) * share;
    };
    row_softmax::write(line, batch, map, to, in, in_bias);
}

// The gradient of the softmax at what the mask lets through.
template <class A>
struct Through {
    A scale;
    bool keeps_all;
    A sum = 0;  // of gradients times softmax

    __device__ __forceinline__ A gradient(A dy, bool kept) const {
        return scaled_or_0(dy, kept || keeps_all, scale);
    }
    template <class Each, class Renew, class Largest>
    __device__ __forceinline__ void include(const Each& each, const Renew&, const Largest&) {
        each([&](A dy, bool kept, A y) { sum += gradient(dy, kept) * y; });
    }
};

template <class T, int W, int DEPTH, class Threads>
__device__ __forceinline__ void gradient_line(const Line<W, DEPTH>& line, const Threads& threads,
                                              const T* dy, const bool* mask, const T* y, T* dx,
                                              Through<Acc<T>> through) {
    using A = Acc<T>;
    const T zero = from_acc<T>(A(0));
    Reader<T, W, DEPTH> in_dy(line, dy, zero), in_y(line, y, zero);
    Reader<bool, W, DEPTH> in_mask(line, mask, false);
    const auto batch = row_softmax::read(line, through, in_dy, in_mask, in_y);
    const A sum = threads.sum(through.sum);
    const auto map = [=](Place<W>, A dy, bool kept, A y) {
        return y * (through.gradient(dy, kept) - sum);
    };
    row_softmax::write(line, batch, map, Writer<T>(line, dx), in_dy, in_mask, in_y);
}

}  // namespace cto::dropped_softmax
