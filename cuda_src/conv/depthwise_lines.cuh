// SPDX-License-Identifier: MIT
// Convolutions with groups of one channel and one filter, of arrays (n, position, channel). A
// thread has a vector of V neighbouring channels, of some strips (STRIP neighbouring positions of a
// line along the last axis); a block a tile of LINE_VECTORS vectors.
#pragma once
#include "conv/depthwise.cuh"

namespace cto::conv::depthwise_lines {

using namespace depthwise;

// A block's threads as `down` rows of `across`: a thread has vector `vector` of the tile, and every
// down-th strip from `row` on. Threads left over have row >= down.
template <int V>
struct Own {
    i32 first, across, down;  // first: the tile's first channel
    i32 row, vector;

    // Of tile number `tile` of channels; the last one may have fewer vectors.
    __device__ __forceinline__ Own(const DepthwiseLayout& layout, u32 tile) {
        const i32 before = tile * LINE_VECTORS;
        first = before * V;
        across = min(LINE_VECTORS, layout.groups / V - before);
        down = THREADS / across;
        row = threadIdx.x / across;
        vector = threadIdx.x - row * across;
    }
    // The first of the thread's V channels.
    __device__ __forceinline__ i32 channel() const { return first + vector * V; }
};

// The number of tiles of LINE_VECTORS vectors of V channels.
template <int V>
__device__ __forceinline__ u32 line_tiles(const DepthwiseLayout& layout) {
    return (layout.groups / V + LINE_VECTORS - 1) / LINE_VECTORS;
}

// The position that position p reads by a tap along an axis (0 to 2), negative if there is none:
// depthwise::read_by, with GRADIENT at run time.
__device__ __forceinline__ i32 read_by(const DepthwiseLayout& layout, int axis, i32 p, i32 tap,
                                       bool is_gradient) {
    return is_gradient ? depthwise::read_by</*GRADIENT=*/true>(layout, axis, p, tap)
                       : depthwise::read_by</*GRADIENT=*/false>(layout, axis, p, tap);
}

// V channels in registers: words, since compilers move elements of two bytes one by one.
template <class E, int V>
using Words = vec::Vec<u32, V * sizeof(E) / 4>;

// to[i][c] = channel c of from[i] in its accumulator, i < N, c < V.
template <class E, int N, int V>
__device__ __forceinline__ void widen_all(const Words<E, V> (&from)[N], Acc<E> (&to)[N][V]) {
#pragma unroll
    for (int i = 0; i < N; ++i) vec::widen<E>(from + i, to[i]);
}

// window[i] = the V channels of position first + i of a line, at `from` + i * pitch; zeros where
// first + i is not in [0, extent); i < N.
template <int N, class E, class Vector>
__device__ __forceinline__ void load_window(const E* from, i32 first, i32 extent, i32 pitch,
                                            Vector (&window)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        window[i] = Vector{};
        if (static_cast<u32>(first + i) < static_cast<u32>(extent))
            window[i] = *reinterpret_cast<const Vector*>(from + static_cast<i64>(i) * pitch);
    }
}

// sums[i][c] += weights[c] * read[i][c], i < STRIP, c < V.
template <int V, class E>
__device__ __forceinline__ void add_products(const E* weights, const Acc<E> (*read)[V],
                                             Acc<E> (&sums)[STRIP][V]) {
    Acc<E> of_tap[V];
    vec::widen<E>(weights, of_tap);
#pragma unroll
    for (int i = 0; i < STRIP; ++i)
#pragma unroll
        for (int j = 0; j < V; ++j) sums[i][j] += of_tap[j] * read[i][j];
}

