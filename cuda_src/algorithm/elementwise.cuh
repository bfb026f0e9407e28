// SPDX-License-Identifier: MIT
// Element-wise operators: one streaming launch over any number of arrays of n elements.
//
// A kernel calls map_elements with a map and one operand for each parameter of the map:
//
//     map_elements<S>(n, aligned, [](float x, float& y) { y = 2 * x; }, in(x), out(y));
//
// Operands: in(x), out(y), in_or_zero(x), out_if_wanted(y), row_or_none(b, columns). The map is
// called for each element, with accumulators. An output may be the same array as an input: a thread
// loads all of its elements before it stores the first.
#pragma once
#include "core/fast_division.cuh"
#include "core/vec.cuh"

namespace cto::elementwise {

using fast_division::Divisor;
using vec::Vec;

// A block of THREADS computes a tile; a thread loads NBYTES of elements of type T
// of each array together.
template <class T, int THREADS, int NBYTES>
struct Tiling {
    static constexpr int width = vec::WIDTH<T>;      // elements of a vector
    static constexpr int each = NBYTES / sizeof(T);  // elements of a thread
    static constexpr int threads = THREADS;
    static constexpr int size = THREADS * each;  // elements of a tile
};

// ---- a thread's elements of one array, vector u in registers[u] ---------------------------------
//
// S: the Tiling, E: type of elements, N: elements of a vector. load and store access aligned
// vectors, from `offset` of the tile on; load_apart and store_apart single elements, S::threads
// apart. at(u, i) is element i of vector u. width: elements of a vector; read_nbytes,
// written_nbytes: bytes of an element that are read, and written.

// The offset in the tile of the i-th of a thread's elements, the first of which is at `offset`.
template <class S>
__device__ __forceinline__ u32 apart(u32 offset, int i) {
    return offset + i * S::threads;
}

// Elements of an input; OPTIONAL: zeros if it is null.
template <class S, class E, int N, bool OPTIONAL>
struct Reader {
    static constexpr int width = N, read_nbytes = sizeof(E), written_nbytes = 0;
    const E* from;
    Vec<E, N> registers[S::each / N];

    // The tile begins at element `first` of the array; offsets count from there.
    __device__ void seek(i64 first) {
        if (!OPTIONAL || from) from += first;
    }
    // registers[u] = the N elements from `offset` of the tile on; zeros if the array is null.
    __device__ void load(int u, u32 offset) {
        registers[u] = Vec<E, N>{};
        if (!OPTIONAL || from) registers[u] = *reinterpret_cast<const Vec<E, N>*>(from + offset);
    }
    // Loads the N elements at apart(offset, 0), apart(offset, 1), ..., one by one; those from n on
    // are 0.
    __device__ void load_apart(u32 offset, u32 n) {
        registers[0] = Vec<E, N>{};
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (apart<S>(offset, i) < n && (!OPTIONAL || from))
                registers[0].at[i] = from[apart<S>(offset, i)];
    }
    // Element i of vector u.
    __device__ Acc<E> at(int u, int i) const { return to_acc(registers[u].at[i]); }
    // An input stores nothing.
    template <bool STREAMING>
    __device__ void store(int, u32) const {}
    __device__ void store_apart(u32, u32) const {}
};

// Elements of an output, rounded as they are stored; OPTIONAL: it may be null.
template <class S, class E, int N, bool OPTIONAL>
struct Writer {
    static constexpr int width = N, read_nbytes = 0, written_nbytes = sizeof(E);
    E* to;
    Acc<E> registers[S::each / N][N];

    // The tile begins at element `first` of the array; offsets count from there.
    __device__ void seek(i64 first) {
        if (!OPTIONAL || to) to += first;
    }
    // An output loads nothing.
    __device__ void load(int, u32) const {}
    __device__ void load_apart(u32, u32) const {}
    // The result of the map for element i of vector u.
    __device__ Acc<E>& at(int u, int i) { return registers[u][i]; }

