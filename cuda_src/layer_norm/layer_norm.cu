// SPDX-License-Identifier: MIT
// Layer normalisations and their gradients.  CPU provider: cupy_training_ops/families/layer_norm/reference.py
//
// Rows that fit into registers (forward) or shared memory (gradients) are read once: in vectors if
// arrays are aligned, else by the kernels __elements. Longer rows are read several times. T is the
// type of X, U of statistics, V of Y, scale and bias.
#include "core/slots.cuh"
#include "layer_norm/facts.cuh"
#include "layer_norm/forward.cuh"
#include "layer_norm/full_rows.cuh"
#include "layer_norm/gradient.cuh"
#include "layer_norm/gradient_by_warps.cuh"

#ifndef CTO_U
#define CTO_U float
#endif
#ifndef CTO_V
#define CTO_V float
#endif

namespace cto {

namespace forward = layer_norm_forward;
namespace gradient = layer_norm_gradient;
using namespace facts::layer_norm;

using slots::T;
using V = CTO_V;
using U = CTO_U;
static_assert(ARE_SAME<U, Acc<T>>);

constexpr int WIDTH = staged_rows::WIDTH<T, V>;

}  // namespace cto

using namespace cto;

// ---- LayerNormalization, and without `is_centred` SimplifiedLayerNormalization ------------------

