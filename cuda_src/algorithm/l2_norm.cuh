// SPDX-License-Identifier: MIT
// The Euclidean norm of a list of tensors, over any number of launches.
//
// Each block of each launch leaves the sum of its squares in `partials`; the block that finishes
// last in the last launch adds them in the order of their numbers.
#pragma once
#include "algorithm/reduce.cuh"

namespace cto::l2_norm {

using vec::Vec;
using zeroed::Zeroed;

// Visitor that adds the squares of all elements, in A.
template <class E, class A>
struct SumOfSquares {
    A sum = 0;

    template <int N>
    __device__ __forceinline__ void operator()(const Vec<E, N>& x) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const A wide = to_acc(x.at[i]);
            sum += wide * wide;
        }
    }
};

// Where a launch's partial sums go; only the last launch knows how many there are in all.
struct Partials {
    u32 first, n_in_all;
};

// Whether this block is the one that finishes last; there `sum`, a thread's own so far, becomes the
// sum over all launches. `last` is in shared memory.
template <class A, int THREADS>
__device__ __forceinline__ bool sums_all(A& sum, A* partials, Zeroed<u32>* ticket,
                                         const Partials& place,
                                         reduce::BlockScratch<A, THREADS>& scratch, bool& last) {
    sum = reduce::sum_block(sum, scratch);
    if (threadIdx.x == 0) partials[place.first + blockIdx.x] = sum;
    if (place.n_in_all == 0 || !reduce::arrives_last(ticket, gridDim.x, last)) return false;
    sum = reduce::sum_partials(partials, place.n_in_all, scratch);
    return true;
}

__device__ __forceinline__ float square_root(float x) { return sqrtf(x); }
__device__ __forceinline__ double square_root(double x) { return sqrt(x); }
__device__ __forceinline__ u32 square_root(u32 x) { return x; }  // for types of no operator
__device__ __forceinline__ u64 square_root(u64 x) { return x; }

}  // namespace cto::l2_norm
