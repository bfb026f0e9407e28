// SPDX-License-Identifier: MIT
// Capped scores: cap tanh(x / cap), or x where cap is 0. -inf stays -inf, not -cap: a masked class
// keeps probability 0.
#pragma once
#include "algorithm/row_softmax.cuh"

namespace cto::cross_entropy::capped {

using namespace row_softmax;

__device__ __forceinline__ float tanh_of(float x) { return tanhf(x); }
__device__ __forceinline__ double tanh_of(double x) { return tanh(x); }

// The function from a score x to its capped score s, and its derivative.
template <class A>
struct Cap {
    A cap;

    __device__ __forceinline__ A operator()(A x) const {
        return cap == 0 || x == negative_infinity<A>() ? x : cap * tanh_of(x / cap);
    }
    // The derivative ds/dx, from s: 1 - tanh^2 = (1 - t) (1 + t), t = s / cap.
    __device__ __forceinline__ A slope(A s) const {
        if (cap == 0) return 1;
        if (s == negative_infinity<A>()) return 0;
        const A t = s / cap;
        return (1 - t) * (1 + t);
    }
};

// Makes the compiler assume that x has changed (it has not), so that it computes what depends on x
// again instead of keeping it in registers.
__device__ __forceinline__ void hide(float& x) {
#ifndef __CUDA_CPU__
    asm("" : "+f"(x));
#endif
}
__device__ __forceinline__ void hide(double& x) {
#ifndef __CUDA_CPU__
    asm("" : "+d"(x));
#endif
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
// returned capped; what does not exist is -inf. edge: the thread's element outside whole vectors.
template <class E, int WIDTH, int DEPTH>
struct CappedReader : LineReader<E, WIDTH, DEPTH> {
    using Base = LineReader<E, WIDTH, DEPTH>;
    using A = Acc<E>;
    Cap<A> cap;
    A edge;

    // Reads `array` along `line`, capped by `cap`.
    __device__ __forceinline__ CappedReader(const Line<WIDTH, DEPTH>& line, const E* array,
                                            Cap<A> cap)
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
