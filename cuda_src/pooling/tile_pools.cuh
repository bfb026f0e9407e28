// SPDX-License-Identifier: MIT
// Pools and gradients of a thread's tile of windows: pooling/tiles.cuh. x, y, dy, dx, indices:
// whole arrays of planes; planes: extents of a plane of X (`image`) and of Y (`output`);
// include_pad: elements in the padding count for a mean.
#pragma once
#include "pooling/largest.cuh"
#include "pooling/tiles.cuh"

namespace cto::pooling::tile_pools {

using namespace tiles;

// ---- means --------------------------------------------------------------------------------------

// x y + z, rounded once. In assembly, as -ftz=true makes fmaf flush subnormals.
__device__ __forceinline__ float fused(float x, float y, float z) {
#ifdef __CUDA_CPU__
    return fmaf(x, y, z);
#else
    float sum;
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(sum) : "f"(x), "f"(y), "f"(z));
    return sum;
#endif
}
// max(x, y). In assembly, as -ftz=true makes fmaxf flush subnormals.
__device__ __forceinline__ float larger(float x, float y) {
#ifdef __CUDA_CPU__
    return fmaxf(x, y);
#else
    float most;
    asm("max.f32 %0, %1, %2;" : "=f"(most) : "f"(x), "f"(y));
    return most;
#endif
}

// sum / count, with the rounding of a division; inverse = 1 / count. One step of Newton: guess
// + (sum - guess * count) * inverse. Quotients by small integers are never so near the middle
// between two floats that the error of `inverse` matters; only a subnormal one exactly in the
// middle may round either way.
__device__ __forceinline__ float mean_of(float sum, float count, float inverse) {
    constexpr float LEAST = -3.4e38f;  // replaces the NaN that an infinite sum gives as remainder
    const float guess = multiply_subnormal(sum, inverse);
    return fused(larger(fused(-guess, count, sum), LEAST), inverse, guess);
}
__device__ __forceinline__ double mean_of(double sum, double count, double) { return sum / count; }

// count[w] = elements of window first + w along Axis, Rows or Across, that count, at least 1;
// inverse[w] = 1 / count[w], w < N. Those inside the image count, with include_pad those inside the
// padded one, which ends at `padded`.
template <class A, class Axis, int N>
struct Counts {
    A count[N], inverse[N];

    // first: number of window 0 along the axis; image, padded: ends of the image and of the padded
    // one.
    __device__ __forceinline__ Counts(i32 first, i32 image, i32 padded, bool include_pad) {
        const i32 end = include_pad ? padded : image, begin = include_pad ? -Axis::pad : 0;
#pragma unroll
        for (int w = 0; w < N; ++w) {
            const i32 start = (first + w) * Axis::stride - Axis::pad;
            const i32 n = min(start + Axis::kernel, end) - max(start, begin);
            count[w] = static_cast<A>(max(n, 1));
            inverse[w] = sizeof(A) == 4 ? fast_reciprocal(count[w]) : A(0);
        }
    }
};

// of(sum, r, c) returns the mean of window (row + r, column + c) from the sum of its elements, r <
// ROWS, c < COLUMNS. include_pad: elements in the padding count, as zeros.
template <class A, int ROWS, int COLUMNS>
struct Means {
    Counts<A, Rows, ROWS> rows;
    Counts<A, Across, COLUMNS> across;

    // row, column: of window (0, 0).
    __device__ __forceinline__ Means(const Planes& planes, i32 row, i32 column, bool include_pad)
        : rows(row, planes.image[0], planes.padded[0], include_pad),
          across(column, planes.image[1], planes.padded[1], include_pad) {}

    // The mean of window (r, c), whose elements add up to `sum`. FULL: all windows have KERNEL_ROWS
    // * KERNEL_COLUMNS elements that count; a power of two is divided by exactly.
    __device__ __forceinline__ A of(A sum, int r, int c) const {
        constexpr int ALL = KERNEL_ROWS * KERNEL_COLUMNS;
        constexpr A INVERSE = A(1) / A(ALL);
        if constexpr (FULL && (ALL & (ALL - 1)) == 0) return sum * INVERSE;
        if constexpr (FULL) return mean_of(sum, A(ALL), INVERSE);
        return mean_of(sum, rows.count[r] * across.count[c], rows.inverse[r] * across.inverse[c]);
    }
};

