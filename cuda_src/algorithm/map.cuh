// SPDX-License-Identifier: MIT
// y = map(x), vector by vector, where the elements of x and y may differ in number and in size.
//
// A thread takes every THREADS-th vector of its block, so that a warp's accesses are coalesced,
// and loads all of its vectors before it stores the first.
#pragma once
#include "core/vec.cuh"

namespace cto::map {

using vec::Vec;

// IN elements of X give OUT elements of Y; SHARE vectors of Y read the same vector of X; a thread
// moves NBYTES of the array that has more bytes.
template <int IN, int OUT, int SHARE, int NBYTES, int THREADS>
struct Tiling {
    static constexpr int in = IN, out = OUT, share = SHARE, nbytes = NBYTES, threads = THREADS;
};

// Vector i of y, OUT elements, is map(vector i / SHARE of x, IN elements; i % SHARE). n_x, n_y:
// elements of x and y; the last vectors may be incomplete. A block has NBYTES * THREADS bytes of
// the larger array. aligned: both arrays start at a multiple of 16 bytes.
template <class S, class X, class Y, class Map>
__device__ __forceinline__ void map_vecs(bool aligned, const X* __restrict__ x, Y* __restrict__ y,
                                         i64 n_x, i64 n_y, Map map) {
    using In = Vec<X, S::in>;
    using Out = Vec<Y, S::out>;
    constexpr bool EXPANDS = sizeof(Out) * S::share > sizeof(In);
    // Vectors of y that a thread writes. A block's begin at `first`, and i % SHARE = thread %
    // SHARE.
    constexpr int UNROLL = S::nbytes / (EXPANDS ? sizeof(Out) : sizeof(In));
    const i64 first = static_cast<i64>(blockIdx.x) * (UNROLL * S::threads);
    const i64 end = first + UNROLL * S::threads;
    if (aligned && end / S::share * S::in <= n_x && end * S::out <= n_y) {
        const In* in = reinterpret_cast<const In*>(x) + first / S::share;
        Out* out = reinterpret_cast<Out*>(y) + first;
        In loaded[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) loaded[u] = in[(u * S::threads + threadIdx.x) / S::share];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const Out mapped = map(loaded[u], threadIdx.x % S::share);
            if constexpr (EXPANDS)
                vec::store_streaming(out + u * S::threads + threadIdx.x, mapped);
            else
                out[u * S::threads + threadIdx.x] = mapped;
        }
        return;
    }
#pragma unroll 1
    for (i64 i = first + threadIdx.x; i < end; i += S::threads) {
        const In loaded = vec::load_elements<X, S::in>(x, i / S::share * S::in, n_x);
        const Out mapped = map(loaded, threadIdx.x % S::share);
        vec::store_elements<Y, S::out>(y, i * S::out, n_y, mapped);
    }
}

}  // namespace cto::map
