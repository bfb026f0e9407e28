// SPDX-License-Identifier: MIT
// Gradients of a convolution of few channels, 2-D, dY being (n, position, filter). A block copies
// what a tile of positions reads to shared memory once, for all taps.
//
// A run is the stride[1] * channels elements of X at stride[1] neighbouring columns, at most 8; it
// takes a vector of 8. With stride (2, 2), for example, X becomes a reduced image of a quarter of
// the positions, with 4 times the channels (one for each residue of row and column); `window` is
// the extent of the kernel there, and a window tap one of its places.
//
// Fields of DirectLayout, of the last two axes each: image, output, kernel, stride and pad; window,
// and window_pad, the kernel's extent and the pad in the reduced image, where window tap 0 is tap
// -skipped of W; tiles, of positions of an image. of_column, of_channel: elements of X from a
// column, and a channel, to the next. in_pairs: runs are loaded and stored by pairs of elements.
#pragma once
#include "conv/staged_weight.cuh"

namespace cto::conv::direct {

using namespace image;
using namespace staged_tile;

constexpr int LOW_BITS = 7;   // log2 of the bytes of a line of shared memory
constexpr int K_NBYTES = 32;  // bytes of a line that one product of fragments sums over

// Sizes of shared memory for elements of type E; TF32: floats are multiplied in TF32. Y takes
// PANELS panels, which have PANEL filters in all: a line of a panel is IN_LINE filters (128 bytes)
// of one position. VECTOR: elements of 16 bytes.
template <class Element, bool TF32>
struct DirectTile {
    using E = Element;
    static constexpr bool IS_TF32 = TF32;
    static constexpr int IN_LINE = LINE_NBYTES / sizeof(E), VECTOR = 16 / sizeof(E);
    static constexpr int PANELS = PANEL / IN_LINE;
    static constexpr int RUN_NBYTES = DIRECT_RUN * sizeof(E);
    static constexpr int Y_NBYTES = DIRECT_DEPTH * LINE_NBYTES;  // bytes of a panel of Y
    static constexpr int STAGE_NBYTES = PANELS * Y_NBYTES + DIRECT_HALO * RUN_NBYTES;
};

// Tile `tile` of positions, in the numbering (image, tile down, tile across): image n, `height`
// rows and DIRECT_WIDTH columns from position at[0..1] on.
struct TileOfPositions {
    u32 n;
    i32 at[2];

    // height: rows of a tile.
    __device__ __forceinline__ TileOfPositions(const DirectLayout& layout, u32 tile, int height) {
        const u32 rest = tile / static_cast<u32>(layout.tiles[1]);
        n = rest / static_cast<u32>(layout.tiles[0]);
        at[0] = static_cast<i32>(rest - n * layout.tiles[0]) * height;
        at[1] = static_cast<i32>(tile - rest * layout.tiles[1]) * DIRECT_WIDTH;
    }
};

// Number of tiles of positions of all images.
__device__ __forceinline__ u32 count_tiles(const DirectLayout& layout) {
    return static_cast<u32>(layout.batch) * layout.tiles[0] * layout.tiles[1];
}

// Element `e` of a run: its column and channel. Neighbours of a run are neighbours in memory.
struct InRun {
    i32 column, channel;

    // Memory order: (column, channel) if channels are last, else (channel, column).
    __device__ __forceinline__ InRun(const DirectLayout& layout, i32 e) {
        const i32 inner = layout.of_channel == 1 ? layout.channels : layout.stride[1];
        const i32 outer = e / inner, rest = e - outer * inner;
        column = layout.of_channel == 1 ? outer : rest;
        channel = layout.of_channel == 1 ? rest : outer;
    }
    // Its offset from the run's first element in X.
    __device__ __forceinline__ i32 place(const DirectLayout& layout) const {
        return column * layout.of_column + channel * layout.of_channel;
    }
};

// Number of elements of a run.
__device__ __forceinline__ i32 run_of(const DirectLayout& layout) {
    return layout.stride[1] * layout.channels;
}

// The offset in W of W[filter 0][channel][k0][k1], in elements; -1 if there is no such tap.
__device__ __forceinline__ i32 place_in_w(const DirectLayout& layout, i32 channel, i32 k0, i32 k1) {
    const bool exists = static_cast<u32>(k0) < static_cast<u32>(layout.kernel[0]) &&
                        static_cast<u32>(k1) < static_cast<u32>(layout.kernel[1]);
    const i32 tap = k0 * layout.kernel[1] + k1;
    const i32 taps = layout.kernel[0] * layout.kernel[1];
    if (!exists) return -1;
    return layout.w_channels_last ? tap * layout.channels + channel : channel * taps + tap;
}

}  // namespace cto::conv::direct
