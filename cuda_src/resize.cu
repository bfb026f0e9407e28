// SPDX-License-Identifier: MIT
// ResizeGrad.  CPU provider: cupy_training_ops/cpu/resize.py
//
// A warp makes a tile of dX: it sums rows of dY column by column into shared memory, then columns.
// Every element of dX is one sum in a fixed order, so there are no atomics.
#include "include/types.cuh"

#ifndef CTO_ACC
#define CTO_ACC float
#endif

namespace cto {

using ACC = CTO_ACC;

constexpr int WARP = 32;
constexpr int WARPS = 4;        // of a block
constexpr int BAND = 8;         // rows of a tile of dX
constexpr int TILE = 2 * WARP;  // columns of a tile of dX
constexpr int EACH = 5;         // columns of dY that a lane sums: a tile's, upsampled twofold
constexpr int COLUMNS = EACH * WARP;
constexpr int BATCH = 4;  // rows of dY that are loaded before the first is used

__device__ __forceinline__ float times(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double times(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ double widened(double x) { return x; }
template <class E>
__device__ __forceinline__ float widened(E x) {
    return to_float(x);
}
__device__ __forceinline__ void narrow(double x, double& y) { y = x; }
template <class E>
__device__ __forceinline__ void narrow(float x, E& y) {
    y = from_float<E>(x);
}

// An output takes 1 - share of pixel `low` and share of the pixel after it.
struct Tap {
    i32 low;
    ACC share;
};

// One spatial axis: n_in pixels of X make n_out of Y. Output o lies at ratio * o or, with pixels
// counted from their middles, at ratio * (o + 1/2) - 1/2, rounded as the CPU provider rounds it.
struct Axis {
    i32 n_in, n_out, align_corners;
    ACC ratio;

    __device__ Tap tap(i32 o) const {
        const ACC middle = align_corners ? ACC(0) : ACC(0.5);
        const ACC position = max(times(ratio, static_cast<ACC>(o) + middle) - middle, ACC(0));
        const i32 low = min(static_cast<i32>(position), n_in - 1);
        return {low, low < n_in - 1 ? position - static_cast<ACC>(low) : ACC(0)};
    }

    // The first output whose low pixel is `pixel` or one after it: the outputs that touch pixel i
    // are those from first_from(i - 1) to before first_from(i + 1).
    __device__ i32 first_from(i32 pixel) const {
        if (pixel <= 0 || pixel >= n_in) return pixel <= 0 ? 0 : n_out;
        const ACC middle = align_corners ? ACC(0) : ACC(0.5);
        const ACC guess = (static_cast<ACC>(pixel) + middle) / ratio - middle;
        i32 o = static_cast<i32>(min(guess, static_cast<ACC>(n_out)));
        o = min(max(o, 0), n_out);
        while (o > 0 && tap(o - 1).low >= pixel) --o;
        while (o < n_out && tap(o).low < pixel) ++o;
        return o;
    }
};

struct Span {
    i32 begin, end;
};

__device__ __forceinline__ Span touching(const Axis& axis, i32 first, i32 last) {
    return {axis.first_from(first - 1), axis.first_from(last + 1)};
}

// What rows of dX get of the columns of dY that a lane has, every 32nd. Two rows are open at a
// time: the one that low pixels are in, and the one after it.
struct OpenRows {
    i32 row;
    ACC low[EACH], high[EACH];

    __device__ void add(ACC share, const T* dy) {
#pragma unroll
        for (int c = 0; c < EACH; ++c) {
            const ACC g = widened(dy[c]);
            low[c] += (ACC(1) - share) * g;
            high[c] += share * g;
        }
    }

    // Rows before `next` are finished; `sums` starts at `first_row`.
    __device__ void advance(i32 next, i32 first_row, i32 lane, ACC (*sums)[COLUMNS]) {
        for (; row < next; ++row) {
#pragma unroll
            for (int c = 0; c < EACH; ++c) {
                if (row >= first_row) sums[row - first_row][c * WARP + lane] = low[c];
                low[c] = high[c];
                high[c] = ACC(0);
            }
        }
    }
};

// sums[r][c] = what row `first_row` + r of dX gets in column `columns.begin` + c of dY.
__device__ __forceinline__ void sum_rows(const T* dy, const Axis& rows, i64 width, i32 first_row,
                                         Span outputs, Span columns, i32 lane,
                                         ACC (*sums)[COLUMNS]) {
    OpenRows open{first_row - 1};
#pragma unroll 1
    for (i32 o = outputs.begin; o < outputs.end; o += BATCH) {
        T g[BATCH][EACH];
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
#pragma unroll
            for (int c = 0; c < EACH; ++c) {
                const i32 column = columns.begin + c * WARP + lane;
                const bool inside = o + b < outputs.end && column < columns.end;
                g[b][c] = inside ? dy[(o + b) * width + column] : T{};
            }
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            if (o + b >= outputs.end) break;
            const Tap tap = rows.tap(o + b);
            open.advance(tap.low, first_row, lane, sums);
            open.add(tap.share, g[b]);
        }
    }
    open.advance(first_row + BAND, first_row, lane, sums);
}

// Adds what column `column` of dX gets of the summed rows: columns `outputs` of dY, of which the
// first that was summed is `first`.
__device__ __forceinline__ void sum_columns(const ACC (*sums)[COLUMNS], const Axis& columns,
                                            i32 column, Span outputs, i32 first, ACC* dx) {
    for (i32 o = outputs.begin; o < outputs.end; ++o) {
        const Tap tap = columns.tap(o);
        const ACC weight = tap.low == column ? ACC(1) - tap.share : tap.share;
#pragma unroll
        for (int r = 0; r < BAND; ++r) dx[r] += weight * sums[r][o - first];
    }
}

__device__ __forceinline__ i32 tiles_of(i32 n, i32 tile) { return (n + tile - 1) / tile; }

}  // namespace cto

using namespace cto;

extern "C" __global__ void __launch_bounds__(WARPS* WARP)
    resize_grad(const T* dy, T* dx, i64 n_planes, const Axis rows, const Axis columns) {
    __shared__ ACC shared[WARPS][BAND][COLUMNS];
    const i32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const i32 n_tiles = tiles_of(columns.n_in, TILE), n_bands = tiles_of(rows.n_in, BAND);
    const i64 tile = static_cast<i64>(blockIdx.x) * WARPS + warp;
    const i64 plane = tile / n_tiles / n_bands;
    if (plane >= n_planes) return;
    const i32 first_row = static_cast<i32>(tile / n_tiles % n_bands) * BAND;
    const i32 first_column = static_cast<i32>(tile % n_tiles) * TILE;
    dy += plane * rows.n_out * columns.n_out;
    dx += plane * rows.n_in * columns.n_in;

    const Span down = touching(rows, first_row, min(first_row + BAND, rows.n_in) - 1);
    const Span across = touching(columns, first_column, min(first_column + TILE, columns.n_in) - 1);
    const i32 mine[2] = {first_column + lane, first_column + lane + WARP};
    const Span touch[2] = {touching(columns, mine[0], mine[0]),
                           touching(columns, mine[1], mine[1])};
    ACC sums[2][BAND] = {};
    for (i32 first = across.begin; first < across.end; first += COLUMNS) {
        const i32 end = min(first + COLUMNS, across.end);
        sum_rows(dy, rows, columns.n_out, first_row, down, {first, end}, lane, shared[warp]);
        __syncwarp();
#pragma unroll
        for (int v = 0; v < 2; ++v) {
            const Span some = {max(touch[v].begin, first), min(touch[v].end, end)};
            sum_columns(shared[warp], columns, mine[v], some, first, sums[v]);
        }
        __syncwarp();
    }
#pragma unroll
    for (int r = 0; r < BAND; ++r) {
#pragma unroll
        for (int v = 0; v < 2; ++v) {
            const i32 row = first_row + r;
            if (row < rows.n_in && mine[v] < columns.n_in)
                narrow(sums[v][r], dx[static_cast<i64>(row) * columns.n_in + mine[v]]);
        }
    }
}
