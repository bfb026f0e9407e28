// SPDX-License-Identifier: MIT
// Sums over a line for targets that are a distribution, not a label.
#pragma once
#include "algorithm/row_softmax.cuh"

namespace cto::cross_entropy::distributions {

using math::exp::logarithm;
using row_softmax::OnlineSum;

// loss = -(sum of t log_softmax(x)) = targets * log(of.sum) - linear, where
//     targets = sum of t, linear = sum of t (x - maximum), over the targets t that are not 0.
template <class A>
struct DenseSum {
    OnlineSum<A> of;
    A linear = 0, targets = 0;

    // targets * shift; 0 without targets, even if shift is infinite.
    __device__ A shifted(A shift) const { return targets == 0 ? A(0) : targets * shift; }

    // Adds elements (x, t): the new maximum of x first, to which `linear` is moved, then the terms.
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
    template <class Threads>
    __device__ __forceinline__ void join(const Threads& threads) {
        const A own = of.reference(of.max);
        of.join(threads);
        linear = threads.sum(linear + shifted(own - of.reference(of.max)));
        targets = threads.sum(targets);
    }
    __device__ A loss() const { return shifted(logarithm(of.sum)) - linear; }
};

}  // namespace cto::cross_entropy::distributions
