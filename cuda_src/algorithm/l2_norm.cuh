// SPDX-License-Identifier: MIT
// The Euclidean norm of a list of tensors, over any number of launches.
//
// Each block of each launch leaves sums of its squares in `partials`; the block that finishes
// last in the last launch adds them in the order of their numbers.
//
// A square in float is infinite from |x| = 2^64 on and loses digits below 2^-63, where a norm does
// neither. So squares of x, 2^-64 x and 2^64 x are added side by side; the first of the sums says
// which of them is the norm's. It then also says which vectors had a part in it: the two others are
// added of those alone.
#pragma once
#include "algorithm/reduce.cuh"

namespace cto::l2_norm {

using facts::Partials;
using vec::Vec;
using zeroed::Zeroed;

__device__ __forceinline__ float square_root(float x) { return sqrtf(x); }
__device__ __forceinline__ double square_root(double x) { return sqrt(x); }
__device__ __forceinline__ u32 square_root(u32 x) { return x; }  // for types of no operator
__device__ __forceinline__ u64 square_root(u64 x) { return x; }

constexpr float UP = 0x1p64f, DOWN = 0x1p-64f;
constexpr float MOST = 0x1p96f, LEAST = 0x1p-64f;  // sums that elements as they are make precisely

// Visitor that adds the squares of all elements, in A.
template <class E, class A>
struct SumsOfSquares {
    static constexpr int N = ARE_SAME<A, float> && !ARE_SAME<E, __half> ? 3 : 1;
    A at[N]{};
    static_assert(sizeof(at) <= facts::SUMS_NBYTES);

    template <int M>
    __device__ __forceinline__ void operator()(const Vec<E, M>& x) {
        A sum = 0;
#pragma unroll
        for (int i = 0; i < M; ++i) {
            const A wide = to_acc(x.at[i]);
            sum += wide * wide;
        }
        at[0] += sum;
        if constexpr (N == 3) {
            if (sum >= LEAST && sum <= MOST * 0x1p-56f) return;
#pragma unroll
            for (int i = 0; i < M; ++i) {
                const A wide = to_acc(x.at[i]);
                at[1] += (wide * DOWN) * (wide * DOWN);
                at[2] += (wide * UP) * (wide * UP);
            }
        }
    }

    // Whether the sum of elements as they are is the norm's.
    __device__ __forceinline__ bool is_precise() const { return at[0] >= LEAST && at[0] <= MOST; }

    __device__ __forceinline__ A norm() const {
        if constexpr (N == 3) {
            if (at[0] > MOST) return square_root(at[1]) * UP;
            if (at[0] < LEAST) return square_root(at[2]) * DOWN;
        }
        return square_root(at[0]);
    }
};

// Whether this block is the one that finishes last; there `sums`, a thread's own so far, become those
// over all launches. `last` is in shared memory.
template <class E, class A, int THREADS>
__device__ __forceinline__ bool sums_all(SumsOfSquares<E, A>& sums, A* partials,
                                         Zeroed<u32>* ticket, const Partials& place,
                                         reduce::BlockScratch<A, THREADS>& scratch, bool& last) {
    constexpr int N = SumsOfSquares<E, A>::N;
    bool has_others = false;
    if constexpr (N == 3) has_others = __syncthreads_or(!(sums.at[1] == 0 && sums.at[2] == 0));
#pragma unroll
    for (int i = 0; i < N; ++i) {
        if (i == 0 || has_others) sums.at[i] = reduce::sum_block(sums.at[i], scratch);
        if (threadIdx.x == 0) partials[(place.first + blockIdx.x) * N + i] = sums.at[i];
    }
    if (place.n_in_all == 0 || !reduce::arrives_last(ticket, gridDim.x, last)) return false;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        if (i > 0 && sums.is_precise()) break;
        sums.at[i] = reduce::sum_partials(partials + i, place.n_in_all, scratch, N);
    }
    return true;
}

}  // namespace cto::l2_norm
