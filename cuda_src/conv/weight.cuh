// SPDX-License-Identifier: MIT
// The gradient of W as a matrix product: rows are filters m, columns are channels and taps (c, k),
// and the sum is over positions (n, o):
//
//     dW[m][c][k] = sum over (n, o) of Y[n][m][o] * X[n][c][o stride - pad + k dilation]
//
// A block sums one part of the positions; another launch adds the parts in their order. In types of
// 2 bytes, and in conv__weight_lines, blocks of the first columns, which read all of Y, also sum Y
// for the gradient of a bias.
//
// Y is copied by vectors if its lines are aligned, and X if taps are 1 x 1; else they are gathered.
//
// Fields of WeightLayout, some of each of three axes: image, output, extents of X and Y; kernel,
// stride, dilation, pad; step, how far DEPTH positions on are: images, then along each axis. rows,
// channels: filters and channels of a group; padded_channels: a multiple of those stored together.
// row_tiles, column_tiles: tiles of a group; first_tile, tiles: those of this launch, counted over
// all groups. positions: of Y in all images; positions_of_part: those that a block sums.
#pragma once
#include "conv/image.cuh"

namespace cto::conv::weight {

using namespace image;
using namespace lines;
using namespace tile;

// What GROUP neighbouring columns (channels of one tap) read: `offset` elements, or `shift` along
// the axes, after the first channel and tap 0.
struct ColumnGroup {
    i64 offset;
    i32 count;  // channels that exist from the first on; 0 or less past the last column
    i32 shift[3];
};

// A tile of D: rows are filters of `group`, columns channels and taps in the order of column_group.
struct WeightTile {
    i32 group, first_row, first_column;
};

// Tile `first_tile + local` of the numbering (group, tile of rows, tile of columns), the last one
// fastest. `rows` and `columns` are those of a tile; `local` counts tiles of this launch.
__device__ __forceinline__ WeightTile weight_tile(const WeightLayout& layout, u32 local, int rows,
                                                  int columns = COLUMNS) {
    const i32 tile = layout.first_tile + local, line = tile / layout.column_tiles;
    const i32 group = line / layout.row_tiles;
    return {group, (line - group * layout.row_tiles) * rows,
            (tile - line * layout.column_tiles) * columns};
}

// Number `index` of the groups of `width` columns, in the order (channels, tap): neighbouring taps
// of the same channels read the same or neighbouring elements.
__device__ __forceinline__ ColumnGroup column_group(const WeightLayout& layout, i32 index,
                                                    i32 width) {
    const i32 taps = static_cast<i32>(volume(layout.kernel));
    const i32 of_channels = index / taps, c = of_channels * width;
    i32 tap = index - of_channels * taps;
    ColumnGroup group{};
    group.count = layout.channels - c;
    i64 pitch = 1;
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) {
        const i32 rest = tap / layout.kernel[axis];
        group.shift[axis] = (tap - rest * layout.kernel[axis]) * layout.dilation[axis];
        group.offset += group.shift[axis] * pitch;
        pitch *= layout.image[axis];
        tap = rest;
    }
    group.offset += c * pitch;
    return group;
}

// Copies stages of DEPTH positions (n, o) to shared memory: thread t has position t % DEPTH of each
// stage, and every STEP-th group (GROUP rows or columns) of its rows and columns from t / DEPTH on.
template <class Tile, class Offset>
struct WeightReader {
    using E = typename Tile::E;
    static constexpr int STEP = THREADS / Tile::DEPTH;  // groups of a position at a time
    static constexpr int GROUPS_OF_A = Tile::ROWS / Tile::GROUP;
    static constexpr int ROW_GROUPS = (GROUPS_OF_A + STEP - 1) / STEP;
    static constexpr int COLUMN_GROUPS = COLUMNS / Tile::GROUP / STEP;

    const WeightLayout& layout;
    const WeightTile& tile;
    const ColumnGroup* columns;  // shared memory
    const E *x, *y;              // the group's channels of the first image
    i64 position, end;
    i32 n, at[3];

