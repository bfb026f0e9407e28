// SPDX-License-Identifier: MIT
// Convolutions and their gradients.  CPU provider: cupy_training_ops/families/conv/reference.py
//
// Matrix products, tile by tile, with implicit im2col. A position is a place of an image or output,
// a tap one of the kernel, a filter a channel of Y. Families of kernels:
//
//     image, weight    tiles gathered from arrays in their own layout: a convolution or its data
//                      gradient; the gradient of the weights
//     ..._lines        1 x 1 convolutions: tiles are copied by vectors, nothing is gathered
//     staged           tiles copied by vectors from arrays that conv__stage has brought to (n,
//                      position, channel)
//     depthwise        groups of one channel: no matrix product
//     direct           gradients of an X with few channels, arrays (n, position, channel)
//
// layout has the extents of arrays and kernel, strides, pads, and how blocks and threads divide the
// work (facts.cuh). In a compilation without a kernel (HAS_... below) that kernel is empty.
#include "algorithm/transpose.cuh"
#include "conv/depthwise_walks.cuh"
#include "conv/direct_image.cuh"
#include "conv/direct_weight.cuh"
#include "conv/image.cuh"
#include "conv/layouts.cuh"
#include "conv/packing.cuh"
#include "conv/pointwise.cuh"
#include "conv/staged_total.cuh"
#include "conv/weight.cuh"

// The type of the arrays.
#ifndef CTO_T
#define CTO_T float
#endif
// Rows of a tile.
#ifndef CTO_ROWS
#define CTO_ROWS 64
#endif
// Products of TF32 that one of floats becomes on tensor cores: 1, of rounded floats; 3, of their
// high and low parts (staged arrays alone); 0: floats are multiplied exactly.
#ifndef CTO_TF32
#define CTO_TF32 0
#endif
// 1: only kernels over staged arrays are compiled; 0: only the others.
#ifndef CTO_STAGED
#define CTO_STAGED 0
#endif
// 1: warpgroup instructions multiply staged arrays, floats in TF32; for compute capability 9.0 only.
#ifndef CTO_WARPGROUPS
#define CTO_WARPGROUPS 0
#endif
// The type of an offset in one image.
#ifndef CTO_OFFSET
#define CTO_OFFSET u32
#endif

