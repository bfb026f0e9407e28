// SPDX-License-Identifier: MIT
// Losses of a line (the scores of one row, algorithm/lines.cuh) whose targets are a distribution: a
// target t for each class, not one label.
#pragma once
#include "algorithm/row_softmax.cuh"
#include "cross_entropy/labels.cuh"

namespace cto::cross_entropy::distributions {

using math::exp::exponential;
using math::exp::logarithm;
using namespace row_softmax;

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
    // largest(a) = max(a, all x). Updates the maximum of x first, and moves `linear` to it: sum of
    // t (x - now) = linear + targets (before - now).
    template <class Each, class Renew, class Largest>
    __device__ __forceinline__ void include(const Each& each, const Renew&,
                                            const Largest& largest) {
        const A before = of.reference(of.max), now = of.move(largest);
        if (now != before) linear += shifted(before - now);
        each([&](A x, A t) {
            const A past = x - now;
            of.sum += exponential(past);
            if (t != 0) linear += t * past;
            targets += t;
        });
    }
    // Adds t of the element x of the line, whose threads have been joined.
    __device__ void add(A x, A t) {
        if (t != 0) linear += t * (x - of.reference(of.max));
        targets += t;
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

// Writes, of scores x and targets t (`target`) of a line, log_prob[i] = x[i] - max - log(sum of
// exp(x - max)), where log_prob is not null, and the loss -(sum of t[i] log_prob[i]), over the t
// that are not 0.
template <int W, int DEPTH, class Threads, class T, class TOUT>
__device__ __forceinline__ void dense_loss_line(const Line<W, DEPTH>& line, const Threads& threads,
                                                const T* scores, const T* target, TOUT* log_prob,
                                                labels::Losses<TOUT, Acc<T>> losses) {
    using A = Acc<T>;
    LineReader<T, W, DEPTH> in(line, scores, /*fill=*/from_acc<T>(negative_infinity<A>()));
    LineReader<T, W, DEPTH> in_target(line, target, /*fill=*/from_acc<T>(A(0)));
    DenseSum<A> sums;
    const auto batch = read(line, sums, in, in_target);
    sums.join(threads);
    if (line.leads() && losses.wanted()) losses.store(line.number, sums.loss());
    const A max = sums.of.max, last = logarithm(sums.of.sum);
    const auto map = [=](Place<W>, A x, A) { return x - max - last; };
    if (log_prob)
        write(line, batch, map, LineWriter<TOUT, W, DEPTH>(line, log_prob), in, in_target);
}

// Writes a line of gradient[i] = (exp(log_prob[i]) - target[i]) * dy / divisor, where dy is
// dy[line] or, without dy_of_rows, dy[0].
template <int W, int DEPTH, class T, class TOUT>
__device__ __forceinline__ void dense_gradient_line(const Line<W, DEPTH>& line, const T* dy,
                                                    bool dy_of_rows, const T* log_prob,
                                                    const T* target, Acc<T> divisor,
                                                    TOUT* gradient) {
    using A = Acc<T>;
    const T zero = from_acc<T>(A(0));
    LineReader<T, W, DEPTH> in(line, log_prob, zero), in_target(line, target, zero);
    const auto batch = line.last_batch();
    in.load(line, batch);
    in_target.load(line, batch);
    const A slope = line.number < 0 ? A(0) : to_acc(dy[dy_of_rows ? line.number : 0]) / divisor;
    const auto map = [=](Place<W>, A x, A t) { return (exponential(x) - t) * slope; };
    write(line, batch, map, LineWriter<TOUT, W, DEPTH>(line, gradient), in, in_target);
}

}  // namespace cto::cross_entropy::distributions
