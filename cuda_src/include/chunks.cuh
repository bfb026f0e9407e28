// SPDX-License-Identifier: MIT
// Data movement: an output that is assembled from runs of consecutive words.
//
// A word (T) is as wide as all addresses and lengths of a launch allow. A thread writes 16 aligned
// bytes, a chunk, wherever its words come from: it loads the 32 aligned bytes around and shifts.
// A source says what stands at a position of the output: `at(position)` is a Run.
#pragma once
#include "include/packets.cuh"

// Words of a chunk: 16 bytes of them, or 1 where runs are short. Chunks a thread writes.
#ifndef CTO_WORDS
#define CTO_WORDS 1
#endif
#ifndef CTO_CHUNKS
#define CTO_CHUNKS 2
#endif

namespace cto {

constexpr int WORDS = CTO_WORDS;
constexpr int CHUNKS = CTO_CHUNKS;
// Blocks on a multiprocessor at least: registers for that many, so that none is spilled for more.
constexpr int RESIDENT = 8;
constexpr int PIECE = WARP * WORDS;             // words that a warp writes at a time
constexpr int REACH = CHUNKS * PIECE;           // and in all, one piece after the other
constexpr int TILE = CHUNKS * THREADS * WORDS;  // words that a block writes

using Chunk = Packet<T, WORDS>;

// `length` consecutive words at `from`, which is inside an array from `begin` to `end`; zeros where
// `from` is null.
struct Run {
    const T* from;
    i64 length;
    const T* begin;
    const T* end;
};

__device__ __forceinline__ Run zeros(i64 length) { return {nullptr, length, nullptr, nullptr}; }

__device__ __forceinline__ const T* shuffled(const T* pointer, int lane) {
    const u64 address = __shfl_sync(ALL_LANES, reinterpret_cast<u64>(pointer), lane);
    return reinterpret_cast<const T*>(address);
}

__device__ __forceinline__ u32 bytes_off_16(const T* address) {
    return static_cast<u32>(reinterpret_cast<u64>(address)) & 15u;
}

// What is loaded for a chunk: the aligned bytes around it.
template <int N>
struct Loaded {
    uint4 low, high;
    u32 shift;

    // Whether the run has so many words, and its array all that is loaded for them.
    __device__ static bool possible(const Run& run, int words) {
        if (run.length < words || !run.from) return run.length >= words;
        const i64 before = bytes_off_16(run.from) / sizeof(T);
        return before == 0 ||
               (run.from - run.begin >= before && run.end - run.from >= words + N - before);
    }

    __device__ void load(const T* from) {
        low = high = uint4{0, 0, 0, 0};
        shift = bytes_off_16(from);
        const uint4* aligned = reinterpret_cast<const uint4*>(from - shift / sizeof(T));
        if (from) low = __ldg(aligned);
        if (shift) high = __ldg(aligned + 1);
    }

    // The 16 bytes from `shift` on: by two words, by one, by bytes.
    __device__ Chunk chunk() const {
        u32 w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        if (shift & 8) {
#pragma unroll
            for (int i = 0; i < 6; ++i) w[i] = w[i + 2];
        }
        if (sizeof(T) <= 4 && (shift & 4)) {
#pragma unroll
            for (int i = 0; i < 5; ++i) w[i] = w[i + 1];
        }
        if (sizeof(T) <= 2) {
#pragma unroll
            for (int i = 0; i < 4; ++i) w[i] = __funnelshift_r(w[i], w[i + 1], 8 * (shift & 3));
        }
        const uint4 joined{w[0], w[1], w[2], w[3]};
        return *reinterpret_cast<const Chunk*>(&joined);
    }
};

template <>
struct Loaded<1> {
    Chunk word;

    __device__ static bool possible(const Run& run, int words) { return run.length >= words; }
    __device__ void load(const T* from) { word.at[0] = from ? __ldcs(from) : T{}; }
    __device__ Chunk chunk() const { return word; }
};

__device__ __forceinline__ void store_chunk(T* to, const Chunk& chunk) {
    if constexpr (sizeof(Chunk) == 16)
        store_streaming(reinterpret_cast<Chunk*>(to), chunk);
    else
        *reinterpret_cast<Chunk*>(to) = chunk;
}

// Loads the chunks of a lane that are in one run and returns a bit for each. Lane u finds the run
// of piece u; only where that run ends inside the piece does every lane look for its own.
template <class Source>
__device__ __forceinline__ u32 load_chunks(const Source& source, i64 n, i64 first, int lane,
                                           Loaded<WORDS>* loaded) {
    const T* piece = nullptr;
    bool one_run = false;
    const i64 start = first + lane % CHUNKS * PIECE;
    if (start >= 0 && start + PIECE <= n) {
        const Run run = source.at(start);
        one_run = Loaded<WORDS>::possible(run, PIECE);
        piece = run.from;
    }
    u32 done = __ballot_sync(ALL_LANES, one_run) & ((1u << CHUNKS) - 1);
#pragma unroll
    for (int u = 0; u < CHUNKS; ++u) {
        const T* from = shuffled(piece, u);
        if (done >> u & 1u) {
            loaded[u].load(from ? from + lane * WORDS : nullptr);
            continue;
        }
        const i64 position = first + u * PIECE + lane * WORDS;
        if (position < 0 || position + WORDS > n) continue;
        const Run run = source.at(position);
        if (!Loaded<WORDS>::possible(run, WORDS)) continue;
        loaded[u].load(run.from);
        done |= 1u << u;
    }
    return done;
}

// Chunks of a piece that several runs share, or that an end of the output cuts off: those of the
// lanes in `left`, a lane for every word.
template <class Source>
__device__ __forceinline__ void copy_words(T* out, i64 n, i64 piece, u32 left, int lane,
                                           const Source& source) {
    for (; left; left &= left - 1) {
        const i64 position = piece + (__ffs(left) - 1) * WORDS + lane;
        if (lane >= WORDS || position < 0 || position >= n) continue;
        const T* from = source.at(position).from;
        out[position] = from ? __ldg(from) : T{};
    }
}

// Tile number `tile` of the n words of `out`, which may start anywhere.
template <class Source>
__device__ __forceinline__ void write_tile(T* out, i64 n, i64 tile, const Source& source) {
    const int lane = threadIdx.x % WARP;
    const i64 lead = WORDS == 1 ? 0 : bytes_off_16(out) / sizeof(T);
    const i64 mine = tile * TILE - lead + threadIdx.x / WARP * REACH;
    Loaded<WORDS> loaded[CHUNKS];
    const u32 done = load_chunks(source, n, mine, lane, loaded);
#pragma unroll
    for (int u = 0; u < CHUNKS; ++u)
        if (done >> u & 1u) store_chunk(out + mine + u * PIECE + lane * WORDS, loaded[u].chunk());
    if (WORDS == 1) return;
#pragma unroll 1
    for (int u = 0; u < CHUNKS; ++u) {
        const i64 piece = mine + u * PIECE;
        const bool open = !(done >> u & 1u) && piece + lane * WORDS < n;
        copy_words(out, n, piece, __ballot_sync(ALL_LANES, open), lane, source);
    }
}

}  // namespace cto
