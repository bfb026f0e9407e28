// SPDX-License-Identifier: MIT
// The gradient of an X of few channels as a product: rows are positions of the reduced image
// (direct.cuh), columns the elements of X at each of them, and the sum is over window taps and
// filters. Shared memory has W, and the part of dY that a tile of positions reads (its halo).
#pragma once
#include "conv/direct.cuh"

namespace cto::conv::direct_image {

using namespace direct;
using namespace image;
using namespace staged_tile;

// Writes to[panel][window tap][column][filter], in shared memory, from W; zeros where the kernel
// has no such tap. Columns, DIRECT_ROWS, are (row residue, element of a run). A thread writes whole
// lines: line number (panel * taps + tap) * DIRECT_ROWS + column.
template <class Tile>
__device__ __forceinline__ void stage_w(const typename Tile::E* w, const DirectLayout& layout,
                                        u8* to) {
    using E = typename Tile::E;
    const i32 run = run_of(layout), taps = layout.window[0] * layout.window[1];
    const i32 pitch = layout.channels * layout.kernel[0] * layout.kernel[1];
    for (int line = threadIdx.x; line < Tile::PANELS * taps * DIRECT_ROWS; line += DIRECT_THREADS) {
        const i32 panel = line / (taps * DIRECT_ROWS), row = line % DIRECT_ROWS;
        const i32 tap = line / DIRECT_ROWS - panel * taps, down = tap / layout.window[1];
        const i32 residue = row / run;
        const InRun at(layout, row - residue * run);
        const i32 k0 = down * layout.stride[0] + residue - layout.skipped[0];
        const i32 k1 =
            (tap - down * layout.window[1]) * layout.stride[1] + at.column - layout.skipped[1];
        const i32 place = residue < layout.stride[0] ? place_in_w(layout, at.channel, k0, k1) : -1;
        for (int vector = 0; vector < LINE_VECTORS; ++vector) {
            vec::Vec<E, Tile::VECTOR> packed{};
#pragma unroll
            for (int i = 0; i < Tile::VECTOR; ++i) {
                const i32 filter = panel * Tile::IN_LINE + vector * Tile::VECTOR + i;
                if (place >= 0 && filter < layout.filters)
                    packed.at[i] = w[static_cast<i64>(filter) * pitch + place];
                if constexpr (Tile::IS_TF32) packed.at[i] = tensor_core::to_tf32(packed.at[i]);
            }
            *reinterpret_cast<vec::Vec<E, Tile::VECTOR>*>(to + line * LINE_NBYTES +
                                                          place_in_line(vector, line)) = packed;
        }
    }
}

// Begins to copy to halo[position][filter], in shared memory, dY at the height x width positions
// that the tile reads, the filters of one panel; zeros outside of dY.
template <class Tile>
__device__ __forceinline__ void copy_halo(const typename Tile::E* y, const DirectLayout& layout,
                                          const TileOfPositions& tile, int panel, int height,
                                          int width, u8* halo) {
    constexpr int AT_ONCE = DIRECT_THREADS / LINE_VECTORS;
    const int vector = threadIdx.x % LINE_VECTORS;
    const int filter = panel * Tile::IN_LINE + vector * Tile::VECTOR;
    const i32 first0 = tile.at[0] + layout.window_pad[0] - (layout.window[0] - 1);
    const i32 first1 = tile.at[1] + layout.window_pad[1] - (layout.window[1] - 1);
    y += static_cast<i64>(tile.n) * layout.output[0] * layout.output[1] * layout.filters + filter;
    int row = 0, column = threadIdx.x / LINE_VECTORS;
#pragma unroll 4
    for (int line = column; line < height * width; line += AT_ONCE) {
        for (; column >= width; column -= width) ++row;
        const i32 at0 = first0 + row, at1 = first1 + column;
        const bool exists = filter < layout.filters &&
                            static_cast<u32>(at0) < static_cast<u32>(layout.output[0]) &&
                            static_cast<u32>(at1) < static_cast<u32>(layout.output[1]);
        const i64 place = (static_cast<i64>(at0) * layout.output[1] + at1) * layout.filters;
        async_copy::copy_or_zeros<16>(halo + line * LINE_NBYTES + place_in_line(vector, line),
                                      exists ? y + place : y - filter, exists);
        column += AT_ONCE;
    }
    async_copy::commit();
}

// A warp's part of the product: DOWN * 16 positions by DIRECT_ROWS columns, in fragments D of
// tensor cores: sums[i][j] is of 16 positions and 8 columns.
template <class Tile>
struct DirectProduct {
    using E = typename Tile::E;
    static constexpr int DOWN = DIRECT_POSITIONS / (DIRECT_THREADS / WARP) / 16;
    static constexpr int ACROSS = DIRECT_ROWS / 8;
    static_assert(ACROSS == 2);

