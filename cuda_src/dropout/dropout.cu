// SPDX-License-Identifier: MIT
// Dropout, its gradients, and both with softmax.  CPU provider: cupy_training_ops/families/dropout/reference.py
//
// A mask depends on seed, offset and the index of each element only: not on the launch, the element
// type, or whether it is stored in bytes or bits.
//
// Kernels with `aligned` are element-wise (algorithm/elementwise.cuh) over arrays of n elements: a
// block computes Tile::size of them, or `tiles` times as many; aligned: all arrays begin at
// multiples of 16 bytes, and are read in vectors. The others are softmax along lines
// (algorithm/lines.cuh): _short_rows and _rows have `threads` threads for each of n_rows contiguous
// rows (a power of two up to 32, or the whole block); _columns have arrays (n_outer, length,
// stride), threads along x have neighbouring lines, threads along y share one.
//
// state = {seed, offset} of the random words (philox.cuh); an element is kept if its word is at
// most `largest`. scale = 1 / (1 - ratio), in training.
#include "core/either.cuh"
#include "core/slots.cuh"
#include "dropout/facts.cuh"
#include "dropout/lines.cuh"
#include "dropout/operands.cuh"

namespace cto {

using namespace facts::dropout;
using namespace dropped_softmax;
using namespace random_mask;
using namespace elementwise;
using namespace row_softmax;
using either::as_i64;
using either::Either;
using fast_division::Divisor;

using slots::ACC;
using slots::T;
static_assert(ARE_SAME<ACC, Acc<T>>);

// Elements of a line of each of two arrays that a thread of a _columns kernel has in registers.
constexpr int COLUMN_ELEMENTS = LINE_NBYTES / 16 / N_HELD;
constexpr int WIDTH = vec::WIDTH<T>;
using Tile = Tiling<T, THREADS, NBYTES>;

// Least number of resident blocks in the launch bounds: while some wait for memory, others compute
// random words. For other architectures the compiler would spill. Doubles take twice the registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 && __CUDA_ARCH__ < 1000
constexpr int SHARE = sizeof(T) == 8 ? 2 : 1;
constexpr int DRAWING_BLOCKS = 10 / SHARE, BIASED_BLOCKS = 8 / SHARE;
#else
constexpr int DRAWING_BLOCKS = 1, BIASED_BLOCKS = 1;
#endif

// The random words of state = {seed, offset}; elements whose word is at most `largest` are kept.
__device__ __forceinline__ Draw draw_of(const Either<2>& state, u32 largest) {
    return {{static_cast<u64>(as_i64(state, 0)), static_cast<u64>(as_i64(state, 1))}, largest};
}
// draw_of's choice, with the keys of all Philox rounds computed once, for threads that draw many
// words.
__device__ __forceinline__ KeyedDraw keyed_draw_of(const Either<2>& state, u32 largest) {
    const Draw draw = draw_of(state, largest);
    return {{philox::Keys(draw.sequence.key), draw.sequence.offset}, largest};
}

// Maps of one element: y = kept ? x * scale : 0 and mask = kept, drawn being the element's Choice.
struct Forward {
    ACC scale;
    __device__ void operator()(ACC x, Choice drawn, ACC& y, Mark mask) const {
        y = marked(x, drawn, scale, mask);
    }
};
// y = (kept ? (x + bias) * scale : 0) + residual, mask = kept.
struct ForwardWithBias {
    ACC scale;
    __device__ void operator()(ACC x, ACC bias, ACC residual, Choice drawn, ACC& y,
                               Mark mask) const {
        y = marked(x + bias, drawn, scale, mask) + residual;
    }
};
// dx = kept ? dy * scale : 0.
struct Backward {
    ACC scale;
    __device__ void operator()(ACC dy, bool kept, ACC& dx) const {
        dx = scaled_or_0(dy, kept, scale);
    }
};

// Number of 16-byte vectors of each of two arrays that a thread has in registers, TOTAL_NBYTES in
// all; a mask is not counted.
template <int TOTAL_NBYTES>
constexpr int SLOTS = TOTAL_NBYTES / 16 / N_HELD;

// Writes softmax of data + bias, and its dropout, to `to`, for n_rows contiguous rows of `length`
// elements; bias_rows: the row of the bias for each row; `threads` threads share a row, and each
// has TOTAL_NBYTES of it in registers at a time.
template <int TOTAL_NBYTES>
__device__ __forceinline__ void bias_softmax_rows(const T* data, const T* bias,
                                                  const BiasRows& bias_rows,
                                                  const DropoutWriter<T>& to, i64 n_rows,
                                                  i64 length, u32 threads) {
    __shared__ ACC per_warp[WARP];
    const auto line = seated_row_of<WIDTH, SLOTS<TOTAL_NBYTES>>(n_rows, length, threads);
    bias_softmax_line(line, RowThreads<ACC>{threads, per_warp}, data, bias, bias_rows, length, to);
}

// Writes dx, the gradient of softmax and dropout, of n_rows contiguous rows of `length` elements; y
// is the softmax, mask has a byte for each element; through: scale, and whether all elements were
// kept. `threads` threads share a row, and each has TOTAL_NBYTES of it in registers at a time.
template <int TOTAL_NBYTES>
__device__ __forceinline__ void gradient_rows(const T* dy, const bool* mask, const T* y, T* dx,
                                              const Through<ACC>& through, i64 n_rows, i64 length,
                                              u32 threads) {
    __shared__ ACC per_warp[WARP];
    const auto line = seated_row_of<WIDTH, SLOTS<TOTAL_NBYTES>>(n_rows, length, threads);
    gradient_line(line, RowThreads<ACC>{threads, per_warp}, dy, mask, y, dx, through);
}

}  // namespace cto

