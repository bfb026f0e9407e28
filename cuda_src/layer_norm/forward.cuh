// SPDX-License-Identifier: MIT
// Layer normalisation: Y = (X - mean) inv_std scale + bias.
//
// A row's mean is that of its differences to its first element: rows far from zero lose no digits.
#pragma once
#include "algorithm/staged_rows.cuh"

namespace cto::layer_norm_forward {

using namespace staged_rows;

template <class T, class V>
struct Arrays {
    using A = Acc<T>;

    const T* x;
    const V* scale;
    const V* bias;  // or null
    V* y;
    A* mean;     // or null
    A* inv_std;  // or null
    bool is_centred;
    A epsilon;

    // What a row's elements are taken relative to: its first one, if it is finite.
    __device__ __forceinline__ A origin(i64 row, i64 count, i64 length) const {
        if (!is_centred || row >= count || length == 0) return 0;
        const A first = to_acc(x[row * length]);
        return isfinite(first) ? first : A(0);
    }
    __device__ __forceinline__ A inverse(A of_squares, i64 length) const {
        return rsqrt(of_squares / static_cast<A>(length > 0 ? length : 1) + epsilon);
    }
    __device__ __forceinline__ void store_statistics(i64 row, A row_mean, A row_inv_std) const {
        if (mean) mean[row] = row_mean;
        if (inv_std) inv_std[row] = row_inv_std;
    }
};

// Rows that are held.
template <int W, class T, class V>
__device__ __forceinline__ void walk_rows(const Arrays<T, V>& arrays, const Rows& rows,
                                          u8* shared) {
    using A = Acc<T>;
    constexpr int D = DEPTH<A, W>, UNROLL = W > 1 ? 1 : 4;
    __shared__ A of_warp[2][1][WARP];
    RowSums<A, 1> sum_row{of_warp, static_cast<u32>(rows.threads)};
    Walk<W> walk(rows);
    const Staged<T, W> x(arrays.x, walk, shared);
    const A n = static_cast<A>(rows.length > 0 ? rows.length : 1);

    start_first<D>(walk, x);
    A next = arrays.origin(walk.row, rows.count, rows.length);
#pragma unroll 1
    for (; walk.goes_on(); leave(walk)) {
        const A origin = next;
        next = arrays.origin(walk.row + walk.step(), rows.count, rows.length);
        const i32 end = walk.end_of(walk.row);
        arrive(walk, x);
        A sum[1] = {}, squares[1] = {};
        if (arrays.is_centred) {
#pragma unroll UNROLL
            for (int u = 0; u < D; ++u) {
                if (walk.slot(u) >= end) break;
                A of_slot[W];
                x.read(walk, u, of_slot);
#pragma unroll
                for (int i = 0; i < W; ++i) sum[0] += of_slot[i] - origin;
            }
            sum_row(sum);
        }
        const A center = sum[0] / n;
#pragma unroll UNROLL
        for (int u = 0; u < D; ++u) {
            if (walk.slot(u) >= end) break;
            A of_slot[W];
            x.read(walk, u, of_slot);
#pragma unroll
            for (int i = 0; i < W; ++i) {
                const A distance = of_slot[i] - origin - center;
                squares[0] += distance * distance;
            }
        }
        sum_row(squares);
        const A inv_std = arrays.inverse(squares[0], rows.length);
        if (walk.thread == 0 && walk.row < rows.count)
            arrays.store_statistics(walk.row, origin + center, inv_std);
#pragma unroll UNROLL
        for (int u = 0; u < D; ++u) {
            if (walk.slot(u) >= end) break;
            A of_slot[W];
            x.read(walk, u, of_slot);
            replace(walk, u, x);
            const i64 column = static_cast<i64>(walk.slot(u)) * W;
            A scale[W], bias[W] = {}, values[W];
            vec::widen<V>(arrays.scale + column, scale);
            if (arrays.bias) vec::widen<V>(arrays.bias + column, bias);
#pragma unroll
            for (int i = 0; i < W; ++i)
                values[i] = (of_slot[i] - origin - center) * inv_std * scale[i] + bias[i];
            vec::store_streaming(reinterpret_cast<Vec<V, W>*>(arrays.y + walk.start(walk.row, u)),
                                 vec::from_acc<V>(values));
        }
    }
}

// A longer row, by a block: it is read three times.
template <class T, class V>
__device__ __forceinline__ void read_row(const Arrays<T, V>& arrays, i64 length) {
    using A = Acc<T>;
    __shared__ A of_warp[2][1][WARP];
    RowSums<A, 1> sum_row{of_warp, blockDim.x};
    const i64 row = blockIdx.x, start = row * length;
    const A origin = arrays.origin(row, gridDim.x, length);
    A sum[1] = {}, squares[1] = {};
#pragma unroll 8
    for (i64 i = threadIdx.x; i < length; i += blockDim.x)
        sum[0] += to_acc(arrays.x[start + i]) - origin;
    sum_row(sum);
    const A center = arrays.is_centred ? sum[0] / static_cast<A>(length) : A(0);
#pragma unroll 8
    for (i64 i = threadIdx.x; i < length; i += blockDim.x) {
        const A distance = to_acc(arrays.x[start + i]) - origin - center;
        squares[0] += distance * distance;
    }
    sum_row(squares);
    const A inv_std = arrays.inverse(squares[0], length);
    if (threadIdx.x == 0) arrays.store_statistics(row, origin + center, inv_std);
#pragma unroll 4
    for (i64 i = threadIdx.x; i < length; i += blockDim.x) {
        const A distance = to_acc(arrays.x[start + i]) - origin - center;
        const A bias = arrays.bias ? to_acc(arrays.bias[i]) : A(0);
        arrays.y[start + i] = from_acc<V>(distance * inv_std * to_acc(arrays.scale[i]) + bias);
    }
}

}  // namespace cto::layer_norm_forward
