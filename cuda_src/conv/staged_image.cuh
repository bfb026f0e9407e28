// SPDX-License-Identifier: MIT
// A convolution or its data gradient over staged arrays (staging.cuh), image.cuh's product: rows
// are written channels, columns positions, and the sum is over taps and read channels, in vectors
// of 16 bytes of channels. Offsets in staged arrays are counted in these vectors, also those of
// StagedImage: w_row, w_tap, from a row of W (an element k of the sum, as_it_lies) and from a tap
// to the next. Its width: neighbouring elements of `written` that are stored together.
#pragma once
#include "conv/staged_exact.cuh"

namespace cto::conv::staged_image {

using namespace image;
using namespace staged_exact;
using namespace staged_tile;
using namespace staged_warpgroups;

// A tap: `read` is the distance of what it reads from what tap 0 reads, `w` its
// place in W; in vectors.
struct StagedTap {
    i32 read, w;
};

// Shared memory of staged_convolution beside the stages.
template <class Tile>
struct ImageShared {
    i64 places[Tile::COLUMNS];      // where columns of D are written
    StagedRow rows[Tile::COLUMNS];  // what columns of D read
    StagedTap taps[STAGED_TAPS];
    Place place;
};

// Number of vectors of `width` that so many channels take.
__device__ __forceinline__ i32 vectors_of(i32 channels, int width) {
    return (channels + width - 1) / width;
}

// Tap `number` of the residue's taps (place.lines). w_tap: vectors from a tap of W to the next;
// vectors: vectors of a position of what is read.
__device__ __forceinline__ StagedTap staged_tap(const ImageLayout& layout, const Place& place,
                                                int number, i32 w_tap, i32 vectors) {
    u32 rest = number;
    i32 index = 0, pitch = 1;
    i64 read = 0, read_pitch = 1;
#pragma unroll 1
    for (int axis = 2; axis >= 0; --axis) {
        const Line& line = place.lines[axis];
        const u32 next = divide(rest, line.taps);
        const i32 i = static_cast<i32>(rest - next * line.taps);
        read += i * line.jump * read_pitch;
        index += (line.first_tap + i * line.tap_step) * pitch;
        read_pitch *= layout.read[axis];
        pitch *= layout.kernel[axis];
        rest = next;
    }
    return {static_cast<i32>(read * vectors), index * w_tap};
}

// A column of D, a position: what it reads, and its offset in `written` at channel 0 of the group
// (-1: it does not exist).
struct StagedColumn {
    StagedRow row{};
    i64 place = -1;

    // Column `column` of tile `of`. depth, vectors: vectors of a group's channels, and of all, at a
    // position of what is read. channels_last: `written` is (n, position, channel).
    __device__ __forceinline__ StagedColumn(const ImageLayout& layout, const Place& of, int column,
                                            i32 depth, i32 vectors, bool channels_last) {
        if (of.first_column + column >= of.columns) return;
        u32 rest = static_cast<u32>(of.first_column + column);
        i64 position = 0, pitch = 1;
        i32 at[3], taps[3], jumps[3];
#pragma unroll
        for (int axis = 2; axis >= 0; --axis) {
            const Line& line = of.lines[axis];
            taps[axis] = line.taps;
            jumps[axis] = line.jump;
            const u32 next = divide(rest, line.count);
            const i32 i = static_cast<i32>(rest - next * line.count);
            at[axis] = line.start + i * line.stride;
            position += pitch * (line.first + i * line.step);
            pitch *= layout.written[axis];
            rest = next;
        }
        const i64 rows = layout.rows, all_rows = layout.groups * rows;
        place = channels_last ? (rest * pitch + position) * all_rows + of.group * rows
                              : (rest * all_rows + of.group * rows) * pitch + position;
        i64 read = rest;
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) read = read * layout.read[axis] + at[axis];
        row.offset = static_cast<i32>(read * vectors + of.group * depth);
        row.inside = staging::taps_inside(at, layout.read, taps, jumps);
    }
};

// The copier of add_stages: copies stages of A (W) and B (what is read) to shared memory. A stage
// has LINE_VECTORS vectors of the sum, each a vector of channels of one tap; a thread copies one of
// them for every AT_ONCE-th line. If depth allows it, the order is all taps of some channels, then
// the next channels: a tap reads mostly what the one before read, which is in the L1 cache. Lines
// of W are rows; AS_IT_LIES, they are elements k of the sum, each with all rows.
template <class Tile, bool AS_IT_LIES>
struct ImageCopier {
    static constexpr int AT_ONCE = Tile::THREADS / LINE_VECTORS;

