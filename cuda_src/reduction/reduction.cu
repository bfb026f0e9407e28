// SPDX-License-Identifier: MIT
// Sums, norms and finiteness checks.  CPU provider: cupy_training_ops/families/reduction/reference.py
//
// Where blocks share a result, the block that finishes last adds up their partial sums, in an order
// that does not depend on which block it is.
#include "algorithm/column_reduce.cuh"
#include "algorithm/l2_norm.cuh"
#include "algorithm/map.cuh"
#include "algorithm/multi_tensor.cuh"
#include "algorithm/reduce.cuh"
#include "core/slots.cuh"
#include "reduction/facts.cuh"

// T, Y: elements of inputs and of outputs.
#ifndef CTO_Y
#define CTO_Y float
#endif

namespace cto {

using namespace facts::reduction;
using facts::Partials;
using facts::Pointers;
using multi_tensor::TensorSizes;
using vec::Vec;
using zeroed::Zeroed;

using slots::T;
using Y = CTO_Y;

// ---- ReduceSumTraining: the middle dimension of an array is summed ------------------------------

// y[slab][column] = sum over rows of x[slab][row][column]; slabs: n_slabs, n_rows and n_columns,
// and n_spans spans of `span` rows. Thread (x, y, z) of a block has N columns, every blockDim.y-th
// row of a span, and a slab; block number = (slab * n_spans + span) * n_tiles + tile of columns.
// With several spans blockDim.z is 1, `partials`, [slab][span][column], takes the sums of spans,
// and the last block of each slab and tile, by its ticket, adds these. per_thread and last are in
// shared memory.
template <int N>
__device__ __forceinline__ void sum_columns(const T* x, Y* y, Acc<T>* partials,
                                            Zeroed<u32>* tickets, const Slabs& slabs,
                                            Vec<Acc<T>, N> (&per_thread)[THREADS], bool& last) {
    using column_reduce::rows_of;
    constexpr int DEPTH = N == 1 ? 2 * UNROLL : UNROLL;
    const u32 n_tiles = slabs.n_tiles, n_spans = slabs.n_spans;
    const u32 tile = blockIdx.x % n_tiles, span = blockIdx.x / n_tiles % n_spans;
    const i64 slab = static_cast<i64>(blockIdx.x / n_tiles / n_spans) * blockDim.z + threadIdx.z;
    const i64 column = (static_cast<i64>(tile) * blockDim.x + threadIdx.x) * N;
    const bool inside = slab < slabs.n_slabs && column < slabs.n_columns;
    const bool writes = inside && threadIdx.y == 0;
    const i64 row = span * slabs.span + threadIdx.y;  // the thread's first
    const i64 rest = slabs.n_rows - row, own_span = slabs.span - threadIdx.y;
    column_reduce::Columns<Acc<T>, N, DEPTH> columns;
    if (inside)
        columns.add(x + (slab * slabs.n_rows + row) * slabs.n_columns + column,
                    rows_of(rest < own_span ? rest : own_span), blockDim.y * slabs.n_columns);
    columns.sum_over_y(per_thread);
    if (n_spans > 1) {
        Acc<T>* const own = partials + slab * n_spans * slabs.n_columns + column;
        if (writes) columns.store(own + span * slabs.n_columns);
        if (!reduce::arrives_last(tickets + slab * n_tiles + tile, n_spans, last)) return;
        columns.sum = {};
        if (inside)
            columns.add(own + threadIdx.y * slabs.n_columns,
                        rows_of(static_cast<i64>(n_spans) - threadIdx.y),
                        blockDim.y * slabs.n_columns);
        columns.sum_over_y(per_thread);
    }
    if (writes) columns.store(y + slab * slabs.n_columns + column);
}

// y[row] = sum of x[row], row < n_rows; a row is `lanes` vectors, a power of two. A warp loads
// neighbouring vectors, a lane one vector of each of UNROLL rows. Shuffles then give all lanes the
// sums of their rows, and different lanes write different rows.
__device__ __forceinline__ void sum_short_rows(const T* x, Y* y, i64 n_rows, u32 lanes) {
    constexpr int N = vec::WIDTH<T>;
    const u32 shift = 31 - __clz(lanes), lane = threadIdx.x & (lanes - 1);
    const i64 first = static_cast<i64>(blockIdx.x) * (UNROLL * THREADS) + threadIdx.x;
    const i64 row = first >> shift, rest = n_rows - row;
    const u32 step = THREADS >> shift;  // rows that a block loads at a time
    vec::Elements<T, N> loaded[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
        // past the last row: row 0, so that no load is conditional
        loaded[u].load(x + (u * step < rest ? first + u * THREADS : lane) * N);
    vec::all_are_asked_for();
    Acc<T> sums[UNROLL] = {};
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
#pragma unroll
        for (int i = 0; i < N; ++i) sums[u] += loaded[u].at(i);
#pragma unroll 1
    for (u32 half = lanes / 2; half > 0; half /= 2) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) sums[u] += __shfl_xor_sync(ALL_LANES, sums[u], half);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
        if (lane == (u & (lanes - 1)) && u * step < rest) y[row + u * step] = from_acc<Y>(sums[u]);
}

// For reduce_sum_training__copy: vectors as they are.
struct Copy {
    template <class V>
    __device__ __forceinline__ V operator()(const V& x, int) const {
        return x;
    }
};

// ---- ReduceAllL2 --------------------------------------------------------------------------------

// The wider of the two accumulators: double where either type is.
using Wider = decltype(Acc<T>{} + Acc<Y>{});

// ---- IsAllFinite, All: tests by integer arithmetic, on all elements of a word at once -----------

// Masks of a word of elements E: their top bits (signs), exponents, fractions.
template <class E>
struct Format {
    using Word = u32;
    static constexpr u32 top = 0x80000000u, exponent = 0x7F800000u, fraction = 0x007FFFFFu;
};
template <>
struct Format<double> {
    using Word = u64;
    static constexpr u64 top = 1ull << 63, exponent = 0x7FFull << 52, fraction = (1ull << 52) - 1;
};
template <>
struct Format<__half> {
    using Word = u32;
    static constexpr u32 top = 0x80008000u, exponent = 0x7C007C00u, fraction = 0x03FF03FFu;
};
template <>
struct Format<__nv_bfloat16> {
    using Word = u32;
    static constexpr u32 top = 0x80008000u, exponent = 0x7F807F80u, fraction = 0x007F007Fu;
};
using Word = Format<T>::Word;

// The top bit of each element is set if it is NaN: adding a fraction of all ones carries into the
// top bit only if the exponent is all ones and the fraction is not 0. Other bits are arbitrary.
__device__ __forceinline__ Word not_a_number(Word x) {
    return (x & ~Format<T>::top) + Format<T>::fraction;
}
// The top bit of each element is set if it is NaN or infinite: adding 1 to the exponent carries
// into it only if the exponent is all ones.
__device__ __forceinline__ Word not_finite(Word x) {
    constexpr Word lowest = Format<T>::exponent & ~(Format<T>::exponent << 1);
    return (x & Format<T>::exponent) + lowest;
}

// Tests of AnyOf: the top bit of each element of the result is set if the element is so.
struct NotFinite {
    static __device__ __forceinline__ Word test(Word x) { return not_finite(x); }
};
struct NotANumber {
    static __device__ __forceinline__ Word test(Word x) { return not_a_number(x); }
};
struct Infinite {
    static __device__ __forceinline__ Word test(Word x) { return not_finite(x) & ~not_a_number(x); }
};

// Visitor: any() is true if Test passes for one of the elements that it saw.
template <class Test>
struct AnyOf {
    Word passed = 0;

