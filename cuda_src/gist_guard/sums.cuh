// SPDX-License-Identifier: MIT
// The guard and the sums that it is computed from, in double, which has room for squares of floats.
#pragma once
#include "algorithm/reduce.cuh"
#include "gist_guard/tile.cuh"

namespace cto::gist_guard::sums {

using namespace gist_guard::tile;

using zeroed::Zeroed;

__device__ __forceinline__ double infinity() { return double_of(0x7FF0000000000000ull); }
__device__ __forceinline__ double larger(double x, double y) { return x > y ? x : y; }
// x of lane (own lane ^ step).
__device__ __forceinline__ double shuffled(double x, u32 step) {
    return __shfl_xor_sync(ALL_LANES, x, step);
}

// Sums over measured elements x and groups, in the units of x:
//     error             sum of (decoded x - x)^2
//     tile_deviation    sum of (x - its tile's mean)^2
//     group_deviation   sum of (x - its group's mean)^2
//     worst             largest over groups of error / deviation
//     exponent          largest shared exponent E of a tile; 255: some tile is not finite
struct Totals {
    double error, tile_deviation, group_deviation, worst;
    u32 exponent;

    // Merges the set `other` into this one: sums of sums, the larger of maxima.
    __device__ __forceinline__ void add(const Totals& other) {
        error += other.error;
        tile_deviation += other.tile_deviation;
        group_deviation += other.group_deviation;
        worst = larger(other.worst, worst);
        exponent = max(other.exponent, exponent);
    }
    // Adds one group: group_deviation += deviation, worst = max(worst, of_group / deviation),
    // where `of_group` is the group's error. worst becomes infinite where of_group >= MOST_RATIO
    // * deviation; an error of 0 leaves worst as it is.
    __device__ __forceinline__ void add_group(double deviation, double of_group) {
        group_deviation += deviation;
        if (!(of_group > 0)) return;
        const bool finite = of_group < MOST_RATIO * deviation;
        worst = larger(finite ? of_group / deviation : infinity(), worst);
    }
    // guard = {error, tile_deviation, group_deviation, worst}, the first three in squares of the
    // quantum 2^(E - 127) of the largest E: unit = 2^(254 - 2 E), whose biased exponent in double
    // is 1277 - 2 E. {infinity, 0, 0, infinity} where a tile is not finite.
    __device__ __forceinline__ void store(float* guard) const {
        const bool finite = exponent < NOT_FINITE;
        const double unit =
            double_of(static_cast<u64>(1277 - 2 * static_cast<i32>(exponent)) << 52);
        guard[0] = static_cast<float>(finite ? error * unit : infinity());
        guard[1] = static_cast<float>(finite ? tile_deviation * unit : 0.0);
        guard[2] = static_cast<float>(finite ? group_deviation * unit : 0.0);
        guard[3] = static_cast<float>(finite ? worst : infinity());
    }
};
static_assert(sizeof(Totals) == TOTALS * sizeof(double));

// Totals that another block has stored: read past the L1 cache, which may hold older ones.
__device__ __forceinline__ Totals loaded(const Totals& from) {
    return {__ldcg(&from.error), __ldcg(&from.tile_deviation), __ldcg(&from.group_deviation),
            __ldcg(&from.worst), __ldcg(&from.exponent)};
}

// Adds up the totals of the first n lanes of a warp, a power of two; each of them gets the sum.
__device__ __forceinline__ void sum_lanes(Totals& totals, u32 n) {
#pragma unroll 1
    for (u32 step = n / 2; step > 0; step /= 2)
        totals.add({shuffled(totals.error, step), shuffled(totals.tile_deviation, step),
                    shuffled(totals.group_deviation, step), shuffled(totals.worst, step),
                    __shfl_xor_sync(ALL_LANES, totals.exponent, step)});
}

// Shared memory for the sums of a block's threads and warps.
template <int THREADS>
struct Shared {
    static constexpr u32 WARPS = THREADS / WARP;
    Totals per_thread[THREADS], per_warp[WARPS];
    bool last;
};

// Returns in thread 0 shared.per_warp[0] + ... + shared.per_warp[WARPS - 1]. Begins with a barrier.
template <int THREADS>
__device__ __forceinline__ Totals sum_warps(const Shared<THREADS>& shared) {
    Totals sum{};
    __syncthreads();
    if (threadIdx.x >= WARP) return sum;
    if (threadIdx.x < shared.WARPS) sum = shared.per_warp[threadIdx.x];
    sum_lanes(sum, shared.WARPS);
    return sum;
}

// Totals number blockIdx.x of per_block = the block's, from shared.per_warp; the block that
// finishes last adds those of all blocks and stores guard[0..3]. ticket: counter of finished
// blocks.
template <int THREADS>
__device__ __forceinline__ void finish(double* per_block, Zeroed<u32>* ticket, float* guard,
                                       Shared<THREADS>& shared) {
    Totals* const totals = reinterpret_cast<Totals*>(per_block);
    const Totals own = sum_warps(shared);
    if (threadIdx.x == 0) totals[blockIdx.x] = own;
    if (!reduce::arrives_last(ticket, gridDim.x, shared.last)) return;
    Totals all{};
#pragma unroll 4
    for (u32 i = threadIdx.x; i < gridDim.x; i += THREADS) all.add(loaded(totals[i]));
    sum_lanes(all, WARP);
    if (threadIdx.x % WARP == 0) shared.per_warp[threadIdx.x / WARP] = all;
    all = sum_warps(shared);
    if (threadIdx.x == 0) all.store(guard);
}

}  // namespace cto::gist_guard::sums