using namespace cto;

// Adds `by` to the offset of state = {seed, offset}, if the state is in memory, so that the next
// launch draws other words. One thread.
extern "C" __global__ void dropout__advance(const __grid_constant__ Either<2> state, i64 by) {
    either::store(state, 1, as_i64(state, 1) + by);
}

// output[i] = data[i] * scale where element i is kept, else 0; mask = kept, a byte each. An element
// is kept if its random word (philox.cuh) is at most `largest`; state = {seed, offset}. output and
// mask may be null.
extern "C" __global__ void __launch_bounds__(THREADS, DRAWING_BLOCKS)
    dropout(const T* data, T* output, bool* mask, i64 n, bool aligned,
            const __grid_constant__ Either<2> state, u32 largest, ACC scale) {
    map_elements<Tile>(n, aligned, Forward{scale}, in(data), ChoicesOf{draw_of(state, largest)},
                       out_if_wanted(output), BytesTo{mask});
}
// output[i] = data[i] * scale where element i is kept, else 0; mask = kept, bit i % 32 of word i /
// 32. An element is kept if its random word (philox.cuh) is at most `largest`; state = {seed,
// offset}. output and mask may be null.
extern "C" __global__ void __launch_bounds__(THREADS, DRAWING_BLOCKS)
    bitmask_dropout(const T* data, T* output, u32* mask, i64 n, bool aligned, u32 tiles,
                    const __grid_constant__ Either<2> state, u32 largest, ACC scale) {
    map_tiles<Tile>(n, aligned, tiles, Forward{scale}, in(data), ChoicesOf{draw_of(state, largest)},
                    out_if_wanted(output), BitsTo{mask});
}

// dx[i] = dy[i] * scale if the mask's byte of element i is set, or if keeps_all; else 0.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    dropout_grad(const T* dy, const bool* mask, T* dx, i64 n, bool aligned, ACC scale,
                 bool keeps_all) {
    map_elements<Tile>(n, aligned, Backward{scale}, in(dy), BytesFrom{mask, keeps_all}, out(dx));
}
// dx[i] = dy[i] * scale if the mask's bit of element i is set, or if keeps_all; else 0.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    bitmask_dropout_grad(const T* dy, const u32* mask, T* dx, i64 n, bool aligned, ACC scale,
                         bool keeps_all) {
    map_elements<Tile>(n, aligned, Backward{scale}, in(dy), BitsFrom{mask, keeps_all}, out(dx));
}

// output = (kept ? (data + bias) * scale : 0) + residual; mask = kept, a byte each; an element is
// kept if its random word is at most `largest`. bias (a row of columns.value elements), residual,
// output and mask may be null.
extern "C" __global__ void __launch_bounds__(THREADS, BIASED_BLOCKS)
    bias_dropout(const T* data, const T* bias, const T* residual, T* output, bool* mask, i64 n,
                 bool aligned, u32 tiles, const __grid_constant__ Divisor columns,
                 const __grid_constant__ Either<2> state, u32 largest, ACC scale) {
    map_tiles<Tile>(n, aligned, tiles, ForwardWithBias{scale}, in(data), row_or_none(bias, columns),
                    in_or_zero(residual), ChoicesOf{draw_of(state, largest)}, out_if_wanted(output),
                    BytesTo{mask});
}
// output = (kept ? (data + bias) * scale : 0) + residual; mask = kept, a bit each; an element is
// kept if its random word is at most `largest`. bias (a row of columns.value elements), residual,
// output and mask may be null.
extern "C" __global__ void __launch_bounds__(THREADS, BIASED_BLOCKS)
    bitmask_bias_dropout(const T* data, const T* bias, const T* residual, T* output, u32* mask,
                         i64 n, bool aligned, u32 tiles, const __grid_constant__ Divisor columns,
                         const __grid_constant__ Either<2> state, u32 largest, ACC scale) {
    map_tiles<Tile>(n, aligned, tiles, ForwardWithBias{scale}, in(data), row_or_none(bias, columns),
                    in_or_zero(residual), ChoicesOf{draw_of(state, largest)}, out_if_wanted(output),
                    BitsTo{mask});
}

