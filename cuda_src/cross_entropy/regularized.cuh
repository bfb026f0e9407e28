// SPDX-License-Identifier: MIT
// Losses with smoothed labels, capped scores and a penalty square log(sum of exp(scores))^2
// (z-loss), and their gradients, in one kernel. A Line is a thread's part of one line of scores:
// slots (vectors) of W elements, DEPTH of them, a batch, in registers at a time
// (algorithm/lines.cuh).
#pragma once
#include "cross_entropy/capped.cuh"
#include "cross_entropy/loss_and_gradient.cuh"
#include "cross_entropy/measures.cuh"

namespace cto::cross_entropy::regularized {

using loss_and_gradient::LossAndGradient;
using loss_and_gradient::OfLine;
using loss_and_gradient::product;
using math::exp::exponential;
using math::exp::logarithm;
using measures::Measures;
using namespace row_softmax;

// Sums over a line of capped scores s: `of` are maximum and sum of e^(s - maximum); `linear` is the
// sum of s - maximum over the s that are not -inf, and `count` their number. has_max: after join,
// the thread has an s that is the maximum.
template <class A>
struct AverageSum {
    OnlineSum<A> of;
    A linear = 0, count = 0;
    bool has_max = false;

    // count * shift; 0 without elements, even if shift is infinite.
    __device__ A shifted(A shift) const { return count == 0 ? A(0) : count * shift; }

    // Adds a batch of the thread's elements s, called by lines::read: each(see) calls see(s) for
    // each, largest(a) = max(a, all s). Moves `linear` to the new maximum: sum of s - now = linear +
    // count (before - now).
    template <class Each, class Renew, class Largest>
    __device__ __forceinline__ void include(const Each& each, const Renew&,
                                            const Largest& largest) {
        const A before = of.reference(of.max), now = of.move(largest);
        if (now != before) linear += shifted(before - now);
        each([&](A s) {
            const A past = s - now;
            of.sum += exponential(past);
            if (s != negative_infinity<A>()) linear += past, count += 1;
        });
    }
    // Combines the sums of the line's threads, in each of them.
    template <class Threads>
    __device__ __forceinline__ void join(const Threads& threads) {
        const A own = of.max;
        of.join(threads);
        has_max = own == of.max;
        linear = threads.sum(linear + shifted(of.reference(own) - of.reference(of.max)));
        count = threads.sum(count);
    }
    // The mean of s - maximum over the line's `length` elements; -inf if one of them is.
    __device__ A mean(i64 length) const {
        return count < static_cast<A>(length) ? negative_infinity<A>()
                                              : fast_divide(linear, static_cast<A>(length));
    }
};

// The terms of the regularized loss; CAP: Cap, or Uncapped without a cap. Arguments of its methods:
// call, the kernel's arguments; own, label, label's score and slope of the line; sums, its
// AverageSum; batch, the one in registers of `in`. With s = cap(scores), l = log softmax(s), q =
// log(sum of exp(s)) of each line, w the weight of its label:
//     loss = -w ((1 - smoothing) l[label] + smoothing mean(l) - square q^2)
//     gradient[i] = (softmax(s)[i] (1 + 2 square q) - (1 - smoothing) (i == label)
//                    - smoothing / length) slope cap'(scores[i])
template <class T, class TOUT, class CAP>
struct Regularized {
    using A = Acc<T>;
    using Call = LossAndGradient<T, TOUT>;
    i64 length;                  // classes
    A smoothing, square;         // label smoothing in [0, 1]; factor of q^2
    CAP cap;                     // s = cap(score)
    Measures<TOUT, A> measures;  // outputs for square q^2 and for the class with the largest score

    template <int W, int DEPTH>
    __device__ __forceinline__ auto reader(const Line<W, DEPTH>& line, const T* scores) const {
        return capped::CappedReader<T, W, DEPTH, CAP>(line, scores, cap);
    }
    __device__ AverageSum<A> sums() const { return {}; }
    // Stores loss / w, and square q^2; Losses multiplies by w. all: q; last: q - max, log(sum).
    template <int W, int DEPTH>
    __device__ __forceinline__ void store_loss(const Call& call, const Line<W, DEPTH>& line,
                                               const OfLine<A>& own,
                                               const AverageSum<A>& sums) const {
        if (!line.leads()) return;
        const A max = sums.of.max, last = logarithm(sums.of.sum), all = max + last;
        const A squared = square == 0 ? A(0) : square * all * all;
        if (call.losses.wanted()) {
            A loss = last + squared;  // a share of 0 has no part, also of -inf
            if (smoothing != 1) loss -= (1 - smoothing) * (cap(own.score) - max);
            if (smoothing != 0) loss -= smoothing * sums.mean(length);
            call.losses.store(line.number, own.target, loss);
        }
        if (measures.squares.wanted()) measures.squares.store(line.number, own.target, squared);
    }
    // Writes the class and the gradient, as far as their arrays are not null: the gradient as of no
    // label for all elements, then the label's once more, as comparing each with the label is slow.
    // share: (1 + 2 square q) / sum, by which exp(s - max) is multiplied.
    template <int W, int DEPTH, class Threads, class In>
    __device__ __forceinline__ void write(const Call& call, const Line<W, DEPTH>& line,
                                          const OfLine<A>& own, const AverageSum<A>& sums,
                                          typename Slots<W>::Count batch, const Threads& threads,
                                          In& in) const {
        measures.store_class(line, threads, call.scores, cap, sums.of, sums.has_max,
                             own.target.weight == 0 && own.target.label < 0);
        if (!call.gradient) return;
        const LineWriter<T, W, DEPTH> to(line, call.gradient);
        const auto each = [&](auto map) { row_softmax::write(line, batch, map, to, in); };
        if (own.target.skips(call.divisor.load())) {
            each([](Place<W>, A) { return A(0); });
            return;
        }
        const CAP capped = cap;
        const A max = sums.of.max, all = max + logarithm(sums.of.sum), slope = own.slope;
        const A share = fast_divide(1 + 2 * square * all, sums.of.sum);
        const A of_each = fast_divide(smoothing, static_cast<A>(length));
        const auto gradient = [=](A s, A target) {
            return (product(exponential(s - max), share) - target) * slope * capped.slope(s);
        };
        const A of_label = gradient(cap(own.score), of_each + (1 - smoothing));
        each([=](Place<W>, A s) { return gradient(s, of_each); });
        const i64 label = own.target.label;
        if (label >= 0 && line.holds(label))
            call.gradient[line.start + label * line.stride] = from_acc<T>(of_label);
    }
};

}  // namespace cto::cross_entropy::regularized
