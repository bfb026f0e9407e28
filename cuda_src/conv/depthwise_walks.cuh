// SPDX-License-Identifier: MIT
// Depthwise convolutions of TAPS x TAPS taps with stride and dilation 1, 2-D. A walk is a few
// neighbouring columns in some neighbouring rows of an image; a thread goes down its rows and reads
// each row once for all rows of taps. The rows to come are on their way from memory meanwhile.
#pragma once
#include "conv/depthwise_lines.cuh"

namespace cto::conv::depthwise_walks {

using namespace depthwise_lines;

// ---- rows of an image ---------------------------------------------------------------------------

// N neighbouring positions of a row, as loaded, with V neighbouring channels of each, if channels
// are last; `pitch`: elements from a position to the next.
template <class E, int N, int V>
struct Row {
    Words<E, V> positions[N];

    // Positions [first, first + N) of a row of `extent`, the first at `from`; zeros where it has
    // none.
    __device__ __forceinline__ void load(const E* from, i32 first, i32 extent, i32 pitch, bool) {
        load_window(from, first, extent, pitch, positions);
    }
    // to[i][c] = channel c of position i.
    __device__ __forceinline__ void widen(Acc<E> (&to)[N][V]) const { widen_all<E>(positions, to); }
    // Writes the first `count` of N positions.
    static __device__ __forceinline__ void store(E* to, i32 count, i32 pitch, bool,
                                                 const Acc<E> (&sums)[N][V]) {
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (i < count)
                *reinterpret_cast<vec::Vec<E, V>*>(to + static_cast<i64>(i) * pitch) =
                    vec::from_acc<E>(sums[i]);
    }
};
// N (even) neighbouring positions of a row of one channel, if channels are first. in_pairs: they
// lie in memory as aligned pairs, and the row has no half of one.
template <class E, int N>
struct Row<E, N, 1> {
    using Pair = Words<E, 2>;
    Pair pairs[N / 2];

