// SPDX-License-Identifier: MIT
// Tiles of 2-D windows whose kernel, stride and pads are compile-time constants; see
// families/pooling/plan_tiles.py.
//
// A thread computes a tile of Y, or the tile's part of dX: the TILE * STRIDE elements along each
// axis from where the tile's windows would start without pads. It loads each row that it needs
// once: the tile's own columns by vectors if they are aligned, those beside them one by one.
#pragma once
#include "core/fast_division.cuh"
#include "core/vec.cuh"
#include "pooling/facts.cuh"

namespace cto::pooling::tiles {

using namespace facts::pooling;
using vec::Vec;

constexpr int AHEAD_NBYTES = 128;  // bytes of rows in flight before a thread uses the first

// ---- windows ------------------------------------------------------------------------------------

// Compile-time numbers of an axis: KERNEL, STRIDE and PAD of its windows, of which a tile has TILE.
template <int KERNEL, int STRIDE, int PAD, int TILE>
struct Axis {
    static constexpr int stride = STRIDE, kernel = KERNEL, pad = PAD;
    static constexpr int reach = (TILE - 1) * STRIDE + KERNEL;  // elements of X in a tile's windows
    static constexpr int N_INPUTS = TILE * STRIDE;              // elements of a tile's part of dX
    // Windows before and after the tile's that contain elements of that part;
    // `around`: all of them.
    static constexpr int before = (KERNEL - 1 - PAD) / STRIDE, behind = (PAD + STRIDE - 1) / STRIDE;
    static constexpr int around = before + TILE + behind;

    // True if window w of the tile contains element i < reach.
    static constexpr bool has(int w, int i) { return i >= w * STRIDE && i < w * STRIDE + KERNEL; }
    // covers(w, i): window w < around contains element i < N_INPUTS; last(i): the last such window.
    static constexpr bool covers(int w, int i) { return has(w - before, i + PAD); }
    static constexpr int last(int i) { return (i + PAD) / STRIDE + before; }
};
using Rows = Axis<KERNEL_ROWS, STRIDE_ROWS, PAD_ROWS, TILE_ROWS>;
using Across = Axis<KERNEL_COLUMNS, STRIDE_COLUMNS, PAD_COLUMNS, TILE_COLUMNS>;

// A tile of windows: its plane, and the row and column of its first window.
struct Tile {
    i64 plane;
    i32 row, column;

    // Tile `position` of the numbering (plane, tile down, tile across), the last one fastest;
    // planes.tiles: how many of them a plane has down and across.
    __device__ __forceinline__ Tile(const Planes& planes, u32 position) {
        const u32 above = fast_division::quotient(position, planes.tiles[1]);
        const u32 before = fast_division::quotient(above, planes.tiles[0]);
        const u32 across = static_cast<u32>(planes.tiles[1].value);
        const u32 down = static_cast<u32>(planes.tiles[0].value);
        plane = before;
        row = static_cast<i32>(above - before * down) * TILE_ROWS;
        column = static_cast<i32>(position - above * across) * TILE_COLUMNS;
    }
    // The index of the plane's first element in arrays with planes of these extents.
    __device__ __forceinline__ i64 start(const i32 (&extents)[2]) const {
        return plane * (extents[0] * extents[1]);
    }
    // Row and column of X where the tile's first window would start without pads.
    __device__ __forceinline__ i32 x_row() const { return row * STRIDE_ROWS; }
    __device__ __forceinline__ i32 x_column() const { return column * STRIDE_COLUMNS; }
};

// 0 <= i < extent, in one comparison.
__device__ __forceinline__ bool is_within(i32 i, i32 extent) {
    return static_cast<u32>(i) < static_cast<u32>(extent);
}

// ---- rows in memory -----------------------------------------------------------------------------

// The bytes from a row to the next, in planes of fewer than 2^31 bytes.
struct Pitch {
    i32 nbytes;

