// SPDX-License-Identifier: MIT
// Reductions in a fixed order: elements of a range, lanes of a warp, warps of a block, blocks of a
// group.
//
// A range of elements may start anywhere: vectors of 16 aligned bytes make its middle, and single
// elements its two edges. Which thread adds what follows from sizes, addresses modulo 16 and the
// launch alone; the block that finishes last adds the others' results in the order of their
// numbers.
#pragma once
#include "core/vec.cuh"
#include "core/zeroed.cuh"

namespace cto::reduce {

using vec::Vec;
using zeroed::Zeroed;

// ---- threads and blocks -------------------------------------------------------------------------

// The sum over groups of `lanes` lanes, a power of two, in each of them; by whole warps only.
template <class A>
__device__ __forceinline__ A sum_lanes(A value, u32 lanes) {
#pragma unroll 1
    for (u32 step = lanes / 2; step > 0; step /= 2)
        value += __shfl_xor_sync(ALL_LANES, value, step);
    return value;
}

// Shared memory of a block's sums, on a boundary of its own: loads of 16 bytes took what lay beside
// them along, which racecheck reported though nobody used it.
template <class A, int THREADS>
struct BlockScratch {
    static constexpr int threads = THREADS, warps = THREADS / WARP;
    alignas(16) A of_warp[warps];
};

// The sum over a block, in each of its threads.
template <class A, int THREADS>
__device__ __forceinline__ A sum_block(A value, BlockScratch<A, THREADS>& scratch) {
    value = sum_lanes(value, WARP);
    __syncthreads();  // the last sum has been read
    if (threadIdx.x % WARP == 0) scratch.of_warp[threadIdx.x / WARP] = value;
    __syncthreads();
    A sum = scratch.of_warp[0];
#pragma unroll
    for (int warp = 1; warp < scratch.warps; ++warp) sum += scratch.of_warp[warp];
    return sum;
}

// True if this block is the last of n at the ticket counter, which the last one leaves zero; if so
// it sees what the others have written. `last` is in shared memory. FIRST_WROTE: all that other blocks
// are to see is the first thread's, in a block along x.
template <bool FIRST_WROTE = false>
__device__ __forceinline__ bool arrives_last(Zeroed<u32>* ticket, u32 n, bool& last) {
    if constexpr (!FIRST_WROTE) {
        __threadfence();
        __syncthreads();
    }
    if ((FIRST_WROTE ? threadIdx.x : threadIdx.x + threadIdx.y + threadIdx.z) == 0) {
        if constexpr (FIRST_WROTE) __threadfence();
        last = atomicInc(&ticket->value, n - 1) == n - 1;
    }
    __syncthreads();
    if (last) __threadfence();
    return last;
}

// The sum of n values that other blocks have written, every `stride`-th, in the order of their
// numbers.
template <class A, int THREADS>
__device__ __forceinline__ A sum_partials(const A* partials, u32 n,
                                          BlockScratch<A, THREADS>& scratch, u32 stride = 1) {
    constexpr int MANY = 8;  // loaded together
    A sum = 0;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < n; i += MANY * THREADS) {
        A own[MANY];
#pragma unroll
        for (int u = 0; u < MANY; ++u)
            own[u] = i + u * THREADS < n ? __ldcg(partials + (i + u * THREADS) * stride) : A(0);
#pragma unroll
        for (int u = 0; u < MANY; ++u) sum += own[u];
    }
    return sum_block(sum, scratch);
}

// ---- elements of a range ------------------------------------------------------------------------

// n elements: `head` of them before the first 16-byte boundary, then vectors, then the tail.
// The vectors are seen as V: taken apart as bytes they would have to be put together again.
template <class E, class V = Vec<E, vec::WIDTH<E>>>
struct Range {
    static constexpr int WIDTH = vec::WIDTH<E>;
    const E* from;
    i64 n, n_vecs;
    int head;

    __device__ Range(const E* from, i64 n) : from(from), n(n) {
        const int before = vec::elements_to_16(from);
        head = before < n ? before : static_cast<int>(n);
        n_vecs = (n - head) / WIDTH;
    }
    __device__ i64 tail() const { return head + n_vecs * WIDTH; }
};

// The vectors first, ..., first + span - 1 that a range has; a span has less than 2^31.
template <class V>
struct Span {
    const V* from;
    u32 n;

    template <class E>
    __device__ __forceinline__ Span(const Range<E, V>& range, i64 first, i64 span)
        : from(reinterpret_cast<const V*>(range.from + range.head) + first) {
        const i64 rest = range.n_vecs - first;
        n = rest <= 0 ? 0 : static_cast<u32>(rest < span ? rest : span);
    }
};

// Shows `visit` those of a span's vectors that fall to one of `n_threads` threads, UNROLL of them loaded
// together.
template <int UNROLL, class E, class V, class Visit>
__device__ __forceinline__ void visit_vecs(const Range<E, V>& range, i64 first, i64 span,
                                           u32 thread, u32 n_threads, Visit& visit) {
    const Span<V> vecs(range, first, span);
#pragma unroll 1
    for (u32 k = thread; k < vecs.n; k += UNROLL * n_threads) {
        V loaded[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (k + u * n_threads < vecs.n) loaded[u] = vecs.from[k + u * n_threads];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (k + u * n_threads < vecs.n) visit(loaded[u]);
    }
}

// visit_vecs for a visitor that may take UNROLL vectors, loaded together, in one call; where it refuses, it
// is shown each of them alone.
template <int UNROLL, class E, class V, class Visit>
__device__ __forceinline__ void visit_batches(const Range<E, V>& range, i64 first, i64 span,
                                              u32 thread, u32 n_threads, Visit& visit) {
    const Span<V> vecs(range, first, span);
#pragma unroll 1
    for (u32 k = thread; k < vecs.n;) {
        const u32 end = k + UNROLL * n_threads;
        if (end - n_threads < vecs.n) {
            V loaded[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) loaded[u] = vecs.from[k + u * n_threads];
            if (visit.all(loaded)) {
                k = end;
                continue;
            }
        }
#pragma unroll 1
        for (; k < end && k < vecs.n; k += n_threads) visit(vec::load_constant(vecs.from + k));
        k = end;
    }
}

// The elements before and after the vectors.
template <class E, class V, class Visit>
__device__ __forceinline__ void visit_edges(const Range<E, V>& range, u32 thread, u32 n_threads,
                                            Visit& visit) {
    const Vec<E, 1>* const element = reinterpret_cast<const Vec<E, 1>*>(range.from);
#pragma unroll 1
    for (i64 i = thread; i < range.head; i += n_threads) visit(element[i]);
#pragma unroll 1
    for (i64 i = range.tail() + thread; i < range.n; i += n_threads) visit(element[i]);
}

// Visitor that adds all elements.
template <class E>
struct Sum {
    Acc<E> sum = 0;

    template <int N>
    __device__ __forceinline__ void operator()(const Vec<E, N>& x) {
#pragma unroll
        for (int i = 0; i < N; ++i) sum += to_acc(x.at[i]);
    }
};

}  // namespace cto::reduce
