// SPDX-License-Identifier: MIT
// Pools and their gradients.  CPU provider: cupy_training_ops/families/pooling/reference.py
//
// A thread computes some neighbouring outputs: those of Y from their windows, those of dX from the
// windows that contain them. So sums have a fixed order, and there are no atomics. geometry: for
// each of AXES axes the extents of X and Y, and kernel, stride, dilation and pads of the windows.
#include "algorithm/reduce.cuh"
#include "core/slots.cuh"
#include "core/vec.cuh"
#include "pooling/largest.cuh"
#include "pooling/tile_pools.cuh"
#include "pooling/windows.cuh"

namespace cto::pooling {

using slots::T;
using ACC = Acc<T>;

// Blocks on a multiprocessor, for __launch_bounds__, without spills.
constexpr int RESIDENT = 4, RESIDENT_WINDOWS = sizeof(T) == 8 ? 2 : 3;
constexpr int RESIDENT_TILES = KERNEL_ROWS * KERNEL_COLUMNS <= SMALL ? 2 : 1;
constexpr int OF_ROWS = ROWS<sizeof(T)>;

// Running maximum: the first of equal ones; a NaN is larger than all numbers.
struct Largest {
    T value;
    i64 number;  // of the element in X; -1 if there is none yet

    // Keeps the candidate, element its_number of X, if it is larger, or NaN, or the first one.
    __device__ void see(T candidate, i64 its_number) {
        const ACC x = to_acc(candidate), y = to_acc(value);
        if (number >= 0 && !largest::is_larger(x, y)) return;
        value = candidate;
        number = its_number;
    }
};

// True if the element at position i, between the first and the last element of window o along each
// axis, is in the window: dilation leaves gaps.
__device__ __forceinline__ bool is_in(const Geometry& geometry, const i32 (&i)[AXES],
                                      const i32 (&o)[AXES]) {
    bool all = true;
#pragma unroll
    for (int axis = 0; axis < AXES; ++axis) {
        const i32 dilation = geometry.dilation[axis];
        if (dilation > 1) all &= (i[axis] - start_of(geometry, axis, o[axis])) % dilation == 0;
    }
    return all;
}

// A thread's `length` <= RUN neighbours of dX along the last axis, from `place` on.
struct Neighbours {
    Place place;
    i32 length;

    // The neighbours of thread `position`, which has RUN of them; fewer at the end of a line.
    // geometry.written counts such runs along the last axis.
    __device__ Neighbours(const Geometry& geometry, i64 position)
        : place(place_of(geometry, position)) {
        place.at[LAST] *= RUN;
        length = min(RUN, geometry.image[LAST] - place.at[LAST]);
    }
};

// sums[k] = dX of neighbour k, k < RUN. In its functions `first` is the position of neighbour 0,
// along each axis, and o the number of a window along each axis.
struct Gathered {
    ACC sums[RUN];

    // sums[k] += value for each neighbour k in window o.
    __device__ __forceinline__ void add(const Geometry& geometry, const i32 (&first)[AXES],
                                        const i32 (&o)[AXES], ACC value) {
#pragma unroll
        for (int k = 0; k < RUN; ++k)
            if (reaches(geometry, first, o, k)) sums[k] += value;
    }
    // For average pools: adds slopes[k] / (elements of window o + k that count) to the neighbours
    // in it, for n windows along the last axis; slopes[k]: dY of window o + k. include_pad:
    // elements in the padding count, too.
    __device__ __forceinline__ void add_means(const Geometry& geometry, const i32 (&first)[AXES],
                                              const i32 (&o)[AXES], i32 n, const T (&slopes)[RUN],
                                              bool include_pad) {
        const i32 outer = count_of(geometry, 0, o[0], include_pad);
        const ACC of_plane = static_cast<ACC>(outer) * count_of(geometry, 1, o[1], include_pad);
#pragma unroll
        for (int k = 0; k < RUN; ++k) {
            if (k >= n) continue;
            const i32 window[] = {o[0], o[1], o[LAST] + k};
            const ACC count = of_plane * count_of(geometry, LAST, window[LAST], include_pad);
            add(geometry, first, window, to_acc(slopes[k]) / max(count, ACC(1)));
        }
    }
    // For maximum pools: adds `value`, dY of window o, to the neighbour that is the window's
    // maximum, if one is. number: index of the maximum - index of neighbour 0; as Indices may be
    // anything, so may this be, and the neighbour must be in the window, too.
    __device__ __forceinline__ void add_chosen(const Geometry& geometry, u64 number,
                                               const i32 (&first)[AXES], const i32 (&o)[AXES],
                                               ACC value) {
#pragma unroll
        for (int k = 0; k < RUN; ++k) {
            const bool is_chosen = number == static_cast<u64>(k * geometry.number[LAST]);
            if (is_chosen && reaches(geometry, first, o, k)) sums[k] += value;
        }
    }
    // to[k] = sums[k] rounded, k < length; by_vectors: all RUN in one store.
    __device__ __forceinline__ void store(T* to, i32 length, bool by_vectors) const {
        if (by_vectors) {
            vec::Vec<T, RUN> out;
#pragma unroll
            for (int k = 0; k < RUN; ++k) out.at[k] = from_acc<T>(sums[k]);
            *reinterpret_cast<vec::Vec<T, RUN>*>(to) = out;
            return;
        }
#pragma unroll
        for (int k = 0; k < RUN; ++k)
            if (k < length) to[k] = from_acc<T>(sums[k]);
    }

