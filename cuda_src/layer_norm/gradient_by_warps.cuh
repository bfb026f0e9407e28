// SPDX-License-Identifier: MIT
// gradient.cuh for 2-byte types and rows that whole warps share, tuned for few instructions. A warp
// has neighbouring slots of a row, so a thread's slots are a constant distance apart, and offsets
// are immediates of instructions. Scale and bias are in shared memory, converted to float. x^ = (x
// - mean) inv_std, or FROM_Y (y - bias) / scale; h = dY scale; dX = inv_std (h - mean of h - x^
// mean of (h x^)). T and V: types of X and Y. SHIFTED: rows do not begin at multiples of 16 bytes.
#pragma once
#include "layer_norm/gradient.cuh"

namespace cto::layer_norm_gradient::by_warps {

constexpr int W = 8;              // elements of a slot, of 2 bytes each
constexpr u32 APART = WARP * 16;  // bytes from one slot of a thread to its next
using A = float;

// The argument of each_slot's function: the number U, as a constant.
template <int U>
struct Number {
    static constexpr int value = U;
};
// use(Number<U>{}), ..., use(Number<N - 1>{}): a loop whose index is known at compile time.
template <int U, int N, class Use>
__device__ __forceinline__ void each_slot(const Use& use) {
    if constexpr (U < N) {
        use(Number<U>{});
        each_slot<U + 1, N>(use);
    }
}

// Begins to copy 16 bytes from global + FROM to shared + TO, both added by the copy instruction
// itself.
template <int TO, int FROM>
__device__ __forceinline__ void copy_after(u8* shared, const void* global) {
#if defined(__CUDA_CPU__) || __CUDA_ARCH__ < 800
    async_copy::copy<16>(shared + TO, static_cast<const u8*>(global) + FROM);
#else
    asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %3], 16;" ::"r"(
                     static_cast<u32>(__cvta_generic_to_shared(shared))),
                 "l"(global), "n"(TO), "n"(FROM)
                 : "memory");
#endif
}

// Returns `number`, hidden from the compiler: it recomputes what depends on it, instead of keeping
// the results of an earlier computation in registers.
__device__ __forceinline__ u32 anew(u32 number) {
#ifndef __CUDA_CPU__
    asm volatile("" : "+r"(number));
#endif
    return number;
}

// Which rows, and which of their slots of W elements, are a thread's.
template <bool SHIFTED>
struct Walk {
    const Rows& rows;
    u32 group, thread, first;  // the thread's slots of a row are first, first + WARP, ...
    i32 n_slots, end;          // slots of the thread, of the row
    i32 head = 0;              // elements before the first slot of a row
    i64 row, step, pitch;      // its rows are row, row + step, ...; pitch = step rows, in elements
    i32 n_rows;                // of the thread

    static constexpr bool IS_SHIFTED = SHIFTED;

    // Group g of block b has rows (b / period * groups + g) * period + b % period + k * step, k =
    // 0, 1, ... With SHIFTED, where rows are not whole slots, rows `period` apart begin at the same
    // address modulo 16, so `head` is the same for all of them. in_block: number of the thread.
    __device__ __forceinline__ explicit Walk(const Rows& rows, u32 in_block = threadIdx.x)
        : rows(rows), end(rows.slots) {
        group = in_block / rows.threads, thread = in_block - group * rows.threads;
        const u32 period = SHIFTED ? rows.period : 1, round = blockIdx.x / period;
        row = (static_cast<i64>(round) * rows.groups + group) * period + blockIdx.x % period;
        if (SHIFTED) head = static_cast<i32>(-(row * rows.length) & (W - 1));
        if (SHIFTED) end = static_cast<i32>((rows.length - head) / W);
        first = thread / WARP * (WARP * rows.depth) + thread % WARP;
        n_slots = (end - static_cast<i32>(first) + static_cast<i32>(WARP) - 1) / i32(WARP);
        n_slots = n_slots < 0 ? 0 : n_slots < rows.depth ? n_slots : rows.depth;
        step = static_cast<i64>(gridDim.x) * rows.groups, pitch = step * rows.length;
        n_rows = row < rows.count ? static_cast<i32>((rows.count - row + step - 1) / step) : 0;
    }
    __device__ bool has(int u) const { return u < n_slots; }
    // First column of slot u.
    __device__ i64 column(int u) const { return head + static_cast<i64>(first + u * WARP) * W; }
    // Index in the array of the thread's first slot in its first row.
    __device__ i64 element() const { return row * rows.length + column(0); }
    // The column of this thread before or after the slots, or -1.
    __device__ i32 edge() const {
        const i32 in_slots = end * W, n_edges = static_cast<i32>(rows.length) - in_slots;
        const i32 own = static_cast<i32>(thread);
        return !SHIFTED || own >= n_edges ? -1 : own < head ? own : own + in_slots;
    }
};

