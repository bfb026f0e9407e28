// SPDX-License-Identifier: MIT
// Lists of tensors as one row of chunks; addresses and sizes travel by value in the launch parameters.
//
// planning/tensor_list.py makes the tables, of tensors that have elements: tensor t is the chunks
// first_chunk[t] up to first_chunk[t + 1], each of them the same number of elements but for the last.
#pragma once
#include "include/reduce.cuh"
#include "include/tables.cuh"

// Tensors that one launch takes, and bytes of the wider type in a chunk.
#ifndef CTO_CAPACITY
#define CTO_CAPACITY 108
#endif
#ifndef CTO_CHUNK_NBYTES
#define CTO_CHUNK_NBYTES 32768
#endif

namespace cto {

constexpr int CAPACITY = CTO_CAPACITY;
constexpr int CHUNK_NBYTES = CTO_CHUNK_NBYTES;

// The entries of first_chunk after the last tensor are the number of all chunks.
struct TensorSizes {
    i64 size[CAPACITY];
    u32 first_chunk[CAPACITY + 1];

    __device__ u32 n_chunks() const { return first_chunk[CAPACITY]; }

    // The tensor that a chunk belongs to, one of the first n.
    __device__ int tensor_of(u32 chunk, int n) const {
        int low = 0, high = n;
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            if (first_chunk[middle] <= chunk)
                low = middle;
            else
                high = middle;
        }
        return low;
    }
};

// Shows `visit` the elements that fall to this thread: a block takes every gridDim-th chunk.
template <class E, class Visit>
__device__ __forceinline__ void visit_tensors(const Pointers<CAPACITY>& arrays,
                                              const TensorSizes& sizes, Visit& visit) {
    constexpr i64 PACKETS = CHUNK_NBYTES / 16;
    int t = 0;
    for (u32 chunk = blockIdx.x; chunk < sizes.n_chunks(); chunk += gridDim.x) {
        while (chunk >= sizes.first_chunk[t + 1]) ++t;
        const Run<E> run(static_cast<const E*>(arrays.at[t]), sizes.size[t]);
        const i64 first = (chunk - sizes.first_chunk[t]) * PACKETS;
        visit_packets(run, first, PACKETS, threadIdx.x, THREADS, visit);
        if (first == 0) visit_edges(run, threadIdx.x, THREADS, visit);
    }
}

}  // namespace cto
