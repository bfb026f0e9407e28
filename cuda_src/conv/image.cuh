// SPDX-License-Identifier: MIT
// A convolution, or its data gradient, as a matrix product: rows are channels that are written,
// columns are positions (n, p) that are written, and the sum is over channels that are read and
// taps of the kernel.
//
// Position p reads position u of tap k where
//
//     p stride - pad + k dilation = u        in a convolution
//     u stride - pad + k dilation = p        in a data gradient
//
// In a data gradient, positions p with the same residue p % stride have the same taps. Each residue
// is computed as a convolution of stride 1, so that nothing is multiplied by inserted zeros. With
// stride 2 and 3 taps along an axis, for example, even positions have taps 0 and 2, odd ones tap 1.
// A residue without taps gives zeros.
//
// With few channels, a tile of rows has room for all residues of its channels (of_channel > 1): a
// row is then a channel and a residue, and what they read is gathered once. This is a data gradient
// of stride 1, whose rows and columns are interleaved in the array that is written.
//
// Fields of ImageLayout, some of each of three axes: written, read, extents of these arrays;
// kernel, stride, dilation, pad; residues, of positions, 1 in a convolution; tap_steps, from a
// residue's tap to its next. rows, depth: channels of a group that are written, that are read;
// parts: of the depth, DEPTH channels each. row_tiles: tiles of rows of a group; first_tile, tiles:
// those of this launch, counted over all groups. of_channel, spread: residues of a channel in rows,
// of all axes and of each; then tap j of residue r is tap r - skipped + j spread of W, of w_kernel
// taps.
#pragma once
#include "conv/lines.cuh"

namespace cto::conv::image {

using namespace lines;
using namespace tile;

// The positions of one residue along one axis. Number i < count is position first + i * step; by
// tap j < taps, which is tap first_tap + j * tap_step of the kernel, it reads position start + i *
// stride + j * jump.
struct Line {
    i32 count, first, step;
    i32 taps, first_tap, tap_step;
    i32 start, stride, jump;
};

// The Line, along an axis, of positions with p % stride = residue; residue 0, all positions, in a
// convolution. In a data gradient the residue's first tap is the first with (residue + pad - tap
// dilation) % stride = 0; there is one every tap_step taps, or none.
__device__ __forceinline__ Line line_of(const ImageLayout& layout, int axis, i32 residue) {
    const i32 written = layout.written[axis], kernel = layout.kernel[axis];
    const i32 stride = layout.stride[axis], dilation = layout.dilation[axis];
    const i32 pad = layout.pad[axis], tap_step = layout.tap_steps[axis];
    // Fields: count, first, step; taps, first_tap, tap_step; start, stride, jump.
    if (!layout.is_gradient) return {written, 0, 1, kernel, 0, 1, -pad, stride, dilation};
    if (stride == 1) return {written, 0, 1, kernel, 0, 1, pad, 1, -dilation};
    Line line{(written - residue + stride - 1) / stride, residue, stride, 0, 0, tap_step, 0, 1, 0};
    const i32 from = residue + pad, end = min(kernel, tap_step);
    i32 tap = 0;
    while (tap < end && (from - tap * dilation) % stride) ++tap;
    if (tap == end) return line;
    line.taps = (kernel - 1 - tap) / tap_step + 1;
    line.first_tap = tap;
    line.start = (from - tap * dilation) / stride;
    line.jump = -(dilation / (stride / tap_step));
    return line;
}

// The product of three extents: positions of an image, or taps of a kernel.
__device__ __forceinline__ i64 volume(const i32 (&extents)[3]) {
    return static_cast<i64>(extents[0]) * extents[1] * extents[2];
}

// A block's tile; in shared memory. Rows are channels of `group` from first_row on; columns are the
// positions of its residue, which `lines` has along each axis, numbered through all images.
struct Place {
    i32 tile;  // number of the tile of rows in this launch
    i32 group, first_row;
    Line lines[3];
    i64 first_column, columns;  // of the tile; of all images
};

// Sets all of `place` except `columns`, for block (tile of columns, residue, tile of rows), the
// last the fastest: positions of all residues lie side by side, so that blocks which run together
// write whole lines of memory. Threads 0 to 2 call it, each for the Line of one axis. rows, columns:
// of a tile.
__device__ __forceinline__ void find_place(const ImageLayout& layout, u32 block, int rows,
                                           int columns, Place& place) {
    const u32 rest = divide(block, layout.tiles);
    const u32 tile = block - rest * layout.tiles;
    const u32 residues = static_cast<u32>(volume(layout.residues));
    const u32 column_tile = residues > 1 ? rest / residues : rest;
    u32 residue = rest - column_tile * residues;
    i32 of_thread = 0;
    for (int axis = 2; axis >= 0; --axis) {
        const u32 next = divide(residue, layout.residues[axis]);
        if (threadIdx.x == axis) of_thread = residue - next * layout.residues[axis];
        residue = next;
    }
    place.lines[threadIdx.x] = line_of(layout, threadIdx.x, of_thread);
    if (threadIdx.x > 0) return;
    place.tile = tile;
    place.group = layout.groups == 1 ? 0 : (layout.first_tile + tile) / layout.row_tiles;
    place.first_row = (layout.first_tile + tile - place.group * layout.row_tiles) * rows;
    place.first_column = static_cast<i64>(column_tile) * columns;
}

constexpr int WINDOW = 32;  // taps that are summed together, a bit each in a word

// A tap of the window: it reads `offset` elements, or `shift` along the axes, after what the
// residue's tap 0 reads.
struct Tap {
    i64 offset;
    i32 index;  // number of the tap in the kernel
    i32 shift[3];
};

// Copies A and B to shared memory, part by part of the sum: for each DEPTH channels, each tap of
// the window (up to WINDOW taps). Of B a thread has one column, and DEPTH_OF_THREAD channels of a
// part, which it gathers. Offset: type of an offset in one image.
template <class Tile, class Offset>
struct ImageReader {
    using E = typename Tile::E;
    static constexpr int A_SIZE = Tile::DEPTH * Tile::ROWS;
    static constexpr int DEPTH_OF_THREAD = Tile::DEPTH / (THREADS / COLUMNS);
    static_assert(DEPTH_OF_THREAD == 2 * Tile::GROUP);

