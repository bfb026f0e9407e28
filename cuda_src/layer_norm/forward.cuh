// SPDX-License-Identifier: MIT
// Layer normalisation: Y = (X - mean) inv_std scale + bias.
//
// A row's mean is that of its differences to its first element: rows far from zero lose no digits.
#pragma once
#include "algorithm/lines.cuh"

namespace cto::layer_norm_forward {

using namespace lines;

template <class T>
constexpr int SHORT_COLUMNS = SHORT_NBYTES / sizeof(T);  // that a thread holds of a short row

template <class T, class V>
struct Arrays {
    using A = Acc<T>;

    const T* x;
    const V* scale;
    const V* bias;  // or null
    V* y;           // or null
    A* mean;        // or null
    A* inv_std;     // or null
    bool is_centred;
    A epsilon;

    // The origin of a row's elements: its first one, if it is finite.
    __device__ __forceinline__ A origin(i64 row, i64 length) const {
        if (!is_centred || length == 0) return 0;
        const A first = to_acc(x[row * length]);
        return isfinite(first) ? first : A(0);
    }
    __device__ __forceinline__ A inverse(A of_squares, A n) const {
        return rsqrt(fast_divide(of_squares, n) + epsilon);
    }
    // Y of one element.
    __device__ __forceinline__ void store(i64 start, i64 column, A x_hat) const {
        const A of_bias = bias ? to_acc(bias[column]) : A(0);
        y[start + column] = from_acc<V>(x_hat * to_acc(scale[column]) + of_bias);
    }
    __device__ __forceinline__ void store_statistics(i64 row, A row_mean, A row_inv_std) const {
        if (mean) mean[row] = row_mean;
        if (inv_std) inv_std[row] = row_inv_std;
    }
};

// Scale or bias of a slot, which lies at a multiple of 16 bytes if it is ALIGNED.
template <class V, bool ALIGNED, int W>
__device__ __forceinline__ void load_parameters(const V* from, Acc<V> (&to)[W]) {
    if constexpr (ALIGNED) {
        vec::widen<V, true>(from, to);
    } else {
#pragma unroll
        for (int i = 0; i < W; ++i) to[i] = to_acc(from[i]);
    }
}

// A row's mean and the sum of squared distances from it, put together from those of its threads, of n
// elements each. Two sets of n make one of 2 n, and no digits are lost:
//
//     mean = (mean_1 + mean_2) / 2    squares = squares_1 + squares_2 + (mean_2 - mean_1)^2 n / 2
//
// The mean of rows that are not centred is taken for 0.
template <class A>
struct Moments {
    A n, mean, squares;

    __device__ __forceinline__ void join(u32 threads, bool is_centred, Moments* of_warp) {
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
        if (threads > WARP) join_warps(threads / WARP, of_warp);
    }

  private:
    // Merges two lanes' sets; both have the result.
    __device__ __forceinline__ void merge_lane(u32 step) {
        const A other = __shfl_xor_sync(ALL_LANES, mean, step);
        const A distance = other - mean;
        squares += distance * distance * (n / 4);  // so does the other lane
        mean = (mean + other) / 2;
        add_lane(step);
    }
    __device__ __forceinline__ void add_lane(u32 step) {
        squares += __shfl_xor_sync(ALL_LANES, squares, step);
        n *= 2;
    }
    __device__ __forceinline__ void join_warps(u32 warps, Moments* of_warp) {
        if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = *this;
        __syncthreads();
        mean = squares = 0;
#pragma unroll 1
        for (u32 i = 0; i < warps; ++i) mean += of_warp[i].mean;
        mean = fast_divide(mean, static_cast<A>(warps));
#pragma unroll 1
        for (u32 i = 0; i < warps; ++i) {
            const A distance = of_warp[i].mean - mean;
            squares += of_warp[i].squares + distance * distance * n;
        }
    }
};

// A row that its threads hold.
template <int W, int DEPTH, class T, class V>
struct HeldRow {
    using A = Acc<T>;

    const Arrays<T, V>& arrays;
    const Line<W, DEPTH>& line;
    Reader<T, W, DEPTH> x;
    A origin, center = 0, mean;

    __device__ __forceinline__ HeldRow(const Arrays<T, V>& arrays, const Line<W, DEPTH>& line,
                                       i64 length)
        : arrays(arrays), line(line), x(line, arrays.x, from_acc<T>(A(0))) {
        x.template load<true>(line, 0);
        // A full line of 2-byte elements needs no origin: a thread adds up few, exactly enough.
        const bool has_origin = line.number >= 0 && !(line.full && sizeof(T) == 2);
        mean = origin = has_origin ? arrays.origin(line.number, length) : A(0);
    }
    // From now on distances are to the mean.
    __device__ __forceinline__ void center_at(A distance) {
        center = distance;
        mean = origin + center;
    }
    // element - mean; in two steps, so that no digits are lost, but for 2-byte types, whose neighbouring
    // numbers lie further apart than float32 rounds.
    __device__ __forceinline__ A distance(A element) const {
        return sizeof(T) == 2 ? element - mean : element - origin - center;
    }

    // Shows `see` how far this thread's elements are from the centre.
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
    __device__ __forceinline__ void write(A inv_std) const {
        if (!arrays.y) return;
        if (line.full || line.head == 0)
            write_slots<true>(inv_std);
        else
            write_slots<false>(inv_std);
        if (W > 1 && line.edge >= 0)
            arrays.store(line.start, line.edge, distance(to_acc(x.edge)) * inv_std);
    }

  private:
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

template <int W, int DEPTH, class T, class V>
__device__ __forceinline__ void normalize(const Arrays<T, V>& arrays, const Line<W, DEPTH>& line,
                                          i64 length) {
    using A = Acc<T>;
    __shared__ A of_warp[WARP];
    __shared__ Moments<A> moments_of_warp[WARP];
    const RowThreads<A> threads{line.threads, of_warp};
    HeldRow row(arrays, line, length);
    const A n = static_cast<A>(length > 0 ? length : 1);
    const A own = line.full ? static_cast<A>(W * DEPTH) : n;  // elements that the mean is of
    A sum = 0, squares = 0;
    if (arrays.is_centred) {
        row.each([&](A distance) { sum += distance; });
        if (!line.full) sum = threads.sum(sum);
        row.center_at(fast_divide(sum, own));
    }
    row.each([&](A distance) { squares += distance * distance; });
    if (line.full) {
        Moments<A> moments{own, row.center, squares};
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

template <int W, int COLUMNS, class T, class V>
__device__ __forceinline__ void hold_any_row(const Arrays<T, V>& arrays, i64 n_rows, i64 length,
                                             u32 threads) {
    normalize(arrays, row_of<W, COLUMNS / W>(n_rows, length, threads), length);
}

// Nothing where a type has no such rows.
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

// A longer row, by a block: it is read three times.
template <class T, class V>
__device__ __forceinline__ void read_row(const Arrays<T, V>& arrays, i64 length) {
    using A = Acc<T>;
    __shared__ A of_warp[WARP];
    const RowThreads<A> threads{blockDim.x, of_warp};
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
