// SPDX-License-Identifier: MIT
// Layer normalisation: Y = (X - mean) inv_std scale + bias.
//
// mean = origin + mean of (X - origin), origin the row's first element, so that rows far from zero
// lose no digits. A slot of a row is W elements: 16 bytes of them, or 1. A thread has DEPTH slots,
// or COLUMNS = W * DEPTH elements. T is the type of X, V that of Y, scale and bias.
#pragma once
#include "algorithm/lines.cuh"

namespace cto::layer_norm_forward {

using namespace lines;

template <class T>
constexpr int SHORT_COLUMNS = SHORT_NBYTES / sizeof(T);  // elements of a short row in a thread

// The arguments of a kernel. T is the type of X, V that of Y, scale and bias.
template <class T, class V>
struct Arrays {
    using A = Acc<T>;

    const T* x;
    const V* scale;
    const V* bias;    // or null
    V* y;             // or null
    A* mean;          // or null
    A* inv_std;       // or null
    bool is_centred;  // else the mean is 0
    A epsilon;

    // The row's first element, or 0 if that is not finite.
    __device__ __forceinline__ A origin(i64 row, i64 length) const {
        if (!is_centred || length == 0) return 0;
        const A first = to_acc(x[row * length]);
        return isfinite(first) ? first : A(0);
    }
    // inv_std of a row of n elements, of_squares = sum of (x - mean)^2.
    __device__ __forceinline__ A inverse(A of_squares, A n) const {
        return rsqrt(fast_divide(of_squares, n) + epsilon);
    }
    // y = x_hat * scale + bias, for one element; start: index of its row's first element.
    __device__ __forceinline__ void store(i64 start, i64 column, A x_hat) const {
        const A of_bias = bias ? to_acc(bias[column]) : A(0);
        y[start + column] = from_acc<V>(x_hat * to_acc(scale[column]) + of_bias);
    }
    // mean[row] = row_mean, inv_std[row] = row_inv_std; nothing where the array is null.
    __device__ __forceinline__ void store_statistics(i64 row, A row_mean, A row_inv_std) const {
        if (mean) mean[row] = row_mean;
        if (inv_std) inv_std[row] = row_inv_std;
    }
};

// to[i] = from[i], i < W: scale or bias of a slot, widened. ALIGNED: `from` is a multiple of 16
// bytes.
template <class V, bool ALIGNED, int W>
__device__ __forceinline__ void load_parameters(const V* from, Acc<V> (&to)[W]) {
    if constexpr (ALIGNED) {
        vec::widen<V, /*CONSTANT=*/true>(from, to);
    } else {
#pragma unroll
        for (int i = 0; i < W; ++i) to[i] = to_acc(from[i]);
    }
}

// Mean and squares = sum of (x - mean)^2 of n elements. Merging two sets of n elements loses no
// digits:
//
//     mean = (mean_1 + mean_2) / 2    squares = squares_1 + squares_2 + (mean_2 - mean_1)^2 n / 2
//
// Without is_centred the mean is 0.
template <class A>
struct Moments {
    A n, mean, squares;

    // Becomes, in each of a row's `threads` threads, the moments of the whole row; before, n is the
    // same in all of them. threads: a power of two up to WARP, or those of the block. is_centred:
    // else means are 0, and only squares are added. per_warp: shared memory.
    __device__ __forceinline__ void join(u32 threads, bool is_centred, Moments* per_warp) {
        if (threads < WARP) {
#pragma unroll 1
            for (u32 step = 1; step < threads; step *= 2) merge_lane(step);
        } else if (is_centred) {
#pragma unroll
            for (u32 step = 1; step < WARP; step *= 2) merge_lane(step);
        } else {
#pragma unroll
            for (u32 step = 1; step < WARP; step *= 2) add_lane(step);
        }
        if (threads > WARP) join_warps(threads / WARP, per_warp);
    }