    const ImageLayout& layout;
    Tap* taps;           // shared memory
    const E* image;      // what the thread's column reads by tap 0, at its first channel
    const E* packed;     // packed A of the tile
    const E *first, *a;  // `image` and `packed` at this part's channels
    i32 at[3];           // position of `image`
    i32 own_depth;       // the thread's first channel of a part
    i32 store_at;        // place of B(own_depth, column) in a stage
    i32 tap, count;      // tap of the window, and their number
    i32 depth;           // channels before this part
    u32 inside;          // bit i: tap i reads inside of the image
    bool exists;         // the column exists, and `read` has elements
    Offset plane;

    // For the thread's column place.first_column + threadIdx.x % COLUMNS. read: the array;
    // all_packed: W from conv__pack.
    __device__ __forceinline__ ImageReader(const ImageLayout& layout, const Place& place, Tap* taps,
                                           const E* read, const E* all_packed)
        : layout(layout), taps(taps) {
        const i64 column = place.first_column + threadIdx.x % COLUMNS;
        exists = read && column < place.columns;
        i64 rest = exists ? column : 0;
#pragma unroll
        for (int axis = 2; axis >= 0; --axis) {
            const Line& line = place.lines[axis];
            const i64 next = divide(rest, line.count);
            const i32 i = static_cast<i32>(rest - next * line.count);
            at[axis] = line.start + i * line.stride;
            rest = next;
        }
        own_depth = kept(threadIdx.x / COLUMNS * DEPTH_OF_THREAD);
        store_at = kept(Tile::A_SIZE + Tile::b_at(own_depth, threadIdx.x % COLUMNS));
        plane = static_cast<Offset>(volume(layout.read));
        const i64 channel = (rest * layout.groups + place.group) * layout.depth + own_depth;
        const i64 offset = channel * volume(layout.read) +
                           (static_cast<i64>(at[0]) * layout.read[1] + at[1]) * layout.read[2] +
                           at[2];
        image = exists ? read + offset : read;
        packed = all_packed + place.tile * volume(layout.kernel) * layout.parts * A_SIZE;
    }
    // Starts the sum over a window of up to WINDOW taps, from first_tap on of the residue's `all`:
    // sets taps[i] of its tap i, bit i of `inside` where this tap reads inside of the image for the
    // thread's column, and goes back to tap and channel 0. lines: the residue's positions and taps
    // along each axis. Returns `count`, the window's taps. All threads call it.
    __device__ __forceinline__ int open_window(const Line* lines, int first_tap, int all) {
        count = min(WINDOW, all - first_tap);
        __syncthreads();
        if (threadIdx.x < count) {
            Tap one{};
            i32 rest = first_tap + threadIdx.x;
            // Elements of an image, and taps of the kernel, from one to the next along the axis.
            i64 pitch = 1, index_pitch = 1;
            for (int axis = 2; axis >= 0; --axis) {
                const Line& line = lines[axis];
                const i32 next = rest / line.taps, i = rest - next * line.taps;
                one.shift[axis] = i * line.jump;
                one.offset += one.shift[axis] * pitch;
                one.index += (line.first_tap + i * line.tap_step) * static_cast<i32>(index_pitch);
                pitch *= layout.read[axis];
                index_pitch *= layout.kernel[axis];
                rest = next;
            }
            taps[threadIdx.x] = one;
        }
        __syncthreads();
        inside = 0;
        for (int i = 0; i < count; ++i) {
            bool is_inside = exists;
#pragma unroll
            for (int axis = 0; axis < 3; ++axis)
                is_inside &= static_cast<u32>(at[axis] + taps[i].shift[axis]) <
                             static_cast<u32>(layout.read[axis]);
            inside |= static_cast<u32>(is_inside) << i;
        }
        first = image;
        a = packed;
        tap = depth = 0;
        return count;
    }
    // Moves on to the next part: the next tap, or the first tap of the next DEPTH channels.
    __device__ __forceinline__ void advance() {
        if (++tap < count) return;
        tap = 0;
        depth += Tile::DEPTH;
        first += Tile::DEPTH * static_cast<i64>(plane);
        a += volume(layout.kernel) * A_SIZE;
    }
    // Starts the copy of A for the current tap and channels to `part`.
    __device__ __forceinline__ void copy_a(E* part) const {
        copy_packed<Tile>(part, a + static_cast<i64>(taps[tap].index) * A_SIZE);
        async_copy::commit();
    }
    // What the column reads by the current tap, of the part's channels; zeros beside the image.
    __device__ __forceinline__ Source<E, Offset> source() const {
        return {first, taps[tap].offset, plane, (inside >> tap & 1) != 0};
    }
    // Channels from the thread's first one on; it may have more or fewer than
    // its own, or less than 0.
    __device__ __forceinline__ int channels() const { return layout.depth - depth - own_depth; }
    // Stores group i (0 or 1, of GROUP channels) of the thread's channels as elements of B in
    // `part`.
    __device__ __forceinline__ void store_b(E* part, int i, const Group<E>& group) const {
        E* const to = part + store_at + Tile::b_at(i * Tile::GROUP, 0);
        if constexpr (Tile::BY_COLUMNS) {
            store_group<Tile>(to, group);
        } else {
#pragma unroll
            for (int j = 0; j < Tile::GROUP; ++j)
                to[j * Tile::B_PITCH] = Tile::rounded(group.at[j]);
        }
    }
};

// The offset in `written` of the position of column `column` of the tile `place`, at channel 0 of
// the group; -1 if there is none. With of_channel > 1 it is that of residue 0 of the position's row
// and column.
__device__ __forceinline__ i64 place_of_column(const ImageLayout& layout, const Place& place,
                                               int column) {
    i64 rest = place.first_column + column, position = 0, pitch = 1;
    if (rest >= place.columns) return -1;
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) {
        const Line& line = place.lines[axis];
        const i64 next = divide(rest, line.count);
        const i32 spread = layout.spread[axis];
        position += pitch * spread * (line.first + (rest - next * line.count) * line.step);
        pitch *= layout.written[axis] * spread;
        rest = next;
    }
    const i32 channels = layout.rows / layout.of_channel;
    return (rest * layout.groups + place.group) * channels * pitch + position;
}

