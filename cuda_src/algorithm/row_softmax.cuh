// SPDX-License-Identifier: MIT
// What softmax sums of a line, see algorithm/lines.cuh.
#pragma once
#include "algorithm/lines.cuh"
#include "math/exp.cuh"

namespace cto::row_softmax {

using namespace lines;

// The maximum of a line and the sum of e^(x - maximum), in one reading. A line of -inf alone, and
// one with +inf, has a sum of which every result becomes NaN.
template <class A>
struct OnlineSum {
    A max = negative_infinity<A>();
    A sum = 0;

    // What is subtracted: exponents of a part of a line that is -inf alone must not be NaN.
    static __device__ __forceinline__ A reference(A max) {
        return max == negative_infinity<A>() ? A(0) : max;
    }
    template <class Each, class Renew, class Largest>
    __device__ __forceinline__ void include(const Each& each, const Renew&,
                                            const Largest& largest) {
        const A before = max;
        max = largest(max);
        const A now = reference(max);
        if (now != before) sum *= math::exp::exponential(before - now);
        each([&](A x) { sum += math::exp::exponential(x - now); });
    }
    template <class Threads>
    __device__ __forceinline__ void join(const Threads& threads) {
        const A own = max;
        max = threads.max(own);
        sum = threads.sum(sum * math::exp::exponential(own - reference(max)));
    }
};

}  // namespace cto::row_softmax