namespace cto {

using namespace conv::depthwise_walks;
using namespace conv::image;
using namespace conv::lines;
using namespace conv::packing;
using namespace conv::pointwise;
using namespace conv::tile;
using namespace conv::weight;

using T = CTO_T;
using A = Acc<T>;
using OFFSET = CTO_OFFSET;
constexpr bool ROUNDS = CTO_TF32 == 1;
// ..._BLOCKS: blocks on a multiprocessor, for __launch_bounds__. With few rows a block computes
// little while it waits for loads, so one more helps; for 10.0 registers would spill.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 1000
constexpr int MOST_BLOCKS = 1;
#else
constexpr int MOST_BLOCKS = BLOCKS;
#endif
constexpr int IMAGE_BLOCKS = MOST_BLOCKS + (CTO_ROWS == 32 && sizeof(T) == 2);
// Blocks of 1 x 1 convolutions are short; a third one begins while others end. For 7.0, and of
// floats for 12.0, it would spill registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
constexpr bool ARE_SHORT = CTO_ROWS <= 64 && (sizeof(T) == 2 || __CUDA_ARCH__ < 1200);
constexpr int LINES_BLOCKS = ARE_SHORT ? BLOCKS + 1 : BLOCKS;
#else
constexpr int LINES_BLOCKS = BLOCKS;
#endif
template <bool LINES>
using ImageTile =
    Tile<T, CTO_ROWS, ROUNDS, /*B_BY_COLUMNS=*/!LINES, /*A_BY_ROWS=*/false, /*COPIED=*/LINES>;
// Y_LINES, X_LINES: lines of Y, of X are copied by vectors instead of gathered.
template <bool Y_LINES, bool X_LINES>
using WeightTileOf =
    Tile<T, CTO_ROWS, ROUNDS, /*B_BY_COLUMNS=*/X_LINES, /*A_BY_ROWS=*/Y_LINES, /*COPIED=*/X_LINES>;
// For conv__image_few and conv__weight_few.
using FewTile = Tile<T, FEW_ROWS, ROUNDS, /*B_BY_COLUMNS=*/false>;

// GPUs with cp.async, for which staged kernels are compiled.
#if defined(__CUDA_CPU__) || __CUDA_ARCH__ >= 800
constexpr bool COPIES_AHEAD = true;
#else
constexpr bool COPIES_AHEAD = false;
#endif
constexpr bool CAN_STAGE = COPIES_AHEAD && CTO_STAGED && sizeof(T) <= 4 && CTO_ROWS >= PANEL;
// As many threads as a multiprocessor has: copies wait for memory most of the time.
#if defined(__CUDA_ARCH__) && \
    (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000)
constexpr int STAGING_BLOCKS = 2048 / THREADS;
#else
constexpr int STAGING_BLOCKS = 1024 / THREADS;
#endif
constexpr int TOTAL_BLOCKS = 4;
// With 128 registers depthwise lines and sums spill on 12.0, and sums of WIDE_TAPS on 10.0.
#if defined(__CUDA_ARCH__) && \
    (__CUDA_ARCH__ >= 1200 || (__CUDA_ARCH__ == 1000 && CTO_TAPS_AT_ONCE > 3))
constexpr int WALK_BLOCKS = 1;
#else
constexpr int WALK_BLOCKS = BLOCKS;
#endif
// Which kernels a compilation has; others are empty. Each compilation is small, so that a first
// call does not wait for kernels that it does not launch. (T of 2 bytes: "half"; of 4 bytes:
// "float".)
//
//     HAS_TILES             conv__pack, _image, _weight of CTO_ROWS rows; half, TF32: not WIDE_ROWS
//     HAS_LINES             conv__image_lines, _weight_lines of CTO_ROWS rows; half, TF32 alone
//     HAS_FEW               tiles of FEW_ROWS rows, of floats without TF32
//     HAS_WIDE_TAPS         depthwise kernels for WIDE_TAPS x WIDE_TAPS taps, and conv__total
//     WITHOUT_TILES         depthwise kernels and conv__transpose: in one compilation of each type
//     HAS_DEPTHWISE_LINES   depthwise kernels for channels side by side, and SUMS_... their weights
//     SUMS_BIAS             sums of Y; staged tiles of halves sum Y themselves
//     GOES_DIRECT           conv__direct_...
constexpr bool HAS_WIDE_TAPS = TAPS_AT_ONCE > TAPS;
constexpr bool GATHERS = !CTO_STAGED && !HAS_WIDE_TAPS;
constexpr bool IS_WIDE = sizeof(OFFSET) == 8;
#if defined(__CUDA_CPU__) || (__CUDA_ARCH__ >= 800 && __CUDA_ARCH__ < 1200)
constexpr bool HAS_ROWS = true;
#elif __CUDA_ARCH__ < 800
constexpr bool HAS_ROWS = sizeof(T) > 2 || CTO_ROWS == 64;
#else
constexpr bool HAS_ROWS = sizeof(T) > 2 ? CTO_ROWS < WIDE_ROWS : CTO_ROWS == 64;
#endif
constexpr bool CAN_HAVE_LINES = sizeof(T) == 2 || ROUNDS;
constexpr bool HAS_TILES = GATHERS && HAS_ROWS && (CTO_ROWS < WIDE_ROWS || !CAN_HAVE_LINES);
constexpr bool HAS_NARROW = GATHERS && sizeof(T) == 4 && CTO_ROWS == 2 * FEW_ROWS && !IS_WIDE;
constexpr bool HAS_LINES = GATHERS && HAS_ROWS && CAN_HAVE_LINES;
constexpr bool HAS_FEW = HAS_NARROW && !ROUNDS;
constexpr bool WITHOUT_TILES = GATHERS && (sizeof(T) == 2 ? CTO_ROWS == WIDE_ROWS : IS_WIDE);
constexpr bool HAS_HALF_LINES = CTO_STAGED && sizeof(T) == 2 && CTO_ROWS == FEW_ROWS;
constexpr bool HAS_DEPTHWISE_LINES = HAS_HALF_LINES || HAS_FEW;
constexpr bool SUMS_DEPTHWISE_LINES = HAS_HALF_LINES || (sizeof(T) == 4 && WITHOUT_TILES);
constexpr bool HAS_PLANES = WITHOUT_TILES || HAS_WIDE_TAPS;
constexpr bool WALKS = HAS_DEPTHWISE_LINES || HAS_WIDE_TAPS;
constexpr bool SUMS_WALKS = SUMS_DEPTHWISE_LINES || HAS_WIDE_TAPS;
constexpr bool SUMS_BIAS = CTO_STAGED ? sizeof(T) > 2 : WITHOUT_TILES;
constexpr bool GOES_DIRECT = COPIES_AHEAD && (HAS_HALF_LINES || (HAS_NARROW && ROUNDS));
using DirectTile = conv::direct::DirectTile<T, ROUNDS>;
constexpr int TRANSPOSING_BLOCKS = 4;
constexpr int STAGED_ROWS = CTO_ROWS >= 2 * PANEL ? 2 * PANEL : PANEL;
using StagedTile =
    conv::staged_tile::StagedTile<T, STAGED_ROWS, CTO_TF32, CAN_STAGE, CTO_WARPGROUPS>;

}  // namespace cto

