// SPDX-License-Identifier: MIT
// Numbers of a line beside its loss: the square of log(sum of exp(scores)), and the class with the
// largest score. W, DEPTH: elements of a slot of a line, slots that a thread has in registers
// (algorithm/lines.cuh).
#pragma once
#include "algorithm/row_softmax.cuh"
#include "cross_entropy/labels.cuh"

namespace cto::cross_entropy::measures {

using namespace row_softmax;

// The first class with the largest score of a line (argmax), collected while the line's gradient is
// written. `first`: the least such class that this thread has seen. NONE: no class; there are NONE
// = 2^24 classes at most, numbers that a float accumulator represents.
struct FirstClass {
    static constexpr i32 NONE = facts::cross_entropy::MOST_SMOOTHED;
    i32 first = NONE;

    // Adds the element at `place`. A place without an element is class -1, or a class behind one
    // that is as large.
    template <int W>
    __device__ __forceinline__ void see(const Place<W>& place, bool is_largest) {
        const i32 at = static_cast<i32>(place.start) + place.i;
        if (is_largest && at >= 0 && at < first) first = at;
    }
    // The least class over the line's threads, in each of them, or -1. By a maximum of negatives.
    template <class A, class Threads>
    __device__ __forceinline__ i64 over(const Threads& threads) const {
        const i32 of_line = static_cast<i32>(-threads.max(-static_cast<A>(first)));
        return of_line == NONE ? -1 : of_line;
    }
};

// Output arrays with a number for each line; null ones are not written.
template <class TOUT, class A>
struct Measures {
    labels::Losses<TOUT, A> squares;  // square log(sum of exp)^2, a part of the loss
    i64* classes;  // that score most; -1 for ignored lines, and where softmax is NaN

    // The score by which FirstClass finds its class: the line's maximum, or NaN, which equals none,
    // if `classes` is null or the softmax is NaN. of: maximum and sum of the line.
    __device__ A sought(const OnlineSum<A>& of) const {
        return classes && of.sum > 0 ? of.max : labels::not_a_number<A>();
    }
    // classes[line] = the class that the line's threads found (`of`), or -1 if the line's label is
    // ignored (is_ignored). All threads of the line call it; `threads` reduces over them.
    template <int W, int DEPTH, class Threads>
    __device__ __forceinline__ void store_class(const Line<W, DEPTH>& line, const FirstClass& of,
                                                const Threads& threads, bool is_ignored) const {
        if (!classes) return;
        const i64 first = of.over<A>(threads);
        if (line.leads()) classes[line.number] = is_ignored ? -1 : first;
    }
};

}  // namespace cto::cross_entropy::measures
