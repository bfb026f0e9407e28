// SPDX-License-Identifier: MIT
// Gradients of the gather operators.  CPU provider: cupy_training_ops/cpu/gather.py
//
// Each says for every slice of dY which row of dX it is added to. The deterministic way sorts the
// slices by row and sums each row's slices in the order they came in; the other adds them with
// atomics. Few slices are found by looking at them all.
#include "include/packets.cuh"
#include "include/radix_sort.cuh"
#include "include/segments.cuh"

#ifndef CTO_INDEX
#define CTO_INDEX i64
#endif

namespace cto {

using INDEX = CTO_INDEX;

constexpr int MAX_DIMS = 32;
constexpr int ATOMIC_ITEMS = 4;  // additions of one thread, its loads in flight together
constexpr int TILE_COLUMNS = 32;
constexpr int ZERO_PACKETS = 4;  // stores of one thread
constexpr int VECTOR = 16 / sizeof(T);

// ---- where each slice goes: the row of dX, or NOWHERE for an index out of range -----------------

constexpr i64 NOWHERE = -1;

// Negative indices count from the end.
__device__ __forceinline__ i64 wrapped(i64 index, i64 extent) {
    const i64 i = index < 0 ? index + extent : index;
    return i >= 0 && i < extent ? i : NOWHERE;
}

// Of numbers of slices and of rows, which fit into a Key.
__device__ __forceinline__ i64 divided(i64 a, i64 b) {
    return static_cast<i64>(static_cast<Key>(a) / static_cast<Key>(b));
}

struct GatherRow {
    const INDEX* indices;
    i64 G;

    __device__ i64 operator()(i64 k) const { return wrapped(indices[k], G); }
};

// An index of GatherND is a tuple of `count` indices into `extents`; a batch has `per_batch`
// tuples.
struct Tuples {
    i64 count, per_batch;
    i64 extents[MAX_DIMS];
};

struct GatherNDRow {
    const INDEX* indices;
    const Tuples& tuples;

    __device__ i64 operator()(i64 k) const {
        i64 row = divided(k, tuples.per_batch);
        for (i32 j = 0; j < tuples.count; ++j) {
            const i64 i = wrapped(indices[k * tuples.count + j], tuples.extents[j]);
            if (i == NOWHERE) return NOWHERE;
            row = row * tuples.extents[j] + i;
        }
        return row;
    }
};

// An element of GatherElements keeps its coordinates except the one on the axis, whose stride is 0
// in `strides`: the strides in dX of the coalesced dimensions of the indices, the last one apart.
struct Lines {
    i64 extent, stride;  // of dX on the axis
    i64 columns, column_stride;
    i64 n_outer;
    i64 extents[MAX_DIMS], strides[MAX_DIMS];
};

struct GatherElement {
    const INDEX* indices;
    const Lines& lines;

    __device__ i64 operator()(i64 k) const {
        const i64 row = divided(k, lines.columns);
        return at(row, k - row * lines.columns, indices[k]);
    }
    __device__ i64 at(i64 row, i64 column, i64 index) const {
        const i64 i = wrapped(index, lines.extent);
        if (i == NOWHERE) return NOWHERE;
        i64 offset = i * lines.stride + column * lines.column_stride;
        for (i32 j = static_cast<i32>(lines.n_outer) - 1; j > 0; --j) {
            const i64 rest = divided(row, lines.extents[j]);
            offset += (row - rest * lines.extents[j]) * lines.strides[j];
            row = rest;
        }
        return offset + row * lines.strides[0];
    }
};

// ---- few slices and rows: every element of dX looks at all slices, in their order ---------------

template <class Target>
__device__ __forceinline__ void sum_few(Target target, const T* __restrict__ dy, T* __restrict__ dx,
                                        i32 n, const Sizes& sizes) {
    __shared__ i64 row_of[THREADS];  // of each slice
    if (threadIdx.x < sizes.K) row_of[threadIdx.x] = target(threadIdx.x);
    __syncthreads();
    const i32 i = static_cast<i32>(blockIdx.x) * THREADS + static_cast<i32>(threadIdx.x);
    if (i >= n) return;
    const i32 K = static_cast<i32>(sizes.K), W = static_cast<i32>(sizes.W);
    const i32 line = i / W, batch = line / static_cast<i32>(sizes.G);
    const i64 row = line - batch * sizes.G;
    const T* const slices = dy + batch * sizes.K * W + (i - line * W);
    ACC sum = 0;
    for (i32 k = 0; k < K; ++k)
        if (row_of[k] == row) sum += widened(slices[k * W]);
    dx[i] = narrow<T>(sum);
}

// ---- deterministic: keys to sort by; G, past the last row, for an index out of range ------------

// With dY given, entries carry its elements instead of their positions: see SortedSlices.
template <class Target>
struct NewKey {
    Target target;
    const T* dy;
    Entry* entries;
    i64 G;

    __device__ Key operator()(i64 k) const {
        const i64 row = target(k);
        Entry entry{static_cast<Key>(row == NOWHERE ? G : row), static_cast<Key>(k)};
        if constexpr (sizeof(T) <= sizeof(Key))
            if (dy) entry.position = static_cast<Key>(bits_of(dy[k]));
        entries[k] = entry;
        return entry.key;
    }
};

struct KnownKey {
    const Entry* entries;