using namespace cto;

// packed[tile][part][tap][d][r] = W of row `r` of the tile (a filter; in the gradient, a channel)
// and of depth part * DEPTH + d (a channel; in the gradient, a filter), zeros beyond: W in the
// order in which tiles of conv__image read it. A block for each [tile][part][tap].
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv__pack(const T* w, T* packed, const __grid_constant__ ImageLayout layout) {
    if constexpr (HAS_TILES || HAS_LINES) {
        pack<ImageTile</*LINES=*/false>>(w, packed, layout);
    }
}

// written = bias + convolution of `read` with W, or with layout.is_gradient its gradient for X,
// where `read` is dY; bias may be null. Arrays are (n, channel, position). A block has a tile of
// ROWS channels and COLUMNS positions (of a residue of a gradient's strides). packed: W from
// conv__pack.
extern "C" __global__ void __launch_bounds__(THREADS, IMAGE_BLOCKS)
    conv__image(const T* read, const T* packed, const T* bias, T* written,
                const __grid_constant__ ImageLayout layout) {
    if constexpr (HAS_TILES) {
        write_convolution<ImageTile</*LINES=*/false>, OFFSET>(read, packed, bias, written, layout);
    }
}

// conv__image for 1 x 1 taps and stride 1, if lines (the positions of one channel) start at
// multiples of 8 bytes: they are read and written by vectors; packed: W from conv__pack. `stages`
// (2 or 4) parts of the sum over channels are in dynamic shared memory.
extern "C" __global__ void __launch_bounds__(THREADS, LINES_BLOCKS)
    conv__image_lines(const T* read, const T* packed, const T* bias, T* written, i32 stages,
                      const __grid_constant__ ImageLayout layout) {
    extern __shared__ __align__(16) u8 shared[];
    if constexpr (HAS_LINES)
        write_convolution_of_lines<ImageTile</*LINES=*/true>>(read, packed, bias, written, layout,
                                                              stages, reinterpret_cast<T*>(shared));
}

// sums[part][tile][row][column] = sum of x * y over one part of the positions, for the gradient of
// W: rows are filters, columns channels and taps (weight.cuh). A block for each [part][tile].
// y_sums[part][filter] = sums of y = dY, for the gradient of a bias; may be null.
// conv__weight_total adds the parts.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv__weight(const T* x, const T* y, A* sums, A* y_sums,
                 const __grid_constant__ WeightLayout layout) {
    if constexpr (HAS_TILES) {
        sum_weights<WeightTileOf</*Y_LINES=*/false, /*X_LINES=*/false>, OFFSET>(x, y, sums, y_sums,
                                                                                layout);
    }
}

