// SPDX-License-Identifier: MIT
// Operands of algorithm/elementwise.cuh: which elements random words keep, and masks of bits.
//
// Bit i % 32 of word i / 32 stands for element i, so byte i / 8 has eight neighbours.
#pragma once
#include "algorithm/elementwise.cuh"
#include "dropout/philox.cuh"

namespace cto::random_mask {

using philox::N_WORDS;
using philox::Stream;
using philox::Words;

constexpr u32 ALL = 0xFFFFFFFFu;

// Which elements are kept: those whose word is at most `largest`; where that is all, none is drawn.
struct Draw {
    Stream stream;
    u32 largest;

    __device__ bool draws() const { return largest != ALL; }
    __device__ bool keeps(u32 word) const { return word <= largest; }
    __device__ bool keeps_element(i64 element) const {
        return !draws() || keeps(stream.word_of(element));
    }
};

// N neighbours from `first`, a multiple of N, on: their words, of whole blocks or a part of one.
template <int N>
struct Neighbours {
    u32 words[N];

    // The block's number without the `high` bits, which neighbours share.
    __device__ __forceinline__ void draw(const Stream& stream, u32 low, u32 high, u32 first) {
        if constexpr (N == 1) {
            words[0] = stream.word_of(low, high, first);
        } else if constexpr (N >= N_WORDS) {
#pragma unroll
            for (int b = 0; b < N / N_WORDS; ++b) {
                const Words block = stream.block(low + b, high);
#pragma unroll
                for (int i = 0; i < N_WORDS; ++i) words[b * N_WORDS + i] = block.at[i];
            }
        } else {
            const Words block = stream.block(low, high);
#pragma unroll
            for (int i = 0; i < N; ++i)
                words[i] = first % N_WORDS < N ? block.at[i] : block.at[N + i];
        }
    }
    __device__ __forceinline__ void draw(const Stream& stream, i64 first) {
        const u64 number = static_cast<u64>(first) / N_WORDS;
        draw(stream, static_cast<u32>(number), static_cast<u32>(number >> 32),
             static_cast<u32>(first));
    }
};

// The widest word in so many bytes.
template <int N>
struct Bytes {};
__device__ u16 word_of(Bytes<2>);
__device__ u32 word_of(Bytes<4>);
__device__ u32 word_of(Bytes<8>);

// ---- operands of an element-wise map ------------------------------------------------------------

// Whether each element is kept. A tile's blocks share the upper half of their numbers, and so what
// the first two rounds make of it.
template <class S>
struct Kept {
    static constexpr int width = S::width, read_nbytes = 0, written_nbytes = 0;
    static constexpr int VECTORS = S::each / width;
    static constexpr u32 BLOCKS = S::size / N_WORDS;
    static_assert((BLOCKS & (BLOCKS - 1)) == 0);
    Draw rule;
    i64 first;
    Neighbours<width> held[VECTORS];

    __device__ void seek(i64 start) { first = start; }
    // All of them, when everything else is on its way: what vectors share is then computed once.
    __device__ void load(int u, u32 offset) {
        if (u + 1 < VECTORS) return;
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) held[v] = Neighbours<width>{};
        if (!rule.draws()) return;
        const u64 number = static_cast<u64>(first) / N_WORDS;
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            const u32 at = offset - (u - v) * S::threads * width;
            held[v].draw(rule.stream, static_cast<u32>(number) + at / N_WORDS,
                         static_cast<u32>(number >> 32), at);
        }
    }
    __device__ void load_apart(u32 offset, u32) {
#pragma unroll
        for (int i = 0; i < width; ++i)
            held[0].words[i] =
                rule.draws() ? rule.stream.word_of(first + elementwise::apart<S>(offset, i)) : 0;
    }
    __device__ bool at(int u, int i) const { return rule.keeps(held[u].words[i]); }
    template <bool STREAMING>
    __device__ void store(int, u32) const {}
    __device__ void store_apart(u32, u32) const {}
};

// One byte for each element. A vector's are held as words: as bools they cost three times as many
// instructions. `filled` is ALL where every element is kept, whatever the mask says.
template <class S>
struct ByteReader {
    static constexpr int width = S::width, read_nbytes = 1, written_nbytes = 0;
    using Word = decltype(word_of(Bytes<width>()));
    static constexpr int EACH = sizeof(Word);
    const u8* from;
    u32 filled;
    vec::Vec<Word, width / EACH> held[S::each / width];

