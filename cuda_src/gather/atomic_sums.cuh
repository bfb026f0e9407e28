// SPDX-License-Identifier: MIT
// Sums by atomic additions. `sums` is dX, or a float32 array of its shape if T is narrower.
#pragma once
#include "gather/segmented_sum.cuh"
#include "gather/targets.cuh"

namespace cto::atomic_sums {

using namespace targets;
using segmented_sum::BatchItem;

// sums[batch][target(k)] += dy[batch][k] for each slice k, none if target(k) is NOWHERE. A thread
// adds ATOMIC_ITEMS elements, blockDim.x columns apart. sizes: slices and rows of a batch, and
// elements of each; items: which slices and columns a block has.
template <class Target, class T>
__device__ __forceinline__ void add_slices(Target target, const T* __restrict__ dy, Acc<T>* sums,
                                           Items items, Sizes sizes) {
    const BatchItem slice(items);
    const i64 first = slice.column</*N=*/1, ATOMIC_ITEMS>(), width = sizes.width;
    if (slice.batch >= items.n_batches) return;
    const i64 row = target(slice.item);
    if (row == NOWHERE) return;
    const T* const from = dy + (slice.batch * sizes.n_slices + slice.item) * width;
    Acc<T>* const to = sums + (slice.batch * sizes.n_rows + row) * width;
#pragma unroll
    for (int j = 0; j < ATOMIC_ITEMS; ++j) {
        const i64 column = first + j * blockDim.x;
        if (column < width) atomicAdd(to + column, to_acc(from[column]));
    }
}

// One thread's additions: its loads are issued before its atomics.
template <class A>
struct Additions {
    i64 target[ATOMIC_ITEMS];
    A value[ATOMIC_ITEMS];

    // sums[target[j]] += value[j], atomically, of targets that exist.
    __device__ void apply(A* sums) const {
#pragma unroll
        for (int j = 0; j < ATOMIC_ITEMS; ++j)
            if (target[j] != NOWHERE) atomicAdd(sums + target[j], value[j]);
    }
};

// sums[element(k)] += dy[k], k < n; nothing if element(k) is NOWHERE. element: a targets::Element.
template <class Element, class T>
__device__ __forceinline__ void add_elements(const Element& element, const T* __restrict__ dy,
                                             Acc<T>* sums, i64 n) {
    const i64 first = static_cast<i64>(blockIdx.x) * (THREADS * ATOMIC_ITEMS) + threadIdx.x;
    Additions<Acc<T>> additions;
#pragma unroll
    for (int j = 0; j < ATOMIC_ITEMS; ++j) {
        const i64 k = first + j * THREADS;
        additions.target[j] = k < n ? element(k) : NOWHERE;
        additions.value[j] = k < n ? to_acc(dy[k]) : Acc<T>(0);
    }
    additions.apply(sums);
}

// sums[element(k)] += dy[k], none if element(k) is NOWHERE, in strips of STRIP_COLUMNS columns over
// all `rows` rows of dy: the cache lines of `sums` that one strip touches stay in the L2 cache; row
// after row, each addition would go to memory. Each strip has blocks_a_strip blocks; a block has
// blockDim.y * ATOMIC_ITEMS rows of it: thread x a column, y every blockDim.y-th row.
template <class Element, class T>
__device__ __forceinline__ void add_elements_by_strips(const Element& element,
                                                       const T* __restrict__ dy, Acc<T>* sums,
                                                       i64 rows, i32 blocks_a_strip) {
    const i32 strip = static_cast<i32>(blockIdx.x) / blocks_a_strip;
    const i32 block = static_cast<i32>(blockIdx.x) - strip * blocks_a_strip;
    const i64 columns = element.lines.columns;
    const i64 column = static_cast<i64>(strip) * STRIP_COLUMNS + threadIdx.x;
    const i64 first = static_cast<i64>(block) * (blockDim.y * ATOMIC_ITEMS) + threadIdx.y;
    Additions<Acc<T>> additions;
#pragma unroll
    for (int j = 0; j < ATOMIC_ITEMS; ++j) {
        const i64 row = first + j * static_cast<i64>(blockDim.y);
        const bool exists = row < rows && column < columns;
        const i64 k = row * columns + column;
        additions.target[j] = exists ? element.at(row, column, element.indices[k]) : NOWHERE;
        additions.value[j] = exists ? to_acc(dy[k]) : Acc<T>(0);
    }
    additions.apply(sums);
}

}  // namespace cto::atomic_sums
