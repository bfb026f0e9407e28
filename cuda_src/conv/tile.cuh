// SPDX-License-Identifier: MIT
// A block's tile of a matrix product: D (ROWS x COLUMNS) += A (ROWS x DEPTH) B (DEPTH x COLUMNS). A
// and B are in shared memory, a part of DEPTH of the sum at a time; D is in registers of all
// threads.
//
//     A   element (row, k) at k * A_PITCH + row; or, BY_ROWS, at row * A_PITCH + k
//     B   element (k, column) at k * B_PITCH + column; or, BY_COLUMNS, at column * B_PITCH + k
//
// BY_ROWS and BY_COLUMNS are for tensor cores only: types of two bytes, and TF32 whose lines are
// COPIED without rounding.
#pragma once
#include "algorithm/tensor_core.cuh"
#include "conv/facts.cuh"
#include "core/vec.cuh"

namespace cto::conv::tile {

using namespace facts::conv;

// Returns `number`, hidden from the compiler, which would compute it again in each round of a loop.
__device__ __forceinline__ int kept(int number) {
#ifndef __CUDA_CPU__
    asm volatile("" : "+r"(number));
#endif
    return number;
}

// Constants of a tile, and the layout of a part of A and B in shared memory. TF32: floats are
// multiplied in TF32 by tensor cores. COPIED: elements are copied to shared memory as they are, so
// that tensor cores cut floats to TF32 (IS_CUT), instead of being rounded on the way. B_BY_COLUMNS,
// A_BY_ROWS: B is BY_COLUMNS, A BY_ROWS in shared memory, if tensor cores load them as they are.
// N_ROWS: ROWS.
template <class Element, int N_ROWS, bool TF32, bool B_BY_COLUMNS, bool A_BY_ROWS = false,
          bool COPIED = false>
struct Tile {
    using E = Element;
    using Sum = Acc<E>;
    static constexpr int ROWS = N_ROWS;
    static constexpr bool IS_TF32 = TF32;
    static constexpr bool ON_TENSOR_CORES = sizeof(E) == 2 || TF32;
    static constexpr bool IS_CUT = TF32 && COPIED;
    static constexpr bool BY_COLUMNS = B_BY_COLUMNS && (sizeof(E) == 2 || IS_CUT);
    static constexpr bool BY_ROWS = A_BY_ROWS && (sizeof(E) == 2 || IS_CUT);
    static constexpr int DEPTH = PART_NBYTES / sizeof(E);
    static constexpr int HALF = DEPTH / 2;
    static constexpr int GROUP = 16 / sizeof(E);  // elements of a vector
    // Padding of rows of memory, against bank conflicts.
    static constexpr int PAD = TF32 && !BY_COLUMNS ? 8 : GROUP;
    static constexpr int A_PITCH = (BY_ROWS ? DEPTH : ROWS) + PAD;
    static constexpr int B_PITCH = (BY_COLUMNS ? DEPTH : COLUMNS) + PAD;
    static constexpr int A_SIZE = (BY_ROWS ? ROWS : DEPTH) * A_PITCH;
    static constexpr int B_SIZE = (BY_COLUMNS ? COLUMNS : DEPTH) * B_PITCH;
    static constexpr int STAGE = A_SIZE + B_SIZE;  // elements of one part

    // Offsets of element (row, k) of A and element (k, column) of B.
    static __device__ __forceinline__ int a_at(int row, int k) {
        return BY_ROWS ? row * A_PITCH + k : k * A_PITCH + row;
    }
    static __device__ __forceinline__ int b_at(int k, int column) {
        return BY_COLUMNS ? column * B_PITCH + k : k * B_PITCH + column;
    }
    // An element as the product takes it.
    static __device__ __forceinline__ E rounded(E x) {
        if constexpr (TF32)
            return tensor_core::to_tf32(x);
        else
            return x;
    }
};

// words *= 1.00035, as floats, if they are multiplied in TF32. Tensor cores truncate floats to
// TF32's 10 bits, which makes them 3.4e-4 of themselves too small on average; after this product it
// is 4e-5, and floats of 10 bits do not change. For arrays that are read without a staging launch,
// which would round them.
template <class Tile, int N>
__device__ __forceinline__ void before_cut(u32 (&words)[N]) {
    if constexpr (Tile::IS_TF32)
#pragma unroll
        for (int i = 0; i < N; ++i)
            words[i] = __float_as_uint(__uint_as_float(words[i]) * 1.00035f);
}

// D in fragments of tensor cores: a warp has DOWN x ACROSS of them, of 16 x 8; sums[i][j] is a
// lane's part of one (tensor_core.cuh). Warps are WARPS_DOWN x WARPS_ACROSS.
template <class Tile>
struct TensorProduct {
    using E = typename Tile::E;
    static constexpr int K = tensor_core::K<E>;
    static constexpr int WARPS_DOWN = Tile::ROWS >= 64 ? 2 : 1;
    static constexpr int WARPS_ACROSS = THREADS / WARP / WARPS_DOWN;
    static constexpr int DOWN = Tile::ROWS / WARPS_DOWN / 16;  // fragments of a warp: DOWN x ACROSS
    static constexpr int ACROSS = COLUMNS / WARPS_ACROSS / 8;
    static_assert(Tile::HALF == K && ACROSS % 2 == 0);

