// SPDX-License-Identifier: MIT
// Arrays whose channels lie side by side, where no tiles read them so: what lies as (n, channel,
// position) and (n, position, channel) is put into the other order, and lines of channels are summed.
#pragma once
#include "conv/weight.cuh"

namespace cto::conv::layouts {

using namespace image;

constexpr int AT_ONCE = THREADS / SIDE;

// (n, height, width) as (n, width, height), by way of shared memory.
template <class E>
__device__ __forceinline__ void transpose(const E* from, E* to, i64 height, i64 width) {
    __shared__ E tile[SIDE][SIDE + 1];
    const u32 across = static_cast<u32>((width + SIDE - 1) / SIDE);
    const u32 down = static_cast<u32>((height + SIDE - 1) / SIDE);
    const u32 rest = blockIdx.x / across, n = rest / down;
    const i64 x = static_cast<i64>(blockIdx.x - rest * across) * SIDE;
    const i64 y = static_cast<i64>(rest - n * down) * SIDE;
    const int lane = threadIdx.x % SIDE, first = threadIdx.x / SIDE;
    from += n * height * width;
    to += n * height * width;
    E loaded[SIDE / AT_ONCE];
#pragma unroll
    for (int i = 0; i < SIDE / AT_ONCE; ++i) {
        const i64 row = y + first + i * AT_ONCE;
        if (row < height && x + lane < width) loaded[i] = from[row * width + x + lane];
    }
#pragma unroll
    for (int i = 0; i < SIDE / AT_ONCE; ++i) tile[first + i * AT_ONCE][lane] = loaded[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SIDE / AT_ONCE; ++i) {
        const i64 row = x + first + i * AT_ONCE;
        if (row < width && y + lane < height)
            to[row * height + y + lane] = tile[lane][first + i * AT_ONCE];
    }
}

// Parts of the sums of channels, (part, channel), of lines of channels; a part has neighbouring lines.
template <class E>
__device__ __forceinline__ void sum_lines(const E* y, Acc<E>* sums, i64 n_lines, i32 channels,
                                          i64 of_part) {
    __shared__ Acc<E> of_threads[AT_ONCE][SIDE];
    const u32 tiles = static_cast<u32>(channels + SIDE - 1) / SIDE;
    const u32 part = blockIdx.x / tiles;
    const int lane = threadIdx.x % SIDE, first = threadIdx.x / SIDE;
    const i32 channel = static_cast<i32>(blockIdx.x - part * tiles) * SIDE + lane;
    const i64 end = min((part + 1) * of_part, n_lines);
    Acc<E> sum = 0;
    if (channel < channels) {
#pragma unroll 4
        for (i64 line = part * of_part + first; line < end; line += AT_ONCE)
            sum += to_acc(y[line * channels + channel]);
    }
    of_threads[first][lane] = sum;
    __syncthreads();
    if (first > 0 || channel >= channels) return;
    for (int i = 1; i < AT_ONCE; ++i) sum += of_threads[i][lane];
    sums[static_cast<i64>(part) * channels + channel] = sum;
}

}  // namespace cto::conv::layouts