    // Positions [first, first + N) of a row of `extent`, the first at `from`; zeros where it has
    // none.
    __device__ __forceinline__ void load(const E* from, i32 first, i32 extent, i32, bool in_pairs) {
        if (in_pairs) {
#pragma unroll
            for (int i = 0; i < N; i += 2) {
                pairs[i / 2] = Pair{};
                if (static_cast<u32>(first + i) < static_cast<u32>(extent))
                    pairs[i / 2] = *reinterpret_cast<const Pair*>(from + i);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < N; ++i) {
            vec::Vec<E, 2>& pair = reinterpret_cast<vec::Vec<E, 2>&>(pairs[i / 2]);
            pair.at[i % 2] = cto::from_acc<E>(Acc<E>(0));
            if (static_cast<u32>(first + i) < static_cast<u32>(extent)) pair.at[i % 2] = from[i];
        }
    }
    // to[i][0] = position i.
    __device__ __forceinline__ void widen(Acc<E> (&to)[N][1]) const {
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            Acc<E> both[2];
            vec::widen<E>(pairs + i / 2, both);
            to[i][0] = both[0];
            to[i + 1][0] = both[1];
        }
    }
    // Writes the first `count` of N positions.
    static __device__ __forceinline__ void store(E* to, i32 count, i32, bool in_pairs,
                                                 const Acc<E> (&sums)[N][1]) {
        if (in_pairs) {
#pragma unroll
            for (int i = 0; i < N; i += 2) {
                const Acc<E> pair[] = {sums[i][0], sums[i + 1][0]};
                if (i < count) *reinterpret_cast<vec::Vec<E, 2>*>(to + i) = vec::from_acc<E>(pair);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (i < count) to[i] = cto::from_acc<E>(sums[i][0]);
    }
};

// ---- walks --------------------------------------------------------------------------------------

// How threads walk for TAPS_ x TAPS_ taps: V channels in ACROSS columns; with more, registers would
// spill. AHEAD: rows on their way where an image is written. SUMS_AHEAD, of W's
// gradient: a row is on its way while another is added. LAST: channels are last.
template <class Element, int TAPS_, bool LAST>
struct Way {
    using E = Element;
    using A = Acc<E>;
    static constexpr int TAPS = TAPS_, V = LAST ? WALK_CHANNELS : 1;
    static constexpr bool IS_NARROW = LAST && TAPS == WIDE_TAPS;
    static constexpr int ACROSS = IS_NARROW ? NARROW_STRIP : STRIP, AHEAD = IS_NARROW ? 1 : 2;
    static constexpr bool SUMS_AHEAD = !IS_NARROW && sizeof(E) <= (LAST ? 2 : 4);
    // Positions before and after those that taps read: where channels are first, those of half as
    // many pads as taps begin with a pair.
    static constexpr int BESIDE = LAST ? 0 : TAPS / 2 % 2;
    static constexpr int WINDOW = ACROSS + TAPS - 1 + 2 * BESIDE;
    using Window = Row<E, WINDOW, V>;
    using Written = Row<E, ACROSS, V>;
};

// Rows [row, end) of image n (of plane n, if channels are first), in ACROSS columns from `column`
// on.
template <int ACROSS>
struct Walk {
    i64 n;
    i32 row, end, column;

    // Walk number `index`, through all images; each has `rows` of an image's all_rows rows.
    __device__ __forceinline__ Walk(const DepthwiseLayout& layout, i64 index, i32 rows,
                                    i32 all_rows) {
        const auto cell = fast_division::cell_at(index, layout.of_plane);
        const Strip strip = strip_at(layout, static_cast<u32>(cell.column));
        n = cell.row;
        row = strip.at[1] * rows;
        end = min(row + rows, all_rows);
        column = strip.at[2] / STRIP * ACROSS;
    }
};

// An image's extents along two axes, elements from a column to the next, and from a row.
struct Plane {
    i32 height, width, pitch;
    i64 row_pitch;

    // extents: along three axes.
    __device__ __forceinline__ Plane(const i32 (&extents)[3], i32 pitch)
        : height(extents[1]),
          width(extents[2]),
          pitch(pitch),
          row_pitch(static_cast<i64>(extents[2]) * pitch) {}
    // Elements of the image.
    __device__ __forceinline__ i64 size() const { return height * row_pitch; }
    // True if pairs of positions from `first` on are aligned in all rows, and end with them.
    template <class E>
    __device__ __forceinline__ bool has_pairs(const E* image, i32 first) const {
        return (first | width) % 2 == 0 && reinterpret_cast<u64>(image) % (2 * sizeof(E)) == 0;
    }
    // Elements from row 0, column 0 to another position.
    __device__ __forceinline__ i64 offset(i32 row, i32 column) const {
        return row * row_pitch + static_cast<i64>(column) * pitch;
    }
};

// Rows of one image, top down, in the columns of R from `first` on.
template <class R, class E>
struct Reader {
    const E* next;
    i32 first;
    bool in_pairs;

    // From row `row` of the image on, which is at `image`, at the thread's channels; null: nothing is
    // read.
    __device__ __forceinline__ Reader(const E* image, i32 row, i32 first, const Plane& plane)
        : next(image ? image + plane.offset(row, first) : nullptr),
          first(first),
          in_pairs(plane.has_pairs(image, first)) {}
    // Loads the next row, or zeros unless it is inside of the image.
    __device__ __forceinline__ void load(R& row, const Plane& plane, bool is_inside) {
        row.load(next, first, is_inside ? plane.width : 0, plane.pitch, in_pairs);
        next += plane.row_pitch;
    }
};

// Channel c of one row of taps: returns sum + weights[0][c] * read[0][c] + ... + weights[TAPS -
// 1][c] * read[TAPS - 1][c].
template <class A, int TAPS, int V>
__device__ __forceinline__ A of_row(const A (&weights)[TAPS][V], const A (*read)[V], int c, A sum) {
#pragma unroll
    for (int j = 0; j < TAPS; ++j) sum += weights[j][c] * read[j][c];
    return sum;
}

// What a thread computes an image with: the taps of its channels (reversed in a gradient), the
// bias, and the pads that belong to the taps.
template <class W>
struct Filter {
    using E = typename W::E;
    using A = typename W::A;
    A weights[W::TAPS][W::TAPS][W::V], start[W::V];
    i32 down, across;

    // w and bias (which may be null) are those of the thread's first channel.
    __device__ __forceinline__ Filter(const E* w, const E* bias, bool is_gradient,
                                      const DepthwiseLayout& layout) {
        constexpr int N = W::TAPS * W::TAPS;
        down = is_gradient ? W::TAPS - 1 - layout.pad[1] : layout.pad[1];
        across = is_gradient ? W::TAPS - 1 - layout.pad[2] : layout.pad[2];
#pragma unroll
        for (int c = 0; c < W::V; ++c) {
            start[c] = bias ? to_acc(bias[c]) : A(0);
#pragma unroll
            for (int i = 0; i < N; ++i)
                weights[i / W::TAPS][i % W::TAPS][c] =
                    to_acc(w[c * N + (is_gradient ? N - 1 - i : i)]);
        }
    }
};

// written = filter of `read` over the walk; both at the thread's channels of the image. The thread
// reads each row once: sums[0] is of the written row for which the row just read is the last,
// sums[1] ... of those after it.
template <class W, class E>
__device__ __forceinline__ void write_walk(const E* read, E* written, const Filter<W>& filter,
                                           const Walk<W::ACROSS>& walk, const Plane& from,
                                           const Plane& to) {
    using A = Acc<E>;
    constexpr int TAPS = W::TAPS, ACROSS = W::ACROSS, V = W::V;
    const i32 count = to.width - walk.column;
    const bool to_pairs = to.has_pairs(written, walk.column);
    const i32 first_complete = walk.row - filter.down + TAPS - 1;
    const i32 end = first_complete + walk.end - walk.row, end_of_read = min(end, from.height);
    E* at = written + to.offset(walk.row, walk.column);
    // Rows above and below the image add nothing.
    i32 row = min(max(walk.row - filter.down, 0), first_complete);
    Reader<typename W::Window, E> reader(read, row, walk.column - filter.across - W::BESIDE, from);
    // Rows above the image are read too, as zeros, where pads are more than the taps need.
    const auto is_read = [&](i32 at) { return at >= 0 && at < end_of_read; };
    typename W::Window ahead[W::AHEAD];
#pragma unroll
    for (int i = 0; i < W::AHEAD; ++i) reader.load(ahead[i], from, is_read(row + i));
    A sums[TAPS][ACROSS][V];
#pragma unroll
    for (int i = 0; i < TAPS; ++i)
#pragma unroll
        for (int p = 0; p < ACROSS; ++p)
#pragma unroll
            for (int c = 0; c < V; ++c) sums[i][p][c] = filter.start[c];
    const auto next_sum = [&](int i, int p, int c) {
        return i + 1 < TAPS ? sums[i + 1][p][c] : filter.start[c];
    };
    const auto write = [&] {
        W::Written::store(at, count, to.pitch, to_pairs, sums[0]);
        at += to.row_pitch;
    };
#pragma unroll 1
    while (row < end_of_read) {
#pragma unroll
        for (int step = 0; step < W::AHEAD; ++step) {
            A window[W::WINDOW][V];
            ahead[step].widen(window);
            reader.load(ahead[step], from, is_read(row + W::AHEAD));
#pragma unroll
            for (int i = 0; i < TAPS; ++i)
#pragma unroll
                for (int p = 0; p < ACROSS; ++p)
#pragma unroll
                    for (int c = 0; c < V; ++c)
                        sums[i][p][c] = of_row(filter.weights[TAPS - 1 - i], window + W::BESIDE + p,
                                               c, next_sum(i, p, c));
            if (row >= first_complete) write();
            if (++row >= end_of_read) break;
        }
    }
#pragma unroll 1
    for (; row < end; ++row) {
#pragma unroll
        for (int i = 0; i < TAPS; ++i)
#pragma unroll
            for (int p = 0; p < ACROSS; ++p)
#pragma unroll
                for (int c = 0; c < V; ++c) sums[i][p][c] = next_sum(i, p, c);
        if (row >= first_complete) write();
    }
}

// of_taps[i][j][c] += y[position][c] * x[position + tap][c] over the walk, unless x is null;
// of_y[c] += y. x and y are at the thread's channels of the image. A row of X is read once;
// `slopes` has the TAPS rows of Y that it is multiplied with.
template <class W, class E>
__device__ __forceinline__ void add_walk(const E* x, const E* y, const Walk<W::ACROSS>& walk,
                                         const DepthwiseLayout& layout, const Plane& of_x,
                                         const Plane& of_y, LineSums<E, W::TAPS, W::V>& sums) {
    constexpr int TAPS = W::TAPS, ACROSS = W::ACROSS, V = W::V;
    const i32 columns = of_y.width - walk.column, rows = walk.end - walk.row;
    const i32 x_row = walk.row - layout.pad[1], end = rows + TAPS - 1;
    Reader<typename W::Window, E> x_reader(x, x_row, walk.column - layout.pad[2] - W::BESIDE, of_x);
    Reader<typename W::Written, E> y_reader(y, walk.row, walk.column, of_y);
    typename W::Window next_of_x = {};
    typename W::Written next_of_y;
    const auto is_in_x = [&](i32 row) {
        return static_cast<u32>(x_row + row) < static_cast<u32>(of_x.height);
    };
    const auto load = [&](i32 row) {
        if (x) x_reader.load(next_of_x, of_x, is_in_x(row));
        y_reader.load(next_of_y, of_y, row < rows);
    };
    if (W::SUMS_AHEAD) load(0);
    Acc<E> slopes[TAPS][ACROSS][V] = {};  // slopes[row % TAPS]: of the walk's row of Y
#pragma unroll 1
    for (i32 row = 0; row < end;) {
#pragma unroll
        for (int step = 0; step < TAPS; ++step) {
            if (!W::SUMS_AHEAD) load(row);
            Acc<E> window[W::WINDOW][V];
            next_of_y.widen(slopes[step]);
            next_of_x.widen(window);
            if (W::SUMS_AHEAD) load(row + 1);
#pragma unroll
            for (int p = 0; p < ACROSS; ++p)
#pragma unroll
                for (int c = 0; c < V; ++c) sums.of_y[c] += slopes[step][p][c];
            if (x && is_in_x(row)) {
                // A product with a position that Y does not have might be NaN.
#pragma unroll
                for (int p = 0; p < ACROSS; ++p) {
                    if (p >= columns) break;
#pragma unroll
                    for (int i = 0; i < TAPS; ++i)
                        if (static_cast<u32>(row - i) < static_cast<u32>(rows))
                            add_position(sums.of_taps[i], slopes[(step - i + TAPS) % TAPS][p],
                                         window + W::BESIDE + p);
                }
            }
            if (++row >= end) break;
        }
    }
}

// ---- channels last ------------------------------------------------------------------------------

// written = bias + sum over TAPS x TAPS taps of w * read, or with is_gradient the gradient of that
// for X, which has the taps in reverse; bias may be null. Block part * tiles + tile has a tile of
// channels and `of_block` walks of `rows` rows.
template <int TAPS, class E>
__device__ __forceinline__ void walk_lines(const E* read, const E* w, const E* bias, E* written,
                                           i64 of_block, i32 rows, bool is_gradient,
                                           const DepthwiseLayout& layout) {
    using W = Way<E, TAPS, /*LAST=*/true>;
    const u32 tiles = line_tiles<W::V>(layout), part = blockIdx.x / tiles;
    const Own<W::V> own(layout, blockIdx.x - part * tiles);
    const i32 channel = own.channel();
    // Threads read the taps of their channels from shared memory: in global memory these lie too far
    // apart.
    constexpr int N = TAPS * TAPS;
    __shared__ E taps[LINE_VECTORS * W::V * N];
    for (i32 i = threadIdx.x; i < own.across * W::V * N; i += THREADS)
        taps[i] = w[static_cast<i64>(own.first) * N + i];
    __syncthreads();
    if (own.row >= own.down) return;
    const Filter<W> filter(taps + own.vector * W::V * N, bias ? bias + channel : nullptr,
                           is_gradient, layout);
    const Plane from(is_gradient ? layout.output : layout.image, layout.groups);
    const Plane to(is_gradient ? layout.image : layout.output, layout.groups);
    const i64 end = min((part + 1) * of_block, layout.batch * layout.of_plane.value);
    for (i64 index = part * of_block + own.row; index < end; index += own.down) {
        const Walk<W::ACROSS> walk(layout, index, rows, to.height);
        write_walk<W>(read + walk.n * from.size() + channel, written + walk.n * to.size() + channel,
                      filter, walk, from, to);
    }
}

// sums[part][channel][tap] = sum of y * x over the part's positions, y_sums[part][channel] = sum of
// y; either may be null. Block part * tiles + tile has a tile of channels and `of_part`
// neighbouring walks of `rows` rows of Y.
template <int TAPS, class E>
__device__ __forceinline__ void sum_lines_of_walks(const E* x, const E* y, Acc<E>* sums,
                                                   Acc<E>* y_sums, i64 of_part, i32 rows,
                                                   const DepthwiseLayout& layout) {
    using W = Way<E, TAPS, /*LAST=*/true>;
    const u32 tiles = line_tiles<W::V>(layout), part = blockIdx.x / tiles;
    const Own<W::V> own(layout, blockIdx.x - part * tiles);
    const i32 channel = own.channel();
    const Plane of_x(layout.image, layout.groups), of_y(layout.output, layout.groups);
    LineSums<E, TAPS, W::V> line_sums;
    const i64 end =
        own.row < own.down ? min((part + 1) * of_part, layout.batch * layout.of_plane.value) : 0;
    for (i64 index = part * of_part + own.row; index < end; index += own.down) {
        const Walk<W::ACROSS> walk(layout, index, rows, of_y.height);
        add_walk<W>(x ? x + walk.n * of_x.size() + channel : nullptr,
                    y + walk.n * of_y.size() + channel, walk, layout, of_x, of_y, line_sums);
    }
    write_line_sums(line_sums, own, TapTile{/*channel=*/0, part, /*k0=*/0, /*k1=*/0, /*k2=*/0},
                    sums, y_sums, layout);
}

// ---- channels first -----------------------------------------------------------------------------

// walk_lines for arrays (n, channel, position), a walk of `rows` rows for each thread: walks are
// numbered (image, channel, walk). A group may have several filters, unless is_gradient.
template <int TAPS, class E>
__device__ __forceinline__ void walk_planes(const E* read, const E* w, const E* bias, E* written,
                                            i32 rows, bool is_gradient,
                                            const DepthwiseLayout& layout) {
    using W = Way<E, TAPS, /*LAST=*/false>;
    const Plane from(is_gradient ? layout.output : layout.image, 1);
    const Plane to(is_gradient ? layout.image : layout.output, 1);
    const Walk<W::ACROSS> walk(layout, static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x, rows,
                               to.height);
    const u32 channels = layout.groups * layout.filters, n = divide(walk.n, channels);
    if (n >= layout.batch) return;
    const u32 channel = walk.n - static_cast<i64>(n) * channels;
    const Filter<W> filter(w + static_cast<i64>(channel) * (TAPS * TAPS),
                           bias ? bias + channel : nullptr, is_gradient, layout);
    write_walk<W>(read + divide(walk.n, layout.filters) * from.size(), written + walk.n * to.size(),
                  filter, walk, from, to);
}

// sums[part][filter][tap] = sum of y * x over the part's positions, unless x is null;
// y_sums[part][filter] = sum of y, unless it is null. Block part * filters + filter has `of_part`
// neighbouring walks of `rows` rows of Y.
template <int TAPS, class E>
__device__ __forceinline__ void sum_planes_of_walks(const E* x, const E* y, Acc<E>* sums,
                                                    Acc<E>* y_sums, i64 of_part, i32 rows,
                                                    const DepthwiseLayout& layout) {
    using W = Way<E, TAPS, /*LAST=*/false>;
    const u32 channels = layout.groups * layout.filters, part = blockIdx.x / channels;
    const u32 channel = blockIdx.x - part * channels;
    const Plane of_x(layout.image, 1), of_y(layout.output, 1);
    LineSums<E, TAPS, 1> line_sums;
    const i64 end = min((part + 1) * of_part, layout.batch * layout.of_plane.value);
    for (i64 index = part * of_part + threadIdx.x; index < end; index += THREADS) {
        const Walk<W::ACROSS> walk(layout, index, rows, of_y.height);
        const E* const from =
            x ? x + (walk.n * layout.groups + channel / layout.filters) * of_x.size() : nullptr;
        add_walk<W>(from, y + (walk.n * channels + channel) * of_y.size(), walk, layout, of_x, of_y,
                    line_sums);
    }
    write_block_sums<TAPS>(line_sums.of_taps, line_sums.of_y[0],
                           TapTile{channel, part, /*k0=*/0, /*k1=*/0, /*k2=*/0}, sums, y_sums,
                           layout);
}

}  // namespace cto::conv::depthwise_walks
