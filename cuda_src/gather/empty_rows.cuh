// SPDX-License-Identifier: MIT
// Zeros for rows of dX, written by launches before the one that sums rows, while memory has little else
// to do.
//
// Which rows have slices the keys' launch marks, as soon as it has made them: bytes that are zero before,
// and that the launch which sums rows leaves zero. Without marks every row is taken for an empty one.
#pragma once
#include "core/vec.cuh"
#include "core/zeroed.cuh"
#include "gather/facts.cuh"

namespace cto::empty_rows {

using namespace facts::gather;
using vec::Vec;
using zeroed::Zeroed;

// A warp's share of the rows, of which it writes a piece at a time. What marks say is asked for long
// before it is needed.
template <class T, int WIDTH>
class Share {
    static constexpr u32 PIECE = PIECE_NBYTES / sizeof(T);

    const Zeros& zeros;
    const Zeroed<u8>* used;
    u32 lane, a_row, begin, end;  // a_row, begin, end: pieces
    bool is_empty;                // the row of the lane's piece

    __device__ __forceinline__ bool is_empty_at(u32 piece) const {
        return piece < end && (!used || used[zeros.first + piece / a_row].value == 0);
    }
    __device__ __forceinline__ void write_piece(T* dx, u32 piece) const {
        const u32 row = piece / a_row, column = (piece - row * a_row) * PIECE;
        T* const to = dx + (zeros.first + row) * zeros.width + column;
        const i64 n = min(zeros.width - column, static_cast<i64>(PIECE));
        const Vec<T, WIDTH> zero{};
        for (i64 i = lane * WIDTH; i < n; i += WARP * WIDTH)
            vec::store_streaming(reinterpret_cast<Vec<T, WIDTH>*>(to + i), zero);
    }

  public:
    // Warps of the blocks from `first_block` on.
    __device__ __forceinline__ Share(const Zeros& zeros, const Zeroed<u8>* used, u32 first_block)
        : zeros(zeros), used(used) {
        const u32 thread = threadIdx.y * blockDim.x + threadIdx.x;
        const u32 of_block = blockDim.x * blockDim.y / WARP, block = blockIdx.x - first_block;
        const u32 warps = (gridDim.x - first_block) * of_block;
        lane = thread % WARP;
        a_row = static_cast<u32>((zeros.width + PIECE - 1) / PIECE);
        const u32 n = static_cast<u32>(zeros.end - zeros.first) * a_row;
        const u32 each = (n + warps - 1) / warps;
        begin = min((block * of_block + thread / WARP) * each, n);
        end = min(begin + each, n);
        is_empty = is_empty_at(begin + lane);
    }

    __device__ __forceinline__ void write_zeros(T* dx) {
        for (u32 first = begin; first < end; first += WARP) {
            if (first > begin) is_empty = is_empty_at(first + lane);
            u32 left = __ballot_sync(ALL_LANES, is_empty);
            for (; left; left &= left - 1) write_piece(dx, first + __ffs(left) - 1);
        }
    }
};

}  // namespace cto::empty_rows
