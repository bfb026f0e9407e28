// SPDX-License-Identifier: MIT
// Sums over a line (the scores of one row, algorithm/lines.cuh) for targets that are a
// distribution: a target t for each class, not one label.
#pragma once
#include "algorithm/row_softmax.cuh"

namespace cto::cross_entropy::distributions {

using math::exp::logarithm;
using row_softmax::OnlineSum;

// The sums of loss = -(sum of t log_softmax(x)) = targets * log(of.sum) - linear, in one pass:
//     of        maximum of x, and sum of e^(x - maximum)
//     targets   sum of t
//     linear    sum of t (x - maximum), over the targets t that are not 0
// First over the elements that a thread has seen; after join, over the whole line.
template <class A>
struct DenseSum {
    OnlineSum<A> of;
    A linear = 0, targets = 0;

    // targets * shift; 0 without targets, even if shift is infinite.
    __device__ A shifted(A shift) const { return targets == 0 ? A(0) : targets * shift; }

    // Adds a batch of elements (x, t), called by lines::read: each(see) calls see(x, t) for each,
    // renew() hides them from the compiler, largest(a) = max(a, all x). Updates the maximum of x
    // first, and moves `linear` to it: sum of t (x - now) = linear + targets (before - now).
    template <class Each, class Renew, class Largest>
    __device__ __forceinline__ void include(const Each& each, const Renew& renew,
                                            const Largest& largest) {
        const A before = of.reference(of.max);
        of.include([&](auto see) { each([&](A x, A) { see(x); }); }, renew, largest);
        renew();
        const A now = of.reference(of.max);
        if (now != before) linear += shifted(before - now);
        each([&](A x, A t) {
            if (t != 0) linear += t * (x - now), targets += t;
        });
    }
    // Combines the sums of the line's threads, in each of them; all call it.
    template <class Threads>
    __device__ __forceinline__ void join(const Threads& threads) {
        const A own = of.reference(of.max);
        of.join(threads);
        linear = threads.sum(linear + shifted(own - of.reference(of.max)));
        targets = threads.sum(targets);
    }
    // -(sum of t log_softmax(x)) of the line, after join.
    __device__ A loss() const { return shifted(logarithm(of.sum)) - linear; }
};

}  // namespace cto::cross_entropy::distributions
