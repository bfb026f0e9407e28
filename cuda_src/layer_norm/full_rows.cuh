// SPDX-License-Identifier: MIT
// Rows of exactly threads * COLUMNS elements, where y is not null: faster than forward.cuh, without
// bounds checks. W: elements of a slot, 16 bytes of the wider of X and Y; COLUMNS: of a thread.
#pragma once
#include "layer_norm/forward.cuh"

namespace cto::full_rows {

// Returns in each thread of a row the sum of `own` over the row's threads: a part of a warp, or
// whole warps, of which `first` is the first one's number in the block. per_warp is in shared
// memory.
template <class A>
__device__ __forceinline__ A sum_of_row(A own, u32 threads, u32 first, A* per_warp) {
    if (threads < WARP) {
#pragma unroll 1
        for (u32 step = 1; step < threads; step *= 2) own += __shfl_xor_sync(ALL_LANES, own, step);
        return own;
    }
#pragma unroll
    for (u32 step = 1; step < WARP; step *= 2) own += __shfl_xor_sync(ALL_LANES, own, step);
    if (threads == WARP) return own;
    if (threadIdx.x % WARP == 0) per_warp[threadIdx.x / WARP] = own;
    __syncthreads();
    A sum = 0;
#pragma unroll 4
    for (u32 i = 0; i < threads / WARP; ++i) sum += per_warp[first + i];
    return sum;
}

// A thread's part of a row of threads * COLUMNS elements: COLUMNS of them, in slots of W.
//
//     slot u    columns thread * W + u * step to + W - 1, u < DEPTH
//     `first`   row * threads * COLUMNS + thread * W: slot 0 in the array
//
// A block has blockDim.x / threads rows; if that is more than one, `threads` is a power of two.
// Threads past the last row (exists is false) read row 0, as they must take part in the block's
// shuffles and barriers. group: number of the row in the block; thread: of this one in the row.
template <int W, int COLUMNS, class T>
struct Part {
    static constexpr int DEPTH = COLUMNS / W;
    u32 threads, group, thread;
    i64 row;
    bool exists;
    u32 step;   // elements from a slot to the next
    i64 first;  // index of slot 0 in the array
    vec::Elements<T, W> own[DEPTH];

    // The place of this thread among n_rows rows: `threads` threads share a row, a block has one
    // row or several.
    __device__ __forceinline__ Part(i64 n_rows, u32 threads) : threads(threads) {
        const bool has_several = threads < blockDim.x;
        const u32 shift = has_several ? 31 - __clz(threads) : 0;
        group = has_several ? threadIdx.x >> shift : 0;
        thread = has_several ? threadIdx.x & (threads - 1) : threadIdx.x;
        row = static_cast<i64>(blockIdx.x) * (has_several ? blockDim.x >> shift : 1) + group;
        exists = row < n_rows;
        step = threads * W;
        first = (exists ? row : 0) * (threads * COLUMNS) + thread * W;
    }
    // Loads all slots. BEFORE_STORES: the loads are marked evict-last in the caches, as as much is
    // written while x is read.
    template <bool BEFORE_STORES>
    __device__ __forceinline__ void load(const T* x) {
#pragma unroll
        for (int u = 0; u < DEPTH; ++u) {
            const T* const from = x + first + u * step;
            if constexpr (BEFORE_STORES)
                own[u].load_before_stores(from);
            else
                own[u].load(from);
        }
    }
    // First column of slot u.
    __device__ __forceinline__ u32 column(int u) const { return thread * W + u * step; }
    __device__ __forceinline__ u32 first_warp() const { return group * (threads / WARP); }

