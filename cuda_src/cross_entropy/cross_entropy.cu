// SPDX-License-Identifier: MIT
// Cross-entropy losses and their gradients.  CPU provider: cupy_training_ops/families/cross_entropy/reference.py
//
// One kernel reads the scores and writes a loss for each row; __total adds these up and divides by
// the sum of the rows' weights. Where a gradient needs that sum, __divisor computes it before. Sums
// over rows have a fixed order: first in each block, then over the blocks.
//
// A line is the `length` scores of one sample, in an array (n_outer, length, stride); W, DEPTH:
// elements of a slot of it (a vector), and slots that a thread has in registers at a time. Kernels
// by layout: _short_rows and _rows for stride 1, n_rows rows, `threads` threads a row (a power of
// two up to 32, or the whole block); _columns for other strides, threads along x have neighbouring
// lines, threads along y share a line; _bundles for short lines with stride > 1, by vectors of
// neighbouring lines.
//
// labels: the class of each line. weights: of each class, or of each line, or null for 1. rule says
// how both are read. output, losses: each line's loss, weighted; or unweighted, in type A. scale:
// the gradient of the loss. divisor, n: losses and gradients are divided by the WeightSum at
// divisor, or by n where it is null. smoothing: of labels, 0 to 1. square: the penalty of a line is
// square q^2, q = log(sum of exp). cap: of scores, 0 for none; kernels without a cap ignore it.
// square_output, squares: each line's penalty, weighted; or unweighted, in type A. classes: each
// line's class that scores most. Arrays that are null are not written.
#include "algorithm/reduce.cuh"
#include "algorithm/row_softmax.cuh"
#include "core/either.cuh"
#include "core/slots.cuh"
#include "cross_entropy/bundles.cuh"
#include "cross_entropy/distributions.cuh"
#include "cross_entropy/division.cuh"
#include "cross_entropy/facts.cuh"
#include "cross_entropy/labels.cuh"
#include "cross_entropy/loss.cuh"
#include "cross_entropy/loss_and_gradient.cuh"
#include "cross_entropy/regularized.cuh"
#include "cross_entropy/shares.cuh"

// T: scores, or log-probabilities and dY. TOUT: the outputs, and a bias. TTARGET: probabilities.
#ifndef CTO_TOUT
#define CTO_TOUT float
#endif
#ifndef CTO_TTARGET
#define CTO_TTARGET CTO_T
#endif

