// SPDX-License-Identifier: MIT
// 1 x 1 convolutions and their data gradients, read and written by vectors of positions. Blocks are
// short, so they start copies at once and have several parts in flight.
#pragma once
#include "conv/image.cuh"

namespace cto::conv::pointwise {

using namespace image;
using namespace lines;
using namespace tile;

// A block's tile: rows (channels) from first_row on of a group, COLUMNS positions from first_column
// on, numbered through all images, `columns` in all. Each position reads the position of the same
// number. tile: number of the tile of rows in this launch; plane: positions of an image.
struct LinesPlace {
    i32 tile, group, first_row;
    i64 first_column, columns, plane;

    // Blocks are numbered (tile of columns, tile of rows of all groups); rows: of a tile.
    __device__ __forceinline__ LinesPlace(const ImageLayout& layout, int rows) {
        const u32 column_tile = blockIdx.x / static_cast<u32>(layout.tiles);
        tile = blockIdx.x - column_tile * layout.tiles;
        group = (layout.first_tile + tile) / layout.row_tiles;
        first_row = (layout.first_tile + tile - group * layout.row_tiles) * rows;
        first_column = static_cast<i64>(column_tile) * COLUMNS;
        plane = volume(layout.read);
        columns = layout.batch * plane;
    }
};

// written = D (product) + bias for the tile `place`, by vectors (Word) of neighbouring positions;
// no vector is in two images. bias may be null; `slab` is shared memory, through which D goes a
// part of its rows at a time.
template <class Tile, class Word>
__device__ __forceinline__ void write_vectors(const Product<Tile>& product,
                                              const ImageLayout& layout, const LinesPlace& place,
                                              const typename Tile::E* bias,
                                              typename Tile::E* written, typename Tile::E* slab) {
    using E = typename Tile::E;
    using Product = Product<Tile>;
    constexpr int WIDTH = sizeof(Word) / sizeof(E), IN_ROW = COLUMNS / WIDTH;
    const int in_row = threadIdx.x % IN_ROW * WIDTH;
    const i64 column = place.first_column + in_row;
    const i64 image = divide(column, static_cast<i32>(place.plane));
    E* const to = written + (image * layout.groups + place.group) * layout.rows * place.plane +
                  (column - image * place.plane);
    if (bias) bias += place.group * layout.rows;
#pragma unroll
    for (int i = 0; i < Product::DOWN; ++i) {
        round_slab<Tile>(product, i, layout, place.first_row, bias, slab);
#pragma unroll
        for (int j = 0; j < Product::SLAB * IN_ROW / THREADS; ++j) {
            const int in_slab = j * (THREADS / IN_ROW) + threadIdx.x / IN_ROW;
            const int row = place.first_row + Product::row_of(i, in_slab);
            if (row < layout.rows && column < place.columns)
                *reinterpret_cast<Word*>(to + row * place.plane) =
                    *reinterpret_cast<const Word*>(slab + in_slab * SLAB_PITCH<Tile> + in_row);
        }
    }
}

// written[row, position] = bias[row] + sum of w[row, channel] read[channel, position] over the
// group's channels; bias may be null. Lines begin at multiples of 8 bytes in what is read and
// written. `packed` is W from conv__pack, in parts of Tile::DEPTH channels; `parts` is shared
// memory, for `stages` (2 or 4) parts of W and of what is read.
template <class Tile>
__device__ __forceinline__ void write_convolution_of_lines(
    const typename Tile::E* read, const typename Tile::E* packed, const typename Tile::E* bias,
    typename Tile::E* written, const ImageLayout& layout, int stages, typename Tile::E* parts) {
    using E = typename Tile::E;
    const LinesPlace place(layout, Tile::ROWS);
    const i64 plane = place.plane;
    LineReader<Tile, COLUMNS> lines{read + place.group * layout.depth * plane,
                                    /*pitch=*/layout.groups * layout.depth * plane, plane,
                                    /*count=*/layout.depth};
    const E* a = packed + static_cast<i64>(place.tile) * layout.parts * (Tile::DEPTH * Tile::ROWS);
    const auto copy = [&](E* part) {
        copy_packed<Tile>(part, a);
        lines.template copy<Tile::DEPTH>(part + Tile::A_SIZE, place.first_column, place.columns);
        lines.channels += Tile::DEPTH * plane;
        lines.count -= Tile::DEPTH;
        a += Tile::DEPTH * Tile::ROWS;
    };
    Product<Tile> product;
    const bool works = product.first_row < layout.rows - place.first_row;
    add_parts<Tile>(parts, layout.parts, stages, copy, [&](const E* part) {
        if (works) product.add(part, /*half=*/0);
        if (works) product.add(part, /*half=*/1);
    });
    if (plane % Tile::GROUP == 0)
        write_vectors<Tile, uint4>(product, layout, place, bias, written, parts);
    else
        write_vectors<Tile, uint2>(product, layout, place, bias, written, parts);
}

}  // namespace cto::conv::pointwise
