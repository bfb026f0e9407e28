// SPDX-License-Identifier: MIT
// sum[column] = sum over rows of a matrix, in a fixed order. A thread sums N neighbouring columns
// of every blockDim.y-th row; then the threads of a block with the same columns add their sums.
#pragma once
#include "core/vec.cuh"

namespace cto::column_reduce {

using vec::Vec;

// ceil(n / blockDim.y): the rows that a thread sums, as it takes every blockDim.y-th of the n <
// 2^31 rows from its first one to the end of the matrix. 0 if n <= 0.
__device__ __forceinline__ i32 rows_of(i64 n) {
    return n <= 0 ? 0 : (static_cast<u32>(n) + blockDim.y - 1) / blockDim.y;
}

// The sums of one thread's N columns in type A; DEPTH rows are loaded together.
template <class A, int N, int DEPTH>
struct Columns {
    Vec<A, N> sum{};

    // sum[i] += x[i], i < N.
    template <class E>
    __device__ __forceinline__ void accumulate(const Vec<E, N>& x) {
#pragma unroll
        for (int i = 0; i < N; ++i) sum.at[i] += to_acc(x.at[i]);
    }

    // Adds n rows, N elements of each: row k's are at x + k * pitch, pitch in elements.
    template <class E>
    __device__ __forceinline__ void add(const E* x, i32 n, i64 pitch) {
#pragma unroll 1
        for (; n > 0; n -= DEPTH, x += DEPTH * pitch) {
            Vec<E, N> loaded[DEPTH];
#pragma unroll
            for (int u = 0; u < DEPTH; ++u)
                if (u < n) loaded[u] = *reinterpret_cast<const Vec<E, N>*>(x + u * pitch);
#pragma unroll
            for (int u = 0; u < DEPTH; ++u)
                if (u < n) accumulate(loaded[u]);
        }
    }

    // Adds the sums of the threads that differ in threadIdx.y only; the result is in threadIdx.y ==
    // 0. per_thread: shared memory, an entry for each thread of the block. In each round, y < half
    // adds the sum of y + half; barriers lie before and after the write that others read.
    __device__ __forceinline__ void sum_over_y(Vec<A, N>* per_thread) {
        const u32 i = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
        u32 half = 1;
        while (half < blockDim.y) half *= 2;  // the power of two from blockDim.y on
        for (half /= 2; half > 0; half /= 2) {
            __syncthreads();
            per_thread[i] = sum;
            __syncthreads();
            if (threadIdx.y < half && threadIdx.y + half < blockDim.y)
                accumulate(per_thread[i + half * blockDim.x]);
        }
    }

    // to[i] = sum[i] rounded to E, i < N.
    template <class E>
    __device__ __forceinline__ void store(E* to) const {
        *reinterpret_cast<Vec<E, N>*>(to) = vec::from_acc<E>(sum.at);
    }
};

}  // namespace cto::column_reduce
