// SPDX-License-Identifier: MIT
// The gradient of W for an X of few channels as a product: rows are filters, columns are (tap row,
// window column, element of a run; see direct.cuh), and the sum is over positions of Y. A tile of
// positions is copied while the one before is multiplied.
#pragma once
#include "conv/direct.cuh"

namespace cto::conv::direct_weight {

using namespace direct;
using namespace image;
using namespace staged_tile;

constexpr int DIRECT_VECTORS = DIRECT_COLUMNS / DIRECT_RUN;  // runs that are columns of a tile

// The height x width runs of X that a tile of positions reads. Elements of a vector past a run's
// end stay undefined; they belong to columns that W does not have.
template <class Tile>
struct Runs {
    using E = typename Tile::E;
    int height, width;
    bool in_pairs;

    // Begins to copy to[row][column], in shared memory: a run each, zeros outside of X. places[j]:
    // offset in X of element j of a run from its first.
    __device__ __forceinline__ void copy(const E* x, const DirectLayout& layout,
                                         const TileOfPositions& tile, const i32* places,
                                         u8* to) const {
        const i32 run = run_of(layout);
        x += static_cast<i64>(tile.n) * layout.channels * layout.image[0] * layout.image[1];
#pragma unroll 1
        for (int i = threadIdx.x; i < height * width; i += STAGED_THREADS) {
            const int row = i / width;
            const i32 at0 = tile.at[0] * layout.stride[0] - layout.pad[0] + row;
            const i32 at1 =
                (tile.at[1] + (i - row * width) - layout.window_pad[1]) * layout.stride[1];
            const bool exists = static_cast<u32>(at0) < static_cast<u32>(layout.image[0]) &&
                                static_cast<u32>(at1) < static_cast<u32>(layout.image[1]);
            const i64 place = (static_cast<i64>(at0) * layout.image[1] + at1) * layout.of_column;
            const E* const from = exists ? x + place : x;
            E* const own = reinterpret_cast<E*>(to) + i * DIRECT_RUN;
            if (in_pairs) {
#pragma unroll
                for (int j = 0; j < DIRECT_RUN; j += 2)
                    if (j < run)
                        async_copy::copy_or_zeros<2 * sizeof(E)>(
                            own + j, from + (exists ? places[j] : 0), exists);
            } else {
#pragma unroll
                for (int j = 0; j < DIRECT_RUN; ++j)
                    if (j < run) own[j] = exists ? from[places[j]] : from_acc<E>(0.0f);
            }
        }
    }
};

// Begins to copy to[panel][position][filter], in shared memory: Y at the tile's DIRECT_DEPTH
// positions, zeros outside of Y.
template <class Tile>
__device__ __forceinline__ void copy_positions(const typename Tile::E* y,
                                               const DirectLayout& layout,
                                               const TileOfPositions& tile, u8* to) {
    constexpr int AT_ONCE = STAGED_THREADS / LINE_VECTORS;
    static_assert(AT_ONCE == DIRECT_WIDTH);
    const int vector = threadIdx.x % LINE_VECTORS, column = threadIdx.x / LINE_VECTORS;
    const bool is_inside = tile.at[1] + column < layout.output[1];
    y += ((static_cast<i64>(tile.n) * layout.output[0] + tile.at[0]) * layout.output[1] +
          tile.at[1] + column) *
         layout.filters;
    const i64 step = static_cast<i64>(layout.output[1]) * layout.filters;
#pragma unroll
    for (int i = 0; i < DIRECT_DEPTH / AT_ONCE; ++i, y += step) {
        const int line = i * AT_ONCE + column;
#pragma unroll
        for (int panel = 0; panel < Tile::PANELS; ++panel) {
            const int filter = panel * Tile::IN_LINE + vector * Tile::VECTOR;
            async_copy::copy_or_zeros<16>(
                to + panel * Tile::Y_NBYTES + place_of_position<Tile>(vector, line), y + filter,
                is_inside && filter < layout.filters && tile.at[0] + i < layout.output[0]);
        }
    }
}

// Loads fragments for 16 positions of a line of the tile, in STEPS steps: A has PANEL filters as
// rows (DOWN fragments), B the columns of two runs of X. 2-byte types, by ldmatrix.
template <class Tile, bool TF32>
struct DirectFragmentsOf {
    static constexpr int DOWN = PANEL / 16, STEPS = 1;
    int low, a_at, x_position;  // for ldmatrix: the lane's offsets in A and in a run of X, in bytes

