// SPDX-License-Identifier: MIT
// Groups that are no whole tiles: runs in the pass that encodes, columns from elements and their codes;
// and groups that lie in parts.
#pragma once
#include "gist_guard/encode.cuh"

namespace cto::gist_guard::groups {

using namespace gist_guard::encode;
using namespace gist_guard::sums;
using namespace gist_guard::tile;

// ---- elements and codes -------------------------------------------------------------------------

template <class T>
struct Coded {
    const T* x;
    const u8* y;
    bool aligned;  // the codes begin at a multiple of 8 bytes

    __device__ __forceinline__ uint2 codes(i64 tile) const {
        if (aligned) return reinterpret_cast<const uint2*>(y)[tile];
        const auto bytes = vec::load_elements<u8, TILE>(y, tile * TILE, (tile + 1) * TILE);
        return *reinterpret_cast<const uint2*>(&bytes);
    }
    // Element i, and how far its code is off.
    __device__ __forceinline__ void read(i64 i, double& value, double& off) const {
        const uint2 tile = codes(i / TILE);
        const u32 code = (i & 4 ? tile.y : tile.x) >> 8 * (i & 3);
        const double step = STEP * quantum_of(format::msfp15::shared_exponent_of(tile));
        const double size = static_cast<double>(code & 0x3Fu) * step;
        value = element(x[i]);
        off = value - (code & 0x40u ? -size : size);
    }
};

// Adds element i to sums relative to an origin.
template <class T>
__device__ __forceinline__ void add_element(const Coded<T>& coded, i64 i, double origin,
                                            PartSums& sums) {
    double value, off;
    coded.read(i, value, off);
    const double distance = value - origin;
    sums.error += off * off;
    sums.sum += distance;
    sums.between += distance * distance;
}

// ---- runs and columns of any length -------------------------------------------------------------

// Adds the elements of a tile that are of a part: from `begin` to before `end`.
template <class T>
__device__ __forceinline__ void add_share(const Tile<T>& tile, int begin, int end, double origin,
                                          PartSums& sums) {
    const double quantum = quantum_of(tile.exponent), unit = unit_of(tile.exponent);
    Acc<T> first;
    const int n = end - begin;
    const Spread spread = tile.spread(begin, end, first);
    const double mean = spread.sum / static_cast<float>(n) * quantum;
    const double distance = widened(first) * quantum - origin + mean;
    sums.error += tile.error(begin, end) * unit;
    sums.within += deviation_of<false>(spread, n) * unit;
    sums.sum += n * distance;
    sums.between += n * (distance * distance);
}

// The tiles in which a part's elements are. A tile of several parts is read by each of them, and
// stored and counted by the one that has its first element.
template <class T>
__device__ __forceinline__ PartSums encode_share(const Encoding<T>& call, const Part& part,
                                                 double origin, u32 lanes, Totals& totals) {
    PartSums sums;
    const i64 tile = part.first / TILE;
    const Encoding<T> own = call.from(tile);
    const i32 skipped = static_cast<i32>(part.first - tile * TILE);
    const i32 n = static_cast<i32>(part.n) + skipped;
#pragma unroll 1
    for (i32 at = threadIdx.x % lanes * TILE; part.n > 0 && at < n; at += lanes * TILE) {
        const int begin = at < skipped ? skipped - at : 0, end = min(n - at, TILE);
        const Tile<T> found(own.load(at / TILE), call.keep_nonfinite);
        add_share(found, begin, end, origin, sums);
        if (begin > 0) continue;
        store_tile(own.y, at / TILE, call.aligned, found.codes);
        count_tile<false>(found, static_cast<int>(own.n - at < TILE ? own.n - at : TILE), totals);
    }
    return sums;
}

// Lengths of runs are in elements.
template <int THREADS, class T>
__device__ __forceinline__ void encode_any_runs(const Encoding<T>& call, const Runs& runs,
                                                Totals& totals) {
    const i64 n_parts = runs.runs * runs.parts;
    const u32 of_block = THREADS / runs.lanes, of_warp = WARP / runs.lanes;
    const u32 lane = threadIdx.x % WARP;
#pragma unroll 1
    for (i64 some = static_cast<i64>(blockIdx.x) * of_block + threadIdx.x / WARP * of_warp;
         some < n_parts; some += static_cast<i64>(gridDim.x) * of_block) {
        const Part part(runs, some + lane / runs.lanes, n_parts);
        const double origin = part.n > 0 ? element(call.x[part.first]) : 0.0;
        PartSums sums = encode_share(call, part, origin, runs.lanes, totals);
        sums.join(runs.lanes);
        if (part.n > 0 && lane % runs.lanes == 0)
            runs.keep(part, sums.moments(origin, static_cast<double>(part.n), 1), totals);
    }
}

// A thread has one column of `span` of n_rows rows of n_columns; the moments are of each span and
// column.
template <class T>
__device__ __forceinline__ void sum_columns(const Coded<T>& coded, i64 n_rows, i64 n_columns,
                                            i64 span, i64 thread, Moments* moments) {
    const i64 column = thread % n_columns, begin = thread / n_columns * span;
    if (begin >= n_rows) return;
    const i64 end = begin + span < n_rows ? begin + span : n_rows;
    const double origin = element(coded.x[begin * n_columns + column]);
    PartSums sums;
#pragma unroll 4
    for (i64 row = begin; row < end; ++row)
        add_element(coded, row * n_columns + column, origin, sums);
    moments[thread] = sums.moments(origin, static_cast<double>(end - begin), 1);
}

// ---- groups in parts ----------------------------------------------------------------------------

// Moments [outer, groups, parts]: each of n elements but the last ones of `outer` and of `parts`,
// which have so many fewer.
struct Parted {
    const Moments* moments;
    i64 outer, groups, parts, n, fewer_outer, fewer_parts;

