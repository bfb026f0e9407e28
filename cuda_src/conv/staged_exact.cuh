// SPDX-License-Identifier: MIT
// Products of staged floats without tensor cores: each thread multiplies its rows by its columns,
// which it loads by vectors of 16 bytes. Sums are those of StagedProduct: sum(i, j) is of the
// thread's i-th row and j-th column. These are multipliers for add_stages.
#pragma once
#include "conv/staged_warpgroups.cuh"

namespace cto::conv::staged_exact {

using namespace image;
using namespace staged_tile;
using namespace staged_warpgroups;

// For stages whose lines are rows and columns of D: 128 bytes, 32 elements k of the sum. Lane l has
// rows l / 4 + 8 i and columns l % 4 * 2 + j / 2 * 8 + j % 2 of its warp's.
template <class Tile>
struct ExactImage {
    int a_line, b_line;        // offsets of the lane's lines, in bytes
    int a_swizzle, b_swizzle;  // those lines % 8, by which vectors are swizzled

    // Offsets of the lane's first row and first column in a stage.
    __device__ __forceinline__ explicit ExactImage(const StagedProduct<Tile>& product) {
        const int lane = threadIdx.x % WARP;
        a_swizzle = lane / 4;
        b_swizzle = lane % 4 * 2;
        a_line = (product.first_row + a_swizzle) * LINE_NBYTES;
        b_line = Tile::A_NBYTES + (product.first_column + b_swizzle) * LINE_NBYTES;
    }
    // product += slice k of the stage: two vectors of a line, of four elements of the sum each.
    template <class Also>
    __device__ __forceinline__ void add(const u8* stage, int k, StagedProduct<Tile>& product,
                                        const Also&) const {
#pragma unroll 1
        for (int vector = 2 * k; vector < 2 * k + 2; ++vector) {
            float a[2 * Tile::DOWN][4];
#pragma unroll
            for (int i = 0; i < 2 * Tile::DOWN; ++i)
                load_four(stage + a_line + i * 8 * LINE_NBYTES + (vector ^ a_swizzle) * 16, a[i]);
#pragma unroll
            for (int j = 0; j < 2 * Tile::ACROSS; ++j) {
                float b[4];
                const int line = j / 2 * 8 + j % 2;
                load_four(stage + b_line + line * LINE_NBYTES + (vector ^ (b_swizzle + j % 2)) * 16,
                          b);
#pragma unroll
                for (int of_sum = 0; of_sum < 4; ++of_sum)
#pragma unroll
                    for (int i = 0; i < 2 * Tile::DOWN; ++i)
                        product.sum(i, j) += a[i][of_sum] * b[of_sum];
            }
        }
    }
};

// For stages whose lines are positions, the elements of the sum: four neighbouring rows and columns
// are loaded together. A lane has vectors a_vector + 8 j of rows, b_vector + 4 j of columns.
template <class Tile>
struct ExactWeights {
    static constexpr int A_VECTORS = Tile::DOWN / 2, B_VECTORS = Tile::ACROSS / 2;
    int a_vector, b_vector;

    // The lane's first vector of four rows, and of four columns.
    __device__ __forceinline__ explicit ExactWeights(const StagedProduct<Tile>& product) {
        const int lane = threadIdx.x % WARP;
        a_vector = product.first_row / 4 + lane / 4;
        b_vector = product.first_column / 4 + lane % 4;
    }
    // product += slice k of the stage: Tile::K positions.
    template <class Also>
    __device__ __forceinline__ void add(const u8* stage, int k, StagedProduct<Tile>& product,
                                        const Also&) const {
#pragma unroll 4
        for (int i = 0; i < Tile::K; ++i) {
            const int line = k * Tile::K + i;
            float a[A_VECTORS][4], b[B_VECTORS][4];
#pragma unroll
            for (int j = 0; j < A_VECTORS; ++j)
                load_four(stage + place_of_position<Tile>(a_vector + 8 * j, line), a[j]);
#pragma unroll
            for (int j = 0; j < B_VECTORS; ++j)
                load_four(stage + Tile::A_NBYTES + place_of_position<Tile>(b_vector + 4 * j, line),
                          b[j]);
#pragma unroll
            for (int row = 0; row < 4 * A_VECTORS; ++row)
#pragma unroll
                for (int column = 0; column < 4 * B_VECTORS; ++column)
                    product.sum(row, column) += a[row / 4][row % 4] * b[column / 4][column % 4];
        }
    }
    // Calls f(to + row * OF_ROW + column, pair) for each pair of the thread's sums, those of (row,
    // column) and (row, column + 1) of the tile. (With a constant distance between places,
    // compilers put more factors of products in one bank of registers.)
    template <int OF_ROW, class To, class F>
    static __device__ __forceinline__ void each_pair(const StagedProduct<Tile>& product, To* to,
                                                     const F& f) {
        const int lane = threadIdx.x % WARP;
#pragma unroll
        for (int row = 0; row < 4 * A_VECTORS; ++row)
#pragma unroll
            for (int column = 0; column < 4 * B_VECTORS; column += 2)
                f(to + (product.first_row + row / 4 * 32 + lane / 4 * 4 + row % 4) * OF_ROW +
                      (product.first_column + column / 4 * 16 + lane % 4 * 4 + column % 4),
                  &product.sum(row, column));
    }
};

// The multipliers of a tile: by tensor cores, exact ones, or ByWarpgroups. Image, for stages whose
// lines are rows and columns; Weights, for those whose lines are positions.
template <class Tile, bool IS_EXACT, bool BY_WARPGROUPS>
struct MultipliersOf {
    using Image = ByTensorCores<Tile, ImageFragments<Tile>>;
    using Weights = ByTensorCores<Tile, WeightFragments<Tile>>;
};
template <class Tile>
struct MultipliersOf<Tile, /*IS_EXACT=*/true, /*BY_WARPGROUPS=*/false> {
    using Image = ExactImage<Tile>;
    using Weights = ExactWeights<Tile>;
};
template <class Tile>
struct MultipliersOf<Tile, /*IS_EXACT=*/false, /*BY_WARPGROUPS=*/true> {
    using Image = ByWarpgroups<Tile, /*A_TRANSPOSED=*/false, /*B_TRANSPOSED=*/false>;
    using Weights = ByWarpgroups<Tile, /*A_TRANSPOSED=*/true, /*B_TRANSPOSED=*/true>;
};
template <class Tile>
using Multipliers = MultipliersOf<Tile, Tile::IS_EXACT, Tile::BY_WARPGROUPS>;

}  // namespace cto::conv::staged_exact
