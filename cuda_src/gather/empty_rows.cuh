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

// The pieces of rows that a warp of the blocks from `first_block` on may write.
struct Share {
    u32 lane, a_row, begin, end;

    __device__ __forceinline__ Share(const Zeros& zeros, u32 piece, u32 first_block) {
        u32 thread = threadIdx.y * blockDim.x + threadIdx.x;
#ifndef __CUDA_CPU__
        asm volatile("" : "+r"(thread));  // found again rather than kept in registers meanwhile
#endif
        const u32 of_block = blockDim.x * blockDim.y / WARP, block = blockIdx.x - first_block;
        const u32 warps = (gridDim.x - first_block) * of_block;
        a_row = (static_cast<u32>(zeros.width) + piece - 1) / piece;
        const u32 n = static_cast<u32>(zeros.end - zeros.first) * a_row;
        const u32 each = (n + warps - 1) / warps;
        lane = thread % WARP;
        begin = min((block * of_block + thread / WARP) * each, n);
        end = min(begin + each, n);
    }
};

template <class T, int WIDTH>
struct EmptyRows {
    static constexpr u32 PIECE = PIECE_NBYTES / sizeof(T);
    const Zeros& zeros;
    const Zeroed<u8>* used;
    u32 first_block;

    __device__ __forceinline__ bool is_empty(const Share& share, u32 piece) const {
        return piece < share.end && (!used || used[zeros.first + piece / share.a_row].value == 0);
    }
    // Whether the row of the lane's first piece is empty: asked for long before it is needed.
    __device__ __forceinline__ bool is_first_empty() const {
        const Share share(zeros, PIECE, first_block);
        return is_empty(share, share.begin + share.lane);
    }
    __device__ __forceinline__ void write_piece(T* dx, const Share& share, u32 piece) const {
        const u32 row = piece / share.a_row, column = (piece - row * share.a_row) * PIECE;
        T* const to = dx + (zeros.first + row) * zeros.width + column;
        const i64 n = min(zeros.width - column, static_cast<i64>(PIECE));
        const Vec<T, WIDTH> zero{};
        for (i64 i = share.lane * WIDTH; i < n; i += WARP * WIDTH)
            vec::store_streaming(reinterpret_cast<Vec<T, WIDTH>*>(to + i), zero);
    }
    __device__ __forceinline__ void write_zeros(T* dx, bool empty) const {
        const Share share(zeros, PIECE, first_block);
        for (u32 first = share.begin; first < share.end; first += WARP) {
            if (first > share.begin) empty = is_empty(share, first + share.lane);
            u32 left = __ballot_sync(ALL_LANES, empty);
            for (; left; left &= left - 1) write_piece(dx, share, first + __ffs(left) - 1);
        }
    }
    __device__ __forceinline__ void write_zeros(T* dx) const { write_zeros(dx, is_first_empty()); }
};

}  // namespace cto::empty_rows