// Launch bounds for short rows. For 12.0, CUDA 13 spills where V is wider than T, unless the number
// of resident blocks is given.
#if !defined(__CUDA_CPU__) && __CUDA_ARCH__ >= 1200 && __CUDACC_VER_MAJOR__ >= 13
#define SHORT_BOUNDS lines::SHORT_THREADS, sizeof(V) > sizeof(T) ? 9 : 0
#else
#define SHORT_BOUNDS lines::SHORT_THREADS
#endif
// y = (x - mean) * inv_std * scale + bias, inv_std = 1 / sqrt(mean of (x - mean)^2 + epsilon);
// without is_centred the mean is 0. y, bias, mean and inv_std may be null. `threads` threads have
// each of n_rows rows of `length` elements in registers, at most SHORT_NBYTES each.
extern "C" __global__ void __launch_bounds__(SHORT_BOUNDS)
    layer_norm__short_rows(const T* x, const V* scale, const V* bias, V* y, U* mean, U* inv_std,
                           bool is_centred, double epsilon, i64 n_rows, i64 length, u32 threads) {
    forward::hold_row<WIDTH, forward::SHORT_COLUMNS<T>, T, V>(
        {x, scale, bias, y, mean, inv_std, is_centred, static_cast<U>(epsilon)}, n_rows, length,
        threads);
}
// y = (x - mean) * inv_std * scale + bias, inv_std = 1 / sqrt(mean of (x - mean)^2 + epsilon);
// without is_centred the mean is 0. y, bias, mean and inv_std may be null. `threads` threads have
// each of n_rows rows of `length` elements in registers.
extern "C" __global__ void __launch_bounds__(lines::MAX_THREADS)
    layer_norm__rows(const T* x, const V* scale, const V* bias, V* y, U* mean, U* inv_std,
                     bool is_centred, double epsilon, i64 n_rows, i64 length, u32 threads) {
    forward::hold_row<WIDTH, COLUMNS<sizeof(T) + sizeof(V)>, T, V>(
        {x, scale, bias, y, mean, inv_std, is_centred, static_cast<U>(epsilon)}, n_rows, length,
        threads);
}
// Launch bounds for full rows: with 4-byte types at least four resident blocks, as
// vec::load_before_stores would else use too many registers; from 2 bytes to 4 the compiler of CUDA
// 13.5 would else spill some.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define FULL_BOUNDS STAGED_THREADS, sizeof(V) != 4 ? 0 : sizeof(T) == 2 ? ONE_RESIDENT : 4
#else
#define FULL_BOUNDS STAGED_THREADS
#endif
// y = x * inv_std * scale, inv_std = 1 / sqrt(mean of x^2 + epsilon), for n_rows rows of exactly
// threads * FULL_COLUMNS<sizeof(T) + sizeof(V)> elements, in registers; inv_std may be null.
extern "C" __global__ void __launch_bounds__(FULL_BOUNDS)
    layer_norm__full_rows(const T* x, const V* scale, V* y, U* inv_std, double epsilon, i64 n_rows,
                          u32 threads) {
    full_rows::scale_rows<WIDTH, FULL_COLUMNS<sizeof(T) + sizeof(V)>, T, V>(
        x, scale, y, inv_std, static_cast<U>(epsilon), n_rows, threads);
}
// y = x * inv_std * scale, inv_std = 1 / sqrt(mean of x^2 + epsilon), for n_rows rows of exactly
// threads * 2 * FULL_COLUMNS<sizeof(T) + sizeof(V)> elements, in registers; inv_std may be null.
extern "C" __global__ void __launch_bounds__(FULL_BOUNDS)
    layer_norm__deep_full_rows(const T* x, const V* scale, V* y, U* inv_std, double epsilon,
                               i64 n_rows, u32 threads) {
    full_rows::scale_rows<WIDTH, 2 * FULL_COLUMNS<sizeof(T) + sizeof(V)>, T, V>(
        x, scale, y, inv_std, static_cast<U>(epsilon), n_rows, threads);
}
// y = (x - mean) * inv_std * scale + bias, inv_std = 1 / sqrt(mean of (x - mean)^2 + epsilon), for
// n_rows rows of exactly threads * FULL_COLUMNS<sizeof(T) + sizeof(V)> elements, in registers;
// bias, mean and inv_std may be null.
extern "C" __global__ void __launch_bounds__(FULL_BOUNDS)
    layer_norm__centred_full_rows(const T* x, const V* scale, const V* bias, V* y, U* mean,
                                  U* inv_std, double epsilon, i64 n_rows, u32 threads) {
    full_rows::centre_rows<WIDTH, FULL_COLUMNS<sizeof(T) + sizeof(V)>, T, V>(
        {x, scale, bias, y, mean, inv_std, /*is_centred=*/true, static_cast<U>(epsilon)}, n_rows,
        threads);
}
// y = (x - mean) * inv_std * scale + bias, inv_std = 1 / sqrt(mean of (x - mean)^2 + epsilon), for
// n_rows rows of exactly threads * 2 * FULL_COLUMNS<sizeof(T) + sizeof(V)> elements, in registers;
// bias, mean and inv_std may be null.
extern "C" __global__ void __launch_bounds__(STAGED_THREADS)
    layer_norm__deep_centred_full_rows(const T* x, const V* scale, const V* bias, V* y, U* mean,
                                       U* inv_std, double epsilon, i64 n_rows, u32 threads) {
    full_rows::centre_rows<WIDTH, 2 * FULL_COLUMNS<sizeof(T) + sizeof(V)>, T, V>(
        {x, scale, bias, y, mean, inv_std, /*is_centred=*/true, static_cast<U>(epsilon)}, n_rows,
        threads);
}
// y = (x - mean) * inv_std * scale + bias, inv_std = 1 / sqrt(mean of (x - mean)^2 + epsilon);
// without is_centred the mean is 0. y, bias, mean and inv_std may be null. `threads` threads have
// each of n_rows rows of `length` elements in registers, at most DEEP_COLUMNS each.
extern "C" __global__ void __launch_bounds__(STAGED_THREADS)
    layer_norm__deep_rows(const T* x, const V* scale, const V* bias, V* y, U* mean, U* inv_std,
                          bool is_centred, double epsilon, i64 n_rows, i64 length, u32 threads) {
    forward::hold_row<WIDTH, DEEP_COLUMNS<sizeof(T) + sizeof(V)>, T, V>(
        {x, scale, bias, y, mean, inv_std, is_centred, static_cast<U>(epsilon)}, n_rows, length,
        threads);
}
// y = (x - mean) * inv_std * scale + bias, inv_std = 1 / sqrt(mean of (x - mean)^2 + epsilon);
// without is_centred the mean is 0. y, bias, mean and inv_std may be null. `threads` threads have
// each of n_rows rows of `length` elements in registers, at most WIDE_COLUMNS each.
extern "C" __global__ void __launch_bounds__(lines::MAX_THREADS)
    layer_norm__wide_rows(const T* x, const V* scale, const V* bias, V* y, U* mean, U* inv_std,
                          bool is_centred, double epsilon, i64 n_rows, i64 length, u32 threads) {
    forward::hold_any_row<WIDTH, WIDE_COLUMNS<sizeof(T) + sizeof(V)>, T, V>(
        {x, scale, bias, y, mean, inv_std, is_centred, static_cast<U>(epsilon)}, n_rows, length,
        threads);
}
// y = (x - mean) * inv_std * scale + bias, inv_std = 1 / sqrt(mean of (x - mean)^2 + epsilon);
// without is_centred the mean is 0. y, bias, mean and inv_std may be null. `threads` threads have
// each of n_rows rows of `length` elements in registers, loaded one by one, as arrays need not be
// aligned.
extern "C" __global__ void __launch_bounds__(STAGED_THREADS, 1)
    layer_norm__elements(const T* x, const V* scale, const V* bias, V* y, U* mean, U* inv_std,
                         bool is_centred, double epsilon, i64 n_rows, i64 length, u32 threads) {
    forward::hold_row</*W=*/1, SINGLE_COLUMNS<sizeof(U)>, T, V>(
        {x, scale, bias, y, mean, inv_std, is_centred, static_cast<U>(epsilon)}, n_rows, length,
        threads);
}
// y = (x - mean) * inv_std * scale + bias, inv_std = 1 / sqrt(mean of (x - mean)^2 + epsilon);
// without is_centred the mean is 0. y, bias, mean and inv_std may be null. A block has a row of
// `length` elements, and reads it three times.
extern "C" __global__ void __launch_bounds__(STAGED_THREADS, 1)
    layer_norm__long_rows(const T* x, const V* scale, const V* bias, V* y, U* mean, U* inv_std,
                          bool is_centred, double epsilon, i64 length) {
    forward::read_row<T, V>({x, scale, bias, y, mean, inv_std, is_centred, static_cast<U>(epsilon)},
                            length);
}