// Parameters of a thread's columns in shared memory, N numbers each: scale; with FROM_Y also 1 /
// scale (0 where the scale is 0) and bias. read<K> reads number K of the W columns of slot u.
template <class V, bool FROM_Y>
struct Table {
    static constexpr int N = FROM_Y ? 3 : 1;
    u8* own;  // this thread's part

    // Fills the table at `memory` from scale and bias of the slots of `walk`; the groups of a block
    // take slots in turn. A barrier must follow.
    template <bool SHIFTED>
    __device__ __forceinline__ Table(const V* scale, const V* bias, const Walk<SHIFTED>& walk,
                                     u8* memory) {
        const u32 warp = walk.thread / WARP, lane = walk.thread % WARP;
        own = memory + warp * walk.rows.depth * (2 * N * APART) + lane * 16;
        for (i32 u = walk.group; u < walk.n_slots; u += walk.rows.groups) {
            const i64 column = walk.column(u);
#pragma unroll
            for (int i = 0; i < W; ++i)
                put(u, i, scale[column + i], FROM_Y ? bias + column + i : nullptr);
        }
    }
    // to[i] = number K of column i of slot u, i < W.
    template <int K>
    __device__ __forceinline__ void read(int u, A (&to)[W]) const {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const auto four = *reinterpret_cast<const Vec<A, 4>*>(at(u, K, c));
#pragma unroll
            for (int i = 0; i < 4; ++i) to[4 * c + i] = four.at[i];
        }
    }

  private:
    // Address of numbers k of columns 4 c to 4 c + 3 of slot u, 16 bytes. Those of a warp's lanes
    // are neighbours, so that its accesses have no bank conflicts.
    __device__ __forceinline__ u8* at(int u, int k, int c) const {
        return own + ((u * N + k) * 2 + c) * APART;
    }
    // Stores the numbers of column i of slot u: 0, the scale of_scale, and with FROM_Y 1 and 2: 1 /
    // scale and the bias *of_bias.
    __device__ __forceinline__ void put(int u, int i, V of_scale, const V* of_bias) const {
        const A scale = to_acc(of_scale);
        reinterpret_cast<A*>(at(u, 0, i / 4))[i % 4] = scale;
        if constexpr (FROM_Y) {
            const A inverse = scale == 0 ? A(0) : 1 / scale;
            reinterpret_cast<A*>(at(u, 1, i / 4))[i % 4] = inverse;
            reinterpret_cast<A*>(at(u, 2, i / 4))[i % 4] = to_acc(*of_bias);
        }
    }
};

// The thread's edge in a SHIFTED row: an element before or after the slots. Loaded one row ahead.
template <class T, class V, bool FROM_Y>
struct Edge {
    using In = Inputs<T, V, FROM_Y>;

    i32 column;  // or -1
    V dy;
    typename In::X x;

    // dy, x = those of the thread's column in the row that begins at `start`; nothing without a
    // column.
    __device__ __forceinline__ void load(const In& in, i64 start) {
        if (column < 0) return;
        dy = in.dy[start + column];
        x = in.x[start + column];
    }
    // The thread's element with its scale and bias: `load` has read dy and x.
    __device__ __forceinline__ Element<V, A, FROM_Y> at(const In& in, A mean) const {
        return {to_acc(dy), to_acc(x), to_acc(in.scale[column]),
                FROM_Y ? to_acc(in.bias[column]) : A(0), mean};
    }
    // sums[0] += h, sums[1] += h * x^ from Y, else h * (x - mean); nothing without a column. own:
    // statistics of the row.
    __device__ __forceinline__ void add_to(A (&sums)[2], const In& in,
                                           const Statistics<A>& own) const {
        if (column < 0) return;
        const auto of = at(in, own.mean);
        sums[0] += of.h;
        sums[1] = fma(of.h, FROM_Y ? of.x_hat(own.inv_std) : of.distance, sums[1]);
    }
};

// Sums over the `threads` threads of a row, whole warps, which are number `group` of the block's
// groups.
struct SumsOfRow {
    Vec<A, 2> (&per_warp)[2][WARP];  // shared memory
    u32 threads, group;
    u32 half = 0;

