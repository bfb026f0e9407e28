// SPDX-License-Identifier: MIT
// Softmax, its logarithm and their gradients.  CPU provider: cupy_training_ops/families/softmax/reference.py
//
// Each operator has three kernels: __short_rows and __rows for lines whose elements are neighbours
// in memory, in aligned arrays; __columns for all others. Softmax and its logarithm also have
// __full_rows, for rows of exactly `threads` times NBYTES.
#include "algorithm/row_softmax.cuh"
#include "core/slots.cuh"
#include "softmax/facts.cuh"

namespace cto {

using namespace facts::softmax;
using math::exp::exponential;
using math::exp::logarithm;
using namespace row_softmax;

using slots::T;
using A = Acc<T>;

// Of all arrays that are read, a thread has NBYTES of a row in registers, or COLUMN_ELEMENTS of a
// column.
constexpr int COLUMN_ELEMENTS = NBYTES / 16;
constexpr int WIDTH = vec::WIDTH<T>;

// 16-byte vectors that a thread has in registers of each of N arrays, TOTAL_NBYTES together.
template <int TOTAL_NBYTES, int N>
constexpr int VECTORS = TOTAL_NBYTES / 16 / N;

// y[i] = exp(x[i] - max) / sum of exp(x - max), or with LOG y[i] = x[i] - max - log(sum), for this
// thread's part of `line`, max and sum over all of it. threads: RowThreads or ColumnThreads, as the
// line is shared. FULL: every thread of the line has all its slots; threads without a line of their
// own read the last line, and write nothing.
template <bool LOG, bool FULL = false, int W, int DEPTH, class Threads>
__device__ __forceinline__ void softmax_line(const Line<W, DEPTH>& line, const Threads& threads,
                                             const T* x, T* y) {
    LineReader<T, W, DEPTH> in(line, x, from_acc<T>(negative_infinity<A>()));
    OnlineSum<A> of;
    const auto batch = read</*LOADS_FIRST=*/sizeof(T) == 2, /*BEFORE_STORES=*/FULL>(line, of, in);
    of.join(threads);
    if (FULL && line.number < 0) return;
    if (line.full) in.renew(of.late_zero());
    const A max = of.max, last = LOG ? logarithm(of.sum) : 1 / of.sum;
    const auto map = [=](Place<W>, A v) {
        return LOG ? v - max - last : exponential(v - max) * last;
    };
    write(line, batch, map, LineWriter<T, W, DEPTH>(line, y), in);
}

// The op of lines::read for gradients: sum of dy * y, or with LOG sum of dy.
template <bool LOG>
struct Slope {
    A sum = 0;

