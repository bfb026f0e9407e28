// SPDX-License-Identifier: MIT
// Numbers of a line beside its loss: the square of the logarithm of the sum, and the class that
// scores most.
#pragma once
#include "algorithm/row_softmax.cuh"
#include "cross_entropy/labels.cuh"

namespace cto::cross_entropy::measures {

using namespace row_softmax;

// The first class with the largest score; found while a line is written. There are NONE classes at
// most, numbers that every accumulator represents.
struct FirstClass {
    static constexpr i32 NONE = facts::cross_entropy::MOST_SMOOTHED;
    i32 first = NONE;

    // Adds an element. A place without one is -1, or behind one that is as large.
    template <int W>
    __device__ __forceinline__ void see(const Place<W>& place, bool is_largest) {
        const i32 at = static_cast<i32>(place.start) + place.i;
        if (is_largest && at >= 0 && at < first) first = at;
    }
    // The first over the line's threads, -1 if there is none.
    template <class A, class Threads>
    __device__ __forceinline__ i64 over(const Threads& threads) const {
        const i32 of_line = static_cast<i32>(-threads.max(-static_cast<A>(first)));
        return of_line == NONE ? -1 : of_line;
    }
};

// Arrays of a number for each line; null ones are not written.
template <class TOUT, class A>
struct Measures {
    labels::Losses<TOUT, A> squares;  // square log(sum of exp)^2, a part of the loss
    i64* classes;  // that score most; -1 for ignored lines, and where softmax is NaN

    // The number that a line's largest score equals; NaN if no class is asked for or there is none.
    __device__ A sought(const OnlineSum<A>& of) const {
        return classes && of.sum > 0 ? of.max : labels::not_a_number<A>();
    }
    template <int W, int DEPTH, class Threads>
    __device__ __forceinline__ void store_class(const Line<W, DEPTH>& line, const FirstClass& of,
                                                const Threads& threads, bool is_ignored) const {
        if (!classes) return;
        const i64 first = of.over<A>(threads);
        if (line.leads()) classes[line.number] = is_ignored ? -1 : first;
    }
};

}  // namespace cto::cross_entropy::measures
