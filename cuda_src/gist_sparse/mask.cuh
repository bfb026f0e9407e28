// SPDX-License-Identifier: MIT
// A bit of each element, set where it is not zero; and how many are set before an element.
#pragma once
#include "algorithm/scan.cuh"
#include "gist_sparse/tile.cuh"

namespace cto::gist_sparse::mask {

using namespace tile;

// Set bits of each warp's part of each row: there are as many parts as lanes, which add them up.
using Counts = u32[WARP];
static_assert(TILE_NBYTES == 16 * WARP * WARP);

// ---- bits of elements -----------------------------------------------------------------------------

template <class T>
__device__ __forceinline__ bool is_set(const u32 (&words)[4], int i) {
    if constexpr (sizeof(T) == 2) {
        return i % 2 == 0 ? (words[i / 2] & 0xFFFFu) != 0 : words[i / 2] > 0xFFFFu;
    } else if constexpr (sizeof(T) == 1) {
        return (words[i / 4] & 0xFFu << 8 * (i % 4)) != 0;
    } else {
        constexpr int WORDS = sizeof(T) / 4;
        u32 any = 0;
#pragma unroll
        for (int j = 0; j < WORDS; ++j) any |= words[i * WORDS + j];
        return any != 0;
    }
}

// Mask bits of a word of narrow elements, the first in the lowest: a carry from the lower bits, or the
// highest itself.
__device__ __forceinline__ u32 bits_of_bytes(u32 word) {
    const u32 set = (((word & 0x7F7F7F7Fu) + 0x7F7F7F7Fu) | word) & 0x80808080u;
    return set * 0x00204081u >> 28;
}
// Mask bits of four words of two elements.
__device__ __forceinline__ u32 bits_of_halves(const u32 (&words)[4]) {
#if !defined(__CUDA_CPU__) && __CUDA_ARCH__ >= 900
    u32 both = 0;  // bits 0, 2, 4, 6, and 16 behind them those of the upper halves
#pragma unroll
    for (int i = 0; i < 4; ++i) both += __vminu2(words[i], 0x00010001u) << 2 * i;
    return (both & 0x55u) | both >> 15;
#else
    u32 both = 0;  // the same, 9 bits further on
#pragma unroll
    for (int i = 0; i < 4; ++i)
        both |=
            ((((words[i] & 0x7FFF7FFFu) + 0x7FFF7FFFu) | words[i]) & 0x80008000u) >> (6 - 2 * i);
    return (both >> 9 & 0x55u) | both >> 24;
#endif
}

template <class T>
__device__ __forceinline__ u32 set_bits(const uint4& x) {
    const u32 words[4] = {x.x, x.y, x.z, x.w};
    u32 bits = 0;
    if constexpr (sizeof(T) == 1) {
#pragma unroll
        for (int i = 0; i < 4; ++i) bits |= bits_of_bytes(words[i]) << 4 * i;
    } else if constexpr (sizeof(T) == 2) {
        bits = bits_of_halves(words);
    } else {
#pragma unroll
        for (int i = 0; i < vec::WIDTH<T>; ++i) bits |= (is_set<T>(words, i) ? 1u : 0u) << i;
    }
    return bits;
}

// ---- bits of a row, two bytes of 16 elements or one of fewer ---------------------------------------

// To a tile's mask; neighbouring threads may share a byte.
template <class T, int ROWS>
__device__ __forceinline__ void write_mask(u8* mask, int row, u32 bits) {
    constexpr int WIDTH = vec::WIDTH<T>;
    const int vector = row * THREADS_OF<ROWS> + threadIdx.x;
    if constexpr (WIDTH == 16) {
        reinterpret_cast<u16*>(mask)[vector] = static_cast<u16>(bits);
    } else {
        constexpr int SHARERS = 8 / WIDTH;
        u32 byte = bits << vector % SHARERS * WIDTH;
#pragma unroll
        for (int lanes = 1; lanes < SHARERS; lanes *= 2)
            byte |= __shfl_xor_sync(ALL_LANES, byte, lanes);
        if (vector % SHARERS == 0) mask[vector / SHARERS] = static_cast<u8>(byte);
    }
}

// From the mask of n elements, at any address; bits behind the last element do not count.
template <class T, int ROWS>
__device__ __forceinline__ u32 read_mask(const u8* mask, i64 tile, int row, i64 n) {
    constexpr int WIDTH = vec::WIDTH<T>;
    const i64 first = element_of<T, ROWS>(tile, row);
    if (first >= n) return 0;
    const u8* const from = mask + first / 8;
    const u32 bits = WIDTH == 16 ? from[0] | from[1] << 8 : from[0] >> first % 8;
    return bits & ((1u << (n - first < WIDTH ? n - first : WIDTH)) - 1);
}

// ---- ranks ----------------------------------------------------------------------------------------

// before[row] = sum of popc(bits[row]) over the lanes below this one. Rows are added up together, in the
// fields of a word, wide enough for 31 lanes: what 32 overflow, the difference undoes.
template <int WIDTH, int ROWS>
__device__ __forceinline__ void rank_in_warp(const u32 (&bits)[ROWS], u32 (&before)[ROWS]) {
    constexpr int FIELD = 31 * WIDTH < 256 ? 8 : 16, FIELDS = 32 / FIELD;
#pragma unroll
    for (int first = 0; first < ROWS; first += FIELDS) {
        u32 own = 0;
#pragma unroll
        for (int i = 0; i < FIELDS; ++i) own |= __popc(bits[first + i]) << FIELD * i;
        const u32 others = scan::sum_up_to_lane(own) - own;
#pragma unroll
        for (int i = 0; i < FIELDS; ++i)
            before[first + i] = others >> FIELD * i & ((1u << FIELD) - 1);
    }
}

// before[row] = bits of the whole tile that are set before this thread's, in the order of elements; returns
// how many the tile has. A barrier.
template <int WIDTH, int ROWS>
__device__ __forceinline__ u32 rank(const u32 (&bits)[ROWS], Counts& counts, u32 (&before)[ROWS]) {
    constexpr int WARPS = WARP / ROWS;
    rank_in_warp<WIDTH>(bits, before);
    if (lane() == WARP - 1) {
#pragma unroll
        for (int row = 0; row < ROWS; ++row)
            counts[row * WARPS + warp()] = before[row] + __popc(bits[row]);
    }
    __syncthreads();
    const u32 count = counts[lane()];
    const u32 up_to = scan::sum_up_to_lane(count);
#pragma unroll
    for (int row = 0; row < ROWS; ++row)
        before[row] += __shfl_sync(ALL_LANES, up_to - count, row * WARPS + warp());
    return __shfl_sync(ALL_LANES, up_to, WARP - 1);
}

// ---- elements by their bits -----------------------------------------------------------------------

// A vector whose elements follow each other from a place on where their bit is set, zero elsewhere.
template <class T>
__device__ __forceinline__ vec::Vec<T, vec::WIDTH<T>> unpack(const T* packed, u32 place, u32 bits) {
    vec::Vec<T, vec::WIDTH<T>> value;
#pragma unroll
    for (int i = 0; i < vec::WIDTH<T>; ++i) value.at[i] = bits >> i & 1u ? packed[place++] : T{};
    return value;
}

// Bytes four at a time, of which a word more than there are is read.
__device__ __forceinline__ u32 unpack_four(const u32* packed, u32 place, u32 bits) {
    const u32 following =
        __funnelshift_r(packed[place / 4], packed[place / 4 + 1], 8 * (place % 4));
    // A bit to each nibble, and how many are set below it; from four on a zero is chosen.
    const u32 pairs = (bits | bits << 6) & 0x0303u, spread = (pairs | pairs << 3) & 0x1111u;
    return __byte_perm(following, 0, spread * 0x1110u | (spread ^ 0x1111u) << 2);
}
__device__ __forceinline__ vec::Vec<u8, 16> unpack(const u8* packed, u32 place, u32 bits) {
    vec::Vec<u8, 16> value;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const u32 four = bits >> 4 * i & 0xFu;
        reinterpret_cast<u32*>(value.at)[i] =
            unpack_four(reinterpret_cast<const u32*>(packed), place, four);
        place += __popc(four);
    }
    return value;
}

