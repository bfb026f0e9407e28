// SPDX-License-Identifier: MIT
// Gist's sparse encoding.  CPU provider: cupy_training_ops/families/gist_sparse/reference.py
//
// gist_sparse__encode: blocks take tiles by tickets. A block packs a tile (moves its nonzero values
// together in shared memory), publishes how many 16-byte groups they take, sums the groups of the
// tiles before it (prefix.cuh) and stores mask and values there. Three tiles are in flight: one is
// stored, one packed, one loaded.
//
// gist_sparse__finish: stores the raw elements instead if the sparse code is no shorter, and zeroes
// the published counts for the next call.
//
// A tile is full if its part of a sparse code takes as many bytes as its elements or more. If the
// first tile is full, raw is likely: full tiles from the first on are stored raw at once, and after
// the first tile that is not full the rest are only counted, until gist_sparse__finish knows.
#include "gist_sparse/code.cuh"
#include "gist_sparse/facts.cuh"
#include "gist_sparse/mask.cuh"
#include "gist_sparse/prefix.cuh"
#include "gist_sparse/resident.cuh"
#include "gist_sparse/tile.cuh"
#include "gist_sparse/values.cuh"

// T: the elements; for AsTheyAre, words of their size (Pair: 16 bytes).
// VALUES: codec of the values.
#ifndef CTO_T
#define CTO_T u32
#endif
#ifndef CTO_VALUES
#define CTO_VALUES AsTheyAre
#endif

namespace cto {

using namespace facts::gist_sparse;
using namespace gist_sparse::code;
using namespace gist_sparse::mask;
using namespace gist_sparse::resident;
using namespace gist_sparse::tile;
using namespace gist_sparse::values;
using zeroed::Zeroed;

using T = CTO_T;
using Values = CTO_VALUES<T>;

constexpr int WIDTH = vec::WIDTH<T>;
constexpr int GROUP = Values::GROUP;
constexpr int GROUPS = (TILE<T> + GROUP - 1) / GROUP;  // of a tile's values, at most
constexpr u32 NONE = 0xFFFFFFFFu;                      // number of no tile
// ENCODERS: threads of an encoding block. ROWS: 16-byte vectors of a tile that each of them has;
// DECODED_ROWS: the same for blocks of THREADS, which decode and finish.
constexpr int ENCODERS = sizeof(T) == 2 ? NARROW_THREADS : THREADS;
constexpr int ROWS = TILE_NBYTES / (16 * ENCODERS), DECODED_ROWS = TILE_NBYTES / (16 * THREADS);
// Of bytes, a tile's count of values is in shared memory, to save a register.
constexpr bool COUNTS_ARE_SHARED = sizeof(T) == 1;
constexpr int ENCODING_BLOCKS = ENCODING<T, Values>, DECODING_BLOCKS = DECODING<T, Values>;

// 16-byte groups that `count` values take.
__device__ __forceinline__ u32 groups_of(u32 count) { return (count + GROUP - 1) / GROUP; }

// ---- encoding -----------------------------------------------------------------------------------

// Global scratch memory.
struct Scratch {
    Zeroed<u32>* tickets;
    Zeroed<u32>* groups;  // of each tile, as prefix::publish stores them
    u64* begins;          // begins[tile] = groups of all tiles before it; only if tile 0 is full
    u64* nbytes;          // of the sparse code
    u32* full;            // number of full tiles before the first that is not full
};

// `call`, the arguments of gist_sparse__encode: n elements of x are encoded to y, in `tiles` tiles.
// aligned: x and y start at multiples of 16 bytes.
struct Encoding {
    const T* x;
    i64 n;
    u8* y;
    Code code;
    Scratch scratch;
    u32 tiles;
    bool aligned;

