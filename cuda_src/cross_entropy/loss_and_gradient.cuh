// SPDX-License-Identifier: MIT
// Losses of lines of scores with labels, and the gradients of the scores in one go. A gradient may be
// written over the scores: that of the label is read before any of its line is written.
#pragma once
#include "algorithm/row_softmax.cuh"
#include "core/async_copy.cuh"
#include "cross_entropy/labels.cuh"

namespace cto::cross_entropy {

using math::exp::exponential;
using math::exp::logarithm;
using namespace row_softmax;

// What there is of a line beside its elements.
template <class A>
struct OfLine {
    labels::Target<A> target;
    A score;  // of the label
    A slope;
    bool skips;  // its gradient is 0
};

template <class T, class TOUT>
struct LossAndGradient {
    using A = Acc<T>;
    const T* scores;
    const void* labels;
    const void* weights;
    const labels::Rule& rule;
    T* gradient;  // or null
    labels::Losses<TOUT, A> losses;
    A scale;
    Divisor<A> divisor;

    template <int W, int DEPTH>
    __device__ __forceinline__ OfLine<A> of_line(const Line<W, DEPTH>& line) const {
        labels::Target<A> target{-1, 0, false};
        if (line.number >= 0)
            target = labels::target_of<A>(labels, weights, rule, line.number);
        A score = 0;
        if (target.label >= 0) score = to_acc(scores[line.start + target.label * line.stride]);
        const WeightSum<A> by = divisor.load();
        return {target, score, target.slope(scale, by), target.skips(by)};
    }
    template <int W, int DEPTH>
    __device__ __forceinline__ void store_loss(const Line<W, DEPTH>& line, const OfLine<A>& own,
                                               const OnlineSum<A>& of) const {
        if (line.leads() && losses.wanted())
            losses.store(line.number, own.target, logarithm(of.sum) - (own.score - of.max));
    }
    // `each` writes a line through a map. The gradient of the label is made as if it were no label's, and
    // written again by the same thread.
    template <int W, int DEPTH, class Each>
    __device__ __forceinline__ void store_gradient(const Line<W, DEPTH>& line, const OfLine<A>& own,
                                                   const OnlineSum<A>& of, const Each& each) const {
        const A max = of.max, share = 1 / of.sum, slope = own.slope;
        const auto p = [=](A x) { return exponential(x - max) * share; };
        if (own.skips)
            each([](Place<W>, A) { return A(0); });
        else
            each([=](Place<W>, A x) { return p(x) * slope; });
        if (!own.skips && own.target.label >= 0 && line.holds(own.target.label))
            gradient[line.start + own.target.label * line.stride] =
                from_acc<T>((p(own.score) - 1) * slope);
    }

    template <int W, int DEPTH, class Threads>
    __device__ __forceinline__ void line(const Line<W, DEPTH>& line, const Threads& threads) const {
        LineReader<T, W, DEPTH> in(line, scores, from_acc<T>(negative_infinity<A>()));
        OnlineSum<A> of;
        const auto batch = read(line, of, in);
        const OfLine<A> own = of_line(line);
        of.join(threads);
        store_loss(line, own, of);
        if (!gradient) return;
        const LineWriter<T, W, DEPTH> to(line, gradient);
        store_gradient(line, own, of, [&](auto map) { write(line, batch, map, to, in); });
    }
};

// ---- rows that a block's registers do not hold --------------------------------------------------

// The batches of a row before its last one, in shared memory. Each thread reads only what it has
// copied, and needs no barrier.
template <class T, int W, int DEPTH>
struct Waiting {
    using Row = Line<W, DEPTH>;
    using Reader = LineReader<T, W, DEPTH>;
    using Slot = typename Reader::Slot;
    static constexpr int MOST = facts::cross_entropy::WAITING_BATCHES;
    static_assert(MOST == 3);
    Slot* slots;

    __device__ __forceinline__ void copy(const Row& row, const Reader& of, i32 batch) const {
        if (batch < row.last_batch()) {
#pragma unroll
            for (int u = 0; u < DEPTH; ++u)
                async_copy::copy<sizeof(Slot)>(slots + row.slot(batch, u),
                                               of.slots.at(row, batch, u));
        }
        async_copy::commit();
    }
    __device__ __forceinline__ void arrive(int n) const {
        if (n == 0)
            async_copy::wait<MOST - 1>();
        else if (n == 1)
            async_copy::wait<MOST - 2>();
        else
            async_copy::wait<0>();
    }
    __device__ __forceinline__ void load(const Row& row, Reader& in, i32 batch) const {
#pragma unroll
        for (int u = 0; u < DEPTH; ++u) in.held[u] = slots[row.slot(batch, u)];
    }
};

// A block walks through rows. While one is written, the next takes its place in shared memory.
template <int W, int DEPTH, class T, class TOUT>
__device__ __forceinline__ void walk_rows(const LossAndGradient<T, TOUT>& call, i64 n_rows,
                                          i64 length, void* shared) {
    using A = Acc<T>;
    using Waits = Waiting<T, W, DEPTH>;
    __shared__ A of_warp[WARP];
    const Waits waiting{static_cast<typename Waits::Slot*>(shared)};
    const RowThreads<A> threads{blockDim.x, of_warp};
    const T fill = from_acc<T>(negative_infinity<A>());
    const auto row_number = [&](i64 row) {
        return row_at<W, DEPTH>(row, n_rows, length, threadIdx.x, blockDim.x);
    };
    auto row = row_number(blockIdx.x);
    const auto begin = [&](const auto& of, const auto& in) {
#pragma unroll 1
        for (int n = 0; n < Waits::MOST; ++n) waiting.copy(of, in, n * of.span());
    };
    begin(row, LineReader<T, W, DEPTH>(row, call.scores, fill));
#pragma unroll 1
    while (row.number >= 0) {
        LineReader<T, W, DEPTH> in(row, call.scores, fill), last(row, call.scores, fill);
        last.load(row, row.last_batch());
        const OfLine<A> own = call.of_line(row);
        OnlineSum<A> of;
#pragma unroll 1
        for (int n = 0; n * row.span() < row.last_batch(); ++n) {
            waiting.arrive(n);
            waiting.load(row, in, n * row.span());
            include(row, false, of, in);
        }
        include(row, true, of, last);
        last.renew(row.zero());
        of.join(threads);
        call.store_loss(row, own, of);
        const auto next = row_number(row.number + gridDim.x);
        auto waited = row;
        waited.full = true;  // of all batches but the last
        const LineReader<T, W, DEPTH> of_next(next, call.scores, fill);
        const LineWriter<T, W, DEPTH> to(row, call.gradient);
        call.store_gradient(row, own, of, [&](auto map) {
            to.store_edge(row, map(Place<W>{row.edge, 0}, to_acc(last.edge)));
            write_batch(row, row.last_batch(), map, to, last);
#pragma unroll 1
            for (int n = 0; n < Waits::MOST; ++n) {
                const i32 batch = n * row.span();
                if (batch < row.last_batch()) {
                    waiting.load(row, in, batch);
                    write_batch(waited, batch, map, to, in);
                }
                waiting.copy(next, of_next, batch);
            }
        });
        row = next;
    }
}

}  // namespace cto::cross_entropy
