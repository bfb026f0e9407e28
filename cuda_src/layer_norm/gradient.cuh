// SPDX-License-Identifier: MIT
// Gradients of layer normalisations: dX of every row, and sums over the rows for scale and bias.
//
//     x^ = (x - mean) inv_std, or (y - bias) / scale;  h = dY scale
//     dX = inv_std (h - (sum of h) / n - x^ (sum of h x^) / n)
//
// FROM_Y: x^ is computed from Y, as X is not available. T and V are the types of X and Y.
#pragma once
#include "algorithm/column_reduce.cuh"
#include "layer_norm/staged_rows.cuh"

namespace cto::layer_norm_gradient {

using namespace staged_rows;

// The type of Inputs::x: X, or Y with FROM_Y.
template <bool FROM_Y, class X, class Y>
struct Second {
    using Type = X;
};
template <class X, class Y>
struct Second</*FROM_Y=*/true, X, Y> {
    using Type = Y;
};

// Input arrays. T and V are the types of X and Y. FROM_Y: x^ is computed from Y, as X is not
// available.
template <class T, class V, bool FROM_Y>
struct Inputs {
    using A = Acc<T>;
    using X = typename Second<FROM_Y, T, V>::Type;

    const V* dy;
    const X* x;  // Y with FROM_Y
    const V* scale;
    const V* bias;  // with FROM_Y
    const A* mean;  // null with FROM_Y, and where rows are not centred
    const A* inv_std;

    // True if dX has a mean of h.
    __device__ bool is_centred() const { return FROM_Y || mean; }
};

// Mean (0 where `mean` is null) and inv_std of a row.
template <class A>
struct Statistics {
    A mean = 0, inv_std = 0;

    // Those of row `row`; zeros if that is past the last of `count` rows.
    template <class In>
    static __device__ __forceinline__ Statistics of(const In& in, i64 row, i64 count) {
        if (row >= count) return {};
        return {in.mean ? in.mean[row] : A(0), in.inv_std[row]};
    }
};

// Means over a row: of_h of h, of_product of h x^.
template <class A>
struct Means {
    A of_h, of_product;

    // dX of an element. In rows of one element h - of_h is exactly 0, as h was rounded (`times`),
    // not part of an fma.
    __device__ A gradient(A inv_std, A h, A x_hat) const {
        return inv_std * fma(-of_product, x_hat, h - of_h);
    }
};

// x * y, rounded: never contracted with an addition to an fma.
__device__ __forceinline__ float times(float x, float y) { return __fmul_rn(x, y); }
__device__ __forceinline__ double times(double x, double y) { return __dmul_rn(x, y); }
// x / y, where y was converted from V. For halves x * (1 / y): 1 / y does not overflow for any of
// them.
template <class V, class A>
__device__ __forceinline__ A quotient(A x, A y) {
    if constexpr (ARE_SAME<V, __half>)
        return x * fast_reciprocal(y);
    else
        return fast_divide(x, y);
}

// One element; V is the type of scale and bias. x is y with FROM_Y.
template <class V, class A, bool FROM_Y>
struct Element {
    A dy, scale;
    A h, distance;  // dy scale; x - mean, or with FROM_Y y - bias

