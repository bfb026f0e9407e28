// SPDX-License-Identifier: MIT
// Batch normalisation and its gradient.  CPU provider: cupy_training_ops/families/batch_norm/reference.py
//
// x is (outer, n_channels, length), and each channel is normalised over outer and length. Each
// operator has seven kernels, those of the gradient behind __gradient_of, chosen by the sizes. A
// channel that fits into a block is read once:
//     __channels                 into registers
//     __staged_channels          into shared memory, in slots of 16 bytes
//     __narrow_staged_channels   the same, in slots of 8 bytes
// Other channels are shared by several blocks, and read a second time from the L2 cache
// (schedule.cuh):
//     __channel_parts            by vectors
//     __single_channel_parts     by elements
//     __column_parts             by rows of a matrix, for channels of few neighbouring elements
//     __column_rings             the same through shared memory, for 2-byte types
// __transpose is for gradients where dY and X have different layouts.
//
// Arguments of kernels:
//     void* arrays   one number for each channel, of the 2-byte type of X where `half` says so,
//                    else of its accumulator's type A; outputs may be null. input_mean, input_var:
//                    running statistics before; running_*: after; saved_*: of x itself
//     pieces, columns, tiles   sizes, and which elements are a block's and a thread's: facts.cuh
//     partials, coefficients, counters, schedule   scratch memory and order of the work where
//                    blocks share channels: Scratch, Counters and facts::Schedule, see schedule.cuh
//     before         for each item of work the one that its block summed before: own_parts.cuh
//     residual       if RELU is 1, y = relu(normalized x + residual); null for none
//     y, residual_grad   of the gradient, if RELU is 1: relu's output; the residual's gradient
//     n              elements of a channel
//     rule           epsilon, added to variances; momentum and rest = 1 - momentum, of the running
//                    statistics before and of these; unbiased, running_var is of n - 1
#include "algorithm/transpose.cuh"
#include "batch_norm/columns.cuh"
#include "batch_norm/operators.cuh"
#include "batch_norm/own_parts.cuh"
#include "batch_norm/pieces.cuh"
#include "batch_norm/schedule.cuh"
#include "batch_norm/staged_tiles.cuh"
#include "batch_norm/sums.cuh"

namespace cto {

using namespace batch_norm::coefficients;
using namespace batch_norm::columns;
using namespace batch_norm::staged_tiles;
using namespace batch_norm::own_parts;
using namespace batch_norm::operators;
using namespace batch_norm::pieces;
using namespace batch_norm::schedule;
using namespace batch_norm::sums;
using namespace facts::batch_norm;

constexpr int BLOCKS = sizeof(A) == 8 ? 2 : 3;  // least number of resident blocks, in launch bounds

}  // namespace cto

using namespace cto;

// y = scale * (x - mean) * inv_std + bias, and the statistics of each channel. A block has a
// channel in registers, loaded in vectors.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    batch_norm__channels(const T* x, void* scale, void* bias, void* input_mean, void* input_var,
                         T* y, void* running_mean, void* running_var, void* saved_mean,
                         void* saved_inv_std, const __grid_constant__ Halves half,
                         const __grid_constant__ Rule rule, const __grid_constant__ Pieces pieces,
                         const T* residual) {
    const auto op = normalization(x, scale, bias, input_mean, input_var, y, running_mean,
                                  running_var, saved_mean, saved_inv_std, half, rule, residual);
    in_registers<vec::WIDTH<T>>(op, pieces);
}

// y = scale * (x - mean) * inv_std + bias, and the statistics of each channel. Several blocks share
// a channel: one pass sums it, a second one reads it again and writes y, in vectors (by_schedule).
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) batch_norm__channel_parts(
    const T* x, void* scale, void* bias, void* input_mean, void* input_var, T* y,
    void* running_mean, void* running_var, void* saved_mean, void* saved_inv_std,
    const __grid_constant__ Halves half, const __grid_constant__ Rule rule,
    const __grid_constant__ Pieces pieces, A* partials, A* coefficients, Zeroed<u32>* counters,
    const __grid_constant__ Schedule schedule, const T* residual) {
    const auto op = normalization(x, scale, bias, input_mean, input_var, y, running_mean,
                                  running_var, saved_mean, saved_inv_std, half, rule, residual);
    by_schedule(op, InPieces<Normalization, /*W=*/vec::WIDTH<T>>{op, pieces}, schedule,
                {partials, coefficients, {counters}});
}

