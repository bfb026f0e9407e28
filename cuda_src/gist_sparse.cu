// SPDX-License-Identifier: MIT
// Gist's sparse encoding.  CPU provider: cupy_training_ops/cpu/gist_sparse.py
//
// A block packs a tile: it reads 16,384 bytes once, moves what is not zero together in shared memory
// and writes it where the tiles before it end. A second launch finishes: it puts the elements as
// they are in place of a code that takes no less, and makes the tiles' states zero again.
//
//     code | head | starts, 8 bytes a tile | mask | values of tile 0 | values of tile 1 | ...
//          0      16                      mask   values
#include "algorithm/prefix.cuh"
#include "core/vec.cuh"
#include "gist_sparse/values.cuh"

// T: elements, or words of their size (Pair: 16 bytes) where values are as they are. VALUES: what values become.
#ifndef CTO_T
#define CTO_T u32
#endif
#ifndef CTO_VALUES
#define CTO_VALUES AsTheyAre
#endif

namespace cto {

using gist_sparse::Pair;
using vec::Vec;

using T = CTO_T;
using Values = gist_sparse::CTO_VALUES<T>;

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / WARP;
// Blocks of a multiprocessor: 64 or 80 registers a thread, none spilled.
constexpr int RESIDENT = sizeof(T) == 1 || sizeof(T) == 8 ? 3 : 4;
constexpr int TILE = 16384 / sizeof(T);
constexpr int WIDTH = vec::WIDTH<T>;
constexpr int ROWS = TILE / (WIDTH * THREADS);  // vectors of a thread, 256 vectors apart
constexpr int GROUP = Values::GROUP;
constexpr int GROUPS = (TILE + GROUP - 1) / GROUP;  // that a tile's values have at most
constexpr int HEAD_NBYTES = 16;
static_assert(ROWS == 4 && WARPS * ROWS == WARP, "a warp adds up all parts of a tile");

using Elements = Vec<T, WIDTH>;

// A code's parts, in bytes from its beginning; nbytes of it are there.
struct Code {
    i64 nbytes, mask, values;
};

// Scratch memory, which calls over any number of tiles share one after another: tickets and states
// are zero before and after each.
struct Scratch {
    u32* tickets;
    u64* nbytes;  // of the code
    u64* states;  // of each tile

    explicit __device__ __forceinline__ Scratch(u64* words)
        : tickets(reinterpret_cast<u32*>(words)), nbytes(words + 1), states(words + 2) {}
};

struct Shared {
    alignas(16) T packed[GROUPS * GROUP];
    alignas(16) u8 mask[TILE / 8];
    u32 counts[WARP];  // of each warp's part of each row
    u64 begin;         // of the tile's values, in groups
    u32 ticket;
};

__device__ __forceinline__ int warp() { return threadIdx.x / WARP; }
__device__ __forceinline__ int lane() { return threadIdx.x % WARP; }

// ---- addresses that may be any --------------------------------------------------------------------

template <class V>
__device__ __forceinline__ V load_any(const u8* from, bool aligned) {
    if (aligned) return *reinterpret_cast<const V*>(from);
    V loaded;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(V)); ++i)
        reinterpret_cast<u8*>(&loaded)[i] = from[i];
    return loaded;
}
template <class V>
__device__ __forceinline__ void store_any(u8* to, const V& value, bool aligned) {
    if (aligned) {
        *reinterpret_cast<V*>(to) = value;
        return;
    }
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(V)); ++i)
        to[i] = reinterpret_cast<const u8*>(&value)[i];
}

// The vector of a row that a thread has, of all elements.
__device__ __forceinline__ i64 element_of(i64 tile, int row) {
    return tile * TILE + (row * THREADS + static_cast<int>(threadIdx.x)) * WIDTH;
}

// In words, whatever the elements are: those of a byte would take a register each.
__device__ __forceinline__ void load_tile(const T* x, i64 tile, i64 n, bool aligned,
                                          uint4 (&loaded)[ROWS]) {
    const bool whole = aligned && (tile + 1) * TILE <= n;
    if (whole) {
#pragma unroll
        for (int row = 0; row < ROWS; ++row)
            loaded[row] =
                vec::load_streaming(reinterpret_cast<const uint4*>(x + element_of(tile, row)));
        return;
    }
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        const auto elements = vec::load_elements<T, WIDTH>(x, element_of(tile, row), n);
        loaded[row] = *reinterpret_cast<const uint4*>(&elements);
    }
}

