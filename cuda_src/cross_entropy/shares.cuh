// SPDX-License-Identifier: MIT
// Losses against a share h[c] of each class c, and their gradients, in one kernel. Shares are
// target probabilities, or made of a label by smoothing, times the classes' weights. A Line is a
// thread's part of one line of scores: slots (vectors) of W elements, DEPTH of them, a batch, in
// registers at a time (algorithm/lines.cuh).
#pragma once
#include "cross_entropy/capped.cuh"
#include "cross_entropy/distributions.cuh"
#include "cross_entropy/loss_and_gradient.cuh"
#include "cross_entropy/measures.cuh"

namespace cto::cross_entropy::shares {

using capped::Cap;
using loss_and_gradient::LossAndGradient;
using loss_and_gradient::product;
using math::exp::exponential;
using math::exp::logarithm;
using measures::FirstClass;
using measures::Measures;
using namespace row_softmax;

// The share of class c whose target probability is t, weights[c] ((1 - smoothing) t + smoothing /
// length), as a function of (t, c).
template <class A>
struct ShareOf {
    const void* weights;  // of classes, or null
    i32 weight_type;
    A rest, each;  // 1 - smoothing, smoothing / length

    // weights[c], or 1.
    __device__ __forceinline__ A weight(i64 c) const {
        return weights ? labels::weight_at<A>(weights, weight_type, c) : A(1);
    }
    __device__ __forceinline__ A operator()(A t, i64 c) const {
        return weight(c) * (rest * t + each);
    }
};

// A reader, with LineReader's methods, of the shares of a line's classes: of target probabilities
// in `array`, or of the one-hot label where `label` >= 0 (then nothing is read). Places without an
// element are 0. batch: the one in registers; edge: the share at the thread's place outside whole
// vectors.
template <class E, int WIDTH, int DEPTH>
struct ShareReader {
    using A = Acc<E>;
    LineReader<E, WIDTH, DEPTH> targets;
    const Line<WIDTH, DEPTH>& line;
    ShareOf<A> share;
    i64 label;
    typename Slots<WIDTH>::Count batch = 0;
    A edge;

    // array: target probabilities, null if label >= 0.
    __device__ __forceinline__ ShareReader(const Line<WIDTH, DEPTH>& line, const E* array,
                                           const ShareOf<A>& share, i64 label)
        : targets(line, array, /*fill=*/from_acc<E>(A(0)), /*present=*/array != nullptr),
          line(line),
          share(share),
          label(label),
          edge(line.edge >= 0
                   ? share(label >= 0 ? A(line.edge == label) : to_acc(targets.edge), line.edge)
                   : A(0)) {}
    // Loads the thread's targets of batch `from`. STREAMS: by streaming loads.
    template <bool STREAMS = false>
    __device__ __forceinline__ void load(const Line<WIDTH, DEPTH>& line,
                                         typename Slots<WIDTH>::Count from) {
        batch = from;
        targets.template load<STREAMS>(line, from);
    }
    // The share at element i of the thread's slot u of the batch.
    __device__ __forceinline__ A at(int u, int i) const {
        if (!line.has(batch, u)) return 0;
        const Place<WIDTH> place = line.place(batch, u, i);
        return share(label >= 0 ? A(place.is(label)) : targets.at(u, i), place.start + i);
    }
    __device__ __forceinline__ void renew(u32 zero) { capped::renew_all(targets, zero); }
};

// A writer, with LineWriter's methods, of the gradients of scores and of targets; a null array is
// not written.
template <class T, class TTARGET>
struct GradientWriter {
    struct Value {
        Acc<T> of_score;
        Acc<TTARGET> of_target;
    };
    T* scores;
    TTARGET* targets;