    // Tests the elements of a vector, several in a word.
    __device__ __forceinline__ void operator()(const Vec<T, vec::WIDTH<T>>& x) {
        const auto& words = reinterpret_cast<const Vec<Word, vec::WIDTH<Word>>&>(x);
#pragma unroll
        for (int i = 0; i < vec::WIDTH<Word>; ++i) passed |= Test::test(words.at[i]);
    }
    // Tests one element.
    __device__ __forceinline__ void operator()(const Vec<T, 1>& x) {
        Vec<T, vec::WIDTH<T>> alone{};
        alone.at[0] = x.at[0];
        (*this)(alone);
    }
    __device__ bool any() const { return passed & Format<T>::top; }
};

// Visitor of bools; any(): one of them is false.
struct AnyFalse {
    u32 zeros = 0;  // four bytes, each with its top bit set if such a byte was 0

    // Sets top bits of `zeros` if a byte of x is 0: subtracting 1 borrows from the top bit of a
    // byte that is 0, and the lowest such byte is always noticed.
    __device__ __forceinline__ void test(u32 x) { zeros |= (x - 0x01010101u) & ~x & 0x80808080u; }
    __device__ __forceinline__ void operator()(const Vec<u32, 4>& x) {
#pragma unroll
        for (int i = 0; i < 4; ++i) test(x.at[i]);
    }
    __device__ __forceinline__ void operator()(const Vec<u8, 1>& x) { test(0x01010100u | x.at[0]); }
    __device__ bool any() const { return zeros; }
};

// Counters that all blocks share: `ticket` counts the blocks that have finished; `any` is 1 once
// one thread of a block has passed `true` to `report`.
struct Poll {
    Zeroed<u32>*ticket, *any;
};

// y[0] = false if `passed` is true in any thread of any launch of this call, else true; written by
// the last block of the launch with last_launch. poll: the call's counters; `last` is in shared
// memory.
__device__ __forceinline__ void report(bool passed, const Poll& poll, bool last_launch, bool* y,
                                       bool& last) {
    const bool any = __syncthreads_or(passed);
    if (any && threadIdx.x == 0) atomicOr(&poll.any->value, 1u);
    if (last_launch && reduce::arrives_last(poll.ticket, gridDim.x, last) && threadIdx.x == 0)
        y[0] = atomicExch(&poll.any->value, 0u) == 0;
}

// y[0] = no element of the arrays, of sizes.size[t] elements each, passes Test, over all launches
// of a call, of which one has last_launch. poll: the call's counters.
template <class Test>
__device__ __forceinline__ void none_of(const Pointers<CAPACITY>& arrays,
                                        const TensorSizes<CAPACITY>& sizes, const Poll& poll,
                                        bool last_launch, bool* y) {
    __shared__ bool last;
    AnyOf<Test> tested;
    multi_tensor::visit_tensors<T, CHUNK_NBYTES, THREADS, UNROLL>(arrays, sizes, tested);
    report(tested.any(), poll, last_launch, y, last);
}

}  // namespace cto

