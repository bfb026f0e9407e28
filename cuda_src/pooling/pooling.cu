// SPDX-License-Identifier: MIT
// Pools and their gradients.  CPU provider: cupy_training_ops/families/pooling/reference.py
//
// A thread makes an element of what is written: one of Y looks at its window, one of a gradient at
// the windows that it is in. So sums have a fixed order, and there are no atomics.
#include "algorithm/reduce.cuh"
#include "core/slots.cuh"
#include "core/vec.cuh"
#include "pooling/windows.cuh"

namespace cto::pooling {

using slots::T;
using ACC = Acc<T>;

// Blocks on a multiprocessor at least; averages of windows spill with four on 12.0.
constexpr int RESIDENT = 4, RESIDENT_AVERAGES = 3;

// x > y. Also of subnormals, which -ftz=true makes the compiler's own comparison take for 0.
__device__ __forceinline__ bool is_greater(float x, float y) {
#ifdef __CUDA_CPU__
    return x > y;
#else
    u32 greater;
    asm("{ .reg .pred p; setp.gt.f32 p, %1, %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(greater)
        : "f"(x), "f"(y));
    return greater != 0;
#endif
}
__device__ __forceinline__ bool is_greater(double x, double y) { return x > y; }

// The largest so far: the first of equal ones, and a NaN before all numbers.
struct Largest {
    T value;
    i64 number;  // -1 where there is none

    __device__ void see(T candidate, i64 its_number) {
        const ACC x = to_acc(candidate), y = to_acc(value);
        if (number >= 0 && !is_greater(x, y) && !(isnan(x) && !isnan(y))) return;
        value = candidate;
        number = its_number;
    }
};

// The elements of a window that count, at least 1: where there are none the sum is 0.
__device__ __forceinline__ ACC count_of(const Geometry& geometry, const i32 (&o)[AXES],
                                        bool include_pad) {
    ACC count = 1;
#pragma unroll
    for (int axis = 0; axis < AXES; ++axis)
        count *= static_cast<ACC>(count_of(geometry, axis, o[axis], include_pad));
    return max(count, ACC(1));
}

// Whether element i is in window o, within whose reach it is.
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

// What RUN neighbours along the last axis get from the windows that chose them.
struct Gathered {
    ACC sums[RUN];

    // `number`: of the chosen element, counted from the first of the neighbours.
    __device__ __forceinline__ void add(const Geometry& geometry, i64 number,
                                        const i32 (&first)[AXES], const i32 (&o)[AXES], ACC dy) {
        const u32 reach = (geometry.kernel[LAST] - 1) * geometry.dilation[LAST];
        const i32 past_start = first[LAST] - start_of(geometry, LAST, o[LAST]);
#pragma unroll
        for (int k = 0; k < RUN; ++k) {
            const bool is_chosen = number == k * geometry.number[LAST];
            if (!is_chosen || static_cast<u32>(past_start + k) > reach) continue;
            const i32 i[] = {first[0], first[1], first[2] + k};
            if (is_in(geometry, i, o)) sums[k] += dy;
        }
    }
};

// What one of `n_threads` threads adds of a plane.
__device__ __forceinline__ ACC part_of_plane(const T* plane, i64 length, u32 thread,
                                             u32 n_threads) {
    constexpr i64 SPAN = 1 << 30;  // vectors that are visited at once
    const reduce::Range<T> range(plane, length);
    reduce::Sum<T> sum;
    for (i64 first = 0; first < range.n_vecs; first += SPAN)
        reduce::visit_vecs<4>(range, first, SPAN, thread, n_threads, sum);
    reduce::visit_edges(range, thread, n_threads, sum);
    return sum.sum;
}

}  // namespace cto::pooling