// sums[part][tile][row][column] = sum of x * y over a part of the positions, y_sums[part][filter] =
// sum of y or null, if lines of y (the positions of one filter) are aligned: they are copied by
// vectors.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv__weight_y_lines(const T* x, const T* y, A* sums, A* y_sums,
                         const __grid_constant__ WeightLayout layout) {
    if constexpr (HAS_TILES && sizeof(T) == 2)
        sum_weights<WeightTileOf</*Y_LINES=*/true, /*X_LINES=*/false>, OFFSET>(x, y, sums, y_sums,
                                                                               layout);
}

// sums[part][tile][row][column] = sum of x * y over a part of the positions, y_sums[part][filter] =
// sum of y or null, for 1 x 1 taps and stride 1, if lines of x and y are aligned: both are copied
// by vectors. `stages` (2 or 4) stages of DEPTH positions are in dynamic shared memory.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv__weight_lines(const T* x, const T* y, A* sums, A* y_sums, i32 stages,
                       const __grid_constant__ WeightLayout layout) {
    extern __shared__ __align__(16) u8 shared[];
    if constexpr (HAS_LINES)
        sum_weights_of_lines<WeightTileOf</*Y_LINES=*/true, /*X_LINES=*/true>>(
            x, y, sums, y_sums, layout, stages, reinterpret_cast<T*>(shared));
}

// w = sum over `count` parts of `parts`, the sums of conv__weight; bias = sum of y_parts, by the
// blocks after those of w, if there are any. `summers` threads share a sum.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv__weight_total(const A* parts, T* w, const A* y_parts, T* bias, i32 count, i32 summers,
                       const __grid_constant__ WeightLayout layout) {
    if constexpr (HAS_TILES || HAS_LINES) {
        write_weights_and_bias<WeightTileOf</*Y_LINES=*/false, /*X_LINES=*/false>>(
            parts, w, y_parts, bias, count, summers, layout);
    }
}

// packed[tile][part][tap][d][r] = W of row `r` of the tile and of depth part * DEPTH + d, zeros
// beyond, for tiles of FEW_ROWS rows. A block for each [tile][part][tap].
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv__pack_few(const T* w, T* packed, const __grid_constant__ ImageLayout layout) {
    if constexpr (HAS_FEW) {
        pack<FewTile>(w, packed, layout);
    }
}

// written = bias + convolution of `read`, or with layout.is_gradient its gradient for X, by tiles
// of FEW_ROWS rows; packed: W from conv__pack_few.
extern "C" __global__ void __launch_bounds__(THREADS, MOST_BLOCKS)
    conv__image_few(const T* read, const T* packed, const T* bias, T* written,
                    const __grid_constant__ ImageLayout layout) {
    if constexpr (HAS_FEW) {
        write_convolution<FewTile, OFFSET>(read, packed, bias, written, layout);
    }
}

// sums[part][tile][row][column] = sum of x * y over a part of the positions, y_sums[part][filter] =
// sum of y or null, by tiles of FEW_ROWS rows.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv__weight_few(const T* x, const T* y, A* sums, A* y_sums,
                     const __grid_constant__ WeightLayout layout) {
    if constexpr (HAS_FEW) {
        sum_weights<FewTile, OFFSET>(x, y, sums, y_sums, layout);
    }
}

// w = sum over `count` parts of `parts`, the sums of conv__weight_few; bias = sum of y_parts, its
// y_sums, by the blocks after those of w. `summers` threads share a sum.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv__weight_total_few(const A* parts, T* w, const A* y_parts, T* bias, i32 count, i32 summers,
                           const __grid_constant__ WeightLayout layout) {
    if constexpr (HAS_FEW) {
        write_weights_and_bias<FewTile>(parts, w, y_parts, bias, count, summers, layout);
    }
}

// written = bias + depthwise convolution of `read` with w (filter, tap), or with is_gradient its
// gradient for X, where `read` is dY; bias may be null. Groups have one channel, arrays are (n,
// channel, position). A thread writes STRIP neighbouring positions.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv__depthwise(const T* read, const T* w, const T* bias, T* written, bool is_gradient,
                    const __grid_constant__ DepthwiseLayout layout) {
    if constexpr (WITHOUT_TILES) {
        if (is_gradient)
            write_depthwise</*GRADIENT=*/true>(read, w, bias, written, layout);
        else
            write_depthwise</*GRADIENT=*/false>(read, w, bias, written, layout);
    }
}