    // Lane l passes to ldmatrix the address of row l % 8 of matrix l / 8, here a position.
    __device__ __forceinline__ DirectFragmentsOf() {
        const int lane = threadIdx.x % WARP, middle = lane / 8 % 2, high = lane / 16;
        low = lane % 8;
        a_at = (low + high * 8) * LINE_NBYTES + (middle ^ low) * 16;
        x_position = (low + middle * 8) * Tile::RUN_NBYTES;
    }
    // 0 or 1: the run of the pair that this lane loads.
    static __device__ __forceinline__ int of_pair() { return threadIdx.x % WARP / 16; }
    // a = fragments of Y's filters at 16 positions; y: the line's first position in shared memory.
    __device__ __forceinline__ void load_a(const u8* y, int, tensor_core::A (&a)[DOWN]) const {
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
            matrices</*TRANSPOSED=*/true>(y + (a_at ^ i * K_NBYTES), a[i][0], a[i][1], a[i][2],
                                          a[i][3]);
    }
    // b = fragments of both runs of a pair; pair: this lane's run, for the line's first position.
    __device__ __forceinline__ void load_b(const u8* pair, int, int, tensor_core::B (&b)[2]) const {
        matrices</*TRANSPOSED=*/true>(pair + x_position, b[0][0], b[0][1], b[1][0], b[1][1]);
    }
};
// The same for TF32, word by word, in two steps of 8 positions: lane 4 g + t loads row g (filter or
// column) and position t; see tensor_core.cuh.
template <class Tile>
struct DirectFragmentsOf<Tile, /*TF32=*/true> {
    static constexpr int DOWN = PANEL / 16, STEPS = 2, K = tensor_core::K<float>;
    int a_at[2 * DOWN], x_position;

    // a_at[i]: offset of the lane's filter among filters 8 i to 8 i + 7, at its position.
    __device__ __forceinline__ DirectFragmentsOf() {
        const int lane = threadIdx.x % WARP;
#pragma unroll
        for (int i = 0; i < 2 * DOWN; ++i) {
            const int row = i * 8 + lane / 4, panel = row / Tile::IN_LINE;
            const int in_line = row % Tile::IN_LINE;
            a_at[i] = panel * Tile::Y_NBYTES +
                      place_of_position<Tile>(in_line / Tile::VECTOR, lane % 4) +
                      in_line % Tile::VECTOR * 4;
        }
        x_position = lane % 4 * Tile::RUN_NBYTES + lane / 4 * 4;
    }
    // A lane loads both runs of a pair, so it starts from the first.
    static __device__ __forceinline__ int of_pair() { return 0; }
    static __device__ __forceinline__ u32 word(const u8* from) {
        return *reinterpret_cast<const u32*>(from);
    }
    // a = fragments of Y's filters at 8 positions, step k; y: the line's first position in shared
    // memory.
    __device__ __forceinline__ void load_a(const u8* y, int k, tensor_core::A (&a)[DOWN]) const {
#pragma unroll
        for (int i = 0; i < DOWN; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j)
                a[i][j] = word(y + (k * K + j / 2 * 4) * LINE_NBYTES + a_at[2 * i + j % 2]);
            before_cut<Tile>(a[i]);
        }
    }
    // b = fragments of both runs of a pair, step k; pair: the first run, for the line's first
    // position; next: bytes from there to the second run.
    __device__ __forceinline__ void load_b(const u8* pair, int next, int k,
                                           tensor_core::B (&b)[2]) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int j = 0; j < 2; ++j)
                b[i][j] = word(pair + i * next + x_position + (k * K + j * 4) * Tile::RUN_NBYTES);
            before_cut<Tile>(b[i]);
        }
    }
};

// A block's product: PANEL filters by DIRECT_COLUMNS columns, which are DIRECT_VECTORS runs. A warp
// has all filters, and every fourth pair of runs as columns: PAIRS of them, of which n_pairs exist.
// of_y: sums of Y for the gradient of the bias.
template <class Tile>
struct DirectSums {
    using E = typename Tile::E;
    using Fragments = DirectFragmentsOf<Tile, Tile::IS_TF32>;
    static constexpr int DOWN = PANEL / 16, PAIRS = DIRECT_VECTORS / 8;
    static constexpr int HALF = DIRECT_DEPTH / 2;
    static_assert(STAGED_THREADS / WARP == 4 && STAGED_THREADS == 2 * PANEL);

    float sums[DOWN][2 * PAIRS][4] = {}, of_y[4] = {};
    Fragments fragments;
    // In shared memory, in bytes: offset of the lane's run of each pair; from its
    // first run to its second.
    int x_at[PAIRS], next[PAIRS];
    int n_pairs;