    const ImageShared<Tile>& shared;
    const uint4 *read, *w;
    // n_taps: of the residue. depth: vectors of channels of a tap. w_pitch: vectors of W from a
    // line of the thread to its next. rows: existing rows from the thread's first one on, in
    // vectors if AS_IT_LIES.
    i32 n_taps, depth, w_pitch, rows;
    bool taps_first;  // all taps of the same channels first
    i32 tap, vector;  // the thread's vector of the sum
    int line, own;    // the thread's first line, and the offset of its first vector in a stage
    // Of the stage being copied: the thread's vector of the sum in `read` and `w`; the bit of its
    // tap in StagedRow::inside, 0 past the end of the sum.
    const uint4 *read_of, *w_of;
    u32 bit;

    // Starts a stage, to which `copy` is called for each slice; `close` ends it and moves on.
    __device__ __forceinline__ void open() {
        bit = tap < n_taps && vector < depth ? 1u << tap : 0;
        const StagedTap at = shared.taps[bit ? tap : 0];
        w_of = w + (AS_IT_LIES ? at.w : at.w + vector);
        read_of = read + (at.read + vector);
    }
    // Copies the thread's vectors of W to A and of `read` to B, for every SLICES-th of its lines
    // from `slice` on; zeros outside of the arrays.
    __device__ __forceinline__ void copy(u8* stage, int slice) const {
        u8* const to = stage + own;
#pragma unroll
        for (int i = slice; i < Tile::ROWS / AT_ONCE; i += SLICES) {
            // AS_IT_LIES: all lines of one panel of rows come before those of the next panel.
            constexpr int OF_PANEL = PANEL / AT_ONCE;
            const int panel = AS_IT_LIES ? i / OF_PANEL : 0, step = i - panel * OF_PANEL;
            async_copy::copy_or_zeros<16>(
                to + i * (AT_ONCE * LINE_NBYTES),
                w_of + (static_cast<i64>(step) * w_pitch + panel * LINE_VECTORS),
                bit != 0 && (AS_IT_LIES ? panel * LINE_VECTORS : i * AT_ONCE) < rows);
        }
#pragma unroll
        for (int i = slice; i < Tile::COLUMNS / AT_ONCE; i += SLICES) {
            const StagedRow row = shared.rows[line + i * AT_ONCE];
            async_copy::copy_or_zeros<16, /*AGAIN=*/true>(
                to + Tile::A_NBYTES + i * (AT_ONCE * LINE_NBYTES), read_of + row.offset,
                (row.inside & bit) != 0);
        }
    }
    // Closes the stage's group of copies, and moves on by LINE_VECTORS vectors of the sum: to the
    // next tap of the same channels if taps_first, else to the next channels of the tap.
    __device__ __forceinline__ void close() {
        async_copy::commit();
        if (taps_first) {
            ++tap;
            if (tap == n_taps) {
                tap = 0;
                vector += LINE_VECTORS;
                if (AS_IT_LIES) w += static_cast<i64>(w_pitch) * (PANEL / AT_ONCE);
            }
        } else {
            for (vector += LINE_VECTORS; vector >= depth; vector -= depth) ++tap;
        }
    }
};

// written[places[column] + row * plane] = slab[row][column], row < rows, by vectors of V columns;
// those of negative places do not exist. slab: D in shared memory, rows of COLUMNS + VECTOR
// elements.
template <class Tile, int V>
__device__ __forceinline__ void write_columns(const typename Tile::E* slab, const i64* places,
                                              i64 plane, i32 rows, typename Tile::E* written) {
    using Word = vec::Vec<typename Tile::E, V>;
    constexpr int PITCH = Tile::COLUMNS + Tile::VECTOR, IN_ROW = Tile::COLUMNS / V;
    for (int i = threadIdx.x; i < Tile::ROWS * IN_ROW; i += Tile::THREADS) {
        const int row = i / IN_ROW, column = i % IN_ROW * V;
        const i64 place = places[column];
        if (row < rows && place >= 0)
            *reinterpret_cast<Word*>(written + place + row * plane) =
                *reinterpret_cast<const Word*>(slab + row * PITCH + column);
    }
}

// written[places[column] + row * plane] = slab[row][column], row < rows, element by element: a
// thread has one column of all rows. Negative places do not exist.
template <class Tile>
__device__ __forceinline__ void write_single_columns(const typename Tile::E* slab,
                                                     const i64* places, i64 plane, i32 rows,
                                                     typename Tile::E* written) {
    constexpr int PITCH = Tile::COLUMNS + Tile::VECTOR;
    const int end = min(rows, Tile::ROWS);
    for (int column = threadIdx.x; column < Tile::COLUMNS; column += Tile::THREADS) {
        const i64 place = places[column];
        if (place < 0) continue;
        typename Tile::E* to = written + place;
#pragma unroll 4
        for (int row = 0; row < end; ++row, to += plane) *to = slab[row * PITCH + column];
    }
}

