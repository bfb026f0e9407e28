// SPDX-License-Identifier: MIT
// Gradients of a convolution of few channels, along two axes, of an output with its channels side by
// side. A block has what a tile of positions reads in shared memory once, for all taps.
//
// Along a line of the image `run` neighbouring elements, channels and columns of a stride, are a vector of
// eight; `window` are the vectors that a tap's line has, and along the other axis the residues' taps.
#pragma once
#include "conv/staged_weight.cuh"

namespace cto::conv::direct {

using namespace image;
using namespace staged_tile;

constexpr int LOW_BITS = 7;  // of a line of shared memory

// A tile of positions, of an image.
struct TileOfPositions {
    u32 n;
    i32 at[2];

    __device__ __forceinline__ TileOfPositions(const DirectLayout& layout, u32 tile, int height) {
        const u32 rest = tile / static_cast<u32>(layout.tiles[1]);
        n = rest / static_cast<u32>(layout.tiles[0]);
        at[0] = static_cast<i32>(rest - n * layout.tiles[0]) * height;
        at[1] = static_cast<i32>(tile - rest * layout.tiles[1]) * DIRECT_WIDTH;
    }
};

__device__ __forceinline__ u32 count_tiles(const DirectLayout& layout) {
    return static_cast<u32>(layout.batch) * layout.tiles[0] * layout.tiles[1];
}

// Element `e` of a run: neighbours lie side by side, channels or columns.
struct InRun {
    i32 column, channel;

    __device__ __forceinline__ InRun(const DirectLayout& layout, i32 e) {
        const i32 inner = layout.of_channel == 1 ? layout.channels : layout.stride[1];
        const i32 outer = e / inner, rest = e - outer * inner;
        column = layout.of_channel == 1 ? outer : rest;
        channel = layout.of_channel == 1 ? rest : outer;
    }
    // From the first on.
    __device__ __forceinline__ i32 place(const DirectLayout& layout) const {
        return column * layout.of_column + channel * layout.of_channel;
    }
};

__device__ __forceinline__ i32 run_of(const DirectLayout& layout) {
    return layout.stride[1] * layout.channels;
}

// Where W has what belongs to channel `channel` and tap (k0, k1) of filter 0; negative where there is none.
__device__ __forceinline__ i32 place_in_w(const DirectLayout& layout, i32 channel, i32 k0, i32 k1) {
    const bool exists = static_cast<u32>(k0) < static_cast<u32>(layout.kernel[0]) &&
                        static_cast<u32>(k1) < static_cast<u32>(layout.kernel[1]);
    const i32 tap = k0 * layout.kernel[1] + k1;
    const i32 taps = layout.kernel[0] * layout.kernel[1];
    if (!exists) return -1;
    return layout.w_channels_last ? tap * layout.channels + channel : channel * taps + tap;
}

// ---- the gradient of the image ------------------------------------------------------------------

// W as lines of filters: (tap of the window, row), rows being residues of a channel.
template <class E>
__device__ __forceinline__ void stage_w(const E* w, const DirectLayout& layout, u8* to) {
    constexpr int VECTOR = vec::WIDTH<E>;
    const i32 run = run_of(layout);
    const i32 pitch = layout.channels * layout.kernel[0] * layout.kernel[1];
    const int end = layout.window[0] * layout.window[1] * DIRECT_ROWS;
    for (int line = threadIdx.x; line < end; line += STAGED_THREADS) {
        const i32 tap = line / DIRECT_ROWS, row = line % DIRECT_ROWS, down = tap / layout.window[1];
        const i32 residue = row / run;
        const InRun at(layout, row - residue * run);
        const i32 k0 = down * layout.stride[0] + residue - layout.skipped[0];
        const i32 k1 =
            (tap - down * layout.window[1]) * layout.stride[1] + at.column - layout.skipped[1];
        const i32 place = residue < layout.stride[0] ? place_in_w(layout, at.channel, k0, k1) : -1;
        for (int vector = 0; vector < LINE_VECTORS; ++vector) {
            vec::Vec<E, VECTOR> found{};
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) {
                const i32 filter = vector * VECTOR + i;
                if (place >= 0 && filter < layout.filters)
                    found.at[i] = w[static_cast<i64>(filter) * pitch + place];
            }
            *reinterpret_cast<vec::Vec<E, VECTOR>*>(to + line * LINE_NBYTES +
                                                    place_in_line(vector, line)) = found;
        }
    }
}

