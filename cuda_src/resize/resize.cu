// SPDX-License-Identifier: MIT
// ResizeGrad.  CPU provider: cupy_training_ops/families/resize/reference.py
//
// dX[p] = sum over outputs o of weight(o, p) dY[o], along rows and columns. A pixel is an element
// of dX, an output one of dY; each output is interpolated between two neighbouring pixels (struct
// Tap).
//
// A warp computes a tile of dX, row after row: it sums over rows of dY in registers, a lane having
// some columns of dY; then over columns, by way of shared memory, a lane having some columns of dX.
// The order of sums is fixed, without atomics. For upsampling by two weights are constants:
// resize/upsample2x.cuh. An Axis has n_in pixels and n_out outputs, and the ratio of their
// distances.
#include "core/fast_division.cuh"
#include "core/slots.cuh"
#include "core/vec.cuh"
#include "resize/facts.cuh"
#include "resize/upsample2x.cuh"

namespace cto {

using namespace facts::resize;
using fast_division::Cell;
using fast_division::cell_at;
using fast_division::Divisor;

using slots::ACC;
using slots::T;
static_assert(ARE_SAME<ACC, Acc<T>>);

constexpr int RESIDENT = 4;  // least number of resident blocks, in the launch bounds
constexpr int HELD = 4;      // weights of a column of dX that are in registers
// BATCH rows of dY are loaded before one is used (the fastest on an H200). Each of them completes
// at most the two open rows of dX, and after the last batch two more are completed.
constexpr int BATCH = sizeof(T) == 2 ? 4 : sizeof(T) == 4 ? 8 : 2;
constexpr int MAX_FINISHED = 2 * BATCH + 2;

// A lane's columns of a row of dY. Words, since the compiler unpacks halves too early, and then
// needs more registers.
struct Row {
    vec::Vec<u32, EACH * sizeof(T) / sizeof(u32)> words;
    __device__ T* at() { return reinterpret_cast<T*>(words.at); }
    __device__ const T* at() const { return reinterpret_cast<const T*>(words.at); }
};

// a * b, rounded, never contracted to an fma: positions then have the bits of the NumPy reference.
__device__ __forceinline__ float times(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double times(double a, double b) { return __dmul_rn(a, b); }

// Two neighbouring pixels and their weights: output = (1 - share) * X[low] + share * X[low + 1].
struct Tap {
    i32 low;
    ACC share;
};

// The Tap of output o: its position among the pixels is ratio * o, or counted from middles ratio *
// (o + 1/2) - 1/2.
__device__ inline Tap tap_of(const Axis<ACC>& axis, i32 o) {
    const ACC middle = axis.align_corners ? ACC(0) : ACC(0.5);
    const ACC position = max(times(axis.ratio, static_cast<ACC>(o) + middle) - middle, ACC(0));
    const i32 low = min(static_cast<i32>(position), axis.n_in - 1);
    return {low, low < axis.n_in - 1 ? position - static_cast<ACC>(low) : ACC(0)};
}

// The weight of X[pixel] in output o, which must be one of its two pixels.
__device__ inline ACC weight_of(const Axis<ACC>& axis, i32 o, i32 pixel) {
    const Tap of = tap_of(axis, o);
    return of.low == pixel ? ACC(1) - of.share : of.share;
}

// The first output of `axis` with low >= pixel. So the outputs that use pixel i are [first_from(i -
// 1), first_from(i + 1)). Guesses it from the inverse ratio, then corrects what rounding may have
// changed.
__device__ __noinline__ inline i32 first_from(const Axis<ACC>& axis, i32 pixel) {
    if (pixel <= 0 || pixel >= axis.n_in) return pixel <= 0 ? 0 : axis.n_out;
    const ACC middle = axis.align_corners ? ACC(0) : ACC(0.5);
    const ACC guess = (static_cast<ACC>(pixel) + middle) * axis.inverse - middle;
    i32 o = static_cast<i32>(min(guess, static_cast<ACC>(axis.n_out)));
    o = min(max(o, 0), axis.n_out);
    while (o > 0 && tap_of(axis, o - 1).low >= pixel) --o;
    while (o < axis.n_out && tap_of(axis, o).low < pixel) ++o;
    return o;
}

// [begin, end).
struct Span {
    i32 begin, end;
    __device__ i32 length() const { return end - begin; }
};

// The outputs that use any of the pixels first, ..., last, maybe with a weight of 0.
__device__ __forceinline__ Span touching(const Axis<ACC>& axis, i32 first, i32 last) {
    return {first_from(axis, first - 1), first_from(axis, last + 1)};
}

// The index, in the warp's COLUMNS columns of dY, of column c of a lane: a lane's columns are
// neighbours if it loads them as a vector (ALIGNED), else WARP apart.
__device__ __forceinline__ i32 place_of(i32 lane, int c) {
    return ALIGNED ? lane * EACH + c : c * WARP + lane;
}

// A column of dX. touch: the columns of dY that use it; now: those of them in the current pass, of
// which the first HELD weights are in registers.
struct Column {
    i32 pixel;  // or -1
    Span touch, now;
    ACC weight[HELD];

    // Makes this column `at` of dX: touch = columns of dY that have a share of it; first ones with
    // a weight of 0 are left out.
    __device__ void find(const Axis<ACC>& axis, i32 at) {
        pixel = at;
        touch = touching(axis, at, at);
        while (touch.length() > 0 && weight_of(axis, touch.begin, at) == ACC(0)) ++touch.begin;
    }

    // Begins a pass over the columns `summed` of dY: now = touch and summed, weight[j] = the weight
    // of column now.begin + j of dY in this column of dX, 0 from now.end on.
    __device__ void hold(const Axis<ACC>& axis, Span summed) {
        now = {max(touch.begin, summed.begin), min(touch.end, summed.end)};
#pragma unroll
        for (int j = 0; j < HELD; ++j)
            weight[j] = now.begin + j < now.end ? weight_of(axis, now.begin + j, pixel) : ACC(0);
    }

    // Returns the sum over columns o of `now` of weight * sums[o - first]. sums: sums over rows of
    // dY of columns first, first + 1, ...; LONG: there may be more than HELD.
    template <bool LONG>
    __device__ ACC gather(const Axis<ACC>& axis, const ACC* sums, i32 first) const {
        ACC total = ACC(0);
#pragma unroll
        for (int j = 0; j < HELD; ++j)
            if (now.begin + j < now.end) total += weight[j] * sums[now.begin + j - first];
        if (!LONG) return total;
#pragma unroll 1
        for (i32 o = now.begin + HELD; o < now.end; ++o)
            total += weight_of(axis, o, pixel) * sums[o - first];
        return total;
    }
};

// Sums over the rows of dY so far, of a lane's columns, for two rows of dX: `row` (low) and row + 1
// (high). As low pixels ascend with the rows of dY, no other rows of dX are incomplete.
struct OpenRows {
    i32 row;
    ACC low[EACH], high[EACH];

    // low += (1 - share) dy, high += share dy, for each column: adds a row of dY whose Tap is `row`
    // and `share`.
    __device__ void add(ACC share, const Row& dy) {
#pragma unroll
        for (int c = 0; c < EACH; ++c) {
            const ACC g = to_acc(dy.at()[c]);
            low[c] += (ACC(1) - share) * g;
            if (share != ACC(0)) high[c] += share * g;  // 0 times infinity would be NaN
        }
    }

    // Goes on to the next row of dX.
    __device__ void next() {
        ++row;
#pragma unroll
        for (int c = 0; c < EACH; ++c) {
            low[c] = high[c];
            high[c] = ACC(0);
        }
    }
};

// Rows of dX whose sums over rows of dY are complete; those over columns are not computed yet.
// sums[i]: of row number row[i], by columns of dY from the pass's first on. In shared memory, one
// for each warp.
struct Finished {
    alignas(16) ACC sums[MAX_FINISHED][COLUMNS];
    i32 row[MAX_FINISHED];
};

// A warp's tile of a plane of dX; rows, columns: the axes of the plane; n_finished: rows in
// `finished`; mine: the lane's columns of dX, sum: their sums of earlier passes. LONG: the tile
// needs more than COLUMNS columns of dY, so several passes, or a column of dX more than HELD
// weights.
struct Tile {
    const Axis<ACC>&rows, &columns;
    const T* dy;  // the plane
    T* dx;        // the lane's first column
    Finished& finished;
    i32 lane, n_finished;
    Span summed;  // columns of dY in the current pass
    bool last;    // this is the last pass, after which rows are stored
    Column mine[MINE];
    ACC sum[MINE];

    // Sets the lane's columns of dX: `first` + lane, and WARP more, of the tile's n columns from
    // `first` on. Returns the columns of dY that all of these need.
    __device__ Span find_columns(i32 first, i32 n) {
        dx += first + lane;
#pragma unroll
        for (int v = 0; v < MINE; ++v) {
            mine[v] = {/*pixel=*/-1};
            sum[v] = ACC(0);
            if (v * WARP + lane < n) mine[v].find(columns, first + v * WARP + lane);
        }
        const i32 end = n <= WARP ? mine[0].touch.end : mine[1].touch.end;
        const i32 begin = __shfl_sync(ALL_LANES, mine[0].touch.begin, 0);
        return {ALIGNED ? begin / EACH * EACH : begin, __shfl_sync(ALL_LANES, end, (n - 1) % WARP)};
    }

    // True if the tile is LONG: too many columns of dY, or too many weights of a column of dX.
    __device__ bool is_long(Span all) const {
        const i32 most = max(mine[0].touch.length(), mine[1].touch.length());
        return all.length() > COLUMNS || __any_sync(ALL_LANES, most > HELD);
    }

    // Begins a pass over the columns `some` of dY; are_last: it is the last one.
    __device__ void sum_columns(Span some, bool are_last) {
        summed = some;
        last = are_last;
#pragma unroll
        for (int v = 0; v < MINE; ++v) mine[v].hold(columns, some);
    }

    // Address for `load` in row o of dY: the lane's own vector (ALIGNED), else the pass's first
    // column.
    __device__ const T* start_of(i32 o) const {
        const i32 most = (summed.length() - 1) / EACH * EACH;
        const T* row = dy + static_cast<i64>(o) * columns.n_out + summed.begin;
        return ALIGNED ? row + min(lane * EACH, most) : row;
    }

    // Columns place_of(lane, c), c < EACH, of the `summed` columns of the row at `start`; past the
    // last of these, the last one again. ALIGNED: they are one vector, which begins at `start`.
    __device__ Row load(const T* start) const {
        if (ALIGNED) return *reinterpret_cast<const Row*>(start);
        Row loaded;
#pragma unroll
        for (int c = 0; c < EACH; ++c)
            loaded.at()[c] = start[min(place_of(lane, c), summed.length() - 1)];
        return loaded;
    }

    // Writes values[v], rounded, to column v of the lane's columns in row `row` of dX.
    __device__ void store(i32 row, const ACC* values) {
        T* to = dx + static_cast<u64>(static_cast<u32>(row)) * static_cast<u32>(columns.n_in);
#pragma unroll
        for (int v = 0; v < MINE; ++v)
            if (mine[v].pixel >= 0) to[v * WARP] = from_acc<T>(values[v]);
    }

    // Finishes the rows of dX before `next`: the two open rows, then rows of zeros, which no output
    // uses. Rows before `first` belong to another tile.
    __device__ void advance(OpenRows& open, i32 next, i32 first) {
        const ACC nothing[MINE] = {};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (open.row >= next) return;
            if (open.row >= first) finish(open);
            open.next();
        }
#pragma unroll 1
        for (; open.row < next; ++open.row) store(open.row, nothing);
    }

    // Moves the sums of row open.row to shared memory.
    __device__ void finish(const OpenRows& open) {
#pragma unroll
        for (int c = 0; c < EACH; ++c) finished.sums[n_finished][place_of(lane, c)] = open.low[c];
        if (lane == 0) finished.row[n_finished] = open.row;
        ++n_finished;
    }

    // Sums the finished rows over columns and stores them. LONG: `sum` adds up the passes, and rows
    // are stored after the last one.
    template <bool LONG>
    __device__ void gather_finished() {
        __syncwarp();
#pragma unroll 1
        for (int i = 0; i < n_finished; ++i) {
            ACC values[MINE];
#pragma unroll
            for (int v = 0; v < MINE; ++v) {
                values[v] = mine[v].gather<LONG>(columns, finished.sums[i], summed.begin);
                if (LONG) sum[v] = values[v] = sum[v] + values[v];
            }
            if (LONG && !last) continue;
            store(finished.row[i], values);
            sum[0] = sum[1] = ACC(0);
        }
        n_finished = 0;
        __syncwarp();
    }

    // One pass over rows [first, end) of dX: adds the rows of dY that touch them, BATCH at a time.
    // LONG: there may be several passes, or more than HELD weights a column.
    template <bool LONG>
    __device__ void sum_rows(i32 first, i32 end) {
        constexpr int BATCH = LONG ? 1 : cto::BATCH;
        const Span down = touching(rows, first, end - 1);
        const i32 n = summed.length() > 0 ? down.length() : 0;
        const T* start = start_of(down.begin);
        OpenRows open{first - 1};
        Tap taps{};  // of 32 rows of dY, one in each lane
#pragma unroll 1
        for (i32 o = 0; o < n; o += BATCH) {
            Row dys[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; ++b, start += columns.n_out)
                if (o + b < n) dys[b] = load(start);
            if (o % WARP == 0) taps = tap_of(rows, down.begin + o + lane);
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                const i32 low = __shfl_sync(ALL_LANES, taps.low, o + b);
                const ACC share = __shfl_sync(ALL_LANES, taps.share, o + b);
                if (o + b >= n) break;
                advance(open, low, first);
                open.add(share, dys[b]);
            }
            gather_finished<LONG>();
        }
        advance(open, end, first);
        gather_finished<LONG>();
    }