  private:
    // True if neighbour k is in window o: along the last axis, between its first and its last
    // element, and not in a gap.
    static __device__ __forceinline__ bool reaches(const Geometry& geometry,
                                                   const i32 (&first)[AXES], const i32 (&o)[AXES],
                                                   int k) {
        const u32 reach = (geometry.kernel[LAST] - 1) * geometry.dilation[LAST];
        const i32 past_start = first[LAST] - start_of(geometry, LAST, o[LAST]);
        const i32 i[] = {first[0], first[1], first[2] + k};
        return static_cast<u32>(past_start + k) <= reach && is_in(geometry, i, o);
    }
};

// A thread's n_rows <= OF_ROWS windows, neighbours along the axis before the last.
struct WindowsOfRows {
    const Geometry& geometry;
    Place place;  // of the first window
    i32 n_rows;

    // The OF_ROWS windows, one below the other, that thread `position` computes; fewer at the end.
    // Along this axis geometry.written counts groups of OF_ROWS rows, and geometry.output rows: so
    // place_of gives the number of a group, of which OF_ROWS times is its first row.
    __device__ WindowsOfRows(const Geometry& geometry, i64 position)
        : geometry(geometry), place(place_of(geometry, position)) {
        place.at[ROWS_AXIS] *= OF_ROWS;
        n_rows = min(OF_ROWS, geometry.output[ROWS_AXIS] - place.at[ROWS_AXIS]);
    }
    // The index of window k in Y.
    __device__ i64 of(int k) const {
        i64 offset = place.plane;
#pragma unroll
        for (int axis = 0; axis < AXES; ++axis)
            offset = offset * geometry.output[axis] + place.at[axis] + (axis == ROWS_AXIS ? k : 0);
        return offset;
    }
    // Calls see(k, element, its number in X) for each element of x in each window k. For each tap
    // (place in a window), the elements of all windows are loaded before the first call.
    template <class See>
    __device__ __forceinline__ void visit(const T* x, const See& see) const {
        const i64 plane = place.plane * product(geometry.image);
        const i64 rows_on = geometry.stride[ROWS_AXIS];
        visit_elements_of_rows(geometry, place.at, [&](i64 by_rows, i64 number, i32 row) {
            const T* const from = x + plane + by_rows;
            T elements[OF_ROWS];
#pragma unroll
            for (int k = 0; k < OF_ROWS; ++k)
                if (has(row, k)) elements[k] = from[k * rows_on * geometry.image[LAST]];
#pragma unroll
            for (int k = 0; k < OF_ROWS; ++k)
                if (has(row, k))
                    see(k, elements[k], plane + number + k * rows_on * geometry.number[ROWS_AXIS]);
        });
    }

  private:
    // True if window k exists and its element is in the image, where window 0's is in row `row`.
    __device__ bool has(i32 row, int k) const {
        const i64 its_row = row + static_cast<i64>(k) * geometry.stride[ROWS_AXIS];
        return k < n_rows && its_row >= 0 && its_row < geometry.image[ROWS_AXIS];
    }
};

// Visitor that sums the elements of vectors; 2-byte elements stay in words, to save registers.
struct Sum {
    using Unit = vec::Unit<T, vec::IN_WORDS<T, vec::WIDTH<T>>>;
    using Words = vec::Vec<Unit::Register, 16 / sizeof(Unit::Register)>;
    ACC sum = 0;

    __device__ __forceinline__ void operator()(const Words& x) {
#pragma unroll
        for (int i = 0; i < vec::WIDTH<T>; ++i) sum += Unit::at(x.at, i);
    }
    __device__ __forceinline__ void operator()(const vec::Vec<T, 1>& x) { sum += to_acc(x.at[0]); }
};

// Returns this thread's part of the sum of the `length` elements of a plane; it is number `thread`
// of n_threads.
__device__ __forceinline__ ACC part_of_plane(const T* plane, i64 length, u32 thread,
                                             u32 n_threads) {
    constexpr i64 SPAN = 1 << 30;  // vectors that are visited at once
    constexpr int LOADED = 8;      // together by a thread
    const reduce::Range<T, Sum::Words> range(plane, length);
    Sum sum;
    for (i64 first = 0; first < range.n_vecs; first += SPAN)
        reduce::visit_vecs<LOADED>(range, first, SPAN, thread, n_threads, sum);
    reduce::visit_edges(range, thread, n_threads, sum);
    return sum.sum;
}

}  // namespace cto::pooling

