// SPDX-License-Identifier: MIT
// Decoding: a tile to each block. Codes may be anything.
#pragma once
#include "gist_sparse/code.cuh"

namespace cto::gist_sparse::decode {

using namespace code;

#if !defined(__CUDA_CPU__) && __CUDA_ARCH__ == 1000 && __CUDACC_VER_MAJOR__ >= 13
constexpr int DECODING = sizeof(T) == 1 ? 5 : 6;  // of 32 registers CUDA 13 spills some there
#elif !defined(__CUDA_CPU__) && __CUDA_ARCH__ < 800
constexpr int DECODING = sizeof(T) == 1 ? 5 : ARE_SAME<Values, Fp10<float>> ? 6 : 8;
#else
constexpr int DECODING = sizeof(T) == 1 ? 5 : 8;
#endif

// Whether a code has the elements as they are.
__device__ __forceinline__ bool is_kept(const u8* x, i64 n, const Code& code, bool aligned) {
    return HEAD_NBYTES + n * static_cast<i64>(sizeof(T)) <= code.nbytes &&
           load_any<u64>(x + 8, aligned) != 0;
}

// Whether a code is sparse, and its values and starts lie as those of n elements of this width do.
// Of other widths there are other tiles; where one of them has one tile and the other two, what
// follows the starts differs.
__device__ __forceinline__ bool is_of_width(const u8* x, i64 n, const Code& code, bool aligned) {
    const i64 tiles = tiles_of(n);
    return code.values <= code.nbytes && load_any<u64>(x + 8, aligned) == 0 &&
           load_any<i64>(x + HEAD_NBYTES, aligned) == code.values &&
           (tiles % 2 == 0 || load_any<u64>(x + HEAD_NBYTES + 8 * tiles, aligned) == 0);
}

// The groups of a tile where the code has them all, else none: codes may be anything.
__device__ __forceinline__ u32 sound_groups(i64 begin, i64 end, const Code& code) {
    const bool inside = begin >= code.values && begin <= end && end <= code.nbytes;
    const i64 nbytes = inside ? end - begin : 0;
    return begin % 16 == 0 && nbytes % 16 == 0 && nbytes <= 16 * GROUPS
               ? static_cast<u32>(nbytes / 16)
               : 0;
}

// Whether a tile's values, or none, have a place in the code.
__device__ __forceinline__ bool has_place(const u8* x, i64 tile, i64 n, const Code& code,
                                          bool aligned) {
    if (!is_of_width(x, n, code, aligned)) return false;
    const u8* const start = x + HEAD_NBYTES + 8 * tile;
    const i64 begin = load_any<i64>(start, aligned);
    const i64 end = load_any<i64>(tile == tiles_of(n) - 1 ? x : start + 8, aligned);
    return begin == end ? begin >= code.values && end <= code.nbytes && begin % 16 == 0
                        : sound_groups(begin, end, code) > 0;
}

// What mask and starts say is asked for before the first of it is needed.
__device__ __forceinline__ void decode_tile(T* packed, Counts& counts, const u8* x, i64 tile, i64 n,
                                            const Code& code, T* y, bool aligned) {
    const u8* const start = x + HEAD_NBYTES + 8 * tile;
    u32 bits[DECODED_ROWS] = {}, before[DECODED_ROWS];
    i64 begin = 0, end = 0;
    if (code.values <= code.nbytes) {
#pragma unroll
        for (int row = 0; row < DECODED_ROWS; ++row)
            bits[row] = read_mask<T, DECODED_ROWS>(x + code.mask, tile, row, n);
        begin = load_any<i64>(start, aligned);
        end = load_any<i64>(tile == tiles_of(n) - 1 ? x : start + 8, aligned);
    }
    if (is_kept(x, n, code, aligned)) {
        copy_tile<T, DECODED_ROWS>(x + HEAD_NBYTES, reinterpret_cast<u8*>(y), tile, n, aligned);
        return;
    }
    const u32 groups = sound_groups(begin, end, code);
    for (u32 group = threadIdx.x; group < groups; group += THREADS)
        Values::decode(load_any<uint4>(x + begin + 16 * group, aligned), packed + group * GROUP);
    __shared__ bool in_place;  // found by one thread: 32 registers leave no room for more
    if constexpr (Values::HAS_NAN) {
        if (threadIdx.x == 0) in_place = has_place(x, tile, n, code, aligned);
    }
    const u32 count = rank<WIDTH>(bits, counts, before);
    bool sound = groups == groups_of(count);
    if constexpr (Values::HAS_NAN) sound = sound && in_place;
#pragma unroll
    for (int row = 0; row < DECODED_ROWS; ++row)
        store_row<T, DECODED_ROWS>(y, tile, row, n, aligned,
                                   unpack(packed, before[row], sound ? bits[row] : 0));
    if constexpr (Values::HAS_NAN) {
        if (sound) return;  // apart from the rows above, beside which it would spill
#pragma unroll 1
        for (int row = 0; row < DECODED_ROWS; ++row)
            store_row<T, DECODED_ROWS>(y, tile, row, n, aligned, vector_of_nan<T>());
    }
}

}  // namespace cto::gist_sparse::decode
