// SPDX-License-Identifier: MIT
// depthwise_lines.cuh for TAPS x TAPS taps with stride and dilation 1. A walk is STRIP neighbouring
// columns in some neighbouring rows of an image; a thread goes down its rows, ACROSS columns at a
// time, and reads each row once for all rows of taps.
#pragma once
#include "conv/depthwise_lines.cuh"

namespace cto::conv::depthwise_walks {

using namespace depthwise_lines;

constexpr int V = LINE_SUMS;
constexpr int ACROSS = STRIP / 2;          // positions of a walk; with more, registers would spill
constexpr int WINDOW = ACROSS + TAPS - 1;  // positions that they read in a row
static_assert(TAPS == 3);

template <class E>
using Vector = vec::Vec<E, V>;

// Rows [row, end) of image n, in STRIP columns from `column` on.
struct Walk {
    i64 n;
    i32 row, end, column;

    // Walk number `index`, through all images; each has `rows` of an image's all_rows rows.
    __device__ __forceinline__ Walk(const DepthwiseLayout& layout, i64 index, i32 rows,
                                    i32 all_rows) {
        const auto cell = fast_division::cell_at(index, layout.of_plane);
        const Strip strip = strip_at(layout, static_cast<u32>(cell.column));
        n = cell.row;
        row = strip.at[1] * rows;
        end = min(row + rows, all_rows);
        column = strip.at[2];
    }
};

// window[i] = the V channels of row `row` at column first + i, i < N; zeros outside of the image.
// line: address of the row's column 0; extents: of the image; pitch: elements from a column to the
// next.
template <int N, class E>
__device__ __forceinline__ void load_row(const E* line, i32 row, i32 first, const i32 (&extents)[3],
                                         i32 pitch, Words<E, V> (&window)[N]) {
    const bool is_inside = static_cast<u32>(row) < static_cast<u32>(extents[1]);
    load_window(line, first, is_inside ? extents[2] : 0, pitch, window);
}

// Channel c of one row of taps: returns sum + weights[0][c] * read[0][c] + ... + weights[TAPS -
// 1][c] * read[TAPS - 1][c].
template <class A>
__device__ __forceinline__ A of_row(const A (&weights)[TAPS][V], const A (*read)[V], int c, A sum) {
#pragma unroll
    for (int j = 0; j < TAPS; ++j) sum += weights[j][c] * read[j][c];
    return sum;
}

// written = bias + sum over TAPS x TAPS taps of w * read, or with is_gradient the gradient of that
// for X, which has the taps in reverse; bias may be null. Block part * tiles + tile has a tile of
// channels and `of_block` walks of `rows` rows. A thread walks down rows and reads each once:
// sums[0] is of the written row for which the row just read is the last, sums[1] and sums[2] of the
// next two.
template <class E>
__device__ __forceinline__ void walk_lines(const E* read, const E* w, const E* bias, E* written,
                                           i64 of_block, i32 rows, bool is_gradient,
                                           const DepthwiseLayout& layout) {
    using A = Acc<E>;
    const u32 tiles = line_tiles<V>(layout), part = blockIdx.x / tiles;
    const Own<V> own(layout, blockIdx.x - part * tiles);
    if (own.row >= own.down) return;
    A weights[TAPS][TAPS][V], start[V];
    w += static_cast<i64>(own.channel()) * (TAPS * TAPS);
#pragma unroll
    for (int c = 0; c < V; ++c) {
        start[c] = bias ? to_acc(bias[own.channel() + c]) : A(0);
#pragma unroll
        for (int i = 0; i < TAPS * TAPS; ++i)
            weights[i / TAPS][i % TAPS][c] =
                to_acc(w[c * TAPS * TAPS + (is_gradient ? TAPS * TAPS - 1 - i : i)]);
    }
    const i32(&from)[3] = is_gradient ? layout.output : layout.image;
    const i32(&to)[3] = is_gradient ? layout.image : layout.output;
    const i32 down = is_gradient ? TAPS - 1 - layout.pad[1] : layout.pad[1];
    const i32 across = is_gradient ? TAPS - 1 - layout.pad[2] : layout.pad[2];
    const i64 pitch = static_cast<i64>(from[2]) * layout.groups;
    const i64 end = min((part + 1) * of_block, layout.batch * layout.of_plane.value);
    for (i64 index = part * of_block + own.row; index < end; index += own.down) {
        const Walk walk(layout, index, rows, to[1]);
        const i32 first_row = walk.row - down, last = min(walk.column + STRIP, to[2]);
#pragma unroll 1
        for (i32 column = walk.column; column < last; column += ACROSS) {
            const i32 first = column - across;
            const E* line = read + (walk.n * from[1] + first_row) * pitch + own.channel();
            E* at = written + ((walk.n * to[1] + walk.row) * to[2] + column) * layout.groups +
                    own.channel();
            A sums[TAPS][ACROSS][V];
#pragma unroll
            for (int i = 0; i < TAPS; ++i)
#pragma unroll
                for (int p = 0; p < ACROSS; ++p)
#pragma unroll
                    for (int c = 0; c < V; ++c) sums[i][p][c] = start[c];
            Words<E, V> window[WINDOW];
            load_row(line, first_row, first, from, layout.groups, window);
#pragma unroll 1
            for (i32 row = first_row; row < walk.end - down + TAPS - 1; ++row) {
                A widened[WINDOW][V];
                widen_all<E>(window, widened);
                line += pitch;
                load_row(line, row + 1, first, from, layout.groups, window);
#pragma unroll
                for (int p = 0; p < ACROSS; ++p)
#pragma unroll
                    for (int c = 0; c < V; ++c) {
                        sums[0][p][c] = of_row(weights[2], widened + p, c, sums[1][p][c]);
                        sums[1][p][c] = of_row(weights[1], widened + p, c, sums[2][p][c]);
                        sums[2][p][c] = of_row(weights[0], widened + p, c, start[c]);
                    }
                if (row < first_row + TAPS - 1) continue;
#pragma unroll
                for (int p = 0; p < ACROSS; ++p)
                    if (column + p < to[2])
                        *reinterpret_cast<Vector<E>*>(at + static_cast<i64>(p) * layout.groups) =
                            vec::from_acc<E>(sums[0][p]);
                at += static_cast<i64>(to[2]) * layout.groups;
            }
        }
    }
}

// sums.of_taps of each tap += y[position][c] * x[position + tap][c] over the walk's rows, in ACROSS
// columns from `column` on; sums.of_y += y. x (or null) and y are at the thread's channels. A row
// of X is read once; `slopes` has the TAPS rows of Y that it is multiplied with.
template <class E>
__device__ __forceinline__ void add_walk(const E* x, const E* y, const Walk& walk, i32 column,
                                         const DepthwiseLayout& layout, LineSums<E>& sums) {
    const i32 count = min(ACROSS, layout.output[2] - column);
    const i32 first = column - layout.pad[2], pad = layout.pad[1];
    const i64 pitch = static_cast<i64>(layout.image[2]) * layout.groups;
    const i64 y_pitch = static_cast<i64>(layout.output[2]) * layout.groups;
    if (x) x += (walk.n * layout.image[1] + walk.row - pad) * pitch;
    y +=
        (walk.n * layout.output[1] + walk.row) * y_pitch + static_cast<i64>(column) * layout.groups;
    Words<E, V> slopes[TAPS][ACROSS] = {};  // slopes[i]: row - i of Y
#pragma unroll 1
    for (i32 row = walk.row; row < walk.end + TAPS - 1; ++row, y += y_pitch) {
        Words<E, V> window[WINDOW];
        load_row(x, x ? row - pad : -1, first, layout.image, layout.groups, window);
        if (x) x += pitch;
#pragma unroll
        for (int p = 0; p < ACROSS; ++p) {
            slopes[2][p] = slopes[1][p];
            slopes[1][p] = slopes[0][p];
        }
        load_window(y, 0, row < walk.end ? count : 0, layout.groups, slopes[0]);
        Acc<E> of_y[ACROSS][V];
        widen_all<E>(slopes[0], of_y);
#pragma unroll
        for (int p = 0; p < ACROSS; ++p)
#pragma unroll
            for (int c = 0; c < V; ++c) sums.of_y[c] += of_y[p][c];
        if (!x || static_cast<u32>(row - pad) >= static_cast<u32>(layout.image[1])) continue;
        Acc<E> widened[WINDOW][V];
        widen_all<E>(window, widened);
#pragma unroll
        for (int i = 0; i < TAPS; ++i) {
            if (row - i < walk.row || row - i >= walk.end) continue;
            widen_all<E>(slopes[i], of_y);
#pragma unroll
            for (int p = 0; p < ACROSS; ++p)
                if (p < count) LineSums<E>::add_position(sums.of_taps[i], of_y[p], widened + p);
        }
    }
}

// sums[part][channel][tap] = sum of y * x over the part's positions, y_sums[part][channel] = sum of
// y; either may be null. Block part * tiles + tile has a tile of channels and `of_part`
// neighbouring walks of `rows` rows of Y.
template <class E>
__device__ __forceinline__ void sum_walks(const E* x, const E* y, Acc<E>* sums, Acc<E>* y_sums,
                                          i64 of_part, i32 rows, const DepthwiseLayout& layout) {
    const u32 tiles = line_tiles<V>(layout), part = blockIdx.x / tiles;
    const Own<V> own(layout, blockIdx.x - part * tiles);
    LineSums<E> line_sums;
    const i64 end =
        own.row < own.down ? min((part + 1) * of_part, layout.batch * layout.of_plane.value) : 0;
    for (i64 index = part * of_part + own.row; index < end; index += own.down) {
        const Walk walk(layout, index, rows, layout.output[1]);
        const i32 last = min(walk.column + STRIP, layout.output[2]);
#pragma unroll 1
        for (i32 column = walk.column; column < last; column += ACROSS)
            add_walk(x ? x + own.channel() : nullptr, y + own.channel(), walk, column, layout,
                     line_sums);
    }
    write_line_sums(line_sums, own, TapTile{/*channel=*/0, part, /*k0=*/0, /*k1=*/0, /*k2=*/0},
                    sums, y_sums, layout);
}

}  // namespace cto::conv::depthwise_walks
