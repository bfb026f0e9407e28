// SPDX-License-Identifier: MIT
// Operators like softmax: a line of an array is reduced before its elements can be written.
//
// An array (n_outer, length, stride) has n_outer * stride lines; neighbours along a line are
// `stride` elements apart. The threads of a line share its slots. With stride 1 a slot is a
// vector of 16 aligned bytes; the elements before the first and after the last vector (the
// edges) are one a thread. With other strides a slot is one element, and neighbouring threads
// have neighbouring lines. E: type of elements; WIDTH: elements of a slot.
//
//     slots of one thread   0  1  2 | 3  4  5 | 6  7  8 | 9     DEPTH = 3 slots a batch
//     batch                 0         1         2         3
//     read                  ------------------------------>     calls op.include
//     write                 <------------------------------     writes map(element)
//
// `read` goes forward, `write` backward: it starts with the batch that is still in registers. So a
// line of one batch is loaded once, and for a longer one the batches that were loaded last, and are
// still in the L2 cache, are loaded again first.
#pragma once
#include "algorithm/line_threads.cuh"
#include "core/vec.cuh"

namespace cto::lines {

using namespace line_threads;
using facts::MAX_THREADS;
using facts::SHORT_NBYTES;
using facts::SHORT_THREADS;
using vec::IN_WORDS;
using vec::Vec;

// ---- the part of a line that is one thread's ----------------------------------------------------

// The type of slot numbers: lines of vectors have fewer than 2^31.
template <int WIDTH>
struct Slots {
    using Count = i32;
};
template <>
struct Slots<1> {
    using Count = i64;
};

// Element i of the slot that starts at element `start` of the line.
template <int WIDTH>
struct Place {
    i64 start;
    int i;

    // True if it is this element of the line. Only the last comparison, of 32 bits, differs
    // between the elements of a slot.
    __device__ __forceinline__ bool is(i64 element) const {
        const u64 past = static_cast<u64>(element - start);
        return (past < WIDTH ? static_cast<i32>(past) : -1) == i;
    }
};

// A thread's line, and its part of it. Slot s is thread (s % threads)'s; a batch is DEPTH slots of
// each thread, and is named by the number of its first slot. Counts and distances are of elements.
template <int WIDTH, int DEPTH>
struct Line {
    using Count = typename Slots<WIDTH>::Count;
    i64 number;  // of the line in the array; -1 for threads without a line
    i64 start;   // index of its first element in the array
    i64 stride;  // from an element to the next
    i64 pitch;   // from a slot to the next
    i64 edge;    // the thread's element before or after the slots, or -1
    Count n_slots;
    u32 thread;   // number of this thread in the line
    u32 threads;  // number of threads of the line
    i32 head;     // elements before the first slot
    // True if each thread has exactly one batch of DEPTH slots, and there are no edges.
    bool full = false;

    // True for the first thread of a line.
    __device__ bool leads() const { return thread == 0 && number >= 0; }
    // Slots of a batch, of all threads together.
    __device__ Count span() const { return static_cast<Count>(DEPTH) * threads; }
    // Address of the line's first slot in `array`.
    template <class E>
    __device__ E* first_slot(E* array) const {
        return array + start + head;
    }
    // The number of the thread's slot u in a batch; has(): it exists.
    __device__ Count slot(Count batch, int u) const {
        return batch + static_cast<Count>(thread + u * threads);
    }
    __device__ bool has(Count batch, int u) const { return full || slot(batch, u) < n_slots; }
    // True if this thread writes element `element` of the line.
    __device__ bool holds(i64 element) const {
        const i64 past = element - head, slot = past / WIDTH;
        if (past < 0 || slot >= n_slots) return element == edge;
        return static_cast<Count>(slot) % static_cast<Count>(threads) == static_cast<Count>(thread);
    }
    // Always 0, but the compiler does not know.
    __device__ u32 zero() const { return static_cast<u32>(n_slots) & 0x80000000u; }
    // The last batch, with which `read` ends.
    __device__ Count last_batch() const {
        return n_slots > 0 ? (n_slots - 1) / span() * span() : 0;
    }
    // Where element i of the thread's slot u of a batch is in the line.
    __device__ Place<WIDTH> place(Count batch, int u, int i) const {
        return {head + static_cast<i64>(slot(batch, u)) * WIDTH, i};
    }
};

// The addresses of a line's slots: at(batch, u) = first + slot * pitch. PINNED, for rows (pitch
// = WIDTH): an empty asm hides how `first` was computed, so that each address takes one
// instruction; otherwise the compiler computes each from the row's number. It is hidden as a
// global address, so that loads stay global ones.
template <class E, int WIDTH, int DEPTH, bool PINNED>
struct SlotsOf {
    E* first;