// ---- LayerNormalizationGrad, and without `mean` SimplifiedLayerNormalizationGrad ----------------
//
// rows: `count` rows of `length` elements. A block has `groups` groups of `threads` threads; a
// group has one row at a time, of `slots` slots, a thread up to `depth` slots of it, and shared
// memory `stages` rows of each group.

// dx = inv_std * (h - mean of h - x^ * mean of (h x^)), h = dy * scale, x^ = (x - mean) * inv_std;
// scale_sums and bias_sums: sums of dy * x^ and of dy over each block's rows, [block][column], or
// null. Without `mean`, x^ = x * inv_std and dx has no mean of h. Group g, rows.threads threads, of
// block b has rows (b * rows.groups + g) + k * gridDim.x * rows.groups, k = 0, 1, ... Rows are read
// in 16-byte vectors.
extern "C" __global__ void __launch_bounds__(STAGED_THREADS, 1)
    layer_norm__gradient_rows(const V* dy, const T* x, const V* scale, const U* mean,
                              const U* inv_std, T* dx, U* scale_sums, U* bias_sums,
                              const __grid_constant__ Rows rows) {
    extern __shared__ __align__(16) u8 shared[];
    gradient::walk_rows<WIDTH, /*SHIFTED=*/false, T, V, /*FROM_Y=*/false>(
        {dy, x, scale, /*bias=*/nullptr, mean, inv_std}, dx, scale_sums, bias_sums, rows, shared);
}
// dx = inv_std * (h - mean of h - x^ * mean of (h x^)), h = dy * scale, x^ = (x - mean) * inv_std;
// scale_sums and bias_sums: sums of dy * x^ and of dy over each block's rows, [block][column], or
// null. Without `mean`, x^ = x * inv_std and dx has no mean of h. Group g, rows.threads threads, of
// block b has rows (b / p * rows.groups + g) * p + b % p + k * gridDim.x * rows.groups, k = 0, 1,
// ..., p = rows.period, which begin at the same address modulo 16. Rows do not begin at multiples
// of 16 bytes.
extern "C" __global__ void __launch_bounds__(STAGED_THREADS, 1)
    layer_norm__gradient_shifted_rows(const V* dy, const T* x, const V* scale, const U* mean,
                                      const U* inv_std, T* dx, U* scale_sums, U* bias_sums,
                                      const __grid_constant__ Rows rows) {
    extern __shared__ __align__(16) u8 shared[];
    gradient::walk_rows<WIDTH, /*SHIFTED=*/true, T, V, /*FROM_Y=*/false>(
        {dy, x, scale, /*bias=*/nullptr, mean, inv_std}, dx, scale_sums, bias_sums, rows, shared);
}
// dx = inv_std * (h - mean of h - x^ * mean of (h x^)), h = dy * scale, x^ = (x - mean) * inv_std;
// scale_sums and bias_sums: sums of dy * x^ and of dy over each block's rows, [block][column], or
// null. Without `mean`, x^ = x * inv_std and dx has no mean of h. Group g, rows.threads threads, of
// block b has rows (b * rows.groups + g) + k * gridDim.x * rows.groups, k = 0, 1, ... Whole warps
// share a row of 2-byte types.
extern "C" __global__ void __launch_bounds__(STAGED_THREADS, 1)
    layer_norm__gradient_rows_by_warps(const V* dy, const T* x, const V* scale, const U* mean,
                                       const U* inv_std, T* dx, U* scale_sums, U* bias_sums,
                                       const __grid_constant__ Rows rows) {
    extern __shared__ __align__(16) u8 shared[];
    gradient::by_warps::walk</*SHIFTED=*/false, T, V, /*FROM_Y=*/false>(
        {dy, x, scale, /*bias=*/nullptr, mean, inv_std}, dx, scale_sums, bias_sums, rows, shared);
}
// dx = inv_std * (h - mean of h - x^ * mean of (h x^)), h = dy * scale, x^ = (x - mean) * inv_std;
// scale_sums and bias_sums: sums of dy * x^ and of dy over each block's rows, [block][column], or
// null. Without `mean`, x^ = x * inv_std and dx has no mean of h. Group g, rows.threads threads, of
// block b has rows (b / p * rows.groups + g) * p + b % p + k * gridDim.x * rows.groups, k = 0, 1,
// ..., p = rows.period, which begin at the same address modulo 16. Whole warps share a row of
// 2-byte types, which does not begin at a multiple of 16 bytes.
extern "C" __global__ void __launch_bounds__(STAGED_THREADS, 1)
    layer_norm__gradient_shifted_rows_by_warps(const V* dy, const T* x, const V* scale,
                                               const U* mean, const U* inv_std, T* dx,
                                               U* scale_sums, U* bias_sums,
                                               const __grid_constant__ Rows rows) {
    extern __shared__ __align__(16) u8 shared[];
    gradient::by_warps::walk</*SHIFTED=*/true, T, V, /*FROM_Y=*/false>(
        {dy, x, scale, /*bias=*/nullptr, mean, inv_std}, dx, scale_sums, bias_sums, rows, shared);
}
// dx = inv_std * (h - mean of h - x^ * mean of (h x^)), h = dy * scale, x^ = (x - mean) * inv_std;
// scale_sums and bias_sums: sums of dy * x^ and of dy over each block's rows, [block][column], or
// null. Without `mean`, x^ = x * inv_std and dx has no mean of h. Group g, rows.threads threads, of
// block b has rows (b * rows.groups + g) + k * gridDim.x * rows.groups, k = 0, 1, ... Elements are
// read one by one.
extern "C" __global__ void __launch_bounds__(STAGED_THREADS, 1)
    layer_norm__gradient_elements(const V* dy, const T* x, const V* scale, const U* mean,
                                  const U* inv_std, T* dx, U* scale_sums, U* bias_sums,
                                  const __grid_constant__ Rows rows) {
    extern __shared__ __align__(16) u8 shared[];
    gradient::walk_rows</*W=*/1, /*SHIFTED=*/false, T, V, /*FROM_Y=*/false>(
        {dy, x, scale, /*bias=*/nullptr, mean, inv_std}, dx, scale_sums, bias_sums, rows, shared);
}
// means[row] = {mean of h, mean of h x^}, h = dy * scale, x^ = (x - mean) * inv_std, for rows too
// long for shared memory; layer_norm__gradient_columns reads them. A block has a row, of `length`
// elements. Without `mean`, x^ = x * inv_std and the mean of h is 0.
extern "C" __global__ void __launch_bounds__(STAGED_THREADS, 1)
    layer_norm__gradient_row_sums(const V* dy, const T* x, const V* scale, const U* mean,
                                  const U* inv_std, i64 length, U* means) {
    gradient::sum_long_row<T, V, /*FROM_Y=*/false>({dy, x, scale, /*bias=*/nullptr, mean, inv_std},
                                                   length, means);
}
// dx = inv_std * (h - means[row][0] - x^ * means[row][1]), h = dy * scale, x^ = (x - mean) *
// inv_std, or x * inv_std without `mean`; scale_sums[part] and bias_sums[part], `length` numbers
// each: sums of dy * x^ and dy over a part, rows_of_part of the `count` rows of `length` columns.
// dx (then also means) and the sums may be null. Grid (tiles of columns, parts).
extern "C" __global__ void __launch_bounds__(COLUMN_THREADS, 1)
    layer_norm__gradient_columns(const V* dy, const T* x, const V* scale, const U* mean,
                                 const U* inv_std, const U* means, T* dx, U* scale_sums,
                                 U* bias_sums, i64 count, i64 length, i64 rows_of_part) {
    gradient::walk_columns<T, V, /*FROM_Y=*/false>({dy, x, scale, /*bias=*/nullptr, mean, inv_std},
                                                   means, dx, scale_sums, bias_sums, count, length,
                                                   rows_of_part);
}