namespace cto {

using namespace facts::cross_entropy;
using bundles::bundle_of;
using bundles::BundleThreads;
using either::as_double;
using either::Either;
using math::exp::exponential;
using math::exp::logarithm;
using zeroed::Zeroed;
using namespace row_softmax;

using slots::T;
using TOUT = CTO_TOUT;
using TTARGET = CTO_TTARGET;
using A = Acc<T>;

// Bytes of log_prob that a thread has in registers in gradient kernels: fewer if a bias of a wider
// type is beside them.
constexpr int GRADIENT_NBYTES = sizeof(TOUT) > sizeof(T) && NBYTES > NBYTES_BESIDE_WIDER
                                    ? NBYTES_BESIDE_WIDER
                                    : NBYTES;
// Elements of a vector of scores and targets whose wider type has 16 bytes.
constexpr int SHARE_WIDTH = 16 / (sizeof(T) > sizeof(TTARGET) ? sizeof(T) : sizeof(TTARGET));
// Such vectors of each of both that a thread has in registers at a time; and vectors of scores, in
// kernels of losses with terms but labels.
constexpr int SHARE_DEPTH = (NBYTES < NBYTES_OF_SHARES ? NBYTES : NBYTES_OF_SHARES) / 16 / 2;
constexpr int TERMS_DEPTH = (NBYTES < NBYTES_OF_TERMS ? NBYTES : NBYTES_OF_TERMS) / 16;
// In double, exponentials take registers: kernels of losses with terms then have one resident block.
constexpr bool WIDE = sizeof(A) == sizeof(double);
// Elements of a line that a thread of a _columns kernel has in registers at a time.
constexpr int COLUMN_ELEMENTS = NBYTES / 16;
// Elements of a vector of scores and outputs whose wider type has 16 bytes.
constexpr int WIDTH = 16 / (sizeof(T) > sizeof(TOUT) ? sizeof(T) : sizeof(TOUT));

// Slots (vectors of WIDTH) of each of N arrays that a thread has in registers at a time, with
// TOTAL_NBYTES of scores for all N.
template <int TOTAL_NBYTES, int N>
constexpr int SLOTS = TOTAL_NBYTES / (WIDTH * sizeof(T) * N);

using WeightSum = cross_entropy::WeightSum<A>;
using Divisor = cross_entropy::Divisor<A>;
using Losses = cross_entropy::labels::Losses<TOUT, A>;
using LossAndGradient = cross_entropy::loss_and_gradient::LossAndGradient<T, TOUT>;
using Plain = cross_entropy::loss_and_gradient::Plain<T, TOUT>;
template <class CAP>
using Regularized = cross_entropy::regularized::Regularized<T, TOUT, CAP>;
template <class CAP>
using Shares = cross_entropy::shares::Shares<T, TOUT, TTARGET, CAP>;
using Target = cross_entropy::labels::Target<A>;
using cross_entropy::sum_grid;
using cross_entropy::capped::Cap;
using cross_entropy::capped::Uncapped;
using cross_entropy::capped::with_cap;
using cross_entropy::distributions::dense_gradient_line;
using cross_entropy::distributions::dense_loss_line;
using cross_entropy::labels::target_of;
using cross_entropy::loss::loss_bundle;
using cross_entropy::loss::loss_line;

// ---- the lines ----------------------------------------------------------------------------------

// Writes a line of gradient[i] = (exp(log_prob[i]) - (i == label)) * dy * weight / divisor +
// bias[i]. bias has the layout of the gradient; null is 0. The first term is 0 if the weight or the
// divisor is 0. dy is dy[line] or, without dy_of_rows, dy[0].
template <int W, int DEPTH>
__device__ __forceinline__ void gradient_line(const Line<W, DEPTH>& line, const T* dy,
                                              bool dy_of_rows, const T* log_prob,
                                              const void* labels, const void* weights,
                                              const Rule& rule, Divisor divisor, const TOUT* bias,
                                              TOUT* gradient) {
    LineReader<T, W, DEPTH> in(line, log_prob, /*fill=*/from_acc<T>(A(0)));
    LineReader<TOUT, W, DEPTH> added(line, bias, /*fill=*/from_acc<TOUT>(A(0)),
                                     /*present=*/bias != nullptr);
    const auto batch = line.last_batch();
    in.load(line, batch);
    added.load(line, batch);
    A slope = 0;
    i64 label = -1;
    bool skips = true;
    if (line.number >= 0) {
        const Target target = target_of<A>(labels, weights, rule, line.number);
        const WeightSum by = divisor.load();
        slope = target.slope(to_acc(dy[dy_of_rows ? line.number : 0]), by);
        label = target.label;
        skips = target.skips(by);
    }
    const auto map = [=](Place<W> place, A x, A b) {
        const A p = exponential(x);
        return (skips ? A(0) : (place.is(label) ? p - 1 : p) * slope) + b;
    };
    write(line, batch, map, LineWriter<TOUT, W, DEPTH>(line, gradient), in, added);
}

// A kernel's arguments as a LossAndGradient; `scale` is read here.
__device__ __forceinline__ LossAndGradient call_of(const T* scores, const void* labels,
                                                   const void* weights, const Rule& rule,
                                                   T* gradient, TOUT* output, A* losses,
                                                   const Either<1>& scale, const A* divisor,
                                                   double n) {
    return {scores,
            labels,
            weights,
            rule,
            gradient,
            {output, losses},
            static_cast<A>(as_double(scale)),
            {divisor, n}};
}
// A kernel's arguments for smoothing and penalty as Regularized. length: classes. cap: a Cap, or
// Uncapped.
template <class CAP>
__device__ __forceinline__ Regularized<CAP> terms_of(const CAP& cap, i64 length, double smoothing,
                                                     double square, TOUT* square_output, A* squares,
                                                     i64* classes) {
    return {length,
            static_cast<A>(smoothing),
            static_cast<A>(square),
            cap,
            {{square_output, squares}, classes}};
}
// A kernel's arguments for a share of each class, with those in `call` and `terms`, as Shares.
// targets and target_gradient are arrays of TTARGET, row_weights of A.
template <class CAP>
__device__ __forceinline__ Shares<CAP> shares_of(const LossAndGradient& call,
                                                 const Regularized<CAP>& terms, const void* targets,
                                                 const void* row_weights, void* target_gradient) {
    return {call,
            terms.length,
            terms.smoothing,
            terms.square,
            terms.cap,
            terms.measures,
            static_cast<const TTARGET*>(targets),
            static_cast<const A*>(row_weights),
            static_cast<TTARGET*>(target_gradient)};
}

}  // namespace cto