    __device__ void seek(i64 first) { from += first; }
    __device__ void load(int u, u32 offset) {
        held[u] = *reinterpret_cast<const vec::Vec<Word, width / EACH>*>(from + offset);
#pragma unroll
        for (int w = 0; w < width / EACH; ++w) held[u].at[w] |= static_cast<Word>(filled);
    }
    __device__ void load_apart(u32 offset, u32 n) {
        held[0] = {};
#pragma unroll
        for (int i = 0; i < width; ++i) {
            const u32 element = elementwise::apart<S>(offset, i);
            const u32 byte = element < n ? from[element] | (filled & 0xFFu) : 0;
            held[0].at[i / EACH] |= static_cast<Word>(byte << 8 * (i % EACH));
        }
    }
    __device__ bool at(int u, int i) const {
        return held[u].at[i / EACH] & 0xFFu << 8 * (i % EACH);
    }
    template <bool STREAMING>
    __device__ void store(int, u32) const {}
    __device__ void store_apart(u32, u32) const {}
};

// One bit for each element, of whole tiles a byte at a time.
template <class S>
struct BitReader {
    static constexpr int width = S::width, read_nbytes = 0, written_nbytes = 0;
    const u8* from;
    u32 filled;
    u32 held[S::each / width];

    __device__ void seek(i64 first) { from += first / 8; }
    __device__ void load(int u, u32 offset) { held[u] = from[offset / 8] >> offset % 8 | filled; }
    __device__ void load_apart(u32 offset, u32 n) {
        held[0] = filled;
#pragma unroll
        for (int i = 0; i < width; ++i) {
            const u32 element = elementwise::apart<S>(offset, i);
            if (element < n) held[0] |= (from[element / 8] >> element % 8 & 1u) << i;
        }
    }
    __device__ bool at(int u, int i) const { return held[u] >> i & 1u; }
    template <bool STREAMING>
    __device__ void store(int, u32) const {}
    __device__ void store_apart(u32, u32) const {}
};

template <class S>
struct BitWriter {
    static constexpr int width = S::width, read_nbytes = 0, written_nbytes = 0;
    static constexpr int LANES = 8 / width;  // that share a byte
    static_assert(S::threads % WARP == 0);
    u8* to;
    bool held[S::each / width][width];

    __device__ void seek(i64 first) {
        if (to) to += first / 8;
    }
    __device__ void load(int, u32) const {}
    __device__ void load_apart(u32, u32) const {}
    __device__ bool& at(int u, int i) { return held[u][i]; }

    template <bool STREAMING>
    __device__ void store(int u, u32 offset) const {
        if (!to) return;
        u32 bits = 0;
#pragma unroll
        for (int i = 0; i < width; ++i) bits |= held[u][i] ? 1u << i : 0u;
        bits <<= offset % 8;
#pragma unroll
        for (int step = 1; step < LANES; step *= 2) bits |= __shfl_xor_sync(ALL_LANES, bits, step);
        if (threadIdx.x % LANES == 0) to[offset / 8] = static_cast<u8>(bits);
    }
    // A warp has 32 neighbours, which are a word; all of its lanes are here.
    __device__ void store_apart(u32 offset, u32 n) const {
        if (!to) return;
#pragma unroll
        for (int i = 0; i < width; ++i) {
            const u32 element = elementwise::apart<S>(offset, i);
            const u32 word = __ballot_sync(ALL_LANES, element < n && held[0][i]);
            if (threadIdx.x % WARP == 0 && element < n)
                reinterpret_cast<u32*>(to)[element / WARP] = word;
        }
    }
};

struct KeptBy {
    Draw rule;
    template <class S>
    __device__ Kept<S> held() const {
        return {rule};
    }
};
struct BytesFrom {
    const bool* mask;
    bool keeps_all;
    template <class S>
    __device__ ByteReader<S> held() const {
        return {reinterpret_cast<const u8*>(mask), keeps_all ? ALL : 0};
    }
};
struct BitsFrom {
    const u32* mask;
    bool keeps_all;
    template <class S>
    __device__ BitReader<S> held() const {
        return {reinterpret_cast<const u8*>(mask), keeps_all ? ALL : 0};
    }
};
struct BitsTo {
    u32* mask;
    template <class S>
    __device__ BitWriter<S> held() const {
        return {reinterpret_cast<u8*>(mask)};
    }
};

}  // namespace cto::random_mask