    // The addresses of a thread's slots of its line in `array`.
    __device__ __forceinline__ SlotsOf(const Line<WIDTH, DEPTH>& line, E* array)
        : first(line.first_slot(array)) {
#ifndef __CUDA_CPU__
        if constexpr (PINNED) {
            size_t global = __cvta_generic_to_global(first);
            asm("" : "+l"(global));
            first = static_cast<E*>(__cvta_global_to_generic(global));
        }
#endif
    }
    // Address of the thread's slot u of a batch.
    __device__ __forceinline__ E* at(const Line<WIDTH, DEPTH>& line,
                                     typename Slots<WIDTH>::Count batch, int u) const {
        if constexpr (PINNED) return first + multiply_wide(line.slot(batch, u), WIDTH);
        return first + line.slot(batch, u) * line.pitch;
    }
};

// A batch of a line's elements of one array, in registers. PINNED: the addresses of its slots take
// one instruction each (SlotsOf).
template <class E, int WIDTH, int DEPTH, bool PINNED = false>
struct Reader {
    using Unit = vec::Unit<E, IN_WORDS<E, WIDTH>>;
    using Register = typename Unit::Register;
    static constexpr int WORDS = WIDTH * sizeof(E) / sizeof(Register);  // registers of a slot
    using Slot = Vec<Register, WORDS>;
    // True if maxima are computed of two 2-byte elements at a time.
    static constexpr bool IN_PAIRS = vec::HAS_LARGER_PAIR && sizeof(E) == 2 && WORDS < WIDTH;

    SlotsOf<const E, WIDTH, DEPTH, PINNED> slots;
    E fill;                 // value of elements that do not exist
    bool present;           // false: there is no array, all elements are `fill`
    E edge;                 // the thread's element outside slots, or `fill`
    Slot registers[DEPTH];  // [u]: the thread's slot u of the batch that was loaded last

    // Prepares to read `array` along a line and loads `edge`; `load` loads batches. fill: the value
    // of elements that do not exist; present: false if there is no array.
    __device__ __forceinline__ Reader(const Line<WIDTH, DEPTH>& line, const E* array, E fill,
                                      bool present = true)
        : slots(line, array), fill(fill), present(present), edge(fill) {
        if (WIDTH > 1 && line.edge >= 0 && present) edge = array[line.start + line.edge];
    }
    // Loads the thread's slots of a batch of its `line`. STREAMS: evict-first in the caches;
    // BEFORE_STORES: evict-last. Elements that do not exist are `fill`.
    template <bool STREAMS = false, bool BEFORE_STORES = false>
    __device__ __forceinline__ void load(const Line<WIDTH, DEPTH>& line,
                                         typename Slots<WIDTH>::Count batch) {
        constexpr int UNITS = sizeof(Slot) / sizeof(Register);
#pragma unroll
        for (int u = 0; u < DEPTH; ++u) {
#pragma unroll
            for (int i = 0; i < UNITS; ++i) registers[u].at[i] = Unit::fill(fill);
            if (!line.has(batch, u) || !present) continue;
            const E* const from = slots.at(line, batch, u);
            if constexpr (STREAMS)
                registers[u] = vec::load_streaming(reinterpret_cast<const Slot*>(from));
            else if constexpr (BEFORE_STORES && sizeof(Slot) == sizeof(uint4))
                *reinterpret_cast<uint4*>(&registers[u]) =
                    vec::load_before_stores(reinterpret_cast<const uint4*>(from));
            else
                registers[u] = *reinterpret_cast<const Slot*>(from);
        }
    }
    // Element i of slot u.
    __device__ __forceinline__ Acc<E> at(int u, int i) const {
        return Unit::at(registers[u].at, i);
    }

