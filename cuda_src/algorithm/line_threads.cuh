// SPDX-License-Identifier: MIT
// Sums and maxima over the threads of a line, see algorithm/lines.cuh.
#pragma once
#include "core/types.cuh"

namespace cto::line_threads {

__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ double larger(double a, double b) { return fmax(a, b); }

struct Max {
    template <class A>
    static __device__ __forceinline__ A of(A a, A b) {
        return larger(a, b);
    }
};
struct Sum {
    template <class A>
    static __device__ __forceinline__ A of(A a, A b) {
        return a + b;
    }
};

template <class A>
__device__ __forceinline__ A negative_infinity() {
    return -static_cast<A>(__int_as_float(0x7F800000));
}

// max(value) and sum(value) return, in each thread, the maximum and the sum of the values that
// `threads` neighbouring threads pass: a power of two up to WARP, or the whole block.
template <class A>
struct RowThreads {
    u32 threads;
    A* per_warp;                // shared memory, WARP entries
    mutable bool used = false;  // true if some thread may still read per_warp

    __device__ __forceinline__ A max(A value) const {
        return over<Max>(value, negative_infinity<A>());
    }
    __device__ __forceinline__ A sum(A value) const { return over<Sum>(value, A(0)); }

  private:
    // Returns in each lane How::of over `value` of its group of `lanes` neighbouring lanes, a power
    // of two.
    template <class How>
    static __device__ __forceinline__ A over_lanes(A value, u32 lanes) {
        if (lanes == WARP) {
#pragma unroll
            for (u32 step = 1; step < WARP; step *= 2)
                value = How::of(value, __shfl_xor_sync(ALL_LANES, value, step));
            return value;
        }
#pragma unroll 1
        for (u32 step = 1; step < lanes; step *= 2)
            value = How::of(value, __shfl_xor_sync(ALL_LANES, value, step));
        return value;
    }
    // Returns in each thread How (Sum or Max) over `value` of all threads of the row; neutral: 0 or
    // -inf. First over lanes by shuffles, then over the row's warps in shared memory.
    template <class How>
    __device__ __forceinline__ A over(A value, A neutral) const {
        value = over_lanes<How>(value, threads < WARP ? threads : WARP);
        if (threads <= WARP) {
            __syncwarp();  // callers may overwrite what other lanes have read before
            return value;
        }
        const u32 lane = threadIdx.x % WARP, warps = threads / WARP;
        // Each warp reduces all warps' results, on the fewest lanes that are a power of two.
        const u32 lanes = (warps & (warps - 1)) == 0 ? warps : WARP;
        if (used) __syncthreads();  // all have read the results of the call before
        used = true;
        if (lane == 0) per_warp[threadIdx.x / WARP] = value;
        __syncthreads();
        const u32 warp = lane & (lanes - 1);
        return over_lanes<How>(warp < warps ? per_warp[warp] : neutral, lanes);
    }
};

// Maxima and sums over the threads that differ in threadIdx.y only; blockDim.y is a power of two.
template <class A>
struct ColumnThreads {
    A* per_thread;  // shared memory, an entry for each thread of the block

    __device__ __forceinline__ A max(A value) const { return over<Max>(value); }
    __device__ __forceinline__ A sum(A value) const { return over<Sum>(value); }

  private:
    // Returns in each thread How (Sum or Max) over `value` of all threads with its column: in each
    // round, threads half apart along y exchange values.
    template <class How>
    __device__ __forceinline__ A over(A value) const {
        const u32 own = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
#pragma unroll 1
        for (u32 half = blockDim.y / 2; half > 0; half /= 2) {
            __syncthreads();
            per_thread[own] = value;
            __syncthreads();
            value = How::of(value, per_thread[own ^ (half * blockDim.x)]);  // threadIdx.y ^ half
        }
        __syncthreads();
        return value;
    }
};

}  // namespace cto::line_threads