// ---- InvertibleLayerNormalizationGrad -----------------------------------------------------------

// x^ = (y - bias) / scale, with which dx = inv_std * (h - mean of h - x^ * mean of (h x^)), h = dy
// * scale; scale_sums and bias_sums: sums of dy * x^ and of dy over each block's rows,
// [block][column], or null. Group g, rows.threads threads, of block b has rows (b * rows.groups +
// g) + k * gridDim.x * rows.groups, k = 0, 1, ... Rows are read in 16-byte vectors.
extern "C" __global__ void __launch_bounds__(STAGED_THREADS, 1)
    layer_norm__invertible_rows(const V* dy, const V* y, const V* scale, const V* bias,
                                const U* inv_std, T* dx, U* scale_sums, U* bias_sums,
                                const __grid_constant__ Rows rows) {
    extern __shared__ __align__(16) u8 shared[];
    gradient::walk_rows<WIDTH, /*SHIFTED=*/false, T, V, /*FROM_Y=*/true>(
        {dy, /*x=*/y, scale, bias, /*mean=*/nullptr, inv_std}, dx, scale_sums, bias_sums, rows,
        shared);
}
// x^ = (y - bias) / scale, with which dx = inv_std * (h - mean of h - x^ * mean of (h x^)), h = dy
// * scale; scale_sums and bias_sums: sums of dy * x^ and of dy over each block's rows,
// [block][column], or null. Group g, rows.threads threads, of block b has rows (b / p * rows.groups
// + g) * p + b % p + k * gridDim.x * rows.groups, k = 0, 1, ..., p = rows.period, which begin at
// the same address modulo 16. Rows do not begin at multiples of 16 bytes.
extern "C" __global__ void __launch_bounds__(STAGED_THREADS, 1)
    layer_norm__invertible_shifted_rows(const V* dy, const V* y, const V* scale, const V* bias,
                                        const U* inv_std, T* dx, U* scale_sums, U* bias_sums,
                                        const __grid_constant__ Rows rows) {
    extern __shared__ __align__(16) u8 shared[];
    gradient::walk_rows<WIDTH, /*SHIFTED=*/true, T, V, /*FROM_Y=*/true>(
        {dy, /*x=*/y, scale, bias, /*mean=*/nullptr, inv_std}, dx, scale_sums, bias_sums, rows,
        shared);
}
// x^ = (y - bias) / scale, with which dx = inv_std * (h - mean of h - x^ * mean of (h x^)), h = dy
// * scale; scale_sums and bias_sums: sums of dy * x^ and of dy over each block's rows,
// [block][column], or null. Group g, rows.threads threads, of block b has rows (b * rows.groups +
// g) + k * gridDim.x * rows.groups, k = 0, 1, ... Whole warps share a row of 2-byte types.
extern "C" __global__ void __launch_bounds__(STAGED_THREADS, 1)
    layer_norm__invertible_rows_by_warps(const V* dy, const V* y, const V* scale, const V* bias,
                                         const U* inv_std, T* dx, U* scale_sums, U* bias_sums,
                                         const __grid_constant__ Rows rows) {
    extern __shared__ __align__(16) u8 shared[];
    gradient::by_warps::walk</*SHIFTED=*/false, T, V, /*FROM_Y=*/true>(
        {dy, /*x=*/y, scale, bias, /*mean=*/nullptr, inv_std}, dx, scale_sums, bias_sums, rows,
        shared);
}
// x^ = (y - bias) / scale, with which dx = inv_std * (h - mean of h - x^ * mean of (h x^)), h = dy
// * scale; scale_sums and bias_sums: sums of dy * x^ and of dy over each block's rows,
// [block][column], or null. Group g, rows.threads threads, of block b has rows (b * rows.groups +
// g) + k * gridDim.x * rows.groups, k = 0, 1, ... Elements are read one by one.
extern "C" __global__ void __launch_bounds__(STAGED_THREADS, 1)
    layer_norm__invertible_elements(const V* dy, const V* y, const V* scale, const V* bias,
                                    const U* inv_std, T* dx, U* scale_sums, U* bias_sums,
                                    const __grid_constant__ Rows rows) {
    extern __shared__ __align__(16) u8 shared[];
    gradient::walk_rows</*W=*/1, /*SHIFTED=*/false, T, V, /*FROM_Y=*/true>(
        {dy, /*x=*/y, scale, bias, /*mean=*/nullptr, inv_std}, dx, scale_sums, bias_sums, rows,
        shared);
}
// means[row] = {mean of h, mean of h x^}, h = dy * scale, x^ = (y - bias) / scale, for rows too
// long for shared memory; layer_norm__invertible_columns reads them. A block has a row, of `length`
// elements.
extern "C" __global__ void __launch_bounds__(STAGED_THREADS, 1)
    layer_norm__invertible_row_sums(const V* dy, const V* y, const V* scale, const V* bias,
                                    const U* inv_std, i64 length, U* means) {
    gradient::sum_long_row<T, V, /*FROM_Y=*/true>(
        {dy, /*x=*/y, scale, bias, /*mean=*/nullptr, inv_std}, length, means);
}
// dx = inv_std * (h - means[row][0] - x^ * means[row][1]), h = dy * scale, x^ = (y - bias) / scale;
// scale_sums[part] and bias_sums[part], `length` numbers each: sums of dy * x^ and dy over a part,
// rows_of_part of the `count` rows of `length` columns. dx (then also means) and the sums may be
// null. Grid (tiles of columns, parts).
extern "C" __global__ void __launch_bounds__(COLUMN_THREADS, 1)
    layer_norm__invertible_columns(const V* dy, const V* y, const V* scale, const V* bias,
                                   const U* inv_std, const U* means, T* dx, U* scale_sums,
                                   U* bias_sums, i64 count, i64 length, i64 rows_of_part) {
    gradient::walk_columns<T, V, /*FROM_Y=*/true>(
        {dy, /*x=*/y, scale, bias, /*mean=*/nullptr, inv_std}, means, dx, scale_sums, bias_sums,
        count, length, rows_of_part);
}

// ---- the second stage of all sums over rows -----------------------------------------------------

// scale_grad[column] = scale_sums[0][column] + ... + scale_sums[n - 1][column], column < length,
// where blockIdx.y is 0; where it is 1, bias_grad from bias_sums. Nothing where the gradient's
// pointer is null. Grid (tiles of columns, 2).
extern "C" __global__ void __launch_bounds__(STAGED_THREADS, 1)
    layer_norm__total(const U* scale_sums, const U* bias_sums, V* scale_grad, V* bias_grad, i64 n,
                      i64 length) {
    V* const total = blockIdx.y == 0 ? scale_grad : bias_grad;
    if (!total) return;
    gradient::sum_lines(blockIdx.y == 0 ? scale_sums : bias_sums, total, n, length);
}