using namespace cto;

// {divisor[0], divisor[1]} = the WeightSum of all rows: the sum of the weights of their labels.
// partials: a number for each block; ticket: counts those that have finished.
extern "C" __global__ void __launch_bounds__(SUM_THREADS)
    cross_entropy__divisor(const void* labels, const void* weights,
                           const __grid_constant__ Rule rule, i64 n_rows, double* partials,
                           Zeroed<u32>* ticket, Acc<T>* divisor) {
    double sum[1] = {};
#pragma unroll 4
    for (i64 row = blockIdx.x * blockDim.x + threadIdx.x; row < n_rows;
         row += gridDim.x * blockDim.x)
        sum[0] += target_of<A>(labels, weights, rule, row).weight;
    if (!sum_grid(sum, partials, ticket)) return;
    const WeightSum all = WeightSum::of(sum[0]);
    divisor[0] = all.value;
    divisor[1] = all.unit;
}

// *output = sum of w[row] * losses[row] / (n, or sum of w where n is 0), w[row] the weight of the
// row's label, or 1 where labels is null; are_weighted: losses[row] is a product with w[row]
// already. All blocks add up rows; the one that finishes last adds up the blocks (sum_grid, by
// partials and ticket).
extern "C" __global__ void __launch_bounds__(SUM_THREADS)
    cross_entropy__total(const Acc<T>* losses, i64 n_rows, const void* labels, const void* weights,
                         const __grid_constant__ Rule rule, bool are_weighted, double n,
                         double* partials, Zeroed<u32>* ticket, TOUT* output) {
    double sums[2] = {};
#pragma unroll 4
    for (i64 row = blockIdx.x * blockDim.x + threadIdx.x; row < n_rows;
         row += gridDim.x * blockDim.x) {
        double loss = losses[row];
        if (labels) {
            const Target target = target_of<A>(labels, weights, rule, row);
            if (!are_weighted) loss = target.weighted(loss);
            sums[1] += target.weight;
        }
        sums[0] += loss;
    }
    if (!sum_grid(sums, partials, ticket)) return;
    const double by = n != 0 ? n : sums[1];
    *output = from_acc<TOUT>(by == 0 ? 0.0 : sums[0] / by);
}

