// SPDX-License-Identifier: MIT
// Philox 4x32-10, a generator without memory: a counter and a key give four random words.
// families/dropout/philox.py is the same in NumPy. Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as
// 1, 2, 3 (2011).
#pragma once
#include "core/types.cuh"
#include "dropout/facts.cuh"

namespace cto::philox {

using namespace facts::dropout;

struct Words {
    u32 at[N_WORDS];
};

// The keys of rounds, made of a seed where they are used: registers for other things.
struct Seed {
    u64 value;
    __device__ u32 low(u32 round) const { return static_cast<u32>(value) + round * KEY_STEP_0; }
    __device__ u32 high(u32 round) const {
        return static_cast<u32>(value >> 32) + round * KEY_STEP_1;
    }
};

// The keys of all rounds in registers, for many blocks of random words.
struct Keys {
    u32 of_low[ROUNDS], of_high[ROUNDS];

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

// The random words of an array's elements, of a seed and an offset: word i % 4 of block i / 4.
template <class Key>
struct SequenceOf {
    Key key;
    u64 offset;

    __device__ __forceinline__ Words block(u32 low, u32 high) const {
        const Words counter{low, high, static_cast<u32>(offset), static_cast<u32>(offset >> 32)};
        return words_of(counter, key);
    }
    // The word of the element that stands in this block, by its number or its place in the block.
    __device__ __forceinline__ u32 word_of(u32 low, u32 high, u32 element) const {
        const Words words = block(low, high);
        const u32 i = element % N_WORDS;
        const u32 first = i == 0 ? words.at[0] : words.at[1];
        return i < 2 ? first : i == 2 ? words.at[2] : words.at[3];
    }
    __device__ __forceinline__ u32 word_of(i64 element) const {
        const u64 number = static_cast<u64>(element) / N_WORDS;
        return word_of(static_cast<u32>(number), static_cast<u32>(number >> 32),
                       static_cast<u32>(element));
    }
};
using RandomSequence = SequenceOf<Seed>;
using KeyedSequence = SequenceOf<Keys>;

}  // namespace cto::philox