using namespace cto;

// y[row] = sum of x[row], of n_rows rows of `length` elements: `lanes` neighbouring threads, a
// power of two, add up one.
extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_sum_training__rows(const T* x, Y* y, i64 n_rows, i64 length, u32 lanes) {
    const u32 lane = threadIdx.x & (lanes - 1);
    const i64 row = static_cast<i64>(blockIdx.x) * (THREADS / lanes) + threadIdx.x / lanes;
    const reduce::Range<T> range(x + row * length, row < n_rows ? length : 0);
    reduce::Sum<T> visit;
    reduce::visit_vecs<UNROLL>(range, 0, range.n_vecs, lane, lanes, visit);
    reduce::visit_edges(range, lane, lanes, visit);
    const Acc<T> sum = reduce::sum_lanes(visit.sum, lanes);
    if (lane == 0 && row < n_rows) y[row] = from_acc<Y>(sum);
}

// y[row] = sum of x[row] for n_rows rows of `lanes` vectors of 16 bytes, a power of two; x is
// aligned. `lanes` neighbouring threads add up a row, one vector each.
extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_sum_training__short_rows(const T* x, Y* y, i64 n_rows, u32 lanes) {
    sum_short_rows(x, y, n_rows, lanes);
}

// y[row] = sum of x[row], of `length` elements, for long rows: n_spans blocks share a row, `span`
// vectors each. The last of them, by tickets[row], adds up their partial sums, partials[row *
// n_spans + number of span].
extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_sum_training__long_rows(const T* x, Y* y, Acc<T>* partials, Zeroed<u32>* tickets,
                                   i64 length, i64 span, u32 n_spans) {
    __shared__ bool last;
    __shared__ reduce::BlockScratch<Acc<T>, THREADS> scratch;
    const i64 row = blockIdx.x / n_spans;
    const reduce::Range<T> range(x + row * length, length);
    const i64 first = blockIdx.x % n_spans * span;
    reduce::Sum<T> visit;
    reduce::visit_vecs<UNROLL>(range, first, span, threadIdx.x, THREADS, visit);
    if (first == 0) reduce::visit_edges(range, threadIdx.x, THREADS, visit);
    Acc<T> sum = reduce::sum_block(visit.sum, scratch);
    if (n_spans > 1) {
        if (threadIdx.x == 0) partials[blockIdx.x] = sum;
        if (!reduce::arrives_last</*FIRST_WROTE=*/true>(tickets + row, n_spans, last)) return;
        sum = reduce::sum_partials(partials + row * n_spans, n_spans, scratch);
    }
    if (threadIdx.x == 0) y[row] = from_acc<Y>(sum);
}

