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

using loss_and_gradient::LossAndGradient;
using loss_and_gradient::product;
using math::exp::exponential;
using math::exp::logarithm;
using measures::Measures;
using namespace row_softmax;

// The share of a class with weight w and target probability t: w ((1 - smoothing) t + smoothing /
// length).
template <class A>
struct ShareOf {
    A rest, each;  // 1 - smoothing, smoothing / length

    __device__ __forceinline__ A operator()(A t, A w) const { return w * (rest * t + each); }
};

// Weights of the classes of a thread's slots, a batch in registers; 1 each if `weights` is null.
// Places without an element are 0, so that their share is. type: the weights' ONNX element type.
// edge: the weight of the thread's place outside whole vectors.
template <class A, int WIDTH, int DEPTH>
struct WeightReader {
    const void* weights;
    i32 type;
    A edge;
    A registers[DEPTH][WIDTH];

    __device__ __forceinline__ WeightReader(const Line<WIDTH, DEPTH>& line, const void* weights,
                                            i32 type)
        : weights(weights), type(type), edge(line.edge >= 0 ? of_class(line.edge) : A(0)) {}
    // The weight of class c.
    __device__ __forceinline__ A of_class(i64 c) const {
        return weights ? labels::weight_at<A>(weights, type, c) : A(1);
    }
    // Loads the weights of the thread's slots of batch `from`.
    template <bool STREAMS = false>
    __device__ __forceinline__ void load(const Line<WIDTH, DEPTH>& line,
                                         typename Slots<WIDTH>::Count from) {
#pragma unroll
        for (int u = 0; u < DEPTH; ++u) {
            const bool exists = line.has(from, u);
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) registers[u][i] = exists ? 1 : 0;
            if (weights && exists) load_slot(line.place(from, u, 0).start, registers[u]);
        }
    }
    // The weight at element i of the thread's slot u of the batch.
    __device__ __forceinline__ A at(int u, int i) const { return registers[u][i]; }
    __device__ void renew(u32) const {}  // they are no packed 2-byte elements

  private:
    // to[i] = the weight of class first + i.
    __device__ __forceinline__ void load_slot(i64 first, A (&to)[WIDTH]) const {
        if constexpr (sizeof(A) == sizeof(double)) {
            load_as<double>(first, to);
        } else {
            if (type == facts::ONNX_BFLOAT16)
                load_as<__nv_bfloat16>(first, to);
            else if (type == facts::ONNX_FLOAT16)
                load_as<__half>(first, to);
            else
                load_as<float>(first, to);
        }
    }
    // load_slot of weights of type E: as vectors where their address allows it.
    template <class E>
    __device__ __forceinline__ void load_as(i64 first, A (&to)[WIDTH]) const {
        const E* const from = static_cast<const E*>(weights) + first;
        if (reinterpret_cast<u64>(from) % alignof(vec::Vec<E, WIDTH>) == 0) {
            vec::widen<E>(from, to);
        } else {
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) to[i] = to_acc(from[i]);
        }
    }
};

// DenseSum of scores and shares, over elements (score, target, weight).
template <class A>
struct ShareSum : distributions::DenseSum<A> {
    using Base = distributions::DenseSum<A>;
    ShareOf<A> share;

    __device__ __forceinline__ explicit ShareSum(const ShareOf<A>& share) : share(share) {}
    // Adds a batch of elements, called by lines::read: each(see) calls see(score, target, weight).
    template <class Each, class Renew, class Largest>
    __device__ __forceinline__ void include(const Each& each, const Renew& renew,
                                            const Largest& largest) {
        const auto of_shares = [&](auto see) { each([&](A x, A t, A w) { see(x, share(t, w)); }); };
        Base::include(of_shares, renew, largest);
    }
};

// A writer, with LineWriter's methods, of the gradients of scores and of targets; a null array is
// not written. OF_TARGET: type of `of_target`, the function from a score and its class's weight to
// the gradient of the target.
template <class T, class TTARGET, class OF_TARGET>
struct GradientWriter {
    struct Value {
        Acc<T> of_score;  // the gradient of the score
        Acc<T> score, weight;
    };
    T* scores;
    TTARGET* targets;
    OF_TARGET of_target;

    // Writes the gradients of the thread's slot u of a batch, by values[i] of element i.
    template <int WIDTH, int DEPTH>
    __device__ __forceinline__ void store(const Line<WIDTH, DEPTH>& line,
                                          typename Slots<WIDTH>::Count batch, int u,
                                          const Value (&values)[WIDTH]) const {
        if (targets) {
            Acc<TTARGET> of_targets[WIDTH];
#pragma unroll
            for (int i = 0; i < WIDTH; ++i)
                of_targets[i] = of_target(values[i].score, values[i].weight);
            Writer<TTARGET>{targets}.store(line, batch, u, of_targets);
        }
        if (scores) {
            Acc<T> of_scores[WIDTH];
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) of_scores[i] = values[i].of_score;
            Writer<T>{scores}.store(line, batch, u, of_scores);
        }
    }
    template <int WIDTH, int DEPTH>
    __device__ __forceinline__ void store_edge(const Line<WIDTH, DEPTH>& line, Value value) const {
        if (targets)
            Writer<TTARGET>{targets}.store_edge(line, of_target(value.score, value.weight));
        if (scores) Writer<T>{scores}.store_edge(line, value.of_score);
    }
};