// sums[part][filter][tap] = sum of y[position] * x[where the tap reads], over every parts-th image,
// for the gradient of a depthwise W; y_sums[part][filter] = sum of y. Either may be null. Arrays
// are (n, channel, position). A block has TAPS_AT_ONCE x TAPS_AT_ONCE taps of a filter and one part.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv__depthwise_weight(const T* x, const T* y, A* sums, A* y_sums, i32 parts,
                           const __grid_constant__ DepthwiseLayout layout) {
    if constexpr (HAS_PLANES) {
        sum_depthwise_weights<TAPS_AT_ONCE>(x, y, sums, y_sums, parts, layout);
    }
}

// written = what conv__depthwise writes, for TAPS_AT_ONCE x TAPS_AT_ONCE taps, stride and dilation
// 1. A thread walks down `rows` rows, STRIP columns wide, and reads each row once for all taps.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv__depthwise_planes(const T* read, const T* w, const T* bias, T* written, i32 rows,
                           bool is_gradient, const __grid_constant__ DepthwiseLayout layout) {
    if constexpr (HAS_PLANES) {
        walk_planes<TAPS_AT_ONCE>(read, w, bias, written, rows, is_gradient, layout);
    }
}

// sums, y_sums = what conv__depthwise_weight writes, for TAPS_AT_ONCE x TAPS_AT_ONCE taps, stride
// and dilation 1: a thread walks down `rows` rows; a part is of_part such walks of a filter.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv__depthwise_planes_weight(const T* x, const T* y, A* sums, A* y_sums, i64 of_part, i32 rows,
                                  const __grid_constant__ DepthwiseLayout layout) {
    if constexpr (HAS_PLANES) {
        sum_planes_of_walks<TAPS_AT_ONCE>(x, y, sums, y_sums, of_part, rows, layout);
    }
}

// written = bias + depthwise convolution of `read` with w (channel, tap), or with is_gradient its
// gradient for X, where `read` is dY; bias may be null. Arrays are (n, position, channel). A block
// has LINE_VECTORS vectors of channels and `of_block` strips (STRIP neighbouring positions), a
// thread one of the vectors and some of the strips.
extern "C" __global__ void __launch_bounds__(THREADS, WALK_BLOCKS)
    conv__depthwise_lines(const T* read, const T* w, const T* bias, T* written, i64 of_block,
                          bool is_gradient, const __grid_constant__ DepthwiseLayout layout) {
    if constexpr (HAS_DEPTHWISE_LINES) {
        write_lines(read, w, bias, written, of_block, is_gradient, layout);
    }
}

// sums[part][channel][tap] = sum of y[position] * x[where the tap reads] over `of_part`
// neighbouring strips of Y, for the gradient of a depthwise W; y_sums[part][channel] = sum of y.
// Either may be null. Arrays are (n, position, channel).
extern "C" __global__ void __launch_bounds__(THREADS, WALK_BLOCKS)
    conv__depthwise_lines_weight(const T* x, const T* y, A* sums, A* y_sums, i64 of_part,
                                 const __grid_constant__ DepthwiseLayout layout) {
    if constexpr (SUMS_DEPTHWISE_LINES) {
        sum_lines_of_weights(x, y, sums, y_sums, of_part, layout);
    }
}

// written = what conv__depthwise_lines writes, for TAPS_AT_ONCE x TAPS_AT_ONCE taps, stride and
// dilation 1. A block has `of_block` walks, down `rows` rows, of which a thread reads each once.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv__depthwise_walks(const T* read, const T* w, const T* bias, T* written, i64 of_block,
                          i32 rows, bool is_gradient,
                          const __grid_constant__ DepthwiseLayout layout) {
    if constexpr (WALKS) {
        walk_lines<TAPS_AT_ONCE>(read, w, bias, written, of_block, rows, is_gradient, layout);
    }
}