// y[slab][column] = sum over rows of x[slab][row][column], read in vectors; slabs: n_slabs, n_rows
// and n_columns of x, and how its rows are cut into n_spans spans. Where these are several,
// partials[slab][span][column] takes their sums, and the block that finishes last, by the ticket of
// slab and tile of columns, adds these up.
extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_sum_training__columns(const T* x, Y* y, Acc<T>* partials, Zeroed<u32>* tickets,
                                 const __grid_constant__ Slabs slabs) {
    __shared__ Vec<Acc<T>, vec::WIDTH<T>> per_thread[THREADS];
    __shared__ bool last;
    sum_columns(x, y, partials, tickets, slabs, per_thread, last);
}

// y[slab][column] = sum over rows of x[slab][row][column], where x is not aligned or its rows are
// not whole vectors: a thread has one column. slabs: n_slabs, n_rows and n_columns of x, and how
// its rows are cut into n_spans spans. Where these are several, partials[slab][span][column] takes
// their sums, and the block that finishes last, by the ticket of slab and tile of columns, adds
// these up.
extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_sum_training__single_columns(const T* x, Y* y, Acc<T>* partials, Zeroed<u32>* tickets,
                                        const __grid_constant__ Slabs slabs) {
    __shared__ Vec<Acc<T>, 1> per_thread[THREADS];
    __shared__ bool last;
    sum_columns(x, y, partials, tickets, slabs, per_thread, last);
}

// y[i] = x[i], i < n. aligned: x and y begin at multiples of 16 bytes.
extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_sum_training__copy(const T* x, T* y, i64 n, bool aligned) {
    constexpr int N = vec::WIDTH<T>;
    map::map_vecs<map::Tiling</*IN=*/N, /*OUT=*/N, /*SHARE=*/1, /*NBYTES=*/16, THREADS>>(
        aligned, x, y, n, n, Copy{});
}