// Row `row` of a group as a channel and a residue along each axis; the residues are 0 if of_channel
// is 1.
struct Row {
    i32 channel, residues[3];

    // Rows are numbered (channel, residue of axis 0, 1, 2), the last the fastest.
    __device__ __forceinline__ Row(const ImageLayout& layout, i32 row) {
        channel = row / layout.of_channel;
        i32 rest = row - channel * layout.of_channel;
#pragma unroll
        for (int axis = 2; axis >= 0; --axis) {
            const i32 next = rest / layout.spread[axis];
            residues[axis] = rest - next * layout.spread[axis];
            rest = next;
        }
    }
};

// The offset of a row's elements from those of row 0 in `written`.
__device__ __forceinline__ i64 place_of_row(const ImageLayout& layout, i32 row) {
    const Row split_row(layout, row);
    i64 place = split_row.channel;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis)
        place = place * layout.written[axis] * layout.spread[axis] + split_row.residues[axis];
    return place;
}

// A slab is a part of D's rows in shared memory, SLAB_PITCH elements apart.
constexpr int SLAB_GAP = 16;  // bytes
template <class Tile>
constexpr int SLAB_PITCH = COLUMNS + SLAB_GAP / sizeof(typename Tile::E);

// slab[row * SLAB_PITCH + column] = slab `number` of D + bias, rounded; `bias` is the group's, or
// null; first_row: of the tile. All threads call it: it has barriers, before, as the slab before
// may still be read, and after.
template <class Tile>
__device__ __forceinline__ void round_slab(const Product<Tile>& product, int number,
                                           const ImageLayout& layout, int first_row,
                                           const typename Tile::E* bias, typename Tile::E* slab) {
    using Sum = typename Tile::Sum;
    static_assert(Product<Tile>::SLAB * SLAB_PITCH<Tile> <= 2 * Tile::STAGE);
    __syncthreads();
    product.each_pair_of(number, [&](int in_slab, int at, const Sum* sums) {
        const int row = first_row + Product<Tile>::row_of(number, in_slab);
        const Sum more = bias && row < layout.rows ? to_acc(bias[row]) : Sum(0);
        const Sum both[2] = {sums[0] + more, sums[1] + more};
        vec::round_pair(both, slab + in_slab * SLAB_PITCH<Tile> + at);
    });
    __syncthreads();
}

