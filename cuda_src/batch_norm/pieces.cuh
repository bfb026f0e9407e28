// SPDX-License-Identifier: MIT
// Channels of an array (outer, channels, length): a channel is `outer` pieces of `length`
// neighbouring elements. A slot is W neighbouring elements; a piece has a whole number of slots.
// Slots of a channel are numbered across its pieces; a part is `span` of them, here 4:
//
//     slots of a channel   | 0 | 1 | 2 |  other channels  | 3 | 4 | 5 |  other channels  | 6 ...
//     parts                 0   0   0                       0   1   1                      1
#pragma once
#include "batch_norm/coefficients.cuh"
#include "batch_norm/sums.cuh"
#include "core/fast_division.cuh"
#include "core/vec.cuh"

namespace cto::batch_norm::pieces {

using namespace batch_norm::coefficients;
using namespace batch_norm::sums;

using vec::Vec;

// An iterator over the slots (W neighbouring elements) of a thread in a part of a channel: every
// blockDim.x-th, from slot part * span + threadIdx.x of the channel on.
template <int W>
struct Cursor {
    i64 slot, element;  // number of the slot in its piece; index of its first element in the array
    i32 left;           // slots of the part from this one on; none if it is <= 0

    // At the thread's first slot of part `part` of a channel.
    __device__ Cursor(const Pieces& pieces, i64 channel, u32 part) {
        const i64 first = part * pieces.span + threadIdx.x;
        const i64 rest = pieces.n_slots - first, own = pieces.span - threadIdx.x;
        const auto at = fast_division::cell_at(first, pieces.slots);
        left = static_cast<i32>(rest < own ? rest : own);
        slot = at.column;
        element = (at.row * pieces.n_channels + channel) * pieces.length + slot * W;
    }
    // A copy that the compiler does not recognize: else it would keep the addresses of loads for
    // the stores to the same indices, for which there are no registers.
    __device__ Cursor again() const {
        Cursor same = *this;
#ifndef __CUDA_CPU__
        asm volatile("" : "+l"(same.slot), "+l"(same.element));
#endif
        return same;
    }
    // Goes on to the thread's next slot, blockDim.x slots later.
    __device__ void advance(const Pieces& pieces) {
        left -= static_cast<i32>(blockDim.x);
        slot += pieces.slots_on;
        element += pieces.elements_on;
        if (slot >= pieces.slots.value) {
            slot -= pieces.slots.value;
            element += pieces.wrap;
        }
    }
};

// DEPTH slots of W elements of a thread in each of READ arrays, in registers; the first n exist.
template <class T, int W, int READ, int DEPTH>
struct Batch {
    using Unit = vec::Unit<T, vec::IN_WORDS<T, W>>;
    using Register = typename Unit::Register;
    using Slot = Vec<Register, W * sizeof(T) / sizeof(Register)>;

    Slot registers[READ][DEPTH];
    int n;