    // The block's next tile; at least `tiles` if none is left. Each block takes one ticket without
    // a tile, tiles + gridDim.x in all, after which atomicInc has wrapped the counter to 0 again.
    __device__ __forceinline__ u32 ticket_after(u32 tile) const {
        return tile < tiles ? atomicInc(&scratch.tickets->value, tiles + gridDim.x - 1) : tile;
    }
};

// A packed tile in shared memory: its `count` nonzero values in order, and a bit for each element.
struct Packed {
    alignas(16) T values[GROUPS * GROUP];
    alignas(16) u8 mask[TILE<T> / 8];
    u32 count;
};

// Shared memory of an encoding block. counts, parts: scratch of `rank` and prefix::of_block;
// ticket: the block's next tile.
struct Shared {
    Packed tiles[2];  // one is packed while the other is stored
    Counts counts;
    alignas(16) u32 parts[ENCODERS / WARP];
    u32 ticket;
};

// tile.values = the `count` nonzero elements of the tile `x` in order, then zeros to a multiple of
// GROUP; tile.mask = bits. The thread's vector x[row] has the bits bits[row], and its values start
// at values[before[row]].
template <int ROWS>
__device__ __forceinline__ void pack(const uint4 (&x)[ROWS], const u32 (&bits)[ROWS],
                                     const u32 (&before)[ROWS], u32 count, Packed& tile) {
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        const u32 words[4] = {x[row].x, x[row].y, x[row].z, x[row].w};
        Packer<T> packer(tile.values + before[row]);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) packer.put(words, i);
        write_mask<T, ROWS>(tile.mask, row, bits[row]);
    }
    const u32 behind = count + threadIdx.x;
    if (behind < groups_of(count) * GROUP) tile.values[behind] = T{};
}

// True if a tile with `count` nonzero values is full; the last, shorter tile is if no element is
// zero. With LEAST values, these, the mask (TILE / 8 bytes) and the start (8) take TILE_NBYTES or
// more.
__device__ __forceinline__ bool is_full(const Encoding& call, u32 tile, u32 count) {
    constexpr u32 LEAST = (TILE_NBYTES - TILE<T> / 8 - 8 + 15) / 16 * GROUP;
    const i64 n = call.n - static_cast<i64>(tile) * TILE<T>;
    return count >= (n < TILE<T> ? static_cast<u32>(n) : LEAST);
}

// packed = the tile `loaded`, number `tile`; returns its count of values. counts: scratch of
// `rank`. SAYS: publishes the number of its groups too, with a mark if the tile is not full.
template <bool SAYS, int ROWS>
__device__ __forceinline__ u32 pack_tile(const Encoding& call, const uint4 (&loaded)[ROWS],
                                         u32 tile, Counts& counts, Packed& packed) {
    u32 bits[ROWS], before[ROWS];
#pragma unroll
    for (int row = 0; row < ROWS; ++row) bits[row] = set_bits<T>(loaded[row]);
    const u32 count = rank<WIDTH>(bits, counts, before);
    if (COUNTS_ARE_SHARED && threadIdx.x == 0) packed.count = count;
    if (SAYS && threadIdx.x == 0)
        prefix::publish(call.scratch.groups, tile, groups_of(count),
                        Values::AS_LONG && !is_full(call, tile, count));
    pack(loaded, bits, before, count, packed);
    return count;
}

// Stores the mask of tile number `tile`, which is `packed`, in the code's mask. BLOCK: threads of
// the block.
template <int BLOCK>
__device__ __forceinline__ void store_mask(const Encoding& call, const Packed& packed, u32 tile) {
    constexpr int VECS = TILE<T> / 128;  // of 16 bytes
    static_assert(VECS <= BLOCK);
    const i64 vec = static_cast<i64>(tile) * VECS + threadIdx.x;
    if (threadIdx.x < VECS && vec * 128 < call.n)
        store_any(call.y + call.code.mask + 16 * vec,
                  reinterpret_cast<const uint4*>(packed.mask)[threadIdx.x], call.aligned);
}