    // max(least, the elements of the batch). IN_PAIRS: first the maxima of all words' lower and
    // upper elements; the last argument of larger_pair only says their type.
    __device__ __forceinline__ Acc<E> largest(Acc<E> least) const {
        if constexpr (IN_PAIRS) {
            u32 of_word[WORDS];
#pragma unroll
            for (int i = 0; i < WORDS; ++i) {
                of_word[i] = registers[0].at[i];
#pragma unroll
                for (int u = 1; u < DEPTH; ++u)
                    of_word[i] = vec::larger_pair(of_word[i], registers[u].at[i], E());
            }
#pragma unroll
            for (int i = 1; i < WORDS; ++i)
                of_word[0] = vec::larger_pair(of_word[0], of_word[i], E());
            return larger(least, larger(Unit::at(of_word, 0), Unit::at(of_word, 1)));
        } else {
#pragma unroll
            for (int u = 0; u < DEPTH; ++u)
#pragma unroll
                for (int i = 0; i < WIDTH; ++i) least = larger(least, at(u, i));
            return least;
        }
    }

    // Hides from the compiler that the elements are the same as before: it would keep
    // 2-byte elements widened from one use to the next, for which there are too few
    // registers. `zero` is 0.
    __device__ __forceinline__ void renew(u32 zero) {
        if constexpr (IN_WORDS<E, WIDTH>) {
#pragma unroll
            for (int u = 0; u < DEPTH; ++u)
#pragma unroll
                for (int i = 0; i < static_cast<int>(sizeof(Slot) / sizeof(u32)); ++i) {
                    u32& word = registers[u].at[i];
                    word ^= zero;
#ifndef __CUDA_CPU__
                    asm("" : "+r"(word));  // keeps the xor before the uses of the word
#endif
                }
        }
    }
};

// The target of `write`: one array. Families have others, which write several arrays.
template <class E>
struct Writer {
    using Value = Acc<E>;
    E* array;

    // Writes slot u of a batch, if it exists: values[i] to its element i.
    template <int WIDTH, int DEPTH>
    __device__ __forceinline__ void store(const Line<WIDTH, DEPTH>& line,
                                          typename Slots<WIDTH>::Count batch, int u,
                                          const Acc<E> (&values)[WIDTH]) const {
        store(SlotsOf<E, WIDTH, DEPTH, /*PINNED=*/false>(line, array), line, batch, u, values);
    }
    // Writes the thread's element outside whole slots, if it has one.
    template <int WIDTH, int DEPTH>
    __device__ __forceinline__ void store_edge(const Line<WIDTH, DEPTH>& line, Acc<E> value) const {
        if (WIDTH > 1 && line.edge >= 0) array[line.start + line.edge] = from_acc<E>(value);
    }