using namespace cto;
using namespace cto::pooling;

// y = the maximum of each window of x, indices = its number in x, in row- or column-major order as
// geometry.number has it; either may be null. A thread has OF_ROWS windows, neighbours along the
// axis before the last; n threads in all.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_WINDOWS)
    max_pool(const T* x, T* y, i64* indices, i64 n, const __grid_constant__ Geometry geometry) {
    if constexpr (!TILED) {
        const i64 position = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
        if (position >= n) return;
        const WindowsOfRows windows(geometry, position);
        Largest largest[OF_ROWS];
#pragma unroll
        for (int k = 0; k < OF_ROWS; ++k)
            largest[k] = {from_acc<T>(ACC(-__int_as_float(0x7f800000))), -1};
        windows.visit(x, [&](int k, T element, i64 number) { largest[k].see(element, number); });
#pragma unroll
        for (int k = 0; k < OF_ROWS; ++k) {
            if (k >= windows.n_rows) continue;
            if (y != nullptr) y[windows.of(k)] = largest[k].value;
            if (indices != nullptr) indices[windows.of(k)] = largest[k].number;
        }
    }
}

// dx[i] = sum of dy over the windows o with indices[o] == i. A thread has RUN neighbours along the
// last axis, which have most windows in common; n threads in all. by_vectors: all RUN exist and are
// stored as one vector.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_WINDOWS)
    max_pool_grad(const T* dy, const i64* indices, T* dx, bool by_vectors, i64 n,
                  const __grid_constant__ Geometry geometry) {
    if constexpr (!TILED) {
        const i64 position = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
        if (position >= n) return;
        const Neighbours neighbours(geometry, position);
        const Place& place = neighbours.place;
        const i64 plane = place.plane * product(geometry.output);
        u64 own = place.plane * product(geometry.image);
#pragma unroll
        for (int axis = 0; axis < AXES; ++axis) own += place.at[axis] * geometry.number[axis];
        Gathered gathered{};
        visit_windows(geometry, place.at, neighbours.length,
                      [&](i64 window, const i32(&first)[AXES], i32 n) {
                          i64 chosen[RUN];
                          T slopes[RUN];
#pragma unroll
                          for (int k = 0; k < RUN; ++k) {
                              if (k >= n) continue;
                              chosen[k] = indices[plane + window + k];
                              slopes[k] = dy[plane + window + k];
                          }
#pragma unroll
                          for (int k = 0; k < RUN; ++k) {
                              const i32 o[] = {first[0], first[1], first[LAST] + k};
                              if (k < n)
                                  gathered.add_chosen(geometry, chosen[k] - own, place.at, o,
                                                      to_acc(slopes[k]));
                          }
                      });
        gathered.store(dx + offset_of(geometry, place), neighbours.length, by_vectors);
    }
}

// y = the mean of each window of x; include_pad: its elements in the padding count, as zeros. A
// thread has OF_ROWS windows, neighbours along the axis before the last; n threads in all.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_WINDOWS)
    average_pool(const T* x, T* y, bool include_pad, i64 n,
                 const __grid_constant__ Geometry geometry) {
    if constexpr (!TILED) {
        const i64 position = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
        if (position >= n) return;
        const WindowsOfRows windows(geometry, position);
        ACC sums[OF_ROWS] = {};
        windows.visit(x, [&](int k, T element, i64) { sums[k] += to_acc(element); });
        const i32(&first)[AXES] = windows.place.at;
        const i32 outer = count_of(geometry, 0, first[0], include_pad);
        const i32 inner = count_of(geometry, LAST, first[LAST], include_pad);
#pragma unroll
        for (int k = 0; k < OF_ROWS; ++k) {
            const i32 of_rows = count_of(geometry, ROWS_AXIS, first[ROWS_AXIS] + k, include_pad);
            const ACC count = static_cast<ACC>(outer) * of_rows * inner;
            if (k < windows.n_rows) y[windows.of(k)] = from_acc<T>(sums[k] / max(count, ACC(1)));
        }
    }
}

