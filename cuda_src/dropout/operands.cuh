// SPDX-License-Identifier: MIT
// Operands of algorithm/elementwise.cuh for dropout: the random choice of elements, and masks.
//
// A mask has a byte (a bool) for each element, or a bit: bit i % 32 of word i / 32, which is bit i
// % 8 of byte i / 8.
//
// An operand has the thread's elements of a tile in registers: S, a Tiling, has the tile's size in
// elements, `threads` a block, `each` elements a thread, `width` a vector. Its functions:
//     seek(first)         the tile begins at element `first` of the array
//     load(u, offset)     loads vector u, which is at `offset` in the tile
//     at(u, i)            element i of vector u, an argument of the map
//     store(u, offset)    stores vector u (STREAMING: evict-first)
//     load_apart(offset, n), store_apart(offset, n)    the same for a tile that is not aligned, or
//                         has only n elements: the thread's are S::threads apart
#pragma once
#include "algorithm/elementwise.cuh"
#include "math/philox.cuh"

namespace cto::random_mask {

using philox::N_WORDS;
using philox::Words;

constexpr u32 ALL = 0xFFFFFFFFu;

// Which elements are kept: those whose word in `sequence` is at most `largest`. If all are kept,
// largest = ALL, no words are drawn.
template <class Sequence>
struct DrawOf {
    Sequence sequence;
    u32 largest;

    __device__ bool draws() const { return largest != ALL; }
    __device__ bool keeps(u32 word) const { return word <= largest; }
    // True if the element with this index in its array is kept.
    __device__ bool keeps_element(i64 element) const {
        return !draws() || keeps(sequence.word_of(element));
    }
};
using Draw = DrawOf<philox::RandomSequence>;
using KeyedDraw = DrawOf<philox::KeyedSequence>;

// A reference to one bit of a mask; assigning true sets the bit, which is 0 before.
struct Mark {
    u32& word;
    u32 bit;
    __device__ __forceinline__ void operator=(bool kept) const { word |= kept ? bit : 0; }
};

// word_of(Bytes<N>()) has the type of the words that N bytes of a mask are loaded and stored in; it
// is only used in decltype.
template <int N>
struct Bytes {};
__device__ u8 word_of(Bytes<1>);
__device__ u16 word_of(Bytes<2>);
__device__ u32 word_of(Bytes<4>);
__device__ u32 word_of(Bytes<8>);

// N bytes of a mask, four in a register, the first lowest; 0 at first. `mark(i) = kept` sets byte
// i.
template <int N>
struct Marks {
    using Word = decltype(word_of(Bytes<N>()));  // the widest type in N bytes, up to 4
    static constexpr int WORDS = N / sizeof(Word);
    u32 words[WORDS];

    __device__ Mark mark(int i) { return {words[i / 4], 1u << 8 * (i % 4)}; }
    __device__ bool at(int i) const { return words[i / 4] >> 8 * (i % 4) & 1u; }
    // Writes the N bytes to `to`, aligned to N bytes.
    __device__ __forceinline__ void store(void* to) const {
        vec::Vec<Word, WORDS> bytes;
#pragma unroll
        for (int w = 0; w < WORDS; ++w) bytes.at[w] = static_cast<Word>(words[w]);
        vec::store_streaming(static_cast<vec::Vec<Word, WORDS>*>(to), bytes);
    }
};

// The random word of one element, and the largest word with which an element is kept.
struct Choice {
    u32 word, largest;
    __device__ bool kept() const { return word <= largest; }
};

// kept ? x * scale : 0. Not a product with 0: inf * 0 is NaN.
__device__ __forceinline__ float scaled_or_0(float x, bool kept, float scale) {
    const float scaled = multiply_subnormal(x, scale);  // for all elements, so no branch is needed
    return kept ? scaled : 0.0f;
}
__device__ __forceinline__ double scaled_or_0(double x, bool kept, double scale) {
    return kept ? x * scale : 0.0;
}

// Sets `mark`, the element's place in a mask, to kept = drawn.word <= drawn.largest, and returns
// kept ? x * scale : 0.
__device__ __forceinline__ double marked(double x, Choice drawn, double scale, const Mark& mark) {
    mark = drawn.kept();
    return scaled_or_0(x, drawn.kept(), scale);
}
// Sets `mark` to kept and returns kept ? x * scale : 0, for float32; in PTX, as the compiler would
// compare twice.
__device__ __forceinline__ float marked(float x, Choice drawn, float scale, const Mark& mark) {
#ifdef __CUDA_CPU__
    mark = drawn.kept();
    return scaled_or_0(x, drawn.kept(), scale);
#else
    float y;
    asm("{ .reg .pred kept;\n"
        "setp.le.u32 kept, %2, %3;\n"
        "mov.f32 %0, 0f00000000;\n"
        "@kept mul.rn.f32 %0, %4, %5;\n"
        "@kept or.b32 %1, %1, %6; }"
        : "=&f"(y), "+r"(mark.word)
        : "r"(drawn.word), "r"(drawn.largest), "f"(x), "f"(scale), "r"(mark.bit));
    return y;
#endif
}

// The random words of elements [first, first + N), first a multiple of N. Element e has word e % 4
// of Philox's block number e / 4 (N_WORDS = 4).
template <int N>
struct Neighbours {
    u32 words[N];