  private:
    // Merges the sets of this lane and of lane ^ step; both get the result.
    __device__ __forceinline__ void merge_lane(u32 step) {
        const A other = __shfl_xor_sync(ALL_LANES, mean, step);
        const A distance = other - mean;
        squares += distance * distance * (n / 4);  // half: the other lane adds as much
        mean = (mean + other) / 2;
        add_lane(step);
    }
    // Adds the squares of lane ^ step, which has as many elements.
    __device__ __forceinline__ void add_lane(u32 step) {
        squares += __shfl_xor_sync(ALL_LANES, squares, step);
        n *= 2;
    }
    // Merges the sets of a block's warps, which have n elements each: mean = mean of means, squares
    // = sum of (squares + n (mean of the warp - mean)^2). per_warp: shared memory.
    __device__ __forceinline__ void join_warps(u32 warps, Moments* per_warp) {
        if (threadIdx.x % WARP == 0) per_warp[threadIdx.x / WARP] = *this;
        __syncthreads();
        mean = squares = 0;
#pragma unroll 1
        for (u32 i = 0; i < warps; ++i) mean += per_warp[i].mean;
        mean = fast_divide(mean, static_cast<A>(warps));
#pragma unroll 1
        for (u32 i = 0; i < warps; ++i) {
            const A distance = per_warp[i].mean - mean;
            squares += per_warp[i].squares + distance * distance * n;
        }
    }
};

// A row that is in the registers of its threads, and its mean = origin + center: first center is 0.
template <int W, int DEPTH, class T, class V>
struct HeldRow {
    using A = Acc<T>;

    const Arrays<T, V>& arrays;
    const Line<W, DEPTH>& line;
    Reader<T, W, DEPTH> x;
    A origin, center = 0, mean;

    // Loads the thread's part of the row, `line` of arrays.x, of `length` elements.
    __device__ __forceinline__ HeldRow(const Arrays<T, V>& arrays, const Line<W, DEPTH>& line,
                                       i64 length)
        : arrays(arrays), line(line), x(line, arrays.x, from_acc<T>(A(0))) {
        x.template load</*STREAMS=*/true>(line, /*batch=*/0);
        // A full line of 2-byte elements needs no origin: a thread's sum of few of them is exact
        // enough.
        const bool has_origin = line.number >= 0 && !(line.full && sizeof(T) == 2);
        mean = origin = has_origin ? arrays.origin(line.number, length) : A(0);
    }
    // mean = origin + distance. Before the first call mean = origin.
    __device__ __forceinline__ void center_at(A distance) {
        center = distance;
        mean = origin + center;
    }
    // element - mean, subtracted in two steps to lose no digits. 2-byte types need one step: their
    // spacing is wider than the rounding error of float32.
    __device__ __forceinline__ A distance(A element) const {
        return sizeof(T) == 2 ? element - mean : element - origin - center;
    }

    // see(element - mean) for each of this thread's elements.
    template <class See>
    __device__ __forceinline__ void each(const See& see) const {
#pragma unroll
        for (int u = 0; u < DEPTH; ++u) {
            if (!line.has(0, u)) continue;
#pragma unroll
            for (int i = 0; i < W; ++i) see(distance(x.at(u, i)));
        }
        if (W > 1 && line.edge >= 0) see(distance(to_acc(x.edge)));
    }
    // y = (x - mean) * inv_std * scale + bias, for this thread's elements.
    __device__ __forceinline__ void write(A inv_std) const {
        if (!arrays.y) return;
        if (line.full || line.head == 0)
            write_slots</*ALIGNED=*/true>(inv_std);
        else
            write_slots</*ALIGNED=*/false>(inv_std);
        if (W > 1 && line.edge >= 0)
            arrays.store(line.start, line.edge, distance(to_acc(x.edge)) * inv_std);
    }

