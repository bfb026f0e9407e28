// SPDX-License-Identifier: MIT
// Losses of lines of scores with labels, and the gradients of the scores, in one kernel. The
// gradient may be the same array as the scores: a line's label score is read before any of the line
// is written. A line is the scores of one row; `Line` is a thread's part of it, slots (vectors) of
// W elements, DEPTH of them in registers at a time (algorithm/lines.cuh).
#pragma once
#include "algorithm/row_softmax.cuh"
#include "cross_entropy/labels.cuh"

namespace cto::cross_entropy::loss_and_gradient {

using math::exp::exponential;
using math::exp::logarithm;
using namespace row_softmax;

// x * y, rounded: the compiler would else fuse it with a following addition to an fma.
__device__ __forceinline__ float product(float x, float y) {
#ifdef __CUDA_CPU__
    return x * y;
#else
    return __fmul_rn(x, y);
#endif
}
__device__ __forceinline__ double product(double x, double y) {
#ifdef __CUDA_CPU__
    return x * y;
#else
    return __dmul_rn(x, y);
#endif
}

// Numbers that all elements of a line share: gradient[i] = (softmax[i] - (i == label)) * slope.
template <class A>
struct OfLine {
    labels::Target<A> target;
    A score;     // scores[label] of the line; 0 without a label
    A slope;     // scale * weight / divisor
    bool skips;  // the gradient of the whole line is 0
};

// Arguments of a kernel of losses and gradients. Its `line` turns one line of scores into both.
template <class T, class TOUT>
struct LossAndGradient {
    using A = Acc<T>;
    const T* scores;
    const void* labels;        // the class of each line, i64 or i32
    const void* weights;       // of each class, or of each line; null for 1
    const labels::Rule& rule;  // how labels and weights are read
    T* gradient;               // of the scores, in their layout, or null
    labels::Losses<TOUT, A> losses;
    A scale;             // the gradient of the sum of weighted losses / divisor
    Divisor<A> divisor;  // n, or the sum of the rows' weights

    // The numbers of this thread's line. Reads its label, weight and label score.
    template <int W, int DEPTH>
    __device__ __forceinline__ OfLine<A> of_line(const Line<W, DEPTH>& line) const {
        labels::Target<A> target{/*label=*/-1, /*weight=*/0, /*outside=*/false};
        if (line.number >= 0) target = labels::target_of<A>(labels, weights, rule, line.number);
        A score = 0;
        if (target.label >= 0) score = to_acc(scores[line.start + target.label * line.stride]);
        const WeightSum<A> by = divisor.load();
        return {target, score, target.slope(scale, by), target.skips(by)};
    }

    // Stores the loss of a line and writes its gradient. `line` is this thread's part; `threads`
    // reduces over the line's threads. `terms` (Plain, or regularized.cuh's Regularized) has the
    // formulas:
    //
    //     reader(line, scores)                  returns a LineReader of the scores
    //     sums()                                returns the empty sums that `read` adds batches to
    //     store_loss(call, line, own, sums)     stores the loss, in the line's first thread
    //     write(call, line, own, sums, batch, threads, in)
    //                                           writes the gradient, from the batch in `in`'s
    //                                           registers back to the first
    template <int W, int DEPTH, class Threads, class Terms>
    __device__ __forceinline__ void line(const Line<W, DEPTH>& line, const Threads& threads,
                                         const Terms& terms) const {
        auto in = terms.reader(line, scores);
        auto sums = terms.sums();
        const auto batch = read(line, sums, in);
        const OfLine<A> own = of_line(line);
        sums.join(threads);
        terms.store_loss(*this, line, own, sums);
        terms.write(*this, line, own, sums, batch, threads, in);
    }
};

// The terms of the plain cross-entropy: loss = -w log_softmax(scores)[label], gradient[i] =
// (softmax(scores)[i] - (i == label)) * slope of each line, slope = scale * w / divisor, w the
// weight of the line's label. Arguments of its methods: call, the kernel's arguments; own, label,
// label's score and slope of the line; of, its maximum and sum; batch, the one in registers of
// `in`.
template <class T, class TOUT>
struct Plain {
    using A = Acc<T>;
    using Call = LossAndGradient<T, TOUT>;

    template <int W, int DEPTH>
    __device__ __forceinline__ auto reader(const Line<W, DEPTH>& line, const T* scores) const {
        return LineReader<T, W, DEPTH>(line, scores, /*fill=*/from_acc<T>(negative_infinity<A>()));
    }
    __device__ OnlineSum<A> sums() const { return {}; }
    // loss = log(sum) - (score of the label - max).
    template <int W, int DEPTH>
    __device__ __forceinline__ void store_loss(const Call& call, const Line<W, DEPTH>& line,
                                               const OfLine<A>& own, const OnlineSum<A>& of) const {
        if (line.leads() && call.losses.wanted())
            call.losses.store(line.number, own.target, logarithm(of.sum) - (own.score - of.max));
    }
    // gradient[i] = (p(x[i]) - (i == label)) * slope, p = softmax. For 2-byte elements comparing
    // every i with the label is slow: p(x[i]) * slope is written for all, and then the label's
    // element once more. Wider elements have no registers left for that.
    template <int W, int DEPTH, class Threads, class In>
    __device__ __forceinline__ void write(const Call& call, const Line<W, DEPTH>& line,
                                          const OfLine<A>& own, const OnlineSum<A>& of,
                                          typename Slots<W>::Count batch, const Threads&,
                                          In& in) const {
        if (!call.gradient) return;
        constexpr bool COMPARES = sizeof(T) >= sizeof(u32);
        const LineWriter<T, W, DEPTH> to(line, call.gradient);
        const A max = of.max, share = 1 / of.sum, slope = own.slope;
        const i64 label = own.target.label;
        const bool skips = own.skips;
        const auto p = [=](A x) { return product(exponential(x - max), share); };
        const auto each = [&](auto map) { row_softmax::write(line, batch, map, to, in); };
        if constexpr (COMPARES) {
            each([=](Place<W> place, A x) {
                return skips ? A(0) : (place.is(label) ? p(x) - 1 : p(x)) * slope;
            });
        } else {
            if (skips)
                each([](Place<W>, A) { return A(0); });
            else
                each([=](Place<W>, A x) { return p(x) * slope; });
            if (!skips && label >= 0 && line.holds(label))
                call.gradient[line.start + label * line.stride] =
                    from_acc<T>((p(own.score) - 1) * slope);
        }
    }
};

}  // namespace cto::cross_entropy::loss_and_gradient
