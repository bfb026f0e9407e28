// SPDX-License-Identifier: MIT
// The loss of a line of scores against a class, and its log-probabilities.
//
// A line is the scores of one row, `stride` apart in memory; the threads of a line share its slots
// (vectors of W elements), DEPTH of them in a thread's registers at a time: a batch. See
// algorithm/lines.cuh.
#pragma once
#include "algorithm/row_softmax.cuh"
#include "cross_entropy/bundles.cuh"
#include "cross_entropy/labels.cuh"

namespace cto::cross_entropy::loss {

using bundles::BundleThreads;
using facts::cross_entropy::Rule;
using labels::Losses;
using labels::Target;
using labels::target_of;
using math::exp::exponential;
using math::exp::logarithm;
using namespace row_softmax;

// Writes the log-softmax of the line's scores x, log_prob[i] = x[i] - max - log(sum of exp(x -
// max)), where log_prob is not null, and the loss -log_prob[label], unweighted to losses.summed or
// weighted to losses.output. `line` is this thread's part; `threads` reduces over the line's
// threads. labels: the class of each line; weights: of each class or line, null for 1; rule says
// how both are read. log_prob has the layout of scores.
template <class T, class TOUT, int W, int DEPTH, class Threads>
__device__ __forceinline__ void loss_line(const Line<W, DEPTH>& line, const Threads& threads,
                                          const T* scores, const void* labels, const void* weights,
                                          const Rule& rule, TOUT* log_prob,
                                          Losses<TOUT, Acc<T>> losses) {
    using A = Acc<T>;
    LineReader<T, W, DEPTH> in(line, scores, /*fill=*/from_acc<T>(negative_infinity<A>()));
    OnlineSum<A> of;
    const auto batch = read(line, of, in);
    of.join(threads);
    const A max = of.max, last = logarithm(of.sum);
    if (line.leads() && losses.wanted()) {  // the line's first thread
        const Target<A> target = target_of<A>(labels, weights, rule, line.number);
        const A score =
            target.label < 0 ? A(0) : to_acc(scores[line.start + target.label * line.stride]);
        losses.store(line.number, target, last - (score - max));
    }
    const auto map = [=](Place<W>, A x) { return x - max - last; };
    if (log_prob) write(line, batch, map, LineWriter<TOUT, W, DEPTH>(line, log_prob), in);
}

// Writes log_prob[i] = x[i] - max - log(sum of exp(x - max)), where log_prob is not null, and the
// loss -log_prob[label], weighted to losses.output or unweighted to losses.summed, for each of the
// W neighbouring lines of a bundle (bundles.cuh), which is one batch: the threads' registers have
// all of it. Thread y < W of the bundle writes the loss of line y; there are at least W threads.
template <class T, class TOUT, int W, int DEPTH>
__device__ __forceinline__ void loss_bundle(const Line<W, DEPTH>& bundle,
                                            const BundleThreads<Acc<T>, W>& threads,
                                            const T* scores, const void* labels,
                                            const void* weights, const Rule& rule, TOUT* log_prob,
                                            Losses<TOUT, Acc<T>> losses) {
    using A = Acc<T>;
    Reader<T, W, DEPTH> in(bundle, scores, /*fill=*/from_acc<T>(negative_infinity<A>()));
    in.load(bundle, 0);
    const i64 own = threadIdx.y;
    const bool has_loss = own < W && bundle.number >= 0 && losses.wanted();
    Target<A> target{/*label=*/-1, /*weight=*/0, /*outside=*/false};
    if (has_loss) target = target_of<A>(labels, weights, rule, bundle.number + own);
    A score = 0;
    if (target.label >= 0)
        score = to_acc(scores[bundle.start + own + target.label * bundle.stride]);
    A max[W], sum[W];
#pragma unroll
    for (int i = 0; i < W; ++i) {
        max[i] = in.at(0, i);
#pragma unroll
        for (int u = 1; u < DEPTH; ++u) max[i] = larger(max[i], in.at(u, i));
    }
    threads.max(max);
    in.renew(bundle.zero());
#pragma unroll
    for (int i = 0; i < W; ++i) {
        const A now = OnlineSum<A>::reference(max[i]);
        sum[i] = 0;
#pragma unroll
        for (int u = 0; u < DEPTH; ++u) sum[i] += exponential(in.at(u, i) - now);
    }
    threads.sum(sum);
    in.renew(bundle.zero());
#pragma unroll
    for (int i = 0; i < W; ++i) {
        sum[i] = logarithm(sum[i]);
        if (has_loss && i == own)
            losses.store(bundle.number + i, target, sum[i] - (score - max[i]));
    }
    if (!log_prob) return;
#pragma unroll
    for (int u = 0; u < DEPTH; ++u) {
        A values[W];
#pragma unroll
        for (int i = 0; i < W; ++i) values[i] = in.at(u, i) - max[i] - sum[i];
        Writer<TOUT>{log_prob}.store(bundle, 0, u, values);
    }
}

}  // namespace cto::cross_entropy::loss