    // Loads the slots from `cursor` on, and moves it past them. LAST: nothing reads them again.
    template <bool LAST>
    __device__ void load(Cursor<W>& cursor, const Pieces& pieces, const T* const (&arrays)[READ]) {
        n = 0;
#pragma unroll
        for (int u = 0; u < DEPTH; ++u) {
            if (cursor.left > 0) n = u + 1;
#pragma unroll
            for (int a = 0; a < READ; ++a) {
                const auto* const slot = reinterpret_cast<const Slot*>(arrays[a] + cursor.element);
                registers[a][u] =
                    {};  // unset, it would stay live from round to round, in registers
                if (cursor.left > 0) registers[a][u] = LAST ? vec::load_streaming(slot) : *slot;
            }
            cursor.advance(pieces);
        }
    }
    // Element i of slot u of an array, as its accumulator type.
    __device__ Acc<T> at(int array, int u, int i) const {
        return Unit::at(registers[array][u].at, i);
    }
    // One of the elements of the first array, or `otherwise` if there is none.
    __device__ Acc<T> any_of(int, Acc<T> otherwise) const {
        return n > 0 ? at(0, 0, 0) : otherwise;
    }
    // Makes the compiler forget that the elements are unchanged: else it would keep 2-byte elements
    // as floats from one use to the next, for which there are no registers.
    __device__ void renew() {
#ifndef __CUDA_CPU__
        if constexpr (vec::IN_WORDS<T, W>)
#pragma unroll
            for (int a = 0; a < READ; ++a)
#pragma unroll
                for (int u = 0; u < DEPTH; ++u)
#pragma unroll
                    for (auto& word : registers[a][u].at) asm volatile("" : "+r"(word));
#endif
    }
    // Calls see(x), or in the gradient see(x, dY), for all elements, which are of one channel.
    template <class See>
    __device__ void each(int, const See& see) const {
        show<READ, DEPTH>(*this, 0, W, see);
    }
};

// ---- operators ----------------------------------------------------------------------------------

// Slots of each array that a thread has in registers: SINGLE_SLOTS, or CHANNEL_NBYTES, of all
// arrays.
template <class Op, int W>
constexpr int DEPTH =
    (W == 1 ? SINGLE_SLOTS : CHANNEL_NBYTES / static_cast<int>(sizeof(typename Op::T)) / W) /
    Op::READ;

template <class Op, int W>
using PieceBatch = Batch<typename Op::T, W, Op::READ, DEPTH<Op, W>>;

// Writes the results of a batch, which was loaded from cursor `first` on, by the operator `op` and
// the channel's coefs. Residuals, where they are added, are loaded SOME slots at a time: single
// elements twice as many, as more are in flight then, and the compiler of CUDA 13.5 spills nothing.
template <class Op, int W>
__device__ void write_batch(const Op& op, const OpCoefficients<Op>& coefs,
                            const PieceBatch<Op, W>& batch, const Cursor<W>& first,
                            const Pieces& pieces) {
    using T = typename Op::T;
    using A = typename Op::A;
    constexpr int SOME = !Op::ADDS ? DEPTH<Op, W> : W == 1 ? 2 * RESIDUAL_SLOTS : RESIDUAL_SLOTS;
    static_assert(DEPTH<Op, W> % SOME == 0);
    Cursor<W> at = first.again();
#pragma unroll
    for (int begin = 0; begin < DEPTH<Op, W>; begin += SOME) {
        [[maybe_unused]] relu::Residuals<Op, W, SOME> residuals;
        if constexpr (Op::ADDS) {
            Cursor<W> ahead = at.again();
#pragma unroll
            for (int k = 0; k < SOME; ++k) {
                residuals.load(op, k, ahead.element, begin + k < batch.n);
                ahead.advance(pieces);
            }
        }
#pragma unroll
        for (int k = 0; k < SOME; ++k) {
            const int u = begin + k;
            A values[W];
#pragma unroll
            for (int i = 0; i < W; ++i) values[i] = map_element<Op>(coefs, batch, u, i);
            if constexpr (Op::ADDS) residuals.rectify(values, k);
            if (u < batch.n)
                relu::store_results(op, batch, u, op.result + at.element, at.element, values,
                                    [](T* to, const A(&results)[W]) {
                                        vec::store_streaming(reinterpret_cast<Vec<T, W>*>(to),
                                                             vec::from_acc<T>(results));
                                    });
            at.advance(pieces);
        }
    }
}

// Block c has channel c: reads its elements once, into registers, sums them, and writes results, by
// the operator `op`. W: elements of a slot.
template <int W, class Op>
__device__ void in_registers(const Op& op, const Pieces& pieces) {
    using A = typename Op::A;
    __shared__ A warp_sums[2 * WARP];
    const i64 channel = blockIdx.x;
    const A references[1] = {op.reference(channel, pieces.length, pieces.n_slots)};
    Cursor<W> cursor(pieces, channel, 0);
    const Cursor<W> first = cursor;
    PieceBatch<Op, W> batch;
    batch.template load</*LAST=*/true>(cursor, pieces, op.arrays);
    typename Op::template State<1> sums;
    sums.include(batch, static_cast<A>(batch.n * W), references);
    batch.renew();
    sums.join(OverBlock<A>{warp_sums});
    if (threadIdx.x == 0) op.write(channel, sums, references[0]);
    if (op.writes())
        write_batch<Op, W>(op, op.coefficients(op.channel_inputs(channel), sums, references[0]),
                           batch, first, pieces);
}

// How by_schedule goes over channels in pieces (its `Walk`): a tile is one channel, a part `span`
// slots of it, for a block. `sum` is a part's first pass, `apply` its second.
template <class Op, int W>
struct InPieces {
    using A = typename Op::A;
    static constexpr int SHARED = 2 * THREADS;  // elements of shared memory for sums
    static constexpr u32 MERGED_AT_ONCE = 2;    // parts loaded together; a thread rarely has more

    const Op& op;
    const Pieces& pieces;

    __device__ i64 n_channels() const { return pieces.n_channels; }
    __device__ i64 length() const { return pieces.length; }
    __device__ i64 first_channel(u32 tile) const { return tile; }
    __device__ u32 channels(u32) const { return 1; }
    // The reduction that Finish adds up parts with: all threads have the tile's one channel.
    __device__ OverBlock<A> over(u32, u32, u32, u32, A* shared) const { return {shared}; }

    // Writes the sums of part `part` of channel `tile` to partials[0 .. FIELDS). shared: SHARED
    // elements.
    __device__ void sum(u32 tile, u32 part, A* partials, A* shared) const {
        const A references[1] = {op.reference(tile, pieces.length, pieces.n_slots)};
        Cursor<W> cursor(pieces, tile, part);
        typename Op::template State<1> sums;
        PieceBatch<Op, W> batch;
#pragma unroll 1
        do {
            batch.template load</*LAST=*/false>(cursor, pieces, op.arrays);
            sums.include(batch, static_cast<A>(batch.n * W), references);
        } while (cursor.left > 0);
        sums.join(OverBlock<A>{shared});
        if (threadIdx.x == 0) sums.store(partials);
    }
    // Writes the results of part `part` of channel `tile`. wait() returns when the channel's
    // coefficients are in memory; then load_coefs(channel) returns them. The first elements are
    // loaded before that.
    template <class Wait, class LoadCoefs>
    __device__ void apply(u32 tile, u32 part, A*, const Wait& wait,
                          const LoadCoefs& load_coefs) const {
        Cursor<W> cursor(pieces, tile, part);
        OpCoefficients<Op> coefs;
        PieceBatch<Op, W> batch;
        bool waits = true;
#pragma unroll 1
        do {
            const Cursor<W> first = cursor;
            batch.template load</*LAST=*/true>(cursor, pieces, op.arrays);
            if (waits) {
                wait();
                coefs = load_coefs(tile);
                waits = false;
            }
            write_batch<Op, W>(op, coefs, batch, first, pieces);
        } while (cursor.left > 0);
    }
};

}  // namespace cto::batch_norm::pieces