// Writes the average pool of a tile of x to y; include_pad: elements in the padding count. Each row
// of X is loaded once and added to the sums of all rows of windows that contain it; a row of
// windows is stored after its last row.
template <class T>
__device__ __forceinline__ void write_means(const T* x, T* y, bool include_pad, const Tile& tile,
                                            const Planes& planes) {
    using A = Acc<T>;
    using Lines = tiles::Lines<T, XColumns, /*NEAREST=*/false>;
    const Lines lines(x + tile.start(planes.image), XColumns{tile.x_column(), planes.image[1]});
    T* const to = y + tile.start(planes.output) + tile.column;
    const i32 width = planes.output[1];
    const Pitch pitch = Pitch::of<T>(width);
    const Means<A, TILE_ROWS, TILE_COLUMNS> means(planes, tile.row, tile.column, include_pad);
    A sums[TILE_ROWS][TILE_COLUMNS] = {};
    visit_rows<Rows::reach>(
        [&](int i) {
            const i32 row = tile.x_row() - PAD_ROWS + i;
            return lines.load(row, INSIDE_ROWS || is_within(row, planes.image[0]));
        },
        [&](int i, const typename Lines::Line& line) {
#pragma unroll
            for (int r = 0; r < TILE_ROWS; ++r) {
                if (!Rows::has(r, i)) continue;
#pragma unroll
                for (int c = 0; c < TILE_COLUMNS; ++c)
#pragma unroll
                    for (int tap = 0; tap < KERNEL_COLUMNS; ++tap)
                        sums[r][c] += line.at(c * STRIDE_COLUMNS + tap);
                if (Rows::has(r, i + 1)) continue;
#pragma unroll
                for (int c = 0; c < TILE_COLUMNS; ++c) sums[r][c] = means.of(sums[r][c], r, c);
                if (INSIDE_ROWS || tile.row + r < planes.output[0])
                    store_rounded<Y_VECTORS>(pitch.in(to, tile.row + r), width - tile.column,
                                             sums[r]);
            }
        });
}

// ---- gradients ----------------------------------------------------------------------------------

// The part of dX of a tile: sums[i][j] of its row i and column j.
template <class T>
struct PartOfGradient {
    using A = Acc<T>;
    A sums[Rows::N_INPUTS][Across::N_INPUTS];

    // For row w of the windows around the tile: calls visit(sums[i][j], i, j, v) whenever window
    // (w, v) contains element (i, j) of the part.
    template <class Visit>
    __device__ __forceinline__ void visit_windows(int w, const Visit& visit) {
#pragma unroll
        for (int i = 0; i < Rows::N_INPUTS; ++i) {
            if (!Rows::covers(w, i)) continue;
#pragma unroll
            for (int v = 0; v < Across::around; ++v)
#pragma unroll
                for (int j = 0; j < Across::N_INPUTS; ++j)
                    if (Across::covers(v, j)) visit(sums[i][j], i, j, v);
        }
    }
    // Stores those rows of the tile's part of dX whose last row of windows is w: their sums are
    // complete.
    __device__ __forceinline__ void store_rows(int w, T* dx, const Tile& tile,
                                               const Planes& planes) const {
        T* const to = dx + tile.start(planes.image) + tile.x_column();
        const i32 width = planes.image[1];
        const Pitch pitch = Pitch::of<T>(width);
#pragma unroll
        for (int i = 0; i < Rows::N_INPUTS; ++i) {
            const i32 row = tile.x_row() + i;
            if (Rows::last(i) == w && (INSIDE_ROWS || row < planes.image[0]))
                store_rounded<X_VECTORS>(pitch.in(to, row), width - tile.x_column(), sums[i]);
        }
    }
};