// What all taps of a tile read: zeros beside Y.
template <class E>
__device__ __forceinline__ void copy_halo(const E* y, const DirectLayout& layout,
                                          const TileOfPositions& tile, int height, int width,
                                          u8* halo) {
    constexpr int AT_ONCE = STAGED_THREADS / LINE_VECTORS;
    const int vector = threadIdx.x % LINE_VECTORS;
    const bool has_vector = vector * vec::WIDTH<E> < layout.filters;
    const i32 first0 = tile.at[0] + layout.window_pad[0] - (layout.window[0] - 1);
    const i32 first1 = tile.at[1] + layout.window_pad[1] - (layout.window[1] - 1);
    y += static_cast<i64>(tile.n) * layout.output[0] * layout.output[1] * layout.filters +
         vector * vec::WIDTH<E>;
    int row = 0, column = threadIdx.x / LINE_VECTORS;
#pragma unroll 4
    for (int line = column; line < height * width; line += AT_ONCE) {
        for (; column >= width; column -= width) ++row;
        const i32 at0 = first0 + row, at1 = first1 + column;
        const bool exists = has_vector &&
                            static_cast<u32>(at0) < static_cast<u32>(layout.output[0]) &&
                            static_cast<u32>(at1) < static_cast<u32>(layout.output[1]);
        const i64 place = (static_cast<i64>(at0) * layout.output[1] + at1) * layout.filters;
        async_copy::copy_or_zeros<16>(halo + line * LINE_NBYTES + place_in_line(vector, line),
                                      exists ? y + place : y, exists);
        column += AT_ONCE;
    }
    async_copy::commit();
}

// Positions of a warp by rows: each lane has some of eight and four columns.
template <class E>
struct DirectProduct {
    static constexpr int DOWN = DIRECT_POSITIONS / (STAGED_THREADS / WARP) / 16;
    static constexpr int ACROSS = DIRECT_ROWS / 8;
    static_assert(ACROSS == 2);

    float sums[DOWN][ACROSS][4];
    int lines[DOWN];  // of the halo, of this lane, at the last tap
    int b_line;

    __device__ __forceinline__ explicit DirectProduct(int width) {
        const int lane = threadIdx.x % WARP, middle = lane / 8 % 2;
#pragma unroll
        for (int i = 0; i < DOWN; ++i) {
            const int position = first_position() + i * 16 + lane % 8 + middle * 8;
            lines[i] = position / DIRECT_WIDTH * width + position % DIRECT_WIDTH;
        }
        b_line = (lane % 8 + lane / 16 * 8) * LINE_NBYTES + (middle ^ lane % 8) * 16;
    }
    static __device__ __forceinline__ int first_position() {
        return threadIdx.x / WARP * (DOWN * 16);
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
#pragma unroll
            for (int j = 0; j < ACROSS; ++j)
#pragma unroll
                for (int k = 0; k < 4; ++k) sums[i][j][k] = 0;
    }
    // What a tap reads `shift` lines further on.
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
            matrices<false>(w + (b_line ^ k * 32), b[0][0], b[0][1], b[1][0], b[1][1]);
#pragma unroll
            for (int i = 0; i < DOWN; ++i) {
                tensor_core::A a;
                matrices<false>(halo + (at[i] ^ k * 32), a[0], a[1], a[2], a[3]);
#pragma unroll
                for (int j = 0; j < ACROSS; ++j) tensor_core::multiply<E>(sums[i][j], a, b[j]);
            }
        }
    }
};