// written[places[column] + row] = slab[column][row], row < rows, by vectors of V rows: channels are
// last. slab: D in shared memory, columns of ROWS + VECTOR elements.
template <class Tile, int V>
__device__ __forceinline__ void write_lines(const typename Tile::E* slab, const i64* places,
                                            i32 rows, typename Tile::E* written) {
    using Word = vec::Vec<typename Tile::E, V>;
    constexpr int PITCH = Tile::ROWS + Tile::VECTOR, IN_LINE = Tile::ROWS / V;
    for (int i = threadIdx.x; i < Tile::COLUMNS * IN_LINE; i += Tile::THREADS) {
        const int column = i / IN_LINE, row = i % IN_LINE * V;
        const i64 place = places[column];
        if (row < rows && place >= 0)
            *reinterpret_cast<Word*>(written + place + row) =
                *reinterpret_cast<const Word*>(slab + column * PITCH + row);
    }
}

// Writes D to an array with channels last, by vectors of `width` channels (VECTOR or 1), by way of
// `slab` in shared memory: write_lines. places: where each column is written, -1: nowhere; rows:
// channels from the tile's first on; `written`: at that channel.
template <class Tile>
__device__ __forceinline__ void write_staged_lines(const StagedProduct<Tile>& product,
                                                   const i64* places, i32 rows,
                                                   typename Tile::E* written, i32 width,
                                                   typename Tile::E* slab) {
    using E = typename Tile::E;
    constexpr int PITCH = Tile::ROWS + Tile::VECTOR;
    if constexpr (Tile::TRANSPOSES)
        store_lines(product, slab);
    else
        product.template each_pair</*OF_ROW=*/1, /*OF_COLUMN=*/PITCH>(
            slab, [](E* to, const float* sums) {
                to[0] = from_acc<E>(sums[0]);
                to[PITCH] = from_acc<E>(sums[1]);
            });
    __syncthreads();
    if (width == Tile::VECTOR)
        write_lines<Tile, Tile::VECTOR>(slab, places, rows, written);
    else
        write_lines<Tile, 1>(slab, places, rows, written);
}

// Writes D to an array (n, channel, position), by vectors of `width` positions (VECTOR, VECTOR / 2
// or 1), by way of `slab` in shared memory: write_columns. places: where each column is written,
// -1: nowhere; plane: positions of an image; rows: channels from the tile's first on; `written`: at
// that channel.
template <class Tile>
__device__ __forceinline__ void write_staged_columns(const StagedProduct<Tile>& product,
                                                     const i64* places, i64 plane, i32 rows,
                                                     typename Tile::E* written, i32 width,
                                                     typename Tile::E* slab) {
    using E = typename Tile::E;
    constexpr int PITCH = Tile::COLUMNS + Tile::VECTOR;
    product.template each_pair</*OF_ROW=*/PITCH, /*OF_COLUMN=*/1>(
        slab, [](E* to, const float* sums) { vec::round_pair(sums, to); });
    __syncthreads();
    if (width == Tile::VECTOR)
        write_columns<Tile, Tile::VECTOR>(slab, places, plane, rows, written);
    else if (width == Tile::VECTOR / 2)
        write_columns<Tile, Tile::VECTOR / 2>(slab, places, plane, rows, written);
    else
        write_single_columns<Tile>(slab, places, plane, rows, written);
}

// written = D + bias of the row, which may be null, by way of `slab` in shared memory;
// shared.places and `staged` say where and how.
template <class Tile>
__device__ __forceinline__ void write_staged(StagedProduct<Tile>& product,
                                             const ImageLayout& layout,
                                             const ImageShared<Tile>& shared,
                                             const StagedImage& staged,
                                             const typename Tile::E* bias,
                                             typename Tile::E* written, typename Tile::E* slab) {
    const Place& place = shared.place;
    const i32 rows = layout.rows - place.first_row;
    if (bias) bias += place.group * layout.rows + place.first_row;
    product.add_to_rows(
        [&](int row) { return bias && row < rows ? static_cast<float>(to_acc(bias[row])) : 0.0f; });
    if (staged.channels_last) {
        written += place.first_row;
        write_staged_lines(product, shared.places, rows, written, staged.width, slab);
    } else {
        const i64 plane = volume(layout.written);
        written += place.first_row * plane;
        write_staged_columns(product, shared.places, plane, rows, written, staged.width, slab);
    }
}

