// SPDX-License-Identifier: MIT
// Bundles of WIDTH neighbouring lines with stride > 1 (see lines.cuh).
//
// A slot of a bundle is a vector: one element of each of its lines. Threads along x have neighbouring
// bundles; those along y share one bundle, all of which is in their registers.
#pragma once
#include "algorithm/lines.cuh"

namespace cto::bundles {

using lines::Line;
using lines::Max;
using lines::Sum;

// values[i] = maximum or sum of values[i] over the threads of a bundle, in each of them; i is the line.
template <class A, int WIDTH>
struct BundleThreads {
    using Values = vec::Vec<A, WIDTH>;
    Values* of_thread;  // shared memory, an entry for each thread of the block

    __device__ __forceinline__ void max(A (&values)[WIDTH]) const { over<Max>(values); }
    __device__ __forceinline__ void sum(A (&values)[WIDTH]) const { over<Sum>(values); }

  private:
    template <class How>
    __device__ __forceinline__ void over(A (&values)[WIDTH]) const {
        __syncthreads();
        Values& own = of_thread[threadIdx.y * blockDim.x + threadIdx.x];
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) own.at[i] = values[i];
        __syncthreads();
#pragma unroll 1
        for (u32 y = 0; y < blockDim.y; ++y) {
            const Values of_y = of_thread[y * blockDim.x + threadIdx.x];
#pragma unroll
            for (int i = 0; i < WIDTH; ++i)
                values[i] = y == 0 ? of_y.at[i] : How::of(values[i], of_y.at[i]);
        }
    }
};

// This thread's part of its bundle; `number` and `start` are those of the first line.
template <int WIDTH, int DEPTH>
__device__ __forceinline__ Line<WIDTH, DEPTH> bundle_of(i64 length, i64 stride) {
    const u32 n_tiles = static_cast<u32>((stride / WIDTH + blockDim.x - 1) / blockDim.x);
    const i64 outer = blockIdx.x / n_tiles;
    const i64 column = (static_cast<i64>(blockIdx.x % n_tiles) * blockDim.x + threadIdx.x) * WIDTH;
    if (column >= stride) return {-1, 0, stride, stride, -1, 0, threadIdx.y, blockDim.y, 0};
    const i64 start = outer * length * stride + column;
    const i32 n_slots = static_cast<i32>(length);
    return {
        outer * stride + column, start, stride, stride, -1, n_slots, threadIdx.y, blockDim.y, 0};
}

}  // namespace cto::bundles
