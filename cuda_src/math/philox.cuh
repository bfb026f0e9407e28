// SPDX-License-Identifier: MIT
// Philox 4x32-10, a counter-based generator: a counter and a key (the seed) give four random words.
// rules/philox.py is the same in NumPy. Salmon, Moraes, Dror, Shaw: Parallel random numbers:
// as easy as 1, 2, 3 (2011).
#pragma once
#include "core/types.cuh"

namespace cto::philox {

using facts::KEY_STEP_0;
using facts::KEY_STEP_1;
using facts::MULTIPLIER_0;
using facts::MULTIPLIER_2;
using facts::N_WORDS;
using facts::ROUNDS;

struct Words {
    u32 at[N_WORDS];
};

// The round keys, computed from the seed at each use, which saves registers.
struct Seed {
    u64 value;
    // The lower half of the key of a round.
    __device__ u32 low(u32 round) const { return static_cast<u32>(value) + round * KEY_STEP_0; }
    // The upper half of the key of a round, which grows by a constant each round.
    __device__ u32 high(u32 round) const {
        return static_cast<u32>(value >> 32) + round * KEY_STEP_1;
    }
};

// The round keys, computed once and kept in registers: for threads that draw many times.
struct Keys {
    u32 of_low[ROUNDS], of_high[ROUNDS];

    // The keys of all rounds.
    __device__ __forceinline__ explicit Keys(Seed seed) {
#pragma unroll
        for (u32 round = 0; round < ROUNDS; ++round) {
            of_low[round] = seed.low(round);
            of_high[round] = seed.high(round);
        }
    }
    __device__ u32 low(u32 round) const { return of_low[round]; }
    __device__ u32 high(u32 round) const { return of_high[round]; }
};

// The four random words of a counter; key: a Seed or Keys.
template <class Key>
__device__ __forceinline__ Words words_of(Words counter, const Key& key) {
    u32(&c)[N_WORDS] = counter.at;
#pragma unroll
    for (u32 round = 0; round < ROUNDS; ++round) {
        const u64 a = multiply_wide(c[0], MULTIPLIER_0);
        const u64 b = multiply_wide(c[2], MULTIPLIER_2);
        c[0] = static_cast<u32>(b >> 32) ^ c[1] ^ key.low(round);
        c[1] = static_cast<u32>(b);
        c[2] = static_cast<u32>(a >> 32) ^ c[3] ^ key.high(round);
        c[3] = static_cast<u32>(a);
    }
    return counter;
}

// A random word for each element i of an array: word i % 4 of counter {i / 4, offset}. The four
// words of a counter are a block; it is numbered i / 4, in two halves `low` and `high`. Key: Seed
// or Keys.
template <class Key>
struct SequenceOf {
    Key key;
    u64 offset;

    // The four random words of the block with this number.
    __device__ __forceinline__ Words block(u32 low, u32 high) const {
        const Words counter{low, high, static_cast<u32>(offset), static_cast<u32>(offset >> 32)};
        return words_of(counter, key);
    }
    // Word element % 4 of block {low, high}, by selects: an array index would put the words in
    // memory.
    __device__ __forceinline__ u32 word_of(u32 low, u32 high, u32 element) const {
        const Words words = block(low, high);
        const u32 i = element % N_WORDS;
        const u32 first = i == 0 ? words.at[0] : words.at[1];
        return i < 2 ? first : i == 2 ? words.at[2] : words.at[3];
    }
    // The word of an element: word element % 4 of draw element / 4.
    __device__ __forceinline__ u32 word_of(i64 element) const {
        const u64 number = static_cast<u64>(element) / N_WORDS;
        return word_of(static_cast<u32>(number), static_cast<u32>(number >> 32),
                       static_cast<u32>(element));
    }
};
using RandomSequence = SequenceOf<Seed>;
using KeyedSequence = SequenceOf<Keys>;

}  // namespace cto::philox
