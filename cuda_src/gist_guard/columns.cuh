// SPDX-License-Identifier: MIT
// Columns of a matrix whose rows are whole tiles, summed while its tiles are encoded.
#pragma once
#include "gist_guard/encode.cuh"
#include "gist_guard/facts.cuh"

namespace cto::gist_guard::columns {

using namespace gist_guard::encode;
using namespace gist_guard::sums;
using namespace gist_guard::tile;

constexpr u32 ROW_LANES = facts::gist_guard::ROW_LANES;
constexpr u32 TILE_LANES = facts::gist_guard::TILE_LANES;
// Exponents by which floats' sums may be passed before they are scaled down, and below which what is
// off counts as more than it is: so a group never looks better than it is.
constexpr i32 HEADROOM = 24, LOWEST = -55;

// 2^k, the nearest that is normal.
__device__ __forceinline__ float power_of(i32 k, float) {
    return __uint_as_float(static_cast<u32>(min(max(k, -126), 127) + 127) << 23);
}
__device__ __forceinline__ double power_of(i32 k, double) {
    return double_of(static_cast<u64>(k + 1023) << 52);
}

// Sums over eight neighbouring columns in quanta of the exponent `base`: distances from the first
// row, their squares, and squares of what is off.
template <class T>
struct Columns {
    using A = Acc<T>;

    A origin[TILE] = {};
    float sum[TILE] = {}, squares[TILE] = {}, error[TILE] = {};
    i32 base = 0, rows = 0;

    __device__ __forceinline__ void add(const Tile<T>& tile) {
        const i32 exponent = static_cast<i32>(tile.exponent);
        if (rows == 0) begin(tile, exponent);
        if (exponent > base + HEADROOM) rebase(exponent);
        const A scale = power_of(exponent - base, A());
        const float of_off = power_of(max(exponent - base, LOWEST), 0.0f);
#pragma unroll
        for (int j = 0; j < TILE; ++j) {
            const float distance = static_cast<float>(tile.quanta[j] * scale - origin[j]);
            const float off = tile.off[j] * of_off;
            sum[j] += distance;
            squares[j] += distance * distance;
            error[j] += off * off;
        }
        ++rows;
    }
    __device__ __forceinline__ Moments moments(int j) const {
        const double n = rows > 0 ? rows : 1, quantum = quantum_of(base), unit = unit_of(base);
        const double distance = sum[j] / n;
        return {(origin[j] + distance) * quantum, larger(squares[j] - sum[j] * distance, 0) * unit,
                error[j] * unit};
    }

  private:
    __device__ __forceinline__ void begin(const Tile<T>& tile, i32 exponent) {
        base = exponent;
#pragma unroll
        for (int j = 0; j < TILE; ++j) origin[j] = tile.quanta[j];
    }
    __device__ __forceinline__ void rebase(i32 exponent) {
        const i32 below = base - exponent;
        const float scale = power_of(below, 0.0f), of_off = power_of(max(below, LOWEST), 0.0f);
#pragma unroll
        for (int j = 0; j < TILE; ++j) {
            origin[j] *= power_of(below, A());
            sum[j] *= scale;
            squares[j] *= scale * scale;
            error[j] *= of_off * of_off;
        }
        base = exponent;
    }
};

// A matrix of n_rows rows of `tiles` tiles, of which a warp takes `span` rows.
struct Matrix {
    i64 n_rows, tiles, span;
    Moments* moments;  // of each span and column
};

template <class T>
__device__ __forceinline__ void store_columns(const Columns<T>& columns, const Matrix& matrix,
                                              i64 span, i64 tile, Totals& totals) {
    const bool stores = threadIdx.x % WARP < TILE_LANES && tile < matrix.tiles;
#pragma unroll 1
    for (int j = 0; j < TILE; ++j) {
        const Moments own = columns.moments(j);
        Merged merged(__shfl_sync(ALL_LANES, own.mean, threadIdx.x % TILE_LANES));
        merged.add(columns.rows, own);
        for (u32 step = TILE_LANES; step < WARP; step *= 2) merged.add_lane(step);
        if (!stores) continue;
        const i64 rest = matrix.n_rows - span * matrix.span;
        const double n = static_cast<double>(rest < matrix.span ? rest : matrix.span);
        matrix.moments[(span * matrix.tiles + tile) * TILE + j] = merged.moments(n);
        totals.error += merged.error;
    }
}

// Adds tiles that are `step` apart, n of them.
template <bool ALIGNED, int UNROLL, class T>
__device__ __forceinline__ void encode_column(const Encoding<T>& call, i64 step, u32 n,
                                              Columns<T>& columns, Totals& totals) {
    i64 tile = 0;
#pragma unroll 1
    for (u32 i = 0; i < n; i += UNROLL, tile += UNROLL * step) {
        Loaded<T> loaded[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (i + u < n) loaded[u] = call.template load_whole<ALIGNED>(tile + u * step);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (i + u >= n) continue;
            const Tile<T> found = call.encode(loaded[u], tile + u * step, ALIGNED);
            const double unit = unit_of(found.exponent);
            totals.tile_deviation +=
                deviation_of<true>(found.template spread<true>(TILE), TILE) * unit;
            totals.exponent = max(found.exponent, totals.exponent);
            columns.add(found);
        }
    }
}

template <int UNROLL, class T>
__device__ __forceinline__ void encode_columns(const Encoding<T>& call, const Matrix& matrix,
                                               u32 warp, Totals& totals) {
    const u32 groups = static_cast<u32>((matrix.tiles + TILE_LANES - 1) / TILE_LANES);
    const u32 lane = threadIdx.x % WARP;
    const i64 span = warp / groups, tile = warp % groups * TILE_LANES + lane % TILE_LANES;
    const i64 end =
        (span + 1) * matrix.span < matrix.n_rows ? (span + 1) * matrix.span : matrix.n_rows;
    const i64 begin = span * matrix.span + lane / TILE_LANES, step = ROW_LANES * matrix.tiles;
    Columns<T> columns;
    if (tile < matrix.tiles && begin < end) {
        const u32 n = static_cast<u32>((end - begin + ROW_LANES - 1) / ROW_LANES);
        const Encoding<T> own = call.from(begin * matrix.tiles + tile);
        if (call.aligned)
            encode_column<true, UNROLL>(own, step, n, columns, totals);
        else
            encode_column<false, 1>(own, step, n, columns, totals);
    }
    if (span * matrix.span < matrix.n_rows) store_columns(columns, matrix, span, tile, totals);
}

}  // namespace cto::gist_guard::columns
