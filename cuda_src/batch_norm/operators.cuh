// SPDX-License-Identifier: MIT
// The two operators, Normalization and Gradient: how a channel's coefficients follow from its sums,
// and an element's result from the coefficients. The `Op` of all other files here.
#pragma once
#include "batch_norm/coefficients.cuh"
#include "batch_norm/sums.cuh"
#include "core/slots.cuh"
#include "math/step.cuh"

namespace cto::batch_norm::operators {

using namespace batch_norm::coefficients;
using namespace batch_norm::sums;

// T: the type of X and Y. Arrays with one number a channel have type A, or T if that is a 2-byte
// type.
using slots::T;
using A = Acc<T>;

// An array with one number a channel, of type T if is_half, else A; or null. Its type is known at
// run time, so that kernels are not compiled for each combination of types.
struct ByChannel {
    void* array;
    bool is_half;

    // The number of channel i.
    __device__ A operator[](i64 i) const {
        return is_half ? static_cast<A>(to_acc(static_cast<const T*>(array)[i]))
                       : static_cast<const A*>(array)[i];
    }
    // Writes `value` as the number of channel i; nothing if the array is null.
    __device__ void store(i64 i, A value) const {
        if (array && is_half)
            static_cast<T*>(array)[i] = from_acc<T>(value);
        else if (array)
            static_cast<A*>(array)[i] = value;
    }
};

// 1 / sqrt(variance + rule.epsilon).
__device__ __forceinline__ A inv_std(const Rule& rule, A variance) {
    return 1 / step::square_root(variance + static_cast<A>(rule.epsilon));
}

// Y = scale (X - mean) inv_std + bias, or relu(that + residual) if RELU is 1. Sums are of X -
// reference, the channel's first element: differences of close numbers are exact.
//     READ          number of input arrays
//     ADDS, MASKS   results are added to a residual before relu; dY is masked by relu's output
//     State         the sums of N channels, from which coefficients follow
struct Normalization {
    using T = operators::T;
    using A = operators::A;
    static constexpr int READ = 1;
    static constexpr bool ADDS = RELU, MASKS = false;
    template <int N>
    using State = Moments<A, N>;

    const T* arrays[READ];
    T* result;
    ByChannel scale, bias, input_mean, input_var;
    ByChannel running_mean, running_var, saved_mean, saved_inv_std;
    const Rule& rule;
    const T* residual;  // added before relu, or null

    // True if elements have results to be written, beside numbers of channels.
    __device__ bool writes() const { return result; }
    // The channel's first element, 0 if there is none (n = 0) or it is not finite. length:
    // neighbouring elements of a channel.
    __device__ A reference(i64 channel, i64 length, i64 n) const {
        const A first = n > 0 ? to_acc(arrays[0][channel * length]) : A(0);
        return isfinite(first) ? first : A(0);
    }
    // What `coefficients` takes of a channel beside its sums.
    __device__ ChannelInputs<A> channel_inputs(i64 channel) const {
        return {scale[channel], bias[channel]};
    }
    // Coefficients of y = (x - reference - offset) scale inv_std + bias, mean = reference + offset.
    // inputs = {scale, bias}.
    __device__ Coefficients<A> from_variance(const ChannelInputs<A>& inputs, A reference, A offset,
                                             A variance) const {
        return {reference, offset, inputs.first * inv_std(rule, variance), inputs.second};
    }
    // Coefficients by the channel's own mean and variance; `sums` are of x - reference, inputs =
    // {scale, bias}.
    __device__ Coefficients<A> coefficients(const ChannelInputs<A>& inputs, const Moments<A>& sums,
                                            A reference) const {
        return from_variance(inputs, reference, sums.mean(),
                             quotient_or_0(sums.squares[0], sums.n));
    }
    // Coefficients from input_mean and input_var, where the channel's own statistics are not used.
    __device__ Coefficients<A> without_sums(i64 channel) const {
        return from_variance(channel_inputs(channel), input_mean[channel], 0, input_var[channel]);
    }
    // Moves `offset` into `reference` for 2-byte types, so that x - mean is one subtraction: their
    // spacing is wider than the rounding error of the float32 mean.
    static __device__ Coefficients<A> fold(Coefficients<A> coefs) {
        if (sizeof(T) == 2) coefs.reference += coefs.offset, coefs.offset = A(0);
        return coefs;
    }
    // Stores the channel's mean and inv_std, and the running mean and variance; if `unbiased`, the
    // latter from squares / (n - 1).
    __device__ void write(i64 channel, const Moments<A>& sums, A reference) const {
        const A mean = reference + sums.mean(), variance = quotient_or_0(sums.squares[0], sums.n);
        const A corrected = rule.unbiased && sums.n > 1 ? sums.squares[0] / (sums.n - 1) : variance;
        saved_mean.store(channel, mean);
        saved_inv_std.store(channel, inv_std(rule, variance));
        running_mean.store(channel, running(input_mean[channel], mean, sums.n));
        running_var.store(channel, running(input_var[channel], corrected, sums.n));
    }
    // A running statistic after this step: momentum * before + rest * now, or `before` of a channel
    // without elements (n = 0).
    __device__ A running(A before, A now, A n) const {
        const A momentum = static_cast<A>(rule.momentum), rest = static_cast<A>(rule.rest);
        return n > 0 ? momentum * before + rest * now : before;
    }
    // y of one element x of a channel with these coefficients, before relu.
    static __device__ A map(const Coefficients<A>& coefs, A x) {
        return (x - coefs.reference - coefs.offset) * coefs.factor + coefs.term;
    }
};

// dX = scale inv_std (dY - mean of dY - xhat mean of dY xhat), xhat = (X - mean) inv_std; if RELU
// is 1, with dY masked by Y: 0 where relu gave 0. READ: number of input arrays; ADDS, MASKS:
// whether a residual is added, dY masked; State: the sums of N channels.
struct Gradient {
    using T = operators::T;
    using A = operators::A;
    static constexpr int READ = RELU ? 3 : 2;
    static constexpr bool ADDS = false, MASKS = RELU;
    template <int N>
    using State = Slopes<A, N>;

