// SPDX-License-Identifier: MIT
// Lines of an array that are read as a whole before any of their elements can be written.
//
// An array (n_outer, length, stride) has n_outer * stride lines; neighbours along a line are `stride`
// elements apart. The threads of a line share its slots: with stride 1 a slot is a vector of 16
// aligned bytes, and the elements before the first and after the last vector fall to a thread each;
// else a slot is one element, and neighbouring threads have neighbouring lines.
//
//     slot          0  1  2 | 3  4  5 | 6  7  8 | 9        DEPTH = 3 slots a thread and batch,
//     batch         0         1         2         3        of each of the threads side by side
//     first reading -------------------------------->      what op.include sees
//     second        <--------------------------------      what map gives is written
//
// The first reading goes forward. The second goes back: it begins with the batch that is still in
// registers, so that a line that fits into one batch is read once, and of a longer one it meets
// first what was read last and is still in the L2 cache.
#pragma once
#include "core/vec.cuh"

namespace cto::lines {

using facts::MAX_THREADS;
using facts::SHORT_NBYTES;
using facts::SHORT_THREADS;
using vec::IN_WORDS;
using vec::Vec;

// ---- the part of a line that is one thread's ----------------------------------------------------

// What counts the slots of a line: rows are launched with vectors where they have less than 2^31.
template <int WIDTH>
struct Slots {
    using Count = i32;
};
template <>
struct Slots<1> {
    using Count = i64;
};

// Element i of a slot of which it is said where in the line it starts.
template <int WIDTH>
struct Place {
    i64 start;
    int i;

    // Whether it is this element of the line. Only the last comparison, of 32 bits, differs
    // between the elements of a slot.
    __device__ __forceinline__ bool is(i64 element) const {
        const u64 past = static_cast<u64>(element - start);
        return (past < WIDTH ? static_cast<i32>(past) : -1) == i;
    }
};

template <int WIDTH, int DEPTH>
struct Line {
    using Count = typename Slots<WIDTH>::Count;
    i64 number;  // which line of the array it is; -1 for threads without one
    i64 start;   // of its first element in the array
    i64 stride;  // from one of its elements to the next
    i64 pitch;   // from one of its slots to the next
    i64 edge;    // the one that is this thread's of those before and after the slots, or -1
    Count n_slots;
    u32 thread;         // among those of the line
    u32 threads;        // of the line
    i32 head;           // elements before the first slot
    bool full = false;  // whether each thread has DEPTH slots, and there are no other elements

    // Whether this is the first thread of a line.
    __device__ bool leads() const { return thread == 0 && number >= 0; }
    __device__ Count span() const { return static_cast<Count>(DEPTH) * threads; }
    // The first slot of the line in an array.
    template <class E>
    __device__ E* first_slot(E* array) const {
        return array + start + head;
    }
    // Slot u of a batch, and whether there is one for this thread.
    __device__ Count slot(Count batch, int u) const {
        return batch + static_cast<Count>(thread + u * threads);
    }
    __device__ bool has(Count batch, int u) const { return full || slot(batch, u) < n_slots; }
    // 0, which a compiler cannot know.
    __device__ u32 zero() const { return static_cast<u32>(n_slots) & 0x80000000u; }
    // The batch that `read` ends with.
    __device__ Count last_batch() const {
        return n_slots > 0 ? (n_slots - 1) / span() * span() : 0;
    }
    __device__ Place<WIDTH> place(Count batch, int u, int i) const {
        return {head + static_cast<i64>(slot(batch, u)) * WIDTH, i};
    }
};

// Elements of one array.
template <class E, int WIDTH, int DEPTH>
struct Reader {
    using Unit = vec::Unit<E, IN_WORDS<E, WIDTH>>;
    using Held = typename Unit::Held;
    using Slot = Vec<Held, WIDTH * sizeof(E) / sizeof(Held)>;

    const E* slots;  // the line's first one
    E fill;          // in the place of elements that are not there
    bool present;    // whether there is an array
    E edge;
    Slot held[DEPTH];

    __device__ __forceinline__ Reader(const Line<WIDTH, DEPTH>& line, const E* array, E fill,
                                      bool present = true)
        : slots(line.first_slot(array)), fill(fill), present(present), edge(fill) {
        if (WIDTH > 1 && line.edge >= 0 && present) edge = array[line.start + line.edge];
    }
    template <bool STREAMS = false>
    __device__ __forceinline__ void load(const Line<WIDTH, DEPTH>& line,
                                         typename Slots<WIDTH>::Count batch) {
        constexpr int UNITS = sizeof(Slot) / sizeof(Held);
#pragma unroll
        for (int u = 0; u < DEPTH; ++u) {
#pragma unroll
            for (int i = 0; i < UNITS; ++i) held[u].at[i] = Unit::fill(fill);
            if (!line.has(batch, u) || !present) continue;
            const E* const from = slots + line.slot(batch, u) * line.pitch;
            if constexpr (STREAMS)
                held[u] = vec::load_streaming(reinterpret_cast<const Slot*>(from));
            else
                held[u] = *reinterpret_cast<const Slot*>(from);
        }
    }
    __device__ __forceinline__ Acc<E> at(int u, int i) const { return Unit::at(held[u].at, i); }