    // sums[k] = the sum of sums[k] over the row's `threads` threads, in each of them. A call flips
    // `half`, as warps of the call before may still read the other half of per_warp; so one barrier
    // is enough.
    __device__ __forceinline__ void operator()(A (&sums)[2]) {
#pragma unroll
        for (u32 step = 1; step < WARP; step *= 2)
#pragma unroll
            for (int k = 0; k < 2; ++k) sums[k] += __shfl_xor_sync(ALL_LANES, sums[k], step);
        if (threads == WARP) return;
        const u32 n_warps = threads / WARP, first = group * n_warps;
        half ^= 1;
        if (threadIdx.x % WARP == 0) per_warp[half][threadIdx.x / WARP] = {sums[0], sums[1]};
        group_barrier::sync(group, threads);
        sums[0] = sums[1] = 0;
#pragma unroll 2
        for (u32 i = first; i < first + n_warps; ++i) {
            const auto both = per_warp[half][i];
            sums[0] += both.at[0], sums[1] += both.at[1];
        }
    }
};

// Numbers that all elements of a row share: x^ = x inv_std + shift, and
// dX = h inv_std + (x^ of_product + of_h).
struct Factors {
    A inv_std, shift, of_h, of_product;

    // The factors of dX = inv_std h + of_h + of_product x^, x^ = X inv_std + shift, from the row's
    // statistics `own` and its means `of`.
    __device__ __forceinline__ Factors(const Statistics<A>& own, const Means<A>& of)
        : inv_std(own.inv_std),
          shift(-own.mean * own.inv_std),
          of_h(-of.of_h * own.inv_std),
          of_product(-of.of_product * own.inv_std) {}
};

// The work of a thread on its rows: copies to shared memory, sums, dX, and sums over rows.
template <class T, class V, bool FROM_Y, bool SHIFTED>
struct Gradient {
    using In = Inputs<T, V, FROM_Y>;
    using X = typename In::X;
    static constexpr int D = DEPTH<A, W>;
    static constexpr bool IS_SHIFTED = SHIFTED;

    const In& in;
    const Walk<SHIFTED> walk;
    u8 *dy, *x;  // the thread's first slots in shared memory, in the first stage
    const Table<V, FROM_Y> table;
    i64 element;    // index in the arrays of the thread's first slot in the current row
    u32 stage = 0;  // offset in bytes of the current row's stage
    ColumnSums<A, W, D> of_scale, of_bias;

    // Bytes of a stage: rows.depth slots of dY and as many of X for each thread of the block.
    static __device__ u32 stage_nbytes(const Rows& rows) {
        return 2 * rows.depth * APART * (blockDim.x / WARP);
    }
    // Finds the thread's places in `memory`, and fills the table behind the stages there.
    __device__ __forceinline__ Gradient(const In& in, const Rows& rows, u8* memory)
        : in(in),
          walk(rows),
          dy(memory + threadIdx.x / WARP * (2 * rows.depth * APART) + threadIdx.x % WARP * 16),
          x(dy + rows.depth * APART),
          table(in.scale, in.bias, walk, memory + rows.stages * stage_nbytes(rows)),
          element(walk.element()) {}

