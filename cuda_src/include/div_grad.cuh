// SPDX-License-Identifier: MIT
// Gradient of Y = A / B under broadcasting: dA sums dY / B and dB sums -(dY / B) (A / B) over the
// dimensions that A, or B, is repeated along.
//
// Where one of them, the whole, has every dimension of dY, and the other is a part of it, one pass
// writes the whole's gradient and sums the part's. Sums go to a row of partial sums for each
// chunk of what is summed, which are added up in a second launch, in a fixed order.
#pragma once
#include "include/division.cuh"
#include "include/elementwise.cuh"

namespace cto {

struct DivGradient {
    ACC da, db;
};

// Division as T needs it: 2 units of float are nothing in 2-byte types. Those of half are normal in
// float; a subnormal divisor of the others must not become zero.
__device__ __forceinline__ float divided(float x, float y, float) { return divide_subnormal(x, y); }
__device__ __forceinline__ float divided(float x, float y, __half) { return __fdividef(x, y); }
__device__ __forceinline__ float divided(float x, float y, __nv_bfloat16) {
    return divide_roughly(x, y);
}
__device__ __forceinline__ double divided(double x, double y, double) { return x / y; }

__device__ __forceinline__ DivGradient div_gradient(ACC dy, ACC a, ACC b) {
    const ACC da = divided(dy, b, T{});
    return {da, -da * divided(a, b, T{})};
}

struct WholeAndPart {
    const T *dy, *whole, *part;
    T* d_whole;
};

template <int N>
__device__ __forceinline__ Packet<T, N> packet_at(const T* from, i64 at) {
    return *reinterpret_cast<const Packet<T, N>*>(from + at);
}

// N elements of dY and the whole.
template <int N>
struct Terms {
    i64 at;
    Packet<T, N> dy, whole;

