// SPDX-License-Identifier: MIT
// What tiles have, summed over some of them by each block.
#include "gist_sparse/prefix.cuh"

using namespace cto;
using zeroed::Zeroed;

constexpr int THREADS = 64;
constexpr int WARPS = THREADS / WARP;

// The first block publishes all counts, while the others may wait for them.
extern "C" __global__ void probe_sums(const u32* has, const u32* from, const u32* end, u64* sums,
                                      Zeroed<u32>* words, u32 tiles) {
    __shared__ u32 parts[WARPS];
    if (blockIdx.x == 0)
        for (u32 tile = threadIdx.x; tile < tiles; tile += THREADS)
            prefix::publish(words, tile, has[tile], tile % 2 == 0);
    prefix::Span<THREADS, true> span(words, from[blockIdx.x], end[blockIdx.x]);
    const prefix::Total total = prefix::of_block<true>(span.total(), parts);
    // Marks change no sum, and one of two neighbours has one.
    const bool sound = total.marked || end[blockIdx.x] - from[blockIdx.x] < 2;
    if (threadIdx.x == THREADS - 1) sums[blockIdx.x] = sound ? total.sum : ~0ull;
}

// Nothing is published, for the next call.
extern "C" __global__ void probe_forget(Zeroed<u32>* words, u32 tiles) {
    for (u32 tile = threadIdx.x; tile < tiles; tile += blockDim.x) words[tile].value = 0;
}
