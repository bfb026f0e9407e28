// SPDX-License-Identifier: MIT
// What tiles have, summed over some of them by each block.
#include "gist_sparse/prefix.cuh"

using namespace cto;
using zeroed::Zeroed;

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / WARP;

// The first block says what all have, while the others may wait for it. Odd ones have a mark, which
// is no part of a sum.
extern "C" __global__ void probe_sums(const u32* has, const u32* from, const u32* end, u64* sums,
                                      Zeroed<u32>* words, u32 tiles) {
    __shared__ u32 parts[WARPS];
    if (blockIdx.x == 0)
        for (u32 tile = threadIdx.x; tile < tiles; tile += THREADS)
            prefix::say(words, tile, has[tile], has[tile] % 2);
    prefix::Span<THREADS> span(words, from[blockIdx.x], end[blockIdx.x]);
    const u64 sum = prefix::of_block(span.heard(), parts).sum;
    if (threadIdx.x == THREADS - 1) sums[blockIdx.x] = sum;
}

// Nothing was said, for the next call.
extern "C" __global__ void probe_forget(Zeroed<u32>* words, u32 tiles) {
    for (u32 tile = threadIdx.x; tile < tiles; tile += blockDim.x) words[tile].value = 0;
}
