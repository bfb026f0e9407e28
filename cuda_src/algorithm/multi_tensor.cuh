// SPDX-License-Identifier: MIT
// Lists of tensors, cut into numbered chunks; addresses and sizes are passed by value as launch
// parameters.
//
// The host computes the tables, without empty tensors. Tensor t has the chunks from first_chunk[t]
// to first_chunk[t + 1] - 1, all of the same number of elements except its last.
#pragma once
#include "algorithm/reduce.cuh"

namespace cto::multi_tensor {

using facts::Columns;
using facts::Pointers;
using facts::TensorSizes;

// Returns the number of the tensor that has chunk number `chunk` of a launch, of its n tensors, by
// binary search in sizes.first_chunk.
template <int CAPACITY>
__device__ int tensor_of(const TensorSizes<CAPACITY>& sizes, u32 chunk, int n) {
    int low = 0, high = n;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (sizes.first_chunk[middle] <= chunk)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// A chunk of at most CHUNK elements, by default number blockIdx.x: elements [first, end) of a
// tensor of n.
template <i64 CHUNK>
struct BlockChunk {
    int tensor;
    i64 first, end, n;

    // Chunk `chunk` of a launch's n_tensors tensors: elements [first, end) of tensor number
    // `tensor`, which has n elements. sizes: elements and first chunks of all tensors, with room
    // for CAPACITY.
    template <int CAPACITY>
    __device__ BlockChunk(const TensorSizes<CAPACITY>& sizes, int n_tensors,
                          u32 chunk = blockIdx.x) {
        tensor = tensor_of(sizes, chunk, n_tensors);
        n = sizes.size[tensor];
        first = (chunk - sizes.first_chunk[tensor]) * CHUNK;
        end = first + CHUNK < n ? first + CHUNK : n;
    }
};

// The array of tensor `tensor` in list k of a table of addresses; null if the list is absent. List
// k's tensors are arrays.at[columns.at[k] * n_tensors + 0, 1, ...].
template <class E, int POINTERS, int LISTS>
__device__ __forceinline__ E* array_of(const Pointers<POINTERS>& arrays,
                                       const Columns<LISTS>& columns, int k, int tensor) {
    const i32 column = columns.at[k];
    return column < 0 ? nullptr : static_cast<E*>(arrays.at[column * columns.n_tensors + tensor]);
}

// Calls visit(vector), or visit(vector of one element) outside aligned vectors, for this thread's
// elements of all tensors; arrays.at[t] and sizes.size[t] are the address and elements of tensor t.
// A block of THREADS has every gridDim.x-th chunk of CHUNK_NBYTES; elements outside aligned vectors
// go with a tensor's first chunk. UNROLL vectors are loaded together. BATCHES: `visit` also has
// all(UNROLL vectors), true if it took them, which is tried first. CAPACITY: tensors that the
// tables have room for.
template <class E, int CHUNK_NBYTES, int THREADS, int UNROLL, bool BATCHES = false, int CAPACITY,
          class Visit>
__device__ __forceinline__ void visit_tensors(const Pointers<CAPACITY>& arrays,
                                              const TensorSizes<CAPACITY>& sizes, Visit& visit) {
    constexpr i64 VECS = CHUNK_NBYTES / 16;
    int t = 0;
    for (u32 chunk = blockIdx.x; chunk < sizes.first_chunk[CAPACITY]; chunk += gridDim.x) {
        while (chunk >= sizes.first_chunk[t + 1]) ++t;
        const reduce::Range<E> range(static_cast<const E*>(arrays.at[t]), sizes.size[t]);
        const i64 first = (chunk - sizes.first_chunk[t]) * VECS;
        if constexpr (BATCHES)
            reduce::visit_batches<UNROLL>(range, first, VECS, threadIdx.x, THREADS, visit);
        else
            reduce::visit_vecs<UNROLL>(range, first, VECS, threadIdx.x, THREADS, visit);
        if (first == 0) reduce::visit_edges(range, threadIdx.x, THREADS, visit);
    }
}

}  // namespace cto::multi_tensor