// y[0] = sqrt(sum of squares of all elements of all arrays, of sizes.size[t] elements each). Each
// block writes its sums to `partials`, those of this launch from place.first on; the block of the
// last launch that finishes last, by `ticket`, adds up those of all place.n_in_all blocks (0 in
// other launches).
extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_all_l2(const __grid_constant__ Pointers<CAPACITY> arrays,
                  const __grid_constant__ TensorSizes<CAPACITY> sizes, Wider* partials,
                  Zeroed<u32>* ticket, const __grid_constant__ Partials place, Y* y) {
    __shared__ bool last;
    __shared__ reduce::BlockScratch<Wider, THREADS> scratch;
    l2_norm::SumsOfSquares<T, Wider> squares;
    multi_tensor::visit_tensors<T, CHUNK_NBYTES, THREADS, UNROLL, /*BATCHES=*/true>(arrays, sizes,
                                                                                    squares);
    if (!l2_norm::sums_all(squares, partials, ticket, place, scratch, last)) return;
    if (threadIdx.x == 0) y[0] = from_acc<Y>(squares.norm());
}

// y[0] = no element of the arrays is infinite or NaN, over all launches of a call. Blocks set *any
// where they see one; the last block of the launch with last_launch, by `ticket`, writes y and
// clears both counters. sizes.size[t]: elements of arrays.at[t].
extern "C" __global__ void __launch_bounds__(THREADS)
    is_all_finite(const __grid_constant__ Pointers<CAPACITY> arrays,
                  const __grid_constant__ TensorSizes<CAPACITY> sizes, Zeroed<u32>* ticket,
                  Zeroed<u32>* any, bool* y, bool last_launch) {
    none_of<NotFinite>(arrays, sizes, {ticket, any}, last_launch, y);
}

// y[0] = no element of the arrays is infinite, over all launches of a call. Blocks set *any where
// they see one; the last block of the launch with last_launch, by `ticket`, writes y and clears
// both counters. sizes.size[t]: elements of arrays.at[t].
extern "C" __global__ void __launch_bounds__(THREADS)
    is_all_finite__isinf_only(const __grid_constant__ Pointers<CAPACITY> arrays,
                              const __grid_constant__ TensorSizes<CAPACITY> sizes,
                              Zeroed<u32>* ticket, Zeroed<u32>* any, bool* y, bool last_launch) {
    none_of<Infinite>(arrays, sizes, {ticket, any}, last_launch, y);
}

// y[0] = no element of the arrays is NaN, over all launches of a call. Blocks set *any where they
// see one; the last block of the launch with last_launch, by `ticket`, writes y and clears both
// counters. sizes.size[t]: elements of arrays.at[t].
extern "C" __global__ void __launch_bounds__(THREADS)
    is_all_finite__isnan_only(const __grid_constant__ Pointers<CAPACITY> arrays,
                              const __grid_constant__ TensorSizes<CAPACITY> sizes,
                              Zeroed<u32>* ticket, Zeroed<u32>* any, bool* y, bool last_launch) {
    none_of<NotANumber>(arrays, sizes, {ticket, any}, last_launch, y);
}

// y[0] = all of x[0 .. n) are true. Blocks take spans of x in turn, and set *any where an element
// is false; the one that finishes last, by `ticket`, writes y and clears both counters.
extern "C" __global__ void __launch_bounds__(THREADS)
    all(const bool* x, bool* y, Zeroed<u32>* ticket, Zeroed<u32>* any, i64 n) {
    __shared__ bool last;
    constexpr i64 SPAN = UNROLL * THREADS;  // vectors
    const reduce::Range<u8, Vec<u32, 4>> range(reinterpret_cast<const u8*>(x), n);
    AnyFalse tested;
    for (i64 first = blockIdx.x * SPAN; first < range.n_vecs; first += gridDim.x * SPAN)
        reduce::visit_vecs<UNROLL>(range, first, SPAN, threadIdx.x, THREADS, tested);
    if (blockIdx.x == 0) reduce::visit_edges(range, threadIdx.x, THREADS, tested);
    report(tested.any(), {ticket, any}, /*last_launch=*/true, y, last);
}
