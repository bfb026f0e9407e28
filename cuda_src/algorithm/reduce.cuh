// SPDX-License-Identifier: MIT
// Reductions in a fixed order: elements of a range, lanes of a warp, warps of a
// block, blocks of a group.
//
// A range of elements may start at any element: its middle is read by vectors of 16 aligned bytes,
// its two edges element by element. Which thread adds which elements depends only on sizes,
// addresses modulo 16 and the launch; the block that finishes last adds the blocks' results in the
// order of their numbers.
#pragma once
#include "core/vec.cuh"
#include "core/zeroed.cuh"

namespace cto::reduce {

using vec::Vec;
using zeroed::Zeroed;

// ---- threads and blocks -------------------------------------------------------------------------

// Returns in each lane the sum of `value` over its group of `lanes` neighbouring lanes, a power of
// two. All lanes of the warp call it.
template <class A>
__device__ __forceinline__ A sum_lanes(A value, u32 lanes) {
#pragma unroll 1
    for (u32 step = lanes / 2; step > 0; step /= 2)
        value += __shfl_xor_sync(ALL_LANES, value, step);
    return value;
}

// Shared memory for sum_block, in a block of THREADS threads. Aligned, because it is loaded by 16
// bytes: racecheck reported the unused bytes beside it.
template <class A, int THREADS>
struct BlockScratch {
    static constexpr int threads = THREADS, warps = THREADS / WARP;
    alignas(16) A per_warp[warps];
};

// Returns in each thread the sum of `value` over the block; scratch: shared memory. All threads
// call it.
template <class A, int THREADS>
__device__ __forceinline__ A sum_block(A value, BlockScratch<A, THREADS>& scratch) {
    value = sum_lanes(value, WARP);
    __syncthreads();  // all threads have read the sum of the call before
    if (threadIdx.x % WARP == 0) scratch.per_warp[threadIdx.x / WARP] = value;
    __syncthreads();
    A sum = scratch.per_warp[0];
#pragma unroll
    for (int warp = 1; warp < scratch.warps; ++warp) sum += scratch.per_warp[warp];
    return sum;
}

// True if this block is the last of n to call it; then it sees what the others wrote before. The
// counter `ticket` is 0 before and after. `last` is in shared memory. FIRST_WROTE: only thread 0 of
// each block wrote what others read, and blocks are 1-D.
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

// Returns in each thread partials[0] + partials[stride] + ..., n values that other blocks have
// written, in a fixed order. scratch: shared memory.
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

// n elements: `head` of them before the first 16-byte boundary, then n_vecs vectors, then the tail.
// V: type as which vectors are loaded.
template <class E, class V = Vec<E, vec::WIDTH<E>>>
struct Range {
    static constexpr int WIDTH = vec::WIDTH<E>;
    const E* from;
    i64 n, n_vecs;
    int head;

    // The n elements at `from`.
    __device__ Range(const E* from, i64 n) : from(from), n(n) {
        const int before = vec::elements_to_16(from);
        head = before < n ? before : static_cast<int>(n);
        n_vecs = (n - head) / WIDTH;
    }
    // The first element after the vectors.
    __device__ i64 tail() const { return head + n_vecs * WIDTH; }
};

// The vectors, of type V, [first, first + span) of a range, as far as it has them: n at `from`;
// span < 2^31.
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

// Calls visit(vector) for vectors thread, thread + n_threads, ... of the vectors [first, first +
// span) of a range, UNROLL of them loaded together.
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

// Calls `visit` with vectors thread, thread + n_threads, ... of the vectors [first, first + span)
// of a range: first tries visit.all(UNROLL vectors), loaded together; if that returns false, or
// there are not so many left, calls visit(vector) for each of them.
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

// Calls visit(vector of one element) for elements thread, thread + n_threads, ... before the
// range's vectors, and of those after them.
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

    // sum += x[0] + ... + x[N - 1].
    template <int N>
    __device__ __forceinline__ void operator()(const Vec<E, N>& x) {
#pragma unroll
        for (int i = 0; i < N; ++i) sum += to_acc(x.at[i]);
    }
};

}  // namespace cto::reduce