// sums[i][c] += weights[k * pitch + c] * line[u][c] over the taps k of the line, where u is the
// position that p + i reads by tap k (read_by), zero beside the line (with is_gradient, of dY, else
// of X); i < STRIP, c < V. A dense line is loaded as a window of STRIP + TAPS - 1 positions for
// TAPS taps at a time.
template <int V, class E>
__device__ __forceinline__ void add_line(const E* line, const E* weights, i32 pitch, i32 p,
                                         bool is_gradient, const DepthwiseLayout& layout,
                                         Acc<E> (&sums)[STRIP][V]) {
    const i32 taps = layout.kernel[2], pad = layout.pad[2];
    if (is_dense(layout)) {
        const i32 extent = (is_gradient ? layout.output : layout.image)[2];
#pragma unroll 1
        for (i32 k = 0; k < taps; k += TAPS) {
            // In the gradient, later taps read earlier positions.
            const i32 first = is_gradient ? p + pad - k - (TAPS - 1) : p - pad + k;
            Words<E, V> window[STRIP + TAPS - 1];
            load_window(line + static_cast<i64>(first) * layout.groups, first, extent,
                        layout.groups, window);
            Acc<E> read[STRIP + TAPS - 1][V];
            widen_all<E>(window, read);
#pragma unroll
            for (int j = 0; j < TAPS; ++j) {
                const i32 tap = k + (is_gradient ? TAPS - 1 - j : j);
                if (tap < taps) add_products(weights + tap * pitch, read + j, sums);
            }
        }
        return;
    }
#pragma unroll 1
    for (i32 k = 0; k < taps; ++k, weights += pitch) {
        Words<E, V> loaded[STRIP] = {};
#pragma unroll
        for (int i = 0; i < STRIP; ++i) {
            const i32 u = read_by(layout, 2, p + i, k, is_gradient);
            if (u >= 0)
                loaded[i] = *reinterpret_cast<const Words<E, V>*>(line + static_cast<i64>(u) *
                                                                             layout.groups);
        }
        Acc<E> read[STRIP][V];
        widen_all<E>(loaded, read);
        add_products(weights, read, sums);
    }
}

// written = bias + sum over taps of w * read, or with is_gradient the gradient of that for X, where
// `read` is dY; bias may be null. Block part * tiles + tile has a tile of channels and `of_block`
// neighbouring strips, numbered through all images. weights[tap][channel of the tile] are in shared
// memory.
template <class E>
__device__ __forceinline__ void write_lines(const E* read, const E* w, const E* bias, E* written,
                                            i64 of_block, bool is_gradient,
                                            const DepthwiseLayout& layout) {
    constexpr int V = vec::WIDTH<E>;
    __shared__ __align__(16) E weights[LINE_TAPS * LINE_VECTORS * V];
    const u32 tiles = line_tiles<V>(layout), part = blockIdx.x / tiles;
    const Own<V> own(layout, blockIdx.x - part * tiles);
    const i32 taps = static_cast<i32>(volume(layout.kernel)), of_tap = own.across * V;
    w += static_cast<i64>(own.first) * taps;
    for (i32 i = threadIdx.x; i < taps * of_tap; i += THREADS) {
        const i32 channel = i / taps;
        weights[(i - channel * taps) * of_tap + channel] = w[i];
    }
    __syncthreads();
    if (own.row >= own.down) return;
    const i32(&from)[3] = is_gradient ? layout.output : layout.image;
    const i32(&to)[3] = is_gradient ? layout.image : layout.output;
    const i64 end = min((part + 1) * of_block, layout.batch * layout.of_plane.value);
    for (i64 index = part * of_block + own.row; index < end; index += own.down) {
        const auto cell = fast_division::cell_at(index, layout.of_plane);
        const Strip strip = strip_at(layout, static_cast<u32>(cell.column));
        const E* const image = read + cell.row * volume(from) * layout.groups + own.channel();
        Acc<E> sums[STRIP][V];
#pragma unroll
        for (int i = 0; i < STRIP; ++i)
#pragma unroll
            for (int j = 0; j < V; ++j)
                sums[i][j] = bias ? to_acc(bias[own.channel() + j]) : Acc<E>(0);
        const E* of_line = weights + own.vector * V;
        for (i32 k0 = 0; k0 < layout.kernel[0]; ++k0) {
            const i32 u0 = read_by(layout, 0, strip.at[0], k0, is_gradient);
#pragma unroll 1
            for (i32 k1 = 0; k1 < layout.kernel[1]; ++k1, of_line += layout.kernel[2] * of_tap) {
                const i32 u1 = read_by(layout, 1, strip.at[1], k1, is_gradient);
                if ((u0 | u1) < 0) continue;
                const E* const line =
                    image + (static_cast<i64>(u0) * from[1] + u1) * from[2] * layout.groups;
                add_line(line, of_line, of_tap, strip.at[2], is_gradient, layout, sums);
            }
        }
        const i64 position = cell.row * volume(to) +
                             (static_cast<i64>(strip.at[0]) * to[1] + strip.at[1]) * to[2] +
                             strip.at[2];
        E* const at = written + position * layout.groups + own.channel();
#pragma unroll
        for (int i = 0; i < STRIP; ++i)
            if (strip.at[2] + i < to[2])
                *reinterpret_cast<vec::Vec<E, V>*>(at + static_cast<i64>(i) * layout.groups) =
                    vec::from_acc<E>(sums[i]);
    }
}

