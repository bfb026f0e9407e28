// SPDX-License-Identifier: MIT
// Gradients of layer normalisations: dX of every row, and sums over the rows for scale and bias.
//
//     x^ = (x - mean) inv_std, or (y - bias) / scale;  h = dY scale
//     dX = inv_std (h - (sum of h) / n - x^ (sum of h x^) / n)
#pragma once
#include "algorithm/column_reduce.cuh"
#include "algorithm/staged_rows.cuh"

namespace cto::layer_norm_gradient {

using namespace staged_rows;

constexpr int COLUMN_THREADS = 256;  // of a block that walks down columns

template <bool FROM_Y, class X, class Y>
struct Second {
    using Type = X;
};
template <class X, class Y>
struct Second<true, X, Y> {
    using Type = Y;
};

// What is read. T and V are the types of X and Y.
template <class T, class V, bool FROM_Y>
struct Inputs {
    using A = Acc<T>;
    using X = typename Second<FROM_Y, T, V>::Type;

    const V* dy;
    const X* x;  // or Y
    const V* scale;
    const V* bias;  // of x^ from Y
    const A* mean;  // null for x^ from Y, and where rows are not centred
    const A* inv_std;

    __device__ bool is_centred() const { return FROM_Y || mean; }
};

template <class A>
struct Statistics {
    A mean = 0, inv_std = 0;

    template <class In>
    static __device__ __forceinline__ Statistics of(const In& in, i64 row, i64 count) {
        if (row >= count) return {};
        return {in.mean ? in.mean[row] : A(0), in.inv_std[row]};
    }
};

// The means over a row of h and of h x^.
template <class A>
struct Means {
    A of_h, of_product;

    // 0 of rows of one element, as long as h is rounded before it comes here.
    __device__ A gradient(A inv_std, A h, A x_hat) const {
        return inv_std * fma(-of_product, x_hat, h - of_h);
    }
};

__device__ __forceinline__ float times(float x, float y) { return __fmul_rn(x, y); }
__device__ __forceinline__ double times(double x, double y) { return __dmul_rn(x, y); }
__device__ __forceinline__ float quotient(float x, float y) { return fast_divide(x, y); }
__device__ __forceinline__ double quotient(double x, double y) { return x / y; }

// One element.
template <class A, bool FROM_Y>
struct Element {
    A dy, scale;
    A h, distance;  // x - mean, or y - bias

    // A scale of 0 tells nothing of x^, which counts as 0 then.
    __device__ __forceinline__ Element(A dy, A x, A scale, A bias, A mean)
        : dy(dy), scale(scale), h(times(dy, scale)) {
        distance = FROM_Y ? (scale == 0 ? A(0) : x - bias) : x - mean;
    }
    // Adds h, and h x^ but for inv_std where x^ has it.
    __device__ __forceinline__ void add_to(A (&sums)[2]) const {
        sums[0] += h;
        // A sum that nearly cancels has the same bits wherever it is computed, emulated or not.
        if constexpr (FROM_Y)
            sums[1] += times(dy, distance);
        else
            sums[1] = fma(h, distance, sums[1]);
    }
    __device__ A x_hat(A inv_std) const {
        if constexpr (!FROM_Y) return distance * inv_std;
        return scale == 0 ? A(0) : quotient(distance, scale);
    }
};

template <class A, bool FROM_Y>
__device__ __forceinline__ Means<A> means_of(const A (&sums)[2], A inv_std, bool is_centred,
                                             A inverse_length) {
    const A of_product = FROM_Y ? sums[1] : sums[1] * inv_std;
    return {is_centred ? sums[0] * inverse_length : A(0), of_product * inverse_length};
}

// ---- rows that are held -------------------------------------------------------------------------

// The elements of one slot.
template <class A, bool FROM_Y, int W>
struct Slot {
    A dy[W], x[W], scale[W], bias[W];