    float sums[DOWN][ACROSS][4] = {};
    int first_row, first_column;  // of the warp
    int place_in_a, place_in_b;   // of the lane in a part

    // The warp's place in D, and the lane's in A and B, from which it loads fragments.
    __device__ __forceinline__ TensorProduct() {
        const int warp = threadIdx.x / WARP;
        first_row = warp / WARPS_ACROSS * (DOWN * 16);
        first_column = warp % WARPS_ACROSS * (ACROSS * 8);
        place_in_a = kept(Tile::a_at(first_row, 0) +
                          tensor_core::place_in_a<E, Tile::BY_ROWS>(Tile::A_PITCH));
        place_in_b = kept(Tile::A_SIZE + Tile::b_at(0, first_column) +
                          tensor_core::place_in_b<E, Tile::BY_COLUMNS>(Tile::B_PITCH));
    }
    // D += the product over half 0 or 1 (K of the sum) of a part in shared memory, A and then B.
    // Where tensor cores cut floats off (IS_CUT), A and B are enlarged first, which makes up for it.
    __device__ __forceinline__ void add(const E* part, int half) {
        const E* const a_of = part + place_in_a + Tile::a_at(0, half * K);
        const E* const b_of = part + place_in_b + Tile::b_at(half * K, 0);
        tensor_core::A a[DOWN];
        tensor_core::B b[ACROSS];
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
            tensor_core::load_a<Tile::BY_ROWS>(a_of + Tile::a_at(i * 16, 0), Tile::A_PITCH, a[i]);
#pragma unroll
        for (int j = 0; j < ACROSS; j += 2)
            tensor_core::load_b<Tile::BY_COLUMNS>(b_of + Tile::b_at(0, j * 8), Tile::B_PITCH, b[j],
                                                  b[j + 1]);
        if constexpr (Tile::IS_CUT) {
#pragma unroll
            for (int i = 0; i < DOWN; ++i) before_cut<Tile>(a[i]);
#pragma unroll
            for (int j = 0; j < ACROSS; ++j) before_cut<Tile>(b[j]);
        }
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
#pragma unroll
            for (int j = 0; j < ACROSS; ++j) tensor_core::multiply<E>(sums[i][j], a[i], b[j]);
    }
    // D is cut into DOWN slabs of SLAB rows: slab i has fragments i of all warps.
    static constexpr int SLAB = WARPS_DOWN * 16;
    // Calls f(row of the slab, column, pair) for each pair of the thread's sums in slab `slab`,
    // those of column and column + 1.
    template <class F>
    __device__ __forceinline__ void each_pair_of(int slab, const F& f) const {
        const int lane = threadIdx.x % WARP, row = first_row / DOWN + lane / 4;
#pragma unroll
        for (int down = 0; down < 2; ++down)
#pragma unroll
            for (int j = 0; j < ACROSS; ++j)
                f(row + down * 8, first_column + j * 8 + lane % 4 * 2, sums[slab][j] + 2 * down);
    }
    // The row of D that is row `in_slab` of a slab.
    static __device__ __forceinline__ int row_of(int slab, int in_slab) {
        return in_slab / 16 * (DOWN * 16) + slab * 16 + in_slab % 16;
    }
};

// Sums of A's rows, for the gradient of a bias, as a product with ones; a warp has 16 rows. works:
// they are wanted, and the warp has rows.
template <class Tile>
struct ProductRowSums {
    using E = typename Tile::E;
    static constexpr int K = tensor_core::K<E>;
    static_assert(THREADS / WARP * 16 >= Tile::ROWS);