    // Writes the gradients, values[i] of element i, of the thread's slot u of a batch.
    template <int WIDTH, int DEPTH>
    __device__ __forceinline__ void store(const Line<WIDTH, DEPTH>& line,
                                          typename Slots<WIDTH>::Count batch, int u,
                                          const Value (&values)[WIDTH]) const {
        Acc<T> of_scores[WIDTH];
        Acc<TTARGET> of_targets[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            of_scores[i] = values[i].of_score;
            of_targets[i] = values[i].of_target;
        }
        if (targets) Writer<TTARGET>{targets}.store(line, batch, u, of_targets);
        if (scores) Writer<T>{scores}.store(line, batch, u, of_scores);
    }
    template <int WIDTH, int DEPTH>
    __device__ __forceinline__ void store_edge(const Line<WIDTH, DEPTH>& line, Value value) const {
        if (targets) Writer<TTARGET>{targets}.store_edge(line, value.of_target);
        if (scores) Writer<T>{scores}.store_edge(line, value.of_score);
    }
};

// With s = cap(scores), l = log softmax(s), q = log(sum of exp(s)), h[i] = the share of class i, f
// = the factor of the line, slope = scale f / divisor:
//     loss = f (-(sum of h l, where h is not 0) + w square q^2)
//     gradient[i] = (softmax(s)[i] (sum of h + 2 w square q) - h[i]) slope cap'(scores[i])
//     target_gradient[i] = -weights[i] (1 - smoothing) l[i] slope
// Of probabilities f is the line's row weight, and w is 1; of labels f is 1, or 0 if they are
// ignored, and w is the label's weight.
template <class T, class TOUT, class TTARGET>
struct Shares {
    using A = Acc<T>;
    using Target = labels::Target<A>;
    LossAndGradient<T, TOUT> call;
    i64 length;                  // classes
    A smoothing, square;         // label smoothing in [0, 1]; factor of q^2
    Cap<A> cap;                  // s = cap(score)
    Measures<TOUT, A> measures;  // outputs for square q^2 and for the class with the largest score
    const TTARGET* targets;      // probabilities, in the layout of the scores; null for labels
    const A* row_weights;        // a weight for each line, with targets; null for 1
    TTARGET* target_gradient;    // or null

    // The target of line `number`, whose weight is f; of_square = w.
    __device__ __forceinline__ Target target_of(i64 number, A& of_square) const {
        of_square = 1;
        if (number < 0) return {/*label=*/-1, /*weight=*/0, /*outside=*/false};
        if (targets) return {-1, row_weights ? row_weights[number] : A(1), false};
        Target target = labels::target_of<A>(call.labels, call.weights, call.rule, number);
        of_square = target.weight;
        target.weight = target.outside || target.label >= 0 ? A(1) : A(0);
        return target;
    }
    // Stores loss and measures of a line and writes its gradients, as far as they are wanted.
    // `threads` reduces over the line's threads. all: q; last: q - max, log(sum); of_log: w square;
    // of_sum: the factor of exp(s - max) in the gradient.
    template <int W, int DEPTH, class Threads>
    __device__ __forceinline__ void line(const Line<W, DEPTH>& line, const Threads& threads) const {
        A of_square;
        const Target target = target_of(line.number, of_square);
        const ShareOf<A> share{call.weights, call.rule.weight_type, 1 - smoothing,
                               smoothing / static_cast<A>(length)};
        capped::CappedReader<T, W, DEPTH> in(line, call.scores, cap);
        ShareReader<TTARGET, W, DEPTH> in_shares(line, targets, share, target.label);
        distributions::DenseSum<A> sums;
        const auto batch = read(line, sums, in, in_shares);
        sums.join(threads);
        const A max = sums.of.max, last = logarithm(sums.of.sum), all = max + last;
        const A of_log = of_square * square;
        if (line.leads()) {
            const A squared = of_log == 0 ? A(0) : of_log * all * all;
            store(call.losses, line.number, target, sums.loss() + squared);
            store(measures.squares, line.number, target, squared);
        }
        if (!call.gradient && !target_gradient && !measures.classes) return;
        const WeightSum<A> by = call.divisor.load();
        const A slope = target.slope(call.scale, by), sought = measures.sought(sums.of);
        const A of_sum = (sums.targets + (of_log == 0 ? A(0) : 2 * of_log * all)) / sums.of.sum;
        const bool skips = target.skips(by), has_targets = target_gradient;
        const Cap<A> capped = cap;
        const i64 classes = length;
        FirstClass first;
        using To = GradientWriter<T, TTARGET>;
        const auto map = [=, &first](Place<W> place, A s, A h) {
            first.see(place, s == sought);
            const A p = product(exponential(s - max), of_sum);
            typename To::Value gradients{skips ? A(0) : (p - h) * slope * capped.slope(s), 0};
            const i64 c = place.start + place.i;
            if (has_targets && !skips && c >= 0 && c < classes) {
                const A of_target = -share.weight(c) * share.rest;
                gradients.of_target = of_target == 0 ? A(0) : of_target * (s - max - last) * slope;
            }
            return gradients;
        };
        write(line, batch, map, To{call.gradient, target_gradient}, in, in_shares);
        measures.store_class(line, first, threads, !target.outside && target.weight == 0);
    }

  private:
    // Stores f times `loss` of line `number` to losses.summed or losses.output, where it is wanted.
    static __device__ __forceinline__ void store(const labels::Losses<TOUT, A>& losses, i64 number,
                                                 const Target& target, A loss) {
        if (losses.wanted())
            losses.store(number, Target{/*label=*/0, /*weight=*/1, target.outside},
                         target.weighted(loss));
    }
};

}  // namespace cto::cross_entropy::shares
