// SPDX-License-Identifier: MIT
// Losses with smoothed labels, capped scores and a square of the logarithm of the sum, and their
// gradients, in one kernel.
#pragma once
#include "cross_entropy/loss_and_gradient.cuh"

namespace cto::cross_entropy::regularized {

using loss_and_gradient::LossAndGradient;
using loss_and_gradient::OfLine;
using loss_and_gradient::product;
using math::exp::exponential;
using math::exp::logarithm;
using namespace row_softmax;

__device__ __forceinline__ float tanh_of(float x) { return tanhf(x); }
__device__ __forceinline__ double tanh_of(double x) { return tanh(x); }

// cap tanh(x / cap), or x where cap is 0. -inf stays: masked classes have no part.
template <class A>
struct Cap {
    A cap;

    __device__ __forceinline__ A operator()(A x) const {
        return cap == 0 || x == negative_infinity<A>() ? x : cap * tanh_of(x / cap);
    }
    // The derivative where the capped score is s.
    __device__ __forceinline__ A slope(A s) const {
        if (cap == 0) return 1;
        if (s == negative_infinity<A>()) return 0;
        const A t = s / cap;
        return (1 - t) * (1 + t);
    }
};

// Sums over a line of capped scores s: those of softmax, and, with AVERAGES, the sum of s - maximum
// over the s that are not -inf, and their number.
template <class A>
struct CappedSum {
    Cap<A> cap;
    bool averages;
    OnlineSum<A> of;
    A linear = 0, count = 0;

    __device__ __forceinline__ CappedSum(Cap<A> cap, bool averages)
        : cap(cap), averages(averages) {}

    // count * shift; 0 without elements, even if shift is infinite.
    __device__ A shifted(A shift) const { return count == 0 ? A(0) : count * shift; }

    template <class Each, class Renew, class Largest>
    __device__ __forceinline__ void include(const Each& each, const Renew& renew,
                                            const Largest& largest) {
        const A before = of.reference(of.max);
        of.include([&](auto see) { each([&](A x) { see(cap(x)); }); }, renew,
                   [&](A least) { return larger(least, cap(largest(negative_infinity<A>()))); });
        if (!averages) return;
        renew();
        const A now = of.reference(of.max);
        if (now != before) linear += shifted(before - now);
        each([&](A x) {
            const A s = cap(x);
            if (s != negative_infinity<A>()) linear += s - now, count += 1;
        });
    }
    template <class Threads>
    __device__ __forceinline__ void join(const Threads& threads) {
        const A own = of.reference(of.max);
        of.join(threads);
        if (!averages) return;
        linear = threads.sum(linear + shifted(own - of.reference(of.max)));
        count = threads.sum(count);
    }
    // The mean of s - maximum over `length` elements, -inf if one is.
    __device__ A mean(i64 length) const {
        return count < static_cast<A>(length) ? negative_infinity<A>()
                                              : linear / static_cast<A>(length);
    }
};

// With s = cap(scores), l = log softmax(s), q = log(sum of exp(s)) of each line:
//     loss = -w ((1 - smoothing) l[label] + smoothing mean(l) - square q^2)
//     gradient[i] = (softmax(s)[i] (1 + 2 square q) - (1 - smoothing) (i == label)
//                    - smoothing / length) slope cap'(scores[i])
template <class T, class TOUT>
struct Regularized {
    using A = Acc<T>;
    using Call = LossAndGradient<T, TOUT>;
    i64 length;
    A smoothing, square, cap;

    __device__ CappedSum<A> sums() const { return {Cap<A>{cap}, smoothing != 0}; }
    template <int W, int DEPTH>
    __device__ __forceinline__ void store_loss(const Call& call, const Line<W, DEPTH>& line,
                                               const OfLine<A>& own,
                                               const CappedSum<A>& sums) const {
        if (!line.leads() || !call.losses.wanted()) return;
        const A max = sums.of.max, last = logarithm(sums.of.sum), all = max + last;
        A loss = last - (1 - smoothing) * (sums.cap(own.score) - max) + square * all * all;
        if (smoothing != 0) loss -= smoothing * sums.mean(length);
        call.losses.store(line.number, own.target, loss);
    }
    template <int W, int DEPTH, class Threads, class In>
    __device__ __forceinline__ void write(const Call& call, const Line<W, DEPTH>& line,
                                          const OfLine<A>& own, const CappedSum<A>& sums,
                                          typename Slots<W>::Count batch, const Threads&,
                                          In& in) const {
        if (!call.gradient) return;
        const Cap<A> capped = sums.cap;
        const A max = sums.of.max, all = max + logarithm(sums.of.sum);
        const A share = (1 + 2 * square * all) / sums.of.sum, slope = own.slope;
        const A of_label = 1 - smoothing, of_each = smoothing / static_cast<A>(length);
        const i64 label = own.target.label;
        const bool skips = own.skips;
        const auto map = [=](Place<W> place, A x) {
            const A s = capped(x);
            const A p = product(exponential(s - max), share);
            const A target = place.is(label) ? of_each + of_label : of_each;
            return skips ? A(0) : (p - target) * slope * capped.slope(s);
        };
        row_softmax::write(line, batch, map, LineWriter<T, W, DEPTH>(line, call.gradient), in);
    }
};

}  // namespace cto::cross_entropy::regularized
