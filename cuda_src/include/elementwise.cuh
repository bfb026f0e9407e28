// SPDX-License-Identifier: MIT
// Element-wise operators: one streaming launch over any number of arrays of n elements.
//
// A kernel gives map_elements a map and one operand for each parameter of the map: in(x), out(y),
// in_or_zero(x), out_if_wanted(y), row_or_none(b, columns). The map sees one element of each,
// widened to ACC, and writes its outputs by reference. An output may be the same array as an input:
// a thread loads all of its elements before it stores the first.
#pragma once
#include "include/division.cuh"
#include "include/packets.cuh"

// The type that is computed in: float, or double for double.
#ifndef CTO_ACC
#define CTO_ACC float
#endif
// Bytes of elements of type T that a thread has in flight for each array; the launch gives it.
#ifndef CTO_NBYTES
#define CTO_NBYTES 32
#endif

namespace cto {

using ACC = CTO_ACC;

constexpr int EACH = CTO_NBYTES / sizeof(T);  // elements of a thread
constexpr int TILE = THREADS * EACH;          // elements of a block
constexpr int WIDTH = 16 / sizeof(T);         // elements of a packet

// Two at a time: half types have an instruction for it.
template <class E>
__device__ __forceinline__ void narrow_pair(const Wide<E>* from, E* to) {
    to[0] = from[0];
    to[1] = from[1];
}
__device__ __forceinline__ void narrow_pair(const float* from, __half* to) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(from[0], from[1]);
}
__device__ __forceinline__ void narrow_pair(const float* from, __nv_bfloat16* to) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(from[0], from[1]);
}

template <class E, int N>
__device__ __forceinline__ Packet<E, N> narrowed(const Wide<E> (&values)[N]) {
    Packet<E, N> packet;
#pragma unroll
    for (int i = 0; i + 1 < N; i += 2) narrow_pair(values + i, packet.at + i);
    if constexpr (N == 1) packet.at[0] = narrow<E>(values[0]);
    return packet;
}

// ---- operands: a thread's elements of one array, packet u in held[u] ----------------------------

// Where a packet's element i stands in a tile that is not read and written 16 bytes at a time.
__device__ __forceinline__ u32 apart(u32 offset, int i) { return offset + i * THREADS; }

template <class E, int N, bool OPTIONAL>
struct Reader {
    static constexpr int width = N, read_nbytes = sizeof(E), written_nbytes = 0;
    const E* from;
    Packet<E, N> held[EACH / N];

    __device__ void seek(i64 first) {
        if (!OPTIONAL || from) from += first;
    }
    __device__ void load(int u, u32 offset) {
        held[u] = Packet<E, N>{};
        if (!OPTIONAL || from) held[u] = *reinterpret_cast<const Packet<E, N>*>(from + offset);
    }
    __device__ void load_apart(u32 offset, u32 n) {
        held[0] = Packet<E, N>{};
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (apart(offset, i) < n && (!OPTIONAL || from)) held[0].at[i] = from[apart(offset, i)];
    }
    __device__ Wide<E> at(int u, int i) const { return widened(held[u].at[i]); }
    template <bool STREAMING>
    __device__ void store(int, u32) const {}
    __device__ void store_apart(u32, u32) const {}
};

template <class E, int N, bool OPTIONAL>
struct Writer {
    static constexpr int width = N, read_nbytes = 0, written_nbytes = sizeof(E);
    E* to;
    Wide<E> held[EACH / N][N];

    __device__ void seek(i64 first) {
        if (!OPTIONAL || to) to += first;
    }
    __device__ void load(int, u32) const {}
    __device__ void load_apart(u32, u32) const {}
    __device__ Wide<E>& at(int u, int i) { return held[u][i]; }

    template <bool STREAMING>
    __device__ void store(int u, u32 offset) const {
        if (OPTIONAL && !to) return;
        const Packet<E, N> packet = narrowed<E>(held[u]);
        if constexpr (STREAMING && sizeof(packet) == 16)
            store_streaming(reinterpret_cast<Packet<E, N>*>(to + offset), packet);
        else
            *reinterpret_cast<Packet<E, N>*>(to + offset) = packet;
    }
    __device__ void store_apart(u32 offset, u32 n) const {
        if (OPTIONAL && !to) return;
        const Packet<E, N> packet = narrowed<E>(held[0]);
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (apart(offset, i) < n) to[apart(offset, i)] = packet.at[i];
    }
};

