// SPDX-License-Identifier: MIT
// Batch normalisation and its gradient.  CPU provider: cupy_training_ops/families/batch_norm/reference.py
//
// Each operator has seven kernels. A channel that fits into a block is read once: into registers by
// __channels, into shared memory by __held_channels and __narrow_held_channels, with slots of 16
// bytes and of 8. Others are shared by several blocks and read again from the L2 cache, see
// batch_norm/schedule.cuh: by vectors in __channel_parts, by elements in __single_channel_parts, by
// rows in __column_parts, and of 2-byte types in __column_rings.
#include "batch_norm/columns.cuh"
#include "batch_norm/held.cuh"
#include "batch_norm/kept.cuh"
#include "batch_norm/pieces.cuh"
#include "batch_norm/schedule.cuh"
#include "batch_norm/sums.cuh"
#include "core/slots.cuh"
#include "math/step.cuh"

namespace cto {

using namespace batch_norm::coefficients;
using namespace batch_norm::columns;
using namespace batch_norm::held;
using namespace batch_norm::kept;
using namespace batch_norm::pieces;
using namespace batch_norm::schedule;
using namespace batch_norm::sums;
using namespace facts::batch_norm;

// Of X and Y; what there is for each channel has the type of A, or is float16.
using slots::T;
using A = Acc<T>;

constexpr int BLOCKS = sizeof(A) == 8 ? 2 : 3;  // that share a multiprocessor, at least

// ---- what is computed of a channel --------------------------------------------------------------

// An array with an element for each channel, or none. Its type costs no compilation.
struct ByChannel {
    void* array;
    bool is_half;

    __device__ A operator[](i64 i) const {
        return is_half ? static_cast<A>(static_cast<const __half*>(array)[i])
                       : static_cast<const A*>(array)[i];
    }
    __device__ void store(i64 i, A value) const {
        if (array && is_half)
            static_cast<__half*>(array)[i] = from_acc<__half>(value);
        else if (array)
            static_cast<A*>(array)[i] = value;
    }
};

__device__ __forceinline__ A inv_std(const Rule& rule, A variance) {
    return 1 / step::square_root(variance + static_cast<A>(rule.epsilon));
}

// Y = scale (X - mean) inv_std + bias. Elements are taken relative to the channel's first one: of
// numbers that lie close together the differences are exact.
struct Normalization {
    using T = cto::T;
    using A = cto::A;
    static constexpr int READ = 1;
    template <int N>
    using State = Moments<A, N>;

    const T* arrays[READ];
    T* result;
    ByChannel scale, bias, input_mean, input_var;
    ByChannel running_mean, running_var, saved_mean, saved_inv_std;
    const Rule& rule;

    __device__ A reference(i64 channel, i64 length, i64 n) const {
        const A first = n > 0 ? to_acc(arrays[0][channel * length]) : A(0);
        return isfinite(first) ? first : A(0);
    }
    __device__ Given<A> given(i64 channel) const { return {scale[channel], bias[channel]}; }
    __device__ Coefficients<A> of_variance(const Given<A>& given, A reference, A offset,
                                           A variance) const {
        return {reference, offset, given.first * inv_std(rule, variance), given.second};
    }
    __device__ Coefficients<A> coefficients(const Given<A>& given, const Moments<A>& of,
                                            A reference) const {
        return of_variance(given, reference, of.mean(), quotient_or_0(of.squares[0], of.n));
    }
    // Where nothing is summed.
    __device__ Coefficients<A> without_sums(i64 channel) const {
        return of_variance(given(channel), input_mean[channel], 0, input_var[channel]);
    }
    // Of 2-byte types, whose neighbouring numbers lie further apart than float32 rounds, the mean is
    // taken away at once.
    static __device__ Coefficients<A> folded(Coefficients<A> of) {
        if (sizeof(T) == 2) of.reference += of.offset, of.offset = A(0);
        return of;
    }
    __device__ void write(i64 channel, const Moments<A>& of, A reference) const {
        const A mean = reference + of.mean(), variance = quotient_or_0(of.squares[0], of.n);
        const A corrected = rule.unbiased && of.n > 1 ? of.squares[0] / (of.n - 1) : variance;
        saved_mean.store(channel, mean);
        saved_inv_std.store(channel, inv_std(rule, variance));
        running_mean.store(channel, running(input_mean[channel], mean, of.n));
        running_var.store(channel, running(input_var[channel], corrected, of.n));
    }
    __device__ A running(A before, A now, A n) const {
        const A momentum = static_cast<A>(rule.momentum), rest = static_cast<A>(rule.rest);
        return n > 0 ? momentum * before + rest * now : before;
    }
    static __device__ A map(const Coefficients<A>& of, A x) {
        return (x - of.reference - of.offset) * of.factor + of.term;
    }
};

// dX = scale inv_std (dY - mean of dY - xhat mean of dY xhat), xhat = (X - mean) inv_std.
struct Gradient {
    using T = cto::T;
    using A = cto::A;
    static constexpr int READ = 2;
    template <int N>
    using State = Slopes<A, N>;

