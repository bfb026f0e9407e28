// SPDX-License-Identifier: MIT
// Rotary position embeddings and their gradient.  CPU provider: cupy_training_ops/families/rotary/reference.py
//
// An item is N neighbouring elements of a row's first half, and those of the second half that they are
// rotated with. __single is for halves that are not whole vectors, and arrays that are not aligned.
#include "core/fast_division.cuh"
#include "core/slots.cuh"
#include "core/vec.cuh"
#include "rotary/facts.cuh"

namespace cto {

using namespace facts::rotary;
using fast_division::Divisor;
using slots::ACC;
using slots::T;
using slots::W;  // of cos and sin
using vec::Vec;

// Rows of x and y, and which row of cos and sin belongs to each.
//
// items: of half a row. outer: heads with heads_last, else heads times n_rows. per_batch: each of the
// batch has rows of cos and sin of its own.
struct Rows {
    Divisor items, n_rows, outer;
    bool heads_last, per_batch;

    // The row of cos and sin of a row of x.
    __device__ i64 angles_of(i64 row) const {
        const i64 quotient = fast_division::quotient(row, outer);
        if (heads_last)
            return per_batch ? quotient : fast_division::cell_at(quotient, n_rows).column;
        const i64 place = fast_division::cell_at(row, n_rows).column;
        return per_batch ? quotient * n_rows.value + place : place;
    }
};

// Rotates ITEMS_OF_THREAD items of N elements, THREADS items apart, from item `first` on; with GRADIENT
// by the transposed matrices. All of x is loaded before the first store, so that y may be x.
template <bool GRADIENT, int N, int ITEMS_OF_THREAD>
__device__ __forceinline__ void rotate_items(const T* x, const W* cosines, const W* sines, T* y,
                                             i64 first, const Rows& rows) {
    using Run = Vec<T, N>;
    const i64 half = rows.items.value * N;
    i64 at[ITEMS_OF_THREAD], angles[ITEMS_OF_THREAD];
    Run x1[ITEMS_OF_THREAD], x2[ITEMS_OF_THREAD];
#pragma unroll
    for (int i = 0; i < ITEMS_OF_THREAD; ++i) {
        const auto cell = fast_division::cell_at(first + i * THREADS, rows.items);
        at[i] = 2 * half * cell.row + N * cell.column;
        angles[i] = 2 * half * rows.angles_of(cell.row) + N * cell.column;
        x1[i] = vec::load_streaming(reinterpret_cast<const Run*>(x + at[i]));
        x2[i] = vec::load_streaming(reinterpret_cast<const Run*>(x + at[i] + half));
    }
#pragma unroll
    for (int i = 0; i < ITEMS_OF_THREAD; ++i) {
        ACC cos1[N], cos2[N], sin1[N], sin2[N], y1[N], y2[N];
        vec::widen<W, /*CONSTANT=*/true>(cosines + angles[i], cos1);
        vec::widen<W, /*CONSTANT=*/true>(cosines + angles[i] + half, cos2);
        vec::widen<W, /*CONSTANT=*/true>(sines + angles[i], GRADIENT ? sin2 : sin1);
        vec::widen<W, /*CONSTANT=*/true>(sines + angles[i] + half, GRADIENT ? sin1 : sin2);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const ACC one = to_acc(x1[i].at[k]), other = to_acc(x2[i].at[k]);
            const ACC sign = GRADIENT ? -1 : 1;
            y1[k] = one * cos1[k] - sign * sin1[k] * other;
            y2[k] = other * cos2[k] + sign * sin2[k] * one;
        }
        vec::store_streaming(reinterpret_cast<Run*>(y + at[i]), vec::from_acc<T>(y1));
        vec::store_streaming(reinterpret_cast<Run*>(y + at[i] + half), vec::from_acc<T>(y2));
    }
}

// Rotates the items of a block, of n in all; N: elements of an item. The other arguments are those of
// rotate_items.
template <bool GRADIENT, int N>
__device__ __forceinline__ void rotate(const T* x, const W* cosines, const W* sines, T* y, i64 n,
                                       const Rows& rows) {
    const i64 tile = static_cast<i64>(blockIdx.x) * (ITEMS * THREADS);
    if (tile + ITEMS * THREADS <= n) {
        rotate_items<GRADIENT, N, ITEMS>(x, cosines, sines, y, tile + threadIdx.x, rows);
        return;
    }
#pragma unroll 1
    for (i64 item = tile + threadIdx.x; item < n; item += THREADS)
        rotate_items<GRADIENT, N, 1>(x, cosines, sines, y, item, rows);
}

}  // namespace cto

using namespace cto;

// Of all kernels: cosines, sines: (1, or with per_batch the batch, n_rows, width). n: items of all rows.
// items, n_rows, outer, heads_last, per_batch: the fields of Rows.

// y = x, rotated, by vectors.
extern "C" __global__ void __launch_bounds__(THREADS)
    rotary_halves(const T* x, const W* cosines, const W* sines, T* y, i64 n,
                  const __grid_constant__ Divisor items, const __grid_constant__ Divisor n_rows,
                  const __grid_constant__ Divisor outer, bool heads_last, bool per_batch) {
    const Rows rows{items, n_rows, outer, heads_last, per_batch};
    rotate</*GRADIENT=*/false, vec::WIDTH<T>>(x, cosines, sines, y, n, rows);
}
// y = x, rotated, element by element.
extern "C" __global__ void __launch_bounds__(THREADS)
    rotary_halves__single(const T* x, const W* cosines, const W* sines, T* y, i64 n,
                          const __grid_constant__ Divisor items,
                          const __grid_constant__ Divisor n_rows,
                          const __grid_constant__ Divisor outer, bool heads_last, bool per_batch) {
    const Rows rows{items, n_rows, outer, heads_last, per_batch};
    rotate</*GRADIENT=*/false, 1>(x, cosines, sines, y, n, rows);
}
// dx = dy times the transposed rotations, by vectors.
extern "C" __global__ void __launch_bounds__(THREADS)
    rotary_halves_grad(const T* dy, const W* cosines, const W* sines, T* dx, i64 n,
                       const __grid_constant__ Divisor items,
                       const __grid_constant__ Divisor n_rows,
                       const __grid_constant__ Divisor outer, bool heads_last, bool per_batch) {
    const Rows rows{items, n_rows, outer, heads_last, per_batch};
    rotate</*GRADIENT=*/true, vec::WIDTH<T>>(dy, cosines, sines, dx, n, rows);
}
// dx = dy times the transposed rotations, element by element.
extern "C" __global__ void __launch_bounds__(THREADS)
    rotary_halves_grad__single(const T* dy, const W* cosines, const W* sines, T* dx, i64 n,
                               const __grid_constant__ Divisor items,
                               const __grid_constant__ Divisor n_rows,
                               const __grid_constant__ Divisor outer, bool heads_last,
                               bool per_batch) {
    const Rows rows{items, n_rows, outer, heads_last, per_batch};
    rotate</*GRADIENT=*/true, 1>(dy, cosines, sines, dx, n, rows);
}
