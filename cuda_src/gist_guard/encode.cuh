// SPDX-License-Identifier: MIT
// One pass over an array: tiles, tiles of runs, and tiles of columns, encoded and summed.
#pragma once
#include "gist_guard/sums.cuh"
#include "gist_guard/tile.cuh"

namespace cto::gist_guard::encode {

using namespace gist_guard::sums;
using namespace gist_guard::tile;

// A call: n elements of x to y, which is null where only the guard is asked for.
template <class T>
struct Encoding {
    const T* x;
    u8* y;
    i64 n;
    bool aligned, keep_nonfinite;

    // The same from this tile on.
    __device__ __forceinline__ Encoding from(i64 tile) const {
        return {x + tile * TILE, y == nullptr ? nullptr : y + tile * TILE, n - tile * TILE, aligned,
                keep_nonfinite};
    }
    __device__ __forceinline__ Loaded<T> load(i64 tile) const {
        return load_tile(x, tile * TILE, n, aligned);
    }
    // A tile of which no element is behind the last one.
    template <bool ALIGNED>
    __device__ __forceinline__ Loaded<T> load_whole(i64 tile) const {
        return load_tile(x, tile * TILE, (tile + 1) * TILE, ALIGNED);
    }
    __device__ __forceinline__ Tile<T> encode(const Loaded<T>& loaded, i64 tile,
                                              bool aligned) const {
        const Tile<T> encoded(loaded, keep_nonfinite);
        store_tile(y, tile, aligned, encoded.codes);
        return encoded;
    }
};

// ---- tiles --------------------------------------------------------------------------------------

template <bool WHOLE, class T>
__device__ __forceinline__ void count_tile(const Tile<T>& tile, int n, Totals& totals) {
    const double unit = unit_of(tile.exponent);
    totals.error += tile.error() * unit;
    totals.tile_deviation += deviation_of<WHOLE>(tile.template spread<WHOLE>(n), n) * unit;
    totals.exponent = max(tile.exponent, totals.exponent);
}

// The tiles of every gridDim.x-th span, UNROLL tiles a thread.
template <int THREADS, int UNROLL, class T>
__device__ __forceinline__ void encode_tiles(const Encoding<T>& call, Totals& totals) {
    constexpr i64 SPAN = THREADS * UNROLL;
    const i64 whole = call.aligned ? call.n / TILE : 0, tiles = (call.n + TILE - 1) / TILE;
#pragma unroll 1
    for (i64 span = blockIdx.x * SPAN; span < tiles; span += gridDim.x * SPAN) {
        const i64 first = span + threadIdx.x;
        if (span + SPAN <= whole) {
            Loaded<T> loaded[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
                loaded[u] = call.template load_whole<true>(first + u * THREADS);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
                count_tile<true>(call.encode(loaded[u], first + u * THREADS, true), TILE, totals);
            continue;
        }
#pragma unroll 1
        for (i64 tile = first; tile < span + SPAN && tile < tiles; tile += THREADS) {
            const i64 there = call.n - tile * TILE;
            count_tile<false>(call.encode(call.load(tile), tile, call.aligned),
                              static_cast<int>(there < TILE ? there : TILE), totals);
        }
    }
}

// ---- runs of whole tiles ------------------------------------------------------------------------

// Runs of `length` tiles, each in parts of `part` tiles of which the last may have fewer. `lanes` of
// a warp, a power of two, are at a part. moments: where those of each part go; null where a run is a
// part and a group.
struct Part;
struct Runs {
    i64 runs, length, part;
    u32 parts, lanes;
    Moments* moments;

    __device__ __forceinline__ void keep(const Part& part, const Moments& found,
                                         Totals& totals) const;
};

// A part: where it begins, and of how many tiles it is, none behind the last part.
struct Part {
    i64 number, first, n;

    __device__ __forceinline__ Part(const Runs& runs, i64 number, i64 n_parts) : number(number) {
        const bool one = runs.parts == 1;  // divisions of 64 bits are calls
        const i64 run = one ? number : number / runs.parts;
        const i64 begin = one ? 0 : (number - run * runs.parts) * runs.part;
        const i64 rest = runs.length - begin;
        first = run * runs.length + begin;
        n = number >= n_parts ? 0 : rest < runs.part ? rest : runs.part;
    }
};

__device__ __forceinline__ void Runs::keep(const Part& own, const Moments& found,
                                           Totals& totals) const {
    if (moments == nullptr)
        totals.add_group(found);
    else
        moments[own.number] = found;
}

// What a lane has of a part: squares of distances from the means of tiles and of what is off, and
// the means' distances from the part's first element.
struct PartSums {
    double error = 0, within = 0, sum = 0, between = 0;

    template <class T>
    __device__ __forceinline__ void add(const Tile<T>& tile, double origin) {
        const double quantum = quantum_of(tile.exponent), unit = unit_of(tile.exponent);
        const Spread spread = tile.template spread<true>(TILE);
        // In double: a float's mean of large elements is off by more than they deviate.
        const double first = widened(tile.quanta[0]) * quantum - origin;
        const double distance = first + spread.sum * (quantum / TILE);
        error += tile.error() * unit;
        within += deviation_of<true>(spread, TILE) * unit;
        sum += distance;
        between += distance * distance;
    }
    __device__ __forceinline__ void join(u32 lanes) {
#pragma unroll 1
        for (u32 step = lanes / 2; step > 0; step /= 2) {
            error += shuffled(error, step);
            within += shuffled(within, step);
            sum += shuffled(sum, step);
            between += shuffled(between, step);
        }
    }
    // Of n means, of `each` elements.
    __device__ __forceinline__ Moments moments(double origin, double n, double each) const {
        const double distance = sum / n;
        return {origin + distance, within + each * larger(between - sum * distance, 0), error};
    }
};

// A part has fewer than 2^31 tiles: there are at least as many parts as multiprocessors.
template <bool ALIGNED, int UNROLL, class T>
__device__ __forceinline__ PartSums encode_part(const Encoding<T>& call, const Part& part,
                                                double origin, u32 lanes, Totals& totals) {
    PartSums sums;
    const Encoding<T> own = call.from(part.first);
    const u32 n = static_cast<u32>(part.n);
#pragma unroll 1
    for (u32 i = threadIdx.x % lanes; i < n; i += UNROLL * lanes) {
        Loaded<T> loaded[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (i + u * lanes < n) loaded[u] = own.template load_whole<ALIGNED>(i + u * lanes);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (i + u * lanes >= n) continue;
            const Tile<T> tile = own.encode(loaded[u], i + u * lanes, ALIGNED);
            sums.add(tile, origin);
            totals.exponent = max(tile.exponent, totals.exponent);
        }
    }
    return sums;
}

// Every part by its own lanes; a warp's lanes stay together.
template <int THREADS, int UNROLL, class T>
__device__ __forceinline__ void encode_runs(const Encoding<T>& call, const Runs& runs,
                                            Totals& totals) {
    const i64 n_parts = runs.runs * runs.parts;
    const u32 of_block = THREADS / runs.lanes, of_warp = WARP / runs.lanes;
    const u32 lane = threadIdx.x % WARP;
#pragma unroll 1
    for (i64 some = static_cast<i64>(blockIdx.x) * of_block + threadIdx.x / WARP * of_warp;
         some < n_parts; some += static_cast<i64>(gridDim.x) * of_block) {
        const Part part(runs, some + lane / runs.lanes, n_parts);
        const double origin = part.n > 0 ? element(call.x[part.first * TILE]) : 0.0;
        PartSums sums = call.aligned
                            ? encode_part<true, UNROLL>(call, part, origin, runs.lanes, totals)
                            : encode_part<false, 1>(call, part, origin, runs.lanes, totals);
        sums.join(runs.lanes);
        if (part.n == 0 || lane % runs.lanes != 0) continue;
        totals.tile_deviation += sums.within;
        totals.error += sums.error;
        runs.keep(part, sums.moments(origin, static_cast<double>(part.n), TILE), totals);
    }
}

}  // namespace cto::gist_guard::encode