    const T* arrays[READ];  // X, dY
    T* result;
    ByChannel scale, mean, inv_std, scale_grad, bias_grad;
    i64 n;  // elements of a channel

    __device__ A reference(i64 channel, i64, i64) const { return mean[channel]; }
    __device__ Given<A> given(i64 channel) const { return {scale[channel], inv_std[channel]}; }
    __device__ Coefficients<A> coefficients(const Given<A>& given, const Slopes<A>& of,
                                            A reference) const {
        const A inverse = given.second, count = static_cast<A>(n);
        const A slope = inverse * (of.product[0] * inverse / count);
        return {reference, of.sum[0] / count, given.first * inverse, slope};
    }
    __device__ Coefficients<A> without_sums(i64) const { return {}; }  // always summed
    static __device__ Coefficients<A> folded(const Coefficients<A>& of) { return of; }
    __device__ void write(i64 channel, const Slopes<A>& of, A) const {
        scale_grad.store(channel, n > 0 ? of.product[0] * inv_std[channel] : A(0));
        bias_grad.store(channel, of.sum[0]);
    }
    static __device__ A map(const Coefficients<A>& of, A x, A dy) {
        return ((dy - of.offset) - (x - of.reference) * of.term) * of.factor;
    }
};

__device__ Normalization normalization(const T* x, void* scale, void* bias, void* input_mean,
                                       void* input_var, T* y, void* running_mean, void* running_var,
                                       void* saved_mean, void* saved_inv_std, Halves half,
                                       const Rule& rule) {
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
            rule};
}

__device__ Gradient gradient(const T* dy, const T* x, void* scale, void* saved_mean,
                             void* saved_inv_std, T* dx, void* scale_grad, void* bias_grad,
                             Halves half, i64 n) {
    const bool one = half.scale, two = half.statistics;
    return {{x, dy},
            dx,
            {scale, one},
            {saved_mean, two},
            {saved_inv_std, two},
            {scale_grad, one},
            {bias_grad, one},
            n};
}

}  // namespace cto