    const T* arrays[READ];  // X, dY, and Y of relu
    T* result;
    ByChannel scale, mean, inv_std, scale_grad, bias_grad;
    i64 n;             // elements of a channel
    T* residual_grad;  // dY where Y is above 0, or null

    __device__ bool writes() const { return result || (MASKS && residual_grad); }
    // Sums are of x - mean.
    __device__ A reference(i64 channel, i64, i64) const { return mean[channel]; }
    // What `coefficients` takes of a channel beside its sums.
    __device__ ChannelInputs<A> channel_inputs(i64 channel) const {
        return {scale[channel], inv_std[channel]};
    }
    // Coefficients of dX = ((dY - sum / n) - (X - mean) slope) scale inv_std, slope = inv_std^2
    // product / n, with sum of dY and product = sum of dY (X - mean). inputs = {scale, inv_std};
    // reference = mean.
    __device__ Coefficients<A> coefficients(const ChannelInputs<A>& inputs, const Slopes<A>& sums,
                                            A reference) const {
        const A inverse = inputs.second, count = static_cast<A>(n);
        const A slope = inverse * (sums.product[0] * inverse / count);
        return {reference, sums.sum[0] / count, inputs.first * inverse, slope};
    }
    __device__ Coefficients<A> without_sums(i64) const { return {}; }  // not called
    static __device__ Coefficients<A> fold(const Coefficients<A>& coefs) { return coefs; }
    // scale_grad = sum of dy * (x - mean) * inv_std, bias_grad = sum of dy.
    __device__ void write(i64 channel, const Slopes<A>& sums, A) const {
        scale_grad.store(channel, n > 0 ? sums.product[0] * inv_std[channel] : A(0));
        bias_grad.store(channel, sums.sum[0]);
    }
    // dX of one element of a channel with these coefficients; dy is masked already.
    static __device__ A map(const Coefficients<A>& coefs, A x, A dy) {
        return ((dy - coefs.offset) - (x - coefs.reference) * coefs.term) * coefs.factor;
    }
};

// Normalization of these arrays: input_* are the running statistics before, running_* after,
// saved_* of x itself; residual is added before relu; outputs and residual may be null.
// `half.scale` says that scale and bias are of type T, `half.statistics` that means, variances and
// inv_std are; else they are of type A.
__device__ Normalization normalization(const T* x, void* scale, void* bias, void* input_mean,
                                       void* input_var, T* y, void* running_mean, void* running_var,
                                       void* saved_mean, void* saved_inv_std, Halves half,
                                       const Rule& rule, const T* residual) {
    const bool one = half.scale, two = half.statistics;
    return {{x},
            y,
            {scale, one},
            {bias, one},
            {input_mean, two},
            {input_var, two},
            {running_mean, two},
            {running_var, two},
            {saved_mean, two},
            {saved_inv_std, two},
            rule,
            residual};
}

// Gradient of these arrays: saved_* are the statistics of x, n the elements of a channel; y and
// residual_grad are relu's output and the residual's gradient, if RELU is 1; outputs may be null.
// `half.scale` says that scale and its and the bias's gradients are of type T, `half.statistics`
// that mean and inv_std are; else they are of type A.
__device__ Gradient gradient(const T* dy, const T* x, void* scale, void* saved_mean,
                             void* saved_inv_std, T* dx, void* scale_grad, void* bias_grad,
                             Halves half, i64 n, const T* y, T* residual_grad) {
    const bool one = half.scale, two = half.statistics;
    Gradient op{{x, dy},
                dx,
                {scale, one},
                {saved_mean, two},
                {saved_inv_std, two},
                {scale_grad, one},
                {bias_grad, one},
                n,
                residual_grad};
    if constexpr (RELU) op.arrays[Gradient::READ - 1] = y;
    return op;
}

}  // namespace cto::batch_norm::operators