    float sums[DOWN][ACROSS][4];
    int lines[DOWN];  // the lane's lines of the halo, for the last window tap
    int b_line;       // the lane's place in W, in bytes

    // width: positions of a row of the halo. Lane l passes to ldmatrix the address of row l % 8 of
    // matrix l / 8: of A a position, of B a column.
    __device__ __forceinline__ explicit DirectProduct(int width) {
        const int lane = threadIdx.x % WARP, middle = lane / 8 % 2;
#pragma unroll
        for (int i = 0; i < DOWN; ++i) {
            const int position = first_position() + i * 16 + lane % 8 + middle * 8;
            lines[i] = position / DIRECT_WIDTH * width + position % DIRECT_WIDTH;
        }
        b_line = (lane % 8 + lane / 16 * 8) * LINE_NBYTES + (middle ^ lane % 8) * 16;
    }
    // The warp's first position in the tile.
    static __device__ __forceinline__ int first_position() {
        return threadIdx.x / WARP * (DOWN * 16);
    }
    // Sets the sums to 0.
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
#pragma unroll
            for (int j = 0; j < ACROSS; ++j)
#pragma unroll
                for (int k = 0; k < 4; ++k) sums[i][j][k] = 0;
    }
    // Adds the products of a window tap: w has its columns, and it reads the halo `shift` lines
    // after what the last tap reads. depth: pieces of K_NBYTES of a line that filters take. XOR
    // with k * K_NBYTES moves an address on by k pieces in a swizzled line.
    __device__ __forceinline__ void add_tap(const u8* w, const u8* halo, int shift, int depth) {
        const int high = threadIdx.x % WARP / 16;
        int at[DOWN];
#pragma unroll
        for (int i = 0; i < DOWN; ++i) {
            const int line = lines[i] + shift;
            at[i] = line << LOW_BITS | place_in_line(high, line);
        }
#pragma unroll 2
        for (int k = 0; k < depth; ++k) {
            tensor_core::B b[ACROSS];
            matrices</*TRANSPOSED=*/false>(w + (b_line ^ k * K_NBYTES), b[0][0], b[0][1], b[1][0],
                                           b[1][1]);
#pragma unroll
            for (int i = 0; i < DOWN; ++i) {
                tensor_core::A a;
                matrices</*TRANSPOSED=*/false>(halo + (at[i] ^ k * K_NBYTES), a[0], a[1], a[2],
                                               a[3]);
                before_cut<Tile>(a);
#pragma unroll
                for (int j = 0; j < ACROSS; ++j) tensor_core::multiply<E>(sums[i][j], a, b[j]);
            }
        }
    }
};

// The four columns of D of a lane (2 t, 2 t + 1, and 8 more, t = lane % 4): their offsets in X from
// the position's first element, and bias.
struct DirectColumns {
    i32 places[4];  // -1 if the column does not exist
    float bias[4];

    // of_channels: the bias of each channel, or null. Column `row` of D is (row residue, element of
    // a run).
    template <class E>
    __device__ __forceinline__ DirectColumns(const DirectLayout& layout, const E* of_channels) {
        const i32 run = run_of(layout), rows = run * layout.stride[0];
        const int first = threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const i32 row = first + i / 2 * 8 + i % 2, residue = row / run;
            const InRun at(layout, row - residue * run);
            const bool exists = row < rows;
            places[i] =
                exists ? residue * layout.image[1] * layout.of_column + at.place(layout) : -1;
            bias[i] = exists && of_channels ? to_acc(of_channels[at.channel]) : 0.0f;
        }
    }
};