// Puts elements that are set one behind the other, in shared memory.
template <class T, int NBYTES = sizeof(T)>
class Packer {
    T* to;

  public:
    __device__ explicit Packer(T* to) : to(to) {}
    __device__ __forceinline__ void put(const u32 (&words)[4], int i) {
        if (is_set<T>(words, i)) *to++ = reinterpret_cast<const T*>(words)[i];
    }
};

#ifndef __CUDA_CPU__
// In C++ each element of these widths costs an address of its own.
class SharedAddress {
  protected:
    u32 to;

  public:
    __device__ __forceinline__ explicit SharedAddress(const void* to)
        : to(static_cast<u32>(__cvta_generic_to_shared(to))) {}
};

// Stores word i and moves on by 4 bytes, if it is not 0: one predicate for both.
template <class T>
class Packer<T, 4> : SharedAddress {
  public:
    using SharedAddress::SharedAddress;
    __device__ __forceinline__ void put(const u32 (&words)[4], int i) {
        asm volatile(
            "{.reg .pred p; setp.ne.u32 p, %1, 0;\n"
            "@p st.shared.u32 [%0], %1; @p add.u32 %0, %0, 4;}"
            : "+r"(to)
            : "r"(words[i])
            : "memory");
    }
};

// Stores half i of the words, which is word i / 2 >> 16 * (i % 2), and moves on by 2 bytes, if it
// is not 0: one predicate for both.
template <class T>
class Packer<T, 2> : SharedAddress {
  public:
    using SharedAddress::SharedAddress;
    __device__ __forceinline__ void put(const u32 (&words)[4], int i) {
        const u32 word = words[i / 2];
        asm volatile(
            "{.reg .pred p; setp.ne.u32 p, %1, 0;\n"
            "@p st.shared.u16 [%0], %2; @p add.u32 %0, %0, 2;}"
            : "+r"(to)
            : "r"(word & 0xFFFFu << 16 * (i % 2)), "h"(static_cast<u16>(word >> 16 * (i % 2)))
            : "memory");
    }
};
#endif

}  // namespace cto::gist_sparse::mask
