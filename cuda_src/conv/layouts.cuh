// SPDX-License-Identifier: MIT
// Sums of arrays (n, position, channel), a line being the channels of one position.
#pragma once
#include "conv/weight.cuh"

namespace cto::conv::layouts {

using namespace image;

constexpr int AT_ONCE = THREADS / SIDE;  // lines that a block reads at a time

// sums[part][channel] = sum of y[line][channel] over lines [part * of_part, (part + 1) * of_part)
// of n_lines. Block part * tiles + tile has SIDE channels of a part; its thread SIDE i + lane adds
// channel `lane` of every AT_ONCE-th line from i on.
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