    // (low, high) are the halves of the first element's block number; all N elements have the same
    // `high`. first: the first element, or its lower 32 bits.
    template <class Sequence>
    __device__ __forceinline__ void draw(const Sequence& sequence, u32 low, u32 high, u32 first) {
        if constexpr (N == 1) {
            words[0] = sequence.word_of(low, high, first);
        } else if constexpr (N >= N_WORDS) {
#pragma unroll
            for (int b = 0; b < N / N_WORDS; ++b) {
                const Words block = sequence.block(low + b, high);
#pragma unroll
                for (int i = 0; i < N_WORDS; ++i) words[b * N_WORDS + i] = block.at[i];
            }
        } else {
            const Words block = sequence.block(low, high);  // N = 2: its first or second half
#pragma unroll
            for (int i = 0; i < N; ++i)
                words[i] = first % N_WORDS < N ? block.at[i] : block.at[N + i];
        }
    }
    // Draws the words of elements [first, first + N).
    template <class Sequence>
    __device__ __forceinline__ void draw(const Sequence& sequence, i64 first) {
        const u64 number = static_cast<u64>(first) / N_WORDS;
        draw(sequence, static_cast<u32>(number), static_cast<u32>(number >> 32),
             static_cast<u32>(first));
    }
};

// ---- operands of an element-wise map ------------------------------------------------------------

// Operand that gives each element its Choice. A tile has BLOCKS blocks of four words, a power of
// two, so that all their numbers have the same upper half, and the compiler computes its part of
// the first two rounds once.
template <class S>
struct Choices {
    static constexpr int width = S::width, read_nbytes = 0, written_nbytes = 0;
    static constexpr int VECTORS = S::each / width;
    static constexpr u32 BLOCKS = S::size / N_WORDS;
    static_assert((BLOCKS & (BLOCKS - 1)) == 0);
    Draw rule;
    i64 first;
    Neighbours<width> registers[VECTORS];

    __device__ void seek(i64 start) { first = start; }
    // Called for vectors u = 0, 1, ..., each at `offset` in the tile: draws for all of them with
    // the last one, when the loads of other operands are under way. at: the offset of vector v.
    __device__ void load(int u, u32 offset) {
        if (u + 1 < VECTORS) return;
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) registers[v] = Neighbours<width>{};
        if (!rule.draws()) return;
        const u64 number = static_cast<u64>(first) / N_WORDS;
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            const u32 at = offset - (u - v) * S::threads * width;
            registers[v].draw(rule.sequence, static_cast<u32>(number) + at / N_WORDS,
                              static_cast<u32>(number >> 32), at);
        }
    }
    // words[i] = the random word of element first + offset + i * S::threads: in a tile without
    // vectors, a thread's elements are S::threads apart.
    __device__ void load_apart(u32 offset, u32) {
#pragma unroll
        for (int i = 0; i < width; ++i)
            registers[0].words[i] =
                rule.draws() ? rule.sequence.word_of(first + elementwise::apart<S>(offset, i)) : 0;
    }
    __device__ Choice at(int u, int i) const { return {registers[u].words[i], rule.largest}; }
    template <bool STREAMING>
    __device__ void store(int, u32) const {}
    __device__ void store_apart(u32, u32) const {}
};