// y = scale * (x - mean) * inv_std + bias, and the statistics of each channel. Several blocks share
// a channel: one pass sums it, a second one reads it again and writes y, element by element
// (by_schedule).
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) batch_norm__single_channel_parts(
    const T* x, void* scale, void* bias, void* input_mean, void* input_var, T* y,
    void* running_mean, void* running_var, void* saved_mean, void* saved_inv_std,
    const __grid_constant__ Halves half, const __grid_constant__ Rule rule,
    const __grid_constant__ Pieces pieces, A* partials, A* coefficients, Zeroed<u32>* counters,
    const __grid_constant__ Schedule schedule, const T* residual) {
    const auto op = normalization(x, scale, bias, input_mean, input_var, y, running_mean,
                                  running_var, saved_mean, saved_inv_std, half, rule, residual);
    by_schedule(op, InPieces<Normalization, /*W=*/1>{op, pieces}, schedule,
                {partials, coefficients, {counters}});
}

// y = scale * (x - mean) * inv_std + bias, and the statistics of each channel. x is a matrix, of
// which a channel is `columns.length` columns; blocks have some rows each, which they read twice,
// to sum them and to write y (by_schedule).
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    batch_norm__column_parts(const T* x, void* scale, void* bias, void* input_mean, void* input_var,
                             T* y, void* running_mean, void* running_var, void* saved_mean,
                             void* saved_inv_std, const __grid_constant__ Halves half,
                             const __grid_constant__ Rule rule,
                             const __grid_constant__ Columns columns, A* partials, A* coefficients,
                             Zeroed<u32>* counters, const __grid_constant__ Schedule schedule,
                             const T* residual) {
    const auto op = normalization(x, scale, bias, input_mean, input_var, y, running_mean,
                                  running_var, saved_mean, saved_inv_std, half, rule, residual);
    by_schedule(
        op, InColumns<Normalization, /*RINGS=*/false>{op, columns, /*ring=*/nullptr, /*place=*/{}},
        schedule, {partials, coefficients, {counters}});
}

// y = scale * (x - mean) * inv_std + bias, and the statistics of each channel. x is a matrix of
// 2-byte elements, of which a channel is `columns.length` columns; rows go through shared memory
// (Ring), where the last ones stay for the second pass, which writes y (by_own_parts).
extern "C" __global__ void __launch_bounds__(THREADS, RING_BLOCKS)
    batch_norm__column_rings(const T* x, void* scale, void* bias, void* input_mean, void* input_var,
                             T* y, void* running_mean, void* running_var, void* saved_mean,
                             void* saved_inv_std, const __grid_constant__ Halves half,
                             const __grid_constant__ Rule rule,
                             const __grid_constant__ Columns columns, A* partials, A* coefficients,
                             Zeroed<u32>* counters, u32* before,
                             const __grid_constant__ Schedule schedule, const T* residual) {
    extern __shared__ __align__(16) u8 ring[];
    if constexpr (sizeof(T) == 2) {
        const auto op = normalization(x, scale, bias, input_mean, input_var, y, running_mean,
                                      running_var, saved_mean, saved_inv_std, half, rule, residual);
        by_own_parts(
            op,
            InColumns<Normalization, /*RINGS=*/true>{op, columns, ring, async_copy::place_of(ring)},
            schedule, {partials, coefficients, {counters}}, before);
    }
}

// y = scale * (x - mean) * inv_std + bias, and the statistics of each channel. A block copies
// channels to shared memory, in slots of 16 bytes, and reads them there: in_shared.
extern "C" __global__ void __launch_bounds__(STAGED_THREADS, 1)
    batch_norm__staged_channels(const T* x, void* scale, void* bias, void* input_mean,
                                void* input_var, T* y, void* running_mean, void* running_var,
                                void* saved_mean, void* saved_inv_std,
                                const __grid_constant__ Halves half,
                                const __grid_constant__ Rule rule,
                                const __grid_constant__ StagedTiles tiles, const T* residual) {
    extern __shared__ __align__(16) u8 shared[];
    const auto op = normalization(x, scale, bias, input_mean, input_var, y, running_mean,
                                  running_var, saved_mean, saved_inv_std, half, rule, residual);
    in_shared<vec::WIDTH<T>>(op, tiles, shared);
}