    __device__ Terms(const WholeAndPart& arrays, i64 at)
        : at(at), dy(packet_at<N>(arrays.dy, at)), whole(packet_at<N>(arrays.whole, at)) {}
};

// The whole's gradient is written, the part's is added to `sums`.
template <int N, bool B_IS_PART>
__device__ __forceinline__ void differentiate(const WholeAndPart& arrays, const Terms<N>& terms,
                                              const ACC (&part)[N], ACC (&sums)[N]) {
    ACC d_whole[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const ACC w = widened(terms.whole.at[i]);
        const ACC a = B_IS_PART ? w : part[i];
        const ACC b = B_IS_PART ? part[i] : w;
        const DivGradient g = div_gradient(widened(terms.dy.at[i]), a, b);
        d_whole[i] = B_IS_PART ? g.da : g.db;
        sums[i] += B_IS_PART ? g.db : g.da;
    }
    if (arrays.d_whole)
        *reinterpret_cast<Packet<T, N>*>(arrays.d_whole + terms.at) = narrowed<T>(d_whole);
}

// All terms from `first` to before `end`, `step` apart; two are loaded before one is stored.
template <int N, bool B_IS_PART>
__device__ __forceinline__ void differentiate_all(const WholeAndPart& arrays, i64 first, i64 end,
                                                  i64 step, const ACC (&part)[N], ACC (&sums)[N]) {
    i64 at = first;
#pragma unroll 1
    for (; at + step < end; at += 2 * step) {
        const Terms<N> one(arrays, at), other(arrays, at + step);
        differentiate<N, B_IS_PART>(arrays, one, part, sums);
        differentiate<N, B_IS_PART>(arrays, other, part, sums);
    }
    if (at < end) differentiate<N, B_IS_PART>(arrays, Terms<N>(arrays, at), part, sums);
}

// A part that is one row: a thread has N columns of every blockDim.y-th row of a chunk.
template <int N, bool B_IS_PART>
__device__ __forceinline__ void sum_columns(const WholeAndPart& arrays, ACC* partials, i64 rows,
                                            i64 columns, i64 rows_each) {
    const i64 column = (static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
    if (column >= columns) return;
    const Packet<T, N> loaded = packet_at<N>(arrays.part, column);
    ACC part[N], sums[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
        part[i] = widened(loaded.at[i]);
        sums[i] = ACC(0);
    }
    const i64 first = blockIdx.y * rows_each, end = min(rows, first + rows_each);
    differentiate_all<N, B_IS_PART>(arrays, (first + threadIdx.y) * columns + column, end * columns,
                                    blockDim.y * columns, part, sums);
    if (!partials) return;
    const i64 chunk = static_cast<i64>(blockIdx.y) * blockDim.y + threadIdx.y;
#pragma unroll
    for (int i = 0; i < N; ++i) partials[chunk * columns + column + i] = sums[i];
}

// The sum over a group of `lanes` neighbouring threads of a warp, a power of 2, in its first lane.
__device__ __forceinline__ ACC group_sum(ACC value, u32 lanes) {
#pragma unroll 1
    for (u32 apart = lanes / 2; apart; apart /= 2)
        value += __shfl_down_sync(ALL_LANES, value, apart, lanes);
    return value;
}

// What a group of threads sums: a chunk of the terms of one kept element.
struct Task {
    i64 number, kept, chunk;
    u32 lane;
    bool exists;

    __device__ Task(i64 n_kept, i64 n_chunks, u32 lanes) {
        number = static_cast<i64>(blockIdx.x) * (THREADS / lanes) + threadIdx.x / lanes;
        chunk = number / n_kept;
        kept = number - chunk * n_kept;
        lane = threadIdx.x % lanes;
        exists = chunk < n_chunks;
    }

    // To the partial sums, or to the output itself where there is one chunk and so no partials.
    __device__ void emit(ACC sum, ACC* partials, T* out) const {
        if (!exists || lane != 0) return;
        if (partials)
            partials[number] = sum;
        else if (out)
            out[number] = narrow<T>(sum);
    }
};

// dY as [outer, kept, inner] with a part that has the kept dimension only; chunks of outer_each
// times inner_each elements.
struct Runs {
    i64 outer, kept, inner, outer_each, inner_each, inner_chunks, chunks;
    u32 lanes;
};

template <int N, bool B_IS_PART>
__device__ __forceinline__ void sum_runs(const WholeAndPart& arrays, ACC* partials, T* d_part,
                                         const Runs& runs) {
    const Task task(runs.kept, runs.chunks, runs.lanes);
    ACC part[N], sums[N], sum = ACC(0);
    if (task.exists) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            part[i] = widened(arrays.part[task.kept]);
            sums[i] = ACC(0);
        }
        const i64 outer_first = task.chunk / runs.inner_chunks * runs.outer_each;
        const i64 outer_end = min(runs.outer, outer_first + runs.outer_each);
        const i64 inner_first = task.chunk % runs.inner_chunks * runs.inner_each;
        const i64 inner_end = min(runs.inner, inner_first + runs.inner_each);
#pragma unroll 1
        for (i64 o = outer_first; o < outer_end; ++o) {
            const i64 start = (o * runs.kept + task.kept) * runs.inner;
            differentiate_all<N, B_IS_PART>(arrays, start + inner_first + task.lane * N,
                                            start + inner_end, runs.lanes * N, part, sums);
        }
#pragma unroll
        for (int i = 0; i < N; ++i) sum += sums[i];
    }
    task.emit(group_sum(sum, runs.lanes), partials, d_part);
}

// Any broadcasting: dimensions that are kept first, then those that are summed over, the innermost
// last of either; a step of 0 where an array is repeated.
struct Dimensions {
    static constexpr int MAX = 32;
    Divisor extent[MAX];
    i64 dy[MAX], a[MAX], b[MAX];
    i32 n_kept, n;
};

struct Offsets {
    i64 dy, a, b;

    __device__ void add(const Dimensions& dimensions, i64 index, i32 first, i32 end) {
        for (i32 d = end - 1; d >= first; --d) {
            const Cell cell = cell_at(index, dimensions.extent[d]);
            dy += cell.column * dimensions.dy[d];
            a += cell.column * dimensions.a[d];
            b += cell.column * dimensions.b[d];
            index = cell.row;
        }
    }
};

// Adds up rows of partial sums; thread (x, y) has every blockDim.y-th row of column x.
__device__ __forceinline__ void add_rows(const ACC* partials, T* out, i64 rows, i64 columns) {
    __shared__ ACC sums[1024];
    const i64 column = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    const u32 mine = threadIdx.y * blockDim.x + threadIdx.x;
    ACC sum = ACC(0);
    if (column < columns)
        for (i64 row = threadIdx.y; row < rows; row += blockDim.y)
            sum += partials[row * columns + column];
    sums[mine] = sum;
    for (u32 half = blockDim.y / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.y < half) sums[mine] += sums[mine + half * blockDim.x];
    }
    if (threadIdx.y == 0 && column < columns) out[column] = narrow<T>(sums[mine]);
}

}  // namespace cto