    // With FROM_Y, a scale of 0 leaves x^ unknown; it counts as 0.
    __device__ __forceinline__ Element(A dy, A x, A scale, A bias, A mean)
        : dy(dy), scale(scale), h(times(dy, scale)) {
        distance = FROM_Y ? (scale == 0 ? A(0) : x - bias) : x - mean;
    }
    // sums[0] += h; sums[1] += h x^ / inv_std = h (x - mean), or with FROM_Y h x^ = dy (y - bias).
    __device__ __forceinline__ void add_to(A (&sums)[2]) const {
        sums[0] += h;
        // Explicit fma or rounded product: GPU and CPU then have the same bits even if the sum
        // cancels.
        if constexpr (FROM_Y)
            sums[1] += times(dy, distance);
        else
            sums[1] = fma(h, distance, sums[1]);
    }
    // x^ = (x - mean) inv_std, or FROM_Y (y - bias) / scale, 0 where scale is 0.
    __device__ A x_hat(A inv_std) const {
        if constexpr (!FROM_Y) return distance * inv_std;
        return scale == 0 ? A(0) : quotient<V>(distance, scale);
    }
};

// Means of a row of 1 / inverse_length elements from `sums`, those of Element::add_to over the row:
// of h, 0 unless is_centred, and of h x^.
template <class A, bool FROM_Y>
__device__ __forceinline__ Means<A> means_of(const A (&sums)[2], A inv_std, bool is_centred,
                                             A inverse_length) {
    const A of_product = FROM_Y ? sums[1] : sums[1] * inv_std;
    return {is_centred ? sums[0] * inverse_length : A(0), of_product * inverse_length};
}

// ---- rows that fit into shared memory -----------------------------------------------------------

// Scale and, with FROM_Y, bias of slots of W elements: read from global memory, or for SHIFTED rows
// from shared memory, to which the constructor copies them; it moves `shared` past them.
template <class V, int W, bool FROM_Y, bool SHIFTED>
struct Parameters {
    const V *scale, *bias;

    // Of rows that are not SHIFTED slots are read from global memory: nothing is copied.
    template <class In>
    __device__ __forceinline__ Parameters(const In& in, const Walk<W, /*SHIFTED=*/false>&, u8*&)
        : scale(in.scale), bias(in.bias) {}
    // Scale and bias of the columns of slot u.
    __device__ __forceinline__ void read(const Walk<W, /*SHIFTED=*/false>& walk, int u,
                                         Acc<V> (&of_scale)[W], Acc<V> (&of_bias)[W]) const {
        vec::widen<V>(scale + walk.column(u), of_scale);
        if constexpr (FROM_Y) vec::widen<V>(bias + walk.column(u), of_bias);
    }
};
template <class V, int W, bool FROM_Y>
struct Parameters<V, W, FROM_Y, /*SHIFTED=*/true> {
    InShared<Acc<V>, W> scale, bias;

    // Copies in.scale, and with FROM_Y in.bias, to shared memory at `shared`, and moves `shared`
    // past them. Ends with a barrier.
    template <class In>
    __device__ __forceinline__ Parameters(const In& in, const Walk<W, /*SHIFTED=*/true>& walk,
                                          u8*& shared)
        : scale(in.scale, walk, shared), bias(scale) {
        if constexpr (FROM_Y) bias = InShared<Acc<V>, W>(in.bias, walk, shared);
        __syncthreads();
    }
    // Scale and bias of the columns of slot u, from shared memory.
    __device__ __forceinline__ void read(const Walk<W, /*SHIFTED=*/true>& walk, int u,
                                         Acc<V> (&of_scale)[W], Acc<V> (&of_bias)[W]) const {
        scale.read(walk, u, of_scale);
        if constexpr (FROM_Y) bias.read(walk, u, of_bias);
    }
};

// The W elements of one slot.
template <class V, class A, bool FROM_Y, int W>
struct Slot {
    A dy[W], x[W], scale[W], bias[W];

    // Loads slot u of the current row: dY and X or Y from their Staged buffers all_dy and all_x,
    // scale and bias from `parameters`, a Parameters.
    template <class AWalk, class Of, class DY, class X>
    __device__ __forceinline__ Slot(const AWalk& walk, int u, const Of& parameters,
                                    const DY& all_dy, const X& all_x) {
        all_dy.read(walk, u, dy);
        all_x.read(walk, u, x);
        parameters.read(walk, u, scale, bias);
    }
    __device__ __forceinline__ Element<V, A, FROM_Y> at(int i, A mean) const {
        return {dy[i], x[i], scale[i], /*bias=*/FROM_Y ? bias[i] : A(0), mean};
    }
};

// The thread's edge in a SHIFTED row: an element before or after the slots. Loaded one row ahead.
template <class T, class V, bool FROM_Y>
struct Edge {
    using A = Acc<T>;
    using In = Inputs<T, V, FROM_Y>;

