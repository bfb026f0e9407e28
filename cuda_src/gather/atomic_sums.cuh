// SPDX-License-Identifier: MIT
// Sums by atomic additions: sums is dX, or a float32 array of its shape where T is narrower.
#pragma once
#include "algorithm/map.cuh"
#include "core/vec.cuh"
#include "gather/segmented_sum.cuh"
#include "gather/targets.cuh"

namespace cto::atomic_sums {

using namespace targets;
using segmented_sum::BatchItem;
using vec::Vec;

constexpr int WIDTH = vec::WIDTH<T>;

template <class Target>
__device__ __forceinline__ void add_slices(Target target, const T* __restrict__ dy, ACC* sums,
                                           Items items, Sizes sizes) {
    const BatchItem slice(items);
    const i64 first = slice.column<1, ATOMIC_ITEMS>(), width = sizes.width;
    if (slice.batch >= items.n_batches) return;
    const i64 row = target(slice.item);
    if (row == NOWHERE) return;
    const T* const from = dy + (slice.batch * sizes.n_slices + slice.item) * width;
    ACC* const to = sums + (slice.batch * sizes.n_rows + row) * width;
#pragma unroll
    for (int j = 0; j < ATOMIC_ITEMS; ++j) {
        const i64 column = first + j * blockDim.x;
        if (column < width) atomicAdd(to + column, to_acc(from[column]));
    }
}

// One thread's additions: all loads, then all atomics.
struct Additions {
    i64 target[ATOMIC_ITEMS];
    ACC value[ATOMIC_ITEMS];

    __device__ void apply(ACC* sums) const {
#pragma unroll
        for (int j = 0; j < ATOMIC_ITEMS; ++j)
            if (target[j] != NOWHERE) atomicAdd(sums + target[j], value[j]);
    }
};

__device__ __forceinline__ void add_elements(const GatherElement& element, const T* __restrict__ dy,
                                             ACC* sums, i64 n) {
    const i64 first = static_cast<i64>(blockIdx.x) * (THREADS * ATOMIC_ITEMS) + threadIdx.x;
    Additions additions;
#pragma unroll
    for (int j = 0; j < ATOMIC_ITEMS; ++j) {
        const i64 k = first + j * THREADS;
        additions.target[j] = k < n ? element(k) : NOWHERE;
        additions.value[j] = k < n ? to_acc(dy[k]) : ACC(0);
    }
    additions.apply(sums);
}

// Strip after strip of STRIP_COLUMNS columns, each over all rows: the cache lines of dX that a
// strip is added to stay in the L2 cache, whereas with row after row each addition would go to
// memory.
__device__ __forceinline__ void add_elements_by_strips(const GatherElement& element,
                                                       const T* __restrict__ dy, ACC* sums,
                                                       i64 rows, i32 blocks_a_strip) {
    const i32 strip = static_cast<i32>(blockIdx.x) / blocks_a_strip;
    const i32 block = static_cast<i32>(blockIdx.x) - strip * blocks_a_strip;
    const i64 columns = element.lines.columns;
    const i64 column = static_cast<i64>(strip) * STRIP_COLUMNS + threadIdx.x;
    const i64 first = static_cast<i64>(block) * (blockDim.y * ATOMIC_ITEMS) + threadIdx.y;
    Additions additions;
#pragma unroll
    for (int j = 0; j < ATOMIC_ITEMS; ++j) {
        const i64 row = first + j * static_cast<i64>(blockDim.y);
        const bool exists = row < rows && column < columns;
        const i64 k = row * columns + column;
        additions.target[j] = exists ? element.at(row, column, element.indices[k]) : NOWHERE;
        additions.value[j] = exists ? to_acc(dy[k]) : ACC(0);
    }
    additions.apply(sums);
}

// ---- zeros and rounding -------------------------------------------------------------------------

// y[0 .. n) = 0
__device__ __forceinline__ void fill_with_zero(T* y, i64 n) {
    const Vec<T, WIDTH> zero{};
    const bool aligned = vec::bytes_past_16(y) == 0;
    const i64 first = static_cast<i64>(blockIdx.x) * (THREADS * ZERO_VECS) + threadIdx.x;
#pragma unroll
    for (int v = 0; v < ZERO_VECS; ++v) {
        const i64 at = (first + v * THREADS) * WIDTH;
        if (aligned && at + WIDTH <= n)
            vec::store_streaming(reinterpret_cast<Vec<T, WIDTH>*>(y + at), zero);
        else
            vec::store_elements(y, at, n, zero);
    }
}

using RoundTiling = map::Tiling<WIDTH, WIDTH, 1, ROUND_NBYTES, THREADS>;

struct Round {
    __device__ Vec<T, WIDTH> operator()(const Vec<ACC, WIDTH>& sums, int) const {
        return vec::from_acc<T>(sums.at);
    }
};

}  // namespace cto::atomic_sums