// sums, y_sums = what conv__depthwise_lines_weight writes, for TAPS_AT_ONCE x TAPS_AT_ONCE taps,
// stride and dilation 1: a thread walks down `rows` rows; a part is of_part such walks.
extern "C" __global__ void __launch_bounds__(THREADS, WALK_BLOCKS)
    conv__depthwise_walks_weight(const T* x, const T* y, A* sums, A* y_sums, i64 of_part, i32 rows,
                                 const __grid_constant__ DepthwiseLayout layout) {
    if constexpr (SUMS_WALKS) {
        sum_lines_of_walks<TAPS_AT_ONCE>(x, y, sums, y_sums, of_part, rows, layout);
    }
}

// to[n][j][i] = from[n][i][j], i < height, j < width: channels first to last, or back.
extern "C" __global__ void __launch_bounds__(facts::TRANSPOSING_THREADS, TRANSPOSING_BLOCKS)
    conv__transpose(const T* from, T* to, i64 height, i64 width) {
    if constexpr (WITHOUT_TILES) {
        transpose::swap_last(from, to, height, width);
    }
}

// sums[part][channel] = sum of y[n][channel] over images n = part, part + parts, ...; a block for
// each. For the gradient of a bias; y is (n, channel, position), `plane` its positions.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv__channel_sums(const T* y, A* sums, i64 batch, i32 channels, i32 parts,
                       const __grid_constant__ Divisor plane) {
    if constexpr (SUMS_BIAS) sum_channels(y, sums, batch, channels, parts, plane);
}

// sums[part][channel] = sum of y[line][channel] over the part's `of_part` neighbouring lines of
// `channels` elements. For the gradient of a bias; y is (n, position, channel).
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv__line_sums(const T* y, A* sums, i64 n_lines, i32 channels, i64 of_part) {
    if constexpr (SUMS_BIAS) conv::layouts::sum_lines(y, sums, n_lines, channels, of_part);
}

// total[i] = parts[0][i] + ... + parts[count - 1][i], i < size; `summers` threads share a sum.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv__total(const A* parts, T* total, i32 count, i32 summers, i64 size) {
    if constexpr (CTO_STAGED || HAS_PLANES || GOES_DIRECT) {
        write_total<T>(parts, total, count, summers, size, blockIdx.x);
    }
}

// staged_x, staged_y, staged_w = x, y, w as (n, position, channel), channels padded with zeros to
// whole vectors of 16 bytes; rows[position] = where a position of Y reads X: the vector of its
// first tap, and a bit for each tap inside. A block has a tile of one of them; arrays of 0 blocks
// are left out. Of types of 4 bytes blocks of Y also write y_lines, (channel, position of all
// images), and y_sums[tile of positions][channel]; these and staged_y may be null.
extern "C" __global__ void __launch_bounds__(THREADS, STAGING_BLOCKS)
    conv__stage(const T* x, T* staged_x, const T* y, T* staged_y, T* y_lines, A* y_sums, const T* w,
                T* staged_w, StagedRow* rows, const __grid_constant__ StagingLayout layout) {
    if constexpr (CAN_STAGE) {
        const conv::staging::YOutputs<T> y_outputs{y_lines, y_sums, layout.positions};
        conv::staging::stage<T, ROUNDS, CAN_STAGE>(x, staged_x, y, staged_y, y_outputs, w, staged_w,
                                                   rows, layout);
    }
}

// Two kernels over staged arrays in one launch, so that blocks of one run while the last of the
// other leave multiprocessors idle:
//
//     blocks [first_of_weights, + blocks_of_weights)   sums[part][tile][row][column] of x * y, and
//                                                      y_sums[part][filter] of y, as conv__weight
//     the others                                       written = bias + convolution of `read`, or
//                                                      its gradient for X; packed: staged W
//
// rows: what positions of Y read of X (facts::StagedRow), null for 1 x 1 taps. The last three: how W
// and `written` lie, and the layouts of both. y: its lines, where warpgroups multiply floats.
extern "C" __global__ void __launch_bounds__(StagedTile::THREADS, StagedTile::BLOCKS)
    conv__staged(const T* x, const T* y, const StagedRow* rows, A* sums, A* y_sums,
                 u32 first_of_weights, u32 blocks_of_weights, const T* read, const T* packed,
                 const T* bias, T* written, const __grid_constant__ StagedImage staged_image,
                 const __grid_constant__ WeightLayout weight_layout,
                 const __grid_constant__ ImageLayout image_layout) {
    if constexpr (CAN_STAGE) {
        extern __shared__ __align__(1024) u8 stages[];
        const u32 block = blockIdx.x - first_of_weights;
        if (block < blocks_of_weights)
            conv::staged_weight::sum_staged_weights<StagedTile>(x, y, rows, sums, y_sums, block,
                                                                weight_layout, stages);
        else
            conv::staged_image::staged_convolution<StagedTile>(
                read, packed, bias, written, staged_image,
                blockIdx.x < first_of_weights ? blockIdx.x : blockIdx.x - blocks_of_weights,
                image_layout, stages);
    }
}

