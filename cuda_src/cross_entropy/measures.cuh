// SPDX-License-Identifier: MIT
// Numbers of a line beside its loss: the square of log(sum of exp(scores)), and the class with the
// largest score. W, DEPTH: elements of a slot of a line, slots that a thread has in registers
// (algorithm/lines.cuh).
#pragma once
#include "algorithm/row_softmax.cuh"
#include "cross_entropy/labels.cuh"

namespace cto::cross_entropy::measures {

using namespace row_softmax;

// No class; there are NONE = 2^24 classes at most, numbers that a float accumulator represents.
constexpr i32 NONE = facts::cross_entropy::MOST_SMOOTHED;

// The first class of the thread's part of a line whose capped score is `sought`, or NONE. Reads the
// scores again, slot by slot up to that class: only threads that have one shall call it.
template <class T, int W, int DEPTH, class CAP>
__device__ __forceinline__ i32 first_class(const Line<W, DEPTH>& line, const T* scores,
                                           const CAP& cap, Acc<T> sought) {
    const auto is_sought = [&](T score) { return cap(to_acc(score)) == sought; };
    const T* const slots = line.first_slot(scores);
    const bool is_edge = W > 1 && line.edge >= 0 && is_sought(scores[line.start + line.edge]);
    if (is_edge && line.edge < line.head) return static_cast<i32>(line.edge);
#pragma unroll 1
    for (auto slot = line.slot(0, 0); slot < line.n_slots; slot += line.threads) {
        const auto loaded = *reinterpret_cast<const vec::Vec<T, W>*>(slots + slot * line.pitch);
        i32 at = W;
#pragma unroll
        for (int i = W - 1; i >= 0; --i) at = is_sought(loaded.at[i]) ? i : at;
        if (at < W) return line.head + static_cast<i32>(slot) * W + at;
    }
    return is_edge ? static_cast<i32>(line.edge) : NONE;
}

// Output arrays with a number for each line; null ones are not written.
template <class TOUT, class A>
struct Measures {
    labels::Losses<TOUT, A> squares;  // square log(sum of exp)^2, a part of the loss
    i64* classes;  // that score most; -1 for ignored lines, and where softmax is NaN

    // classes[line] = the first class with the largest score of the line, or -1 if its label is
    // ignored (is_ignored) or the softmax is NaN. All threads of the line call it, before the scores
    // are written over; `threads` reduces over them. of: maximum and sum of the line; has_max: the
    // thread has a score that is the maximum, capped by `cap`. The least class is the maximum of
    // negative ones.
    template <class T, int W, int DEPTH, class Threads, class CAP>
    __device__ __forceinline__ void store_class(const Line<W, DEPTH>& line, const Threads& threads,
                                                const T* scores, const CAP& cap,
                                                const OnlineSum<A>& of, bool has_max,
                                                bool is_ignored) const {
        if (!classes) return;
        i32 first = NONE;
        if (has_max && of.sum > 0) first = first_class(line, scores, cap, of.max);
        first = static_cast<i32>(-threads.max(-static_cast<A>(first)));
        if (line.leads()) classes[line.number] = is_ignored || first == NONE ? -1 : first;
    }
};

}  // namespace cto::cross_entropy::measures
