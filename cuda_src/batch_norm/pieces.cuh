// SPDX-License-Identifier: MIT
// The elements of one channel of an array (outer, channels, length): `outer` pieces of `length`
// neighbouring elements each. A slot is W of them, and a piece has a whole number of slots.
//
//     slots of a channel   | 0 | 1 | 2 |  other channels  | 3 | 4 | 5 |  other channels  | 6 ...
//     parts                 0   0   0                       0   1   1                      1
#pragma once
#include "core/fast_division.cuh"
#include "core/vec.cuh"

namespace cto::batch_norm {

using vec::Vec;

struct Pieces {
    fast_division::Divisor slots;  // of a piece
    i64 n_channels, length;
    i64 n_slots;  // of a channel
    i64 span;     // slots of a part, below 2^31
    // From a slot of a thread to its next, which is blockDim.x slots on: slots of a piece, and
    // elements of the array; `wrap` elements more where it is past the end of the piece.
    i64 slots_on, elements_on, wrap;
};

// A slot of a thread, from which it goes on to its next.
template <int W>
struct Cursor {
    i64 slot, element;  // where it is in its piece and in the array
    i32 left;           // slots of the part from this one on

    __device__ __forceinline__ Cursor(const Pieces& pieces, i64 channel, u32 part) {
        const i64 first = part * pieces.span + threadIdx.x;
        const i64 rest = pieces.n_slots - first, own = pieces.span - threadIdx.x;
        const auto at = fast_division::cell_at(first, pieces.slots);
        left = static_cast<i32>(rest < own ? rest : own);
        slot = at.column;
        element = (at.row * pieces.n_channels + channel) * pieces.length + slot * W;
    }
    // The same, as if it were not known: addresses of loads, kept for the stores to the same places,
    // take more registers than there are.
    __device__ __forceinline__ Cursor again() const {
        Cursor same = *this;
#ifndef __CUDA_CPU__
        asm volatile("" : "+l"(same.slot), "+l"(same.element));
#endif
        return same;
    }
    __device__ __forceinline__ void advance(const Pieces& pieces) {
        left -= static_cast<i32>(blockDim.x);
        slot += pieces.slots_on;
        element += pieces.elements_on;
        if (slot >= pieces.slots.value) {
            slot -= pieces.slots.value;
            element += pieces.wrap;
        }
    }
};

// DEPTH slots of a thread in each of READ arrays, of which the first n are there.
template <class T, int W, int READ, int DEPTH>
struct Batch {
    Vec<T, W> held[READ][DEPTH];
    int n;

    // LAST: whether nothing reads these slots again.
    template <bool LAST>
    __device__ __forceinline__ void load(Cursor<W>& cursor, const Pieces& pieces,
                                         const T* const (&arrays)[READ]) {
        n = 0;
#pragma unroll
        for (int u = 0; u < DEPTH; ++u) {
            if (cursor.left > 0) n = u + 1;
#pragma unroll
            for (int a = 0; a < READ; ++a) {
                const auto* const slot =
                    reinterpret_cast<const Vec<T, W>*>(arrays[a] + cursor.element);
                held[a][u] = {};  // left as it is, it would take registers all the time
                if (cursor.left > 0) held[a][u] = LAST ? vec::load_streaming(slot) : *slot;
            }
            cursor.advance(pieces);
        }
    }
    __device__ __forceinline__ Acc<T> at(int array, int u, int i) const {
        return to_acc(held[array][u].at[i]);
    }
    __device__ __forceinline__ Acc<T> any_of(int, Acc<T> otherwise) const {
        return n > 0 ? at(0, 0, 0) : otherwise;
    }
    // Shows `see` the elements.
    template <class See>
    __device__ __forceinline__ void each(const See& see) const {
#pragma unroll
        for (int u = 0; u < DEPTH; ++u) {
            if (u >= n) continue;
#pragma unroll
            for (int i = 0; i < W; ++i) {
                if constexpr (READ == 1)
                    see(0, at(0, u, i));
                else
                    see(0, at(0, u, i), at(1, u, i));
            }
        }
    }
};

}  // namespace cto::batch_norm
