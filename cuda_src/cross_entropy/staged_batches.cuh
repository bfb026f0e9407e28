// SPDX-License-Identifier: MIT
// Rows of which a block has every batch on chip: the last in registers, as algorithm/lines.cuh does,
// those before it in shared memory. All are on their way from the start, and read once.
#pragma once
#include "algorithm/row_softmax.cuh"
#include "core/async_copy.cuh"

namespace cto::cross_entropy::staged_batches {

using namespace row_softmax;

// The batch in registers, which is not the first.
template <int W, int DEPTH, class Op, class In>
__device__ __forceinline__ void read_last(const Line<W, DEPTH>& line, Op& op, In& in) {
    const auto renew = [&] { in.renew(line.zero()); };
    const auto each = [&](auto see) {
#pragma unroll
        for (int u = 0; u < DEPTH; ++u)
#pragma unroll
            for (int i = 0; i < W; ++i) see(in.at(u, i));
    };
    const auto largest = [&](auto least) {
        least = in.largest(least);
        if (!in.IN_PAIRS) renew();
        return least;
    };
    op.include(each, renew, largest);
    renew();
}
template <int W, int DEPTH, class Map, class To, class In>
__device__ __forceinline__ void write_last(const Line<W, DEPTH>& line,
                                           typename Slots<W>::Count batch, const Map& map,
                                           const To& y, const In& in) {
    y.store_edge(line, map(Place<W>{line.edge, 0}, to_acc(in.edge)));
#pragma unroll
    for (int u = 0; u < DEPTH; ++u) {
        typename To::Value values[W];
#pragma unroll
        for (int i = 0; i < W; ++i) values[i] = map(line.place(batch, u, i), in.at(u, i));
        y.store(line, batch, u, values);
    }
}

// The batches before the last, in all of which a thread has DEPTH slots. It uses what it has copied.
template <class T, int W, int DEPTH>
struct StagedBatches {
    using Reader = LineReader<T, W, DEPTH>;
    using Unit = typename Reader::Unit;
    using Slot = typename Reader::Slot;
    using Count = typename Slots<W>::Count;
    static_assert(sizeof(Slot) == W * sizeof(T));

    u8* own;      // this thread's first slot
    u32 apart;    // bytes from one of its slots to the next
    Count n = 0;  // of its slots

    __device__ __forceinline__ StagedBatches(const Line<W, DEPTH>& line, u8* memory)
        : own(memory + line.thread * sizeof(Slot)), apart(line.threads * sizeof(Slot)) {}

    __device__ __forceinline__ void begin(const Line<W, DEPTH>& line, const Reader& in,
                                          Count last) {
#pragma unroll 1
        for (Count batch = 0; batch < last; batch += line.span())
#pragma unroll
            for (int u = 0; u < DEPTH; ++u)
                async_copy::copy<sizeof(Slot)>(own + n++ * apart, in.slots.at(line, batch, u));
        async_copy::commit();
    }
    __device__ __forceinline__ Slot slot(Count i) const {
        return *reinterpret_cast<const Slot*>(own + i * apart);
    }
    // What each batch is included with, as `read` includes it.
    template <class Op>
    __device__ __forceinline__ void read(const Line<W, DEPTH>& line, Op& op,
                                         const Reader& in) const {
#pragma unroll 1
        for (Count first = 0; first < n; first += DEPTH) {
            const auto each = [&](auto see) {
#pragma unroll 2
                for (int u = 0; u < DEPTH; ++u) {
                    const Slot at = slot(first + u);
#pragma unroll
                    for (int i = 0; i < W; ++i) see(Unit::at(at.at, i));
                }
                if (W > 1 && first == 0) see(to_acc(in.edge));
            };
            const auto largest = [&](auto least) {
                least = larger(least, largest_of(first));
                return W > 1 && first == 0 ? larger(least, to_acc(in.edge)) : least;
            };
            op.include(each, [] {}, largest);
        }
    }
    template <class Map, class To>
    __device__ __forceinline__ void write(const Line<W, DEPTH>& line, const Map& map,
                                          const To& y) const {
#pragma unroll 1
        for (Count i = n - DEPTH; i >= 0; i -= DEPTH)
#pragma unroll 2
            for (int u = 0; u < DEPTH; ++u) {
                const Count batch = i * static_cast<Count>(line.threads);
                const Slot at = slot(i + u);
                Acc<T> values[W];
#pragma unroll
                for (int k = 0; k < W; ++k)
                    values[k] = map(line.place(batch, u, k), Unit::at(at.at, k));
                y.store(line, batch, u, values);
            }
    }

  private:
    __device__ __forceinline__ Acc<T> largest_of(Count first) const {
        Acc<T> largest = negative_infinity<Acc<T>>();
        if constexpr (Reader::IN_PAIRS) {
            Slot pairs = slot(first);
#pragma unroll 2
            for (int u = 1; u < DEPTH; ++u) {
                const Slot at = slot(first + u);
#pragma unroll
                for (int i = 0; i < Reader::WORDS; ++i)
                    pairs.at[i] = vec::larger_pair(pairs.at[i], at.at[i], T());
            }
#pragma unroll
            for (int i = 0; i < W; ++i) largest = larger(largest, Unit::at(pairs.at, i));
        } else {
#pragma unroll 2
            for (int u = 0; u < DEPTH; ++u) {
                const Slot at = slot(first + u);
#pragma unroll
                for (int i = 0; i < W; ++i) largest = larger(largest, Unit::at(at.at, i));
            }
        }
        return largest;
    }
};

}  // namespace cto::cross_entropy::staged_batches
