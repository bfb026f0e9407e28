// SPDX-License-Identifier: MIT
// Asynchronous copies of lines: the positions of one channel of an array (n, channel, position).
// Positions are numbered through all images.
#pragma once
#include "conv/tile.cuh"
#include "core/async_copy.cuh"

namespace cto::conv::lines {

using namespace tile;

// dividend / divisor, fast for a divisor of 1 (an axis that does not exist) and 32-bit dividends.
__device__ __forceinline__ i64 divide(i64 dividend, i32 divisor) {
    if (divisor == 1) return dividend;
    if (dividend >> 32 == 0) return static_cast<u32>(dividend) / static_cast<u32>(divisor);
    return dividend / divisor;
}
__device__ __forceinline__ u32 divide(u32 dividend, i32 divisor) {
    return divisor == 1 ? dividend : dividend / static_cast<u32>(divisor);
}

// A block's asynchronous copies of LENGTH positions of the lines of several channels to shared
// memory. Images begin at multiples of 16 or of 8 bytes, so no vector of this size is in two
// images.
template <class Tile, int LENGTH>
struct LineReader {
    using E = typename Tile::E;

    const E* channels;  // the tile's first channel of image 0
    i64 pitch;          // elements from an image to the next
    i64 plane;          // positions of an image
    i32 count;          // existing channels; others are copied as zeros

    // to[line * (LENGTH + PAD) + i] = position first + i of channel `line`, i < LENGTH, line <
    // LINES; zeros from position `end` and from channel `count` on. Begins the copies.
    template <int LINES>
    __device__ __forceinline__ void copy(E* to, i64 first, i64 end) const {
        if (plane % Tile::GROUP == 0)
            copy_vectors<16, LINES>(to, first, end);
        else
            copy_vectors<8, LINES>(to, first, end);
    }

  private:
    // `copy` by vectors of NBYTES: a thread has one place in a line, of every (THREADS /
    // IN_LINE)-th.
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
            // Any valid address where nothing exists: it is not read.
            const bool exists = position < end && line < count;
            async_copy::copy_or_zeros<NBYTES>(to + line * (LENGTH + Tile::PAD) + in_line,
                                              exists ? from + line * plane : channels, exists);
        }
    }
};

// part[k * A_PITCH + row] = packed[k * ROWS + row], k < DEPTH, row < ROWS: begins the copies of A
// (W from conv__pack) for one part of the sum, in vectors of 16 bytes.
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

// ---- a pipeline of copies -----------------------------------------------------------------------

// Loops over `count` parts of a sum, in order, with `stages` (2 or 4) buffers of Tile::STAGE
// elements in shared memory at `parts`: copy(buffer) begins the copies of the next part,
// add(buffer) is called when they are complete. All buffers but one are in flight while one is
// added. Two take less shared memory; with few blocks, four are needed to have enough loads in
// flight.
template <class Tile, class Copy, class Add>
__device__ __forceinline__ void add_parts(typename Tile::E* parts, i64 count, int stages,
                                          const Copy& copy, const Add& add) {
    const int end = stages * Tile::STAGE;
    i64 to_copy = count;
    int to = 0, from = 0;
    const auto begin = [&] {
        if (to_copy-- > 0) copy(parts + to);
        async_copy::commit();  // also an empty group, so that wait() counts the same
        to = to + Tile::STAGE == end ? 0 : to + Tile::STAGE;
    };
    for (int i = 1; i < stages; ++i) begin();
    for (i64 rest = count; rest > 0; --rest) {
        if (stages == 2)
            async_copy::wait<0>();
        else
            async_copy::wait<2>();
        __syncthreads();  // the part is there, and all threads have added the one before
        begin();          // overwrites the part before
        add(parts + from);
        from = from + Tile::STAGE == end ? 0 : from + Tile::STAGE;
    }
    async_copy::wait<0>();
}

}  // namespace cto::conv::lines
