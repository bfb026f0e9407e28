// SPDX-License-Identifier: MIT
// Rows that fill what their threads hold, without a mean and a bias: Y = X inv_std scale.
//
// Scales are asked for together with the row, so that nothing is waited for behind the sum. A block
// stays for more rows, whose elements are on their way while it computes.
#pragma once
#include "layer_norm/forward.cuh"

namespace cto::layer_norm_forward {

// The sum over a row's threads. of_warp is in shared memory, and another one in the next sum.
template <class A>
__device__ __forceinline__ A sum_of_row(A own, u32 threads, A* of_warp) {
    if (threads < WARP) {
#pragma unroll 1
        for (u32 step = 1; step < threads; step *= 2) own += __shfl_xor_sync(ALL_LANES, own, step);
        return own;
    }
#pragma unroll
    for (u32 step = 1; step < WARP; step *= 2) own += __shfl_xor_sync(ALL_LANES, own, step);
    if (threads == WARP) return own;
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = own;
    __syncthreads();
    A sum = 0;
#pragma unroll 4
    for (u32 i = 0; i < threads / WARP; ++i) sum += of_warp[i];
    return sum;
}

template <int W, int COLUMNS, class T, class V>
__device__ __forceinline__ void scale_full_rows(const Arrays<T, V>& arrays, i64 n_rows,
                                                u32 threads) {
    using A = Acc<T>;
    constexpr int DEPTH = COLUMNS / W;
    __shared__ A of_warp[WARP];
    const Line<W, DEPTH> line = full_row_of<W, DEPTH>(n_rows, threads);
    Line<W, DEPTH> columns = line;
    columns.start = 0;
    Reader<T, W, DEPTH> x(line, arrays.x, from_acc<T>(A(0)));
    Reader<V, W, DEPTH> scale(columns, arrays.scale, from_acc<V>(A(0)));
    x.template load<true>(line, 0);
    scale.load(columns, 0);
#ifndef __CUDA_CPU__
    asm volatile("" ::: "memory");  // all of them before the first is waited for
#endif
    A squares = 0;
#pragma unroll
    for (int u = 0; u < DEPTH; ++u)
#pragma unroll
        for (int i = 0; i < W; ++i) squares += x.at(u, i) * x.at(u, i);
    squares = sum_of_row(squares, threads, of_warp);
    x.renew(line.zero());
    if (line.number < 0) return;
    const A inv_std = arrays.inverse(squares, static_cast<A>(threads * COLUMNS));
    if (line.leads()) arrays.store_statistics(line.number, A(0), inv_std);
#pragma unroll
    for (int u = 0; u < DEPTH; ++u) {
        A values[W];
#pragma unroll
        for (int i = 0; i < W; ++i) values[i] = x.at(u, i) * inv_std * scale.at(u, i) + A(0);
        Writer<V>{arrays.y}.store(line, 0, u, values);
    }
}

}  // namespace cto::layer_norm_forward