    // The same bits, as if they were loaded again: a compiler that knows them keeps all elements of
    // a short type in their accumulators from one use to the next, for which there is no room.
    __device__ __forceinline__ void renew(u32 zero) {
        if constexpr (IN_WORDS<E, WIDTH>) {
#pragma unroll
            for (int u = 0; u < DEPTH; ++u)
#pragma unroll
                for (int i = 0; i < static_cast<int>(sizeof(Slot) / sizeof(u32)); ++i) {
                    u32& word = held[u].at[i];
                    word ^= zero;
#ifndef __CUDA_CPU__
                    asm("" : "+r"(word));  // nor is it put off beyond what is made of the word
#endif
                }
        }
    }
};

// What `write` gives results to. Families have others, which make several arrays of a value.
template <class E>
struct Writer {
    using Value = Acc<E>;
    E* array;

    // Past the cache, in which a line of several batches is to stay. A plain copy of a vector of
    // 2-byte elements is compiled to stores of 2 bytes.
    template <int WIDTH, int DEPTH>
    __device__ __forceinline__ void store(const Line<WIDTH, DEPTH>& line,
                                          typename Slots<WIDTH>::Count batch, int u,
                                          const Acc<E> (&values)[WIDTH]) const {
        if (!line.has(batch, u)) return;
        E* const to = line.first_slot(array) + line.slot(batch, u) * line.pitch;
        vec::store_streaming(reinterpret_cast<Vec<E, WIDTH>*>(to), vec::from_acc<E>(values));
    }
    template <int WIDTH, int DEPTH>
    __device__ __forceinline__ void store_edge(const Line<WIDTH, DEPTH>& line, Acc<E> value) const {
        if (WIDTH > 1 && line.edge >= 0) array[line.start + line.edge] = from_acc<E>(value);
    }
};

// The first reading; gives the batch that stays in registers. What goes through a batch more than
// once calls `renew` in between. LOADS_FIRST: all loads of a batch are begun before anything is made
// of them; else a compiler may begin some when it has waited for others, to need fewer registers.
template <bool LOADS_FIRST = false, int WIDTH, int DEPTH, class Op, class... E>
__device__ __forceinline__ typename Slots<WIDTH>::Count read(const Line<WIDTH, DEPTH>& line, Op& op,
                                                             Reader<E, WIDTH, DEPTH>&... in) {
    typename Slots<WIDTH>::Count batch = 0;
    const auto renew = [&] { (in.renew(line.zero()), ...); };
    const auto each = [&](auto see) {
#pragma unroll
        for (int u = 0; u < DEPTH; ++u)
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) see(in.at(u, i)...);
        if (WIDTH > 1 && batch == 0) see(to_acc(in.edge)...);
    };
#pragma unroll 1
    while (true) {
        (in.load(line, batch), ...);
#ifndef __CUDA_CPU__
        if (LOADS_FIRST) asm volatile("" ::: "memory");
#endif
        op.include(each, renew);
        if (batch + line.span() >= line.n_slots) break;
        batch += line.span();
    }
    renew();
    return batch;
}

// The second: y = map(place, elements), from the batch on that is in registers. STREAMS: what is
// loaded again leaves the cache to what will be.
template <bool STREAMS = false, int WIDTH, int DEPTH, class Map, class To, class... E>
__device__ __forceinline__ void write(const Line<WIDTH, DEPTH>& line,
                                      typename Slots<WIDTH>::Count batch, const Map& map,
                                      const To& y, Reader<E, WIDTH, DEPTH>&... in) {
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
        if (batch == 0) return;
        batch -= line.span();
        (in.template load<STREAMS>(line, batch), ...);
    }
}

// ---- sums and maxima over the threads of a line -------------------------------------------------

__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ double larger(double a, double b) { return fmax(a, b); }

struct Max {
    template <class A>
    static __device__ __forceinline__ A of(A a, A b) {
        return larger(a, b);
    }
};
struct Sum {
    template <class A>
    static __device__ __forceinline__ A of(A a, A b) {
        return a + b;
    }
};

template <class A>
__device__ __forceinline__ A negative_infinity() {
    return -static_cast<A>(__int_as_float(0x7F800000));
}

// Threads side by side: a power of two within a warp, or all of a block.
template <class A>
struct RowThreads {
    u32 threads;
    A* of_warp;                 // shared memory, WARP entries
    mutable bool used = false;  // whether some thread may still read it

    __device__ __forceinline__ A max(A value) const {
        return over<Max>(value, negative_infinity<A>());
    }
    __device__ __forceinline__ A sum(A value) const { return over<Sum>(value, A(0)); }