    // first_vector: number of the block's first run, in the order (tap row, window column). width:
    // runs of a row of X in shared memory.
    __device__ __forceinline__ DirectSums(const DirectLayout& layout, int first_vector, int width) {
        n_pairs = 0;
        const int vectors = layout.kernel[0] * layout.window[1];
        // The offset of run `vector`, or of the last, among the tile's rows of `width` runs.
        const auto place = [&](int vector) {
            const int inside = min(vector, vectors - 1), tap = inside / layout.window[1];
            return (tap * width + inside - tap * layout.window[1]) * Tile::RUN_NBYTES;
        };
#pragma unroll
        for (int i = 0; i < PAIRS; ++i) {
            const int pair = first_vector + i * 8 + threadIdx.x / WARP * 2;
            n_pairs += pair < vectors;
            x_at[i] = place(pair + Fragments::of_pair());
            next[i] = place(pair + 1) - place(pair);
        }
    }
    // Adds 16 positions, a line of the tile: y and x are its first in shared memory. of_w, of_bias:
    // which of the two sums are wanted.
    __device__ __forceinline__ void add(const u8* y, const u8* x, bool of_w, bool of_bias) {
#pragma unroll
        for (int k = 0; k < Fragments::STEPS; ++k) {
            tensor_core::A a[DOWN];
            fragments.load_a(y, k, a);
            if constexpr (sizeof(E) == 2)
                if (of_bias) add_bias(a);
            if (!of_w) continue;
#pragma unroll
            for (int j = 0; j < PAIRS; ++j) {
                if (j >= n_pairs) break;
                tensor_core::B b[2];
                fragments.load_b(x + x_at[j], next[j], k, b);
#pragma unroll
                for (int i = 0; i < DOWN; ++i) {
                    tensor_core::multiply<E>(sums[i][2 * j], a[i], b[0]);
                    tensor_core::multiply<E>(sums[i][2 * j + 1], a[i], b[1]);
                }
            }
        }
    }
    // of_y += sums of A's rows, as a product with ones; warp i has rows 16 i to 16 i + 15.
    __device__ __forceinline__ void add_bias(const tensor_core::A (&a)[DOWN]) {
        const u32 ones = bits_of(from_acc<E>(1.0f)) * 0x10001u;  // two in a word
        const tensor_core::B b = {ones, ones};
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
            if (i == static_cast<int>(threadIdx.x / WARP)) tensor_core::multiply<E>(of_y, a[i], b);
    }
    // of_y[0] += sums of Y over the tile, in float, not cut to TF32: each thread adds half of the
    // positions of a filter.
    __device__ __forceinline__ void add_floats(const u8* y) {
        const int filter = threadIdx.x % PANEL, in_line = filter % Tile::IN_LINE;
        const int first = threadIdx.x / PANEL * HALF;
        y += filter / Tile::IN_LINE * Tile::Y_NBYTES + in_line % Tile::VECTOR * 4;
        float sum = 0;
#pragma unroll 8
        for (int i = 0; i < HALF; ++i)
            sum += *reinterpret_cast<const float*>(
                y + place_of_position<Tile>(in_line / Tile::VECTOR, first + i));
        of_y[0] += sum;
    }
    // to[filter][column] = sums, DIRECT_COLUMNS columns a filter.
    __device__ __forceinline__ void write(float* to) const {
        using Pair = vec::Vec<float, 2>;
        const int lane = threadIdx.x % WARP;
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
#pragma unroll
            for (int j = 0; j < 2 * PAIRS; ++j)
#pragma unroll
                for (int down = 0; down < 2; ++down) {
                    const int row = i * 16 + down * 8 + lane / 4;
                    const int vector = j / 2 * 8 + threadIdx.x / WARP * 2 + j % 2;
                    const float* const pair = sums[i][j] + 2 * down;
                    *reinterpret_cast<Pair*>(to + row * DIRECT_COLUMNS + vector * DIRECT_RUN +
                                             lane % 4 * 2) = Pair{pair[0], pair[1]};
                }
    }
    // to[filter] = sum of Y, filter < filters. For floats, two threads add their halves of a filter
    // by way of `shared`, a float for each thread; else the first of the four lanes that have a
    // filter writes it.
    __device__ __forceinline__ void write_of_y(float* to, i32 filters, float* shared) const {
        if constexpr (sizeof(E) == 4) {
            __syncthreads();
            shared[threadIdx.x] = of_y[0];
            __syncthreads();
            if (threadIdx.x < filters) to[threadIdx.x] = of_y[0] + shared[PANEL + threadIdx.x];
        } else {
            const int lane = threadIdx.x % WARP, row = threadIdx.x / WARP * 16 + lane / 4;
            if (lane % 4 != 0) return;
#pragma unroll
            for (int down = 0; down < 2; ++down)
                if (row + down * 8 < filters) to[row + down * 8] = of_y[2 * down];
        }
    }
};

