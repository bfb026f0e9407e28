// SPDX-License-Identifier: MIT
// Where windows lie: families/pooling/windows.py says which there are.
#pragma once
#include "core/fast_division.cuh"
#include "pooling/facts.cuh"

namespace cto::pooling {

using namespace facts::pooling;
using fast_division::Cell;
using fast_division::cell_at;

struct Place {
    i64 plane;
    i32 at[AXES];
};

// Where element `position` of what is written is.
__device__ __forceinline__ Place place_of(const Geometry& geometry, i64 position) {
    Place place;
#pragma unroll
    for (int axis = AXES - 1; axis >= 0; --axis) {
        const Cell cell = cell_at(position, geometry.written[axis]);
        place.at[axis] = static_cast<i32>(cell.column);
        position = cell.row;
    }
    place.plane = position;
    return place;
}

struct Span {
    i32 begin, end;
};

constexpr int LAST = AXES - 1, ROWS_AXIS = AXES - 2;

// Most kernels have no gaps, and divisions take longer than all else of a window.
__device__ __forceinline__ i32 ceil_div(i32 a, i32 b) { return b == 1 ? a : (a + b - 1) / b; }

// The first element of window o along an axis, which may lie before the image.
__device__ __forceinline__ i32 start_of(const Geometry& geometry, int axis, i32 o) {
    return o * geometry.stride[axis] - geometry.pad[axis];
}

// Which of the kernel's elements lie from `first` on and before `end`, from a window's start on.
__device__ __forceinline__ Span taps_within(const Geometry& geometry, int axis, i32 start,
                                            i32 first, i32 end) {
    const i32 dilation = geometry.dilation[axis];
    const i32 before = start < first ? ceil_div(first - start, dilation) : 0;
    const i32 within = start < end ? ceil_div(end - start, dilation) : 0;
    return {before, min(within, geometry.kernel[axis])};
}

__device__ __forceinline__ Span taps_in_image(const Geometry& geometry, int axis, i32 start) {
    return taps_within(geometry, axis, start, 0, geometry.image[axis]);
}

// Windows along an axis whose reach element i is in; with dilations it is not in all of them.
__device__ __forceinline__ Span windows_around(const Geometry& geometry, int axis, i32 i) {
    const i32 place = i + geometry.pad[axis], stride = geometry.stride[axis];
    const i32 before = place - (geometry.kernel[axis] - 1) * geometry.dilation[axis];
    return {before > 0 ? ceil_div(before, stride) : 0,
            min(place / stride + 1, geometry.output[axis])};
}

// How many of a window's elements count along an axis.
__device__ __forceinline__ i32 count_of(const Geometry& geometry, int axis, i32 o,
                                        bool include_pad) {
    const i32 start = start_of(geometry, axis, o);
    const Span counted = include_pad
                             ? taps_within(geometry, axis, start, start, geometry.padded[axis])
                             : taps_in_image(geometry, axis, start);
    return max(counted.end - counted.begin, 0);
}

// Calls visit(offset in the plane, number in Indices, row) for each element of window o; rows
// beside the image are included, as windows below this one, along the axis before the last, may
// read there.
template <class Visit>
__device__ __forceinline__ void visit_elements_of_rows(const Geometry& geometry,
                                                       const i32 (&o)[AXES], Visit&& visit) {
    i32 start[AXES];
    Span taps[AXES];
#pragma unroll
    for (int axis = 0; axis < AXES; ++axis) {
        start[axis] = start_of(geometry, axis, o[axis]);
        taps[axis] = taps_in_image(geometry, axis, start[axis]);
    }
#pragma unroll 1
    for (i32 a = taps[0].begin; a < taps[0].end; ++a)
#pragma unroll 1
        for (i32 b = 0; b < geometry.kernel[ROWS_AXIS]; ++b)
#pragma unroll 1
            for (i32 c = taps[2].begin; c < taps[2].end; ++c) {
                const i64 at[] = {start[0] + static_cast<i64>(a) * geometry.dilation[0],
                                  start[1] + static_cast<i64>(b) * geometry.dilation[1],
                                  start[2] + static_cast<i64>(c) * geometry.dilation[2]};
                visit((at[0] * geometry.image[1] + at[1]) * geometry.image[2] + at[2],
                      at[0] * geometry.number[0] + at[1] * geometry.number[1] +
                          at[2] * geometry.number[2],
                      at[ROWS_AXIS]);
            }
}

// Shows `visit` the windows around any of `length` neighbours along the last axis, of which the
// first is i, at most RUN that are neighbours at a time: the first one, its number in the plane, and
// how many they are.
template <class Visit>
__device__ __forceinline__ void visit_windows(const Geometry& geometry, const i32 (&i)[AXES],
                                              i32 length, Visit&& visit) {
    Span windows[AXES];
#pragma unroll
    for (int axis = 0; axis < AXES; ++axis) windows[axis] = windows_around(geometry, axis, i[axis]);
    if (length > 1) windows[LAST].end = windows_around(geometry, LAST, i[LAST] + length - 1).end;
#pragma unroll 1
    for (i32 a = windows[0].begin; a < windows[0].end; ++a)
#pragma unroll 1
        for (i32 b = windows[1].begin; b < windows[1].end; ++b)
#pragma unroll 1
            for (i32 c = windows[2].begin; c < windows[2].end; c += RUN) {
                const i32 o[] = {a, b, c};
                visit((static_cast<i64>(a) * geometry.output[1] + b) * geometry.output[2] + c, o,
                      min(RUN, windows[2].end - c));
            }
}

// Where an element of the image is, by rows, in all planes.
__device__ __forceinline__ i64 offset_of(const Geometry& geometry, const Place& place) {
    i64 offset = place.plane;
#pragma unroll
    for (int axis = 0; axis < AXES; ++axis) offset = offset * geometry.image[axis] + place.at[axis];
    return offset;
}

__device__ __forceinline__ i64 product(const i32 (&extents)[AXES]) {
    return static_cast<i64>(extents[0]) * extents[1] * extents[2];
}

}  // namespace cto::pooling