// ---- the gradient of the weights ----------------------------------------------------------------

// A thread's sums for the gradient of W: for each of V channels c, of_taps[i][j][c] of N x N taps,
// and of_y[c] for the bias.
template <class E, int N, int V>
struct LineSums {
    Acc<E> of_taps[N][N][V] = {}, of_y[V] = {};
};

// sums[j][c] += slopes[c] * read[j][c], j < N, c < V.
template <class A, int N, int V>
__device__ __forceinline__ void add_position(A (&sums)[N][V], const A (&slopes)[V],
                                             const A (*read)[V]) {
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
        for (int c = 0; c < V; ++c) sums[j][c] += slopes[c] * read[j][c];
}

// sums.of_taps[i][j][c] += y[p][c] * x[u(p, i, j)][c], sums.of_y[c] += y[p][c] over the positions p
// of a strip, where u is what p reads by tap (k0, k1 + i, k2 + j). x: at the thread's channels of
// the image, null if only of_y is wanted; y: at its channels of the strip's first position.
template <class E>
__device__ __forceinline__ void add_strip(const E* x, const E* y, const TapTile& tile,
                                          const Strip& strip, const DepthwiseLayout& layout,
                                          LineSums<E, TAPS, LINE_SUMS>& sums) {
    using Vector = Words<E, LINE_SUMS>;
    const int count = min(STRIP, layout.output[2] - strip.at[2]);
    Vector loaded[STRIP];
    load_window(y, 0, count, layout.groups, loaded);
    Acc<E> slopes[STRIP][LINE_SUMS];
    widen_all<E>(loaded, slopes);
#pragma unroll
    for (int p = 0; p < STRIP; ++p)
#pragma unroll
        for (int c = 0; c < LINE_SUMS; ++c) sums.of_y[c] += slopes[p][c];
    const i32 u0 = depthwise::read_by</*GRADIENT=*/false>(layout, 0, strip.at[0], tile.k0);
    if (!x || u0 < 0) return;
#pragma unroll
    for (int i = 0; i < TAPS; ++i) {
        const i32 u1 = depthwise::read_by</*GRADIENT=*/false>(layout, 1, strip.at[1], tile.k1 + i);
        if (u1 < 0) continue;
        const E* const line =
            x + (static_cast<i64>(u0) * layout.image[1] + u1) * layout.image[2] * layout.groups;
        if (is_dense(layout)) {
            Vector window[STRIP + TAPS - 1];
            const i32 first = strip.at[2] - layout.pad[2] + tile.k2;
            load_window(line + static_cast<i64>(first) * layout.groups, first, layout.image[2],
                        layout.groups, window);
            Acc<E> read[STRIP + TAPS - 1][LINE_SUMS];
            widen_all<E>(window, read);
#pragma unroll
            for (int p = 0; p < STRIP; ++p)
                if (p < count) add_position(sums.of_taps[i], slopes[p], read + p);
            continue;
        }
#pragma unroll
        for (int p = 0; p < STRIP; ++p) {
            if (p >= count) break;
            Acc<E> read[TAPS][LINE_SUMS];
#pragma unroll
            for (int j = 0; j < TAPS; ++j) {
                const i32 u2 =
                    depthwise::read_by</*GRADIENT=*/false>(layout, 2, strip.at[2] + p, tile.k2 + j);
                Vector loaded[1];
                load_window(line + static_cast<i64>(u2) * layout.groups, u2, layout.image[2],
                            layout.groups, loaded);
                vec::widen<E>(loaded, read[j]);
            }
            add_position(sums.of_taps[i], slopes[p], read);
        }
    }
}

