// SPDX-License-Identifier: MIT
// The Euclidean norm of a list of tensors, over any number of launches.
//
// Each block of each launch writes its sums of squares to `partials`; the last block of the last
// launch to finish adds them in the order of their numbers.
//
// In float, x^2 overflows from |x| = 2^64 on and loses digits below 2^-63, though the norm itself
// would not. So three sums are computed: of x^2, (2^-64 x)^2 and (2^64 x)^2. The size of the first
// tells which of the three the norm is computed from. Vectors whose sum of x^2 is of ordinary size
// are left out of the other two: if one of these is used, such vectors do not matter.
#pragma once
#include "algorithm/reduce.cuh"

namespace cto::l2_norm {

using facts::Partials;
using vec::Vec;
using zeroed::Zeroed;

__device__ __forceinline__ float square_root(float x) { return sqrtf(x); }
__device__ __forceinline__ double square_root(double x) { return sqrt(x); }
__device__ __forceinline__ u32 square_root(u32 x) { return x; }  // only so that templates compile
__device__ __forceinline__ u64 square_root(u64 x) { return x; }

constexpr float UP = 0x1p64f, DOWN = 0x1p-64f;     // factors of x in the other two sums
constexpr float MOST = 0x1p96f, LEAST = 0x1p-64f;  // sums of x^2 in this range are precise

// Visitor that sums squares of elements E in A: at[0] of x, at[1] of DOWN * x, at[2] of UP * x. N =
// 1 sum is enough for doubles, and for halves.
template <class E, class A>
struct SumsOfSquares {
    static constexpr int N = ARE_SAME<A, float> && !ARE_SAME<E, __half> ? 3 : 1;
    A at[N]{};
    static_assert(sizeof(at) <= facts::SUMS_NBYTES);

    // Adds the squares of the M elements of x. If their sum may have overflowed or lost digits,
    // also the squares of the elements scaled DOWN and UP.
    template <int M>
    __device__ __forceinline__ void operator()(const Vec<E, M>& x) {
        const A sum = sum_of(x);
        at[0] += sum;
        if (N == 1 || is_ordinary(sum)) return;
#pragma unroll
        for (int i = 0; i < M; ++i) {
            const A value = wide(x, i);
            at[1] += (value * DOWN) * (value * DOWN);
            at[2] += (value * UP) * (value * UP);
        }
    }
    // Adds MANY vectors of M elements and returns true if the sums of squares of all of them are
    // ordinary, or only x^2 is summed (N == 1); else adds none and returns false. One branch for
    // all.
    template <int M, int MANY>
    __device__ __forceinline__ bool all(const Vec<E, M> (&x)[MANY]) {
        A sums[MANY];
        bool are_ordinary = true;
#pragma unroll
        for (int u = 0; u < MANY; ++u) {
            sums[u] = sum_of(x[u]);
            are_ordinary = are_ordinary && is_ordinary(sums[u]);
        }
        if (N > 1 && !are_ordinary) return false;
#pragma unroll
        for (int u = 0; u < MANY; ++u) at[0] += sums[u];
        return true;
    }

    // True if the norm is computed from at[0].
    __device__ __forceinline__ bool is_precise() const { return at[0] >= LEAST && at[0] <= MOST; }

    // The norm, if `at` has the sums over all elements.
    __device__ __forceinline__ A norm() const {
        if constexpr (N == 3) {
            if (at[0] > MOST) return square_root(at[1]) * UP;
            if (at[0] < LEAST) return square_root(at[2]) * DOWN;
        }
        return square_root(at[0]);
    }

  private:
    // Element i in A; 2-byte elements are extracted from words, which saves registers.
    template <int M>
    static __device__ __forceinline__ A wide(const Vec<E, M>& x, int i) {
        using Unit = vec::Unit<E, vec::IN_WORDS<E, M>>;
        return Unit::at(reinterpret_cast<const typename Unit::Register*>(&x), i);
    }
    // True if even 2^56 sums of this size add up to a number in the precise range.
    static __device__ __forceinline__ bool is_ordinary(A sum) {
        return sum >= LEAST && sum <= MOST * 0x1p-56f;
    }
    // x[0]^2 + ... + x[M - 1]^2.
    template <int M>
    static __device__ __forceinline__ A sum_of(const Vec<E, M>& x) {
        A sum = 0;
#pragma unroll
        for (int i = 0; i < M; ++i) sum += wide(x, i) * wide(x, i);
        return sum;
    }
};

// Adds the sums of the block's THREADS threads and writes them to partials[N * number + i], i < N,
// of block number place.first + blockIdx.x. Returns true only in the block that finishes last in
// the last launch (in all other launches place.n_in_all is 0); there `sums` become those over all
// n_in_all blocks. ticket: counter of finished blocks; `last` and `scratch` are in shared memory.
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
    if (place.n_in_all == 0 || !reduce::arrives_last</*FIRST_WROTE=*/true>(ticket, gridDim.x, last))
        return false;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        if (i > 0 && sums.is_precise()) break;
        sums.at[i] = reduce::sum_partials(partials + i, place.n_in_all, scratch, N);
    }
    return true;
}

}  // namespace cto::l2_norm