    // Starts at position begin + threadIdx.x % DEPTH = (n * output[0] + at[0]) * ... + at[2] of all
    // images' outputs; a position at or beyond `end` counts as zeros.
    __device__ __forceinline__ WeightReader(const WeightLayout& layout, const WeightTile& tile,
                                            const ColumnGroup* columns, const E* all_x,
                                            const E* all_y, i64 begin, i64 end)
        : layout(layout), tile(tile), columns(columns), end(end) {
        position = begin + threadIdx.x % Tile::DEPTH;
        i64 rest = position;
#pragma unroll
        for (int axis = 2; axis >= 0; --axis) {
            const i64 next = divide(rest, layout.output[axis]);
            at[axis] = static_cast<i32>(rest - next * layout.output[axis]);
            rest = next;
        }
        n = static_cast<i32>(rest);
        x = all_x + tile.group * layout.channels * volume(layout.image);
        y = all_y +
            (static_cast<i64>(tile.group) * layout.rows + tile.first_row) * volume(layout.output);
    }
    // The first of the groups of Tile::GROUP rows or columns that the thread
    // copies; the next is STEP on.
    static __device__ __forceinline__ int own_group() { return threadIdx.x / Tile::DEPTH; }
    // Moves on by DEPTH positions, which are step[0] images and step[1..3] along the axes.
    __device__ __forceinline__ void advance() {
        position += Tile::DEPTH;
        i32 carry = 0;
#pragma unroll
        for (int axis = 2; axis >= 0; --axis) {
            at[axis] += layout.step[axis + 1] + carry;
            carry = at[axis] >= layout.output[axis];
            at[axis] -= carry ? layout.output[axis] : 0;
        }
        n += layout.step[0] + carry;
    }
    // Loads groups[i] = Y, at the thread's position, of GROUP rows of the tile from (own_group() +
    // i * STEP) * GROUP on; zeros beyond the last row or position.
    __device__ __forceinline__ void gather_a(Group<E> (&groups)[ROW_GROUPS]) const {
        const i64 plane = volume(layout.output);
        const Offset line = static_cast<Offset>(at[0]) * layout.output[1] + at[1];
        const i64 first =
            n * (layout.groups * layout.rows * plane) + (line * layout.output[2] + at[2]);
        const int count = layout.rows - tile.first_row;
        const int own = own_group() * Tile::GROUP;
        const Source<E, Offset> source(y, first + own * plane, static_cast<Offset>(plane),
                                       position < end);
#pragma unroll
        for (int i = 0; i < ROW_GROUPS; ++i) {
            const int row = i * STEP * Tile::GROUP;
            if (GROUPS_OF_A % STEP == 0 || own + row < Tile::ROWS)
                source.gather(row, count - own - row, groups[i]);
        }
    }
    // Stores `groups` of gather_a: row `row` to stage[threadIdx.x % DEPTH * A_PITCH + row].
    __device__ __forceinline__ void store_a(E* stage, const Group<E> (&groups)[ROW_GROUPS]) const {
#pragma unroll
        for (int i = 0; i < ROW_GROUPS; ++i) {
            const int row = (own_group() + i * STEP) * Tile::GROUP;
            if (GROUPS_OF_A % STEP == 0 || row < Tile::ROWS)
                store_group<Tile>(stage + threadIdx.x % Tile::DEPTH * Tile::A_PITCH + row,
                                  groups[i]);
        }
    }
    // Loads groups[i] = X, where the tap of column group own_group() + i * STEP reads for the
    // thread's position, of the group's channels; zeros beside the image and beyond the last
    // channel or position.
    __device__ __forceinline__ void gather_b(Group<E> (&groups)[COLUMN_GROUPS]) const {
        const i64 plane = volume(layout.image);
        i32 from[3];
#pragma unroll
        for (int axis = 0; axis < 3; ++axis)
            from[axis] = at[axis] * layout.stride[axis] - layout.pad[axis];
        const i64 line = static_cast<i64>(from[0]) * layout.image[1] + from[1];
        const i64 first =
            n * (layout.groups * layout.channels * plane) + (line * layout.image[2] + from[2]);
#pragma unroll
        for (int i = 0; i < COLUMN_GROUPS; ++i) {
            const ColumnGroup& column = columns[own_group() + i * STEP];
            bool inside = position < end;
#pragma unroll
            for (int axis = 0; axis < 3; ++axis)
                inside &= static_cast<u32>(from[axis] + column.shift[axis]) <
                          static_cast<u32>(layout.image[axis]);
            Source<E, Offset>(x, first + column.offset, static_cast<Offset>(plane), inside)
                .gather(0, column.count, groups[i]);
        }
    }
    // Stores `groups` of gather_b: column `column` to stage[A_SIZE + threadIdx.x % DEPTH * B_PITCH
    // + column].
    __device__ __forceinline__ void store_b(E* stage,
                                            const Group<E> (&groups)[COLUMN_GROUPS]) const {
        E* const of_position = stage + Tile::A_SIZE + threadIdx.x % Tile::DEPTH * Tile::B_PITCH;
#pragma unroll
        for (int i = 0; i < COLUMN_GROUPS; ++i)
            store_group<Tile>(of_position + (own_group() + i * STEP) * Tile::GROUP, groups[i]);
    }
};

