// SPDX-License-Identifier: MIT
// MSFP15 encoder that also measures its error.  CPU provider: cupy_training_ops/families/gist_guard/reference.py
//
// Every warp encodes its part of x and measures some groups of a sample of x. Even warps measure
// first and odd warps encode first: measuring waits for memory latency, encoding uses its
// bandwidth.
#include "core/slots.cuh"
#include "gist_guard/facts.cuh"
#include "gist_guard/groups.cuh"
#include "gist_guard/sums.cuh"
#include "gist_guard/tile.cuh"

namespace cto {

using namespace facts::gist_guard;
using namespace gist_guard::groups;
using namespace gist_guard::sums;
using namespace gist_guard::tile;

using slots::T;

constexpr int BLOCKS = RESIDENT<sizeof(Acc<T>)> / THREADS;  // on a multiprocessor
constexpr int UNROLL = NBYTES / (TILE * sizeof(T));         // tiles that a thread loads together
constexpr i64 SPAN = THREADS * UNROLL;                      // tiles that a block encodes together

// y[8 tile .. 8 tile + 7] = codes; nothing if y is null. aligned: y starts at a multiple of 16
// bytes.
__device__ __forceinline__ void store_codes(u8* y, i64 tile, bool aligned, uint2 codes) {
    if (y == nullptr) return;
    if (aligned)
        reinterpret_cast<uint2*>(y)[tile] = codes;
    else
        vec::store_elements<u8, TILE>(y, tile * TILE, (tile + 1) * TILE,
                                      *reinterpret_cast<const Vec<u8, TILE>*>(&codes));
}

// Stores the codes of tile number `tile`, the eight elements `loaded`, in y (unless null) and
// returns its shared exponent E. keep_nonfinite: a tile with an infinity or a NaN keeps them
// (encode_copy), else its codes are zeros. aligned: y starts at a multiple of 16 bytes.
__device__ __forceinline__ u32 encode_tile(const Tile<T>& loaded, u8* y, i64 tile, bool aligned,
                                           bool keep_nonfinite) {
    u32 exponent;
    const T* const elements = reinterpret_cast<const T*>(loaded.at);
    uint2 codes = format::msfp15::encode_elements</*KEEP_SIGN=*/true>(elements, exponent);
    if (exponent == NOT_FINITE && keep_nonfinite)
        codes = format::msfp15::encode_copy</*KEEP_SIGN=*/true>(elements);
    store_codes(y, tile, aligned, codes);
    return exponent;
}

// loaded[u] = tile number span + threadIdx.x + u * THREADS; span: number of the span's first tile.
__device__ __forceinline__ void load_span(const T* x, i64 span, Tile<T> (&loaded)[UNROLL]) {
    const Tile<T>* const from = reinterpret_cast<const Tile<T>*>(x) + span + threadIdx.x;
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) loaded[u] = from[u * THREADS];
}

// Encodes every gridDim.x-th span (SPAN tiles) of array.x to y, UNROLL tiles a thread; returns the
// thread's largest shared exponent. keep_nonfinite: tiles with an infinity or a NaN keep them. The
// next span is loaded before this one is encoded; the last spans, or all if x is not aligned, are
// loaded tile by tile.
__device__ __forceinline__ u32 encode_tiles(const Array<T>& array, u8* y, bool keep_nonfinite) {
    const i64 step = gridDim.x * SPAN;
    const i64 whole = array.aligned ? array.n / TILE - SPAN : -1;  // the last start of a whole span
    const i64 tiles = (array.n + TILE - 1) / TILE;
    i64 span = blockIdx.x * SPAN;
    u32 largest = 0;
    Tile<T> loaded[UNROLL], next[UNROLL];
    if (span <= whole) load_span(array.x, span, next);
#pragma unroll 1
    for (; span <= whole; span += step) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) loaded[u] = next[u];
        if (span + step <= whole) load_span(array.x, span + step, next);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            largest = max(encode_tile(loaded[u], y, span + threadIdx.x + u * THREADS,
                                      /*aligned=*/true, keep_nonfinite),
                          largest);
    }
#pragma unroll 1
    for (; span < tiles; span += step)
#pragma unroll 1
        for (i64 tile = span + threadIdx.x; tile < span + SPAN && tile < tiles; tile += THREADS)
            largest = max(encode_tile(load_tile(array.x, tile, array.n, array.aligned), y, tile,
                                      array.aligned, keep_nonfinite),
                          largest);
    return largest;
}

}  // namespace cto

using namespace cto;

// y = MSFP15 boxes of x, of n elements, with KEEP_SIGN: those other than 0 get M >= 1;
// keep_nonfinite: boxes with an infinity or a NaN keep them, else they are zeros. guard[0..3] = of
// a sample of x, sum of (decoded x - x)^2, sum of (x - its tile's mean)^2, sum of (x - its group's
// mean)^2 and the largest error / deviation of a group, the first three in squares of the quantum
// 2^(E - 127) of the largest shared exponent E. y or guard may be null.
// The sample: x is (outer, groups, inner); a run, `inner` neighbours of one group, is cut into
// per_run pieces of `tiles` tiles, and of every `stride` pieces of a group one is measured,
// `pieces` in all, by `lanes` lanes. Without `grouped` groups are only a way to cut x up, and
// guard[2], guard[3] stay 0. totals: scratch of a Totals for each block; ticket: counter of
// finished blocks. aligned: x and y start at a multiple of 16 bytes. Warps with an odd number
// encode in turn 0 and measure in turn 1, others the other way round.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    gist_guarded_msfp15_encoder(const T* x, u8* y, i64 n, bool aligned, bool keep_nonfinite,
                                i64 groups, i64 inner, i64 stride, u32 per_run, u32 pieces,
                                u32 tiles, u32 lanes, bool grouped, double* totals,
                                Zeroed<u32>* ticket, float* guard) {
    __shared__ Shared<THREADS> shared;
    constexpr u32 WARPS = Shared<THREADS>::WARPS;
    const u32 warp = threadIdx.x / WARP, turn_of_groups = warp % 2;
    const Array<T> array{x, n, aligned};
    const Sample sample{groups, inner, stride, per_run, pieces, tiles, lanes};
    // The warp's number among all: those that measure first have the first groups.
    const i64 rank = (turn_of_groups * (WARPS / 2) + warp / 2) * gridDim.x + blockIdx.x;
    Totals& per_warp = shared.per_warp[warp];
    u32 exponent = 0;
#pragma unroll 1
    for (u32 turn = 0; turn < 2; ++turn) {
        if (turn != turn_of_groups) {
            exponent = encode_tiles(array, y, keep_nonfinite);
            continue;
        }
        Totals& own = shared.per_thread[threadIdx.x];  // registers are for encoding
        own = {};
        measure_groups(array, sample, grouped, rank, static_cast<i64>(gridDim.x) * WARPS, own);
        Totals block_totals = own;
        sum_lanes(block_totals, WARP);
        if (threadIdx.x % WARP == 0) per_warp = block_totals;
    }
    if (guard == nullptr) return;
#pragma unroll 1
    for (u32 step = WARP / 2; step > 0; step /= 2)
        exponent = max(exponent, __shfl_xor_sync(ALL_LANES, exponent, step));
    if (threadIdx.x % WARP == 0) per_warp.exponent = exponent;
    finish(totals, ticket, guard, shared);
}
