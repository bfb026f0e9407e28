// SPDX-License-Identifier: MIT
// Reductions in a fixed order: packets of a run, lanes of a warp, warps of a block, blocks of a group.
//
// A run of elements may start anywhere: whole packets of 16 aligned bytes make its middle, and single
// elements its two edges. Which thread adds what follows from sizes, addresses modulo 16 and the
// launch alone; the block that finishes last adds the others' results in the order of their numbers.
#pragma once
#include "include/packets.cuh"

#ifndef CTO_UNROLL
#define CTO_UNROLL 4
#endif

namespace cto {

constexpr int WARPS = THREADS / WARP;
constexpr int UNROLL = CTO_UNROLL;  // packets a thread has in flight

// What sums of E are kept in. Integers wrap around, which signed ones may not.
template <class E>
struct AccumulatorOf {
    using type = float;
};
template <>
struct AccumulatorOf<double> {
    using type = double;
};
template <>
struct AccumulatorOf<i32> {
    using type = u32;
};
template <>
struct AccumulatorOf<u32> {
    using type = u32;
};
template <>
struct AccumulatorOf<i64> {
    using type = u64;
};
template <>
struct AccumulatorOf<u64> {
    using type = u64;
};

template <class E>
__device__ __forceinline__ typename AccumulatorOf<E>::type to_accumulator(E x) {
    return static_cast<typename AccumulatorOf<E>::type>(x);
}

// One rounding, to nearest even, from either accumulator.
template <class E, class A>
__device__ __forceinline__ E from_accumulator(A x) {
    return static_cast<E>(x);
}

// ---- threads and blocks -----------------------------------------------------------------------------

// The sum over groups of `lanes` lanes, a power of two, in each of them; by whole warps only.
template <class A>
__device__ __forceinline__ A sum_lanes(A value, u32 lanes) {
#pragma unroll 1
    for (u32 step = lanes / 2; step > 0; step /= 2)
        value += __shfl_xor_sync(ALL_LANES, value, step);
    return value;
}

// The sum over a block of THREADS threads, in each of them.
template <class A>
__device__ __forceinline__ A sum_block(A value) {
    __shared__ A of_warp[WARPS];
    value = sum_lanes(value, WARP);
    __syncthreads();  // the last sum has been read
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = value;
    __syncthreads();
    A sum = of_warp[0];
#pragma unroll
    for (int warp = 1; warp < WARPS; ++warp) sum += of_warp[warp];
    return sum;
}

// Whether this block is the last of n at the ticket counter, which is zero again afterwards; if so it
// sees what the others have written.
__device__ __forceinline__ bool arrives_last(u32* ticket, u32 n) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x + threadIdx.y + threadIdx.z == 0) last = atomicInc(ticket, n - 1) == n - 1;
    __syncthreads();
    if (last) __threadfence();
    return last;
}

// The sum of n values that other blocks have written, in the order of their numbers.
template <class A>
__device__ __forceinline__ A sum_partials(const A* partials, u32 n) {
    A sum = 0;
    for (u32 i = threadIdx.x; i < n; i += THREADS) sum += __ldcg(partials + i);
    return sum_block(sum);
}

// ---- elements of a run ------------------------------------------------------------------------------

// n elements: `head` of them before the first 16-byte boundary, then whole packets, then the tail.
// Whole packets may be seen as W: as bytes they would be taken apart and put together again.
template <class E, class W = Packet<E, 16 / sizeof(E)>>
struct Run {
    static constexpr int WIDTH = 16 / sizeof(E);
    using Whole = W;
    const E* from;
    i64 n, packets;
    int head;

    __device__ Run(const E* from, i64 n) : from(from), n(n) {
        const u32 off = static_cast<u32>(reinterpret_cast<u64>(from)) & 15u;
        const int before = (16u - off) % 16u / sizeof(E);
        head = before < n ? before : static_cast<int>(n);
        packets = (n - head) / WIDTH;
    }
    __device__ i64 tail() const { return head + packets * WIDTH; }
};

// Shows `visit` those of the run's packets first, ..., first + span - 1 that fall to one of `n_threads`
// threads; a span has less than 2^31.
template <class E, class Whole, class Visit>
__device__ __forceinline__ void visit_packets(const Run<E, Whole>& run, i64 first, i64 span,
                                              u32 thread, u32 n_threads, Visit& visit) {
    const Whole* const packet = reinterpret_cast<const Whole*>(run.from + run.head) + first;
    const i64 rest = run.packets - first;
    const u32 n = rest <= 0 ? 0 : static_cast<u32>(rest < span ? rest : span);
#pragma unroll 1
    for (u32 k = thread; k < n; k += UNROLL * n_threads) {
        Whole loaded[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (k + u * n_threads < n) loaded[u] = packet[k + u * n_threads];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (k + u * n_threads < n) visit(loaded[u]);
    }
}

// The elements outside whole packets.
template <class E, class Whole, class Visit>
__device__ __forceinline__ void visit_edges(const Run<E, Whole>& run, u32 thread, u32 n_threads,
                                            Visit& visit) {
    const Packet<E, 1>* const element = reinterpret_cast<const Packet<E, 1>*>(run.from);
#pragma unroll 1
    for (i64 i = thread; i < run.head; i += n_threads) visit(element[i]);
#pragma unroll 1
    for (i64 i = run.tail() + thread; i < run.n; i += n_threads) visit(element[i]);
}

// Visitor that adds all elements.
template <class E>
struct Sum {
    typename AccumulatorOf<E>::type sum = 0;

    template <int N>
    __device__ __forceinline__ void operator()(const Packet<E, N>& x) {
#pragma unroll
        for (int i = 0; i < N; ++i) sum += to_accumulator(x.at[i]);
    }
};

}  // namespace cto