    i32 column;  // or -1
    A scale = 0, bias = 0, dy = 0, x = 0;

    // Loads scale and bias of `column`, which is outside whole slots; nothing if it is negative.
    __device__ __forceinline__ Edge(const In& in, i32 column) : column(column) {
        if (column < 0) return;
        scale = to_acc(in.scale[column]);
        if constexpr (FROM_Y) bias = to_acc(in.bias[column]);
    }
    // dy, x = those of the thread's column in row `row`; nothing without a column or a row.
    __device__ __forceinline__ void load(const In& in, i64 row, const Rows& rows) {
        if (column < 0 || row >= rows.count) return;
        dy = to_acc(in.dy[row * rows.length + column]);
        x = to_acc(in.x[row * rows.length + column]);
    }
    __device__ __forceinline__ Element<V, A, FROM_Y> at(A mean) const {
        return {dy, x, scale, bias, mean};
    }
};

// dx = dX of the block's rows (Walk says which), and scale_sums[blockIdx.x], bias_sums[blockIdx.x],
// a number for each column = sums over them of dY x^, dY; both may be null. W: elements of a slot.
// SHIFTED: rows do not begin at multiples of 16 bytes. memory: dynamic shared memory, for the
// staged rows of dY and X, and parameters. For each row: sums of h and h x^ over its threads, then
// dX; both read the row from shared memory, to which later rows are copied meanwhile.
template <int W, bool SHIFTED, class T, class V, bool FROM_Y>
__device__ __forceinline__ void walk_rows(const Inputs<T, V, FROM_Y>& in, T* dx, Acc<T>* scale_sums,
                                          Acc<T>* bias_sums, const Rows& rows, u8* memory) {
    using A = Acc<T>;
    constexpr int D = DEPTH<A, W> / (SHIFTED ? 2 : 1);
    constexpr bool FEW_REGISTERS = FROM_Y || W == 8 || !ARE_SAME<T, V>;
    constexpr int UNROLL = FEW_REGISTERS ? 1 : W == 1 ? 4 : 2;
    __shared__ A per_warp[2][2][WARP];
    Walk<W, SHIFTED> walk(rows);
    RowSums<A, 2, /*OF_BLOCK=*/W == 1> sum_row{per_warp, static_cast<u32>(rows.threads),
                                               walk.group};
    u8* shared = memory;
    const Staged<V, W> dy(in.dy, walk, shared);
    const Staged<typename Inputs<T, V, FROM_Y>::X, W> x(in.x, walk, shared);
    start_first<D>(walk, dy, x);
    const Parameters<V, W, FROM_Y, SHIFTED> parameters(in, walk, shared);
    const A inverse_length = 1 / static_cast<A>(rows.length);
    ColumnSums<A, W, D> of_scale, of_bias;
    Edge<T, V, FROM_Y> next_edge(in, walk.edge());

    auto next = Statistics<A>::of(in, walk.row, rows.count);
    next_edge.load(in, walk.row, rows);
#pragma unroll 1
    for (; walk.goes_on(); leave(walk)) {
        const auto row = next;
        const auto edge = next_edge;
        next = Statistics<A>::of(in, walk.row + walk.step(), rows.count);
        next_edge.load(in, walk.row + walk.step(), rows);
        const i32 end = walk.end_of(walk.row);
        const bool has_edge = SHIFTED && edge.column >= 0 && walk.row < rows.count;
        arrive(walk, dy, x);
        A sums[2] = {};
#pragma unroll UNROLL
        for (int u = 0; u < D; ++u) {
            if (walk.slot(u) >= end) break;
            const Slot<V, A, FROM_Y, W> slot(walk, u, parameters, dy, x);
            A per_slot[2] = {};  // shortens the chain of dependent additions
#pragma unroll
            for (int i = 0; i < W; ++i) slot.at(i, row.mean).add_to(per_slot);
            sums[0] += per_slot[0];
            sums[1] += per_slot[1];
        }
        if (has_edge) edge.at(row.mean).add_to(sums);
        sum_row(sums);
        const auto of_row = means_of<A, FROM_Y>(sums, row.inv_std, in.is_centred(), inverse_length);
#pragma unroll
        for (int u = 0; u < D; ++u) {
            if (walk.slot(u) >= end) break;
            const Slot<V, A, FROM_Y, W> slot(walk, u, parameters, dy, x);
            replace(walk, u, dy, x);
            A values[W];
#pragma unroll
            for (int i = 0; i < W; ++i) {
                const auto element = slot.at(i, row.mean);
                const A x_hat = element.x_hat(row.inv_std);
                values[i] = of_row.gradient(row.inv_std, element.h, x_hat);
                of_scale.per_slot[u].at[i] += element.dy * x_hat;
                of_bias.per_slot[u].at[i] += element.dy;
            }
            vec::store_streaming(reinterpret_cast<Vec<T, W>*>(dx + walk.start(walk.row, u)),
                                 vec::from_acc<T>(values));
        }
        if (has_edge) {
            const auto element = edge.at(row.mean);
            const A x_hat = element.x_hat(row.inv_std);
            dx[walk.row * rows.length + edge.column] =
                from_acc<T>(of_row.gradient(row.inv_std, element.h, x_hat));
            of_scale.of_edge[0] += element.dy * x_hat;
            of_bias.of_edge[0] += element.dy;
        }
    }
    of_scale.store(walk, scale_sums, memory);
    of_bias.store(walk, bias_sums, memory);
}

// ---- longer rows --------------------------------------------------------------------------------

// means[row] = {mean of h, mean of h x^} of row number blockIdx.x, of `length` elements; a block
// has one row.
template <class T, class V, bool FROM_Y>
__device__ __forceinline__ void sum_long_row(const Inputs<T, V, FROM_Y>& in, i64 length,
                                             Acc<T>* means) {
    using A = Acc<T>;
    __shared__ A per_warp[2][2][WARP];
    const i64 row = blockIdx.x;
    const auto own = Statistics<A>::of(in, row, gridDim.x);
    A sums[2] = {};
#pragma unroll 4
    for (i64 column = threadIdx.x; column < length; column += blockDim.x) {
        const i64 i = row * length + column;
        const Element<V, A, FROM_Y> element(to_acc(in.dy[i]), to_acc(in.x[i]),
                                            to_acc(in.scale[column]),
                                            FROM_Y ? to_acc(in.bias[column]) : A(0), own.mean);
        element.add_to(sums);
    }
    RowSums<A, 2, /*OF_BLOCK=*/true>{per_warp, /*threads=*/blockDim.x, /*group=*/0}(sums);
    if (threadIdx.x > 0) return;
    const auto of_row =
        means_of<A, FROM_Y>(sums, own.inv_std, in.is_centred(), 1 / static_cast<A>(length));
    means[2 * row] = of_row.of_h;
    means[2 * row + 1] = of_row.of_product;
}

// One column of a thread, in some of the rows: writes dX if `means` is not null, and sums dY x^
// (of_scale) and dY (of_bias). A null in.x: only dY is summed.
template <class T, class V, bool FROM_Y>
struct Column {
    using A = Acc<T>;
    static constexpr int UNROLL = 4;

