// SPDX-License-Identifier: MIT
// The sums of softmax over a line, see algorithm/lines.cuh.
#pragma once
#include "algorithm/lines.cuh"
#include "math/exp.cuh"

namespace cto::row_softmax {

using namespace lines;

// Slots are PINNED (their addresses take one instruction each) for rows of vectors, whose elements
// take few other instructions. E: type of elements; a slot has WIDTH of them, a batch DEPTH slots.
template <class E, int WIDTH>
constexpr bool PINNED = WIDTH > 1 && sizeof(E) < 8;

template <class E, int WIDTH, int DEPTH>
using LineReader = Reader<E, WIDTH, DEPTH, PINNED<E, WIDTH>>;

// Writer with pinned slots.
template <class E, int WIDTH, int DEPTH>
struct LineWriter : Writer<E> {
    SlotsOf<E, WIDTH, DEPTH, PINNED<E, WIDTH>> slots;

    // Writes to `array` along the thread's `line`.
    __device__ __forceinline__ LineWriter(const Line<WIDTH, DEPTH>& line, E* array)
        : Writer<E>{array}, slots(line, array) {}
    // Writes values[i], rounded, to element i of the thread's slot u of a batch, if it exists, by a
    // streaming store. batch: the number in the line of its first slot. u: 0 to DEPTH - 1.
    __device__ __forceinline__ void store(const Line<WIDTH, DEPTH>& line,
                                          typename Slots<WIDTH>::Count batch, int u,
                                          const Acc<E> (&values)[WIDTH]) const {
        Writer<E>::store(slots, line, batch, u, values);
    }
};

// Online softmax: max = maximum of a line, sum = sum of e^(x - max), in one pass: first of a
// thread's elements (include), then of the whole line (join). For a line of only -inf, or with
// +inf, the sum is such that all results are NaN.
template <class A>
struct OnlineSum {
    A max = negative_infinity<A>();
    A sum = 0;

    // The number to subtract from x: max, but 0 for -inf, as -inf - -inf is NaN.
    static __device__ __forceinline__ A reference(A max) {
        return max == negative_infinity<A>() ? A(0) : max;
    }
    // Moves to the maximum of a batch, too: a larger one than before scales the sum by e^(before -
    // now). largest(least) returns max(least, all elements of the batch). Returns `now`, which is
    // subtracted from them.
    template <class Largest>
    __device__ __forceinline__ A move(const Largest& largest) {
        const A before = max;
        max = largest(max);
        const A now = reference(max);
        if (now != before) sum *= math::exp::exponential(before - now);
        return now;
    }
    // Adds a batch of the thread's elements x: each(see) calls see(x) for each.
    template <class Each, class Renew, class Largest>
    __device__ __forceinline__ void include(const Each& each, const Renew&,
                                            const Largest& largest) {
        const A now = move(largest);
        each([&](A x) { sum += math::exp::exponential(x - now); });
    }
    // Sets max and sum to those of the line, in each of its threads; threads: a RowThreads or
    // ColumnThreads.
    template <class Threads>
    __device__ __forceinline__ void join(const Threads& threads) {
        const A own = max;
        max = threads.max(own);
        sum = threads.sum(sum * math::exp::exponential(own - reference(max)));
    }
    // The sign bit of `sum`: 0, if the results are numbers, which the compiler does not know.
    // Elements that are renewed with it are not widened before the sum is known, which saves
    // registers.
    __device__ __forceinline__ u32 late_zero() const {
        return static_cast<u32>(bits_of(sum) >> (8 * sizeof(A) - 1)) << 31;
    }
};

}  // namespace cto::row_softmax