  protected:
    // Writes values[i], rounded, to element i of slot u (its address from `slots`, PINNED or not)
    // of a batch, if it exists, by a streaming store, so that the line's other batches stay in the
    // cache. (A plain store of a vector of 2-byte elements is compiled to stores of 2 bytes.)
    template <bool PINNED, int WIDTH, int DEPTH>
    static __device__ __forceinline__ void store(const SlotsOf<E, WIDTH, DEPTH, PINNED>& slots,
                                                 const Line<WIDTH, DEPTH>& line,
                                                 typename Slots<WIDTH>::Count batch, int u,
                                                 const Acc<E> (&values)[WIDTH]) {
        if (!line.has(batch, u)) return;
        vec::store_streaming(reinterpret_cast<Vec<E, WIDTH>*>(slots.at(line, batch, u)),
                             vec::from_acc<E>(values));
    }
};

template <class First, class... Rest>
__device__ __forceinline__ First& first_of(First& first, Rest&...) {
    return first;
}

// Loads a line of the arrays that `in`, Readers, read, batch by batch; returns the last batch,
// which stays in registers. For each batch it calls op.include(each, renew, largest):
//
//     each(see)        calls see(element of each array) for all of the thread's elements
//     renew()          Reader::renew of each array, between one use of the elements and the next
//     largest(least)   max(least, the first array's elements)
//
// LOADS_FIRST: all loads of a batch are issued before the first use; otherwise the compiler may
// issue some later, to save registers. BEFORE_STORES, for lines that are loaded once: loads are
// marked evict-last in the caches.
template <bool LOADS_FIRST = false, bool BEFORE_STORES = false, int WIDTH, int DEPTH, class Op,
          class... In>
__device__ __forceinline__ typename Slots<WIDTH>::Count read(const Line<WIDTH, DEPTH>& line, Op& op,
                                                             In&... in) {
    typename Slots<WIDTH>::Count batch = 0;
    const auto renew = [&] { (in.renew(line.zero()), ...); };
    const auto each = [&](auto see) {
#pragma unroll
        for (int u = 0; u < DEPTH; ++u)
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) see(in.at(u, i)...);
        if (WIDTH > 1 && batch == 0) see(to_acc(in.edge)...);
    };
    const auto largest = [&](auto least) {
        const auto& first = first_of(in...);
        least = first.largest(least);
        if (!first.IN_PAIRS) renew();
        return WIDTH > 1 && batch == 0 ? larger(least, to_acc(first.edge)) : least;
    };
#pragma unroll 1
    while (true) {
        if constexpr (BEFORE_STORES)
            (in.template load</*STREAMS=*/false, /*BEFORE_STORES=*/true>(line, batch), ...);
        else
            (in.load(line, batch), ...);
        if (LOADS_FIRST) vec::all_are_asked_for();
        op.include(each, renew, largest);
        if (line.full || batch + line.span() >= line.n_slots) break;
        batch += line.span();
    }
    if (!line.full) renew();
    return batch;
}

// Writes element = map(its Place, the element of each array that `in` reads) to y, for this
// thread's elements of the line, batch by batch backward; `batch` is the one that `read` left in
// registers. y is a Writer, or has its `store` and `store_edge`. STREAMS: repeated loads are
// streaming, so that batches still to be loaded stay in the cache.
template <bool STREAMS = false, int WIDTH, int DEPTH, class Map, class To, class... In>
__device__ __forceinline__ void write(const Line<WIDTH, DEPTH>& line,
                                      typename Slots<WIDTH>::Count batch, const Map& map,
                                      const To& y, In&... in) {
    y.store_edge(line, map(Place<WIDTH>{line.edge, 0}, to_acc(in.edge)...));
#pragma unroll 1
    while (true) {
#pragma unroll
        for (int u = 0; u < DEPTH; ++u) {
            typename To::Value values[WIDTH];
#pragma unroll
            for (int i = 0; i < WIDTH; ++i)
                values[i] = map(line.place(batch, u, i), in.at(u, i)...);
            y.store(line, batch, u, values);
        }
        if (line.full || batch == 0) return;
        batch -= line.span();
        (in.template load<STREAMS>(line, batch), ...);
    }
}

// ---- which line a thread has --------------------------------------------------------------------

// A thread's row, and its number among the row's threads.
struct Seat {
    i64 row;
    u32 thread;
};
// The seat of the calling thread, with `threads` threads a row: a power of two up to WARP, or the
// whole block. Blocks have consecutive rows.
__device__ __forceinline__ Seat seat_of(u32 threads) {
    const bool shares_warp = threads <= WARP;  // then threads are a power of two
    const u32 shift = 31 - __clz(threads);
    const u32 group = shares_warp ? threadIdx.x >> shift : 0;
    const u32 thread = shares_warp ? threadIdx.x & (threads - 1) : threadIdx.x;
    return {static_cast<i64>(blockIdx.x) * (shares_warp ? blockDim.x >> shift : 1) + group, thread};
}