// Stores the `groups` groups of values of the tile `packed` from byte `begin` of y on, a group a
// thread of the BLOCK. Groups past the end of y are dropped: such a code is too long, and
// gist_sparse__finish replaces it by the raw elements. BY_LINES: threads start at a multiple of 128
// bytes, so that warps store whole cache lines.
template <int BLOCK>
__device__ __forceinline__ void store_values(const Encoding& call, const Packed& packed, u32 groups,
                                             i64 begin) {
    constexpr bool BY_LINES = Values::AS_LONG && sizeof(T) == 2;
    const i64 room = call.code.nbytes > begin ? (call.code.nbytes - begin) / 16 : 0;
    const u32 stored = groups < room ? groups : static_cast<u32>(room);
    const auto store = [&](auto group) {
        store_any(call.y + begin + 16 * group, Values::encode(packed.values + group * GROUP),
                  call.aligned);
    };
    if constexpr (BY_LINES) {
        const int past = static_cast<int>(reinterpret_cast<u64>(call.y + begin) >> 4) & 7;
        for (int group = static_cast<int>(threadIdx.x) - past; group < static_cast<int>(stored);
             group += BLOCK)
            if (group >= 0) store(group);
    } else {
        for (u32 group = threadIdx.x; group < stored; group += BLOCK) store(group);
    }
}

// Stores a tile's part of head and starts: y = {u64 size of the code, u64 0 for sparse, u64 begin
// of each tile's values}, filled up with 0 to a multiple of 16 bytes. Each tile, with `groups`
// groups from byte `begin` on, stores its own begin, the last one the rest.
__device__ __forceinline__ void store_numbers(const Encoding& call, u32 tile, u32 groups,
                                              i64 begin) {
    u8* const starts = call.y + HEAD_NBYTES;
    store_any<u64>(starts + 8ll * tile, begin, call.aligned);
    if (tile != call.tiles - 1) return;
    store_any<u64>(call.y, begin + 16 * groups, call.aligned);
    store_any<u64>(call.y + 8, 0, call.aligned);
    if (call.tiles % 2) store_any<u64>(starts + 8ll * call.tiles, 0, call.aligned);
}

// Stores the part of tile number `tile`, which is `packed` and has `count` values, of the sparse
// code: mask, values, and begin of the values, by a block of BLOCK threads. groups_before: groups
// of all tiles before it.
template <int BLOCK>
__device__ __forceinline__ void store_tile(const Encoding& call, const Packed& packed, u32 tile,
                                           u32 count, u64 groups_before) {
    const i64 begin = call.code.values + 16 * static_cast<i64>(groups_before);
    store_mask<BLOCK>(call, packed, tile);
    store_values<BLOCK>(call, packed, groups_of(count), begin);
    if (threadIdx.x == 0) store_numbers(call, tile, groups_of(count), begin);
}

// Stores the raw elements of tile number `tile`, of which `count` are not 0. If none is zero,
// packed.values are the elements; else x is read again.
__device__ __forceinline__ void keep_tile(const Encoding& call, const Packed& packed, u32 tile,
                                          u32 count) {
    u8* const to = call.y + HEAD_NBYTES;
    if (count < TILE<T>) {
        copy_tile<T, ROWS>(reinterpret_cast<const u8*>(call.x), to, tile, call.n, call.aligned);
        return;
    }
    const uint4* const vecs = reinterpret_cast<const uint4*>(packed.values);
#pragma unroll
    for (int vec = threadIdx.x; vec < TILE_NBYTES / 16; vec += ENCODERS)
        store_any(to + static_cast<i64>(tile) * TILE_NBYTES + 16 * vec, vecs[vec], call.aligned);
}

// What a block stores of its tiles: SPARSE code, raw elements (KEPT), or only begins (COUNTED). All
// blocks change from KEPT to COUNTED at the first tile that is not full.
enum Way { UNKNOWN, SPARSE, KEPT, COUNTED };