// Writes the tile's part of dX of an average pool: each row of windows around it is loaded once,
// and each dY divided by the elements of its window that count, with include_pad those in the
// padding, too.
template <class T>
__device__ __forceinline__ void write_gradient_of_means(const T* dy, T* dx, bool include_pad,
                                                        const Tile& tile, const Planes& planes) {
    using A = Acc<T>;
    using Lines = tiles::Lines<T, YColumns, /*NEAREST=*/false>;
    const Lines lines(dy + tile.start(planes.output), YColumns{tile.column, planes.output[1]});
    const i32 row = tile.row - Rows::before, column = tile.column - Across::before;
    const Means<A, Rows::around, Across::around> means(planes, row, column, include_pad);
    PartOfGradient<T> part{};
    visit_rows<Rows::around>(
        [&](int w) {
            return lines.load(row + w, INSIDE_ROWS || is_within(row + w, planes.output[0]));
        },
        [&](int w, const typename Lines::Line& line) {
            A slopes[Across::around];
#pragma unroll
            for (int v = 0; v < Across::around; ++v) slopes[v] = means.of(line.at(v), w, v);
            part.visit_windows(w, [&](A& sum, int, int, int v) { sum += slopes[v]; });
            part.store_rows(w, dx, tile, planes);
        });
}

// A row of windows of a maximum pool: their dY, and the numbers of their maxima in X.
template <class T>
struct Routes {
    static constexpr int nbytes = Line<T, YColumns>::nbytes + Line<i64, YColumns>::nbytes;
    Line<T, YColumns> slopes;
    Line<i64, YColumns> chosen;
};

// Writes the tile's part of dX of a maximum pool: each row of windows around it is loaded once. An
// index outside the plane becomes ALL_LANES, which no element has as its number.
template <class T>
__device__ __forceinline__ void write_gradient_of_largest(const T* dy, const i64* indices, T* dx,
                                                          const Tile& tile, const Planes& planes) {
    using A = Acc<T>;
    const i64 first = tile.start(planes.image), y_first = tile.start(planes.output);
    const YColumns columns{tile.column, planes.output[1]};
    const Lines<T, YColumns, /*NEAREST=*/false> of_dy(dy + y_first, columns);
    const Lines<i64, YColumns, /*NEAREST=*/false> of_indices(indices + y_first, columns);
    const i32 row = tile.row - Rows::before;
    const u32 width = planes.image[1], own = tile.x_row() * width + tile.x_column();
    PartOfGradient<T> part{};
    visit_rows<Rows::around>(
        [&](int w) {
            const bool exists = INSIDE_ROWS || is_within(row + w, planes.output[0]);
            return Routes<T>{of_dy.load(row + w, exists), of_indices.load(row + w, exists)};
        },
        [&](int w, const Routes<T>& routes) {
            A slopes[Across::around];
            u32 numbers
                [Across::around];  // index of the maximum - index of the part's first element
#pragma unroll
            for (int v = 0; v < Across::around; ++v) {
                slopes[v] = routes.slopes.at(v);
                const u64 in_plane = routes.chosen.at(v) - static_cast<u64>(first);
                numbers[v] = (in_plane >> 32 == 0 ? static_cast<u32>(in_plane) : ALL_LANES) - own;
            }
            part.visit_windows(w, [&](A& sum, int i, int j, int v) {
                if (numbers[v] - i * width == static_cast<u32>(j)) sum += slopes[v];
            });
            part.store_rows(w, dx, tile, planes);
        });
}

// ---- largest elements ---------------------------------------------------------------------------

// Running maximum, and its number in the plane.
template <class A>
struct Largest {
    A value;
    u32 number;

    // Keeps the larger of the two: a NaN is larger than numbers, the earlier one than an equal one.
    __device__ __forceinline__ void see(const Largest& other) {
        const bool larger = largest::is_larger(other.value, value);
        value = larger ? other.value : value;
        number = larger ? other.number : number;
    }
};

// Where a tile's maxima are written, in Y and Indices; either may be null. An index counts through
// all of X: plane_start + number in the plane.
template <class T>
struct Destination {
    const T* x;  // the plane
    T* y;
    i64* indices;
    i64 start;        // the plane's row 0 at the tile's first column, in Y and Indices
    i64 plane_start;  // the plane's first element in X
    i32 rest;         // columns of the plane from the tile's first on
    Pitch y_pitch, indices_pitch;