    __device__ __forceinline__ const double* at(i64 i, i64 group) const {
        return &moments[(i / parts * groups + group) * parts + i % parts].mean;
    }
    __device__ __forceinline__ double n_of(i64 i) const {
        return static_cast<double>(n - (i / parts == outer - 1 ? fewer_outer : 0) -
                                   (i % parts == parts - 1 ? fewer_parts : 0));
    }
    __device__ __forceinline__ double n_of_group() const {
        return static_cast<double>(outer * (n * parts - fewer_parts) - fewer_outer * parts);
    }
};

// `across` groups a block, which divides THREADS; all of its other threads are at the same ones.
template <int THREADS>
__device__ __forceinline__ void merge_groups(const Parted& parted, u32 across,
                                             double (&of_thread)[THREADS][3], Totals& totals) {
    const i64 group = static_cast<i64>(blockIdx.x) * across + threadIdx.x % across;
    const bool there = group < parted.groups;
    Merged merged(there ? *parted.at(0, group) : 0.0);
    const i64 n = there ? parted.outer * parted.parts : 0;
#pragma unroll 4
    for (i64 i = threadIdx.x / across; i < n; i += THREADS / across) {
        const double* const some = parted.at(i, group);
        merged.add(parted.n_of(i), {some[0], some[1], some[2]});
    }
    double* const own = of_thread[threadIdx.x];
    own[0] = merged.sum, own[1] = merged.squares, own[2] = merged.error;
    __syncthreads();
    if (threadIdx.x >= across || !there) return;
#pragma unroll 1
    for (u32 thread = threadIdx.x + across; thread < THREADS; thread += across) {
        merged.sum += of_thread[thread][0];
        merged.squares += of_thread[thread][1];
        merged.error += of_thread[thread][2];
    }
    totals.add_group(merged.moments(parted.n_of_group()));
}

}  // namespace cto::gist_guard::groups