    template <class Each, class Renew, class Largest>
    __device__ __forceinline__ void include(const Each& each, const Renew&, const Largest&) {
        each([&](A dy, A y) { sum += LOG ? dy : dy * y; });
    }
};

// dx = y * (dy - sum of dy * y), or with LOG dx = dy - exp(y) * sum of dy, where y is the logarithm
// of the softmax; sums over the line. threads: RowThreads or ColumnThreads, as the line is shared.
template <bool LOG, int W, int DEPTH, class Threads>
__device__ __forceinline__ void gradient_line(const Line<W, DEPTH>& line, const Threads& threads,
                                              const T* dy, const T* y, T* dx) {
    const T zero = from_acc<T>(A(0));
    LineReader<T, W, DEPTH> in_dy(line, dy, zero), in_y(line, y, zero);
    Slope<LOG> slope;
    const auto batch = read < sizeof(T) == 2 && !LOG > (line, slope, in_dy, in_y);
    const A sum = threads.sum(slope.sum);
    const auto map = [=](Place<W>, A dy, A y) {
        return LOG ? dy - exponential(y) * sum : y * (dy - sum);
    };
    write</*STREAMS=*/true>(line, batch, map, LineWriter<T, W, DEPTH>(line, dx), in_dy, in_y);
}

// y = softmax of each of n_rows rows of x, of `length` elements, or with LOG its logarithm.
// `threads` threads share a row; each has TOTAL_NBYTES of it in registers at a time.
template <bool LOG, int TOTAL_NBYTES>
__device__ __forceinline__ void softmax_rows(const T* x, T* y, i64 n_rows, i64 length,
                                             u32 threads) {
    __shared__ A per_warp[WARP];
    const auto line = seated_row_of<WIDTH, VECTORS<TOTAL_NBYTES, /*N=*/1>>(n_rows, length, threads);
    softmax_line<LOG>(line, RowThreads<A>{threads, per_warp}, x, y);
}

// KNOWS_FULL: line.full is a constant, so the compiler drops bounds checks; for 10.x it would then
// spill. AS_OTHERS: from 10.0 on, CUDA 13 spills for 4-byte types in either case, so softmax_rows
// is used.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr bool KNOWS_FULL = __CUDA_ARCH__ / 100 != 10, AS_OTHERS = sizeof(T) == 4;
#else
constexpr bool KNOWS_FULL = true, AS_OTHERS = false;
#endif

// y = softmax, or with LOG its logarithm, of n_rows rows of exactly threads * NBYTES bytes of x.
template <bool LOG>
__device__ __forceinline__ void softmax_full_rows(const T* x, T* y, i64 n_rows, u32 threads) {
    if constexpr (AS_OTHERS) {
        const i64 length = static_cast<i64>(threads) * (NBYTES / sizeof(T));
        softmax_rows<LOG, NBYTES>(x, y, n_rows, length, threads);
    } else {
        __shared__ A per_warp[WARP];
        auto line = full_row_of<WIDTH, VECTORS<NBYTES, /*N=*/1>>(n_rows, threads);
        line.full = KNOWS_FULL;
        softmax_line<LOG, /*FULL=*/true>(line, RowThreads<A>{threads, per_warp}, x, y);
    }
}

// y = softmax, or with LOG its logarithm, of lines of x (n_outer, length, stride): a line's
// elements are `stride` apart.
template <bool LOG>
__device__ __forceinline__ void softmax_columns(const T* x, T* y, i64 n_outer, i64 length,
                                                i64 stride) {
    __shared__ A per_thread[MAX_THREADS];
    const auto line = column_of<COLUMN_ELEMENTS>(n_outer, length, stride);
    softmax_line<LOG>(line, ColumnThreads<A>{per_thread}, x, y);
}

// dx = y * (dy - sum of dy * y) of each of n_rows rows, of `length` elements, or with LOG dx = dy -
// exp(y) * sum of dy. `threads` threads share a row; each has TOTAL_NBYTES of the two inputs in
// registers at a time.
template <bool LOG, int TOTAL_NBYTES>
__device__ __forceinline__ void gradient_rows(const T* dy, const T* y, T* dx, i64 n_rows,
                                              i64 length, u32 threads) {
    __shared__ A per_warp[WARP];
    const auto line = seated_row_of<WIDTH, VECTORS<TOTAL_NBYTES, /*N=*/2>>(n_rows, length, threads);
    gradient_line<LOG>(line, RowThreads<A>{threads, per_warp}, dy, y, dx);
}

// dx = y * (dy - sum of dy * y), or with LOG dx = dy - exp(y) * sum of dy, of lines of arrays
// (n_outer, length, stride): a line's elements are `stride` apart.
template <bool LOG>
__device__ __forceinline__ void gradient_columns(const T* dy, const T* y, T* dx, i64 n_outer,
                                                 i64 length, i64 stride) {
    __shared__ A per_thread[MAX_THREADS];
    const auto line = column_of<COLUMN_ELEMENTS / 2>(n_outer, length, stride);
    gradient_line<LOG>(line, ColumnThreads<A>{per_thread}, dy, y, dx);
}

}  // namespace cto

using namespace cto;

// y = softmax of x along n_rows contiguous rows of `length` elements; each of a row's `threads`
// threads has SHORT_NBYTES of it in registers at a time.
extern "C" __global__ void __launch_bounds__(SHORT_THREADS)
    softmax__short_rows(const T* x, T* y, i64 n_rows, i64 length, u32 threads) {
    softmax_rows</*LOG=*/false, SHORT_NBYTES>(x, y, n_rows, length, threads);
}
// y = softmax of x along n_rows contiguous rows of `length` elements; each of a row's `threads`
// threads has NBYTES of it in registers at a time.
extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    softmax__rows(const T* x, T* y, i64 n_rows, i64 length, u32 threads) {
    softmax_rows</*LOG=*/false, NBYTES>(x, y, n_rows, length, threads);
}
// y = softmax of x along n_rows rows of exactly threads * NBYTES bytes; `threads` threads have a
// row.
extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    softmax__full_rows(const T* x, T* y, i64 n_rows, u32 threads) {
    softmax_full_rows</*LOG=*/false>(x, y, n_rows, threads);
}
// y = softmax of x along lines of an array (n_outer, length, stride), whose elements are `stride`
// apart.
extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    softmax__columns(const T* x, T* y, i64 n_outer, i64 length, i64 stride) {
    softmax_columns</*LOG=*/false>(x, y, n_outer, length, stride);
}