    // Begins to copy slot U of a row to the stage at offset `to`. of_dy and of_x point to the
    // thread's first slot in that row.
    template <int U>
    __device__ __forceinline__ void start(const V* of_dy, const X* of_x, u32 to) const {
        copy_after</*TO=*/U * APART, /*FROM=*/U * APART>(dy + to, of_dy);
        copy_after</*TO=*/U * APART, /*FROM=*/U * APART>(x + to, of_x);
    }
    // Begins to copy the first row of each stage.
    __device__ __forceinline__ void start_first() const {
        for (i32 s = 0; s < walk.rows.stages; ++s) {
            const i64 at = element + s * walk.pitch;
            each_slot</*U=*/0, D>([&](auto u) {
                if (s < walk.n_rows && walk.has(u.value))
                    start<u.value>(in.dy + at, in.x + at, s * stage_nbytes(walk.rows));
            });
            async_copy::commit();
        }
    }
    // Means of the current row from its sums: of h, and of h (x - mean), or with FROM_Y of h x^.
    __device__ Means<A> means(const A (&sums)[2], A inv_std) const {
        const A inverse_length = 1 / static_cast<A>(walk.rows.length);
        return means_of<A, FROM_Y>(sums, inv_std, in.is_centred(), inverse_length);
    }
    // Index in the arrays of the current row's first element.
    __device__ i64 start_of_row() const { return element - walk.column(0); }
    // Goes on to the next row.
    __device__ __forceinline__ void leave() {
        async_copy::commit();
        element += walk.pitch;
        if (walk.rows.stages > 1) stage = stage_nbytes(walk.rows) - stage;
    }
    // Waits for the copies of the current row.
    __device__ __forceinline__ void arrive() const {
        if (walk.rows.stages > 1)
            async_copy::wait<1>();
        else
            async_copy::wait<0>();
    }
    // dY, X (or Y) and scale of slot u of the row in stage `stage` of shared memory.
    __device__ __forceinline__ void read(int u, A (&of_dy)[W], A (&of_x)[W], A (&scale)[W]) const {
        vec::widen<V>(dy + stage + u * APART, of_dy);
        vec::widen<X>(x + stage + u * APART, of_x);
        table.template read</*K=*/0>(u, scale);
    }
    // Replaces x[i], elements of slot u of X or Y, by x^: x inv_std + shift (shift: -mean inv_std),
    // or with FROM_Y (y - bias) / scale, 0 where the scale is 0. Numbers 1 and 2 of the table: 1 /
    // scale (0 for 0), bias.
    __device__ __forceinline__ void make_x_hat(int u, A (&x)[W], A inv_std, A shift) const {
        if constexpr (FROM_Y) {
            A inverse[W], of_bias[W];
            table.template read</*K=*/1>(u, inverse);
            table.template read</*K=*/2>(u, of_bias);
#pragma unroll
            for (int i = 0; i < W; ++i) x[i] = (x[i] - of_bias[i]) * inverse[i];
        } else {
#pragma unroll
            for (int i = 0; i < W; ++i) x[i] = fma(x[i], inv_std, shift);
        }
    }
    // For slot u, sums[0] += h; sums[1] += h x^ / inv_std = h (x - mean), or with FROM_Y h x^.
    __device__ __forceinline__ void sum_slot(int u, A mean, A (&sums)[2]) const {
        A of_dy[W], of_x[W], scale[W], per_slot[2] = {};
        read(u, of_dy, of_x, scale);
        if constexpr (FROM_Y) make_x_hat(u, of_x, 0, 0);
#pragma unroll
        for (int i = 0; i < W; ++i) {
            const A h = of_dy[i] * scale[i];
            per_slot[0] += h;
            per_slot[1] = fma(h, FROM_Y ? of_x[i] : of_x[i] - mean, per_slot[1]);
        }
        sums[0] += per_slot[0], sums[1] += per_slot[1];
    }
    // Writes dX of slot U, adds to the sums over rows, and if goes_on begins to copy slot U of a
    // later row to the same place. next_dy, next_x: the thread's first slot in that row; dx: in
    // this one.
    template <int U>
    __device__ __forceinline__ void write_slot(const Factors& of, bool goes_on, const V* next_dy,
                                               const X* next_x, T* dx) {
        constexpr int u = U;
        A of_dy[W], of_x[W], scale[W], values[W];
        read(u, of_dy, of_x, scale);
        if (goes_on) start<U>(next_dy, next_x, stage);
        make_x_hat(u, of_x, of.inv_std, of.shift);
#pragma unroll
        for (int i = 0; i < W; ++i) {
            values[i] = fma(of_dy[i] * scale[i], of.inv_std, fma(of_x[i], of.of_product, of.of_h));
            of_scale.per_slot[u].at[i] = fma(of_dy[i], of_x[i], of_scale.per_slot[u].at[i]);
            of_bias.per_slot[u].at[i] += of_dy[i];
        }
        vec::store_streaming(reinterpret_cast<Vec<T, W>*>(dx + u * (WARP * W)),
                             vec::from_acc<T>(values));
    }
    // Writes dX, and adds to the sums over rows, of `edge`, the row's element outside whole slots,
    // if the thread has one. dx: the row's first element; own, of: statistics and means of the row.
    __device__ __forceinline__ void write_edge(const Edge<T, V, FROM_Y>& edge, T* dx,
                                               const Statistics<A>& own, const Means<A>& of) {
        if (edge.column < 0) return;
        const auto of_edge = edge.at(in, own.mean);
        const A x_hat = of_edge.x_hat(own.inv_std);
        dx[edge.column] = from_acc<T>(of.gradient(own.inv_std, of_edge.h, x_hat));
        of_scale.of_edge[0] += of_edge.dy * x_hat;
        of_bias.of_edge[0] += of_edge.dy;
    }
};