// y = scale * (x - mean) * inv_std + bias, and the statistics of each channel. A block copies
// channels to shared memory, in slots of 8 bytes, and reads them there: in_shared.
extern "C" __global__ void __launch_bounds__(STAGED_THREADS, 1) batch_norm__narrow_staged_channels(
    const T* x, void* scale, void* bias, void* input_mean, void* input_var, T* y,
    void* running_mean, void* running_var, void* saved_mean, void* saved_inv_std,
    const __grid_constant__ Halves half, const __grid_constant__ Rule rule,
    const __grid_constant__ StagedTiles tiles, const T* residual) {
    extern __shared__ __align__(16) u8 shared[];
    const auto op = normalization(x, scale, bias, input_mean, input_var, y, running_mean,
                                  running_var, saved_mean, saved_inv_std, half, rule, residual);
    in_shared<vec::WIDTH<T> / 2>(op, tiles, shared);
}

// dx = scale * inv_std * (dy - mean of dy - x^ * mean of (dy * x^)), x^ = (x - mean) * inv_std;
// scale_grad = sum of dy * x^, bias_grad = sum of dy, of each channel. A block has a channel in
// registers, loaded in vectors.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    batch_norm__gradient_of_channels(const T* dy, const T* x, void* scale, void* saved_mean,
                                     void* saved_inv_std, T* dx, void* scale_grad, void* bias_grad,
                                     const __grid_constant__ Halves half, i64 n,
                                     const __grid_constant__ Pieces pieces, const T* y,
                                     T* residual_grad) {
    const auto op = gradient(dy, x, scale, saved_mean, saved_inv_std, dx, scale_grad, bias_grad,
                             half, n, y, residual_grad);
    in_registers<vec::WIDTH<T>>(op, pieces);
}

// dx = scale * inv_std * (dy - mean of dy - x^ * mean of (dy * x^)), x^ = (x - mean) * inv_std;
// scale_grad = sum of dy * x^, bias_grad = sum of dy, of each channel. Several blocks share a
// channel: one pass sums it, a second one reads it again and writes dx, in vectors (by_schedule).
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) batch_norm__gradient_of_channel_parts(
    const T* dy, const T* x, void* scale, void* saved_mean, void* saved_inv_std, T* dx,
    void* scale_grad, void* bias_grad, const __grid_constant__ Halves half, i64 n,
    const __grid_constant__ Pieces pieces, A* partials, A* coefficients, Zeroed<u32>* counters,
    const __grid_constant__ Schedule schedule, const T* y, T* residual_grad) {
    const auto op = gradient(dy, x, scale, saved_mean, saved_inv_std, dx, scale_grad, bias_grad,
                             half, n, y, residual_grad);
    by_schedule(op, InPieces<Gradient, /*W=*/vec::WIDTH<T>>{op, pieces}, schedule,
                {partials, coefficients, {counters}});
}

// dx = scale * inv_std * (dy - mean of dy - x^ * mean of (dy * x^)), x^ = (x - mean) * inv_std;
// scale_grad = sum of dy * x^, bias_grad = sum of dy, of each channel. Several blocks share a
// channel: one pass sums it, a second one reads it again and writes dx, element by element
// (by_schedule).
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    batch_norm__gradient_of_single_channel_parts(
        const T* dy, const T* x, void* scale, void* saved_mean, void* saved_inv_std, T* dx,
        void* scale_grad, void* bias_grad, const __grid_constant__ Halves half, i64 n,
        const __grid_constant__ Pieces pieces, A* partials, A* coefficients, Zeroed<u32>* counters,
        const __grid_constant__ Schedule schedule, const T* y, T* residual_grad) {
    const auto op = gradient(dy, x, scale, saved_mean, saved_inv_std, dx, scale_grad, bias_grad,
                             half, n, y, residual_grad);
    by_schedule(op, InPieces<Gradient, /*W=*/1>{op, pieces}, schedule,
                {partials, coefficients, {counters}});
}

// dx = scale * inv_std * (dy - mean of dy - x^ * mean of (dy * x^)), x^ = (x - mean) * inv_std;
// scale_grad = sum of dy * x^, bias_grad = sum of dy, of each channel. x is a matrix, of which a
// channel is `columns.length` columns; blocks have some rows each, which they read twice, to sum
// them and to write dx (by_schedule).
extern "C" __global__ void __launch_bounds__(THREADS, 2) batch_norm__gradient_of_column_parts(
    const T* dy, const T* x, void* scale, void* saved_mean, void* saved_inv_std, T* dx,
    void* scale_grad, void* bias_grad, const __grid_constant__ Halves half, i64 n,
    const __grid_constant__ Columns columns, A* partials, A* coefficients, Zeroed<u32>* counters,
    const __grid_constant__ Schedule schedule, const T* y, T* residual_grad) {
    const auto op = gradient(dy, x, scale, saved_mean, saved_inv_std, dx, scale_grad, bias_grad,
                             half, n, y, residual_grad);
    by_schedule(op,
                InColumns<Gradient, /*RINGS=*/false>{op, columns, /*ring=*/nullptr, /*place=*/{}},
                schedule, {partials, coefficients, {counters}});
}