    float sums[4] = {};
    bool works;

    // wanted: the sums are to be written.
    __device__ __forceinline__ explicit ProductRowSums(bool wanted) {
        works = wanted && first_row() < Tile::ROWS;
    }
    static __device__ __forceinline__ int first_row() { return threadIdx.x / WARP * 16; }
    // Adds the sums over half 0 or 1 of a part.
    __device__ __forceinline__ void add(const E* part, int half) {
        if (!works) return;
        const u32 ones = bits_of(from_acc<E>(1.0f)) * 0x10001u;  // two in a word
        const tensor_core::B b = {ones, ones};
        tensor_core::A a;
        const int place = tensor_core::place_in_a<E, Tile::BY_ROWS>(Tile::A_PITCH);
        tensor_core::load_a<Tile::BY_ROWS>(part + Tile::a_at(first_row(), half * K) + place,
                                           Tile::A_PITCH, a);
        tensor_core::multiply<E>(sums, a, b);
    }
    // to[row] = sum of the row, row < count; the first of the four lanes that have it writes it.
    __device__ __forceinline__ void write(float* to, int count) const {
        const int lane = threadIdx.x % WARP;
        if (!works || lane % 4 != 0) return;
#pragma unroll
        for (int down = 0; down < 2; ++down) {
            const int row = first_row() + down * 8 + lane / 4;
            if (row < count) to[row] = sums[2 * down];
        }
    }
};

// ProductRowSums for TF32, in float instead: SHARERS threads add a row, COUNT elements each of a
// half.
template <class Tile>
struct LineRowSums {
    static constexpr int SHARERS = THREADS / Tile::ROWS, COUNT = Tile::HALF / SHARERS;
    static_assert(SHARERS == 4 || SHARERS == 2);

    float sum = 0;
    bool works;

    // wanted: the sums are to be written.
    __device__ __forceinline__ explicit LineRowSums(bool wanted) : works(wanted) {}
    // Adds the sums over half 0 or 1 of a part.
    __device__ __forceinline__ void add(const float* part, int half) {
        if (!works) return;
        const int k = half * Tile::HALF + threadIdx.x % SHARERS * COUNT;
        const float* const from = part + Tile::a_at(threadIdx.x / SHARERS, k);
        float more = from[0];
#pragma unroll
        for (int i = 1; i < COUNT; ++i) more += from[i];
        sum += more;
    }
    // to[row] = sum of the row, row < count, by the first of the row's threads.
    __device__ __forceinline__ void write(float* to, int count) const {
        if (!works) return;  // all threads or none
        float total = sum + __shfl_xor_sync(ALL_LANES, sum, 1);
        if constexpr (SHARERS == 4) total += __shfl_xor_sync(ALL_LANES, total, 2);
        const int row = threadIdx.x / SHARERS;
        if (threadIdx.x % SHARERS == 0 && row < count) to[row] = total;
    }
};

template <class Tile>
using RowSums = Conditional<Tile::IS_CUT, LineRowSums<Tile>, ProductRowSums<Tile>>;

// D without tensor cores: a thread has DOWN = ROWS / 16 neighbouring rows and ACROSS = 8 columns,
// which it loads by vectors of W.
template <class Tile>
struct PlainProduct {
    using E = typename Tile::E;
    using Sum = typename Tile::Sum;
    static constexpr int DOWN = Tile::ROWS / 16, ACROSS = COLUMNS / 16, W = Tile::GROUP;
    static_assert(!Tile::BY_ROWS && !Tile::BY_COLUMNS && ARE_SAME<E, Sum>);

    Sum sums[DOWN][ACROSS] = {};
    int first_row, first_column;

