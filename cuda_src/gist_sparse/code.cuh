// SPDX-License-Identifier: MIT
// Layout of a sparse code, and checks on it: a code that is decoded may be any bytes.
//
//     code | head | starts, 8 bytes a tile | mask | values of tile 0 | values of tile 1 | ...
//          0      16                      mask   values
//
// head: i64 length of the code in bytes; u64 0, or 1 if the elements follow raw. Start t: where the
// values of tile t begin, in bytes of the code; those of the last tile end with it. x: the code of
// n elements; aligned: it begins at a multiple of 16 bytes.
#pragma once
#include "gist_sparse/tile.cuh"

namespace cto::gist_sparse::code {

using namespace tile;

// A code's size, and offsets of its mask and of its first value, in bytes.
struct Code {
    i64 nbytes, mask, values;
};

// Tiles of n elements.
template <class T>
__device__ __forceinline__ i64 tiles_of(i64 n) {
    return (n + TILE<T> - 1) / TILE<T>;
}

// True if the code x is its head and n raw elements.
template <class T>
__device__ __forceinline__ bool is_raw(const u8* x, i64 n, const Code& code, bool aligned) {
    return HEAD_NBYTES + n * static_cast<i64>(sizeof(T)) <= code.nbytes &&
           load_any<u64>(x + 8, aligned) != 0;
}

// True if the code x is sparse and was made from n elements of sizeof(T): then values begin at
// code.values, and an odd number of starts is followed by a 0. For another element size the number
// of tiles differs, and with it one of the two.
template <class T>
__device__ __forceinline__ bool is_of_width(const u8* x, i64 n, const Code& code, bool aligned) {
    const i64 tiles = tiles_of<T>(n);
    return code.values <= code.nbytes && load_any<u64>(x + 8, aligned) == 0 &&
           load_any<i64>(x + HEAD_NBYTES, aligned) == code.values &&
           (tiles % 2 == 0 || load_any<u64>(x + HEAD_NBYTES + 8 * tiles, aligned) == 0);
}

// Number of groups (of 16 bytes) in bytes [begin, end) of the code; 0 if these are not inside its
// values, not multiples of 16, or more than GROUPS groups.
template <int GROUPS>
__device__ __forceinline__ u32 sound_groups(i64 begin, i64 end, const Code& code) {
    const bool inside = begin >= code.values && begin <= end && end <= code.nbytes;
    const i64 nbytes = inside ? end - begin : 0;
    return begin % 16 == 0 && nbytes % 16 == 0 && nbytes <= 16 * GROUPS
               ? static_cast<u32>(nbytes / 16)
               : 0;
}

// True if the range of bytes that the starts give to a tile is valid for values; it may be empty.
// x: the code of n elements. GROUPS: 16-byte groups of a tile's values, at most. aligned: x is at a
// multiple of 16 bytes.
template <class T, int GROUPS>
__device__ __forceinline__ bool has_place(const u8* x, i64 tile, i64 n, const Code& code,
                                          bool aligned) {
    if (!is_of_width<T>(x, n, code, aligned)) return false;
    const u8* const start = x + HEAD_NBYTES + 8 * tile;
    const i64 begin = load_any<i64>(start, aligned);
    // The last tile ends where the code does: its length is at x.
    const i64 end = load_any<i64>(tile == tiles_of<T>(n) - 1 ? x : start + 8, aligned);
    return begin == end ? begin >= code.values && end <= code.nbytes && begin % 16 == 0
                        : sound_groups<GROUPS>(begin, end, code) > 0;
}

}  // namespace cto::gist_sparse::code
