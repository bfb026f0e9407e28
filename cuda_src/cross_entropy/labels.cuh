// SPDX-License-Identifier: MIT
// Labels and weights of the rows of scores. A row is the n_classes scores of one sample; its label
// is the number of its true class. Rows that lie along another axis than the last are rows all the
// same.
#pragma once
#include "cross_entropy/division.cuh"
#include "cross_entropy/facts.cuh"

namespace cto::cross_entropy::labels {

using facts::cross_entropy::Rule;

// NaN, of type float or double.
template <class A>
__device__ __forceinline__ A not_a_number() {
    return static_cast<A>(__int_as_float(0x7FFFFFFF));
}

// The target of a row, {label, weight, outside}: {-1, 0, false} where the label is ignored, {-1, 1,
// true} where it is outside [0, n_classes).
template <class A>
struct Target {
    using WeightSum = cross_entropy::WeightSum<A>;
    i64 label;
    A weight;      // factor of the row's loss
    bool outside;  // the label is out of range: loss and gradient are NaN

    // The row's loss without its weight; of_label = -log_softmax[label].
    __device__ A loss(A of_label) const {
        return outside ? not_a_number<A>() : (label < 0 ? A(0) : of_label);
    }
    // weight * loss; 0 if the weight is, even if the loss is infinite or NaN.
    template <class B>
    __device__ B weighted(B loss) const {
        return weight == 0 ? B(0) : weight * loss;
    }
    // True if the row's gradient is 0, even if its scores are infinite or NaN.
    __device__ bool skips(const WeightSum& divisor) const {
        return !outside && (weight == 0 || divisor.value == 0);
    }
    // dy weight / divisor: the gradient of the row's scores is (softmax - one-hot label) times
    // this. dy: the gradient of the loss.
    __device__ A slope(A dy, const WeightSum& divisor) const {
        return outside ? not_a_number<A>() : product_over(dy, weight * divisor.unit, divisor.value);
    }
};

// weights[i], of the ONNX element type `type` (float32 for any other than the three named here).
template <class A>
__device__ __forceinline__ A weight_at(const void* weights, i32 type, i64 i) {
    switch (type) {
        case facts::ONNX_FLOAT16:
            return __half2float(static_cast<const __half*>(weights)[i]);
        case facts::ONNX_BFLOAT16:
            return __bfloat162float(static_cast<const __nv_bfloat16*>(weights)[i]);
        case facts::ONNX_FLOAT64:
            return static_cast<A>(static_cast<const double*>(weights)[i]);
        default:
            return static_cast<const float*>(weights)[i];
    }
}

// The Target of row `row`. labels: i64 or i32, one for each row. weights: one for each class, or
// for each row if rule.row_weights; null for 1. rule: n_classes, ignore_index, the types of both
// arrays. weights[label] is read only if the label is in range.
template <class A>
__device__ __forceinline__ Target<A> target_of(const void* labels, const void* weights,
                                               const Rule& rule, i64 row) {
    const i64 label = rule.wide_labels ? static_cast<const i64*>(labels)[row]
                                       : static_cast<const i32*>(labels)[row];
    if (rule.ignores && label == rule.ignore_index) return {-1, 0, false};
    if (label < 0 || label >= rule.n_classes) return {-1, 1, true};
    if (!weights) return {label, 1, false};
    return {label, weight_at<A>(weights, rule.weight_type, rule.row_weights ? row : label), false};
}

// Where rows' losses are written: unweighted to summed[row], for a later launch to weight and add
// up; or, where `summed` is null, weighted and rounded to output[row]. If both are null, nowhere.
template <class TOUT, class A>
struct Losses {
    TOUT* output;
    A* summed;
    // True if store may be called.
    __device__ bool wanted() const { return output || summed; }
    // Stores the loss of `row`, of_label = -log_softmax[label] of it, by its target: 0 or NaN where
    // the label is ignored or out of range.
    __device__ void store(i64 row, const Target<A>& target, A of_label) const {
        const A loss = target.loss(of_label);
        if (summed)
            summed[row] = loss;
        else
            output[row] = from_acc<TOUT>(target.weighted(loss));
    }
    // Stores a loss as it is: with weight 1.
    __device__ void store(i64 row, A loss) const { store(row, Target<A>{0, 1, false}, loss); }
};

}  // namespace cto::cross_entropy::labels