// dx = scale * inv_std * (dy - mean of dy - x^ * mean of (dy * x^)), x^ = (x - mean) * inv_std;
// scale_grad = sum of dy * x^, bias_grad = sum of dy, of each channel. x is a matrix of 2-byte
// elements, of which a channel is `columns.length` columns; rows go through shared memory (Ring),
// where the last ones stay for the second pass, which writes dx (by_own_parts).
extern "C" __global__ void __launch_bounds__(THREADS, RING_BLOCKS)
    batch_norm__gradient_of_column_rings(const T* dy, const T* x, void* scale, void* saved_mean,
                                         void* saved_inv_std, T* dx, void* scale_grad,
                                         void* bias_grad, const __grid_constant__ Halves half,
                                         i64 n, const __grid_constant__ Columns columns,
                                         A* partials, A* coefficients, Zeroed<u32>* counters,
                                         u32* before, const __grid_constant__ Schedule schedule,
                                         const T* y, T* residual_grad) {
    extern __shared__ __align__(16) u8 ring[];
    if constexpr (sizeof(T) == 2) {
        const auto op = gradient(dy, x, scale, saved_mean, saved_inv_std, dx, scale_grad, bias_grad,
                                 half, n, y, residual_grad);
        by_own_parts(
            op, InColumns<Gradient, /*RINGS=*/true>{op, columns, ring, async_copy::place_of(ring)},
            schedule, {partials, coefficients, {counters}}, before);
    }
}

// dx = scale * inv_std * (dy - mean of dy - x^ * mean of (dy * x^)), x^ = (x - mean) * inv_std;
// scale_grad = sum of dy * x^, bias_grad = sum of dy, of each channel. A block copies channels to
// shared memory, in slots of 16 bytes, and reads them there: in_shared.
extern "C" __global__ void __launch_bounds__(STAGED_THREADS, 1)
    batch_norm__gradient_of_staged_channels(const T* dy, const T* x, void* scale, void* saved_mean,
                                            void* saved_inv_std, T* dx, void* scale_grad,
                                            void* bias_grad, const __grid_constant__ Halves half,
                                            i64 n, const __grid_constant__ StagedTiles tiles,
                                            const T* y, T* residual_grad) {
    extern __shared__ __align__(16) u8 shared[];
    const auto op = gradient(dy, x, scale, saved_mean, saved_inv_std, dx, scale_grad, bias_grad,
                             half, n, y, residual_grad);
    in_shared<vec::WIDTH<T>>(op, tiles, shared);
}

// dx = scale * inv_std * (dy - mean of dy - x^ * mean of (dy * x^)), x^ = (x - mean) * inv_std;
// scale_grad = sum of dy * x^, bias_grad = sum of dy, of each channel. A block copies channels to
// shared memory, in slots of 8 bytes, and reads them there: in_shared.
extern "C" __global__ void __launch_bounds__(STAGED_THREADS, 1)
    batch_norm__gradient_of_narrow_staged_channels(const T* dy, const T* x, void* scale,
                                                   void* saved_mean, void* saved_inv_std, T* dx,
                                                   void* scale_grad, void* bias_grad,
                                                   const __grid_constant__ Halves half, i64 n,
                                                   const __grid_constant__ StagedTiles tiles,
                                                   const T* y, T* residual_grad) {
    extern __shared__ __align__(16) u8 shared[];
    const auto op = gradient(dy, x, scale, saved_mean, saved_inv_std, dx, scale_grad, bias_grad,
                             half, n, y, residual_grad);
    in_shared<vec::WIDTH<T> / 2>(op, tiles, shared);
}

// to[n][j][i] = from[n][i][j], i < height, j < width (elements): changes dY to the layout of X
// where the two differ (channels first or last), and dX back. A block has one tile.
extern "C" __global__ void __launch_bounds__(facts::TRANSPOSING_THREADS)
    batch_norm__transpose(const T* from, T* to, i64 height, i64 width) {
    transpose::swap_last(from, to, height, width);
}