// The way of a block at its first tile, which has `count` values: KEPT if tile 0 is full (then its
// word has no mark), else SPARSE; then the block of tile 0 writes that no tile is full, *full = 0.
__device__ __forceinline__ Way way_of_block(const Encoding& call, u32 tile, u32 count) {
    if (!Values::AS_LONG) return SPARSE;
    const bool is_first = tile == 0;
    if (is_first ? is_full(call, tile, count)
                 : prefix::read_word(call.scratch.groups, 0) < prefix::MARK)
        return KEPT;
    if (is_first && threadIdx.x == 0) *call.scratch.full = 0;
    return SPARSE;
}

// A tile of `count` values for KEPT or COUNTED: records groups_before as its begin, and stores it
// raw if it and all before are full. marked: a tile between the block's last one and this one is
// not full. Changes `way` from KEPT to COUNTED at the first tile that is not full.
__device__ __forceinline__ void keep_or_count(const Encoding& call, const Packed& packed, u32 tile,
                                              u32 count, u64 groups_before, bool marked, Way& way) {
    const bool full = is_full(call, tile, count);
    if (threadIdx.x == 0) {
        if (way == KEPT && !marked && (!full || tile == call.tiles - 1))
            *call.scratch.full = full ? call.tiles : tile;
        call.scratch.begins[tile] = groups_before;
    }
    if (way == KEPT && (marked || !full)) way = COUNTED;
    if (way == KEPT) keep_tile(call, packed, tile, count);
}

// Stores or counts tile number `tile`, which is `packed` and has `count` values; groups_before:
// groups of all tiles before it; marked: a tile between the block's last one and this one is not
// full. Sets `way` if it is UNKNOWN.
__device__ __forceinline__ void finish_tile(const Encoding& call, const Packed& packed, u32 tile,
                                            u32 count, u64 groups_before, bool marked, Way& way) {
    if (way == UNKNOWN) way = way_of_block(call, tile, count);
    if (threadIdx.x == 0 && tile == call.tiles - 1)
        *call.scratch.nbytes = call.code.values + 16 * (groups_before + groups_of(count));
    if (!Values::AS_LONG || way == SPARSE)
        store_tile<ENCODERS>(call, packed, tile, count, groups_before);
    else
        keep_or_count(call, packed, tile, count, groups_before, marked, way);
}

// Encodes the tiles that the block gets by tickets. A round of the loop: pack tile `loading`, load
// the next, store tile `packed`, which the round before packed. Thread 0 takes tickets one round
// ahead.
__device__ __forceinline__ void encode_tiles(Shared& shared, const Encoding& call) {
    u32 upcoming = threadIdx.x == 0 ? call.ticket_after(0) : 0;
    u32 packed = NONE, loading = NONE;
    u32 of_packed = 0, summed = 0;  // values of `packed`; the tile up to which `begin` sums
    u64 begin = 0;                  // groups of the tiles before `summed`, when a round begins
    uint4 loaded[ROWS];
    int place = 0;
    Way way = UNKNOWN;
    do {
        if (threadIdx.x == 0) {
            shared.ticket = upcoming;
            upcoming = call.ticket_after(upcoming);
        }
        u32 of_loaded = 0;
        if (loading == NONE)
            __syncthreads();
        else
            of_loaded =
                pack_tile</*SAYS=*/true>(call, loaded, loading, shared.counts, shared.tiles[place]);
        const u32 next = shared.ticket < call.tiles ? shared.ticket : NONE;
        prefix::Span<ENCODERS, Values::AS_LONG> between(call.scratch.groups, summed,
                                                        packed == NONE ? 0 : packed);
        if (next != NONE)
            load_tile</*BEFORE_STORES=*/true>(call.x, next, call.n, call.aligned, loaded);
        const prefix::Total total =
            prefix::of_block<Values::AS_LONG>(between.total(), shared.parts);
        begin += total.sum;
        place ^= 1;
        if (packed != NONE) {
            const u32 count = COUNTS_ARE_SHARED ? shared.tiles[place].count : of_packed;
            finish_tile(call, shared.tiles[place], packed, count, begin, total.marked, way);
            begin += groups_of(count);
            summed = packed + 1;
        }
        packed = loading;
        of_packed = of_loaded;
        loading = next;
    } while (loading != NONE || packed != NONE);
}