// log_prob = log softmax of scores; loss = -log_prob[label], unweighted to losses[row], or weighted
// to output[row]. Rows are contiguous; a thread has SHORT_NBYTES of one in registers at a time.
extern "C" __global__ void __launch_bounds__(SHORT_THREADS)
    cross_entropy__loss_short_rows(const T* scores, const void* labels, const void* weights,
                                   const __grid_constant__ Rule rule, TOUT* log_prob, TOUT* output,
                                   Acc<T>* losses, i64 n_rows, i64 length, u32 threads) {
    __shared__ A of_warp[WARP];
    const auto line = seated_row_of<WIDTH, SLOTS<SHORT_NBYTES, 1>>(n_rows, length, threads);
    loss_line(line, RowThreads<A>{threads, of_warp}, scores, labels, weights, rule, log_prob,
              Losses{output, losses});
}
// log_prob = log softmax of scores; loss = -log_prob[label], unweighted to losses[row], or weighted
// to output[row]. Rows are contiguous; a thread has NBYTES of one in registers at a time.
extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    cross_entropy__loss_rows(const T* scores, const void* labels, const void* weights,
                             const __grid_constant__ Rule rule, TOUT* log_prob, TOUT* output,
                             Acc<T>* losses, i64 n_rows, i64 length, u32 threads) {
    __shared__ A of_warp[WARP];
    const auto line = seated_row_of<WIDTH, SLOTS<NBYTES, 1>>(n_rows, length, threads);
    loss_line(line, RowThreads<A>{threads, of_warp}, scores, labels, weights, rule, log_prob,
              Losses{output, losses});
}
// log_prob = log softmax of scores; loss = -log_prob[label], unweighted to losses[line], or
// weighted to output[line]. Arrays that are null are not written. Scores are (n_outer, length,
// stride): a line's elements are `stride` apart.
extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    cross_entropy__loss_columns(const T* scores, const void* labels, const void* weights,
                                const __grid_constant__ Rule rule, TOUT* log_prob, TOUT* output,
                                Acc<T>* losses, i64 n_outer, i64 length, i64 stride) {
    __shared__ A of_thread[MAX_THREADS];
    const auto line = column_of<COLUMN_ELEMENTS>(n_outer, length, stride);
    loss_line(line, ColumnThreads<A>{of_thread}, scores, labels, weights, rule, log_prob,
              Losses{output, losses});
}

// log_prob = log softmax of scores; loss = -log_prob[label], unweighted to losses[line], or
// weighted to output[line]. Arrays that are null are not written. A line's elements are `stride`
// apart; a thread has vectors, elements of WIDTH neighbouring lines (bundles.cuh).
extern "C" __global__ void __launch_bounds__(facts::BUNDLE_THREADS)
    cross_entropy__loss_bundles(const T* scores, const void* labels, const void* weights,
                                const __grid_constant__ Rule rule, TOUT* log_prob, TOUT* output,
                                Acc<T>* losses, i64 length, i64 stride) {
    __shared__ BundleThreads<A, WIDTH>::Values of_thread[facts::BUNDLE_THREADS];
    const auto bundle = bundle_of<WIDTH, SLOTS<NBYTES, 1>>(length, stride);
    loss_bundle(bundle, BundleThreads<A, WIDTH>{of_thread}, scores, labels, weights, rule, log_prob,
                Losses{output, losses});
}

// gradient[i] = (softmax(scores)[i] - (i == label)) * scale * weight / divisor, or 0 where the
// weight or the divisor is 0; loss = -log softmax(scores)[label], unweighted to losses, or weighted
// to output; arrays that are null are not written. Rows are contiguous.
extern "C" __global__ void __launch_bounds__(MAX_THREADS) cross_entropy__loss_and_gradient_rows(
    const T* scores, const void* labels, const void* weights, const __grid_constant__ Rule rule,
    T* gradient, TOUT* output, Acc<T>* losses, const __grid_constant__ Either<1> scale,
    const Acc<T>* divisor, double n, i64 n_rows, i64 length, u32 threads) {
    __shared__ A of_warp[WARP];
    const LossAndGradient call =
        call_of(scores, labels, weights, rule, gradient, output, losses, scale, divisor, n);
    call.line(seated_row_of<vec::WIDTH<T>, NBYTES / 16>(n_rows, length, threads),
              RowThreads<A>{threads, of_warp}, Plain{});
}
// gradient[i] = (softmax(scores)[i] - (i == label)) * scale * weight / divisor, or 0 where the
// weight or the divisor is 0; loss = -log softmax(scores)[label], unweighted to losses, or weighted
// to output; arrays that are null are not written. Scores are (n_outer, length, stride): a line's
// elements are `stride` apart. Without the 1 in the launch bounds the compiler limits 7.0 to 32
// registers, and spills.
extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1)
    cross_entropy__loss_and_gradient_columns(const T* scores, const void* labels,
                                             const void* weights, const __grid_constant__ Rule rule,
                                             T* gradient, TOUT* output, Acc<T>* losses,
                                             const __grid_constant__ Either<1> scale,
                                             const Acc<T>* divisor, double n, i64 n_outer,
                                             i64 length, i64 stride) {
    __shared__ A of_thread[MAX_THREADS];
    const LossAndGradient call =
        call_of(scores, labels, weights, rule, gradient, output, losses, scale, divisor, n);
    call.line(column_of<COLUMN_ELEMENTS>(n_outer, length, stride), ColumnThreads<A>{of_thread},
              Plain{});
}