// written = D + bias for the tile `place`, by way of `slab` in shared memory, so that a warp writes
// neighbouring columns of a row. places: place_of_column of each column, in shared memory; bias may
// be null.
template <class Tile>
__device__ __forceinline__ void write_image(const Product<Tile>& product, const ImageLayout& layout,
                                            const Place& place, const i64* places,
                                            const typename Tile::E* bias, typename Tile::E* written,
                                            typename Tile::E* slab) {
    using Product = Product<Tile>;
    const int column = threadIdx.x % COLUMNS;
    const i64 to = places[column];
    const i64 plane = volume(layout.written);
    if (bias) bias += place.group * layout.rows;
#pragma unroll
    for (int i = 0; i < Product::DOWN; ++i) {
        round_slab<Tile>(product, i, layout, place.first_row, bias, slab);
        if (to < 0) continue;
        if (layout.of_channel > 1) {
#pragma unroll 1
            for (int in_slab = threadIdx.x / COLUMNS; in_slab < Product::SLAB;
                 in_slab += THREADS / COLUMNS) {
                const int row = place.first_row + Product::row_of(i, in_slab);
                if (row >= layout.rows) break;
                written[to + place_of_row(layout, row)] = slab[in_slab * SLAB_PITCH<Tile> + column];
            }
            continue;
        }
#pragma unroll 4
        for (int in_slab = threadIdx.x / COLUMNS; in_slab < Product::SLAB;
             in_slab += THREADS / COLUMNS) {
            const int row = place.first_row + Product::row_of(i, in_slab);
            if (row < layout.rows)
                written[to + row * plane] = slab[in_slab * SLAB_PITCH<Tile> + column];
        }
    }
}

// Number of taps of a residue.
__device__ __forceinline__ int count_taps(const Line (&lines)[3]) {
    return lines[0].taps * lines[1].taps * lines[2].taps;
}

