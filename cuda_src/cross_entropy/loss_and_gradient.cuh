// SPDX-License-Identifier: MIT
// Losses of lines of scores with labels, and the gradients of the scores in one go. A gradient may be
// written over the scores: that of the label is read before any of its line is written.
#pragma once
#include "algorithm/row_softmax.cuh"
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
        if (line.number >= 0) target = labels::target_of<A>(labels, weights, rule, line.number);
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

}  // namespace cto::cross_entropy
