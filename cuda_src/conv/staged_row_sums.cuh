// SPDX-License-Identifier: MIT
// Sums of Y in float, for the gradient of a bias, while tensor cores multiply Y in TF32.
#pragma once
#include "conv/staged_tile.cuh"

namespace cto::conv::staged_row_sums {

using namespace staged_tile;

// Sums over k of A(row, k), in float; A is Y, k a position. SHARERS threads share a row, each adds
// LINES of the Tile::K lines (positions) of a slice. A stage is summed separately first, so that
// few additions are to the large sum.
template <class Tile>
struct FloatRowSums {
    static constexpr int SHARERS = STAGED_THREADS / Tile::ROWS, LINES = Tile::K / SHARERS;

    float sum = 0, stage_sum = 0;
    bool wanted;

    // Adds slice k of a stage in shared memory, which begins with A; k = 0, ..., SLICES - 1 in turn.
    // All threads call it, if `wanted`.
    __device__ __forceinline__ void add(const u8* stage, int k) {
        const int row = threadIdx.x % Tile::ROWS;
        const int first_line = k * Tile::K + threadIdx.x / Tile::ROWS * LINES;
        stage += row % Tile::VECTOR * 4;
#pragma unroll
        for (int i = 0; i < LINES; ++i)
            stage_sum += *reinterpret_cast<const float*>(
                stage + place_of_position<Tile>(row / Tile::VECTOR, first_line + i));
        if (k < SLICES - 1) return;
        sum += stage_sum;
        stage_sum = 0;
    }
    // to[row] = sum of the row, row < count, if wanted. shared: shared memory, a float for each
    // thread.
    __device__ __forceinline__ void write(float* to, int count, float* shared) const {
        if (!wanted) return;
        shared[threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.x >= min(count, Tile::ROWS)) return;
        float total = shared[threadIdx.x];
        for (int i = 1; i < SHARERS; ++i) total += shared[i * Tile::ROWS + threadIdx.x];
        to[threadIdx.x] = total;
    }
};

// A multiplier for add_stages that also adds A's rows: its `also` is an AlsoRowSums, which says
// whether to add them, and whether to multiply.
template <class Tile, class Multiplier>
struct AndRowSums {
    Multiplier multiplier;

    __device__ __forceinline__ explicit AndRowSums(const StagedProduct<Tile>& product)
        : multiplier(product) {}
    // Adds slice k of the stage to also.sums and to the product, as far as they are wanted.
    template <class Also>
    __device__ __forceinline__ void add(const u8* stage, int k, StagedProduct<Tile>& product,
                                        const Also& also) const {
        if (also.sums.wanted) also.sums.add(stage, k);
        if (also.multiplies) multiplier.add(stage, k, product, [](const auto&) {});
    }
};
// The `also` of AndRowSums.
template <class Tile>
struct AlsoRowSums {
    FloatRowSums<Tile>& sums;
    bool multiplies;
};

}  // namespace cto::conv::staged_row_sums
