// SPDX-License-Identifier: MIT
// Random words one by one: of any counter and key, and of any element of an array.
#include "core/either.cuh"
#include "dropout/operands.cuh"
#include "dropout/philox.cuh"

using namespace cto;

extern "C" __global__ void probe_philox(const u32* counters, const u32* keys, u32* words, i64 n) {
    const i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    philox::Words counter;
    for (int w = 0; w < philox::N_WORDS; ++w) counter.at[w] = counters[4 * i + w];
    const u64 key = static_cast<u64>(keys[2 * i + 1]) << 32 | keys[2 * i];
    counter = philox::words_of(counter, philox::Seed{key});
    for (int w = 0; w < philox::N_WORDS; ++w) words[4 * i + w] = counter.at[w];
}

extern "C" __global__ void probe_words(const i64* elements, u32* words,
                                       const __grid_constant__ either::Either<2> state, i64 n) {
    const i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    const u64 seed = static_cast<u64>(either::as_i64(state, 0)),
              offset = static_cast<u64>(either::as_i64(state, 1));
    if (i < n) words[i] = philox::RandomSequence{seed, offset}.word_of(elements[i]);
}

// Words of a tile that starts at any element, as element-wise kernels draw them.
extern "C" __global__ void probe_tile(u32* words, const __grid_constant__ either::Either<2> state,
                                      i64 first, u32 n) {
    using Tile = elementwise::Tiling<__half, 128, 32>;
    const u64 seed = static_cast<u64>(either::as_i64(state, 0)),
              offset = static_cast<u64>(either::as_i64(state, 1));
    random_mask::Choices<Tile> kept{{{seed, offset}, 0}};
    kept.seek(first);
    for (u32 u = 0; u < Tile::each / Tile::width; ++u) {
        const u32 at = (u * Tile::threads + threadIdx.x) * Tile::width;
        kept.load(u, at);
    }
    for (u32 u = 0; u < Tile::each / Tile::width; ++u)
        for (u32 i = 0; i < Tile::width; ++i) {
            const u32 at = (u * Tile::threads + threadIdx.x) * Tile::width + i;
            if (at < n) words[at] = kept.registers[u].words[i];
        }
}