// A row of elements, the same for every row of the other arrays; where it is null, -0.0, which adds
// nothing to any number. Packets are held as words: taken apart by elements where it is decided
// whether there is a row, they would be waited for one by one.
template <class E, int N>
struct RowReader {
    static constexpr int width = N, read_nbytes = 0, written_nbytes = 0;
    const E* from;
    Divisor columns;
    i64 first;
    bool brief;  // positions fit 31 bits
    uint4 held[EACH / N];
    static_assert(sizeof(E) * N == sizeof(uint4));

    __device__ i64 column(u32 offset) const {
        if (!brief) return cell_at(first + offset, columns).column;
        const u32 position = static_cast<u32>(first) + offset;
        return position - columns.quotient(position) * static_cast<u32>(columns.value);
    }
    __device__ static uint4 absent() {
        uint4 words;
#pragma unroll
        for (int i = 0; i < N; ++i) reinterpret_cast<E*>(&words)[i] = narrow<E>(Wide<E>(-0.0));
        return words;
    }

    __device__ void seek(i64 position) {
        first = position;
        brief = max(position + TILE, columns.value) <= 0x7FFFFFFF;
    }
    __device__ void load(int u, u32 offset) {
        held[u] = absent();
        if (!from) return;
        i64 c = column(offset);
        if (columns.value % N == 0) {
            held[u] = *reinterpret_cast<const uint4*>(from + c);
            return;
        }
#pragma unroll
        for (int i = 0; i < N; ++i) {
            reinterpret_cast<E*>(held + u)[i] = from[c];
            c = c + 1 < columns.value ? c + 1 : 0;
        }
    }
    __device__ void load_apart(u32 offset, u32 n) {
        held[0] = absent();
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (apart(offset, i) < n && from)
                reinterpret_cast<E*>(held)[i] = from[column(apart(offset, i))];
    }
    __device__ Wide<E> at(int u, int i) const {
        return widened(reinterpret_cast<const E*>(held + u)[i]);
    }
    template <bool STREAMING>
    __device__ void store(int, u32) const {}
    __device__ void store_apart(u32, u32) const {}
};

template <int N = WIDTH, class E>
__device__ __forceinline__ Reader<E, N, false> in(const E* x) {
    return {x};
}
template <int N = WIDTH, class E>
__device__ __forceinline__ Reader<E, N, true> in_or_zero(const E* x) {
    return {x};
}
template <int N = WIDTH, class E>
__device__ __forceinline__ Writer<E, N, false> out(E* y) {
    return {y};
}
template <int N = WIDTH, class E>
__device__ __forceinline__ Writer<E, N, true> out_if_wanted(E* y) {
    return {y};
}
template <int N = WIDTH, class E>
__device__ __forceinline__ RowReader<E, N> row_or_none(const E* b, Divisor columns) {
    return {b, columns};
}

// ---- the map ------------------------------------------------------------------------------------

template <class Operand, class...>
constexpr int WIDTH_OF = Operand::width;

// aligned: every array starts at a multiple of 16 bytes.
template <class Map, class... Operands>
__device__ __forceinline__ void map_elements(i64 n, bool aligned, Map map, Operands... operands) {
    constexpr int N = WIDTH_OF<Operands...>;
    constexpr bool STREAMING = (Operands::written_nbytes + ...) > (Operands::read_nbytes + ...);
    const i64 first = static_cast<i64>(blockIdx.x) * TILE;
    const u32 left = static_cast<u32>(min(n - first, static_cast<i64>(TILE)));
    (operands.seek(first), ...);
    if (aligned && left == TILE) {
#pragma unroll
        for (int u = 0; u < EACH / N; ++u) (operands.load(u, (u * THREADS + threadIdx.x) * N), ...);
#pragma unroll
        for (int u = 0; u < EACH / N; ++u) {
#pragma unroll
            for (int i = 0; i < N; ++i) map(operands.at(u, i)...);
            (operands.template store<STREAMING>(u, (u * THREADS + threadIdx.x) * N), ...);
        }
        return;
    }
#pragma unroll 1
    for (u32 offset = threadIdx.x; offset < left; offset += N * THREADS) {
        (operands.load_apart(offset, left), ...);
#pragma unroll
        for (int i = 0; i < N; ++i) map(operands.at(0, i)...);
        (operands.store_apart(offset, left), ...);
    }
}

}  // namespace cto
