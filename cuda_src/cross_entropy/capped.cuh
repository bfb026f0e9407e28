// SPDX-License-Identifier: MIT
// Capped scores: cap tanh(x / cap), but -inf stays -inf, not -cap: a masked class keeps probability
// 0. Two types have the methods operator(), a score's capped one, and slope, its derivative: Cap,
// and Uncapped, by which kernels without a cap compute nothing.
#pragma once
#include "algorithm/row_softmax.cuh"

namespace cto::cross_entropy::capped {

using math::exp::polynomial;
using namespace row_softmax;

// tanh y within 4e-7 of it, relatively, by y P(y^2) / Q(y^2), which is fitted for |y| <= 8; from
// there on it is 1 or -1, so that the slope is 0. Not for NaN.
__device__ __forceinline__ float tanh_of(float y) {
    y = fminf(fmaxf(y, -8.0f), 8.0f);
    const float z = y * y;
    const float over =
        polynomial(z, 1.52317189e-8f, 2.18957461e-5f, 0.00357166958f, 0.1344456f, 1.0f);
    const float under =
        polynomial(z, 8.52302348e-7f, 0.000341140513f, 0.0261647208f, 0.467778875f, 1.0f);
    return fabsf(y) < 8 ? y * over * fast_reciprocal(under) : copysignf(1, y);
}
__device__ __forceinline__ double tanh_of(double y) { return tanh(y); }

// Makes the compiler assume that x has changed (it has not), so that it computes what depends on x
// again instead of keeping it in registers, and x where it is hidden.
__device__ __forceinline__ void hide(float& x) {
#ifndef __CUDA_CPU__
    asm volatile("" : "+f"(x));
#endif
}
__device__ __forceinline__ void hide(double& x) {
#ifndef __CUDA_CPU__
    asm volatile("" : "+d"(x));
#endif
}

// A score that is not capped.
template <class A>
struct Uncapped {
    __device__ __forceinline__ A operator()(A x) const { return x; }
    __device__ __forceinline__ A slope(A) const { return 1; }
};

// The function from a score x to its capped score s, and its derivative.
template <class A>
struct Cap {
    A cap, inverse;  // inverse: 1 / cap

    // The Cap of `cap` > 0; of the nearest whose inverse is a normal number.
    static __device__ Cap of(A cap) {
        constexpr A MOST = static_cast<A>(sizeof(A) == 8 ? 0x1p1022 : 0x1p126);
        const A bound = larger(cap < MOST ? cap : MOST, 1 / MOST);
        return {bound, fast_divide(A(1), bound)};
    }
    // NaN and -inf stay; +inf is capped.
    __device__ __forceinline__ A operator()(A x) const {
        A s = cap * tanh_of(x * inverse);
        hide(s);  // the compiler would compute it behind a branch, for one element after another
        return x > negative_infinity<A>() ? s : x;
    }
    // The derivative ds/dx, from s: 1 - tanh^2 = (1 - t) (1 + t), t = s / cap, -1 for -inf.
    __device__ __forceinline__ A slope(A s) const {
        const A t = larger(s * inverse, A(-1));
        return (1 - t) * (1 + t);
    }
};

// Calls run(Cap of `cap`), or run(Uncapped) if it is 0.
template <class A, class Run>
__device__ __forceinline__ void with_cap(A cap, const Run& run) {
    if (cap == 0)
        run(Uncapped<A>{});
    else
        run(Cap<A>::of(cap));
}

// Hides from the compiler that the reader's DEPTH x WIDTH elements are the same as before, of all
// types (LineReader::renew does so for 2-byte ones): it would keep what it computed of them, capped
// scores or shares, from one use to the next, for which there are too few registers. zero:
// Line::zero(), 0 at run time.
template <class E, int WIDTH, int DEPTH>
__device__ __forceinline__ void renew_all(LineReader<E, WIDTH, DEPTH>& reader, u32 zero) {
    reader.renew(zero);
    if constexpr (sizeof(E) >= sizeof(float)) {
#pragma unroll
        for (int u = 0; u < DEPTH; ++u)
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) hide(reader.registers[u].at[i]);
    }
}

// LineReader (a thread's elements of a line, DEPTH slots of WIDTH at a time) whose elements are
// returned capped, by `cap` of type CAP, a Cap or Uncapped; what does not exist is -inf. edge: the
// thread's element outside whole vectors.
template <class E, int WIDTH, int DEPTH, class CAP>
struct CappedReader : LineReader<E, WIDTH, DEPTH> {
    using Base = LineReader<E, WIDTH, DEPTH>;
    using A = Acc<E>;
    CAP cap;
    A edge;

    // Reads `array` along `line`, capped by `cap`.
    __device__ __forceinline__ CappedReader(const Line<WIDTH, DEPTH>& line, const E* array,
                                            const CAP& cap)
        : Base(line, array, /*fill=*/from_acc<E>(negative_infinity<A>())),
          cap(cap),
          edge(cap(to_acc(Base::edge))) {}
    // Element i of the thread's slot u, capped.
    __device__ __forceinline__ A at(int u, int i) const { return cap(Base::at(u, i)); }
    __device__ __forceinline__ void renew(u32 zero) { renew_all<E, WIDTH, DEPTH>(*this, zero); }
    // max(least, the capped elements in registers): the cap of their maximum, as it is monotonic.
    __device__ __forceinline__ A largest(A least) const {
        return larger(least, cap(Base::largest(negative_infinity<A>())));
    }
};

}  // namespace cto::cross_entropy::capped