    // Threads are 16 x 16 in D.
    __device__ __forceinline__ PlainProduct() {
        first_row = threadIdx.x / 16 * DOWN;
        first_column = threadIdx.x % 16 * W;
    }
    // D += the product over half 0 or 1 of a part in shared memory.
    __device__ __forceinline__ void add(const E* part, int half) {
        constexpr int AT_ONCE = DOWN < W ? DOWN : W;
        using Rows = vec::Vec<E, AT_ONCE>;
        using Columns = vec::Vec<E, W>;
#pragma unroll 1
        for (int k = half * Tile::HALF; k < (half + 1) * Tile::HALF; ++k) {
            Rows a[DOWN / AT_ONCE];
            Columns b[ACROSS / W];
            const E* const a_of = part + k * Tile::A_PITCH + first_row;
            const E* const b_of = part + Tile::A_SIZE + k * Tile::B_PITCH + first_column;
#pragma unroll
            for (int i = 0; i < DOWN / AT_ONCE; ++i)
                a[i] = *reinterpret_cast<const Rows*>(a_of + i * AT_ONCE);
#pragma unroll
            for (int j = 0; j < ACROSS / W; ++j)
                b[j] = *reinterpret_cast<const Columns*>(b_of + j * (16 * W));
#pragma unroll
            for (int i = 0; i < DOWN; ++i)
#pragma unroll
                for (int j = 0; j < ACROSS; ++j)
                    sums[i][j] += a[i / AT_ONCE].at[i % AT_ONCE] * b[j / W].at[j % W];
        }
    }
    // D is cut into DOWN slabs of 16 rows; a thread has one row of each.
    static constexpr int SLAB = 16;
    // Calls f(row of the slab, column, pair) for each pair of the thread's sums in slab `slab`,
    // those of column and column + 1. A thread has W neighbouring columns, the next 15 threads the
    // following ones, and so on: sums[slab][j] is of column
    //
    //     first_column + j / W * 16 * W + j % W
    template <class F>
    __device__ __forceinline__ void each_pair_of(int slab, const F& f) const {
#pragma unroll
        for (int j = 0; j < ACROSS; j += 2)
            f(threadIdx.x / 16, first_column + j / W * (16 * W) + j % W, sums[slab] + j);
    }
    // The row of D that is row `in_slab` of a slab.
    static __device__ __forceinline__ int row_of(int slab, int in_slab) {
        return in_slab * DOWN + slab;
    }
};

template <class Tile>
using Product = Conditional<Tile::ON_TENSOR_CORES, TensorProduct<Tile>, PlainProduct<Tile>>;

// ---- elements of channels -----------------------------------------------------------------------

// An element of each of GROUP neighbouring channels, at one position.
template <class E>
using Group = vec::Vec<E, vec::WIDTH<E>>;

__device__ const uint4 ZEROS = {};

// The elements of all channels at one position, `step` elements apart. Offset is u32 if an image
// has fewer than 2^31 elements. If the position does not exist, it points to ZEROS with a step of
// 0: fewer instructions than loads under a condition.
template <class E, class Offset>
struct Source {
    const u8* from;
    Offset step;

    // image + offset: channel 0 at the position; plane: elements from a channel to the next.
    // `image` may be null if the position does not exist. In one condition in place of two, kernels
    // have up to a tenth more instructions (CUDA 13, 10.0).
    __device__ __forceinline__ Source(const E* image, i64 offset, Offset plane, bool exists) {
        const E* const first = exists ? image + offset : nullptr;
        from = reinterpret_cast<const u8*>(exists ? static_cast<const void*>(first) : &ZEROS);
        step = exists ? plane : 0;
    }
    // Channel j; for a constant j its address takes one instruction.
    __device__ __forceinline__ E at(int j) const {
        return *reinterpret_cast<const E*>(from + static_cast<u64>(step) * (j * sizeof(E)));
    }
    // to.at[j] = channel `channel` + j if j < count, else 0.
    __device__ __forceinline__ void gather(int channel, int count, Group<E>& to) const {
        constexpr int N = vec::WIDTH<E>;
        if (count >= N) {
#pragma unroll
            for (int j = 0; j < N; ++j) to.at[j] = at(channel + j);
        } else {
#pragma unroll
            for (int j = 0; j < N; ++j) to.at[j] = j < count ? at(channel + j) : from_acc<E>(0.0f);
        }
    }
};

// to[0 .. GROUP) = from, rounded as the product takes it, by one vector store.
template <class Tile>
__device__ __forceinline__ void store_group(typename Tile::E* to,
                                            const Group<typename Tile::E>& from) {
    Group<typename Tile::E> group;
#pragma unroll
    for (int j = 0; j < Tile::GROUP; ++j) group.at[j] = Tile::rounded(from.at[j]);
    *reinterpret_cast<Group<typename Tile::E>*>(to) = group;
}

}  // namespace cto::conv::tile