// Stores the sparse code of all tiles, where tile 0 is full: `begins` has the place of each.
// counts, packed: shared memory. A block has every gridDim.x-th tile; barriers separate its packing
// from its storing.
__device__ __forceinline__ void encode_again(const Encoding& call, Counts& counts, Packed& packed) {
    for (u32 tile = blockIdx.x; tile < call.tiles; tile += gridDim.x) {
        uint4 loaded[DECODED_ROWS];
        load_tile</*BEFORE_STORES=*/false>(call.x, tile, call.n, call.aligned, loaded);
        const u32 count = pack_tile</*SAYS=*/false>(call, loaded, tile, counts, packed);
        __syncthreads();
        store_tile<THREADS>(call, packed, tile, count, call.scratch.begins[tile]);
        __syncthreads();
    }
}

// ---- decoding -----------------------------------------------------------------------------------

// y = tile `tile` of the code x of n elements, decoded; aligned: x and y start at multiples of 16
// bytes. The code may be any bytes: a tile whose values do not lie inside it is 0, or NaN for
// codecs with HAS_NAN. The block decodes the tile's values to `packed`, in shared memory; each
// thread then takes values for its elements there, by their rank. Mask and begins are loaded first,
// to hide their latency.
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
        end = load_any<i64>(tile == tiles_of<T>(n) - 1 ? x : start + 8, aligned);
    }
    if (is_raw<T>(x, n, code, aligned)) {
        copy_tile<T, DECODED_ROWS>(x + HEAD_NBYTES, reinterpret_cast<u8*>(y), tile, n, aligned);
        return;
    }
    const u32 groups = sound_groups<GROUPS>(begin, end, code);
    for (u32 group = threadIdx.x; group < groups; group += THREADS)
        Values::decode(load_any<uint4>(x + begin + 16 * group, aligned), packed + group * GROUP);
    __shared__ bool in_place;  // computed by thread 0 alone: all threads would need more registers
    if constexpr (Values::HAS_NAN) {
        if (threadIdx.x == 0) in_place = has_place<T, GROUPS>(x, tile, n, code, aligned);
    }
    const u32 count = rank<WIDTH>(bits, counts, before);
    bool sound = groups == groups_of(count);
    if constexpr (Values::HAS_NAN) sound = sound && in_place;
#pragma unroll
    for (int row = 0; row < DECODED_ROWS; ++row)
        store_row<T, DECODED_ROWS>(y, tile, row, n, aligned,
                                   unpack(packed, before[row], sound ? bits[row] : 0));
    if constexpr (Values::HAS_NAN) {
        if (sound) return;  // a second loop: NaNs in the loop above would spill registers
#pragma unroll 1
        for (int row = 0; row < DECODED_ROWS; ++row)
            store_row<T, DECODED_ROWS>(y, tile, row, n, aligned, vector_of_nan<T>());
    }
}

}  // namespace cto

using namespace cto;

// ---- entry points; aligned: both arrays start at a multiple of 16 bytes -------------------------
//
// mask, values: byte offsets of the mask and of the first value in the code.