  private:
    // Over groups of so many lanes, a power of two.
    template <class How>
    static __device__ __forceinline__ A over_lanes(A value, u32 lanes) {
        if (lanes == WARP) {
#pragma unroll
            for (u32 step = 1; step < WARP; step *= 2)
                value = How::of(value, __shfl_xor_sync(ALL_LANES, value, step));
            return value;
        }
#pragma unroll 1
        for (u32 step = 1; step < lanes; step *= 2)
            value = How::of(value, __shfl_xor_sync(ALL_LANES, value, step));
        return value;
    }
    template <class How>
    __device__ __forceinline__ A over(A value, A neutral) const {
        value = over_lanes<How>(value, threads < WARP ? threads : WARP);
        if (threads <= WARP) {
            __syncwarp();  // what was read of the line before is read
            return value;
        }
        const u32 lane = threadIdx.x % WARP, warps = threads / WARP;
        const u32 lanes = (warps & (warps - 1)) == 0 ? warps : WARP;
        if (used) __syncthreads();
        used = true;
        if (lane == 0) of_warp[threadIdx.x / WARP] = value;
        __syncthreads();
        const u32 warp = lane & (lanes - 1);
        return over_lanes<How>(warp < warps ? of_warp[warp] : neutral, lanes);
    }
};

// Threads of a block that differ in threadIdx.y only, a power of two.
template <class A>
struct ColumnThreads {
    A* of_thread;  // shared memory, an entry for each thread of the block

    __device__ __forceinline__ A max(A value) const { return over<Max>(value); }
    __device__ __forceinline__ A sum(A value) const { return over<Sum>(value); }

  private:
    template <class How>
    __device__ __forceinline__ A over(A value) const {
        const u32 own = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
#pragma unroll 1
        for (u32 half = blockDim.y / 2; half > 0; half /= 2) {
            __syncthreads();
            of_thread[own] = value;
            __syncthreads();
            value = How::of(value, of_thread[own ^ (half * blockDim.x)]);
        }
        __syncthreads();
        return value;
    }
};

// ---- which line a thread has --------------------------------------------------------------------

// Rows of `length` elements in arrays that start at a multiple of 16 bytes, `threads` threads each.
template <int WIDTH, int DEPTH>
__device__ __forceinline__ Line<WIDTH, DEPTH> row_of(i64 n_rows, i64 length, u32 threads) {
    const u32 group = threadIdx.x / threads, thread = threadIdx.x - group * threads;
    const i64 row = static_cast<i64>(blockIdx.x) * (blockDim.x / threads) + group;
    if (row >= n_rows) return {-1, 0, 1, WIDTH, -1, 0, thread, threads, 0};
    const i64 start = row * length;
    const i64 before = -start & (WIDTH - 1);
    const i32 head = static_cast<i32>(before < length ? before : length);
    const i32 n_slots = static_cast<i32>((length - head) / WIDTH);
    const i64 in_slots = static_cast<i64>(n_slots) * WIDTH;
    const i64 edge = static_cast<i32>(thread) < head ? thread : thread + in_slots;
    const bool has_edge = thread < length - in_slots;
    return {row, start, 1, WIDTH, has_edge ? edge : -1, n_slots, thread, threads, head};
}

// Rows of `threads` full batches, where there are any. What has no row of its own reads the last one.
template <int WIDTH, int DEPTH>
__device__ __forceinline__ Line<WIDTH, DEPTH> full_row_of(i64 n_rows, u32 threads) {
    const bool shares_warp = threads <= WARP;  // then threads are a power of two
    const u32 shift = 31 - __clz(threads);
    const u32 group = shares_warp ? threadIdx.x >> shift : 0;
    const u32 thread = shares_warp ? threadIdx.x & (threads - 1) : threadIdx.x;
    const i64 row = static_cast<i64>(blockIdx.x) * (shares_warp ? blockDim.x >> shift : 1) + group;
    const i64 start = (row < n_rows ? row : n_rows - 1) * (threads * (WIDTH * DEPTH));
    const i32 n_slots = static_cast<i32>(threads * DEPTH);
    return {row < n_rows ? row : -1, start, 1, WIDTH, -1, n_slots, thread, threads, 0, true};
}

// Lines of any stride: threads along x have neighbouring ones, those along y share one.
template <int DEPTH>
__device__ __forceinline__ Line<1, DEPTH> column_of(i64 n_outer, i64 length, i64 stride) {
    const u32 n_tiles = static_cast<u32>((stride + blockDim.x - 1) / blockDim.x);
    const i64 outer = static_cast<i64>(blockIdx.x / n_tiles) * blockDim.z + threadIdx.z;
    const i64 column = static_cast<i64>(blockIdx.x % n_tiles) * blockDim.x + threadIdx.x;
    const bool inside = outer < n_outer && column < stride;
    if (!inside) return {-1, 0, stride, stride, -1, 0, threadIdx.y, blockDim.y, 0};
    const i64 start = outer * length * stride + column;
    return {outer * stride + column, start, stride, stride, -1, length, threadIdx.y, blockDim.y, 0};
}

}  // namespace cto::lines