  private:
    // `write` for the elements in slots. ALIGNED: scale and bias of slots begin at multiples of 16
    // bytes.
    template <bool ALIGNED>
    __device__ __forceinline__ void write_slots(A inv_std) const {
#pragma unroll
        for (int u = 0; u < DEPTH; ++u) {
            if (!line.has(0, u)) continue;
            const i64 column = line.head + static_cast<i64>(line.slot(0, u)) * W;
            A scale[W], bias[W] = {}, values[W];
            load_parameters<V, ALIGNED>(arrays.scale + column, scale);
            if (arrays.bias) load_parameters<V, ALIGNED>(arrays.bias + column, bias);
#pragma unroll
            for (int i = 0; i < W; ++i)
                values[i] = distance(x.at(u, i)) * inv_std * scale[i] + bias[i];
            Writer<V>{arrays.y}.store(line, 0, u, values);
        }
    }
};

// Normalizes the row of this thread, `line`, of `length` elements, which its threads read once, and
// writes the outputs in `arrays`. In a full line each thread has its own mean first, and Moments
// merges them; else the row's mean is summed before the squares.
template <int W, int DEPTH, class T, class V>
__device__ __forceinline__ void normalize(const Arrays<T, V>& arrays, const Line<W, DEPTH>& line,
                                          i64 length) {
    using A = Acc<T>;
    __shared__ A per_warp[WARP];
    __shared__ Moments<A> moments_of_warp[WARP];
    const RowThreads<A> threads{line.threads, per_warp};
    HeldRow row(arrays, line, length);
    const A n = static_cast<A>(length > 0 ? length : 1);
    const A own = line.full ? static_cast<A>(W * DEPTH) : n;  // elements of the first mean
    A sum = 0, squares = 0;
    if (arrays.is_centred) {
        row.each([&](A distance) { sum += distance; });
        if (!line.full) sum = threads.sum(sum);
        row.center_at(fast_divide(sum, own));
    }
    row.each([&](A distance) { squares += distance * distance; });
    if (line.full) {
        Moments<A> moments{/*n=*/own, /*mean=*/row.center, squares};
        moments.join(line.threads, arrays.is_centred, moments_of_warp);
        row.center_at(moments.mean);
        squares = moments.squares;
    } else {
        squares = threads.sum(squares);
    }
    if (line.number < 0) return;
    const A inv_std = arrays.inverse(squares, n);
    if (line.leads()) arrays.store_statistics(line.number, row.mean, inv_std);
    row.write(inv_std);
}

// Normalizes n_rows rows of `length` elements, at most threads * COLUMNS; `threads` threads have a
// row.
template <int W, int COLUMNS, class T, class V>
__device__ __forceinline__ void hold_any_row(const Arrays<T, V>& arrays, i64 n_rows, i64 length,
                                             u32 threads) {
    normalize(arrays, row_of<W, COLUMNS / W>(n_rows, length, threads), length);
}

// Normalizes n_rows rows of `length` elements, at most threads * COLUMNS, `threads` threads a row;
// rows of exactly threads * COLUMNS by code of their own. COLUMNS 0: plans have no such rows of
// these types, and nothing is compiled.
template <int W, int COLUMNS, class T, class V>
__device__ __forceinline__ void hold_row(const Arrays<T, V>& arrays, i64 n_rows, i64 length,
                                         u32 threads) {
    if constexpr (COLUMNS == 0)
        return;
    else if (W > 1 && n_rows > 0 && length == threads * COLUMNS)
        normalize(arrays, full_row_of<W, COLUMNS / W>(n_rows, threads), length);
    else
        hold_any_row<W, COLUMNS>(arrays, n_rows, length, threads);
}

// Normalizes row number blockIdx.x, of `length` elements, too many for registers: a block has one
// row, and reads it three times.
template <class T, class V>
__device__ __forceinline__ void read_row(const Arrays<T, V>& arrays, i64 length) {
    using A = Acc<T>;
    __shared__ A per_warp[WARP];
    const RowThreads<A> threads{blockDim.x, per_warp};
    const i64 row = blockIdx.x, start = row * length;
    const A origin = arrays.origin(row, length);
    A sum = 0, squares = 0;
    if (arrays.is_centred) {
#pragma unroll 8
        for (i64 i = threadIdx.x; i < length; i += blockDim.x)
            sum += to_acc(arrays.x[start + i]) - origin;
        sum = threads.sum(sum);
    }
    const A n = static_cast<A>(length), center = fast_divide(sum, n);
#pragma unroll 8
    for (i64 i = threadIdx.x; i < length; i += blockDim.x) {
        const A distance = to_acc(arrays.x[start + i]) - origin - center;
        squares += distance * distance;
    }
    const A inv_std = arrays.inverse(threads.sum(squares), n);
    if (threadIdx.x == 0) arrays.store_statistics(row, origin + center, inv_std);
    if (!arrays.y) return;
#pragma unroll 4
    for (i64 i = threadIdx.x; i < length; i += blockDim.x)
        arrays.store(start, i, (to_acc(arrays.x[start + i]) - origin - center) * inv_std);
}

}  // namespace cto::layer_norm_forward
