// SPDX-License-Identifier: MIT
// Rows that fill what their threads hold, without a mean and a bias: Y = X inv_std scale.
#pragma once
#include "core/vec.cuh"

namespace cto::full_rows {

// The sum over a row's threads: a part of a warp, or whole warps from `first` on. of_warp is in shared
// memory.
template <class A>
__device__ __forceinline__ A sum_of_row(A own, u32 threads, u32 first, A* of_warp) {
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
    for (u32 i = 0; i < threads / WARP; ++i) sum += of_warp[first + i];
    return sum;
}

// Where a block has several rows, `threads` of each are a power of two.
template <int W, int COLUMNS, class T, class V>
__device__ __forceinline__ void scale_rows(const T* x, const V* scale, V* y, Acc<T>* inv_std,
                                           Acc<T> epsilon, i64 n_rows, u32 threads) {
    using A = Acc<T>;
    constexpr int DEPTH = COLUMNS / W;
    __shared__ A of_warp[WARP];
    const bool has_several = threads < blockDim.x;
    const u32 shift = has_several ? 31 - __clz(threads) : 0;
    const u32 group = has_several ? threadIdx.x >> shift : 0;
    const u32 thread = has_several ? threadIdx.x & (threads - 1) : threadIdx.x;
    const i64 row = static_cast<i64>(blockIdx.x) * (has_several ? blockDim.x >> shift : 1) + group;
    const bool exists = row < n_rows;
    const i64 first = (exists ? row : 0) * (threads * COLUMNS) + thread * W;
    const u32 step = threads * W;  // elements from a thread's slot to its next
    vec::Elements<T, W> own[DEPTH];
#pragma unroll
    for (int u = 0; u < DEPTH; ++u) own[u].load(x + first + u * step);
#ifndef __CUDA_CPU__
    asm volatile("" ::: "memory");  // all of them before the first is waited for
#endif
    A squares = 0;
#pragma unroll
    for (int u = 0; u < DEPTH; ++u)
#pragma unroll
        for (int i = 0; i < W; ++i) squares += own[u].at(i) * own[u].at(i);
    squares = sum_of_row(squares, threads, group * (threads / WARP), of_warp);
    if (!exists) return;
    const A n = static_cast<A>(threads * COLUMNS);
    const A factor = rsqrt(fast_divide(squares, n) + epsilon);
    if (thread == 0 && inv_std) inv_std[row] = factor;
#pragma unroll
    for (int u = 0; u < DEPTH; ++u) {
        vec::Elements<V, W> of_column;
        of_column.load(scale + (thread * W + u * step));
        A values[W];
#pragma unroll
        for (int i = 0; i < W; ++i) values[i] = own[u].at(i) * factor * of_column.at(i) + A(0);
        const vec::Vec<V, W> rounded = vec::from_acc<V>(values);
        *reinterpret_cast<vec::Vec<V, W>*>(y + first + u * step) = rounded;
    }
}

}  // namespace cto::full_rows