// Where the columns of a lane are written, from a position on, and what is added to them.
struct DirectColumns {
    i32 places[4];  // negative where there is none
    float bias[4];

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

template <class E>
__device__ __forceinline__ void write_direct_tile(const DirectProduct<E>& product,
                                                  const DirectLayout& layout,
                                                  const DirectColumns& columns,
                                                  const TileOfPositions& tile, E* x) {
    using Pair = vec::Vec<E, 2>;
    x += static_cast<i64>(tile.n) * layout.channels * layout.image[0] * layout.image[1];
#pragma unroll
    for (int i = 0; i < DirectProduct<E>::DOWN; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int position =
                product.first_position() + i * 16 + half * 8 + threadIdx.x % WARP / 4;
            const i32 at0 = (tile.at[0] + position / DIRECT_WIDTH) * layout.stride[0];
            const i32 at1 = (tile.at[1] + position % DIRECT_WIDTH) * layout.stride[1];
            if (at0 >= layout.image[0] || at1 >= layout.image[1]) continue;
            E* const to = x + (static_cast<i64>(at0) * layout.image[1] + at1) * layout.of_column;
#pragma unroll
            for (int j = 0; j < DirectProduct<E>::ACROSS; ++j) {
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

// Blocks take every so many tiles.
template <class E, bool EXISTS>
__device__ __forceinline__ void write_direct(const E* y, const E* w, const E* bias, E* x,
                                             const DirectLayout& layout, u8* memory) {
    if constexpr (EXISTS) {
        constexpr int HEIGHT = DIRECT_POSITIONS / DIRECT_WIDTH;
        const int height = HEIGHT + layout.window[0] - 1;
        const int width = DIRECT_WIDTH + layout.window[1] - 1;
        const int depth = (layout.filters + 15) / 16;
        u8* const halo = memory + layout.window[0] * layout.window[1] * DIRECT_ROWS * LINE_NBYTES;
        stage_w(w, layout, memory);
        const DirectColumns columns(layout, bias);
        DirectProduct<E> product(width);
        const u32 end = count_tiles(layout);
        for (u32 number = blockIdx.x; number < end; number += gridDim.x) {
            const TileOfPositions tile(layout, number, HEIGHT);
            copy_halo(y, layout, tile, height, width, halo);
            product.clear();
            async_copy::wait<0>();
            __syncthreads();
            const u8* of_tap = memory;
            for (int i = layout.window[0] - 1; i >= 0; --i)
                for (int j = layout.window[1] - 1; j >= 0; --j, of_tap += DIRECT_ROWS * LINE_NBYTES)
                    product.add_tap(of_tap, halo, i * width + j, depth);
            write_direct_tile(product, layout, columns, tile, x);
            __syncthreads();
        }
    }
}

// ---- the gradient of the weights ----------------------------------------------------------------

constexpr int DIRECT_VECTORS = DIRECT_COLUMNS / DIRECT_RUN;  // of a tile

// Vectors of X that a tile reads, of which what is behind a run stays zero.
template <class E>
struct Runs {
    int height, width;
    bool in_pairs;

    __device__ __forceinline__ void clear(u8* to) const {
        for (int i = threadIdx.x; i < height * width; i += STAGED_THREADS)
            *reinterpret_cast<uint4*>(to + i * 16) = uint4{};
    }
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
                        async_copy::copy_or_zeros<4>(own + j, from + (exists ? places[j] : 0),
                                                     exists);
            } else {
#pragma unroll
                for (int j = 0; j < DIRECT_RUN; ++j)
                    if (j < run) own[j] = exists ? from[places[j]] : from_acc<E>(0.0f);
            }
        }
    }
};

// Positions of Y, DIRECT_DEPTH of a tile.
template <class E>
__device__ __forceinline__ void copy_positions(const E* y, const DirectLayout& layout,
                                               const TileOfPositions& tile, u8* to) {
    constexpr int AT_ONCE = STAGED_THREADS / LINE_VECTORS;
    static_assert(AT_ONCE == DIRECT_WIDTH);
    const int vector = threadIdx.x % LINE_VECTORS, column = threadIdx.x / LINE_VECTORS;
    const bool exists =
        vector * vec::WIDTH<E> < layout.filters && tile.at[1] + column < layout.output[1];
    y += ((static_cast<i64>(tile.n) * layout.output[0] + tile.at[0]) * layout.output[1] +
          tile.at[1] + column) *
             layout.filters +
         vector * vec::WIDTH<E>;
    const i64 step = static_cast<i64>(layout.output[1]) * layout.filters;
#pragma unroll
    for (int i = 0; i < DIRECT_DEPTH / AT_ONCE; ++i, y += step) {
        const int line = i * AT_ONCE + column;
        async_copy::copy_or_zeros<16>(to + line * LINE_NBYTES + place_in_line(vector, line), y,
                                      exists && tile.at[0] + i < layout.output[0]);
    }
}

// PANEL filters by the columns of a tile, of which a warp has every fourth pair of vectors.
template <class E>
struct DirectSums {
    static constexpr int DOWN = PANEL / 16, PAIRS = DIRECT_VECTORS / 8;
    static_assert(STAGED_THREADS / WARP == 4 && DIRECT_WIDTH == 16);

    float sums[DOWN][2 * PAIRS][4] = {}, of_y[4] = {};
    int a_at, x_at[PAIRS];  // of this lane
    int low, n_pairs, n_rows;