// The number of taps of a residue: `counted`, or counted again (of its `lines`) where a register
// for it would spill (CUDA 13, 9.0).
template <class Tile, class Offset>
__device__ __forceinline__ int taps_of(const Line (&lines)[3], int counted) {
    if constexpr (Tile::ROWS == 128 && (!Tile::ON_TENSOR_CORES || sizeof(Offset) == 8))
        return count_taps(lines);
    else
        return counted;
}

// product += sum over all taps and channels of W (packed) times what the columns of `place` read of
// `read`, in parts of DEPTH channels of one tap; B is gathered while the part before is multiplied.
// `parts`: shared memory for two of them. The second half of a part is left out where the channels
// end before it.
template <class Tile, class Offset>
__device__ __forceinline__ void sum_gathered(Product<Tile>& product, const typename Tile::E* read,
                                             const typename Tile::E* packed,
                                             typename Tile::E* parts, const ImageLayout& layout,
                                             const Place& place) {
    constexpr int GROUP = Tile::GROUP;
    __shared__ Tap taps[WINDOW];
    const Line(&lines)[3] = place.lines;
    const int all_taps = count_taps(lines);
    const bool works = product.first_row < layout.rows - place.first_row;
    ImageReader<Tile, Offset> reader(layout, place, taps, read, packed);
    for (int first_tap = 0; first_tap < taps_of<Tile, Offset>(lines, all_taps);
         first_tap += WINDOW) {
        int rest = reader.open_window(lines, first_tap, taps_of<Tile, Offset>(lines, all_taps)) *
                   layout.parts;
        int part = 0;
        Group<typename Tile::E> groups[2];
        reader.copy_a(parts);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            reader.source().gather(i * GROUP, reader.channels() - i * GROUP, groups[i]);
            reader.store_b(parts, i, groups[i]);
        }
        while (true) {
            async_copy::wait<0>();
            __syncthreads();  // the part is there; the one before, at `next`, has been multiplied
            const bool both = layout.depth - reader.depth > Tile::HALF;
            const bool goes_on = --rest > 0;
            const int next = Tile::STAGE - part;
            if (goes_on) {
                reader.advance();
                reader.copy_a(parts + next);
            }
            const auto source = reader.source();
            const int channels = goes_on ? reader.channels() : 0;
#pragma unroll
            for (int i = 0; i < 2; ++i) source.gather(i * GROUP, channels - i * GROUP, groups[i]);
            if (works) product.add(parts + part, /*half=*/0);
            if (works && both) product.add(parts + part, /*half=*/1);
            if (!goes_on) break;
#pragma unroll
            for (int i = 0; i < 2; ++i) reader.store_b(parts + next, i, groups[i]);
            part = next;
        }
    }
}

// written = bias + convolution of `read`, or with layout.is_gradient its gradient for X, where
// `read` is dY. packed: W from conv__pack; bias, of each channel written, may be null. A block has
// one tile.
template <class Tile, class Offset>
__device__ __forceinline__ void write_convolution(const typename Tile::E* read,
                                                  const typename Tile::E* packed,
                                                  const typename Tile::E* bias,
                                                  typename Tile::E* written,
                                                  const ImageLayout& layout) {
    using E = typename Tile::E;
    __shared__ __align__(16) u8 memory[2 * Tile::STAGE * sizeof(E)];
    __shared__ i64 places[COLUMNS];
    __shared__ Place place;
    if (threadIdx.x < 3) find_place(layout, blockIdx.x, Tile::ROWS, COLUMNS, place);
    __syncthreads();
    i64 columns = layout.batch;
    for (int axis = 0; axis < 3; ++axis) columns *= place.lines[axis].count;
    if (place.first_column >= columns) return;
    if (threadIdx.x == 0) place.columns = columns;
    __syncthreads();
    if (threadIdx.x < COLUMNS) places[threadIdx.x] = place_of_column(layout, place, threadIdx.x);
    Product<Tile> product;
    E* const parts = reinterpret_cast<E*>(memory);
    sum_gathered<Tile, Offset>(product, read, packed, parts, layout, place);
    __syncthreads();  // also for the places of columns
    write_image<Tile>(product, layout, place, places, bias, written, parts);
}

}  // namespace cto::conv::image
