// SPDX-License-Identifier: MIT
// Streaming maps: packets of IN elements become packets of OUT elements, one thread a packet.
//
// A block owns CTO_UNROLL * blockDim consecutive packets; a thread takes every blockDim-th of them,
// so that a warp's accesses are coalesced and CTO_UNROLL independent loads are in flight.
#pragma once
#include "include/types.cuh"

#ifndef CTO_UNROLL
#define CTO_UNROLL 4
#endif
#ifndef CTO_PACKET
#define CTO_PACKET 8
#endif

namespace cto {

// N elements moved in as few instructions of at most 16 bytes as their size allows.
template <class E, int N>
struct alignas(sizeof(E) * N < 16 ? sizeof(E) * N : 16) Packet {
    E at[N];
};

// How many of the N elements from `first` on lie below `n`.
template <int N>
__device__ __forceinline__ int count_below(i64 first, i64 n) {
    const i64 left = n - first;
    return left >= N ? N : left > 0 ? static_cast<int>(left) : 0;
}

// Element by element: the end of an array, or an array that does not start on a 16-byte boundary.
// Elements past the end read as zero.
template <class E, int N>
__device__ __forceinline__ Packet<E, N> load_elements(const E* from, i64 first, i64 n) {
    Packet<E, N> packet{};
    const int count = count_below<N>(first, n);
#pragma unroll
    for (int i = 0; i < N; ++i)
        if (i < count) packet.at[i] = from[first + i];
    return packet;
}

template <class E, int N>
__device__ __forceinline__ void store_elements(E* to, i64 first, i64 n, const Packet<E, N>& packet) {
    const int count = count_below<N>(first, n);
#pragma unroll
    for (int i = 0; i < N; ++i)
        if (i < count) to[first + i] = packet.at[i];
}

// y = map(x) packet by packet. ALIGNED: both arrays start at a multiple of 16 bytes.
template <bool ALIGNED, int IN, int OUT, class X, class Y, class Map>
__device__ __forceinline__ void map_packets(const X* __restrict__ x, Y* __restrict__ y, i64 n_x,
                                            i64 n_y, Map map) {
    const i64 packets_a_block = static_cast<i64>(CTO_UNROLL) * blockDim.x;
    const i64 first = blockIdx.x * packets_a_block;
    const i64 end = first + packets_a_block;
    if (ALIGNED && end * IN <= n_x && end * OUT <= n_y) {
        const auto* in = reinterpret_cast<const Packet<X, IN>*>(x) + first + threadIdx.x;
        auto* out = reinterpret_cast<Packet<Y, OUT>*>(y) + first + threadIdx.x;
        Packet<X, IN> loaded[CTO_UNROLL];
#pragma unroll
        for (int u = 0; u < CTO_UNROLL; ++u) loaded[u] = in[u * blockDim.x];
#pragma unroll
        for (int u = 0; u < CTO_UNROLL; ++u) out[u * blockDim.x] = map(loaded[u]);
        return;
    }
#pragma unroll 1
    for (i64 i = first + threadIdx.x; i < end; i += blockDim.x)
        store_elements<Y, OUT>(y, i * OUT, n_y, map(load_elements<X, IN>(x, i * IN, n_x)));
}

}  // namespace cto