    // Rounds the results of vector u and writes them at to + offset; STREAMING: evict-first in the
    // caches.
    template <bool STREAMING>
    __device__ void store(int u, u32 offset) const {
        if (OPTIONAL && !to) return;
        const Vec<E, N> rounded = vec::from_acc<E>(registers[u]);
        if constexpr (STREAMING)
            vec::store_streaming(reinterpret_cast<Vec<E, N>*>(to + offset), rounded);
        else
            *reinterpret_cast<Vec<E, N>*>(to + offset) = rounded;
    }
    // Writes the N results to apart(offset, 0), apart(offset, 1), ..., one by one; none from n on.
    __device__ void store_apart(u32 offset, u32 n) const {
        if (OPTIONAL && !to) return;
        const Vec<E, N> rounded = vec::from_acc<E>(registers[0]);
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (apart<S>(offset, i) < n) to[apart<S>(offset, i)] = rounded.at[i];
    }
};

// A row that is repeated for each row of the other arrays: element i is from[i % columns]. If it is
// null, elements are -0.0: x + -0.0 = x for every x. Vectors are stored as words: compilers would
// split them into elements at the branch on null, and wait for each load.
template <class S, class E, int N>
struct RowReader {
    static constexpr int width = N, read_nbytes = 0, written_nbytes = 0;
    const E* from;
    Divisor columns;
    i64 first;
    bool fits_31_bits;  // all positions of the tile do
    uint4 registers[S::each / N];
    static_assert(sizeof(E) * N == sizeof(uint4));

    // (first + offset) % columns.
    __device__ i64 column(u32 offset) const {
        if (!fits_31_bits) return fast_division::cell_at(first + offset, columns).column;
        const u32 position = static_cast<u32>(first) + offset;
        return position -
               fast_division::quotient(position, columns) * static_cast<u32>(columns.value);
    }
    // The elements of a bias that is absent: -0, so that x + bias is x, also for x = -0.
    __device__ static uint4 absent() {
        uint4 words;
#pragma unroll
        for (int i = 0; i < N; ++i) reinterpret_cast<E*>(&words)[i] = from_acc<E>(Acc<E>(-0.0));
        return words;
    }