// sums[blockIdx.x][row][column] = D[row][column] of this block's tile; the last
// index is the fastest.
template <class Tile>
__device__ __forceinline__ void write_sums(const Product<Tile>& product, typename Tile::Sum* sums) {
    using Sum = typename Tile::Sum;
    Sum* const to = sums + static_cast<i64>(blockIdx.x) * (Tile::ROWS * COLUMNS);
#pragma unroll
    for (int i = 0; i < Product<Tile>::DOWN; ++i)
        product.each_pair_of(i, [&](int in_slab, int column, const Sum* pair) {
            using Pair = vec::Vec<Sum, 2>;
            const int row = Product<Tile>::row_of(i, in_slab);
            *reinterpret_cast<Pair*>(to + row * COLUMNS + column) = Pair{pair[0], pair[1]};
        });
}

// y_sums[part][group][first_row + i] = the sum of the tile's row i of Y over the part's positions,
// for the rows that exist; nothing if y_sums is null. row_sums: the block's, which write nothing but
// in blocks of the first columns. All threads call it.
template <class Sums>
__device__ __forceinline__ void write_y_sums(const Sums& row_sums, float* y_sums, u32 part,
                                             const WeightTile& tile, const WeightLayout& layout) {
    if (!y_sums) return;
    const i64 group = static_cast<i64>(part) * layout.groups + tile.group;
    row_sums.write(y_sums + group * layout.rows + tile.first_row, layout.rows - tile.first_row);
}

// sums[part][tile][row][column] = A B over the part's positions: A has Y's filters as rows, B X's
// columns. y_sums[part][filter] = sums of A's rows, unless null. Block part * layout.tiles + tile
// does one. While one stage of DEPTH positions is multiplied, the next is loaded to the other half
// of `memory`; A is copied by vectors if BY_ROWS, else gathered as B is.
template <class Tile, class Offset>
__device__ __forceinline__ void sum_weights(const typename Tile::E* x, const typename Tile::E* y,
                                            typename Tile::Sum* sums, typename Tile::Sum* y_sums,
                                            const WeightLayout& layout) {
    constexpr bool SUMS_Y = sizeof(typename Tile::E) == 2;
    static_assert(!Tile::BY_COLUMNS);
    using E = typename Tile::E;
    using Sum = typename Tile::Sum;
    using Reader = WeightReader<Tile, Offset>;
    constexpr int GROUPS = COLUMNS / Tile::GROUP;
    __shared__ __align__(16) u8 memory[2 * Tile::STAGE * sizeof(E)];
    __shared__ __align__(16) ColumnGroup columns[GROUPS];
    const u32 part = blockIdx.x / static_cast<u32>(layout.tiles);
    const WeightTile tile = weight_tile(layout, blockIdx.x - part * layout.tiles, Tile::ROWS);
    if (threadIdx.x < GROUPS)
        columns[threadIdx.x] =
            column_group(layout, tile.first_column / Tile::GROUP + threadIdx.x, Tile::GROUP);
    __syncthreads();
    const i64 begin = part * layout.positions_of_part;
    const i64 end = min(begin + layout.positions_of_part, layout.positions);
    Product<Tile> product;
    const i32 n_columns = static_cast<i32>(volume(layout.kernel)) * layout.padded_channels;
    const bool works = product.first_row < layout.rows - tile.first_row &&
                       product.first_column < n_columns - tile.first_column;
    Reader reader(layout, tile, columns, x, y, begin, end);
    const i64 y_plane = volume(layout.output);
    const LineReader<Tile, Tile::DEPTH> y_lines{reader.y,
                                                /*pitch=*/layout.groups * layout.rows * y_plane,
                                                y_plane, /*count=*/layout.rows - tile.first_row};
    RowSums<Tile> row_sums(SUMS_Y && y_sums && tile.first_column == 0);
    E* const stages = reinterpret_cast<E*>(memory);
    int current = 0;  // where the stage that is multiplied begins
    Group<E> gathered_rows[Reader::ROW_GROUPS], gathered_columns[Reader::COLUMN_GROUPS];
    const auto copy_lines = [&](E* to, i64 first) {
        if constexpr (Tile::BY_ROWS) y_lines.template copy<Tile::ROWS>(to, first, end);
        async_copy::commit();
    };
    copy_lines(stages, begin);
    if constexpr (!Tile::BY_ROWS) {
        reader.gather_a(gathered_rows);
        reader.store_a(stages, gathered_rows);
    }
    reader.gather_b(gathered_columns);
    reader.store_b(stages, gathered_columns);
    for (i64 at = begin; at < end; at += Tile::DEPTH) {
        async_copy::wait<0>();
        __syncthreads();
        E* const next = stages + (Tile::STAGE - current);
        copy_lines(next, at + Tile::DEPTH);
        reader.advance();
        if constexpr (!Tile::BY_ROWS) reader.gather_a(gathered_rows);
        if constexpr (Tile::BY_ROWS) reader.gather_b(gathered_columns);
        if (works) product.add(stages + current, /*half=*/0);
        if constexpr (SUMS_Y) row_sums.add(stages + current, /*half=*/0);
        if constexpr (!Tile::BY_ROWS) reader.store_a(next, gathered_rows);
        if constexpr (!Tile::BY_ROWS) reader.gather_b(gathered_columns);
        if (works) product.add(stages + current, /*half=*/1);
        if constexpr (SUMS_Y) row_sums.add(stages + current, /*half=*/1);
        reader.store_b(next, gathered_columns);
        current = Tile::STAGE - current;
    }
    async_copy::wait<0>();
    if constexpr (SUMS_Y) write_y_sums(row_sums, y_sums, part, tile, layout);
    if (works) write_sums<Tile>(product, sums);  // else the rows or columns do not exist in W
}