    __device__ Key operator()(i64 i) const { return entries[i].key; }
};

template <class Target>
__device__ __forceinline__ void make_keys(Target target, const T* dy, Entry* entries, Key* counts,
                                          i64 G, const Pass& pass) {
    count_digits(NewKey<Target>{target, dy, entries, G}, counts, pass);
}

// ---- atomics: sums is dX, or a float32 array of its shape where T is narrower -------------------

template <class Target>
__device__ __forceinline__ void add_slices(Target target, const T* __restrict__ dy, ACC* sums,
                                           const Items& items, const Sizes& sizes) {
    const BatchItem slice(items);
    const i64 first = slice.column<1, ATOMIC_ITEMS>(), W = sizes.W;
    if (slice.batch >= items.B) return;
    const i64 row = target(slice.item);
    if (row == NOWHERE) return;
    const T* const from = dy + (slice.batch * sizes.K + slice.item) * W;
    ACC* const to = sums + (slice.batch * sizes.G + row) * W;
#pragma unroll
    for (int j = 0; j < ATOMIC_ITEMS; ++j) {
        const i64 w = first + j * blockDim.x;
        if (w < W) atomicAdd(to + w, widened(from[w]));
    }
}

// One thread's additions: all loads, then all atomics.
struct Additions {
    i64 target[ATOMIC_ITEMS];
    ACC value[ATOMIC_ITEMS];

    __device__ void apply(ACC* sums) const {
#pragma unroll
        for (int j = 0; j < ATOMIC_ITEMS; ++j)
            if (target[j] != NOWHERE) atomicAdd(sums + target[j], value[j]);
    }
};

__device__ __forceinline__ void add_elements(const GatherElement& element, const T* __restrict__ dy,
                                             ACC* sums, i64 n) {
    const i64 first = static_cast<i64>(blockIdx.x) * (THREADS * ATOMIC_ITEMS) + threadIdx.x;
    Additions additions;
#pragma unroll
    for (int j = 0; j < ATOMIC_ITEMS; ++j) {
        const i64 k = first + j * THREADS;
        additions.target[j] = k < n ? element(k) : NOWHERE;
        additions.value[j] = k < n ? widened(dy[k]) : ACC(0);
    }
    additions.apply(sums);
}

// A strip of TILE_COLUMNS columns over all rows before the next one: the lines of dX that a strip
// is added to fit into the L2 cache, where whole rows in turn would send each addition to memory.
__device__ __forceinline__ void add_elements_by_strips(const GatherElement& element,
                                                       const T* __restrict__ dy, ACC* sums,
                                                       i64 rows, i32 blocks_a_strip) {
    const i32 strip = static_cast<i32>(blockIdx.x) / blocks_a_strip;
    const i32 block = static_cast<i32>(blockIdx.x) - strip * blocks_a_strip;
    const i64 columns = element.lines.columns;
    const i64 column = static_cast<i64>(strip) * TILE_COLUMNS + threadIdx.x;
    const i64 first = static_cast<i64>(block) * (blockDim.y * ATOMIC_ITEMS) + threadIdx.y;
    Additions additions;
#pragma unroll
    for (int j = 0; j < ATOMIC_ITEMS; ++j) {
        const i64 row = first + j * static_cast<i64>(blockDim.y);
        const bool exists = row < rows && column < columns;
        const i64 k = row * columns + column;
        additions.target[j] = exists ? element.at(row, column, element.indices[k]) : NOWHERE;
        additions.value[j] = exists ? widened(dy[k]) : ACC(0);
    }
    additions.apply(sums);
}

__device__ __forceinline__ bool is_aligned(const T* x) {
    return reinterpret_cast<u64>(x) % 16 == 0;
}

// y[0 .. n) = 0
__device__ __forceinline__ void fill_with_zero(T* y, i64 n) {
    constexpr int N = VECTOR;
    const Packet<T, N> zero{};
    const bool aligned = is_aligned(y);
    const i64 first = static_cast<i64>(blockIdx.x) * (THREADS * ZERO_PACKETS) + threadIdx.x;
#pragma unroll
    for (int p = 0; p < ZERO_PACKETS; ++p) {
        const i64 at = (first + p * THREADS) * N;
        if (aligned && at + N <= n)
            store_streaming(reinterpret_cast<Packet<T, N>*>(y + at), zero);
        else
            store_elements(y, at, n, zero);
    }
}

using RoundPackets = Packets<VECTOR, VECTOR, 1, 64>;

struct Round {
    template <int N>
    __device__ Packet<T, N> operator()(const Packet<ACC, N>& sums, int) const {
        return narrowed<T>(sums);
    }
};

}  // namespace cto

using namespace cto;

// ---- entry points: few slices, keys, and atomic additions, of each operator ---------------------