// Row `row` of n_rows rows of `length` elements, in arrays that start at a multiple of 16 bytes,
// for thread `thread` of the row's `threads`; a Line without elements if row >= n_rows. Edges: the
// first `head` threads have the elements before the first vector, the next ones those after the
// last.
template <int WIDTH, int DEPTH>
__device__ __forceinline__ Line<WIDTH, DEPTH> row_at(i64 row, i64 n_rows, i64 length, u32 thread,
                                                     u32 threads) {
    // Lines: {number, start, stride, pitch, edge, n_slots, thread, threads, head}
    if (row >= n_rows) return {-1, 0, 1, WIDTH, -1, 0, thread, threads, 0};
    const i64 start = row * length;
    const i64 before = -start & (WIDTH - 1);  // elements up to the next multiple of WIDTH
    const i32 head = static_cast<i32>(before < length ? before : length);
    const i32 n_slots = static_cast<i32>((length - head) / WIDTH);
    const i64 in_slots = static_cast<i64>(n_slots) * WIDTH;
    const i64 edge = static_cast<i32>(thread) < head ? thread : thread + in_slots;
    const bool has_edge = thread < length - in_slots;
    return {row, start, 1, WIDTH, has_edge ? edge : -1, n_slots, thread, threads, head};
}

// The row of this thread, of n_rows rows of `length` elements, `threads` threads a row;
// blocks have blockDim.x / threads consecutive rows.
template <int WIDTH, int DEPTH>
__device__ __forceinline__ Line<WIDTH, DEPTH> row_of(i64 n_rows, i64 length, u32 threads) {
    const u32 group = threadIdx.x / threads, thread = threadIdx.x - group * threads;
    const i64 row = static_cast<i64>(blockIdx.x) * (blockDim.x / threads) + group;
    return row_at<WIDTH, DEPTH>(row, n_rows, length, thread, threads);
}

// row_of without a division: `threads` is a power of two up to WARP, or the whole block.
template <int WIDTH, int DEPTH>
__device__ __forceinline__ Line<WIDTH, DEPTH> seated_row_of(i64 n_rows, i64 length, u32 threads) {
    const Seat seat = seat_of(threads);
    return row_at<WIDTH, DEPTH>(seat.row, n_rows, length, seat.thread, threads);
}

// The row of this thread, of n_rows, where rows have exactly threads * DEPTH * WIDTH elements: a
// batch of DEPTH slots for each of its threads. Threads without a row read the last one, with
// number -1.
template <int WIDTH, int DEPTH>
__device__ __forceinline__ Line<WIDTH, DEPTH> full_row_of(i64 n_rows, u32 threads) {
    const auto [row, thread] = seat_of(threads);
    const i64 start = (row < n_rows ? row : n_rows - 1) * (threads * (WIDTH * DEPTH));
    const i32 n_slots = static_cast<i32>(threads * DEPTH);
    // {number, start, stride, pitch, edge, n_slots, thread, threads, head, full}
    return {row < n_rows ? row : -1, start, 1, WIDTH, -1, n_slots, thread, threads, 0, true};
}

// This thread's line of an array (n_outer, length, stride): threads along x have neighbouring
// lines, threads along y share one, threads along z have consecutive `outer`. Block number = (outer
// / blockDim.z) * n_tiles + column / blockDim.x.
template <int DEPTH>
__device__ __forceinline__ Line<1, DEPTH> column_of(i64 n_outer, i64 length, i64 stride) {
    const u32 n_tiles = static_cast<u32>((stride + blockDim.x - 1) / blockDim.x);
    const i64 outer = static_cast<i64>(blockIdx.x / n_tiles) * blockDim.z + threadIdx.z;
    const i64 column = static_cast<i64>(blockIdx.x % n_tiles) * blockDim.x + threadIdx.x;
    const bool inside = outer < n_outer && column < stride;
    // Lines: {number, start, stride, pitch, edge, n_slots, thread, threads, head}
    if (!inside) return {-1, 0, stride, stride, -1, 0, threadIdx.y, blockDim.y, 0};
    const i64 start = outer * length * stride + column;
    return {outer * stride + column, start, stride, stride, -1, length, threadIdx.y, blockDim.y, 0};
}

}  // namespace cto::lines