// y = logarithm of the softmax of x along n_rows contiguous rows of `length` elements; each of a
// row's `threads` threads has SHORT_NBYTES of it in registers at a time.
extern "C" __global__ void __launch_bounds__(SHORT_THREADS)
    log_softmax__short_rows(const T* x, T* y, i64 n_rows, i64 length, u32 threads) {
    softmax_rows</*LOG=*/true, SHORT_NBYTES>(x, y, n_rows, length, threads);
}
// y = logarithm of the softmax of x along n_rows contiguous rows of `length` elements; each of a
// row's `threads` threads has NBYTES of it in registers at a time.
extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    log_softmax__rows(const T* x, T* y, i64 n_rows, i64 length, u32 threads) {
    softmax_rows</*LOG=*/true, NBYTES>(x, y, n_rows, length, threads);
}
// y = logarithm of the softmax of x along n_rows rows of exactly threads * NBYTES bytes; `threads`
// threads have a row.
extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    log_softmax__full_rows(const T* x, T* y, i64 n_rows, u32 threads) {
    softmax_full_rows</*LOG=*/true>(x, y, n_rows, threads);
}
// y = logarithm of the softmax of x along lines of an array (n_outer, length, stride), whose
// elements are `stride` apart.
extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    log_softmax__columns(const T* x, T* y, i64 n_outer, i64 length, i64 stride) {
    softmax_columns</*LOG=*/true>(x, y, n_outer, length, stride);
}

// SoftmaxGrad and SoftmaxGrad_13: dx = y * (dy - sum of dy * y) along n_rows contiguous rows of
// `length` elements; each of a row's `threads` threads has SHORT_NBYTES of dy and y together in
// registers at a time.
extern "C" __global__ void __launch_bounds__(SHORT_THREADS)
    softmax__gradient_short_rows(const T* dy, const T* y, T* dx, i64 n_rows, i64 length,
                                 u32 threads) {
    gradient_rows</*LOG=*/false, SHORT_NBYTES>(dy, y, dx, n_rows, length, threads);
}
// SoftmaxGrad and SoftmaxGrad_13: dx = y * (dy - sum of dy * y) along n_rows contiguous rows of
// `length` elements; each of a row's `threads` threads has NBYTES of dy and y together in registers
// at a time.
extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1)
    softmax__gradient_rows(const T* dy, const T* y, T* dx, i64 n_rows, i64 length, u32 threads) {
    gradient_rows</*LOG=*/false, NBYTES>(dy, y, dx, n_rows, length, threads);
}
// SoftmaxGrad and SoftmaxGrad_13: dx = y * (dy - sum of dy * y) along lines of arrays (n_outer,
// length, stride), whose elements are `stride` apart.
extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    softmax__gradient_columns(const T* dy, const T* y, T* dx, i64 n_outer, i64 length, i64 stride) {
    gradient_columns</*LOG=*/false>(dy, y, dx, n_outer, length, stride);
}

// LogSoftmaxGrad and LogSoftmaxGrad_13: dx = dy - exp(x) * sum of dy, where x is the logarithm of
// the softmax, along n_rows contiguous rows of `length` elements; each of a row's `threads` threads
// has SHORT_NBYTES of dy and x together in registers at a time.
extern "C" __global__ void __launch_bounds__(SHORT_THREADS)
    softmax__log_gradient_short_rows(const T* dy, const T* x, T* dx, i64 n_rows, i64 length,
                                     u32 threads) {
    gradient_rows</*LOG=*/true, SHORT_NBYTES>(dy, x, dx, n_rows, length, threads);
}
// LogSoftmaxGrad and LogSoftmaxGrad_13: dx = dy - exp(x) * sum of dy, where x is the logarithm of
// the softmax, along n_rows contiguous rows of `length` elements; each of a row's `threads` threads
// has NBYTES of dy and x together in registers at a time.
extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1)
    softmax__log_gradient_rows(const T* dy, const T* x, T* dx, i64 n_rows, i64 length,
                               u32 threads) {
    gradient_rows</*LOG=*/true, NBYTES>(dy, x, dx, n_rows, length, threads);
}
// LogSoftmaxGrad and LogSoftmaxGrad_13: dx = dy - exp(x) * sum of dy, where x is the logarithm of
// the softmax, along lines of arrays (n_outer, length, stride), whose elements are `stride` apart.
extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    softmax__log_gradient_columns(const T* dy, const T* x, T* dx, i64 n_outer, i64 length,
                                  i64 stride) {
    gradient_columns</*LOG=*/true>(dy, x, dx, n_outer, length, stride);
}
