// SPDX-License-Identifier: MIT
// The mask, one bit an element, set if it is not zero; ranks, how many bits are set before an
// element; and the moves between elements and packed values that these give. A thread has ROWS
// vectors of 16 bytes, WIDTH elements, of a tile.
#pragma once
#include "algorithm/scan.cuh"
#include "gist_sparse/tile.cuh"

namespace cto::gist_sparse::mask {

using namespace tile;

// counts[row * warps + warp] = set bits of the warp's part of a row. There are WARP such parts, one
// for each lane of the warp that sums them.
using Counts = u32[WARP];
static_assert(TILE_NBYTES == 16 * WARP * WARP);

// ---- bits of elements ---------------------------------------------------------------------------

// True if element i of the 16 bytes `words` is not zero (-0 is not zero).
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

// Bit j = byte j of the word is not 0, j < 4. A byte's bit 7 is set by a carry from its lower bits
// or already; the product moves the four bits together.
__device__ __forceinline__ u32 bits_of_bytes(u32 word) {
    const u32 set = (((word & 0x7F7F7F7Fu) + 0x7F7F7F7Fu) | word) & 0x80808080u;
    return set * 0x00204081u >> 28;
}
// Bit j = 16-bit element j of the four words is not 0, j < 8. An element counts as min(it, 1), or
// its bit 15 is set by a carry from its lower bits or already.
__device__ __forceinline__ u32 bits_of_halves(const u32 (&words)[4]) {
#if !defined(__CUDA_CPU__) && __CUDA_ARCH__ >= 900
    u32 both = 0;  // bit 2 i: lower half of words[i]; bit 2 i + 16: its upper half
#pragma unroll
    for (int i = 0; i < 4; ++i) both += __vminu2(words[i], 0x00010001u) << 2 * i;
    return (both & 0x55u) | both >> 15;
#else
    u32 both = 0;  // bit 2 i + 9: lower half of words[i]; bit 2 i + 25: its upper half
#pragma unroll
    for (int i = 0; i < 4; ++i)
        both |=
            ((((words[i] & 0x7FFF7FFFu) + 0x7FFF7FFFu) | words[i]) & 0x80008000u) >> (6 - 2 * i);
    return (both >> 9 & 0x55u) | both >> 24;
#endif
}

// Bit i = element i of x is not zero.
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

// ---- bits of a thread's vector: 2 bytes of the mask, or 1 byte or a part of it ------------------

// Stores `bits` of the thread's vector `row` in the tile's mask. Threads that share a byte combine
// their bits by shuffles, and the first stores it.
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

// The bits of the thread's vector `row` of a tile, from the mask of n elements;
// 0 past element n - 1.
template <class T, int ROWS>
__device__ __forceinline__ u32 read_mask(const u8* mask, i64 tile, int row, i64 n) {
    constexpr int WIDTH = vec::WIDTH<T>;
    const i64 first = element_of<T, ROWS>(tile, row);
    if (first >= n) return 0;
    const u8* const from = mask + first / 8;
    const u32 bits = WIDTH == 16 ? from[0] | from[1] << 8 : from[0] >> first % 8;
    return bits & ((1u << (n - first < WIDTH ? n - first : WIDTH)) - 1);
}

// ---- ranks --------------------------------------------------------------------------------------

// before[row] = sum of popc(bits[row]) over the lanes below this one; bits[row]: WIDTH bits. One
// scan sums several rows, in fields of a word. A field has room for the sum of 31 lanes; if 32
// overflow it, `- own` undoes that.
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

// before[row] = set bits of the tile before the thread's vector `row`, in the order of elements;
// bits[row]: that vector's, WIDTH of them. Returns how many bits of the tile are set. counts:
// shared memory. Has a barrier; all threads of the block call it. Each warp sums the parts' counts
// itself, part p = row * WARPS + warp in lane p.
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

// ---- elements by their bits ---------------------------------------------------------------------

// value[i] = the next element of packed, from packed[place] on, if bit i is set, else 0.
template <class T>
__device__ __forceinline__ vec::Vec<T, vec::WIDTH<T>> unpack(const T* packed, u32 place, u32 bits) {
    vec::Vec<T, vec::WIDTH<T>> value;
#pragma unroll
    for (int i = 0; i < vec::WIDTH<T>; ++i) value.at[i] = bits >> i & 1u ? packed[place++] : T{};
    return value;
}

// Four bytes of `unpack`, for four bits, in a word; `place` counts bytes. Reads the word of byte
// `place` and the one after it.
__device__ __forceinline__ u32 unpack_four(const u32* packed, u32 place, u32 bits) {
    const u32 following =
        __funnelshift_r(packed[place / 4], packed[place / 4 + 1], 8 * (place % 4));
    // __byte_perm takes a selector nibble a byte: for a set bit, how many are set below it; else 4
    // or more, which selects a byte of 0.
    const u32 pairs = (bits | bits << 6) & 0x0303u, spread = (pairs | pairs << 3) & 0x1111u;
    return __byte_perm(following, 0, spread * 0x1110u | (spread ^ 0x1111u) << 2);
}
// value[i] = the next byte of `packed`, from `place` on, where bit i of `bits` is set, else 0.
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

// put(words, i): appends element i of the 16 bytes `words` to an array in shared memory, if it is
// not zero. `to`: where the next one goes. NBYTES: of an element.
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
// For elements of 2 and 4 bytes put is in assembly: from C++ compilers compute an address for each.
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
    // Appends word i: stores it and moves `to` on by 4 bytes, if it is not 0.
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
    // Appends half i of the words: stores it and moves `to` on by 2 bytes, if it is not 0.
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