    template <class In, class DY, class X>
    __device__ __forceinline__ Slot(const Walk<W>& walk, int u, const In& in, const DY& all_dy,
                                    const X& all_x) {
        all_dy.read(walk, u, dy);
        all_x.read(walk, u, x);
        const i64 column = static_cast<i64>(walk.slot(u)) * W;
        vec::widen<typename DY::Type>(in.scale + column, scale);
        if constexpr (FROM_Y) vec::widen<typename DY::Type>(in.bias + column, bias);
    }
    __device__ __forceinline__ Element<A, FROM_Y> at(int i, A mean) const {
        return {dy[i], x[i], scale[i], FROM_Y ? bias[i] : A(0), mean};
    }
};

// dX, and the sums over the rows that this block, or this warp, walks through.
template <int W, class T, class V, bool FROM_Y>
__device__ __forceinline__ void walk_rows(const Inputs<T, V, FROM_Y>& in, T* dx, Acc<T>* scale_sums,
                                          Acc<T>* bias_sums, const Rows& rows, u8* memory) {
    using A = Acc<T>;
    constexpr int D = DEPTH<A, W>, UNROLL = W == 8 ? 1 : W == 1 ? 4 : 2;
    __shared__ A of_warp[2][2][WARP];
    RowSums<A, 2> sum_row{of_warp, static_cast<u32>(rows.threads)};
    Walk<W> walk(rows);
    u8* shared = memory;
    const Staged<V, W> dy(in.dy, walk, shared);
    const Staged<typename Inputs<T, V, FROM_Y>::X, W> x(in.x, walk, shared);
    const A inverse_length = 1 / static_cast<A>(rows.length);
    Vec<A, W> of_scale[D] = {}, of_bias[D] = {};

    start_first<D>(walk, dy, x);
    auto next = Statistics<A>::of(in, walk.row, rows.count);
#pragma unroll 1
    for (; walk.goes_on(); leave(walk)) {
        const auto row = next;
        next = Statistics<A>::of(in, walk.row + walk.step(), rows.count);
        const i32 end = walk.end_of(walk.row);
        arrive(walk, dy, x);
        A sums[2] = {};
#pragma unroll UNROLL
        for (int u = 0; u < D; ++u) {
            if (walk.slot(u) >= end) break;
            const Slot<A, FROM_Y, W> slot(walk, u, in, dy, x);
            A of_slot[2] = {};  // shorter chains of additions
#pragma unroll
            for (int i = 0; i < W; ++i) slot.at(i, row.mean).add_to(of_slot);
            sums[0] += of_slot[0];
            sums[1] += of_slot[1];
        }
        sum_row(sums);
        const auto of_row = means_of<A, FROM_Y>(sums, row.inv_std, in.is_centred(), inverse_length);
#pragma unroll
        for (int u = 0; u < D; ++u) {
            if (walk.slot(u) >= end) break;
            const Slot<A, FROM_Y, W> slot(walk, u, in, dy, x);
            replace(walk, u, dy, x);
            A values[W];
#pragma unroll
            for (int i = 0; i < W; ++i) {
                const auto element = slot.at(i, row.mean);
                const A x_hat = element.x_hat(row.inv_std);
                values[i] = of_row.gradient(row.inv_std, element.h, x_hat);
                of_scale[u].at[i] += element.dy * x_hat;
                of_bias[u].at[i] += element.dy;
            }
            vec::store_streaming(reinterpret_cast<Vec<T, W>*>(dx + walk.start(walk.row, u)),
                                 vec::from_acc<T>(values));
        }
    }
    store_column_sums(walk, of_scale, scale_sums, memory);
    store_column_sums(walk, of_bias, bias_sums, memory);
}

// ---- longer rows --------------------------------------------------------------------------------

// The means of a row, by a block.
template <class T, class V, bool FROM_Y>
__device__ __forceinline__ void sum_long_row(const Inputs<T, V, FROM_Y>& in, i64 length,
                                             Acc<T>* means) {
    using A = Acc<T>;
    __shared__ A of_warp[2][2][WARP];
    const i64 row = blockIdx.x;
    const auto own = Statistics<A>::of(in, row, gridDim.x);
    A sums[2] = {};
#pragma unroll 4
    for (i64 column = threadIdx.x; column < length; column += blockDim.x) {
        const i64 i = row * length + column;
        const Element<A, FROM_Y> element(to_acc(in.dy[i]), to_acc(in.x[i]),
                                         to_acc(in.scale[column]),
                                         FROM_Y ? to_acc(in.bias[column]) : A(0), own.mean);
        element.add_to(sums);
    }
    RowSums<A, 2>{of_warp, blockDim.x}(sums);
    if (threadIdx.x > 0) return;
    const auto of_row =
        means_of<A, FROM_Y>(sums, own.inv_std, in.is_centred(), 1 / static_cast<A>(length));
    means[2 * row] = of_row.of_h;
    means[2 * row + 1] = of_row.of_product;
}

// Some rows of one column in each thread.
template <class T, class V, bool FROM_Y>
struct Column {
    using A = Acc<T>;
    static constexpr int UNROLL = 4;