    const Inputs<T, V, FROM_Y>& in;
    const A* means;      // {mean of h, mean of h x^} of each row, or null: no dX is wanted
    T* dx;               // null without means
    i64 column, length;  // length: columns of a row
    A scale, bias;
    A of_scale = 0, of_bias = 0;

    // Loads the scale, and with FROM_Y the bias, of a column.
    __device__ __forceinline__ Column(const Inputs<T, V, FROM_Y>& in, const A* means, T* dx,
                                      i64 column, i64 length)
        : in(in), means(means), dx(dx), column(column), length(length) {
        scale = to_acc(in.scale[column]);
        bias = FROM_Y ? to_acc(in.bias[column]) : A(0);
    }
    // Adds n rows: row, row + blockDim.y, ... UNROLL of them are loaded together.
    __device__ __forceinline__ void add(i64 row, i32 n) {
#pragma unroll 1
        for (; n > 0; n -= UNROLL, row += UNROLL * blockDim.y) {
            A dy[UNROLL], x[UNROLL];
            Statistics<A> statistics[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const i64 other = row + u * blockDim.y;
                if (u >= n) continue;
                dy[u] = to_acc(in.dy[other * length + column]);
                if (!in.x) continue;
                x[u] = to_acc(in.x[other * length + column]);
                statistics[u] = Statistics<A>::of(in, other, other + 1);
            }
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                if (u >= n) continue;
                of_bias += dy[u];
                if (in.x) add_one(row + u * blockDim.y, dy[u], x[u], statistics[u]);
            }
        }
    }

