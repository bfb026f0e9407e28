// SPDX-License-Identifier: MIT
// Sums over rows, and division of losses and gradients by a sum of weights, without overflow or
// underflow on the way.
#pragma once
#include "algorithm/reduce.cuh"
#include "core/types.cuh"
#include "cross_entropy/facts.cuh"

namespace cto::cross_entropy {

// Adds own[i] over all threads of the grid, for i < N. Returns true in one thread, the first of the
// block that finishes last, where own[i] is that sum; false in all others. partials: N * gridDim.x
// numbers, sum i of block b at i * gridDim.x + b. ticket: counts blocks that have finished. In
// double, as a sum may overflow where its mean does not.
template <int N>
__device__ __forceinline__ bool sum_grid(double (&own)[N], double* partials,
                                         zeroed::Zeroed<u32>* ticket) {
    static_assert(N <= facts::cross_entropy::N_SUMS);
    __shared__ bool last;
    __shared__ reduce::BlockScratch<double, facts::cross_entropy::SUM_THREADS> scratch;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        own[i] = reduce::sum_block(own[i], scratch);
        if (threadIdx.x == 0) partials[i * gridDim.x + blockIdx.x] = own[i];
    }
    if (!reduce::arrives_last(ticket, gridDim.x, last)) return false;
#pragma unroll
    for (int i = 0; i < N; ++i)
        own[i] = reduce::sum_partials(partials + i * gridDim.x, gridDim.x, scratch);
    return threadIdx.x == 0;
}

// A sum of weights, as value / unit: unit is 1, or 2^-64 where the sum would overflow a float A.
template <class A>
struct WeightSum {
    A value, unit;

    // The WeightSum of a sum that was added in double.
    static __device__ WeightSum of(double sum) {
        const bool beyond = sizeof(A) == 4 && fabs(sum) >= 0x1p127;
        return beyond ? WeightSum{static_cast<A>(sum * 0x1p-64), A(0x1p-64)}
                      : WeightSum{static_cast<A>(sum), 1};
    }
};

// The divisor of losses: a WeightSum in memory, {value, unit} = in_memory[0], in_memory[1], or,
// where in_memory is null, the number n.
template <class A>
struct Divisor {
    const A* in_memory;
    double n;

    // The divisor as a WeightSum.
    __device__ WeightSum<A> load() const {
        return in_memory ? WeightSum<A>{in_memory[0], in_memory[1]}
                         : WeightSum<A>{static_cast<A>(n), 1};
    }
};

// x y / divisor. If x y would overflow or be subnormal, x, y and divisor are multiplied by a power
// of two, `by`: the quotient is then `by` times too large, which is taken back. Other results have
// the bits of the plain formula.
template <class A>
__device__ __forceinline__ A product_over(A x, A y, A divisor) {
    constexpr bool WIDE = sizeof(A) == 8;
    constexpr A LEAST = WIDE ? A(0x1p-1022) : A(0x1p-126), MOST = WIDE ? A(0x1p1023) : A(0x1p127);
    constexpr A ROOT = WIDE ? A(0x1p512) : A(0x1p64);
    const A size = fabs(x * y);
    const bool large = size >= MOST, small = size < LEAST && fabs(x) < 1 && fabs(y) < 1;
    const A by = large ? 1 / ROOT : (small ? ROOT : A(1));
    const A quotient = x * by * (y * by) / (divisor * by);
    return large ? quotient * ROOT : (small ? quotient / ROOT : quotient);
}

}  // namespace cto::cross_entropy