// sum_weights for 1 x 1 convolutions, with the same sums[part][tile][row][column] (columns are
// channels) and y_sums: A and B are lines of Y and X, copied by vectors. `memory` is shared memory
// for `stages` (2 or 4) stages.
template <class Tile>
__device__ __forceinline__ void sum_weights_of_lines(
    const typename Tile::E* x, const typename Tile::E* y, typename Tile::Sum* sums,
    typename Tile::Sum* y_sums, const WeightLayout& layout, int stages, typename Tile::E* memory) {
    using E = typename Tile::E;
    const u32 part = blockIdx.x / static_cast<u32>(layout.tiles);
    const WeightTile tile = weight_tile(layout, blockIdx.x - part * layout.tiles, Tile::ROWS);
    const i64 begin = part * layout.positions_of_part;
    const i64 end = min(begin + layout.positions_of_part, layout.positions);
    const i64 plane = volume(layout.output);
    const i64 of_y = static_cast<i64>(tile.group) * layout.rows + tile.first_row;
    const i64 of_x = static_cast<i64>(tile.group) * layout.channels + tile.first_column;
    const LineReader<Tile, Tile::DEPTH> y_lines{y + of_y * plane,
                                                /*pitch=*/layout.groups * layout.rows * plane,
                                                plane, /*count=*/layout.rows - tile.first_row};
    const LineReader<Tile, Tile::DEPTH> x_lines{x + of_x * plane,
                                                /*pitch=*/layout.groups * layout.channels * plane,
                                                plane,
                                                /*count=*/layout.channels - tile.first_column};
    Product<Tile> product;
    RowSums<Tile> row_sums(y_sums && tile.first_column == 0);
    const bool works = product.first_row < layout.rows - tile.first_row &&
                       product.first_column < layout.channels - tile.first_column;
    i64 at = begin;
    const auto copy = [&](E* stage) {
        y_lines.template copy<Tile::ROWS>(stage, at, end);
        x_lines.template copy<COLUMNS>(stage + Tile::A_SIZE, at, end);
        at += Tile::DEPTH;
    };
    const i64 count = divide(end - begin + Tile::DEPTH - 1, Tile::DEPTH);
    add_parts<Tile>(memory, count, stages, copy, [&](const E* stage) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (works) product.add(stage, half);
            row_sums.add(stage, half);
        }
    });
    write_y_sums(row_sums, y_sums, part, tile, layout);
    if (works) write_sums<Tile>(product, sums);
}

// ---- sums of parts ------------------------------------------------------------------------------