// Writes sums[part][channel][tap] of the taps of `tile`, and y_sums[part][channel]: the sums
// (line_sums) of the block's threads with the same channels, added in the order of own.row; either
// array may be null. Shared memory has a row of taps at a time.
template <class E, int N, int V>
__device__ __forceinline__ void write_line_sums(const LineSums<E, N, V>& line_sums,
                                                const Own<V>& own, const TapTile& tile,
                                                Acc<E>* sums, Acc<E>* y_sums,
                                                const DepthwiseLayout& layout) {
    __shared__ Acc<E> of_threads[N][V][THREADS];
    const u32 channels = own.across * V;
    const i32 taps = static_cast<i32>(volume(layout.kernel));
    // The sum of the block's threads number `number` in shared memory, for one of the channels.
    const auto add = [&](u32 number, u32 channel) {
        Acc<E> sum = 0;
        for (i32 row = 0; row < own.down; ++row)
            sum += of_threads[number][channel % V][row * own.across + channel / V];
        return sum;
    };
    const i64 first = static_cast<i64>(tile.part) * layout.groups + own.first;
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
            for (int c = 0; c < V; ++c) of_threads[j][c][threadIdx.x] = line_sums.of_taps[i][j][c];
        __syncthreads();
        for (u32 at = threadIdx.x; at < N * channels; at += THREADS) {
            const u32 j = at / channels, channel = at - j * channels;
            const i32 at1 = tile.k1 + i, at2 = tile.k2 + static_cast<i32>(j);
            if (sums && at1 < layout.kernel[1] && at2 < layout.kernel[2])
                sums[(first + channel) * taps +
                     (tile.k0 * layout.kernel[1] + at1) * layout.kernel[2] + at2] = add(j, channel);
        }
        __syncthreads();
    }
    if (!y_sums) return;
#pragma unroll
    for (int c = 0; c < V; ++c) of_threads[0][c][threadIdx.x] = line_sums.of_y[c];
    __syncthreads();
    for (u32 channel = threadIdx.x; channel < channels; channel += THREADS)
        y_sums[first + channel] = add(0, channel);
}

// sums[part][channel][tap] = sum of y * x over the part's strips, unless x is null;
// y_sums[part][channel] = sum of y, unless null. A block has TAPS x TAPS taps, a tile of channels,
// and `of_part` neighbouring strips of Y.
template <class E>
__device__ __forceinline__ void sum_lines_of_weights(const E* x, const E* y, Acc<E>* sums,
                                                     Acc<E>* y_sums, i64 of_part,
                                                     const DepthwiseLayout& layout) {
    const u32 tiles1 = (layout.kernel[1] + TAPS - 1) / TAPS;
    const u32 tiles2 = (layout.kernel[2] + TAPS - 1) / TAPS;
    const u32 line_tiles = depthwise_lines::line_tiles<LINE_SUMS>(layout);
    const u32 tap_tiles = layout.kernel[0] * tiles1 * tiles2, rest = blockIdx.x / line_tiles;
    const Own<LINE_SUMS> own(layout, blockIdx.x - rest * line_tiles);
    const u32 part = rest / tap_tiles;
    const i32 index = rest - part * tap_tiles;
    // channel (unused: `own` has channels), part, k0, k1, k2
    const TapTile tile{0, part, static_cast<i32>(index / (tiles1 * tiles2)),
                       static_cast<i32>(index / tiles2 % tiles1 * TAPS),
                       static_cast<i32>(index % tiles2 * TAPS)};
    if (!x && index > 0) return;
    LineSums<E, TAPS, LINE_SUMS> line_sums;
    const i64 end =
        own.row < own.down ? min((part + 1) * of_part, layout.batch * layout.of_plane.value) : 0;
    for (i64 at = part * of_part + own.row; at < end; at += own.down) {
        const auto cell = fast_division::cell_at(at, layout.of_plane);
        const Strip strip = strip_at(layout, static_cast<u32>(cell.column));
        const i64 position =
            cell.row * volume(layout.output) +
            (static_cast<i64>(strip.at[0]) * layout.output[1] + strip.at[1]) * layout.output[2] +
            strip.at[2];
        const E* const of_x =
            x ? x + cell.row * volume(layout.image) * layout.groups + own.channel() : nullptr;
        add_strip(of_x, y + position * layout.groups + own.channel(), tile, strip, layout,
                  line_sums);
    }
    write_line_sums(line_sums, own, tile, x ? sums : nullptr, index == 0 ? y_sums : nullptr,
                    layout);
}

}  // namespace cto::conv::depthwise_lines