// y, of n_y bytes, = sparse code of the n_x elements x, if tile 0 is not full; else the raw
// elements of the full tiles from tile 0 on, and no others. gist_sparse__finish completes y. mask,
// values: byte offsets of the mask and of the first value in y. Blocks take tiles by *tickets, so
// that there may be fewer blocks than tiles. groups[tile] = 1 + 16-byte groups of its values, for
// other blocks; tickets and groups are zero before the launch. begins[tile] = groups of all tiles
// before it, where tile 0 is full; *nbytes = length of the sparse code; *full = number of full
// tiles before the first that is not. aligned: x and y start at multiples of 16 bytes.
extern "C" __global__ void __launch_bounds__(ENCODERS, ENCODING_BLOCKS)
    gist_sparse__encode(const void* x, u8* y, i64 n_x, i64 n_y, i64 mask, i64 values,
                        Zeroed<u32>* tickets, Zeroed<u32>* groups, u64* begins, u64* nbytes,
                        u32* full, bool aligned) {
    __shared__ Shared shared;
    encode_tiles(shared, {static_cast<const T*>(x),
                          n_x,
                          y,
                          {/*nbytes=*/n_y, mask, values},
                          {tickets, groups, begins, nbytes, full},
                          /*tiles=*/static_cast<u32>(tiles_of<T>(n_x)),
                          aligned});
}

// Completes y, n_y bytes, that gist_sparse__encode made of the n_x elements x: y = sparse code if
// it is shorter than head and raw elements, else head and raw elements. mask, values: byte offsets
// of the mask and of the first value in y. begins, nbytes, full: from gist_sparse__encode; `groups`
// is zeroed. aligned: x and y start at multiples of 16 bytes. One block on a multiprocessor is
// stated because without it CUDA 13 limits kernels for 12.0 to 48 registers, and they spill.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gist_sparse__finish(const void* x, u8* y, i64 n_x, i64 n_y, i64 mask, i64 values,
                        Zeroed<u32>* groups, u64* begins, u64* nbytes, u32* full, bool aligned) {
    const i64 tiles = tiles_of<T>(n_x),
              raw_nbytes = HEAD_NBYTES + n_x * static_cast<i64>(sizeof(T));
    const i64 thread = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    for (i64 tile = thread; tile < tiles; tile += gridDim.x * THREADS) groups[tile].value = 0;
    const bool was_encoded = raw_nbytes > values;
    const u32 first = Values::AS_LONG && was_encoded ? *full : 0;
    if (was_encoded && static_cast<i64>(*nbytes) < raw_nbytes) {
        if constexpr (Values::AS_LONG) {
            __shared__ Packed packed;
            __shared__ Counts counts;
            const Encoding call{static_cast<const T*>(x),
                                n_x,
                                y,
                                {/*nbytes=*/n_y, mask, values},
                                {/*tickets=*/nullptr, groups, begins, nbytes, full},
                                static_cast<u32>(tiles),
                                aligned};
            if (first > 0) encode_again(call, counts, packed);
        }
        return;
    }
    if (thread == 0) {
        store_any<u64>(y, raw_nbytes, aligned);
        store_any<u64>(y + 8, 1, aligned);
    }
    for (i64 tile = first + blockIdx.x; tile < tiles; tile += gridDim.x)
        copy_tile<T, DECODED_ROWS>(static_cast<const u8*>(x), y + HEAD_NBYTES, tile, n_x, aligned);
}

// y = the n_y elements of the code x of n_x bytes, one tile a block; mask, values: byte offsets of
// the mask and of the first value in x. x may be any bytes: tiles whose values do not lie inside it
// are 0, or NaN for codecs with HAS_NAN. aligned: x and y start at multiples of 16 bytes.
extern "C" __global__ void __launch_bounds__(THREADS, DECODING_BLOCKS)
    gist_sparse__decode(const u8* x, void* y, i64 n_x, i64 n_y, i64 mask, i64 values,
                        bool aligned) {
    // One vector longer than the values: unpack_four reads the word after the last one.
    alignas(16) __shared__ T packed[GROUPS * GROUP + WIDTH];
    __shared__ Counts counts;
    decode_tile(packed, counts, x, blockIdx.x, n_y, {/*nbytes=*/n_x, mask, values},
                static_cast<T*>(y), aligned);
}