    // The tile begins at element `position` of the other arrays; columns of a tile below 2^31 are
    // found by divisions of 32 bits.
    __device__ void seek(i64 position) {
        first = position;
        fits_31_bits = max(position + S::size, columns.value) <= 0x7FFFFFFF;
    }
    // registers[u] = the N elements of the repeated row from column(offset) on; where a row is not
    // whole vectors, one by one, from the start again after its end.
    __device__ void load(int u, u32 offset) {
        registers[u] = absent();
        if (!from) return;
        i64 c = column(offset);
        if (columns.value % N == 0) {
            registers[u] = *reinterpret_cast<const uint4*>(from + c);
            return;
        }
#pragma unroll
        for (int i = 0; i < N; ++i) {
            reinterpret_cast<E*>(registers + u)[i] = from[c];
            c = c + 1 < columns.value ? c + 1 : 0;
        }
    }
    // Loads the elements of the repeated row at apart(offset, 0), apart(offset, 1), ..., one by
    // one; those from n on are -0.0.
    __device__ void load_apart(u32 offset, u32 n) {
        registers[0] = absent();
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (apart<S>(offset, i) < n && from)
                reinterpret_cast<E*>(registers)[i] = from[column(apart<S>(offset, i))];
    }
    // Element i of vector u.
    __device__ Acc<E> at(int u, int i) const {
        return to_acc(reinterpret_cast<const E*>(registers + u)[i]);
    }
    // An input stores nothing.
    template <bool STREAMING>
    __device__ void store(int, u32) const {}
    __device__ void store_apart(u32, u32) const {}
};

// ---- operands: an array and how it is accessed; N elements a vector, by default T's WIDTH -------

constexpr int OF_TILING = 0;
template <class S, int N>
constexpr int ELEMENTS = N == OF_TILING ? S::width : N;

// operand<S>() gives the Reader or Writer of an operand for the tiling S. OPTIONAL: its array may
// be null.
template <class E, int N, bool OPTIONAL>
struct In {
    const E* x;
    template <class S>
    __device__ Reader<S, E, ELEMENTS<S, N>, OPTIONAL> operand() const {
        return {x};
    }
};
template <class E, int N, bool OPTIONAL>
struct Out {
    E* y;
    template <class S>
    __device__ Writer<S, E, ELEMENTS<S, N>, OPTIONAL> operand() const {
        return {y};
    }
};
template <class E>
struct Row {
    const E* b;
    Divisor columns;
    template <class S>
    __device__ RowReader<S, E, S::width> operand() const {
        return {b, columns};
    }
};

// Operand: the map's parameter is element i of x.
template <int N = OF_TILING, class E>
__device__ __forceinline__ In<E, N, /*OPTIONAL=*/false> in(const E* x) {
    return {x};
}
// Operand: element i of x, or 0 if x is null.
template <int N = OF_TILING, class E>
__device__ __forceinline__ In<E, N, /*OPTIONAL=*/true> in_or_zero(const E* x) {
    return {x};
}
// Operand: the map's parameter is a reference; its value goes to element i of y.
template <int N = OF_TILING, class E>
__device__ __forceinline__ Out<E, N, /*OPTIONAL=*/false> out(E* y) {
    return {y};
}
// Operand: `out`, or nowhere if y is null.
template <int N = OF_TILING, class E>
__device__ __forceinline__ Out<E, N, /*OPTIONAL=*/true> out_if_wanted(E* y) {
    return {y};
}
// Operand: b[i % columns], a row repeated for each row of the other arrays, or -0.0 if b is null.
template <class E>
__device__ __forceinline__ Row<E> row_or_none(const E* b, const Divisor& columns) {
    return {b, fast_division::in_registers(columns)};
}

// ---- the map ------------------------------------------------------------------------------------

// Elements of a vector of the first of several Readers and Writers; all have as many.
template <class Register, class...>
constexpr int WIDTH_OF = Register::width;

// Calls map(element of each of `arrays`) for elements [first, first + S::size) that are below n.
// `arrays` are Readers and Writers. aligned: all arrays begin at multiples of 16 bytes; then a
// whole tile is loaded and stored in vectors. Stores stream past the caches if more is written than
// read.
template <class S, class Map, class... Register>
__device__ __forceinline__ void map_tile(i64 first, i64 n, bool aligned, Map map,
                                         Register... arrays) {
    constexpr int N = WIDTH_OF<Register...>;
    constexpr bool STREAMING = (Register::written_nbytes + ...) > (Register::read_nbytes + ...);
    const u32 left = static_cast<u32>(min(n - first, static_cast<i64>(S::size)));
    (arrays.seek(first), ...);
    if (aligned && left == S::size) {
#pragma unroll
        for (int u = 0; u < S::each / N; ++u)
            (arrays.load(u, (u * S::threads + threadIdx.x) * N), ...);
#pragma unroll
        for (int u = 0; u < S::each / N; ++u) {
#pragma unroll
            for (int i = 0; i < N; ++i) map(arrays.at(u, i)...);
            (arrays.template store<STREAMING>(u, (u * S::threads + threadIdx.x) * N), ...);
        }
        return;
    }
    // Whole warps run the loop, as some operands shuffle among lanes; elements past the end are
    // skipped by load_apart and store_apart.
#pragma unroll 1
    for (u32 offset = threadIdx.x; offset - threadIdx.x % WARP < left; offset += N * S::threads) {
        (arrays.load_apart(offset, left), ...);
#pragma unroll
        for (int i = 0; i < N; ++i) map(arrays.at(0, i)...);
        (arrays.store_apart(offset, left), ...);
    }
}

// Calls map for each of n elements; a block has one tile. aligned: every array starts at a multiple
// of 16 bytes.
template <class S, class Map, class... Operands>
__device__ __forceinline__ void map_elements(i64 n, bool aligned, Map map, Operands... operands) {
    map_tile<S>(static_cast<i64>(blockIdx.x) * S::size, n, aligned, map,
                operands.template operand<S>()...);
}

// Calls map(element of each operand) for each of n elements; a block has `tiles` tiles, for maps
// that compute something once for all of their elements. aligned: every array starts at a multiple
// of 16 bytes.
template <class S, class Map, class... Operands>
__device__ __forceinline__ void map_tiles(i64 n, bool aligned, u32 tiles, Map map,
                                          Operands... operands) {
    i64 first = static_cast<i64>(blockIdx.x) * tiles * S::size;
#pragma unroll 1
    for (; tiles > 0 && first < n; --tiles, first += S::size)
        map_tile<S>(first, n, aligned, map, operands.template operand<S>()...);
}

}  // namespace cto::elementwise