// w = sum over `count` parts of `parts`, which conv__staged wrote: blocks [0, blocks_of_weights),
// with `filters` filters a block; filters = 0: W has channels last, as its sums have.
// joined_filters: filters of each of the groups that staging joined to one (staged_total.cuh). bias
// = sum of bias_count y_parts: the blocks after these. `summers` and bias_summers threads share a
// sum.
extern "C" __global__ void __launch_bounds__(THREADS, TOTAL_BLOCKS)
    conv__staged_total(const A* parts, T* w, const A* y_parts, T* bias, i32 count, i32 summers,
                       i32 filters, i32 joined_filters, u32 blocks_of_weights, i32 bias_count,
                       i32 bias_summers, const __grid_constant__ WeightLayout layout) {
    if constexpr (CAN_STAGE) {
        if (blockIdx.x < blocks_of_weights)
            conv::staged_total::total_of_parts<StagedTile>(parts, w, count, summers, filters,
                                                           joined_filters, blockIdx.x, layout);
        else
            write_total<T>(y_parts, bias, bias_count, bias_summers,
                           static_cast<i64>(layout.groups) * layout.rows,
                           blockIdx.x - blocks_of_weights);
    }
}

// x = bias + gradient for X of a convolution of few channels, y being dY as (n, position, filter);
// bias may be null. A block has every gridDim.x-th tile of positions.
extern "C" __global__ void __launch_bounds__(DIRECT_THREADS, STAGED_BLOCKS)
    conv__direct_image(const T* y, const T* w, const T* bias, T* x,
                       const __grid_constant__ DirectLayout layout) {
    extern __shared__ __align__(16) u8 shared[];
    if constexpr (GOES_DIRECT)
        conv::direct_image::write_direct<DirectTile, GOES_DIRECT>(y, w, bias, x, layout, shared);
}

// sums[part][column tile][filter][column] = gradient of W over every parts-th tile of positions,
// for an X of few channels; y_sums[part][filter] = sums of y. Either may be null. Columns are
// channels and taps in the order of direct_weight.cuh. Block part * column_tiles + column tile does
// one.
extern "C" __global__ void __launch_bounds__(STAGED_THREADS, STAGED_BLOCKS)
    conv__direct_weight(const T* x, const T* y, A* sums, A* y_sums, u32 column_tiles,
                        const __grid_constant__ DirectLayout layout) {
    extern __shared__ __align__(16) u8 shared[];
    if constexpr (GOES_DIRECT)
        conv::direct_weight::sum_direct<DirectTile, GOES_DIRECT>(x, y, sums, y_sums, column_tiles,
                                                                 layout, shared);
}

// Blocks before blocks_of_weights: w = sum over `count` parts of `parts`, which conv__direct_weight
// wrote. The others: bias = sum of y_parts. `summers` threads share a sum; column_tiles: tiles of
// columns.
extern "C" __global__ void __launch_bounds__(THREADS, TOTAL_BLOCKS)
    conv__direct_total(const A* parts, T* w, const A* y_parts, T* bias, i32 count, i32 summers,
                       u32 column_tiles, u32 blocks_of_weights,
                       const __grid_constant__ DirectLayout layout) {
    if constexpr (GOES_DIRECT)
        conv::direct_weight::write_direct_weights<T>(parts, w, y_parts, bias, count, summers,
                                                     column_tiles, blocks_of_weights, layout);
}
