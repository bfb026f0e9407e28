// SPDX-License-Identifier: MIT
// The gradient of W in TF32 by warpgroups, whose instruction takes no transposed floats: the product
// is transposed. Its rows are columns of the tile, (tap, channel) of X, in registers, where any lines
// of shared memory can be loaded to; its columns are filters, lines of Y in shared memory.
#pragma once
#include "conv/staged_warpgroups.cuh"

namespace cto::conv::staged_weight_tf32 {

using namespace image;
using namespace staged_tile;

// The transposed tile in registers: a warpgroup has DOWN * 64 columns of the tile; sums[i][j] has 64
// of them and rows 8 j to 8 j + 7 (warpgroup.cuh).
template <class Tile>
struct TransposedProduct {
    static constexpr int DOWN = Tile::COLUMNS / warpgroup::ROWS / Tile::MULTIPLIERS;
    static constexpr int ACROSS = Tile::ROWS / 8;

    float sums[DOWN][ACROSS][4] = {};

    // The first column of this lane.
    static __device__ __forceinline__ int first() {
        const int warp = threadIdx.x % WARPGROUP / WARP;
        return threadIdx.x / WARPGROUP * (DOWN * warpgroup::ROWS) + warp * 16 +
               threadIdx.x % WARP / 4;
    }
    // to[row * COLUMNS + column] = the sums, of `rows` rows and `columns` columns at least.
    __device__ __forceinline__ void write(float* to, i32 rows, i32 columns) const {
        to += threadIdx.x % 4 * 2 * Tile::COLUMNS + first();
        columns -= threadIdx.x / WARPGROUP * (DOWN * warpgroup::ROWS);
#pragma unroll
        for (int i = 0; i < DOWN; ++i) {
            if (i * warpgroup::ROWS >= columns) break;
#pragma unroll
            for (int j = 0; j < ACROSS; ++j)
#pragma unroll
                for (int k = 0; k < 4; ++k)
                    if (j * 8 < rows)
                        to[(j * 8 + k % 2) * Tile::COLUMNS + i * warpgroup::ROWS + k / 2 * 8] =
                            sums[i][j][k];
        }
    }
};

// The multiplier of add_stages_by_warpgroups for a TransposedProduct: lines of A in a stage are
// filters, those of B positions, in panels of columns.
template <class Tile>
struct TransposedByWarpgroups {
    using Product = TransposedProduct<Tile>;
    // Offsets in a stage, at the lane's first position, of its first column and of that 8 on.
    int at[2];

    __device__ __forceinline__ TransposedByWarpgroups() {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int column = Product::first() + i * 8;
            at[i] = Tile::A_NBYTES + column % Tile::VECTOR * 4 +
                    place_of_position<Tile>(column / Tile::VECTOR, threadIdx.x % 4);
        }
    }
    // Starts product += those of a stage, for which warpgroup::wait waits.
    __device__ __forceinline__ void begin(const u8* stage, Product& product) const {
        constexpr int NEXT = warpgroup::ROWS * LINE_NBYTES;  // to the lane's columns 64 on
        const warpgroup::Operand lines = warpgroup::operand(stage);
        u32 x[SLICES][Product::DOWN][4];
#pragma unroll
        for (int k = 0; k < SLICES; ++k)
#pragma unroll
            for (int i = 0; i < Product::DOWN; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    x[k][i][j] = *reinterpret_cast<const u32*>(
                        stage + at[j % 2] + i * NEXT + (k * Tile::K + j / 2 * 4) * LINE_NBYTES);
                as_multiplied<Tile>(x[k][i]);
            }
        warpgroup::begin();
#pragma unroll
        for (int k = 0; k < SLICES; ++k)
#pragma unroll
            for (int i = 0; i < Product::DOWN; ++i)
                warpgroup::multiply_registers<Tile::ROWS>(
                    product.sums[i], x[k][i], warpgroup::moved(lines, k * warpgroup::K_NBYTES));
        warpgroup::commit();
    }
};

}  // namespace cto::conv::staged_weight_tf32