__device__ __forceinline__ void store_row(T* y, i64 tile, int row, i64 n, bool whole,
                                          const Elements& value) {
    const i64 first = element_of(tile, row);
    if (whole)
        vec::store_streaming(reinterpret_cast<Elements*>(y + first), value);
    else
        vec::store_elements<T, WIDTH>(y, first, n, value);
}

// ---- masks and ranks ------------------------------------------------------------------------------

// A bit of each element in a word that is not zero, the first in the lowest: a carry from the lower
// bits, or the highest itself.
__device__ __forceinline__ u32 bits_of_bytes(u32 word) {
    const u32 set = (((word & 0x7F7F7F7Fu) + 0x7F7F7F7Fu) | word) & 0x80808080u;
    return set * 0x00204081u >> 28;
}
__device__ __forceinline__ u32 bits_of_halves(u32 word) {
    const u32 set = ((word & 0x7FFF7FFFu) + 0x7FFF7FFFu) | word;
    return (set >> 15 & 1u) | (set >> 30 & 2u);
}

__device__ __forceinline__ u32 bits_of_vec(const uint4& x) {
    const u32 words[4] = {x.x, x.y, x.z, x.w};
    u32 bits = 0;
    if constexpr (sizeof(T) < 4) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            bits |= (sizeof(T) == 1 ? bits_of_bytes(words[i]) << 4 * i
                                    : bits_of_halves(words[i]) << 2 * i);
    } else {
        constexpr int WORDS = sizeof(T) / 4;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            u32 set = 0;
#pragma unroll
            for (int j = 0; j < WORDS; ++j) set |= words[i * WORDS + j];
            bits |= (set != 0 ? 1u : 0u) << i;
        }
    }
    return bits;
}

// Bits of a row to the tile's mask: neighbouring threads may share a byte.
__device__ __forceinline__ void write_mask(u8* mask, int row, u32 bits) {
    const int vector = row * THREADS + threadIdx.x;
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
__device__ __forceinline__ u32 read_mask(const u8* mask, int row) {
    const int vector = row * THREADS + threadIdx.x;
    if constexpr (WIDTH == 16) return reinterpret_cast<const u16*>(mask)[vector];
    return mask[vector * WIDTH / 8] >> vector * WIDTH % 8 & ((1u << WIDTH) - 1);
}

__device__ __forceinline__ u32 inclusive_scan(u32 x) {
#pragma unroll
    for (int lanes = 1; lanes < WARP; lanes *= 2) {
        const u32 before = __shfl_up_sync(ALL_LANES, x, lanes);
        if (lane() >= lanes) x += before;
    }
    return x;
}

// For each row of a thread how many bits are set before its own, in the order of elements; returns
// those of the tile. Two rows are added up in the halves of a word: a warp has at most 512 bits.
__device__ __forceinline__ u32 rank(const u32 (&bits)[ROWS], u32* counts, u32 (&before)[ROWS]) {
#pragma unroll
    for (int row = 0; row < ROWS; row += 2) {
        const u32 own = __popc(bits[row]) | __popc(bits[row + 1]) << 16;
        const u32 up_to = inclusive_scan(own);
        if (lane() == WARP - 1) {
            counts[row * WARPS + warp()] = up_to & 0xFFFFu;
            counts[(row + 1) * WARPS + warp()] = up_to >> 16;
        }
        before[row] = (up_to - own) & 0xFFFFu;
        before[row + 1] = (up_to - own) >> 16;
    }
    __syncthreads();
    const u32 count = counts[lane()];
    const u32 up_to = inclusive_scan(count);
#pragma unroll
    for (int row = 0; row < ROWS; ++row)
        before[row] += __shfl_sync(ALL_LANES, up_to - count, row * WARPS + warp());
    return __shfl_sync(ALL_LANES, up_to, WARP - 1);
}

__device__ __forceinline__ u32 groups_of(u32 count) { return (count + GROUP - 1) / GROUP; }

// ---- encoding -------------------------------------------------------------------------------------

// What is not zero to its place among the tile's values, zeros behind the last.
__device__ __forceinline__ void pack(const uint4 (&x)[ROWS], const u32 (&bits)[ROWS],
                                     const u32 (&before)[ROWS], u32 count, T* packed) {
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        const T* const elements = reinterpret_cast<const T*>(&x[row]);
        u32 place = before[row];
#pragma unroll
        for (int i = 0; i < WIDTH; ++i)
            if (bits[row] >> i & 1u) packed[place++] = elements[i];
    }
    const u32 behind = count + threadIdx.x;
    if (behind < groups_of(count) * GROUP) packed[behind] = T{};
}

