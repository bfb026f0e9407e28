// SPDX-License-Identifier: MIT
// Streaming maps: packets of X elements become packets of Y elements.
//
// A thread takes every blockDim-th packet of its block, so that a warp's accesses are coalesced,
// and loads all of its packets before it stores the first.
#pragma once
#include "include/types.cuh"

#ifndef CTO_THREADS
#define CTO_THREADS 128
#endif

namespace cto {

constexpr int THREADS = CTO_THREADS;

// N elements moved in as few instructions of at most 16 bytes as their size allows.
template <class E, int N>
struct alignas(sizeof(E) * N < 16 ? sizeof(E) * N : 16) Packet {
    E at[N];
};

// The end of an array, or an array that does not start on a 16-byte boundary. Elements past the end
// read as zero.
template <class E, int N>
__device__ __forceinline__ Packet<E, N> load_elements(const E* from, i64 first, i64 n) {
    Packet<E, N> packet{};
#pragma unroll
    for (int i = 0; i < N; ++i)
        if (first + i < n) packet.at[i] = from[first + i];
    return packet;
}

template <class E, int N>
__device__ __forceinline__ void store_elements(E* to, i64 first, i64 n,
                                               const Packet<E, N>& packet) {
#pragma unroll
    for (int i = 0; i < N; ++i)
        if (first + i < n) to[first + i] = packet.at[i];
}

// Stored past the caches: decoded data is larger than they are, and 1 to 7 % faster written so.
template <class P>
__device__ __forceinline__ void store_streaming(P* to, const P& packet) {
    __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&packet));
}

// How a map divides its arrays: IN elements of X give OUT elements of Y, SHARE packets of Y read
// the same packet of X, and a thread moves NBYTES of the wider array.
template <int IN, int OUT, int SHARE, int NBYTES>
struct Packets {
    static constexpr int in = IN, out = OUT, share = SHARE, nbytes = NBYTES;
};

// y = map(x) packet by packet: packet i of Y is map(packet i / SHARE of X, i % SHARE).
// ALIGNED: both arrays start at a multiple of 16 bytes.
template <bool ALIGNED, class P, class X, class Y, class Map>
__device__ __forceinline__ void map_packets(const X* __restrict__ x, Y* __restrict__ y, i64 n_x,
                                            i64 n_y, Map map) {
    using In = Packet<X, P::in>;
    using Out = Packet<Y, P::out>;
    constexpr bool EXPANDS = sizeof(Out) * P::share > sizeof(In);
    constexpr int UNROLL = P::nbytes / (EXPANDS ? sizeof(Out) : sizeof(In));
    const i64 first = static_cast<i64>(blockIdx.x) * (UNROLL * THREADS);
    const i64 end = first + UNROLL * THREADS;
    if (ALIGNED && end / P::share * P::in <= n_x && end * P::out <= n_y) {
        const In* in = reinterpret_cast<const In*>(x) + first / P::share;
        Out* out = reinterpret_cast<Out*>(y) + first;
        In loaded[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) loaded[u] = in[(u * THREADS + threadIdx.x) / P::share];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const Out mapped = map(loaded[u], threadIdx.x % P::share);
            if constexpr (EXPANDS && sizeof(Out) == 16)
                store_streaming(out + u * THREADS + threadIdx.x, mapped);
            else
                out[u * THREADS + threadIdx.x] = mapped;
        }
        return;
    }
#pragma unroll 1
    for (i64 i = first + threadIdx.x; i < end; i += THREADS) {
        const In loaded = load_elements<X, P::in>(x, i / P::share * P::in, n_x);
        store_elements<Y, P::out>(y, i * P::out, n_y, map(loaded, threadIdx.x % P::share));
    }
}

}  // namespace cto