// Operand that reads a mask of bytes. Registers have words of EACH bytes, as bools would cost three
// times as many instructions. `filled` is ORed to each word: ALL keeps every element, whatever the
// mask has; else it is 0.
template <class S>
struct ByteReader {
    static constexpr int width = S::width, read_nbytes = 1, written_nbytes = 0;
    using Word = decltype(word_of(Bytes<width>()));
    static constexpr int EACH = sizeof(Word);
    const u8* from;
    u32 filled;
    vec::Vec<Word, width / EACH> registers[S::each / width];

    // The tile begins at element `first` of the array; its bytes of the mask follow from there.
    __device__ void seek(i64 first) { from += first; }
    // Loads the bytes of vector u, at `offset` in the tile.
    __device__ void load(int u, u32 offset) {
        registers[u] = *reinterpret_cast<const vec::Vec<Word, width / EACH>*>(from + offset);
#pragma unroll
        for (int w = 0; w < width / EACH; ++w) registers[u].at[w] |= static_cast<Word>(filled);
    }
    // Byte i of registers[0] = from[offset + i * S::threads] | filled, or 0 from element n on: in a
    // tile without vectors, a thread's elements are S::threads apart.
    __device__ void load_apart(u32 offset, u32 n) {
        registers[0] = {};
#pragma unroll
        for (int i = 0; i < width; ++i) {
            const u32 element = elementwise::apart<S>(offset, i);
            const u32 byte = element < n ? from[element] | (filled & 0xFFu) : 0;
            registers[0].at[i / EACH] |= static_cast<Word>(byte << 8 * (i % EACH));
        }
    }
    __device__ bool at(int u, int i) const {
        return registers[u].at[i / EACH] & 0xFFu << 8 * (i % EACH);
    }
    template <bool STREAMING>
    __device__ void store(int, u32) const {}
    __device__ void store_apart(u32, u32) const {}
};

// Operand that reads a mask of bits. A vector has at most 8 elements, so its bits lie in one byte.
// `filled` is ORed to each register: ALL keeps every element, whatever the mask has; else it is 0.
template <class S>
struct BitReader {
    static constexpr int width = S::width, read_nbytes = 0, written_nbytes = 0;
    const u8* from;
    u32 filled;
    u32 registers[S::each / width];

    // The tile begins at element `first` of the array; its bits of the mask follow from there.
    __device__ void seek(i64 first) { from += first / 8; }
    __device__ void load(int u, u32 offset) {  // the bits of the vector's elements, from bit 0 on
        registers[u] = from[offset / 8] >> offset % 8 | filled;
    }
    // Bit i of registers[0] = bit of element offset + i * S::threads in the mask, or 1 if filled:
    // in a tile without vectors, a thread's elements are S::threads apart.
    __device__ void load_apart(u32 offset, u32 n) {
        registers[0] = filled;
#pragma unroll
        for (int i = 0; i < width; ++i) {
            const u32 element = elementwise::apart<S>(offset, i);
            if (element < n) registers[0] |= (from[element / 8] >> element % 8 & 1u) << i;
        }
    }
    __device__ bool at(int u, int i) const { return registers[u] >> i & 1u; }
    template <bool STREAMING>
    __device__ void store(int, u32) const {}
    __device__ void store_apart(u32, u32) const {}
};

// Operand that writes a mask of bytes, or nothing where `to` is null.
template <class S>
struct ByteWriter {
    static constexpr int width = S::width, read_nbytes = 0, written_nbytes = 1;
    u8* to;
    Marks<width> registers[S::each / width];