// Returns the sum over part < count of parts[part * pitch + index], 0 unless `exists`. `summers`
// threads share a sum, each adds every summers-th part; all of them get the result. A block has
// THREADS / summers neighbouring `index`: thread t has number t % (THREADS / summers) of these. All
// threads of the block call it.
template <class Sum>
__device__ __forceinline__ Sum sum_parts(const Sum* parts, i64 index, i64 pitch, i32 count,
                                         i32 summers, bool exists) {
    __shared__ Sum of_thread[THREADS];
    const u32 numbers = THREADS / summers;
    Sum sum = 0;
    if (exists) {
#pragma unroll 4
        for (i32 part = threadIdx.x / numbers; part < count; part += summers)
            sum += parts[part * pitch + index];
    }
    if (summers == 1) return sum;
    of_thread[threadIdx.x] = sum;
    __syncthreads();
    sum = 0;
    for (i32 i = 0; i < summers; ++i) sum += of_thread[i * numbers + threadIdx.x % numbers];
    return sum;
}

// total[i] = parts[0][i] + ... + parts[count - 1][i], rounded, i < size. Block `block` has THREADS
// / summers neighbouring i; `summers` threads share a sum.
template <class E>
__device__ __forceinline__ void write_total(const Acc<E>* parts, E* total, i32 count, i32 summers,
                                            i64 size, u32 block) {
    const u32 numbers = THREADS / summers;
    const i64 index = static_cast<i64>(block) * numbers + threadIdx.x % numbers;
    const Acc<E> sum = sum_parts(parts, index, size, count, summers, index < size);
    if (index < size && threadIdx.x < numbers) total[index] = from_acc<E>(sum);
}

// The number of blocks that write W: tiles * ROWS * COLUMNS * summers / THREADS.
template <class Tile>
__device__ __forceinline__ u32 blocks_of_weights(i32 summers, const WeightLayout& layout) {
    return layout.tiles * (Tile::ROWS * COLUMNS / THREADS * static_cast<u32>(summers));
}

// W[filter][c][tap] = sum over `count` parts of parts[part][tile][row][column], rounded. Columns
// are in the order (GROUP channels, tap, channel of the group), so tap = column / GROUP % taps. A
// block has THREADS / summers neighbouring sums; `summers` threads share one.
template <class Tile>
__device__ __forceinline__ void write_weights(const typename Tile::Sum* parts, typename Tile::E* w,
                                              i32 count, i32 summers, const WeightLayout& layout) {
    constexpr int SIZE = Tile::ROWS * COLUMNS;
    const u32 numbers = THREADS / summers;
    const i64 index = static_cast<i64>(blockIdx.x) * numbers + threadIdx.x % numbers;
    const u32 local = index / SIZE;
    const i32 in_tile = index % SIZE;
    const WeightTile tile = weight_tile(layout, local, Tile::ROWS);
    const i32 row = tile.first_row + in_tile / COLUMNS;
    const i32 column = tile.first_column + in_tile % COLUMNS;
    const i32 taps = static_cast<i32>(volume(layout.kernel));
    const i32 group = column / Tile::GROUP, of_channels = group / taps;
    const i32 tap = group - of_channels * taps,
              c = of_channels * Tile::GROUP + column % Tile::GROUP;
    const bool exists = row < layout.rows && c < layout.channels;
    const i64 pitch = static_cast<i64>(layout.tiles) * SIZE;
    const auto sum = sum_parts(parts, index, pitch, count, summers, exists);
    if (exists && threadIdx.x < numbers) {
        const i64 filter = static_cast<i64>(tile.group) * layout.rows + row;
        w[(filter * layout.channels + c) * taps + tap] = from_acc<typename Tile::E>(sum);
    }
}

// w = sums over `count` parts of `parts`, bias = sums of y_parts, both of which sum_weights wrote;
// `summers` threads share a sum. The first blocks_of_weights blocks write W, the others the bias.
template <class Tile>
__device__ __forceinline__ void write_weights_and_bias(const typename Tile::Sum* parts,
                                                       typename Tile::E* w,
                                                       const typename Tile::Sum* y_parts,
                                                       typename Tile::E* bias, i32 count,
                                                       i32 summers, const WeightLayout& layout) {
    const u32 of_weights = blocks_of_weights<Tile>(summers, layout);
    if (blockIdx.x < of_weights)
        write_weights<Tile>(parts, w, count, summers, layout);
    else
        write_total<typename Tile::E>(y_parts, bias, count, summers,
                                      static_cast<i64>(layout.groups) * layout.rows,
                                      blockIdx.x - of_weights);
}

}  // namespace cto::conv::weight