// dx[i] = sum of dy / count over the windows that contain i, count being the elements of a window
// in X, with include_pad also those in the padding. A thread has RUN neighbours along the last
// axis; n threads in all. by_vectors: all RUN exist and are stored as one vector.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_WINDOWS)
    average_pool_grad(const T* dy, T* dx, bool include_pad, bool by_vectors, i64 n,
                      const __grid_constant__ Geometry geometry) {
    if constexpr (!TILED) {
        const i64 position = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
        if (position >= n) return;
        const Neighbours neighbours(geometry, position);
        const T* const plane = dy + neighbours.place.plane * product(geometry.output);
        Gathered gathered{};
        visit_windows(geometry, neighbours.place.at, neighbours.length,
                      [&](i64 window, const i32(&first)[AXES], i32 n) {
                          T slopes[RUN];
#pragma unroll
                          for (int k = 0; k < RUN; ++k)
                              if (k < n) slopes[k] = plane[window + k];
                          gathered.add_means(geometry, neighbours.place.at, first, n, slopes,
                                             include_pad);
                      });
        gathered.store(dx + offset_of(geometry, neighbours.place), neighbours.length, by_vectors);
    }
}

// ---- 2-D windows known at compile time (tiles.cuh): one of n tiles a thread. Empty unless TILED -

// y = the maximum of each window, indices = its number in X; either may be null. Each of n threads
// has a tile of TILE_ROWS x TILE_COLUMNS windows. planes: extents of a plane of X and of Y, and how
// many tiles a plane has down and across.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_TILES)
    max_pool__tiles(const T* __restrict__ x, T* __restrict__ y, i64* __restrict__ indices, u32 n,
                    const __grid_constant__ Planes planes) {
    if constexpr (TILED) {
        const u32 position = blockIdx.x * THREADS + threadIdx.x;
        if (position < n)
            tile_pools::write_largest(x, y, indices, tiles::Tile(planes, position), planes);
    }
}

// dx[i] = sum of dy over the windows o with indices[o] == i. Each of n threads has the part of dx
// of a tile of windows. planes: extents of a plane of X and of Y, and how many tiles a plane has
// down and across.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_TILES)
    max_pool_grad__tiles(const T* __restrict__ dy, const i64* __restrict__ indices,
                         T* __restrict__ dx, u32 n, const __grid_constant__ Planes planes) {
    if constexpr (TILED) {
        const u32 position = blockIdx.x * THREADS + threadIdx.x;
        if (position < n)
            tile_pools::write_gradient_of_largest(dy, indices, dx, tiles::Tile(planes, position),
                                                  planes);
    }
}

// y = the mean of each window; include_pad: its elements in the padding count, as zeros. Each of n
// threads has a tile of TILE_ROWS x TILE_COLUMNS windows. planes: extents of a plane of X and of Y,
// and how many tiles a plane has down and across.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_TILES)
    average_pool__tiles(const T* __restrict__ x, T* __restrict__ y, bool include_pad, u32 n,
                        const __grid_constant__ Planes planes) {
    if constexpr (TILED) {
        const u32 position = blockIdx.x * THREADS + threadIdx.x;
        if (position < n)
            tile_pools::write_means(x, y, include_pad, tiles::Tile(planes, position), planes);
    }
}

// dx[i] = sum of dy / count over the windows that contain i, count being the elements of a window
// in X, with include_pad also those in the padding. Each of n threads has the part of dx of a tile
// of windows. planes: extents of a plane of X and of Y, and how many tiles a plane has down and
// across.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_TILES)
    average_pool_grad__tiles(const T* __restrict__ dy, T* __restrict__ dx, bool include_pad, u32 n,
                             const __grid_constant__ Planes planes) {
    if constexpr (TILED) {
        const u32 position = blockIdx.x * THREADS + threadIdx.x;
        if (position < n)
            tile_pools::write_gradient_of_means(dy, dx, include_pad, tiles::Tile(planes, position),
                                                planes);
    }
}

// y[plane] = mean of x[plane], of `length` elements; a warp for each of n planes.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    global_average_pool__warp(const T* x, T* y, i64 n, i64 length) {
    if constexpr (!TILED) {
        const i64 plane = (static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x) / WARP;
        if (plane >= n) return;
        const u32 lane = threadIdx.x % WARP;
        const ACC sum =
            reduce::sum_lanes(part_of_plane(x + plane * length, length, lane, WARP), WARP);
        if (lane == 0) y[plane] = from_acc<T>(sum / static_cast<ACC>(length));
    }
}

// y[plane] = mean of x[plane], of `length` elements; a block for each of n planes.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    global_average_pool__block(const T* x, T* y, i64 n, i64 length) {
    __shared__ reduce::BlockScratch<ACC, THREADS> scratch;
    if constexpr (!TILED) {
        if (blockIdx.x >= n) return;
        const T* const plane = x + blockIdx.x * length;
        const ACC part = part_of_plane(plane, length, threadIdx.x, THREADS);
        const ACC sum = reduce::sum_block(part, scratch);
        if (threadIdx.x == 0) y[blockIdx.x] = from_acc<T>(sum / static_cast<ACC>(length));
    }
}
