// SPDX-License-Identifier: MIT
// Transposes (n, channel, position) to (n, position, channel) and back.
#pragma once
#include "core/types.cuh"

namespace cto::transpose {

constexpr int SIDE = facts::TRANSPOSED_SIDE, THREADS = facts::TRANSPOSING_THREADS;
constexpr int AT_ONCE = THREADS / SIDE;  // rows of a tile that the block's threads load together

// to[n][x][y] = from[n][y][x], y < height, x < width. Block (n * down + y / SIDE) * across + x /
// SIDE has a tile of SIDE x SIDE elements, which goes through shared memory, so that neighbouring
// threads have neighbouring elements in loads and in stores. A column more avoids bank conflicts.
template <class E>
__device__ __forceinline__ void swap_last(const E* from, E* to, i64 height, i64 width) {
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

}  // namespace cto::transpose