  private:
    // Adds the element {dy, x} of row `row`, with the row's statistics `own`, to the sums of its
    // column; with `means` also writes its dX.
    __device__ __forceinline__ void add_one(i64 row, A dy, A x, const Statistics<A>& own) {
        const Element<V, A, FROM_Y> element(dy, x, scale, bias, own.mean);
        const A x_hat = element.x_hat(own.inv_std);
        of_scale += dy * x_hat;
        if (!means) return;
        const Means<A> of_row{means[2 * row], means[2 * row + 1]};
        const A value = of_row.gradient(own.inv_std, element.h, x_hat);
        dx[row * length + column] = from_acc<T>(value);
    }
};

// dx = dX of blockDim.x columns in one part of the `count` rows, rows_of_part of them, and the
// part's sums of dY x^ (scale_sums) and dY (bias_sums), [parts][length]; dx and the sums may be
// null. means: from sum_long_row, or null without dX. Grid (tiles of columns, parts).
template <class T, class V, bool FROM_Y>
__device__ __forceinline__ void walk_columns(const Inputs<T, V, FROM_Y>& in, const Acc<T>* means,
                                             T* dx, Acc<T>* scale_sums, Acc<T>* bias_sums,
                                             i64 count, i64 length, i64 rows_of_part) {
    using A = Acc<T>;
    __shared__ Vec<A, 1> per_thread[COLUMN_THREADS];
    const i64 column = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    const i64 first = blockIdx.y * rows_of_part;
    const i64 n = first + rows_of_part < count ? rows_of_part : count - first;
    column_reduce::Columns<A, /*N=*/1, /*DEPTH=*/1> scale, bias;
    if (column < length) {
        Column<T, V, FROM_Y> own(in, means, dx, column, length);
        own.add(first + threadIdx.y, column_reduce::rows_of(n - threadIdx.y));
        scale.sum.at[0] = own.of_scale;
        bias.sum.at[0] = own.of_bias;
    }
    scale.sum_over_y(per_thread);
    bias.sum_over_y(per_thread);
    if (threadIdx.y > 0 || column >= length) return;
    if (scale_sums) scale.store(scale_sums + blockIdx.y * length + column);
    if (bias_sums) bias.store(bias_sums + blockIdx.y * length + column);
}

// ---- the second stage of sums over rows ---------------------------------------------------------

// total[c] = sums[0][c] + ... + sums[n - 1][c], c < length, rounded; 0 where n is 0. A thread adds
// every blockDim.y-th line of one column, from line threadIdx.y on.
template <class V, class A>
__device__ __forceinline__ void sum_lines(const A* sums, V* total, i64 n, i64 length) {
    __shared__ Vec<A, 1> per_thread[STAGED_THREADS];
    const i64 column = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    column_reduce::Columns<A, /*N=*/1, /*DEPTH=*/8> columns;
    if (column < length)
        columns.add(sums + threadIdx.y * length + column, column_reduce::rows_of(n - threadIdx.y),
                    blockDim.y * length);
    columns.sum_over_y(per_thread);
    if (threadIdx.y == 0 && column < length) columns.store(total + column);
}

}  // namespace cto::layer_norm_gradient