// sums[part][column tile][filter][column] = sum of y * x over every parts-th tile of positions, if
// not null; y_sums[part][filter] = sum of y, if not null. Block part * column_tiles + column tile
// has all filters of one. memory: shared memory, two stages of Tile::STAGE_NBYTES. EXISTS: compiled
// for this GPU and type.
template <class Tile, bool EXISTS>
__device__ __forceinline__ void sum_direct(const typename Tile::E* x, const typename Tile::E* y,
                                           Acc<typename Tile::E>* sums,
                                           Acc<typename Tile::E>* y_sums, u32 column_tiles,
                                           const DirectLayout& layout, u8* memory) {
    if constexpr (EXISTS) {
        constexpr int HEIGHT = DIRECT_DEPTH / DIRECT_WIDTH, STAGE = Tile::STAGE_NBYTES;
        constexpr int OF_Y = Tile::PANELS * Tile::Y_NBYTES;
        __shared__ i32 places[DIRECT_RUN];
        if (threadIdx.x < DIRECT_RUN)
            places[threadIdx.x] = InRun(layout, threadIdx.x).place(layout);
        const u32 part = blockIdx.x / column_tiles, parts = gridDim.x / column_tiles;
        const u32 column_tile = blockIdx.x - part * column_tiles, end = count_tiles(layout);
        const Runs<Tile> runs{/*height=*/(HEIGHT - 1) * layout.stride[0] + layout.kernel[0],
                              /*width=*/DIRECT_WIDTH + layout.window[1] - 1, layout.in_pairs};
        __syncthreads();
        DirectSums<Tile> product(layout, column_tile * DIRECT_VECTORS, runs.width);
        const bool of_bias = y_sums && column_tile == 0;
        const int step = layout.stride[0] * runs.width * Tile::RUN_NBYTES;
        const auto begin = [&](u32 number, u8* stage) {
            const TileOfPositions tile(layout, number, HEIGHT);
            copy_positions<Tile>(y, layout, tile, stage);
            if (sums) runs.copy(x, layout, tile, places, stage + OF_Y);
            async_copy::commit();
        };
        if (part < end) begin(part, memory);
        int from = 0;
        for (u32 number = part; number < end; number += parts) {
            async_copy::wait<0>();
            __syncthreads();  // the tile is there, and the one before has been used
            if (end - number > parts) begin(number + parts, memory + (STAGE - from));
            if constexpr (sizeof(*y) == 4)
                if (of_bias) product.add_floats(memory + from);
#pragma unroll 2
            for (int row = 0; row < HEIGHT; ++row)
                product.add(memory + from + row * (DIRECT_WIDTH * LINE_NBYTES),
                            memory + from + OF_Y + row * step, sums != nullptr, of_bias);
            from = STAGE - from;
        }
        if (of_bias)
            product.write_of_y(y_sums + static_cast<i64>(part) * layout.filters, layout.filters,
                               reinterpret_cast<float*>(memory));
        if (sums) product.write(sums + static_cast<i64>(blockIdx.x) * (PANEL * DIRECT_COLUMNS));
    }
}

// w = sum over `count` parts of parts[part][column tile][filter][column], rounded, by the first
// blocks_of_weights blocks; bias = sum of y_parts by the others. A block has THREADS / summers
// neighbouring sums, `summers` threads share one. column_tiles: tiles of columns of a part.
template <class E>
__device__ __forceinline__ void write_direct_weights(const Acc<E>* parts, E* w,
                                                     const Acc<E>* y_parts, E* bias, i32 count,
                                                     i32 summers, u32 column_tiles,
                                                     u32 blocks_of_weights,
                                                     const DirectLayout& layout) {
    if (blockIdx.x >= blocks_of_weights)
        return weight::write_total<E>(y_parts, bias, count, summers, layout.filters,
                                      blockIdx.x - blocks_of_weights);
    const u32 numbers = THREADS / summers;
    // index = (tile * PANEL + row) * DIRECT_COLUMNS + column; row: a filter, e: element of a run
    const u32 index = blockIdx.x * numbers + threadIdx.x % numbers;
    const i32 column = index % DIRECT_COLUMNS, row = index / DIRECT_COLUMNS % PANEL;
    const u32 tile = index / (DIRECT_COLUMNS * PANEL);
    const i32 vector = tile * DIRECT_VECTORS + column / 8, e = column % 8;
    const i32 k0 = vector / layout.window[1];
    const InRun at(layout, e);
    const i32 k1 =
        (vector - k0 * layout.window[1]) * layout.stride[1] + at.column - layout.skipped[1];
    const i32 place = e < run_of(layout) ? place_in_w(layout, at.channel, k0, k1) : -1;
    const bool exists = place >= 0 && row < layout.filters;
    const i64 pitch = static_cast<i64>(column_tiles) * (PANEL * DIRECT_COLUMNS);
    const Acc<E> sum =
        weight::sum_parts(parts, static_cast<i64>(index), pitch, count, summers, exists);
    if (exists && threadIdx.x < numbers)
        w[row * (layout.channels * layout.kernel[0] * layout.kernel[1]) + place] = from_acc<E>(sum);
}

}  // namespace cto::conv::direct_weight