    const Inputs<T, V, FROM_Y>& in;
    const A* means;  // null without dX
    T* dx;
    i64 column, length;
    A scale, bias;
    A of_scale = 0, of_bias = 0;

    __device__ __forceinline__ Column(const Inputs<T, V, FROM_Y>& in, const A* means, T* dx,
                                      i64 column, i64 length)
        : in(in), means(means), dx(dx), column(column), length(length) {
        scale = to_acc(in.scale[column]);
        bias = FROM_Y ? to_acc(in.bias[column]) : A(0);
    }
    // n rows from `row` on, blockDim.y apart.
    __device__ __forceinline__ void add(i64 row, i32 n) {
#pragma unroll 1
        for (; n > 0; n -= UNROLL, row += UNROLL * blockDim.y) {
            A dy[UNROLL], x[UNROLL];
            Statistics<A> statistics[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const i64 other = row + u * blockDim.y;
                if (u >= n) continue;
                dy[u] = to_acc(in.dy[other * length + column]);
                if (!in.x) continue;
                x[u] = to_acc(in.x[other * length + column]);
                statistics[u] = Statistics<A>::of(in, other, other + 1);
            }
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                if (u >= n) continue;
                of_bias += dy[u];
                if (in.x) add_one(row + u * blockDim.y, dy[u], x[u], statistics[u]);
            }
        }
    }

  private:
    __device__ __forceinline__ void add_one(i64 row, A dy, A x, const Statistics<A>& own) {
        const Element<A, FROM_Y> element(dy, x, scale, bias, own.mean);
        const A x_hat = element.x_hat(own.inv_std);
        of_scale += dy * x_hat;
        if (!means) return;
        const Means<A> of_row{means[2 * row], means[2 * row + 1]};
        const A value = of_row.gradient(own.inv_std, element.h, x_hat);
        dx[row * length + column] = from_acc<T>(value);
    }
};

// A tile of columns, in one of the parts that the rows are divided into; grid (tiles, parts).
template <class T, class V, bool FROM_Y>
__device__ __forceinline__ void walk_columns(const Inputs<T, V, FROM_Y>& in, const Acc<T>* means,
                                             T* dx, Acc<T>* scale_sums, Acc<T>* bias_sums,
                                             i64 count, i64 length, i64 rows_of_part) {
    using A = Acc<T>;
    __shared__ Vec<A, 1> of_thread[COLUMN_THREADS];
    const i64 column = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    const i64 first = blockIdx.y * rows_of_part;
    const i64 n = first + rows_of_part < count ? rows_of_part : count - first;
    column_reduce::Columns<A, 1, 1> scale, bias;
    if (column < length) {
        Column<T, V, FROM_Y> own(in, means, dx, column, length);
        own.add(first + threadIdx.y, column_reduce::rows_of(n - threadIdx.y));
        scale.sum.at[0] = own.of_scale;
        bias.sum.at[0] = own.of_bias;
    }
    scale.sum_over_y(of_thread);
    bias.sum_over_y(of_thread);
    if (threadIdx.y > 0 || column >= length) return;
    if (scale_sums) scale.store(scale_sums + blockIdx.y * length + column);
    if (bias_sums) bias.store(bias_sums + blockIdx.y * length + column);
}

// ---- the second stage of sums over rows ---------------------------------------------------------

// The sum of `n` lines of sums, rounded; 0 of none.
template <class V, class A>
__device__ __forceinline__ void sum_lines(const A* sums, V* total, i64 n, i64 length) {
    __shared__ Vec<A, 1> of_thread[MAX_THREADS];
    const i64 column = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    column_reduce::Columns<A, 1, 8> columns;
    if (column < length)
        columns.add(sums + threadIdx.y * length + column, column_reduce::rows_of(n - threadIdx.y),
                    blockDim.y * length);
    columns.sum_over_y(of_thread);
    if (threadIdx.y == 0 && column < length) columns.store(total + column);
}

}  // namespace cto::layer_norm_gradient
