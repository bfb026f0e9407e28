// SPDX-License-Identifier: MIT
// Copies of what is contiguous: lines of positions of one channel each, in an array (n, channel,
// position) whose images are taken one behind the other.
#pragma once
#include "conv/tile.cuh"
#include "core/async_copy.cuh"

namespace cto::conv::lines {

using namespace tile;

// Fast where the dividend has 32 bits, as most have.
__device__ __forceinline__ i64 divide(i64 dividend, i32 divisor) {
    if (divisor == 1) return dividend;  // of axes that are not there, in few instructions
    if (dividend >> 32 == 0) return static_cast<u32>(dividend) / static_cast<u32>(divisor);
    return dividend / divisor;
}
__device__ __forceinline__ u32 divide(u32 dividend, i32 divisor) {
    return divisor == 1 ? dividend : dividend / static_cast<u32>(divisor);
}

// Copies LENGTH positions of each line. Images begin at multiples of 16 bytes, or of 8, so that no
// vector of them is in two.
template <class Tile, int LENGTH>
struct LineReader {
    using E = typename Tile::E;

    const E* channels;  // those of the tile, of the first image
    i64 pitch;          // of images
    i64 plane;          // positions of an image
    i32 count;          // channels of the tile that there are; zeros take the place of others

    template <int LINES>
    __device__ __forceinline__ void copy(E* to, i64 first, i64 end) const {
        if (plane % Tile::GROUP == 0)
            copy_vectors<16, LINES>(to, first, end);
        else
            copy_vectors<8, LINES>(to, first, end);
    }

  private:
    template <int NBYTES, int LINES>
    __device__ __forceinline__ void copy_vectors(E* to, i64 first, i64 end) const {
        constexpr int WIDTH = NBYTES / sizeof(E), IN_LINE = LENGTH / WIDTH;
        constexpr int VECTORS = LINES * IN_LINE;
        const int in_line = threadIdx.x % IN_LINE * WIDTH;
        const i64 position = first + in_line, image = divide(position, static_cast<i32>(plane));
        const E* const from = channels + image * pitch + (position - image * plane);
#pragma unroll
        for (int i = 0; i < (VECTORS + THREADS - 1) / THREADS; ++i) {
            const int line = (i * THREADS + threadIdx.x) / IN_LINE;
            if (VECTORS % THREADS != 0 && line >= LINES) break;
            // Elsewhere the address is the tensor's own, which is not read.
            const bool exists = position < end && line < count;
            async_copy::copy_or_zeros<NBYTES>(to + line * (LENGTH + Tile::PAD) + in_line,
                                              exists ? from + line * plane : channels, exists);
        }
    }
};

// part[k * A_PITCH + row] = packed[k * ROWS + row], k < DEPTH, row < ROWS: begins to copy the A of
// one part, groups of 16 bytes by a thread.
template <class Tile>
__device__ __forceinline__ void copy_packed(typename Tile::E* part,
                                            const typename Tile::E* packed) {
    constexpr int IN_ROW = Tile::ROWS / Tile::GROUP, GROUPS = Tile::DEPTH * IN_ROW;
#pragma unroll
    for (int i = 0; i < (GROUPS + THREADS - 1) / THREADS; ++i) {
        const int group = i * THREADS + threadIdx.x;
        if (GROUPS % THREADS != 0 && group >= GROUPS) break;
        async_copy::copy<16>(part + group / IN_ROW * Tile::A_PITCH + group % IN_ROW * Tile::GROUP,
                             packed + group * Tile::GROUP);
    }
}

// ---- parts on their way ---------------------------------------------------------------------------

// Calls add(part) for `count` parts, whose copies copy(part) begins, in their order: into so many
// stages, 2 or 4, that all but one are on their way while one is added. Two make fewest demands on
// memory; few blocks need four to have enough on its way.
template <class Tile, class Copy, class Add>
__device__ __forceinline__ void add_parts(typename Tile::E* parts, i64 count, int stages,
                                          const Copy& copy, const Add& add) {
    const int end = stages * Tile::STAGE;
    i64 to_copy = count;
    int to = 0, from = 0;
    const auto begin = [&] {
        if (to_copy-- > 0) copy(parts + to);
        async_copy::commit();  // also none, so that as many groups are on their way
        to = to + Tile::STAGE == end ? 0 : to + Tile::STAGE;
    };
    for (int i = 1; i < stages; ++i) begin();
    for (i64 rest = count; rest > 0; --rest) {
        if (stages == 2)
            async_copy::wait<0>();
        else
            async_copy::wait<2>();
        __syncthreads();
        begin();
        add(parts + from);
        from = from + Tile::STAGE == end ? 0 : from + Tile::STAGE;
    }
    async_copy::wait<0>();
}

}  // namespace cto::conv::lines
