// SPDX-License-Identifier: MIT
// target(k): the row of dX to which slice k of dY is added, or NOWHERE for an index out of range.
// INDEX is the type of indices, Key that of row numbers and slice numbers.
#pragma once
#include "core/types.cuh"
#include "gather/facts.cuh"

namespace cto::targets {

using namespace facts::gather;

constexpr i64 NOWHERE = -1;

// The index from 0 on (negative ones count from the end), or NOWHERE.
__device__ __forceinline__ i64 wrapped(i64 index, i64 extent) {
    const i64 i = index < 0 ? index + extent : index;
    return i >= 0 && i < extent ? i : NOWHERE;
}

// a / b in Key, whose 32-bit division is faster; a and b fit.
template <class Key>
__device__ __forceinline__ i64 divided(i64 a, i64 b) {
    return static_cast<i64>(static_cast<Key>(a) / static_cast<Key>(b));
}

// target(k) = indices[k].
template <class INDEX>
struct Row {
    const INDEX* indices;
    i64 n_rows;

    // indices[k], or n_rows + indices[k] if it is negative; NOWHERE if that is out of range.
    __device__ i64 operator()(i64 k) const { return wrapped(indices[k], n_rows); }
};

// target(k) = (batch of k * extents[0] + i0) * extents[1] + i1 ..., (i0, i1, ...) = index tuple k.
template <class INDEX, class Key>
struct TupleRow {
    const INDEX* indices;
    const Tuples& tuples;

    // The row of dX that index tuple k names; NOWHERE if one of its indices is out of range.
    __device__ i64 operator()(i64 k) const {
        i64 row = divided<Key>(k, tuples.per_batch);
        for (i32 j = 0; j < tuples.count; ++j) {
            const i64 i = wrapped(indices[k * tuples.count + j], tuples.extents[j]);
            if (i == NOWHERE) return NOWHERE;
            row = row * tuples.extents[j] + i;
        }
        return row;
    }
};

// target(k) = the element of dX at element k's coordinates, but indices[k] along the axis. Its row
// are the coordinates before the last dimension, its column the last.
template <class INDEX, class Key>
struct Element {
    const INDEX* indices;
    const Lines& lines;

    // The offset in dX of the element that indices[k] names; NOWHERE if it is out of range.
    __device__ i64 operator()(i64 k) const {
        const i64 row = divided<Key>(k, lines.columns);
        return at(row, k - row * lines.columns, indices[k]);
    }
    // Offset in dX of the element that `index` names on the line (row, column); NOWHERE if it is
    // out of range.
    __device__ i64 at(i64 row, i64 column, i64 index) const {
        const i64 i = wrapped(index, lines.extent);
        if (i == NOWHERE) return NOWHERE;
        i64 offset = i * lines.stride + column * lines.column_stride;
        for (i32 j = static_cast<i32>(lines.n_outer) - 1; j > 0; --j) {
            const i64 rest = divided<Key>(row, lines.extents[j]);
            offset += (row - rest * lines.extents[j]) * lines.strides[j];
            row = rest;
        }
        return offset + row * lines.strides[0];
    }
};

}  // namespace cto::targets
