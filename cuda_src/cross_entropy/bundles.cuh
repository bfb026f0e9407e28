// SPDX-License-Identifier: MIT
// Bundles of WIDTH neighbouring lines of an array (n_outer, length, stride) with stride > 1; a line
// is `length` elements, `stride` apart (algorithm/lines.cuh).
//
// A slot of a bundle is a vector: element j of each of its WIDTH lines, which are neighbours in
// memory. Threads along x have neighbouring bundles; those along y share one bundle, slot j in the
// registers of thread y = j % blockDim.y, so that it is read once.
#pragma once
#include "algorithm/lines.cuh"

namespace cto::bundles {

using lines::Line;
using lines::Max;
using lines::Sum;

// Reductions over the threads of a bundle, those with the same threadIdx.x: max and sum replace
// values[i], i < WIDTH the line in the bundle, by the maximum or sum of these threads' values[i],
// in each of them. All threads of the block call them.
template <class A, int WIDTH>
struct BundleThreads {
    using Values = vec::Vec<A, WIDTH>;
    Values* of_thread;  // shared memory, an entry for each thread of the block

    __device__ __forceinline__ void max(A (&values)[WIDTH]) const { over<Max>(values); }
    __device__ __forceinline__ void sum(A (&values)[WIDTH]) const { over<Sum>(values); }

  private:
    // values[i] = values[i] of the bundle's threads y = 0, 1, ..., combined by How::of in that
    // order.
    template <class How>
    __device__ __forceinline__ void over(A (&values)[WIDTH]) const {
        __syncthreads();  // the values of the call before have been read
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

// This thread's part of its bundle, as a Line of vectors: `number` and `start` are those of the
// bundle's first line, slot j is element j of all its lines. number is -1 for threads beyond the
// last bundle. DEPTH: slots of a thread in registers at a time, a batch. length: elements of a
// line; stride: from one of them to the next, a multiple of WIDTH. A block has blockDim.x
// neighbouring bundles of one outer index, which has n_tiles blocks.
template <int WIDTH, int DEPTH>
__device__ __forceinline__ Line<WIDTH, DEPTH> bundle_of(i64 length, i64 stride) {
    const u32 n_tiles = static_cast<u32>((stride / WIDTH + blockDim.x - 1) / blockDim.x);
    const i64 outer = blockIdx.x / n_tiles;
    const i64 column = (static_cast<i64>(blockIdx.x % n_tiles) * blockDim.x + threadIdx.x) * WIDTH;
    // Fields: number, start, stride, pitch, edge (-1: none), n_slots, thread, threads, head.
    if (column >= stride) return {-1, 0, stride, stride, -1, 0, threadIdx.y, blockDim.y, 0};
    const i64 start = outer * length * stride + column;
    const i32 n_slots = static_cast<i32>(length);
    return {
        outer * stride + column, start, stride, stride, -1, n_slots, threadIdx.y, blockDim.y, 0};
}

}  // namespace cto::bundles
