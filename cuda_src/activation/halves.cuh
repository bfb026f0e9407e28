// SPDX-License-Identifier: MIT
// Operands over one half of each row of a matrix, as first_half(x, columns) and second_half: the
// map's element i, of rows of columns.value elements, is in row i / columns of x, whose rows have
// twice as many.
#pragma once
#include "algorithm/elementwise.cuh"

namespace cto::halves {

using elementwise::apart;
using elementwise::Reader;
using elementwise::Writer;
using fast_division::Divisor;

// Where a half's elements are: those of a row lie together, rows two halves apart.
struct Places {
    Divisor columns;
    i64 first;
    bool fits_31_bits;  // all positions of the tile do

    // The tile begins at element `position` of the half; rows of a tile below 2^31 are found by
    // divisions of 32 bits.
    template <class S>
    __device__ void seek(i64 position) {
        first = position;
        fits_31_bits = max(position + S::size, columns.value) <= 0x7FFFFFFF;
    }
    // The offset in x of the element at `offset` of the tile.
    __device__ i64 at(u32 offset) const {
        const i64 position = first + offset;
        const i64 row = fits_31_bits ? fast_division::quotient(static_cast<u32>(position), columns)
                                     : fast_division::quotient(position, columns);
        return position + row * columns.value;
    }
};

// Reader of a half; where it loads vectors, a row has whole ones.
template <class S, class E>
struct HalfReader : Reader<S, E, S::width, /*OPTIONAL=*/false> {
    Places places;

    __device__ void seek(i64 position) { places.seek<S>(position); }
    __device__ void load(int u, u32 offset) {
        this->registers[u] =
            *reinterpret_cast<const vec::Vec<E, S::width>*>(this->from + places.at(offset));
    }
    __device__ void load_apart(u32 offset, u32 n) {
        this->registers[0] = vec::Vec<E, S::width>{};
#pragma unroll
        for (int i = 0; i < S::width; ++i)
            if (apart<S>(offset, i) < n)
                this->registers[0].at[i] = this->from[places.at(apart<S>(offset, i))];
    }
};

// Writer of a half, as HalfReader.
template <class S, class E>
struct HalfWriter : Writer<S, E, S::width, /*OPTIONAL=*/false> {
    Places places;

    __device__ void seek(i64 position) { places.seek<S>(position); }
    template <bool STREAMING>
    __device__ void store(int u, u32 offset) const {
        *reinterpret_cast<vec::Vec<E, S::width>*>(this->to + places.at(offset)) =
            vec::from_acc<E>(this->registers[u]);
    }
    __device__ void store_apart(u32 offset, u32 n) const {
        const vec::Vec<E, S::width> rounded = vec::from_acc<E>(this->registers[0]);
#pragma unroll
        for (int i = 0; i < S::width; ++i)
            if (apart<S>(offset, i) < n) this->to[places.at(apart<S>(offset, i))] = rounded.at[i];
    }
};

template <class E>
struct HalfIn {
    const E* x;
    Divisor columns;
    template <class S>
    __device__ HalfReader<S, E> operand() const {
        return {{x}, {columns}};
    }
};
template <class E>
struct HalfOut {
    E* y;
    Divisor columns;
    template <class S>
    __device__ HalfWriter<S, E> operand() const {
        return {{y}, {columns}};
    }
};

// Operands: the map's parameter is an element of the first, or the second, half of its row.
template <class E>
__device__ __forceinline__ HalfIn<E> first_half(const E* x, const Divisor& columns) {
    return {x, columns};
}
template <class E>
__device__ __forceinline__ HalfIn<E> second_half(const E* x, const Divisor& columns) {
    return {x + columns.value, columns};
}
template <class E>
__device__ __forceinline__ HalfOut<E> to_first_half(E* y, const Divisor& columns) {
    return {y, columns};
}
template <class E>
__device__ __forceinline__ HalfOut<E> to_second_half(E* y, const Divisor& columns) {
    return {y + columns.value, columns};
}

}  // namespace cto::halves