// The loss with smoothed labels and a penalty, without a cap, and its gradient; regularized.cuh has
// the formulas. Rows are contiguous.
extern "C" __global__ void __launch_bounds__(UNCAPPED_THREADS, WIDE ? 1 : 2)
    cross_entropy__regularized_rows(const T* scores, const void* labels, const void* weights,
                                    const __grid_constant__ Rule rule, T* gradient, TOUT* output,
                                    Acc<T>* losses, const __grid_constant__ Either<1> scale,
                                    const Acc<T>* divisor, double n, double smoothing,
                                    double square, double cap, TOUT* square_output, Acc<T>* squares,
                                    i64* classes, i64 n_rows, i64 length, u32 threads) {
    __shared__ A of_warp[WARP];
    const LossAndGradient call =
        call_of(scores, labels, weights, rule, gradient, output, losses, scale, divisor, n);
    call.line(seated_row_of<vec::WIDTH<T>, TERMS_DEPTH>(n_rows, length, threads),
              RowThreads<A>{threads, of_warp},
              terms_of(Uncapped<A>{}, length, smoothing, square, square_output, squares, classes));
}
// The loss with smoothed labels, a penalty and capped scores, and its gradient; regularized.cuh has
// the formulas. Rows are contiguous.
extern "C" __global__ void __launch_bounds__(TERMS_THREADS, WIDE ? 1 : 2)
    cross_entropy__capped_rows(const T* scores, const void* labels, const void* weights,
                               const __grid_constant__ Rule rule, T* gradient, TOUT* output,
                               Acc<T>* losses, const __grid_constant__ Either<1> scale,
                               const Acc<T>* divisor, double n, double smoothing, double square,
                               double cap, TOUT* square_output, Acc<T>* squares, i64* classes,
                               i64 n_rows, i64 length, u32 threads) {
    __shared__ A of_warp[WARP];
    const LossAndGradient call =
        call_of(scores, labels, weights, rule, gradient, output, losses, scale, divisor, n);
    call.line(seated_row_of<vec::WIDTH<T>, TERMS_DEPTH>(n_rows, length, threads),
              RowThreads<A>{threads, of_warp},
              terms_of(Cap<A>::of(static_cast<A>(cap)), length, smoothing, square, square_output,
                       squares, classes));
}
// The loss with smoothed labels, a penalty and capped scores, and its gradient; regularized.cuh has
// the formulas. Scores are (n_outer, length, stride): a line's elements are `stride` apart.
extern "C" __global__ void __launch_bounds__(TERMS_THREADS, 1) cross_entropy__regularized_columns(
    const T* scores, const void* labels, const void* weights, const __grid_constant__ Rule rule,
    T* gradient, TOUT* output, Acc<T>* losses, const __grid_constant__ Either<1> scale,
    const Acc<T>* divisor, double n, double smoothing, double square, double cap,
    TOUT* square_output, Acc<T>* squares, i64* classes, i64 n_outer, i64 length, i64 stride) {
    __shared__ A of_thread[TERMS_THREADS];
    const LossAndGradient call =
        call_of(scores, labels, weights, rule, gradient, output, losses, scale, divisor, n);
    const auto line = column_of<TERMS_DEPTH>(n_outer, length, stride);
    with_cap(static_cast<A>(cap), [&](const auto& capped) {
        call.line(line, ColumnThreads<A>{of_thread},
                  terms_of(capped, length, smoothing, square, square_output, squares, classes));
    });
}