    __device__ void seek(i64 first) {
        if (to) to += first;
    }
    __device__ void load(int u, u32) { registers[u] = {}; }
    __device__ void load_apart(u32, u32) { registers[0] = {}; }
    __device__ Mark at(int u, int i) { return registers[u].mark(i); }

    template <bool STREAMING>
    __device__ void store(int u, u32 offset) const {
        if (to) registers[u].store(to + offset);
    }
    // to[offset + i * S::threads] = byte i of registers[0], up to element n.
    __device__ void store_apart(u32 offset, u32 n) const {
        if (!to) return;
#pragma unroll
        for (int i = 0; i < width; ++i) {
            const u32 element = elementwise::apart<S>(offset, i);
            if (element < n) to[element] = registers[0].at(i);
        }
    }
};

// Operand that writes a mask of bits, or nothing where `to` is null. LANES neighbouring lanes have
// the bits of one byte, which they combine by shuffles.
template <class S>
struct BitWriter {
    static constexpr int width = S::width, read_nbytes = 0, written_nbytes = 0;
    static constexpr int LANES = 8 / width;
    static_assert(S::threads % WARP == 0);
    u8* to;
    u32 registers[S::each / width];

    __device__ void seek(i64 first) {
        if (to) to += first / 8;
    }
    __device__ void load(int u, u32) { registers[u] = 0; }
    __device__ void load_apart(u32, u32) { registers[0] = 0; }
    __device__ Mark at(int u, int i) { return {registers[u], 1u << i}; }

    // Stores vector u, at `offset` in the tile: the first of LANES lanes writes the byte that has
    // the bits of all.
    template <bool STREAMING>
    __device__ void store(int u, u32 offset) const {
        if (!to) return;
        u32 bits = registers[u] << offset % 8;
#pragma unroll
        for (int step = 1; step < LANES; step *= 2) bits |= __shfl_xor_sync(ALL_LANES, bits, step);
        if (threadIdx.x % LANES == 0) to[offset / 8] = static_cast<u8>(bits);
    }
    // For each i, the lanes of a warp have 32 neighbouring elements: one word of the mask, which is
    // their ballot. Bits of elements from n on are 0. All lanes of the warp must call this.
    __device__ void store_apart(u32 offset, u32 n) const {
        if (!to) return;
#pragma unroll
        for (int i = 0; i < width; ++i) {
            const u32 element = elementwise::apart<S>(offset, i);
            const u32 word = __ballot_sync(ALL_LANES, element < n && (registers[0] >> i & 1u));
            if (threadIdx.x % WARP == 0 && element < n)
                reinterpret_cast<u32*>(to)[element / WARP] = word;
        }
    }
};

// Arguments of map_elements and map_tiles: operand<S>() makes the operand above for a tiling S:
// Choices, and readers and writers of masks. keeps_all: the mask is not to be heeded, all elements
// are kept.
struct ChoicesOf {
    Draw rule;
    template <class S>
    __device__ Choices<S> operand() const {
        return {rule};
    }
};
// A mask of bytes that is read.
struct BytesFrom {
    const bool* mask;
    bool keeps_all;
    template <class S>
    __device__ ByteReader<S> operand() const {
        return {reinterpret_cast<const u8*>(mask), keeps_all ? ALL : 0};
    }
};
// A mask of bits that is read.
struct BitsFrom {
    const u32* mask;
    bool keeps_all;
    template <class S>
    __device__ BitReader<S> operand() const {
        return {reinterpret_cast<const u8*>(mask), keeps_all ? ALL : 0};
    }
};
// A mask of bytes that is written, or null.
struct BytesTo {
    bool* mask;
    template <class S>
    __device__ ByteWriter<S> operand() const {
        return {reinterpret_cast<u8*>(mask)};
    }
};
// A mask of bits that is written, or null.
struct BitsTo {
    u32* mask;
    template <class S>
    __device__ BitWriter<S> operand() const {
        return {reinterpret_cast<u8*>(mask)};
    }
};

}  // namespace cto::random_mask
