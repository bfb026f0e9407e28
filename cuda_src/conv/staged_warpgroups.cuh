// SPDX-License-Identifier: MIT
// Products of staged tiles by warpgroup instructions, which run while the next stage is copied.
#pragma once
#include "conv/staged_tile.cuh"
#include "conv/warpgroup.cuh"

namespace cto::conv::staged_warpgroups {

using namespace image;
using namespace staged_tile;

// The multiplier of add_stages_by_warpgroups: a warpgroup has DOWN * 64 rows and ACROSS * 8 columns
// of D. Lines of a stage are rows of A and columns of B, or if TRANSPOSED elements k of the sum.
template <class Tile, bool A_TRANSPOSED, bool B_TRANSPOSED>
struct ByWarpgroups {
    using Product = StagedProduct<Tile>;
    int a_at, b_at;  // offsets of the warpgroup's A and B in a stage, in bytes

    // Warpgroups are MULTIPLIERS_ACROSS in a row of D.
    __device__ __forceinline__ ByWarpgroups() {
        const int number = Product::multiplier();
        a_at = number / Tile::MULTIPLIERS_ACROSS * (Tile::DOWN * warpgroup::PANEL_NBYTES);
        b_at =
            Tile::A_NBYTES + number % Tile::MULTIPLIERS_ACROSS * (Tile::ACROSS * 8 * LINE_NBYTES);
    }
    // Starts product += those of a stage, for which warpgroup::wait waits.
    __device__ __forceinline__ void begin(const u8* stage, Product& product) const {
        constexpr int A_STEP = A_TRANSPOSED ? Tile::K * LINE_NBYTES : warpgroup::K_NBYTES;
        constexpr int B_STEP = B_TRANSPOSED ? Tile::K * LINE_NBYTES : warpgroup::K_NBYTES;
        const warpgroup::Operand a = warpgroup::operand(stage + a_at);
        const warpgroup::Operand b = warpgroup::operand(stage + b_at);
        warpgroup::begin();
#pragma unroll
        for (int k = 0; k < SLICES; ++k)
#pragma unroll
            for (int i = 0; i < Tile::DOWN; ++i)
                warpgroup::multiply<typename Tile::E, Tile::ACROSS * 8, A_TRANSPOSED, B_TRANSPOSED>(
                    product.sums[i], warpgroup::moved(a, k * A_STEP + i * warpgroup::PANEL_NBYTES),
                    warpgroup::moved(b, k * B_STEP));
        warpgroup::commit();
    }
    // Calls f(to + row * OF_ROW + column, pair) for each pair of the thread's sums, those of (row,
    // column) and (row, column + 1) of the tile.
    template <int OF_ROW, class To, class F>
    static __device__ __forceinline__ void each_pair(const Product& product, To* to, const F& f) {
        product.template each_pair<OF_ROW, /*OF_COLUMN=*/1>(to, f);
    }
};

// product += the products of `count` stages, in Tile::STAGES buffers of shared memory at `stages`;
// a stage is multiplied while the next is copied by copier.open(), copy(stage, slice) and close(),
// and also(stage) is called meanwhile.
template <class Tile, class Multiplier, class Copier, class Also>
__device__ __forceinline__ void add_stages_by_warpgroups(typename Multiplier::Product& product,
                                                         u8* stages, i32 count, Copier& copier,
                                                         const Also& also) {
    constexpr int END = Tile::STAGES * Tile::STAGE_NBYTES;
    const Multiplier multiplier;
    int to = 0, from = 0;
    const auto copy = [&] {
        copier.open();
#pragma unroll
        for (int i = 0; i < SLICES; ++i) copier.copy(stages + to, i);
        copier.close();
        to = to + Tile::STAGE_NBYTES == END ? 0 : to + Tile::STAGE_NBYTES;
    };
#pragma unroll 1
    for (int i = 0; i < Tile::AHEAD; ++i) copy();
    for (i32 rest = count; rest > 0; --rest) {
        async_copy::wait<Tile::AHEAD - 1>();
        warpgroup::show_copies();
        __syncthreads();  // the stage is there, and the one before has been multiplied
        multiplier.begin(stages + from, product);
        copy();
        also(stages + from);
        warpgroup::wait<0>();
        from = from + Tile::STAGE_NBYTES == END ? 0 : from + Tile::STAGE_NBYTES;
    }
    async_copy::wait<0>();
    __syncthreads();
}

// slab[column][row] = D[row][column], rounded, in shared memory; lines are ROWS + VECTOR elements
// apart. Four fragments of 8 x 8 at a time: lane l passes the address of line l % 8 of fragment l /
// 8, which is 8 rows (fragments 1 and 3) and 8 columns (2 and 3) on.
template <class Tile>
__device__ __forceinline__ void store_lines(const StagedProduct<Tile>& product,
                                            typename Tile::E* slab) {
    constexpr int PITCH = Tile::ROWS + Tile::VECTOR;
    const int lane = threadIdx.x % WARP, matrix = lane / 8;
    slab += (product.first_column + matrix / 2 * 8 + lane % 8) * PITCH + product.first_row +
            matrix % 2 * 8;
#pragma unroll
    for (int i = 0; i < Tile::DOWN; ++i)
#pragma unroll
        for (int j = 0; j < Tile::ACROSS; j += 2) {
            u32 words[4];
#pragma unroll
            for (int k = 0; k < 4; ++k)
                vec::round_pair(product.sums[i][j + k / 2] + k % 2 * 2,
                                reinterpret_cast<typename Tile::E*>(words + k));
            warpgroup::store_transposed(slab + (j * 8 * PITCH + i * Tile::ROW_STEP), words);
        }
}

}  // namespace cto::conv::staged_warpgroups