// softmax_output = softmax(data + bias) of each row, dropout_output = kept ? softmax_output * scale
// : 0, mask = kept, a byte each. Outputs may be null. Row r of data has row r / rows of the bias if
// `inner`, else r % rows. A thread has SHORT_NBYTES of a row in registers at a time.
extern "C" __global__ void __launch_bounds__(SHORT_THREADS, 1)
    bias_softmax_dropout__short_rows(const T* data, const T* bias, T* dropout_output, bool* mask,
                                     T* softmax_output, const __grid_constant__ Divisor rows,
                                     bool inner, const __grid_constant__ Either<2> state,
                                     u32 largest, ACC scale, i64 n_rows, i64 length, u32 threads) {
    bias_softmax_rows<SHORT_NBYTES>(
        data, bias, BiasRows{rows, inner},
        {dropout_output, mask, softmax_output, keyed_draw_of(state, largest), scale}, n_rows,
        length, threads);
}
// softmax_output = softmax(data + bias) of each row, dropout_output = kept ? softmax_output * scale
// : 0, mask = kept, a byte each. Outputs may be null. Row r of data has row r / rows of the bias if
// `inner`, else r % rows. A thread has LINE_NBYTES of a row in registers at a time.
extern "C" __global__ void __launch_bounds__(LINE_THREADS, 1)
    bias_softmax_dropout__rows(const T* data, const T* bias, T* dropout_output, bool* mask,
                               T* softmax_output, const __grid_constant__ Divisor rows, bool inner,
                               const __grid_constant__ Either<2> state, u32 largest, ACC scale,
                               i64 n_rows, i64 length, u32 threads) {
    bias_softmax_rows<LINE_NBYTES>(
        data, bias, BiasRows{rows, inner},
        {dropout_output, mask, softmax_output, keyed_draw_of(state, largest), scale}, n_rows,
        length, threads);
}
// softmax_output = softmax(data + bias) of each line, dropout_output = kept ? softmax_output *
// scale : 0, mask = kept, a byte each. Outputs may be null. Line r of data has line r / rows of the
// bias if `inner`, else r % rows. A line's elements are `stride` apart.
extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    bias_softmax_dropout__columns(const T* data, const T* bias, T* dropout_output, bool* mask,
                                  T* softmax_output, const __grid_constant__ Divisor rows,
                                  bool inner, const __grid_constant__ Either<2> state, u32 largest,
                                  ACC scale, i64 n_outer, i64 length, i64 stride) {
    __shared__ ACC per_thread[MAX_THREADS];
    const DropoutWriter<T> to{dropout_output, mask, softmax_output, keyed_draw_of(state, largest),
                              scale};
    bias_softmax_line(column_of<COLUMN_ELEMENTS>(n_outer, length, stride),
                      ColumnThreads<ACC>{per_thread}, data, bias, BiasRows{rows, inner}, length,
                      to);
}

// dx = y * (g - sum of g * y) of each line, y = softmax_y, g = dy * scale if the mask's byte is
// set, or if keeps_all; else 0. A thread has SHORT_NBYTES of a row in registers at a time.
extern "C" __global__ void __launch_bounds__(SHORT_THREADS, 1)
    softmax_dropout_grad__short_rows(const T* dy, const bool* mask, const T* softmax_y, T* dx,
                                     ACC scale, bool keeps_all, i64 n_rows, i64 length,
                                     u32 threads) {
    gradient_rows<SHORT_NBYTES>(dy, mask, softmax_y, dx, {scale, keeps_all}, n_rows, length,
                                threads);
}
// dx = y * (g - sum of g * y) of each line, y = softmax_y, g = dy * scale if the mask's byte is
// set, or if keeps_all; else 0. A thread has LINE_NBYTES of a row in registers at a time.
extern "C" __global__ void __launch_bounds__(LINE_THREADS, 1)
    softmax_dropout_grad__rows(const T* dy, const bool* mask, const T* softmax_y, T* dx, ACC scale,
                               bool keeps_all, i64 n_rows, i64 length, u32 threads) {
    gradient_rows<LINE_NBYTES>(dy, mask, softmax_y, dx, {scale, keeps_all}, n_rows, length,
                               threads);
}
// dx = y * (g - sum of g * y) of each line, y = softmax_y, g = dy * scale if the mask's byte is
// set, or if keeps_all; else 0. A line's elements are `stride` apart.
extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    softmax_dropout_grad__columns(const T* dy, const bool* mask, const T* softmax_y, T* dx,
                                  ACC scale, bool keeps_all, i64 n_outer, i64 length, i64 stride) {
    __shared__ ACC per_thread[MAX_THREADS];
    gradient_line(column_of<COLUMN_ELEMENTS>(n_outer, length, stride),
                  ColumnThreads<ACC>{per_thread}, dy, mask, softmax_y, dx,
                  Through<ACC>{scale, keeps_all});
}