// The loss with a penalty, without a cap, and its gradients against a share of each class; see shares.cuh for the
// formulas. targets: the classes' probabilities, null for labels; row_weights: with targets, a
// weight for each row, or null; target_gradient: of targets. Rows are contiguous.
extern "C" __global__ void __launch_bounds__(TERMS_THREADS, WIDE ? 1 : 3)
    cross_entropy__shares_rows(const T* scores, const void* labels, const void* weights,
                               const __grid_constant__ Rule rule, T* gradient, TOUT* output,
                               Acc<T>* losses, const __grid_constant__ Either<1> scale,
                               const Acc<T>* divisor, double n, double smoothing, double square,
                               double cap, TOUT* square_output, Acc<T>* squares, i64* classes,
                               const void* targets, const void* row_weights, void* target_gradient,
                               i64 n_rows, i64 length, u32 threads) {
    __shared__ A of_warp[WARP];
    const LossAndGradient call =
        call_of(scores, labels, weights, rule, gradient, output, losses, scale, divisor, n);
    const auto terms =
        terms_of(Uncapped<A>{}, length, smoothing, square, square_output, squares, classes);
    shares_of(call, terms, targets, row_weights, target_gradient)
        .line(seated_row_of<SHARE_WIDTH, SHARE_DEPTH>(n_rows, length, threads),
              RowThreads<A>{threads, of_warp});
}
// The regularized loss and its gradients against a share of each class; see shares.cuh for the
// formulas. targets: the classes' probabilities, null for labels; row_weights: with targets, a
// weight for each row, or null; target_gradient: of targets. Rows are contiguous.
extern "C" __global__ void __launch_bounds__(TERMS_THREADS, WIDE ? 1 : 2)
    cross_entropy__capped_shares_rows(const T* scores, const void* labels, const void* weights,
                                      const __grid_constant__ Rule rule, T* gradient, TOUT* output,
                                      Acc<T>* losses, const __grid_constant__ Either<1> scale,
                                      const Acc<T>* divisor, double n, double smoothing,
                                      double square, double cap, TOUT* square_output,
                                      Acc<T>* squares, i64* classes, const void* targets,
                                      const void* row_weights, void* target_gradient, i64 n_rows,
                                      i64 length, u32 threads) {
    __shared__ A of_warp[WARP];
    const LossAndGradient call =
        call_of(scores, labels, weights, rule, gradient, output, losses, scale, divisor, n);
    const auto terms = terms_of(Cap<A>::of(static_cast<A>(cap)), length, smoothing, square,
                                square_output, squares, classes);
    shares_of(call, terms, targets, row_weights, target_gradient)
        .line(seated_row_of<SHARE_WIDTH, SHARE_DEPTH>(n_rows, length, threads),
              RowThreads<A>{threads, of_warp});
}
// The regularized loss and its gradients against a share of each class; see shares.cuh for the
// formulas. targets: the classes' probabilities, null for labels; row_weights: with targets, a
// weight for each row, or null; target_gradient: of targets. Scores are (n_outer, length, stride):
// a line's elements are `stride` apart.
extern "C" __global__ void __launch_bounds__(TERMS_THREADS, 1)
    cross_entropy__shares_columns(const T* scores, const void* labels, const void* weights,
                                  const __grid_constant__ Rule rule, T* gradient, TOUT* output,
                                  Acc<T>* losses, const __grid_constant__ Either<1> scale,
                                  const Acc<T>* divisor, double n, double smoothing, double square,
                                  double cap, TOUT* square_output, Acc<T>* squares, i64* classes,
                                  const void* targets, const void* row_weights,
                                  void* target_gradient, i64 n_outer, i64 length, i64 stride) {
    __shared__ A of_thread[TERMS_THREADS];
    const LossAndGradient call =
        call_of(scores, labels, weights, rule, gradient, output, losses, scale, divisor, n);
    const auto line = column_of<SHARE_DEPTH>(n_outer, length, stride);
    with_cap(static_cast<A>(cap), [&](const auto& capped) {
        const auto terms =
            terms_of(capped, length, smoothing, square, square_output, squares, classes);
        shares_of(call, terms, targets, row_weights, target_gradient)
            .line(line, ColumnThreads<A>{of_thread});
    });
}