    // Writes rows [first, end) of the tile; `all` = the columns of dY that it needs. With several
    // passes one row at a time, as `sum` keeps the sums of one row from pass to pass.
    __device__ void make(i32 first, i32 end, Span all) {
        if (!is_long(all)) {
            sum_columns(all, /*are_last=*/true);
            return sum_rows</*LONG=*/false>(first, end);
        }
        const i32 step = all.length() > COLUMNS ? 1 : end - first;
        for (; first < end; first += step) {
            i32 begin = all.begin;
            do {
                const Span some{begin, min(begin + COLUMNS, all.end)};
                sum_columns(some, some.end == all.end);
                sum_rows</*LONG=*/true>(first, first + step);
                begin += COLUMNS;
            } while (begin < all.end);
        }
    }
};

}  // namespace cto

using namespace cto;

// dx = gradient of an interpolation along rows and columns, with respect to its input, for n_planes
// planes; rows, columns: the Axis of each, extents of dx and dy and the ratio of their distances. A
// plane of dx is divided into bands of `band` rows, as many as `bands` says, these into tiles of
// `strip` <= 64 columns, as many as `strips` says; a warp computes one tile.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    resize_grad(const T* dy, T* dx, i64 n_planes, const __grid_constant__ Axis<ACC> rows,
                const __grid_constant__ Axis<ACC> columns, const __grid_constant__ Divisor bands,
                i32 band, const __grid_constant__ Divisor strips, i32 strip) {
    __shared__ Finished finished[WARPS];
    const i32 warp = threadIdx.x / WARP;
    const Cell in_band = cell_at(static_cast<i64>(blockIdx.x) * WARPS + warp, strips);
    const Cell plane = cell_at(in_band.row, bands);
    if (plane.row >= n_planes) return;
    Tile tile{rows,
              columns,
              /*dy=*/dy + plane.row * rows.n_out * columns.n_out,
              /*dx=*/dx + plane.row * rows.n_in * columns.n_in,
              finished[warp],
              /*lane=*/static_cast<i32>(threadIdx.x % WARP)};
    const i32 row = static_cast<i32>(plane.column) * band;
    const i32 column = static_cast<i32>(in_band.column) * strip;
    const Span all = tile.find_columns(column, min(strip, columns.n_in - column));
    tile.make(row, min(row + band, rows.n_in), all);
}

// dx = gradient of upsampling by two (upsample2x.cuh); dy: the gradient of its result. A row of dy
// is `vecs` vectors of 16 bytes; a thread has one vector's columns, and writes `band` rows of the
// n_rows of a plane of dx, of which `bands` bands are made. n_lanes: threads with work; others only
// exchange sums.
extern "C" __global__ void __launch_bounds__(THREADS)
    resize_grad__upsample2x(const T* dy, T* dx, i64 n_lanes, i32 n_rows,
                            const __grid_constant__ Divisor bands, i32 band,
                            const __grid_constant__ Divisor vecs) {
    const i64 at = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    const Cell in_band = cell_at(min(at, n_lanes - 1), vecs);
    const Cell plane = cell_at(in_band.row, bands);
    const i32 first = static_cast<i32>(plane.column) * band;
    const i32 end = at < n_lanes ? min(first + band, n_rows) : 0;
    upsample2x::Upsample2xGrad<T>(dy, dx, plane.row, in_band.column, vecs.value, n_rows)
        .make(first, band, end);
}