__device__ __forceinline__ void store_mask(const u8* mask, i64 tile, i64 n, const Code& code, u8* y,
                                           bool aligned) {
    constexpr int VECS = TILE / 128;  // of 16 bytes
    const i64 vec = tile * VECS + threadIdx.x;
    if (threadIdx.x < VECS && vec * 128 < n)
        store_any(y + code.mask + 16 * vec, reinterpret_cast<const uint4*>(mask)[threadIdx.x],
                  aligned);
}

// Values that have no room are those of a code that the elements as they are replace.
__device__ __forceinline__ void store_values(const T* packed, u32 groups, i64 begin,
                                             const Code& code, u8* y, bool aligned) {
    for (u32 group = threadIdx.x; group < groups; group += THREADS) {
        const i64 at = begin + 16 * static_cast<i64>(group);
        if (at + 16 <= code.nbytes)
            store_any(y + at, Values::encode(packed + group * GROUP), aligned);
    }
}

__device__ __forceinline__ void store_number(u8* to, u64 number, bool aligned) {
    store_any(to, number, aligned);
}

__device__ __forceinline__ void encode_tile(Shared& shared, const T* x, i64 tile, i64 n,
                                            const Code& code, u8* y, Scratch scratch, i64 tiles,
                                            bool aligned) {
    uint4 loaded[ROWS];
    load_tile(x, tile, n, aligned, loaded);
    u32 bits[ROWS], before[ROWS];
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        bits[row] = bits_of_vec(loaded[row]);
        write_mask(shared.mask, row, bits[row]);
    }
    const u32 count = rank(bits, shared.counts, before);
    const u32 groups = groups_of(count);
    if (threadIdx.x == 0) prefix::publish_own(scratch.states, tile, groups);
    pack(loaded, bits, before, count, shared.packed);
    if (warp() == 0) {
        const u64 begin = prefix::sum_before(scratch.states, tile, groups);
        if (lane() == 0) shared.begin = begin;
    }
    __syncthreads();
    const i64 begin = code.values + 16 * static_cast<i64>(shared.begin);
    store_mask(shared.mask, tile, n, code, y, aligned);
    store_values(shared.packed, groups, begin, code, y, aligned);
    if (threadIdx.x != 0) return;
    store_number(y + HEAD_NBYTES + 8 * tile, begin, aligned);
    if (tile == tiles - 1) {
        const u64 nbytes = begin + 16 * groups;
        *scratch.nbytes = nbytes;
        store_number(y, nbytes, aligned);
        store_number(y + 8, 0, aligned);
        if (tiles % 2) store_number(y + HEAD_NBYTES + 8 * tiles, 0, aligned);
    }
}

// ---- elements as they are -------------------------------------------------------------------------

__device__ __forceinline__ void copy_tile(const u8* from, u8* to, i64 tile, i64 n, bool aligned) {
    if (aligned) {
        uint4 loaded[ROWS];
        load_tile(reinterpret_cast<const T*>(from), tile, n, true, loaded);
#pragma unroll
        for (int row = 0; row < ROWS; ++row)
            store_row(reinterpret_cast<T*>(to), tile, row, n, (tile + 1) * TILE <= n,
                      *reinterpret_cast<const Elements*>(&loaded[row]));
        return;
    }
    const i64 first = tile * 16384, nbytes = n * static_cast<i64>(sizeof(T));
    for (i64 i = first + threadIdx.x; i < first + 16384 && i < nbytes; i += THREADS)
        to[i] = from[i];
}

// ---- decoding -------------------------------------------------------------------------------------

// The groups of a tile where the code has them all, else none: codes may be anything.
__device__ __forceinline__ u32 sound_groups(i64 begin, i64 end, const Code& code) {
    const bool inside = begin >= code.values && begin <= end && end <= code.nbytes;
    const i64 nbytes = end - begin;
    return inside && begin % 16 == 0 && nbytes % 16 == 0 && nbytes <= 16 * GROUPS
               ? static_cast<u32>(nbytes / 16)
               : 0;
}