    // Bytes of a row of `width` elements.
    template <class E>
    static __device__ __forceinline__ Pitch of(i32 width) {
        i32 nbytes = width * static_cast<i32>(sizeof(E));
        // Hidden, or the compiler multiplies twice: by elements, then by their size.
#ifndef __CUDA_CPU__
        asm("" : "+r"(nbytes));
#endif
        return {nbytes};
    }
    // The element `rows` rows below `element`; rows may be negative.
    template <class E>
    __device__ __forceinline__ const E* below(const E* element, i32 rows) const {
        const char* const address = reinterpret_cast<const char*>(element);
        return reinterpret_cast<const E*>(address + static_cast<i64>(rows) * nbytes);
    }
    // The element `row` rows below `element`; row >= 0.
    template <class E>
    __device__ __forceinline__ E* in(E* element, i32 row) const {
        char* const address = reinterpret_cast<char*>(element);
        return reinterpret_cast<E*>(address + static_cast<u64>(static_cast<u32>(row)) *
                                                  static_cast<u32>(nbytes));
    }
};

// Elements of the longest vector, a power of two, that divides n.
template <class E>
constexpr int piece_of(int n) {
    return (n & -n) < vec::WIDTH<E> ? (n & -n) : vec::WIDTH<E>;
}

// ---- reading ------------------------------------------------------------------------------------

// The columns that a tile reads: BEFORE, then the tile's OWN from `first` on, then BEHIND; column c
// is column first - BEFORE + c of a row of `width`. IN_VECTORS: the own ones exist and are aligned
// vectors; the others are "alone", loaded one by one.
template <int BEFORE, int OWN, int BEHIND, bool IN_VECTORS>
struct Columns {
    static constexpr int n = BEFORE + OWN + BEHIND, before = BEFORE, own = OWN;
    static constexpr int vectors = IN_VECTORS ? OWN : 0, alone = n - vectors;
    i32 first, width;

    static constexpr bool is_in_vector(int c) {
        return IN_VECTORS && c >= BEFORE && c < BEFORE + OWN;
    }
    // The number of column c among those that are alone.
    static constexpr int number_alone(int c) { return IN_VECTORS && c >= BEFORE ? c - OWN : c; }

    __device__ __forceinline__ bool has(int c) const {
        return INSIDE_COLUMNS || is_in_vector(c) || is_within(first - BEFORE + c, width);
    }
    // The existing column that is nearest to column c.
    __device__ __forceinline__ i32 nearest(int c) const {
        const i32 column = first - BEFORE + c;
        return INSIDE_COLUMNS || is_in_vector(c) ? column : min(max(column, 0), width - 1);
    }
};

// The columns of one row that C, a Columns, says, in registers. 2-byte elements stay in words: the
// compiler would unpack them long before they are used.
template <class E, class C>
struct Line {
    static constexpr int PIECE = piece_of<E>(C::own);
    using Unit = vec::Unit<E, vec::IN_WORDS<E, PIECE>>;
    using Piece = Vec<typename Unit::Register, PIECE * sizeof(E) / sizeof(typename Unit::Register)>;
    static constexpr int nbytes =
        C::vectors * sizeof(E) + C::alone * (sizeof(E) < 4 ? 4 : sizeof(E));
    Piece pieces[C::vectors / PIECE + 1];
    E alone[C::alone + 1];

    // Column c of the line.
    __device__ __forceinline__ Acc<E> at(int c) const {
        if (!C::is_in_vector(c)) return to_acc(alone[C::number_alone(c)]);
        const int own = c - C::before;
        return Unit::at(pieces[own / PIECE].at, own % PIECE);
    }
};

// Loads lines of a plane: the columns that C, a Columns, says. Columns outside of it are zeros, or
// with NEAREST the nearest column.
template <class E, class C, bool NEAREST>
struct Lines {
    using Line = tiles::Line<E, C>;
    Pitch pitch;
    const E *own, *alone[C::alone + 1];  // in row 0
    bool has[C::alone + 1];