    // Where the maxima of `tile` go; x, y, indices: the whole arrays.
    __device__ __forceinline__ Destination(const T* x, T* y, i64* indices, const Tile& tile,
                                           const Planes& planes)
        : x(x + tile.start(planes.image)),
          y(y),
          indices(indices),
          start(tile.start(planes.output) + tile.column),
          plane_start(tile.start(planes.image)),
          rest(planes.output[1] - tile.column),
          y_pitch(Pitch::of<T>(planes.output[1])),
          indices_pitch(Pitch::of<i64>(planes.output[1])) {}

    // y[row][c], indices[row][c] = the values and plane_start + numbers of `winners`, for the
    // tile's TILE_COLUMNS columns c that exist; either array may be null.
    __device__ __forceinline__ void store_row(
        i32 row, const Largest<Acc<T>> (&winners)[TILE_COLUMNS]) const {
        T values[TILE_COLUMNS];
        i64 numbers[TILE_COLUMNS];
        bool has_nan = false;
#pragma unroll
        for (int c = 0; c < TILE_COLUMNS; ++c) {
            values[c] = from_acc<T>(winners[c].value);
            numbers[c] = plane_start + winners[c].number;
            has_nan |= isnan(winners[c].value);
        }
        // A NaN is copied from X, since widening and rounding may change its bits.
        if (sizeof(T) == 2 && has_nan) {
#pragma unroll
            for (int c = 0; c < TILE_COLUMNS; ++c) values[c] = x[winners[c].number];
        }
        if (y != nullptr) store<Y_VECTORS>(y_pitch.in(y + start, row), rest, values);
        if (indices != nullptr)
            store<Y_VECTORS>(indices_pitch.in(indices + start, row), rest, numbers);
    }
};

// Writes the maximum pool of a tile to y and indices; either may be null. For each row of X: the
// largest element of each column of windows in this row, then compared with those of earlier rows.
// Reads outside of X are clamped to its nearest element: that one is in the same window, since each
// window contains an element of X, and comparing it twice changes nothing.
template <class T>
__device__ __forceinline__ void write_largest(const T* x, T* y, i64* indices, const Tile& tile,
                                              const Planes& planes) {
    using A = Acc<T>;
    using Lines = tiles::Lines<T, XColumns, /*NEAREST=*/true>;
    const Destination<T> to(x, y, indices, tile, planes);
    const i32 height = planes.image[0], width = planes.image[1];
    const XColumns columns{tile.x_column(), width};
    const Lines lines(to.x, columns);
    const auto row_of = [&](int i) {
        const i32 row = tile.x_row() - PAD_ROWS + i;
        return INSIDE_ROWS ? row : min(max(row, 0), height - 1);
    };
    Largest<A> winners[TILE_ROWS][TILE_COLUMNS];
    visit_rows<Rows::reach>(
        [&](int i) { return lines.load(row_of(i), /*exists=*/true); },
        [&](int i, const typename Lines::Line& line) {
#pragma unroll
            for (int c = 0; c < TILE_COLUMNS; ++c) {
                const auto element = [&](int tap) {
                    const int column = c * STRIDE_COLUMNS + tap;
                    return Largest<A>{line.at(column), static_cast<u32>(columns.nearest(column))};
                };
                Largest<A> of_row = element(0);
#pragma unroll
                for (int tap = 1; tap < KERNEL_COLUMNS; ++tap) of_row.see(element(tap));
                of_row.number += static_cast<u32>(row_of(i)) * static_cast<u32>(width);
#pragma unroll
                for (int r = 0; r < TILE_ROWS; ++r) {
                    if (i == r * STRIDE_ROWS)
                        winners[r][c] = of_row;
                    else if (Rows::has(r, i))
                        winners[r][c].see(of_row);
                }
            }
#pragma unroll
            for (int r = 0; r < TILE_ROWS; ++r)
                if (Rows::has(r, i) && !Rows::has(r, i + 1) &&
                    (INSIDE_ROWS || tile.row + r < planes.output[0]))
                    to.store_row(tile.row + r, winners[r]);
        });
}

}  // namespace cto::pooling::tile_pools
