// SPDX-License-Identifier: MIT
// The windows of elements, and the elements of windows: window o has elements o * stride - pad +
// tap * dilation along an axis, tap < kernel. See families/pooling/windows.py.
//
// geometry has these numbers for each of AXES axes, the extents of X (`image`) and Y (`output`),
// and `number`: by how much an element's number in Indices grows along the axis.
#pragma once
#include "core/fast_division.cuh"
#include "pooling/facts.cuh"

namespace cto::pooling {

using namespace facts::pooling;
using fast_division::Cell;
using fast_division::cell_at;

// Position of an element: its plane (number of image and channel), and its coordinates in the
// plane.
struct Place {
    i64 plane;
    i32 at[AXES];
};

// The place of element `position` in an array with planes of extents geometry.written.
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

// [begin, end).
struct Span {
    i32 begin, end;
};

constexpr int LAST = AXES - 1, ROWS_AXIS = AXES - 2;

// a / b rounded up; fast for b = 1, the usual dilation, as a division takes longer than the rest.
__device__ __forceinline__ i32 ceil_div(i32 a, i32 b) { return b == 1 ? a : (a + b - 1) / b; }

// The first element of window o along an axis; negative in the padding.
__device__ __forceinline__ i32 start_of(const Geometry& geometry, int axis, i32 o) {
    return o * geometry.stride[axis] - geometry.pad[axis];
}

// The taps of a window that starts at position `start` along an axis, in [0, kernel), whose
// elements are in [first, end).
__device__ __forceinline__ Span taps_within(const Geometry& geometry, int axis, i32 start,
                                            i32 first, i32 end) {
    const i32 dilation = geometry.dilation[axis];
    const i32 before = start < first ? ceil_div(first - start, dilation) : 0;
    const i32 within = start < end ? ceil_div(end - start, dilation) : 0;
    return {before, min(within, geometry.kernel[axis])};
}

// The taps of a window that starts at position `start` along an axis whose elements are in the
// image.
__device__ __forceinline__ Span taps_in_image(const Geometry& geometry, int axis, i32 start) {
    return taps_within(geometry, axis, start, 0, geometry.image[axis]);
}

// The windows along an axis whose first and last elements enclose i; with dilation some do not
// contain it.
__device__ __forceinline__ Span windows_around(const Geometry& geometry, int axis, i32 i) {
    const i32 place = i + geometry.pad[axis], stride = geometry.stride[axis];
    const i32 before = place - (geometry.kernel[axis] - 1) * geometry.dilation[axis];
    return {before > 0 ? ceil_div(before, stride) : 0,
            min(place / stride + 1, geometry.output[axis])};
}

// How many elements of window o along an axis count for a mean: those in the image, or with
// include_pad also those in the padding.
__device__ __forceinline__ i32 count_of(const Geometry& geometry, int axis, i32 o,
                                        bool include_pad) {
    const i32 start = start_of(geometry, axis, o);
    const Span counted = include_pad
                             ? taps_within(geometry, axis, start, start, geometry.padded[axis])
                             : taps_in_image(geometry, axis, start);
    return max(counted.end - counted.begin, 0);
}

// Calls visit(offset in the plane, number in Indices without the plane's, row) for each element of
// window o (its number along each axis), also for rows outside of the image: windows below this one
// use the same loop.
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

// Calls visit(index of window o in the plane, o, n) for all windows around the element at i and the
// length - 1 after it along the last axis; a call is for windows o, ..., o + n - 1 along this axis,
// n <= RUN.
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

// The index in X of the element at `place`.
__device__ __forceinline__ i64 offset_of(const Geometry& geometry, const Place& place) {
    i64 offset = place.plane;
#pragma unroll
    for (int axis = 0; axis < AXES; ++axis) offset = offset * geometry.image[axis] + place.at[axis];
    return offset;
}

// Elements of a plane.
__device__ __forceinline__ i64 product(const i32 (&extents)[AXES]) {
    return static_cast<i64>(extents[0]) * extents[1] * extents[2];
}

}  // namespace cto::pooling