// product = sum over all taps and channels of W and `read`, staged arrays, for the tile
// shared.place. n_taps: of the tile's residue; `stages`: shared memory for Tile::STAGES stages.
// AS_IT_LIES: lines of W are elements k of the sum, each with all rows; else rows.
template <class Tile, bool AS_IT_LIES>
__device__ __forceinline__ void add_staged(StagedProduct<Tile>& product,
                                           const ImageShared<Tile>& shared,
                                           const typename Tile::E* read, const typename Tile::E* w,
                                           const StagedImage& staged, int n_taps,
                                           const ImageLayout& layout, u8* stages) {
    using Copier = ImageCopier<Tile, AS_IT_LIES>;
    const Place& place = shared.place;
    const int line = threadIdx.x / LINE_VECTORS, vector = threadIdx.x % LINE_VECTORS;
    const i32 depth = vectors_of(layout.depth, Tile::VECTOR);
    const i64 of_group = layout.rows * volume(layout.kernel) * depth;
    const i32 first_vector = place.first_row / Tile::VECTOR + vector;
    const i64 first = AS_IT_LIES ? static_cast<i64>(line) * staged.w_row + first_vector
                                 : static_cast<i64>(place.first_row + line) * staged.w_row;
    Copier copier{
        shared,
        reinterpret_cast<const uint4*>(read),
        reinterpret_cast<const uint4*>(w) + (place.group * of_group + first),
        n_taps,
        depth,
        /*w_pitch=*/staged.w_row * Copier::AT_ONCE,
        // rows
        AS_IT_LIES ? vectors_of(layout.rows, Tile::VECTOR) - first_vector
                   : layout.rows - place.first_row - line,
        /*taps_first=*/depth % LINE_VECTORS == 0,
        /*tap=*/vector / depth,
        /*vector=*/vector % depth,
        line,
        /*own=*/line * LINE_NBYTES + place_in_line(vector, line),
    };
    const i32 parts = vectors_of(n_taps * depth, LINE_VECTORS);
    using Of = Multipliers<Tile>;
    if constexpr (Tile::BY_WARPGROUPS)
        add_stages_by_warpgroups<Tile, ByWarpgroups<Tile, AS_IT_LIES, /*B_TRANSPOSED=*/false>>(
            product, stages, parts, copier, /*also=*/[](const u8*) {});
    else
        add_stages<Tile, typename Of::Image>(product, stages, parts, copier,
                                             /*also=*/[](const tensor_core::A(&)[Tile::DOWN]) {});
}

// written = bias + convolution of `read` with W, or with layout.is_gradient its gradient for X,
// where `read` is dY; staged arrays. bias may be null; `block`: number in this kernel's part of the
// launch. staged: how W lies, and how `written` is stored. `stages`: dynamic shared memory.
template <class Tile>
__device__ __forceinline__ void staged_convolution(const typename Tile::E* read,
                                                   const typename Tile::E* w,
                                                   const typename Tile::E* bias,
                                                   typename Tile::E* written,
                                                   const StagedImage& staged, u32 block,
                                                   const ImageLayout& layout, u8* stages) {
    if constexpr (Tile::EXISTS) {
        __shared__ ImageShared<Tile> shared;
        Place& place = shared.place;
        if (threadIdx.x < WARP) {
            if (threadIdx.x < 3) find_place(layout, block, Tile::ROWS, Tile::COLUMNS, place);
            __syncwarp();
            if (threadIdx.x == 0) {
                i64 columns = layout.batch;
                for (int axis = 0; axis < 3; ++axis) columns *= place.lines[axis].count;
                place.columns = columns;
            }
        }
        __syncthreads();
        if (place.first_column >= place.columns) return;
        const i32 depth = vectors_of(layout.depth, Tile::VECTOR), vectors = depth * layout.groups;
        const int n_taps = count_taps(place.lines);
        for (int i = threadIdx.x; i < Tile::COLUMNS; i += Tile::THREADS) {
            const StagedColumn column(layout, place, i, depth, vectors, staged.channels_last);
            shared.places[i] = column.place;
            shared.rows[i] = column.row;
        }
        const int tap = Tile::THREADS - 1 - threadIdx.x;  // the last warp may have no columns
        if (tap < STAGED_TAPS)
            shared.taps[tap] =
                tap < n_taps ? staged_tap(layout, place, tap, staged.w_tap, vectors) : StagedTap{};
        __syncthreads();
        StagedProduct<Tile> product;
        if constexpr (Tile::TRANSPOSES) {
            if (staged.as_it_lies)
                add_staged<Tile, /*AS_IT_LIES=*/true>(product, shared, read, w, staged, n_taps,
                                                      layout, stages);
            else
                add_staged<Tile, /*AS_IT_LIES=*/false>(product, shared, read, w, staged, n_taps,
                                                       layout, stages);
        } else {
            add_staged<Tile, /*AS_IT_LIES=*/false>(product, shared, read, w, staged, n_taps, layout,
                                                   stages);
        }
        write_staged(product, layout, shared, staged, bias, written,
                     reinterpret_cast<typename Tile::E*>(stages));
    }
}

}  // namespace cto::conv::staged_image
