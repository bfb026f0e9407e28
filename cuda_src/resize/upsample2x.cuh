// SPDX-License-Identifier: MIT
// The gradient of bilinear upsampling by two along both axes, half_pixel. Along each axis
//     dX[i] = FAR dY[2i - 1] + NEAR dY[2i] + NEAR dY[2i + 1] + FAR dY[2i + 2]
// where dY is extended past its ends by its first and its last element.
//
// A lane has READ columns of dY, 16 bytes, and writes the READ / 2 columns of dX below them, row
// after row. It first sums over rows of dY, then over columns; there it needs one column on each
// side, which it gets from the neighbouring lanes.
#pragma once
#include "core/vec.cuh"

namespace cto::upsample2x {

using vec::Vec;

// The work of a lane: its columns of some rows of a plane of dX.
template <class T>
struct Upsample2xGrad {
    using A = Acc<T>;
    static constexpr A NEAR = 0.75, FAR = 0.25;
    static constexpr int READ = vec::WIDTH<T>;  // columns of dY that a lane has
    static constexpr int COLUMNS = READ / 2;    // columns of dX
    static constexpr int ROWS = 2;              // rows of dX whose loads are issued together

    // A lane's columns of a row of dY; `beside` is one more column, in the lanes at a warp's ends,
    // which lack a neighbour. Words, since the compiler unpacks halves too early, and then needs
    // more registers.
    struct Row {
        Vec<u32, 4> words;
        T beside;
        // Column c of the thread's READ columns; READ: the neighbour beside them.
        __device__ A at(int c) const {
            return to_acc(c < READ ? reinterpret_cast<const T*>(words.at)[c] : beside);
        }
    };

    const T* dy;  // the lane's first column in row 0 of the plane
    T* dx;
    i64 width;                    // of a row of dX
    i32 last_row;                 // of dX
    bool is_first, is_last;       // columns of the row
    bool begins_warp, ends_warp;  // the neighbouring lane is not in this warp

    // dy, dx: the whole arrays. The lane's columns of dY are vector number `own` of the n_vecs that
    // a row has, in plane number `plane`; n_rows: of a plane of dX, which is n_rows * width
    // elements, and dY 2 n_rows * 2 width.
    __device__ Upsample2xGrad(const T* dy, T* dx, i64 plane, i64 own, i64 n_vecs, i32 n_rows)
        : width(n_vecs * COLUMNS), last_row(n_rows - 1) {
        this->dy = dy + plane * n_rows * width * 4 + own * READ;
        this->dx = dx + plane * n_rows * width + own * COLUMNS;
        is_first = own == 0;
        is_last = own == n_vecs - 1;
        begins_warp = threadIdx.x % WARP == 0;
        ends_warp = threadIdx.x % WARP == WARP - 1;
    }

    // The lane's READ columns of a row of dY; `beside` = the column before them in a warp's first
    // lane, the column after them in its last lane, if the row has such a column.
    __device__ Row load(i32 row) const {
        const T* const from = dy + row * 2 * width;
        Row loaded{*reinterpret_cast<const Vec<u32, 4>*>(from)};
        if (begins_warp && !is_first) loaded.beside = from[-1];
        if (ends_warp && !is_last) loaded.beside = from[READ];
        return loaded;
    }

    // to[v] = FAR row[2v] + NEAR row[2v + 1] + NEAR row[2v + 2] + FAR row[2v + 3], v < COLUMNS,
    // where row[c + 1] = sums[c], and row[0] and row[READ + 1] are sums of the neighbouring lanes,
    // or at a warp's ends sums[READ]. All lanes of the warp must call it; those with `wanted`
    // write.
    __device__ void store(T* to, const A (&sums)[READ + 1], bool wanted) const {
        const A before = __shfl_up_sync(ALL_LANES, sums[READ - 1], 1);
        const A after = __shfl_down_sync(ALL_LANES, sums[0], 1);
        A row[READ + 2];
        row[0] = is_first ? sums[0] : begins_warp ? sums[READ] : before;
        row[READ + 1] = is_last ? sums[READ - 1] : ends_warp ? sums[READ] : after;
#pragma unroll
        for (int c = 0; c < READ; ++c) row[c + 1] = sums[c];
        Vec<T, COLUMNS> dx;
#pragma unroll
        for (int v = 0; v < COLUMNS; ++v) {
            const A* const four = row + 2 * v;
            dx.at[v] = from_acc<T>(FAR * four[0] + NEAR * four[1] + NEAR * four[2] + FAR * four[3]);
        }
        if (wanted) *reinterpret_cast<Vec<T, COLUMNS>*>(to) = dx;
    }

    // Writes rows first, ..., first + n - 1 of dX, but none from `end` on. n is the same in the
    // whole warp, as lanes exchange sums; `end` may differ. Sums over rows of dY are computed here,
    // those over columns by `store`; sums[READ] is the sum of the column `beside`.
    __device__ void make(i32 first, i32 n, i32 end) const {
        A open[READ + 1];  // FAR dY[2i - 1] + NEAR dY[2i]: the first two terms of row i of dX
        const Row above = load(max(2 * first - 1, 0)), own = load(2 * first);
#pragma unroll
        for (int c = 0; c <= READ; ++c) open[c] = FAR * above.at(c) + NEAR * own.at(c);
#pragma unroll 1
        for (i32 i = first; i < first + n; i += ROWS) {
            Row third[ROWS], fourth[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const i32 row = min(i + r, last_row);
                third[r] = load(2 * row + 1);
                fourth[r] = load(2 * row + (row < last_row ? 2 : 1));
            }
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                A sums[READ + 1];
#pragma unroll
                for (int c = 0; c <= READ; ++c) {
                    sums[c] = open[c] + NEAR * third[r].at(c) + FAR * fourth[r].at(c);
                    open[c] = FAR * third[r].at(c) + NEAR * fourth[r].at(c);
                }
                store(dx + (i + r) * width, sums, i + r < end);
            }
        }
    }
};

}  // namespace cto::upsample2x
