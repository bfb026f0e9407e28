// SPDX-License-Identifier: MIT
// Measures of groups of elements: neighbouring lanes of a warp measure a sample of a group's tiles.
#pragma once
#include "gist_guard/sums.cuh"
#include "gist_guard/tile.cuh"

namespace cto::gist_guard::groups {

using namespace gist_guard::sums;
using namespace gist_guard::tile;

// x[0 .. n); aligned: x starts at a multiple of 16 bytes.
template <class T>
struct Array {
    const T* x;
    i64 n;
    bool aligned;
};

// x has shape (outer, groups, inner). A run is `inner` neighbouring elements of one group; it
// is cut into `per_run` pieces of `tiles` tiles. Of every `stride` pieces of a group one is
// measured, chosen by a hash: `pieces` in all. `lanes` lanes share a group; tiles divides
// lanes, powers of two both.
struct Sample {
    i64 groups, inner, stride;
    u32 per_run, pieces, tiles, lanes;
};

// A tile of a piece: its elements [begin, end) belong to the group; elements [0, there) exist.
struct Share {
    i64 tile;
    int begin, end, there;

    // Tile number `tile` of measured piece k of the group, in x[0 .. n). Of the group's pieces k *
    // stride to (k + 1) * stride - 1 it is the one that a 16-bit hash of group and k chooses; piece
    // p is in run p / per_run, of whose tiles it has those from p % per_run * tiles on. end <=
    // begin if the tile has no element of the run.
    __device__ __forceinline__ Share(const Sample& sample, i64 group, u32 k, u32 tile, i64 n) {
        const u32 hash = (static_cast<u32>(group) * sample.pieces + k) * HASH >> HALF;
        i64 run = static_cast<i64>(k) * sample.stride +
                  static_cast<i64>(static_cast<u64>(hash) * sample.stride >> HALF);
        if (sample.per_run > 1) {  // then there are fewer than 2^32 pieces
            const u32 piece = static_cast<u32>(run);
            run = piece / sample.per_run;
            tile += (piece - static_cast<u32>(run) * sample.per_run) * sample.tiles;
        }
        const i64 first = (run * sample.groups + group) * sample.inner;
        const int skipped = static_cast<int>(first % TILE);
        this->tile = first / TILE + tile;
        const i64 passed = static_cast<i64>(tile) * TILE, rest = n - this->tile * TILE;
        there = static_cast<int>(rest < TILE ? rest : TILE);
        begin = tile == 0 ? skipped : 0;
        const i64 last = skipped + sample.inner - passed;
        end = last < there ? static_cast<int>(last) : there;
    }
};

// Sums over n measured elements of a group, d = x - first element of the group: of (decoded x -
// x)^2, d, and d^2.
struct GroupSums {
    double off = 0, distance = 0, squares = 0;
    int n = 0;

    // Adds the sums of `count` elements.
    __device__ __forceinline__ void add(const Measured& some, int count) {
        off += some.off;
        distance += some.distance;
        squares += some.squares;
        n += count;
    }
    // Each of `lanes` neighbouring lanes, a power of two, gets the sums of all of these lanes.
    __device__ __forceinline__ void join(u32 lanes) {
#pragma unroll 1
        for (u32 step = lanes / 2; step > 0; step /= 2) {
            off += shuffled(off, step);
            distance += shuffled(distance, step);
            squares += shuffled(squares, step);
            n += __shfl_xor_sync(ALL_LANES, n, step);
        }
    }
    // sum of (x - mean)^2 = squares - distance^2 / n; rounding could make it negative.
    __device__ __forceinline__ double deviation() const {
        return larger(squares - distance * (distance / n), 0);
    }
};

// Returns the sums over the lane's part of group number `group` of `array`: one tile of every
// (lanes / tiles)-th measured piece of `sample`. Adds to totals.tile_deviation.
template <class T>
__device__ __forceinline__ GroupSums measure_group(const Array<T>& array, const Sample& sample,
                                                   i64 group, Totals& totals) {
    const double origin = exactly(array.x[group * sample.inner]);
    const u32 lane = threadIdx.x % sample.lanes;
    GroupSums sums;
#pragma unroll 1
    for (u32 k = lane / sample.tiles; k < sample.pieces; k += sample.lanes / sample.tiles) {
        const Share share(sample, group, k, lane % sample.tiles, array.n);
        const int n = share.end - share.begin;
        if (n <= 0) continue;
        const Tile<T> tile = load_tile(array.x, share.tile, array.n, array.aligned);
        const Measured deviation =
            n == TILE
                ? measured</*WHOLE=*/true, T>(tile, origin, 0, TILE, TILE)
                : measured</*WHOLE=*/false, T>(tile, origin, share.begin, share.end, share.there);
        totals.tile_deviation += deviation.from_tile;
        sums.add(deviation, n);
    }
    return sums;
}

// Adds groups of `array` to the thread's `totals`, by `sample`: warp number `warp` of n_warps
// measures WARP / lanes neighbouring groups at a time. Without `grouped` only the error and
// tile_deviation are summed.
template <class T>
__device__ __forceinline__ void measure_groups(const Array<T>& array, const Sample& sample,
                                               bool grouped, i64 warp, i64 n_warps,
                                               Totals& totals) {
    const u32 lane = threadIdx.x % WARP, per_warp = WARP / sample.lanes;
#pragma unroll 1
    for (i64 some = warp * per_warp; some < sample.groups; some += n_warps * per_warp) {
        const i64 group = some + lane / sample.lanes;
        const bool is_there = group < sample.groups;
        GroupSums sums;
        if (is_there) sums = measure_group(array, sample, group, totals);
        sums.join(sample.lanes);
        if (!is_there || lane % sample.lanes != 0) continue;
        totals.error += sums.off;
        if (grouped) totals.add_group(sums.deviation(), sums.off);
    }
}

}  // namespace cto::gist_guard::groups