using namespace cto;
using namespace cto::pooling;

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    max_pool(const T* x, T* y, i64* indices, i64 n, const __grid_constant__ Geometry geometry) {
    const i64 position = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    if (position >= n) return;
    const Place place = place_of(geometry, position);
    const i64 plane = place.plane * product(geometry.image);
    Largest largest{from_acc<T>(ACC(-__int_as_float(0x7f800000))), -1};
    visit_elements(geometry, place.at, [&](i64 by_rows, i64 number) {
        largest.see(x[plane + by_rows], plane + number);
    });
    if (y != nullptr) y[position] = largest.value;
    if (indices != nullptr) indices[position] = largest.number;
}

// A thread for RUN neighbours along the last axis, which many windows have in common.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    max_pool_grad(const T* dy, const i64* indices, T* dx, bool by_vectors, i64 n,
                  const __grid_constant__ Geometry geometry) {
    const i64 position = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    if (position >= n) return;
    Place place = place_of(geometry, position);
    i32(&at)[AXES] = place.at;
    at[LAST] *= RUN;
    const i32 length = min(RUN, geometry.image[LAST] - at[LAST]);
    const i64 plane = place.plane * product(geometry.output);
    i64 own = place.plane * product(geometry.image);
#pragma unroll
    for (int axis = 0; axis < AXES; ++axis) own += at[axis] * geometry.number[axis];
    Gathered gathered{};
    visit_windows(geometry, at, length, [&](i64 window, const i32(&o)[AXES]) {
        const i64 index = indices[plane + window];
        gathered.add(geometry, index - own, at, o, to_acc(dy[plane + window]));
    });
    T* const to = dx + offset_of(geometry, place);
    if (by_vectors) {
        vec::Vec<T, RUN> out;
#pragma unroll
        for (int k = 0; k < RUN; ++k) out.at[k] = from_acc<T>(gathered.sums[k]);
        *reinterpret_cast<vec::Vec<T, RUN>*>(to) = out;
        return;
    }
#pragma unroll
    for (int k = 0; k < RUN; ++k)
        if (k < length) to[k] = from_acc<T>(gathered.sums[k]);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_AVERAGES)
    average_pool(const T* x, T* y, bool include_pad, i64 n,
                 const __grid_constant__ Geometry geometry) {
    const i64 position = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    if (position >= n) return;
    const Place place = place_of(geometry, position);
    const T* const plane = x + place.plane * product(geometry.image);
    ACC sum = 0;
    visit_elements(geometry, place.at, [&](i64 by_rows, i64) { sum += to_acc(plane[by_rows]); });
    y[position] = from_acc<T>(sum / pooling::count_of(geometry, place.at, include_pad));
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_AVERAGES)
    average_pool_grad(const T* dy, T* dx, bool include_pad, i64 n,
                      const __grid_constant__ Geometry geometry) {
    const i64 position = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    if (position >= n) return;
    const Place place = place_of(geometry, position);
    const T* const plane = dy + place.plane * product(geometry.output);
    ACC sum = 0;
    visit_windows(geometry, place.at, 1, [&](i64 window, const i32(&o)[AXES]) {
        if (is_in(geometry, place.at, o))
            sum += to_acc(plane[window]) / pooling::count_of(geometry, o, include_pad);
    });
    dx[position] = from_acc<T>(sum);
}

// A warp for each of n planes.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    global_average_pool__warp(const T* x, T* y, i64 n, i64 length) {
    const i64 plane = (static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x) / WARP;
    if (plane >= n) return;
    const u32 lane = threadIdx.x % WARP;
    const ACC sum = reduce::sum_lanes(part_of_plane(x + plane * length, length, lane, WARP), WARP);
    if (lane == 0) y[plane] = from_acc<T>(sum / static_cast<ACC>(length));
}

// A block for each plane.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    global_average_pool__block(const T* x, T* y, i64 n, i64 length) {
    __shared__ reduce::BlockScratch<ACC, THREADS> scratch;
    if (blockIdx.x >= n) return;
    const T* const plane = x + blockIdx.x * length;
    const ACC part = part_of_plane(plane, length, threadIdx.x, THREADS);
    const ACC sum = reduce::sum_block(part, scratch);
    if (threadIdx.x == 0) y[blockIdx.x] = from_acc<T>(sum / static_cast<ACC>(length));
}
