// SPDX-License-Identifier: MIT
// The guard, and the sums it is made of, in double: squares of any float fit.
#pragma once
#include "algorithm/reduce.cuh"
#include "gist_guard/tile.cuh"

namespace cto::gist_guard::sums {

using namespace gist_guard::tile;

using zeroed::Zeroed;

__device__ __forceinline__ double infinity() { return double_of(0x7FF0000000000000ull); }
__device__ __forceinline__ double larger(double x, double y) { return x > y ? x : y; }
__device__ __forceinline__ double shuffled(double x, u32 step) {
    return __shfl_xor_sync(ALL_LANES, x, step);
}

// Sums over some elements and groups, or over all.
struct Totals {
    double error, tile_deviation, group_deviation, worst;
    u32 exponent;

    __device__ __forceinline__ void add(const Totals& other) {
        error += other.error;
        tile_deviation += other.tile_deviation;
        group_deviation += other.group_deviation;
        worst = larger(other.worst, worst);
        exponent = max(other.exponent, exponent);
    }
    __device__ __forceinline__ void add_group(double deviation, double of_group) {
        group_deviation += deviation;
        if (!(of_group > 0)) return;
        const bool finite = of_group < MOST_RATIO * deviation;
        worst = larger(finite ? of_group / deviation : infinity(), worst);
    }
    // The four numbers of the guard: see the operator's help.
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

// Sums that another block has stored.
__device__ __forceinline__ Totals loaded(const Totals& from) {
    return {__ldcg(&from.error), __ldcg(&from.tile_deviation), __ldcg(&from.group_deviation),
            __ldcg(&from.worst), __ldcg(&from.exponent)};
}

// The sum over the first n lanes of a warp, a power of two, in each of these.
__device__ __forceinline__ void sum_lanes(Totals& totals, u32 n) {
#pragma unroll 1
    for (u32 step = n / 2; step > 0; step /= 2)
        totals.add({shuffled(totals.error, step), shuffled(totals.tile_deviation, step),
                    shuffled(totals.group_deviation, step), shuffled(totals.worst, step),
                    __shfl_xor_sync(ALL_LANES, totals.exponent, step)});
}

// Shared memory of a block's sums.
template <int THREADS>
struct Shared {
    static constexpr u32 WARPS = THREADS / WARP;
    Totals of_thread[THREADS], of_warp[WARPS];
    bool last;
};

// The sum of what all warps have left in shared memory, in the first lane of the first.
template <int THREADS>
__device__ __forceinline__ Totals sum_warps(const Shared<THREADS>& shared) {
    Totals sum{};
    __syncthreads();
    if (threadIdx.x >= WARP) return sum;
    if (threadIdx.x < shared.WARPS) sum = shared.of_warp[threadIdx.x];
    sum_lanes(sum, shared.WARPS);
    return sum;
}

// Adds what all blocks found; the one that finishes last stores the guard.
template <int THREADS>
__device__ __forceinline__ void finish(double* of_blocks, Zeroed<u32>* ticket, float* guard,
                                       Shared<THREADS>& shared) {
    Totals* const totals = reinterpret_cast<Totals*>(of_blocks);
    const Totals own = sum_warps(shared);
    if (threadIdx.x == 0) totals[blockIdx.x] = own;
    if (!reduce::arrives_last(ticket, gridDim.x, shared.last)) return;
    Totals all{};
#pragma unroll 4
    for (u32 i = threadIdx.x; i < gridDim.x; i += THREADS) all.add(loaded(totals[i]));
    sum_lanes(all, WARP);
    if (threadIdx.x % WARP == 0) shared.of_warp[threadIdx.x / WARP] = all;
    all = sum_warps(shared);
    if (threadIdx.x == 0) all.store(guard);
}

}  // namespace cto::gist_guard::sums
