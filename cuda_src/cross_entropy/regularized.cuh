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

using capped::Cap;
using loss_and_gradient::LossAndGradient;
using loss_and_gradient::OfLine;
using loss_and_gradient::product;
using math::exp::exponential;
using math::exp::logarithm;
using measures::FirstClass;
using measures::Measures;
using namespace row_softmax;

// LineWriter (writes a thread's elements of a line) of an array that may be null, which is not
// written.
template <class E, int WIDTH, int DEPTH>
struct OptionalWriter : LineWriter<E, WIDTH, DEPTH> {
    using LineWriter<E, WIDTH, DEPTH>::LineWriter;
    // Writes values[i] to element i of the thread's slot u of a batch.
    __device__ __forceinline__ void store(const Line<WIDTH, DEPTH>& line,
                                          typename Slots<WIDTH>::Count batch, int u,
                                          const Acc<E> (&values)[WIDTH]) const {
        if (this->array) LineWriter<E, WIDTH, DEPTH>::store(line, batch, u, values);
    }
    __device__ __forceinline__ void store_edge(const Line<WIDTH, DEPTH>& line, Acc<E> value) const {
        if (this->array) LineWriter<E, WIDTH, DEPTH>::store_edge(line, value);
    }
};

// Sums over a line of capped scores s: `of` are maximum and sum of e^(s - maximum). With
// `averages`, which label smoothing needs, `linear` is the sum of s - maximum over the s that are
// not -inf, and `count` their number.
template <class A>
struct AverageSum {
    bool averages;
    OnlineSum<A> of = {};
    A linear = 0, count = 0;

    // count * shift; 0 without elements, even if shift is infinite.
    __device__ A shifted(A shift) const { return count == 0 ? A(0) : count * shift; }

    // Adds a batch of the thread's elements s, called by lines::read: each(see) calls see(s) for
    // each, renew() hides them from the compiler, largest(a) = max(a, all s). Moves `linear` to the
    // new maximum: sum of s - now = linear + count (before - now).
    template <class Each, class Renew, class Largest>
    __device__ __forceinline__ void include(const Each& each, const Renew& renew,
                                            const Largest& largest) {
        const A before = of.reference(of.max);
        of.include(each, renew, largest);
        if (!averages) return;
        renew();
        const A now = of.reference(of.max);
        if (now != before) linear += shifted(before - now);
        each([&](A s) {
            if (s != negative_infinity<A>()) linear += s - now, count += 1;
        });
    }
    // Combines the sums of the line's threads, in each of them.
    template <class Threads>
    __device__ __forceinline__ void join(const Threads& threads) {
        const A own = of.reference(of.max);
        of.join(threads);
        if (!averages) return;
        linear = threads.sum(linear + shifted(own - of.reference(of.max)));
        count = threads.sum(count);
    }
    // The mean of s - maximum over the line's `length` elements; -inf if one of them is.
    __device__ A mean(i64 length) const {
        return count < static_cast<A>(length) ? negative_infinity<A>()
                                              : linear / static_cast<A>(length);
    }
};

// The terms of the regularized loss. Arguments of its methods: call, the kernel's arguments; own,
// label, label's score and slope of the line; sums, its AverageSum; batch, the one in registers of
// `in`. With s = cap(scores), l = log softmax(s), q = log(sum of exp(s)) of each line, w the weight
// of its label:
//     loss = -w ((1 - smoothing) l[label] + smoothing mean(l) - square q^2)
//     gradient[i] = (softmax(s)[i] (1 + 2 square q) - (1 - smoothing) (i == label)
//                    - smoothing / length) slope cap'(scores[i])
template <class T, class TOUT>
struct Regularized {
    using A = Acc<T>;
    using Call = LossAndGradient<T, TOUT>;
    i64 length;                  // classes
    A smoothing, square;         // label smoothing in [0, 1]; factor of q^2
    Cap<A> cap;                  // s = cap(score)
    Measures<TOUT, A> measures;  // outputs for square q^2 and for the class with the largest score

    template <int W, int DEPTH>
    __device__ __forceinline__ auto reader(const Line<W, DEPTH>& line, const T* scores) const {
        return capped::CappedReader<T, W, DEPTH>(line, scores, cap);
    }
    __device__ AverageSum<A> sums() const { return {smoothing != 0}; }
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
    // Writes the gradient and the class, as far as their arrays are not null. share: (1 + 2 square
    // q) / sum, by which exp(s - max) is multiplied.
    template <int W, int DEPTH, class Threads, class In>
    __device__ __forceinline__ void write(const Call& call, const Line<W, DEPTH>& line,
                                          const OfLine<A>& own, const AverageSum<A>& sums,
                                          typename Slots<W>::Count batch, const Threads& threads,
                                          In& in) const {
        if (!call.gradient && !measures.classes) return;
        const Cap<A> capped = cap;
        const A max = sums.of.max, all = max + logarithm(sums.of.sum);
        const A share = (1 + 2 * square * all) / sums.of.sum, slope = own.slope;
        const A of_label = 1 - smoothing, of_each = smoothing / static_cast<A>(length);
        const A sought = measures.sought(sums.of);
        const i64 label = own.target.label;
        const bool skips = own.skips;
        FirstClass first;
        const auto map = [=, &first](Place<W> place, A s) {
            first.see(place, s == sought);
            const A p = product(exponential(s - max), share);
            const A target = place.is(label) ? of_each + of_label : of_each;
            return skips ? A(0) : (p - target) * slope * capped.slope(s);
        };
        row_softmax::write(line, batch, map, OptionalWriter<T, W, DEPTH>(line, call.gradient), in);
        measures.store_class(line, first, threads, own.target.weight == 0 && label < 0);
    }
};

}  // namespace cto::cross_entropy::regularized