using namespace cto;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    batch_norm_internal__channels(const T* x, void* scale, void* bias, void* input_mean,
                                  void* input_var, T* y, void* running_mean, void* running_var,
                                  void* saved_mean, void* saved_inv_std,
                                  const __grid_constant__ Halves half,
                                  const __grid_constant__ Rule rule,
                                  const __grid_constant__ Pieces pieces) {
    const auto op = normalization(x, scale, bias, input_mean, input_var, y, running_mean,
                                  running_var, saved_mean, saved_inv_std, half, rule);
    in_registers<vec::WIDTH<T>>(op, pieces);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) batch_norm_internal__channel_parts(
    const T* x, void* scale, void* bias, void* input_mean, void* input_var, T* y,
    void* running_mean, void* running_var, void* saved_mean, void* saved_inv_std,
    const __grid_constant__ Halves half, const __grid_constant__ Rule rule,
    const __grid_constant__ Pieces pieces, A* partials, A* coefficients, Zeroed<u32>* counters,
    const __grid_constant__ Schedule schedule) {
    const auto op = normalization(x, scale, bias, input_mean, input_var, y, running_mean,
                                  running_var, saved_mean, saved_inv_std, half, rule);
    by_schedule(op, InPieces<Normalization, vec::WIDTH<T>>{op, pieces}, schedule,
                {partials, coefficients, {counters}});
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    batch_norm_internal__single_channel_parts(
        const T* x, void* scale, void* bias, void* input_mean, void* input_var, T* y,
        void* running_mean, void* running_var, void* saved_mean, void* saved_inv_std,
        const __grid_constant__ Halves half, const __grid_constant__ Rule rule,
        const __grid_constant__ Pieces pieces, A* partials, A* coefficients, Zeroed<u32>* counters,
        const __grid_constant__ Schedule schedule) {
    const auto op = normalization(x, scale, bias, input_mean, input_var, y, running_mean,
                                  running_var, saved_mean, saved_inv_std, half, rule);
    by_schedule(op, InPieces<Normalization, 1>{op, pieces}, schedule,
                {partials, coefficients, {counters}});
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) batch_norm_internal__column_parts(
    const T* x, void* scale, void* bias, void* input_mean, void* input_var, T* y,
    void* running_mean, void* running_var, void* saved_mean, void* saved_inv_std,
    const __grid_constant__ Halves half, const __grid_constant__ Rule rule,
    const __grid_constant__ Columns columns, A* partials, A* coefficients, Zeroed<u32>* counters,
    const __grid_constant__ Schedule schedule) {
    const auto op = normalization(x, scale, bias, input_mean, input_var, y, running_mean,
                                  running_var, saved_mean, saved_inv_std, half, rule);
    by_schedule(op, InColumns<Normalization, false>{op, columns, nullptr, {}}, schedule,
                {partials, coefficients, {counters}});
}

extern "C" __global__ void __launch_bounds__(THREADS, RING_BLOCKS)
    batch_norm_internal__column_rings(const T* x, void* scale, void* bias, void* input_mean,
                                      void* input_var, T* y, void* running_mean, void* running_var,
                                      void* saved_mean, void* saved_inv_std,
                                      const __grid_constant__ Halves half,
                                      const __grid_constant__ Rule rule,
                                      const __grid_constant__ Columns columns, A* partials,
                                      A* coefficients, Zeroed<u32>* counters, u32* before,
                                      const __grid_constant__ Schedule schedule) {
    extern __shared__ __align__(16) u8 ring[];
    if constexpr (sizeof(T) == 2) {
        const auto op = normalization(x, scale, bias, input_mean, input_var, y, running_mean,
                                      running_var, saved_mean, saved_inv_std, half, rule);
        by_kept_parts(op,
                      InColumns<Normalization, true>{op, columns, ring, async_copy::place_of(ring)},
                      schedule, {partials, coefficients, {counters}}, before);
    }
}

extern "C" __global__ void __launch_bounds__(HELD_THREADS, 1)
    batch_norm_internal__held_channels(const T* x, void* scale, void* bias, void* input_mean,
                                       void* input_var, T* y, void* running_mean, void* running_var,
                                       void* saved_mean, void* saved_inv_std,
                                       const __grid_constant__ Halves half,
                                       const __grid_constant__ Rule rule,
                                       const __grid_constant__ Held held) {
    extern __shared__ __align__(16) u8 shared[];
    const auto op = normalization(x, scale, bias, input_mean, input_var, y, running_mean,
                                  running_var, saved_mean, saved_inv_std, half, rule);
    in_shared<vec::WIDTH<T>>(op, held, shared);
}

extern "C" __global__ void __launch_bounds__(HELD_THREADS, 1)
    batch_norm_internal__narrow_held_channels(const T* x, void* scale, void* bias, void* input_mean,
                                              void* input_var, T* y, void* running_mean,
                                              void* running_var, void* saved_mean,
                                              void* saved_inv_std,
                                              const __grid_constant__ Halves half,
                                              const __grid_constant__ Rule rule,
                                              const __grid_constant__ Held held) {
    extern __shared__ __align__(16) u8 shared[];
    const auto op = normalization(x, scale, bias, input_mean, input_var, y, running_mean,
                                  running_var, saved_mean, saved_inv_std, half, rule);
    in_shared<vec::WIDTH<T> / 2>(op, held, shared);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    batch_normalization_grad__channels(const T* dy, const T* x, void* scale, void* saved_mean,
                                       void* saved_inv_std, T* dx, void* scale_grad,
                                       void* bias_grad, const __grid_constant__ Halves half, i64 n,
                                       const __grid_constant__ Pieces pieces) {
    const auto op =
        gradient(dy, x, scale, saved_mean, saved_inv_std, dx, scale_grad, bias_grad, half, n);
    in_registers<vec::WIDTH<T>>(op, pieces);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    batch_normalization_grad__channel_parts(const T* dy, const T* x, void* scale, void* saved_mean,
                                            void* saved_inv_std, T* dx, void* scale_grad,
                                            void* bias_grad, const __grid_constant__ Halves half,
                                            i64 n, const __grid_constant__ Pieces pieces,
                                            A* partials, A* coefficients, Zeroed<u32>* counters,
                                            const __grid_constant__ Schedule schedule) {
    const auto op =
        gradient(dy, x, scale, saved_mean, saved_inv_std, dx, scale_grad, bias_grad, half, n);
    by_schedule(op, InPieces<Gradient, vec::WIDTH<T>>{op, pieces}, schedule,
                {partials, coefficients, {counters}});
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    batch_normalization_grad__single_channel_parts(
        const T* dy, const T* x, void* scale, void* saved_mean, void* saved_inv_std, T* dx,
        void* scale_grad, void* bias_grad, const __grid_constant__ Halves half, i64 n,
        const __grid_constant__ Pieces pieces, A* partials, A* coefficients, Zeroed<u32>* counters,
        const __grid_constant__ Schedule schedule) {
    const auto op =
        gradient(dy, x, scale, saved_mean, saved_inv_std, dx, scale_grad, bias_grad, half, n);
    by_schedule(op, InPieces<Gradient, 1>{op, pieces}, schedule,
                {partials, coefficients, {counters}});
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    batch_normalization_grad__column_parts(const T* dy, const T* x, void* scale, void* saved_mean,
                                           void* saved_inv_std, T* dx, void* scale_grad,
                                           void* bias_grad, const __grid_constant__ Halves half,
                                           i64 n, const __grid_constant__ Columns columns,
                                           A* partials, A* coefficients, Zeroed<u32>* counters,
                                           const __grid_constant__ Schedule schedule) {
    const auto op =
        gradient(dy, x, scale, saved_mean, saved_inv_std, dx, scale_grad, bias_grad, half, n);
    by_schedule(op, InColumns<Gradient, false>{op, columns, nullptr, {}}, schedule,
                {partials, coefficients, {counters}});
}

extern "C" __global__ void __launch_bounds__(THREADS, RING_BLOCKS)
    batch_normalization_grad__column_rings(const T* dy, const T* x, void* scale, void* saved_mean,
                                           void* saved_inv_std, T* dx, void* scale_grad,
                                           void* bias_grad, const __grid_constant__ Halves half,
                                           i64 n, const __grid_constant__ Columns columns,
                                           A* partials, A* coefficients, Zeroed<u32>* counters,
                                           u32* before, const __grid_constant__ Schedule schedule) {
    extern __shared__ __align__(16) u8 ring[];
    if constexpr (sizeof(T) == 2) {
        const auto op =
            gradient(dy, x, scale, saved_mean, saved_inv_std, dx, scale_grad, bias_grad, half, n);
        by_kept_parts(op, InColumns<Gradient, true>{op, columns, ring, async_copy::place_of(ring)},
                      schedule, {partials, coefficients, {counters}}, before);
    }
}

extern "C" __global__ void __launch_bounds__(HELD_THREADS, 1)
    batch_normalization_grad__held_channels(const T* dy, const T* x, void* scale, void* saved_mean,
                                            void* saved_inv_std, T* dx, void* scale_grad,
                                            void* bias_grad, const __grid_constant__ Halves half,
                                            i64 n, const __grid_constant__ Held held) {
    extern __shared__ __align__(16) u8 shared[];
    const auto op =
        gradient(dy, x, scale, saved_mean, saved_inv_std, dx, scale_grad, bias_grad, half, n);
    in_shared<vec::WIDTH<T>>(op, held, shared);
}

extern "C" __global__ void __launch_bounds__(HELD_THREADS, 1)
    batch_normalization_grad__narrow_held_channels(const T* dy, const T* x, void* scale,
                                                   void* saved_mean, void* saved_inv_std, T* dx,
                                                   void* scale_grad, void* bias_grad,
                                                   const __grid_constant__ Halves half, i64 n,
                                                   const __grid_constant__ Held held) {
    extern __shared__ __align__(16) u8 shared[];
    const auto op =
        gradient(dy, x, scale, saved_mean, saved_inv_std, dx, scale_grad, bias_grad, half, n);
    in_shared<vec::WIDTH<T> / 2>(op, held, shared);
}