__device__ __forceinline__ void load_mask(const u8* x, i64 tile, i64 n, const Code& code, u8* mask,
                                          bool aligned) {
    constexpr int VECS = TILE / 128;
    if (threadIdx.x >= VECS) return;
    const i64 vec = tile * VECS + threadIdx.x;
    const bool there = vec * 128 < n && code.values <= code.nbytes;
    reinterpret_cast<uint4*>(mask)[threadIdx.x] =
        there ? load_any<uint4>(x + code.mask + 16 * vec, aligned) : make_uint4(0, 0, 0, 0);
}

__device__ __forceinline__ void decode_tile(Shared& shared, const u8* x, i64 tile, i64 n,
                                            const Code& code, T* y, i64 tiles, bool aligned) {
    load_mask(x, tile, n, code, shared.mask, aligned);
    const u8* const start = x + HEAD_NBYTES + 8 * tile;
    u32 groups = 0;
    i64 begin = 0;
    if (code.values <= code.nbytes) {
        begin = load_any<i64>(start, aligned);
        const i64 end = load_any<i64>(tile == tiles - 1 ? x : start + 8, aligned);
        groups = sound_groups(begin, end, code);
    }
    for (u32 group = threadIdx.x; group < groups; group += THREADS)
        Values::decode(load_any<uint4>(x + begin + 16 * static_cast<i64>(group), aligned),
                       shared.packed + group * GROUP);
    __syncthreads();
    u32 bits[ROWS], before[ROWS];
#pragma unroll
    for (int row = 0; row < ROWS; ++row) bits[row] = read_mask(shared.mask, row);
    const u32 count = rank(bits, shared.counts, before);
    const bool sound = groups == groups_of(count);
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        Elements value;
        u32 place = before[row];
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            const bool there = sound && (bits[row] >> i & 1u);
            value.at[i] = there ? shared.packed[place] : T{};
            place += bits[row] >> i & 1u;
        }
        store_row(y, tile, row, n, aligned && (tile + 1) * TILE <= n, value);
    }
}

__device__ __forceinline__ i64 tiles_of(i64 n) { return (n + TILE - 1) / TILE; }

}  // namespace cto

using namespace cto;

// ---- entry points; aligned: both arrays start at a multiple of 16 bytes -------------------------

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gist_sparse__encode(const void* x, u8* y, i64 n_x, i64 n_y, i64 mask, i64 values, u64* words,
                        bool aligned) {
    __shared__ Shared shared;
    const Scratch scratch(words);
    if (threadIdx.x == 0) shared.ticket = atomicInc(scratch.tickets, gridDim.x - 1);
    __syncthreads();
    encode_tile(shared, static_cast<const T*>(x), shared.ticket, n_x, {n_y, mask, values}, y,
                scratch, tiles_of(n_x), aligned);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gist_sparse__finish(const void* x, u8* y, i64 n_x, i64 values, u64* words, bool aligned) {
    const Scratch scratch(words);
    const i64 tiles = tiles_of(n_x), kept = HEAD_NBYTES + n_x * static_cast<i64>(sizeof(T));
    const i64 thread = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    for (i64 tile = thread; tile < tiles; tile += gridDim.x * THREADS) scratch.states[tile] = 0;
    if (kept > values && static_cast<i64>(*scratch.nbytes) < kept) return;
    if (thread == 0) {
        store_number(y, static_cast<u64>(kept), aligned);
        store_number(y + 8, 1, aligned);
    }
    for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x)
        copy_tile(static_cast<const u8*>(x), y + HEAD_NBYTES, tile, n_x, aligned);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gist_sparse__decode(const u8* x, void* y, i64 n_x, i64 n_y, i64 mask, i64 values,
                        bool aligned) {
    __shared__ Shared shared;
    const i64 kept = HEAD_NBYTES + n_y * static_cast<i64>(sizeof(T));
    const bool as_it_is = load_any<u64>(x + 8, aligned) != 0 && kept <= n_x;
    if (as_it_is)
        copy_tile(x + HEAD_NBYTES, static_cast<u8*>(y), blockIdx.x, n_y, aligned);
    else
        decode_tile(shared, x, blockIdx.x, n_y, {n_x, mask, values}, static_cast<T*>(y),
                    tiles_of(n_y), aligned);
}