// With s = cap(scores), l = log softmax(s), q = log(sum of exp(s)), h[i] = the share of class i, f
// = the factor of the line, slope = scale f / divisor:
//     loss = f (-(sum of h l, where h is not 0) + w square q^2)
//     gradient[i] = (softmax(s)[i] (sum of h + 2 w square q) - h[i]) slope cap'(scores[i])
//     target_gradient[i] = -weights[i] (1 - smoothing) l[i] slope
// Of probabilities f is the line's row weight, and w is 1; of labels f is 1, or 0 if they are
// ignored, and w is the label's weight; its target is added apart, as comparing each class with it
// is slow. CAP: Cap, or Uncapped without a cap.
template <class T, class TOUT, class TTARGET, class CAP>
struct Shares {
    using A = Acc<T>;
    using Target = labels::Target<A>;
    LossAndGradient<T, TOUT> call;
    i64 length;                  // classes
    A smoothing, square;         // label smoothing in [0, 1]; factor of q^2
    CAP cap;                     // s = cap(score)
    Measures<TOUT, A> measures;  // outputs for square q^2 and for the class with the largest score
    const TTARGET* targets;      // probabilities, in the layout of the scores; null for labels
    const A* row_weights;        // a weight for each line, with targets; null for 1
    TTARGET* target_gradient;    // or null

    // The target of line `number`, whose weight is f; of_square = w.
    __device__ __forceinline__ Target target_of(i64 number, A& of_square) const {
        of_square = 1;
        if (number < 0) return {/*label=*/-1, /*weight=*/0, /*outside=*/false};
        // Not `targets`: it is null if there are no classes.
        if (!call.labels) return {-1, row_weights ? row_weights[number] : A(1), false};
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
        const A classes = length > 0 ? static_cast<A>(length) : A(1);  // 0 / 0 is not a share
        const ShareOf<A> share{1 - smoothing, fast_divide(smoothing, classes)};
        capped::CappedReader<T, W, DEPTH, CAP> in(line, call.scores, cap);
        LineReader<TTARGET, W, DEPTH> in_targets(line, targets, /*fill=*/from_acc<TTARGET>(A(0)),
                                                 /*present=*/targets != nullptr);
        WeightReader<A, W, DEPTH> in_weights(line, call.weights, call.rule.weight_type);
        ShareSum<A> sums(share);
        const auto batch = read(line, sums, in, in_targets, in_weights);
        A of_square, of_label = 0;  // of_label: the score of the label
        const Target target = target_of(line.number, of_square);
        if (target.label >= 0)
            of_label = cap(to_acc(call.scores[line.start + target.label * line.stride]));
        const A own = sums.of.max;
        sums.join(threads);
        if (target.label >= 0) sums.add(of_label, share.rest * of_square);
        const A max = sums.of.max, last = logarithm(sums.of.sum), all = max + last;
        const A of_log = of_square * square;
        if (line.leads()) {
            const A squared = of_log == 0 ? A(0) : of_log * all * all;
            store(call.losses, line.number, target, sums.loss() + squared);
            store(measures.squares, line.number, target, squared);
        }
        measures.store_class(line, threads, call.scores, cap, sums.of, own == sums.of.max,
                             !target.outside && target.weight == 0);
        if (!call.gradient && !target_gradient) return;
        const WeightSum<A> by = call.divisor.load();
        const A slope = target.slope(call.scale, by);
        const A of_sum =
            fast_divide(sums.targets + (of_log == 0 ? A(0) : 2 * of_log * all), sums.of.sum);
        const bool skips = target.skips(by);
        const CAP capped = cap;
        const auto gradient = [=](A s, A h) {
            return (product(exponential(s - max), of_sum) - h) * slope * capped.slope(s);
        };
        const auto of_target = [=](A s, A w) {
            const A factor = skips ? A(0) : -w * share.rest;
            return factor == 0 ? A(0) : factor * (s - max - last) * slope;
        };
        in_weights.load(line, batch);  // again: they would have kept registers in the meantime
        using To = GradientWriter<T, TTARGET, decltype(of_target)>;
        const auto map = [=](Place<W>, A s, A t, A w) {
            return typename To::Value{skips ? A(0) : gradient(s, share(t, w)), s, w};
        };
        write(line, batch, map, To{call.gradient, target_gradient, of_target}, in, in_targets,
              in_weights);
        if (call.gradient && !skips && target.label >= 0 && line.holds(target.label))
            call.gradient[line.start + target.label * line.stride] =
                from_acc<T>(gradient(of_label, share(A(1), of_square)));
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