// Computes the thread's part of the current row: sums over its threads (sum_row), then dX and the
// sums over rows; meanwhile begins to copy a later row. edge, own: the row's Edge and Statistics.
// `left` rows of the thread are left, this one included. dx: the whole array.
template <class AGradient, class AnEdge, class Own, class T>
__device__ __forceinline__ void use_row(AGradient& gradient, const AnEdge& edge, const Own& own,
                                        i32 left, SumsOfRow& sum_row, T* dx) {
    constexpr int D = AGradient::D;
    constexpr bool SHIFTED = AGradient::IS_SHIFTED;
    const auto& walk = gradient.walk;
    const auto& in = gradient.in;
    A sums[2] = {};
    each_slot</*U=*/0, D>([&](auto u) {
        if (walk.has(u.value)) gradient.sum_slot(u.value, own.mean, sums);
    });
    if (SHIFTED) edge.add_to(sums, in, own);
    sum_row(sums);
    const auto of = gradient.means(sums, own.inv_std);
    const Factors factors(own, of);
    const i32 stages = walk.rows.stages;
    const i64 later = gradient.element + stages * walk.pitch;
    each_slot</*U=*/0, D>([&](auto u) {
        if (walk.has(u.value))
            gradient.template write_slot<u.value>(factors, left > stages, in.dy + later,
                                                  in.x + later, dx + gradient.element);
    });
    if (SHIFTED) gradient.write_edge(edge, dx + gradient.start_of_row(), own, of);
}

// dx = dX of the block's rows, and scale_sums[blockIdx.x], bias_sums[blockIdx.x], a number for each
// column = sums over them of dY x^, dY. memory: dynamic shared memory, for `stages` rows, then the
// Table.
template <bool SHIFTED, class T, class V, bool FROM_Y>
__device__ __forceinline__ void walk_rows(const Inputs<T, V, FROM_Y>& in, T* dx, A* scale_sums,
                                          A* bias_sums, const Rows& rows, u8* memory) {
    __shared__ Vec<A, 2> per_warp[2][WARP];
    Gradient<T, V, FROM_Y, SHIFTED> gradient(in, rows, memory);
    const auto& walk = gradient.walk;
    gradient.start_first();
    __syncthreads();  // for the table
    SumsOfRow sum_row{per_warp, static_cast<u32>(rows.threads), walk.group};
    Edge<T, V, FROM_Y> next_edge{walk.edge()};
    auto next = Statistics<A>::of(in, walk.row, rows.count);
    if (SHIFTED && walk.n_rows > 0) next_edge.load(in, gradient.start_of_row());
    i64 row = walk.row;
#pragma unroll 1
    for (i32 left = walk.n_rows; left > 0; --left) {
        const auto own = next;
        const auto edge = next_edge;
        row += walk.step;
        next = Statistics<A>::of(in, row, rows.count);
        if (SHIFTED && left > 1) next_edge.load(in, gradient.start_of_row() + walk.pitch);
        gradient.arrive();
        use_row(gradient, edge, own, left, sum_row, dx);
        gradient.leave();
    }
    const Walk<SHIFTED> again(rows, anew(threadIdx.x));
    gradient.of_scale.store(again, scale_sums, memory);
    gradient.of_bias.store(again, bias_sums, memory);
}

// True where GPUs have asynchronous copies.
#if defined(__CUDA_CPU__) || __CUDA_ARCH__ >= 800
constexpr bool GO_BY_WARPS = true;
#else
constexpr bool GO_BY_WARPS = false;
#endif
// walk_rows, compiled only for 2-byte types where GO_BY_WARPS; for others plans choose
// gradient.cuh's. Writes dX of the block's rows, and scale_sums[blockIdx.x][column],
// bias_sums[blockIdx.x][column] = sums over them of dY x^ and dY. memory: dynamic shared memory.
template <bool SHIFTED, class T, class V, bool FROM_Y>
__device__ __forceinline__ void walk(const Inputs<T, V, FROM_Y>& in, T* dx, Acc<T>* scale_sums,
                                     Acc<T>* bias_sums, const Rows& rows, u8* memory) {
    if constexpr (GO_BY_WARPS && sizeof(T) == 2 && sizeof(V) == 2)
        walk_rows<SHIFTED>(in, dx, scale_sums, bias_sums, rows, memory);
}

}  // namespace cto::layer_norm_gradient::by_warps