// Writes X at the tile's positions: product + bias (in `columns`), rounded; neighbouring pairs
// together if in_pairs. In each fragment of 16 positions lane l has positions l / 4 and l / 4 + 8.
template <class Tile>
__device__ __forceinline__ void write_direct_tile(const DirectProduct<Tile>& product,
                                                  const DirectLayout& layout,
                                                  const DirectColumns& columns,
                                                  const TileOfPositions& tile,
                                                  typename Tile::E* x) {
    using E = typename Tile::E;
    using Pair = vec::Vec<E, 2>;
    x += static_cast<i64>(tile.n) * layout.channels * layout.image[0] * layout.image[1];
#pragma unroll
    for (int i = 0; i < DirectProduct<Tile>::DOWN; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int position =
                product.first_position() + i * 16 + half * 8 + threadIdx.x % WARP / 4;
            const i32 at0 = (tile.at[0] + position / DIRECT_WIDTH) * layout.stride[0];
            const i32 at1 = (tile.at[1] + position % DIRECT_WIDTH) * layout.stride[1];
            if (at0 >= layout.image[0] || at1 >= layout.image[1]) continue;
            E* const to = x + (static_cast<i64>(at0) * layout.image[1] + at1) * layout.of_column;
#pragma unroll
            for (int j = 0; j < DirectProduct<Tile>::ACROSS; ++j) {
                const float* const sums = product.sums[i][j] + 2 * half;
                const float both[2] = {sums[0] + columns.bias[2 * j],
                                       sums[1] + columns.bias[2 * j + 1]};
                E rounded[2];
                vec::round_pair(both, rounded);
                if (layout.in_pairs) {
                    if (columns.places[2 * j] >= 0)
                        *reinterpret_cast<Pair*>(to + columns.places[2 * j]) =
                            Pair{rounded[0], rounded[1]};
                    continue;
                }
#pragma unroll
                for (int k = 0; k < 2; ++k)
                    if (columns.places[2 * j + k] >= 0) to[columns.places[2 * j + k]] = rounded[k];
            }
        }
}

// x = gradient for X, of y = dY (n, position, filter), + bias, which may be null. A block computes
// every gridDim.x-th tile of positions, of HEIGHT x DIRECT_WIDTH in the reduced image; W stays in
// `memory`, shared memory, before the halo. EXISTS: compiled for this GPU and type.
template <class Tile, bool EXISTS>
__device__ __forceinline__ void write_direct(const typename Tile::E* y, const typename Tile::E* w,
                                             const typename Tile::E* bias, typename Tile::E* x,
                                             const DirectLayout& layout, u8* memory) {
    if constexpr (EXISTS) {
        constexpr int HEIGHT = DIRECT_POSITIONS / DIRECT_WIDTH;
        const int height = HEIGHT + layout.window[0] - 1;
        const int width = DIRECT_WIDTH + layout.window[1] - 1;
        const int taps = layout.window[0] * layout.window[1];
        u8* const halo = memory + Tile::PANELS * taps * DIRECT_ROWS * LINE_NBYTES;
        stage_w<Tile>(w, layout, memory);
        const DirectColumns columns(layout, bias);
        DirectProduct<Tile> product(width);
        const u32 end = count_tiles(layout);
        for (u32 number = blockIdx.x; number < end; number += gridDim.x) {
            const TileOfPositions tile(layout, number, HEIGHT);
            product.clear();
            const u8* of_tap = memory;
            for (int panel = 0; panel * Tile::IN_LINE < layout.filters; ++panel) {
                copy_halo<Tile>(y, layout, tile, panel, height, width, halo);
                const int filters = min(layout.filters - panel * Tile::IN_LINE, Tile::IN_LINE);
                const int depth = filters * static_cast<int>(sizeof(*y)) / K_NBYTES;
                async_copy::wait<0>();
                __syncthreads();
                for (int i = layout.window[0] - 1; i >= 0; --i)
                    for (int j = layout.window[1] - 1; j >= 0; --j) {
                        product.add_tap(of_tap, halo, i * width + j, depth);
                        of_tap += DIRECT_ROWS * LINE_NBYTES;
                    }
                __syncthreads();
            }
            write_direct_tile<Tile>(product, layout, columns, tile, x);
        }
    }
}

}  // namespace cto::conv::direct_image
