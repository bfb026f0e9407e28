// SPDX-License-Identifier: MIT
// Lists of tensors as one row of chunks; addresses and sizes travel by value in the launch
// parameters.
//
// The host makes the tables, of tensors that have elements: tensor t is the chunks first_chunk[t]
// up to first_chunk[t + 1], each of them the same number of elements but for the last.
#pragma once
#include "algorithm/reduce.cuh"

namespace cto::multi_tensor {

using facts::Columns;
using facts::Pointers;
using facts::TensorSizes;

// The tensor that a chunk belongs to, one of the first n.
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

// The chunk of a list that is this block's, or another one, of CHUNK elements at most: elements
// [first, end) of a tensor of n.
template <i64 CHUNK>
struct BlockChunk {
    int tensor;
    i64 first, end, n;

    template <int CAPACITY>
    __device__ BlockChunk(const TensorSizes<CAPACITY>& sizes, int n_tensors,
                          u32 chunk = blockIdx.x) {
        tensor = tensor_of(sizes, chunk, n_tensors);
        n = sizes.size[tensor];
        first = (chunk - sizes.first_chunk[tensor]) * CHUNK;
        end = first + CHUNK < n ? first + CHUNK : n;
    }
};

// An array of list k; null where it is not there.
template <class E, int POINTERS, int LISTS>
__device__ __forceinline__ E* array_of(const Pointers<POINTERS>& arrays,
                                       const Columns<LISTS>& columns, int k, int tensor) {
    const i32 column = columns.at[k];
    return column < 0 ? nullptr : static_cast<E*>(arrays.at[column * columns.n_tensors + tensor]);
}

// Shows `visit` the elements that fall to this thread: a block takes every gridDim-th chunk. BATCHES: a
// visitor that takes several vectors at once.
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