    __device__ __forceinline__ DirectSums(const DirectLayout& layout, int first_vector, int width) {
        const int lane = threadIdx.x % WARP, middle = lane / 8 % 2, high = lane / 16;
        low = lane % 8;
        a_at = (low + high * 8) * LINE_NBYTES + (middle ^ low) * 16;
        n_rows = (layout.filters + 15) / 16;
        n_pairs = 0;
        const int vectors = layout.kernel[0] * layout.window[1];
#pragma unroll
        for (int i = 0; i < PAIRS; ++i) {
            const int pair = first_vector + i * 8 + threadIdx.x / WARP * 2;
            const int vector = min(pair + high, vectors - 1), tap = vector / layout.window[1];
            n_pairs += pair < vectors;
            // Of this lane's position, among sixteen of a line.
            x_at[i] = (tap * width + vector - tap * layout.window[1] + low + middle * 8) * 16;
        }
    }
    // Sixteen positions, a line of the tile.
    __device__ __forceinline__ void add(const u8* y, const u8* x, bool of_w, bool of_bias) {
        tensor_core::A a[DOWN];
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
            matrices<true>(y + (a_at ^ i * 32), a[i][0], a[i][1], a[i][2], a[i][3]);
        if (of_bias) {
            const u32 ones = bits_of(from_acc<E>(1.0f)) * 0x10001u;
            const tensor_core::B b = {ones, ones};
#pragma unroll
            for (int i = 0; i < DOWN; ++i)
                if (i == static_cast<int>(threadIdx.x / WARP))
                    tensor_core::multiply<E>(of_y, a[i], b);
        }
        if (!of_w) return;
#pragma unroll
        for (int j = 0; j < PAIRS; ++j) {
            if (j >= n_pairs) break;
            tensor_core::B b[2];
            matrices<true>(x + x_at[j], b[0][0], b[0][1], b[1][0], b[1][1]);
#pragma unroll
            for (int i = 0; i < DOWN; ++i) {
                if (i >= n_rows) break;
                tensor_core::multiply<E>(sums[i][2 * j], a[i], b[0]);
                tensor_core::multiply<E>(sums[i][2 * j + 1], a[i], b[1]);
            }
        }
    }
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
                    *reinterpret_cast<Pair*>(to + row * DIRECT_COLUMNS + vector * 8 +
                                             lane % 4 * 2) = Pair{pair[0], pair[1]};
                }
    }
    __device__ __forceinline__ void write_of_y(float* to, i32 filters) const {
        const int lane = threadIdx.x % WARP, row = threadIdx.x / WARP * 16 + lane / 4;
        if (lane % 4 != 0) return;
#pragma unroll
        for (int down = 0; down < 2; ++down)
            if (row + down * 8 < filters) to[row + down * 8] = of_y[2 * down];
    }
};

// Sums of every `parts`-th tile: (part, tile of columns, PANEL, DIRECT_COLUMNS), if they are wanted, and
// of Y: (part, filter).
template <class E, bool EXISTS>
__device__ __forceinline__ void sum_direct(const E* x, const E* y, Acc<E>* sums, Acc<E>* y_sums,
                                           u32 column_tiles, const DirectLayout& layout,
                                           u8* memory) {
    if constexpr (EXISTS) {
        constexpr int HEIGHT = DIRECT_DEPTH / DIRECT_WIDTH, OF_Y = DIRECT_DEPTH * LINE_NBYTES;
        constexpr int STAGE = OF_Y + DIRECT_HALO * 16;
        __shared__ i32 places[DIRECT_RUN];
        if (threadIdx.x < DIRECT_RUN)
            places[threadIdx.x] = InRun(layout, threadIdx.x).place(layout);
        const u32 part = blockIdx.x / column_tiles, parts = gridDim.x / column_tiles;
        const u32 column_tile = blockIdx.x - part * column_tiles, end = count_tiles(layout);
        const Runs<E> runs{(HEIGHT - 1) * layout.stride[0] + layout.kernel[0],
                           DIRECT_WIDTH + layout.window[1] - 1, layout.in_pairs};
        runs.clear(memory + OF_Y);
        runs.clear(memory + STAGE + OF_Y);
        __syncthreads();
        DirectSums<E> product(layout, column_tile * DIRECT_VECTORS, runs.width);
        const bool of_bias = y_sums && column_tile == 0;
        const int step = layout.stride[0] * runs.width * 16;
        const auto begin = [&](u32 number, u8* stage) {
            const TileOfPositions tile(layout, number, HEIGHT);
            copy_positions(y, layout, tile, stage);
            if (sums) runs.copy(x, layout, tile, places, stage + OF_Y);
            async_copy::commit();
        };
        if (part < end) begin(part, memory);
        int from = 0;
        for (u32 number = part; number < end; number += parts) {
            async_copy::wait<0>();
            __syncthreads();
            if (end - number > parts) begin(number + parts, memory + (STAGE - from));
#pragma unroll 1
            for (int row = 0; row < HEIGHT; ++row)
                product.add(memory + from + row * (DIRECT_WIDTH * LINE_NBYTES),
                            memory + from + OF_Y + row * step, sums != nullptr, of_bias);
            from = STAGE - from;
        }
        if (of_bias)
            product.write_of_y(y_sums + static_cast<i64>(part) * layout.filters, layout.filters);
        if (sums) product.write(sums + static_cast<i64>(blockIdx.x) * (PANEL * DIRECT_COLUMNS));
    }
}

// W, and in blocks behind those that it takes the gradient of a bias.
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

}  // namespace cto::conv::direct