    // see(element) for each of the thread's elements.
    template <class See>
    __device__ __forceinline__ void each(const See& see) const {
#pragma unroll
        for (int u = 0; u < DEPTH; ++u)
#pragma unroll
            for (int i = 0; i < W; ++i) see(own[u].at(i));
    }
    // Slot u of y = values, rounded.
    template <class V>
    __device__ __forceinline__ void store(V* y, int u, const Acc<T> (&values)[W]) const {
        const vec::Vec<V, W> rounded = vec::from_acc<V>(values);
        *reinterpret_cast<vec::Vec<V, W>*>(y + first + u * step) = rounded;
    }
};

// y = x * inv_std * scale, inv_std = 1 / sqrt(mean of x^2 + epsilon), for n_rows rows of threads *
// COLUMNS elements, `threads` threads a row. inv_std may be null.
template <int W, int COLUMNS, class T, class V>
__device__ __forceinline__ void scale_rows(const T* x, const V* scale, V* y, Acc<T>* inv_std,
                                           Acc<T> epsilon, i64 n_rows, u32 threads) {
    using A = Acc<T>;
    __shared__ A per_warp[WARP];
    Part<W, COLUMNS, T> part(n_rows, threads);
    part.template load</*BEFORE_STORES=*/(sizeof(T) == sizeof(V))>(x);
    vec::all_are_asked_for();
    A squares = 0;
    part.each([&](A element) { squares += element * element; });
    squares = sum_of_row(squares, threads, part.first_warp(), per_warp);
    if (!part.exists) return;
    const A factor = rsqrt(fast_divide(squares, static_cast<A>(threads * COLUMNS)) + epsilon);
    if (part.thread == 0 && inv_std) inv_std[part.row] = factor;
#pragma unroll
    for (int u = 0; u < part.DEPTH; ++u) {
        vec::Elements<V, W> of_column;
        of_column.load(scale + part.column(u));
        A values[W];
#pragma unroll
        for (int i = 0; i < W; ++i)  // + 0, as with a bias: -0 becomes 0
            values[i] = part.own[u].at(i) * factor * of_column.at(i) + A(0);
        part.store(y, u, values);
    }
}

// y = (x - mean) * inv_std * scale + bias of `arrays`, for n_rows rows of threads * COLUMNS
// elements, `threads` threads a row. The mean is summed first, then the squares of x - mean. mean =
// origin + mean of (x - origin); the origin is the row's first element, or 0 for 2-byte elements,
// whose sum in float32 is exact enough.
template <int W, int COLUMNS, class T, class V>
__device__ __forceinline__ void centre_rows(const layer_norm_forward::Arrays<T, V>& arrays,
                                            i64 n_rows, u32 threads) {
    using A = Acc<T>;
    __shared__ A per_warp[2][WARP];
    Part<W, COLUMNS, T> part(n_rows, threads);
    part.template load</*BEFORE_STORES=*/(sizeof(T) == sizeof(V))>(arrays.x);
    const i64 length = threads * COLUMNS, row = part.exists ? part.row : 0;
    const A n = static_cast<A>(length);
    const A origin = sizeof(T) == 2 ? A(0) : arrays.origin(row, length);
    vec::all_are_asked_for();
    A sum = 0, squares = 0;
    part.each([&](A element) { sum += element - origin; });
    sum = sum_of_row(sum, threads, part.first_warp(), per_warp[0]);
    const A center = fast_divide(sum, n);
    const auto distance = [&](A element) { return element - origin - center; };
    part.each([&](A element) { squares += distance(element) * distance(element); });
    squares = sum_of_row(squares, threads, part.first_warp(), per_warp[1]);
    if (!part.exists) return;
    const A inv_std = arrays.inverse(squares, n);
    if (part.thread == 0) arrays.store_statistics(row, origin + center, inv_std);
#pragma unroll
    for (int u = 0; u < part.DEPTH; ++u) {
        vec::Elements<V, W> of_column;
        of_column.load(arrays.scale + part.column(u));
        A bias[W] = {}, values[W];
        if (arrays.bias) vec::widen<V>(arrays.bias + part.column(u), bias);
#pragma unroll
        for (int i = 0; i < W; ++i)
            values[i] = distance(part.own[u].at(i)) * inv_std * of_column.at(i) + bias[i];
        part.store(arrays.y, u, values);
    }
}

}  // namespace cto::full_rows