extern "C" __global__ void __launch_bounds__(THREADS)
    gather_grad__few(const INDEX* indices, const T* dy, T* dx, i32 n, Sizes sizes) {
    sum_few(GatherRow{indices, sizes.G}, dy, dx, n, sizes);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_nd_grad__few(const INDEX* indices, Tuples tuples, const T* dy, T* dx, i32 n,
                        Sizes sizes) {
    sum_few(GatherNDRow{indices, tuples}, dy, dx, n, sizes);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_elements_grad__few(const INDEX* indices, Lines lines, const T* dy, T* dx, i32 n,
                              Sizes sizes) {
    sum_few(GatherElement{indices, lines}, dy, dx, n, sizes);
}
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    gather_grad__keys(const INDEX* indices, const T* dy, Entry* entries, Key* counts, Pass pass,
                      i64 G) {
    make_keys(GatherRow{indices, G}, dy, entries, counts, G, pass);
}
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    gather_nd_grad__keys(const INDEX* indices, Tuples tuples, const T* dy, Entry* entries,
                         Key* counts, Pass pass, i64 G) {
    make_keys(GatherNDRow{indices, tuples}, dy, entries, counts, G, pass);
}
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    gather_elements_grad__keys(const INDEX* indices, Lines lines, const T* dy, Entry* entries,
                               Key* counts, Pass pass, i64 G) {
    make_keys(GatherElement{indices, lines}, dy, entries, counts, G, pass);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_grad__atomic(const INDEX* indices, const T* dy, ACC* sums, Items items, Sizes sizes) {
    add_slices(GatherRow{indices, sizes.G}, dy, sums, items, sizes);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_nd_grad__atomic(const INDEX* indices, Tuples tuples, const T* dy, ACC* sums, Items items,
                           Sizes sizes) {
    add_slices(GatherNDRow{indices, tuples}, dy, sums, items, sizes);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_elements_grad__atomic(const INDEX* indices, Lines lines, const T* dy, ACC* sums, i64 n) {
    add_elements(GatherElement{indices, lines}, dy, sums, n);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_elements_grad__atomic_strips(const INDEX* indices, Lines lines, const T* dy, ACC* sums,
                                        i64 rows, i32 blocks_a_strip) {
    add_elements_by_strips(GatherElement{indices, lines}, dy, sums, rows, blocks_a_strip);
}

// ---- entry points: the stages that all three share ----------------------------------------------

extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    gather__count(const Entry* entries, Key* counts, Pass pass) {
    count_digits(KnownKey{entries}, counts, pass);
}
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    gather__scatter(const Entry* from, Entry* to, const Key* counts, Pass pass) {
    scatter_by_digit<SHORT_ITEMS>(from, to, counts, pass);
}
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    gather__scatter__long(const Entry* from, Entry* to, const Key* counts, Pass pass) {
    scatter_by_digit<LONG_ITEMS>(from, to, counts, pass);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gather__starts(const Entry* sorted, Key* starts, i64 n, i64 G) {
    find_start(sorted, starts, n, G);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gather__starts__many(const Entry* sorted, Key* starts, i64 n, i64 G) {
    find_starts(sorted, starts, n, G);
}
// `__scalar`: rows that are no whole number of 16-byte packets, or start off a 16-byte boundary.
extern "C" __global__ void __launch_bounds__(THREADS)
    gather__sum_nodes(const T* dy, const Entry* entries, ACC* sums, Items items, Sizes sizes,
                      Level level) {
    sum_nodes<VECTOR>(dy, entries, sums, items, sizes, level);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gather__sum_nodes__scalar(const T* dy, const Entry* entries, ACC* sums, Items items,
                              Sizes sizes, Level level) {
    sum_nodes<1>(dy, entries, sums, items, sizes, level);
}
// As many blocks on a multiprocessor as their registers allow.
constexpr int SUM_BLOCKS = sizeof(Key) == 8 ? 2 : sizeof(T) == 4 ? 4 : 3;

extern "C" __global__ void __launch_bounds__(THREADS, SUM_BLOCKS)
    gather__sum_rows(const T* dy, const Entry* entries, const Key* starts, const ACC* sums, T* dx,
                     Items items, Sizes sizes, i64 count, i64 n_nodes, i32 levels) {
    sum_rows<VECTOR>(dy, entries, starts, sums, dx, items, sizes, count, n_nodes, levels);
}
extern "C" __global__ void __launch_bounds__(THREADS, SUM_BLOCKS)
    gather__sum_rows__scalar(const T* dy, const Entry* entries, const Key* starts, const ACC* sums,
                             T* dx, Items items, Sizes sizes, i64 count, i64 n_nodes, i32 levels) {
    sum_rows<1>(dy, entries, starts, sums, dx, items, sizes, count, n_nodes, levels);
}
extern "C" __global__ void __launch_bounds__(THREADS) gather__zero(T* y, i64 n) {
    fill_with_zero(y, n);
}
extern "C" __global__ void __launch_bounds__(THREADS) gather__round(const ACC* sums, T* dx, i64 n) {
    if (is_aligned(dx))
        map_packets<true, RoundPackets>(sums, dx, n, n, Round{});
    else
        map_packets<false, RoundPackets>(sums, dx, n, n, Round{});
}