// gradient[i] = (exp(log_prob[i]) - (i == label)) * dy * weight / divisor + bias[i]; a null bias is
// 0, a null divisor n; dy is dy[line] or, without dy_of_rows, dy[0]. Rows are contiguous.
extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    cross_entropy__gradient_rows(const T* dy, bool dy_of_rows, const T* log_prob,
                                 const void* labels, const void* weights,
                                 const __grid_constant__ Rule rule, const Acc<T>* divisor, double n,
                                 const TOUT* bias, TOUT* gradient, i64 n_rows, i64 length,
                                 u32 threads) {
    const auto line = seated_row_of<WIDTH, SLOTS<GRADIENT_NBYTES, 2>>(n_rows, length, threads);
    gradient_line(line, dy, dy_of_rows, log_prob, labels, weights, rule, Divisor{divisor, n}, bias,
                  gradient);
}
// gradient[i] = (exp(log_prob[i]) - (i == label)) * dy * weight / divisor + bias[i]; a null bias is
// 0, a null divisor n; dy is dy[line] or, without dy_of_rows, dy[0]. Arrays are (n_outer, length,
// stride): a line's elements are `stride` apart.
extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    cross_entropy__gradient_columns(const T* dy, bool dy_of_rows, const T* log_prob,
                                    const void* labels, const void* weights,
                                    const __grid_constant__ Rule rule, const Acc<T>* divisor,
                                    double n, const TOUT* bias, TOUT* gradient, i64 n_outer,
                                    i64 length, i64 stride) {
    const auto line = column_of<COLUMN_ELEMENTS / 2>(n_outer, length, stride);
    gradient_line(line, dy, dy_of_rows, log_prob, labels, weights, rule, Divisor{divisor, n}, bias,
                  gradient);
}

// log_prob = log softmax of scores; loss = -(sum of target log_prob), to losses or to output.
// Arrays that are null are not written. Rows are contiguous.
extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    cross_entropy__dense_loss_rows(const T* scores, const T* target, TOUT* log_prob, TOUT* output,
                                   Acc<T>* losses, i64 n_rows, i64 length, u32 threads) {
    __shared__ A of_warp[WARP];
    const auto line = seated_row_of<WIDTH, SLOTS<NBYTES, 2>>(n_rows, length, threads);
    dense_loss_line(line, RowThreads<A>{threads, of_warp}, scores, target, log_prob,
                    Losses{output, losses});
}
// log_prob = log softmax of scores; loss = -(sum of target log_prob), to losses or to output.
// Arrays that are null are not written. Arrays are (n_outer, length, stride): a line's elements are
// `stride` apart.
extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    cross_entropy__dense_loss_columns(const T* scores, const T* target, TOUT* log_prob,
                                      TOUT* output, Acc<T>* losses, i64 n_outer, i64 length,
                                      i64 stride) {
    __shared__ A of_thread[MAX_THREADS];
    const auto line = column_of<COLUMN_ELEMENTS / 2>(n_outer, length, stride);
    dense_loss_line(line, ColumnThreads<A>{of_thread}, scores, target, log_prob,
                    Losses{output, losses});
}

// gradient[i] = (exp(log_prob[i]) - target[i]) * dy / n; dy is dy[line] or, without dy_of_rows,
// dy[0]. Rows are contiguous.
extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    cross_entropy__dense_gradient_rows(const T* dy, bool dy_of_rows, const T* log_prob,
                                       const T* target, double n, TOUT* gradient, i64 n_rows,
                                       i64 length, u32 threads) {
    const auto line = seated_row_of<WIDTH, SLOTS<NBYTES, 2>>(n_rows, length, threads);
    dense_gradient_line(line, dy, dy_of_rows, log_prob, target, static_cast<A>(n), gradient);
}
// gradient[i] = (exp(log_prob[i]) - target[i]) * dy / n; dy is dy[line] or, without dy_of_rows,
// dy[0]. Arrays are (n_outer, length, stride): a line's elements are `stride` apart.
extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    cross_entropy__dense_gradient_columns(const T* dy, bool dy_of_rows, const T* log_prob,
                                          const T* target, double n, TOUT* gradient, i64 n_outer,
                                          i64 length, i64 stride) {
    const auto line = column_of<COLUMN_ELEMENTS / 2>(n_outer, length, stride);
    dense_gradient_line(line, dy, dy_of_rows, log_prob, target, static_cast<A>(n), gradient);
}
