// SPDX-License-Identifier: MIT
// Which rows and columns of a tile are a thread's, for staged_tiles.cuh.
#pragma once
#include "batch_norm/facts.cuh"
#include "core/types.cuh"

namespace cto::batch_norm::tile_place {

using namespace facts::batch_norm;

// Thread (x, y) has columns x * W, ..., x * W + W - 1 of a tile, in rows y, y + height, ... The
// columns belong to at most two channels of the tile: `low`, and from column `split` of the W on,
// low + 1.
template <int W>
struct Place {
    const StagedTiles& tiles;
    u32 x, y, height;
    u32 low;
    int split;
    u32 n_tiles;  // tiles that have the thread's columns; the last tile may be narrower
    i32 n_rows;   // rows of the thread in each of them
    i64 pitch;    // elements from a row of the thread to its next

    // This thread's: x is the faster index; W columns reach into the next channel if it begins less
    // than W columns on.
    __device__ explicit Place(const StagedTiles& tiles) : tiles(tiles) {
        x = threadIdx.x % tiles.width, y = threadIdx.x / tiles.width;
        height = blockDim.x / tiles.width;
        low = x * W / tiles.length;
        const u32 rest = (low + 1) * tiles.length - x * W;
        split = rest < W ? static_cast<int>(rest) : W;
        const bool in_last = x * W < n_channels(tiles.n_tiles - 1) * tiles.length;
        n_tiles = tiles.n_tiles - (in_last ? 0 : 1);
        n_rows = y < height && y < tiles.n_rows
                     ? static_cast<i32>((tiles.n_rows - y + height - 1) / height)
                     : 0;
        pitch = height * tiles.n_channels * tiles.length;
    }
    // The channel, counted in the tile, of the thread's column i.
    __device__ u32 channel(int i) const { return low + (i >= split); }
    // Channels of a tile; the last one may have fewer.
    __device__ u32 n_channels(u32 tile) const {
        const i64 rest = tiles.n_channels - first_channel(tile);
        return rest < tiles.tile_channels ? static_cast<u32>(rest) : tiles.tile_channels;
    }
    // The number of the tile's first channel.
    __device__ i64 first_channel(u32 tile) const {
        return static_cast<i64>(tile) * tiles.tile_channels;
    }
    // Rows of the thread in a tile; staged_rows: those in shared memory, the first ones.
    __device__ i32 rows(u32 tile) const { return tile < n_tiles ? n_rows : 0; }
    __device__ i32 staged_rows(u32 tile) const {
        const i32 n = rows(tile);
        return n < tiles.staged_rows ? n : tiles.staged_rows;
    }
    // Index in the array of the thread's first column in its first row of a tile.
    __device__ i64 element(u32 tile) const {
        const i64 row = tiles.n_channels * tiles.length;
        return y * row + first_channel(tile) * tiles.length + x * W;
    }
    // Number of threads with columns, which is also the pitch of fields of sums in shared memory;
    // entry: the thread's index there, threads with the same columns are neighbours.
    __device__ u32 n_threads() const { return tiles.width * height; }
    __device__ u32 entry() const { return x * height + y; }
};

}  // namespace cto::batch_norm::tile_place