    // Finds the addresses of the columns in row 0 of `plane`, and which of them exist.
    __device__ __forceinline__ Lines(const E* plane, const C& columns)
        : pitch(Pitch::of<E>(columns.width)), own(plane + columns.first) {
#pragma unroll
        for (int c = 0; c < C::n; ++c) {
            if (C::is_in_vector(c)) continue;
            const int k = C::number_alone(c);
            has[k] = NEAREST || columns.has(c);
            alone[k] =
                NEAREST && !INSIDE_COLUMNS ? plane + columns.nearest(c) : own + (c - C::before);
        }
    }
    // Returns the columns of row `row` of the plane; zeros unless `exists`.
    __device__ __forceinline__ Line load(i32 row, bool exists) const {
        Line line{};
        const auto* const pieces =
            reinterpret_cast<const typename Line::Piece*>(pitch.below(own, row));
#pragma unroll
        for (int p = 0; p < C::vectors / Line::PIECE; ++p)
            if (exists) line.pieces[p] = pieces[p];
#pragma unroll
        for (int k = 0; k < C::alone; ++k)
            if (exists && has[k]) line.alone[k] = *pitch.below(alone[k], row);
        return line;
    }
};

// ---- writing ------------------------------------------------------------------------------------

// to[c] = values[c], c < N and c < rest; IN_VECTORS: all N, in vectors.
template <bool IN_VECTORS, class E, int N>
__device__ __forceinline__ void store(E* to, i32 rest, const E (&values)[N]) {
    constexpr int LENGTH = IN_VECTORS ? piece_of<E>(N) : 1;
#pragma unroll
    for (int c = 0; c < N; c += LENGTH) {
        Vec<E, LENGTH> piece;
#pragma unroll
        for (int i = 0; i < LENGTH; ++i) piece.at[i] = values[c + i];
        if (IN_VECTORS || c < rest) *reinterpret_cast<Vec<E, LENGTH>*>(to + c) = piece;
    }
}

// to[c] = values[c] rounded to E, c < N and c < rest; IN_VECTORS: all N, in vectors.
template <bool IN_VECTORS, class E, int N>
__device__ __forceinline__ void store_rounded(E* to, i32 rest, const Acc<E> (&values)[N]) {
    alignas(16) E rounded[N];
#pragma unroll
    for (int c = 0; c + 1 < N; c += 2) vec::round_pair(values + c, rounded + c);
    if constexpr (N % 2 == 1) rounded[N - 1] = from_acc<E>(values[N - 1]);
    store<IN_VECTORS>(to, rest, rounded);
}

// ---- what is read -------------------------------------------------------------------------------

// XColumns: columns of X in a tile's windows. YColumns: columns of windows
// around a tile's part of dX.
constexpr int REACHED = Across::reach - PAD_COLUMNS;
constexpr int X_OWN = X_VECTORS ? Across::N_INPUTS : REACHED;
using XColumns = Columns<PAD_COLUMNS, X_OWN, (REACHED > X_OWN ? REACHED - X_OWN : 0), X_VECTORS>;
using YColumns = Columns<Across::before, TILE_COLUMNS, Across::behind, Y_VECTORS>;

// Calls use(i, load(i)) for rows i < N; AHEAD loads are in flight. load returns a row of known
// `nbytes`.
template <int N, class Load, class Use>
__device__ __forceinline__ void visit_rows(const Load& load, const Use& use) {
    using Row = decltype(load(0));
    constexpr int AHEAD = Row::nbytes < AHEAD_NBYTES ? AHEAD_NBYTES / Row::nbytes : 1;
    Row rows[N];
#pragma unroll
    for (int i = 0; i < N && i < AHEAD; ++i) rows[i] = load(i);
#pragma unroll
    for (int i = 0; i < N; ++i) {
        if (i + AHEAD < N) rows[i + AHEAD] = load(i + AHEAD);
        use(i, rows[i]);
    }
}

}  // namespace cto::pooling::tiles
