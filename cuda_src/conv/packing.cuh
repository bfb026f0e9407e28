// SPDX-License-Identifier: MIT
// W in the order in which tiles of image.cuh read it.
#pragma once
#include "conv/image.cuh"

namespace cto::conv::packing {

using namespace image;

// The element of W for a row that is a channel and a residue of the strides (layout.of_channel >
// 1): W[filter][channel][tap r - skipped + j spread along each axis], where r is the residue and j
// the tap number `tap` of the layout's kernel; zero if W has no such tap.
template <class E>
__device__ __forceinline__ E spread_tap(const E* w, const ImageLayout& layout, i64 filter, i32 row,
                                        i32 tap) {
    const Row split_row(layout, row);
    i64 place = 0, pitch = 1;
    bool exists = true;
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) {
        const i32 next = tap / layout.kernel[axis], j = tap - next * layout.kernel[axis];
        const i32 of_w = split_row.residues[axis] - layout.skipped[axis] + j * layout.spread[axis];
        exists &= static_cast<u32>(of_w) < static_cast<u32>(layout.w_kernel[axis]);
        place += of_w * pitch;
        pitch *= layout.w_kernel[axis];
        tap = next;
    }
    const i64 channels = layout.rows / layout.of_channel;
    return exists ? w[(filter * channels + split_row.channel) * pitch + place] : from_acc<E>(0.0f);
}

// packed[tile][part][tap][d][r] = W[group][first_row + r][part * DEPTH + d][tap], zeros beyond the
// rows and the depth; in the gradient, filter and channel swap places. Block (tile, part, tap) has
// the DEPTH * ROWS elements of one of these. With of_channel > 1 rows are residues of channels:
// spread_tap.
template <class Tile>
__device__ __forceinline__ void pack(const typename Tile::E* w, typename Tile::E* packed,
                                     const ImageLayout& layout) {
    using E = typename Tile::E;
    const i64 taps = volume(layout.kernel);
    const u32 rest = blockIdx.x / static_cast<u32>(taps), tap = blockIdx.x - rest * taps;
    const u32 local = rest / static_cast<u32>(layout.parts), part = rest - local * layout.parts;
    const i32 tile = layout.first_tile + local, group = tile / layout.row_tiles;
    const i32 first_row = (tile - group * layout.row_tiles) * Tile::ROWS;
    E* const to = packed + static_cast<i64>(blockIdx.x) * (Tile::DEPTH * Tile::ROWS);
    for (int i = threadIdx.x; i < Tile::DEPTH * Tile::ROWS; i += THREADS) {
        const i64 row = first_row + i % Tile::ROWS, depth = part * Tile::DEPTH + i / Tile::ROWS;
        E value = from_acc<E>(0.0f);
        if (row < layout.rows && depth < layout.depth) {
            const i64 filter = layout.is_gradient ? depth : row;
            const i64 channel = layout.is_gradient ? row : depth;
            const i64 filters = layout.is_gradient ? layout.depth : layout.rows;
            const i64 channels = layout.is_gradient ? layout.rows : layout.depth;
            if (layout.of_channel > 1)
                value = spread_tap(w, layout, group * filters + filter, row, tap);
            else
                value = w[((group * filters + filter) * channels + channel) * taps + tap];
        }
        to[i] = Tile::rounded(value);
    }
}

}  // namespace cto::conv::packing
