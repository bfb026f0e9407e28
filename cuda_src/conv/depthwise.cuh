// SPDX-License-Identifier: MIT
// Convolutions with groups of one channel, of arrays (n, channel, position), without a matrix
// product. A strip is STRIP neighbouring positions of a line (along the last axis) of the array
// that is written, a thread's work. A group has `filters` filters; W is (filter of all groups,
// tap).
//
// Fields of DepthwiseLayout, some of each of three axes: image, output, extents of X and Y; kernel,
// stride, dilation, pad. batch: images; groups: channels of X. strips of a line, lines of a slice
// (along the first axis), strips of_plane (of an image), as Divisors: of the array that is written,
// or, in the gradient of W, of Y.
#pragma once
#include "algorithm/reduce.cuh"
#include "conv/weight.cuh"
#include "core/fast_division.cuh"

namespace cto::conv::depthwise {

using namespace image;
using namespace lines;
using namespace tile;
using namespace weight;

using fast_division::Divisor;
using fast_division::quotient;

// The position u that position p reads by a tap along an axis, negative if there is none:
//
//     convolution   u = p * stride - pad + tap * dilation, in the image
//     GRADIENT      u * stride - pad + tap * dilation = p, in the output
template <bool GRADIENT>
__device__ __forceinline__ i32 read_by(const DepthwiseLayout& layout, int axis, i32 p, i32 tap) {
    const i32 stride = layout.stride[axis], shift = tap * layout.dilation[axis] - layout.pad[axis];
    if (!GRADIENT) {
        const i32 u = p * stride + shift;
        return u < layout.image[axis] ? u : -1;
    }
    const i32 of_output = p - shift;
    // Strides of 1 and 2 need no division.
    const i32 u = stride <= 2 ? of_output >> (stride - 1) : of_output / stride;
    return of_output >= 0 && u * stride == of_output && u < layout.output[axis] ? u : -1;
}

// to[i] = line[first + i], i < N, zeros where first + i is not in [0, extent), the line; elements
// of two bytes by pairs where these are aligned and end with the line.
template <int N, class E>
__device__ __forceinline__ void load_neighbours(const E* line, i32 first, i32 extent,
                                                Acc<E> (&to)[N]) {
    if constexpr (sizeof(E) == 2 && N % 2 == 0) {
        if (reinterpret_cast<u64>(line) % 4 == 0 && (first | extent) % 2 == 0) {
#pragma unroll
            for (int i = 0; i < N; i += 2) {
                Acc<E> pair[2] = {};
                if (static_cast<u32>(first + i) < static_cast<u32>(extent))
                    vec::widen<E>(line + first + i, pair);
                to[i] = pair[0];
                to[i + 1] = pair[1];
            }
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < N; ++i)
        to[i] = static_cast<u32>(first + i) < static_cast<u32>(extent) ? to_acc(line[first + i])
                                                                       : Acc<E>(0);
}

// True if neighbouring taps, and neighbouring positions, read neighbours of a line.
__device__ __forceinline__ bool is_dense(const DepthwiseLayout& layout) {
    return layout.stride[2] == 1 && layout.dilation[2] == 1;
}

// to[i][j] = what position p + i of the last axis reads of `line` by tap + j, i < STRIP, j < N;
// zeros outside of the line. With stride and dilation 1, always so for WIDE_TAPS, these are STRIP +
// N - 1 neighbours. GRADIENT: p is a position of X, and `line` of dY.
template <bool GRADIENT, int N, class E>
__device__ __forceinline__ void read_line(const E* line, const DepthwiseLayout& layout, i32 p,
                                          i32 tap, Acc<E> (&to)[STRIP][N]) {
    if (N == WIDE_TAPS || is_dense(layout)) {
        const i32 pad = layout.pad[2], first = GRADIENT ? p + pad - tap - (N - 1) : p - pad + tap;
        Acc<E> window[STRIP + N - 1];
        load_neighbours(line, first, (GRADIENT ? layout.output : layout.image)[2], window);
#pragma unroll
        for (int i = 0; i < STRIP; ++i)
#pragma unroll
            for (int j = 0; j < N; ++j) to[i][j] = window[GRADIENT ? i + N - 1 - j : i + j];
    } else {
#pragma unroll
        for (int i = 0; i < STRIP; ++i)
#pragma unroll
            for (int j = 0; j < N; ++j) {
                const i32 u = read_by<GRADIENT>(layout, 2, p + i, tap + j);
                to[i][j] = u >= 0 ? to_acc(line[u]) : Acc<E>(0);
            }
    }
}

// A strip: STRIP neighbouring positions along the last axis.
struct Strip {
    i32 at[3];  // its first position, along the three axes
};

// Strip number `index` of an image or output: slice, then line of the slice, then strip of the
// line.
__device__ __forceinline__ Strip strip_at(const DepthwiseLayout& layout, u32 index) {
    const u32 line = quotient(index, layout.strips), slice = quotient(line, layout.lines);
    return {static_cast<i32>(slice),
            static_cast<i32>(line - slice * static_cast<u32>(layout.lines.value)),
            static_cast<i32>(index - line * static_cast<u32>(layout.strips.value)) * STRIP};
}

// sums[i] += sum over tap < taps of w[tap] * (what position p + i reads of `line` by the tap), i <
// STRIP; N taps at a time. GRADIENT: p is a position of X, and `line` of dY.
template <bool GRADIENT, int N, class E>
__device__ __forceinline__ void add_line(const E* line, const E* w, const DepthwiseLayout& layout,
                                         i32 p, i32 taps, Acc<E> (&sums)[STRIP]) {
#pragma unroll 1
    for (i32 tap = 0; tap < taps; tap += N) {
        Acc<E> of_line[STRIP][N];
        read_line<GRADIENT>(line, layout, p, tap, of_line);
#pragma unroll
        for (int j = 0; j < N; ++j) {
            if (tap + j >= taps) break;
            const Acc<E> weight = to_acc(w[tap + j]);
#pragma unroll
            for (int i = 0; i < STRIP; ++i) sums[i] += weight * of_line[i][j];
        }
    }
}

// sums[i] += sum over all taps of w[tap] * read[what position i of the strip reads by the tap], i <
// STRIP. `read`: one channel of one image (of dY, if GRADIENT); w: the channel's taps.
template <bool GRADIENT, class E>
__device__ __forceinline__ void add_channel(const E* read, const E* w,
                                            const DepthwiseLayout& layout, const Strip& strip,
                                            Acc<E> (&sums)[STRIP]) {
    const i32 height = (GRADIENT ? layout.output : layout.image)[1];
    const i32 width = (GRADIENT ? layout.output : layout.image)[2], taps = layout.kernel[2];
    const bool is_wide = sizeof(E) <= 4 && taps > TAPS && is_dense(layout);
    for (i32 k0 = 0; k0 < layout.kernel[0]; ++k0) {
        const i32 u0 = read_by<GRADIENT>(layout, 0, strip.at[0], k0);
#pragma unroll 1
        for (i32 k1 = 0; k1 < layout.kernel[1]; ++k1, w += taps) {
            const i32 u1 = read_by<GRADIENT>(layout, 1, strip.at[1], k1);
            if ((u0 | u1) < 0) continue;
            const E* const line = read + (u0 * height + u1) * width;
            if (is_wide)
                add_line<GRADIENT, WIDE_TAPS>(line, w, layout, strip.at[2], taps, sums);
            else
                add_line<GRADIENT, TAPS>(line, w, layout, strip.at[2], taps, sums);
        }
    }
}

// Each thread writes a strip: written = bias + sum over taps of w * read, or if GRADIENT its
// gradient for X, which also sums over the filters of the channel's group. Threads are numbered
// (image, channel, strip).
template <bool GRADIENT, class E>
__device__ __forceinline__ void write_depthwise(const E* read, const E* w, const E* bias,
                                                E* written, const DepthwiseLayout& layout) {
    const i64 image = volume(layout.image), output = volume(layout.output);
    const i64 taps = volume(layout.kernel);
    const u32 channels = GRADIENT ? layout.groups : layout.groups * layout.filters;
    const auto cell = fast_division::cell_at(static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x,
                                             layout.of_plane);
    const u32 n = divide(cell.row, channels);
    if (n >= layout.batch) return;
    const u32 channel = cell.row - static_cast<i64>(n) * channels;
    const Strip strip = strip_at(layout, cell.column);
    Acc<E> sums[STRIP];
#pragma unroll
    for (int i = 0; i < STRIP; ++i) sums[i] = bias ? to_acc(bias[channel]) : Acc<E>(0);
    // In the gradient, channel c of X reads the channels c * filters + m of Y; else channel c of Y
    // reads channel c / filters of X.
    const E* from = read + (GRADIENT ? cell.row * layout.filters * output
                                     : divide(cell.row, layout.filters) * image);
    w += (GRADIENT ? channel * layout.filters : channel) * taps;
    for (i32 m = GRADIENT ? layout.filters : 1; m > 0; --m, from += output, w += taps)
        add_channel<GRADIENT>(from, w, layout, strip, sums);
    const i32 height = (GRADIENT ? layout.image : layout.output)[1];
    const i32 width = (GRADIENT ? layout.image : layout.output)[2];
    E* const to = written + cell.row * (GRADIENT ? image : output) +
                  (strip.at[0] * height + strip.at[1]) * width + strip.at[2];
#pragma unroll
    for (int i = 0; i < STRIP; ++i)
        if (strip.at[2] + i < width) to[i] = from_acc<E>(sums[i]);
}

// ---- the gradient of the weights ----------------------------------------------------------------

// A block's filter (`channel` of Y), part (of the images, or of strips), and first tap (k0, k1,
// k2).
struct TapTile {
    u32 channel, part;
    i32 k0, k1, k2;
};

// of_taps[i][j] += y[p] * x[what p reads by tap (k0, k1 + i, k2 + j)], i, j < N, unless x is null,
// and y_sum += y[p], over the positions p of the thread's strips, every THREADS-th of the strips of
// images tile.part, tile.part + parts, ... of filter tile.channel.
template <int N, class E>
__device__ __forceinline__ void add_strips(const E* x, const E* y, i32 parts, const TapTile& tile,
                                           const DepthwiseLayout& layout,
                                           Acc<E> (&of_taps)[N][N][1], Acc<E>& y_sum) {
    const i64 image = volume(layout.image), output = volume(layout.output);
    const i64 channels = layout.groups * layout.filters;
    const i32 width = layout.output[2];
    const u32 images = (layout.batch - tile.part + parts - 1) / parts;
    const i64 strips = images * layout.of_plane.value;
#pragma unroll 1
    for (i64 at = threadIdx.x; at < strips; at += THREADS) {
        const auto cell = fast_division::cell_at(at, layout.of_plane);
        const i64 n = tile.part + cell.row * parts;
        const Strip strip = strip_at(layout, cell.column);
        const E* const of_x = x + (n * layout.groups + tile.channel / layout.filters) * image;
        const E* const of_y = y + (n * channels + tile.channel) * output +
                              (strip.at[0] * layout.output[1] + strip.at[1]) * width + strip.at[2];
        Acc<E> slopes[STRIP];
        load_neighbours(of_y - strip.at[2], strip.at[2], width, slopes);
        y_sum += (slopes[0] + slopes[1]) + (slopes[2] + slopes[3]);
        if (!x) continue;
        const i32 u0 = read_by</*GRADIENT=*/false>(layout, 0, strip.at[0], tile.k0);
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const i32 u1 = read_by</*GRADIENT=*/false>(layout, 1, strip.at[1], tile.k1 + i);
            if ((u0 | u1) < 0) continue;
            Acc<E> of_line[STRIP][N];
            read_line</*GRADIENT=*/false, N>(of_x + (u0 * layout.image[1] + u1) * layout.image[2],
                                             layout, strip.at[2], tile.k2, of_line);
#pragma unroll
            for (int p = 0; p < STRIP; ++p)
                if (strip.at[2] + p < width) {
#pragma unroll
                    for (int j = 0; j < N; ++j) of_taps[i][j][0] += slopes[p] * of_line[p][j];
                }
        }
    }
}

// Writes sums[part][filter][tap] of the N x N taps of `tile`, and y_sums[part][filter]: of_taps and
// of_y of all threads of the block; either array may be null. A warp adds the threads' sums of some
// of the taps.
template <int N, class A, int V>
__device__ __forceinline__ void write_block_sums(const A (&of_taps)[N][N][V], A of_y,
                                                 const TapTile& tile, A* sums, A* y_sums,
                                                 const DepthwiseLayout& layout) {
    static_assert(V == 1);
    __shared__ A of_threads[N * N + 1][THREADS];
#pragma unroll
    for (int i = 0; i < N * N; ++i) of_threads[i][threadIdx.x] = of_taps[i / N][i % N][0];
    of_threads[N * N][threadIdx.x] = of_y;
    __syncthreads();
    const i64 filter = static_cast<i64>(tile.part) * layout.groups * layout.filters + tile.channel;
    const i32 lane = threadIdx.x % WARP;
    for (int i = threadIdx.x / WARP; i <= N * N; i += THREADS / WARP) {
        A sum = 0;
#pragma unroll
        for (int j = 0; j < THREADS / WARP; ++j) sum += of_threads[i][j * WARP + lane];
        sum = reduce::sum_lanes(sum, WARP);
        const i32 at1 = tile.k1 + i / N, at2 = tile.k2 + i % N;
        if (lane != 0) continue;
        if (i == N * N) {
            if (y_sums) y_sums[filter] = sum;
        } else if (sums && at1 < layout.kernel[1] && at2 < layout.kernel[2]) {
            sums[filter * volume(layout.kernel) +
                 (tile.k0 * layout.kernel[1] + at1) * layout.kernel[2] + at2] = sum;
        }
    }
}

// sums[part][filter][tap] = sum of y * x, unless x is null; y_sums[part][filter] = sum of y, unless
// it is null. A block has N x N taps of one filter, and every parts-th image (blocks are numbered
// part, tile of taps, filter).
template <int N, class E>
__device__ __forceinline__ void sum_depthwise_weights(const E* x, const E* y, Acc<E>* sums,
                                                      Acc<E>* y_sums, i32 parts,
                                                      const DepthwiseLayout& layout) {
    static_assert(STRIP == 4);
    const u32 tiles1 = (layout.kernel[1] + N - 1) / N, tiles2 = (layout.kernel[2] + N - 1) / N;
    const u32 channels = layout.groups * layout.filters;
    const u32 tiles = layout.kernel[0] * tiles1 * tiles2, rest = blockIdx.x / channels;
    const u32 channel = blockIdx.x - rest * channels, part = rest / tiles;
    const i32 index = rest - part * tiles;
    // channel, part, k0, k1, k2
    const TapTile tile{channel, part, static_cast<i32>(index / (tiles1 * tiles2)),
                       static_cast<i32>(index / tiles2 % tiles1 * N),
                       static_cast<i32>(index % tiles2 * N)};
    if (!x && index > 0) return;
    Acc<E> of_taps[N][N][1] = {}, of_y = 0;
    add_strips(x, y, parts, tile, layout, of_taps, of_y);
    write_block_sums<N>(of_taps, of_y, tile, x ? sums : nullptr, index == 0 ? y_sums : nullptr,
                        layout);
}

// ---- the gradient of the bias -------------------------------------------------------------------

constexpr int LONG_PLANE = 512;  // planes of so many elements are read by vectors, a warp each

// sums[part][channel] = sum of y (n, channel, position) over every parts-th of `batch` images, from
// `part` on; a block for each. plane: positions of an image. Planes below LONG_PLANE are read as
// one sequence of the part's elements.
template <class E>
__device__ __forceinline__ void sum_channels(const E* y, Acc<E>* sums, i64 batch, i32 channels,
                                             i32 parts, const Divisor& plane) {
    __shared__ reduce::BlockScratch<Acc<E>, THREADS> scratch;
    const u32 part = blockIdx.x / static_cast<u32>(channels);
    const u32 channel = blockIdx.x - part * channels, lane = threadIdx.x % WARP;
    const i64 images = (batch - part + parts - 1) / parts;
    const i64 pitch = parts * channels * plane.value;
    const E* const first = y + (static_cast<i64>(part) * channels + channel) * plane.value;
    reduce::Sum<E> sum;
    if (plane.value >= LONG_PLANE) {
        for (i64 n = threadIdx.x / WARP; n < images; n += THREADS / WARP) {
            const reduce::Range<E> range(first + n * pitch, plane.value);
            reduce::visit_vecs<4>(range, 0, range.n_vecs, lane, WARP, sum);
            reduce::visit_edges(range, lane, WARP, sum);
        }
    } else {
#pragma unroll 8
        for (i64 i = threadIdx.x; i < images * plane.value; i += THREADS) {
            const auto cell = fast_division::cell_at(i, plane);
            sum(vec::Vec<E, 1>{first[cell.row * pitch + cell.column]});
        }
    }
    const Acc<E> total = reduce::sum_block(sum.sum, scratch);
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

}  // namespace cto::conv::depthwise
