// SPDX-License-Identifier: MIT
// Tiles whose operands are copied by vectors of 16 bytes from arrays (n, position, channel): D
// (ROWS x COLUMNS) += A B, where a warp computes PANEL rows of D. A stage is a buffer of shared
// memory for a part of the sum: lines of A, then lines of B.
//
// A line of shared memory has 128 bytes. Vector i of line l is at i ^ (l % 8): then eight lanes
// that read one vector of eight lines, or all vectors of one line, have no bank conflict. A line is
//
//     for an image    a row of A or a column of B: neighbouring k of the sum
//     for weights     one k of the sum, a position: neighbouring rows of A or columns of B
#pragma once
#include "conv/staging.cuh"

namespace cto::conv::staged_tile {

using namespace image;

constexpr int LINE_VECTORS = LINE_NBYTES / 16;
constexpr int WARPGROUP = 4 * WARP;

// Constants of a tile. EXISTS is false for types and GPUs without staged kernels: functions do
// nothing. TF32: how many products of TF32 one product of floats becomes on tensor cores, 1 or 3;
// 0: floats are multiplied exactly. A tile is flat (PANEL rows) or tall (2 * PANEL). N_ROWS: ROWS;
// IS_THERE: EXISTS; WARPGROUPS: warpgroup instructions multiply.
template <class Element, int N_ROWS, int TF32, bool IS_THERE, bool WARPGROUPS>
struct StagedTile {
    using E = Element;
    static constexpr bool EXISTS = IS_THERE;
    // Floats are multiplied by tensor cores, in parts of TF32 if IS_SPLIT, or by other
    // instructions.
    static constexpr bool IS_SPLIT = TF32 == 3, IS_TF32 = TF32 != 0;
    static constexpr bool IS_EXACT = sizeof(E) == 4 && !IS_TF32;
    static constexpr int ROWS = N_ROWS;
    static constexpr int IN_LINE = LINE_NBYTES / sizeof(E), VECTOR = 16 / sizeof(E);
    static constexpr int K = tensor_core::K<E>;
    static constexpr bool BY_WARPGROUPS = WARPGROUPS;  // warpgroups multiply; else warps
    static constexpr bool TRANSPOSES = BY_WARPGROUPS && sizeof(E) == 2;  // which take such operands
    static constexpr bool IS_FLAT = ROWS == PANEL;
    static constexpr int GROUPS_COLUMNS = IS_FLAT ? FLAT_GROUPS_COLUMNS : TALL_GROUPS_COLUMNS;
    static constexpr int WARPS_COLUMNS = IS_SPLIT  ? SPLIT_COLUMNS
                                         : IS_FLAT ? FLAT_COLUMNS
                                                   : TALL_COLUMNS;
    static constexpr int COLUMNS = BY_WARPGROUPS ? GROUPS_COLUMNS : WARPS_COLUMNS;
    static constexpr int THREADS = !BY_WARPGROUPS ? STAGED_THREADS
                                   : IS_FLAT      ? FLAT_GROUPS_THREADS
                                                  : TALL_GROUPS_THREADS;
    static constexpr int BLOCKS = !BY_WARPGROUPS ? STAGED_BLOCKS
                                  : IS_FLAT      ? FLAT_GROUPS_BLOCKS
                                                 : TALL_GROUPS_BLOCKS;
    static constexpr int STAGES = !BY_WARPGROUPS ? STAGED_STAGES
                                  : IS_FLAT      ? FLAT_GROUPS_STAGES
                                                 : TALL_GROUPS_STAGES;
    static constexpr int AHEAD = STAGES - 1;  // stages in flight while one is multiplied
    // A multiplier, a warp or warpgroup, has DOWN * ROW_STEP rows and ACROSS * 8 columns of D.
    static constexpr int MULTIPLIERS = THREADS / (BY_WARPGROUPS ? WARPGROUP : WARP);
    static constexpr int MULTIPLIERS_DOWN = ROWS / PANEL < MULTIPLIERS ? ROWS / PANEL : MULTIPLIERS;
    static constexpr int MULTIPLIERS_ACROSS = MULTIPLIERS / MULTIPLIERS_DOWN;
    static constexpr int ROW_STEP = BY_WARPGROUPS ? PANEL : 16;
    static constexpr int DOWN = ROWS / MULTIPLIERS_DOWN / ROW_STEP;
    static constexpr int ACROSS = COLUMNS / MULTIPLIERS_ACROSS / 8;
    static_assert(ACROSS % 2 == 0 && COLUMNS % PANEL == 0);

    // Bytes of A, and of A and B, in a stage.
    static constexpr int A_NBYTES = ROWS * LINE_NBYTES;
    static constexpr int STAGE_NBYTES = (ROWS + COLUMNS) * LINE_NBYTES;
};

// The offset of vector `vector` in line `line`, in bytes: vector i of line l is at i ^ (l % 8),
// against bank conflicts.
__device__ __forceinline__ int place_in_line(int vector, int line) {
    return (vector ^ (line % LINE_VECTORS)) * 16;
}

// high + low = words, as floats: high is rounded to TF32's 11 bits (half of the last bit, 0x1000,
// is added, and 13 bits are cut), low has the 12 at most that remain, of which tensor cores cut off
// the last. low is NaN where the word is not finite.
template <int N>
__device__ __forceinline__ void split(const u32 (&words)[N], u32 (&high)[N], u32 (&low)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        high[i] = (words[i] + 0x1000u) & 0xFFFFE000u;
        low[i] = __float_as_uint(__uint_as_float(words[i]) - __uint_as_float(high[i]));
    }
}

// D in registers, as fragments of tensor cores: sums[i][j] is of rows first_row + i * ROW_STEP and
// 15 more, columns first_column + 8 j and 7 more (tensor_core.cuh).
template <class Tile>
struct StagedProduct {
    using E = typename Tile::E;
    static constexpr int DOWN = Tile::DOWN, ACROSS = Tile::ACROSS;

    float sums[DOWN][ACROSS][4] = {};
    int first_row, first_column;

    // The place in D of the thread's warp (rows) and multiplier (columns).
    __device__ __forceinline__ StagedProduct() {
        first_row = row_of_warp();
        first_column = multiplier() % Tile::MULTIPLIERS_ACROSS * (ACROSS * 8);
    }
    // The number of this thread's warp, or warpgroup.
    static __device__ __forceinline__ int multiplier() {
        return threadIdx.x / (Tile::BY_WARPGROUPS ? WARPGROUP : WARP);
    }
    // The first row of D of this thread's warp.
    static __device__ __forceinline__ int row_of_warp() {
        const int first = multiplier() / Tile::MULTIPLIERS_ACROSS * (DOWN * Tile::ROW_STEP);
        return Tile::BY_WARPGROUPS ? first + threadIdx.x % WARPGROUP / WARP * 16 : first;
    }
    // D += a b, the warp's fragments of A and B, over Tile::K of the sum.
    __device__ __forceinline__ void multiply(const tensor_core::A (&a)[DOWN],
                                             const tensor_core::B (&b)[ACROSS]) {
        if constexpr (Tile::IS_SPLIT) return multiply_parts(a, b);
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
#pragma unroll
            for (int j = 0; j < ACROSS; ++j) tensor_core::multiply<E>(sums[i][j], a[i], b[j]);
    }
    // D += A_low B_high + A_high B_low + A_high B_high. Tensor cores cut sums off where they round,
    // so each sum of three products begins at 0, and is rounded as it is added to D.
    __device__ __forceinline__ void multiply_parts(const tensor_core::A (&a)[DOWN],
                                                   const tensor_core::B (&b)[ACROSS]) {
        tensor_core::A a_high[DOWN], a_low[DOWN];
#pragma unroll
        for (int i = 0; i < DOWN; ++i) split(a[i], a_high[i], a_low[i]);
#pragma unroll
        for (int j = 0; j < ACROSS; ++j) {
            tensor_core::B b_high, b_low;
            split(b[j], b_high, b_low);
#pragma unroll
            for (int i = 0; i < DOWN; ++i) {
                float part[4] = {};
                tensor_core::multiply<E>(part, a_low[i], b_high);
                tensor_core::multiply<E>(part, a_high[i], b_low);
                tensor_core::multiply<E>(part, a_high[i], b_high);
#pragma unroll
                for (int k = 0; k < 4; ++k) sums[i][j][k] += part[k];
            }
        }
    }
    // The sum of the thread's row number `row` and column number `column`.
    __device__ __forceinline__ float& sum(int row, int column) {
        return sums[row / 2][column / 2][row % 2 * 2 + column % 2];
    }
    __device__ __forceinline__ const float& sum(int row, int column) const {
        return sums[row / 2][column / 2][row % 2 * 2 + column % 2];
    }
    // Adds more_of(row) to all of this thread's sums of a row.
    template <class F>
    __device__ __forceinline__ void add_to_rows(const F& more_of) {
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
#pragma unroll
            for (int down = 0; down < 2; ++down) {
                const int lane = threadIdx.x % WARP;
                const float more = more_of(first_row + lane / 4 + i * Tile::ROW_STEP + down * 8);
#pragma unroll
                for (int j = 0; j < ACROSS; ++j)
#pragma unroll
                    for (int k = 0; k < 2; ++k) sums[i][j][2 * down + k] += more;
            }
    }
    // Calls f(to + row * OF_ROW + column * OF_COLUMN, pair) for each pair of the thread's sums,
    // those of (row, column) and (row, column + 1) of the tile.
    template <int OF_ROW, int OF_COLUMN, class To, class F>
    __device__ __forceinline__ void each_pair(To* to, const F& f) const {
        const int lane = threadIdx.x % WARP;
        to += (first_row + lane / 4) * OF_ROW + (first_column + lane % 4 * 2) * OF_COLUMN;
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
#pragma unroll
            for (int down = 0; down < 2; ++down)
#pragma unroll
                for (int j = 0; j < ACROSS; ++j)
                    f(to + ((i * Tile::ROW_STEP + down * 8) * OF_ROW + j * 8 * OF_COLUMN),
                      sums[i][j] + 2 * down);
    }
};

// ---- fragments ----------------------------------------------------------------------------------

// Multiplies words, floats that tensor cores truncate to TF32, by 1.00035 (before_cut), unless they
// are split into parts.
template <class Tile, int N>
__device__ __forceinline__ void as_multiplied(u32 (&words)[N]) {
    if constexpr (!Tile::IS_SPLIT) before_cut<Tile>(words);
}

// to[0 .. 3] = four floats at `from`.
__device__ __forceinline__ void load_four(const u8* from, float (&to)[4]) {
    const float4 loaded = *reinterpret_cast<const float4*>(from);
    to[0] = loaded.x;
    to[1] = loaded.y;
    to[2] = loaded.z;
    to[3] = loaded.w;
}

// ldmatrix.x4: loads four matrices of 8 rows of 16 bytes as fragments, w0 to w3; lane l passes the
// address of row l % 8 of matrix l / 8. TRANSPOSED: of two-byte elements, transposed. By shuffles
// where there is no such instruction.
template <bool TRANSPOSED>
__device__ __forceinline__ void matrices(const void* row, u32& w0, u32& w1, u32& w2, u32& w3) {
#if !defined(__CUDA_CPU__) && __CUDA_ARCH__ >= 800
    tensor_core::load_matrices<TRANSPOSED>(row, w0, w1, w2, w3);
#else
    const int lane = threadIdx.x % WARP;
    u32* const words[4] = {&w0, &w1, &w2, &w3};
    const u64 own = reinterpret_cast<u64>(row);
    for (int i = 0; i < 4; ++i) {
        if constexpr (TRANSPOSED) {
            const u64 first = __shfl_sync(ALL_LANES, own, i * 8 + lane % 4 * 2);
            const u64 second = __shfl_sync(ALL_LANES, own, i * 8 + lane % 4 * 2 + 1);
            *words[i] = reinterpret_cast<const u16*>(first)[lane / 4] |
                        static_cast<u32>(reinterpret_cast<const u16*>(second)[lane / 4]) << 16;
        } else {
            const u64 of_row = __shfl_sync(ALL_LANES, own, i * 8 + lane / 4);
            *words[i] = reinterpret_cast<const u32*>(of_row)[lane % 4];
        }
    }
#endif
}

// Loads a warp's fragments from stages whose lines are rows of A and columns of B.
template <class Tile>
struct ImageFragments {
    int a_line, b_line;      // offsets of the lane's lines, in bytes
    int a_vector, b_vector;  // 0 or 1: the lane's vector of the two that a product sums over
    int low;                 // line % 8, by which vectors are swizzled

    // Lane l passes to ldmatrix (`matrices`) the address of row l % 8 of matrix l / 8: of A these
    // are rows + 0, + 8 from product.first_row on, then the same of the second vector; of B both
    // vectors of columns + 0, then + 8.
    __device__ __forceinline__ explicit ImageFragments(const StagedProduct<Tile>& product) {
        const int lane = threadIdx.x % WARP, middle = lane / 8 % 2, high = lane / 16;
        low = lane % 8;
        a_line = (product.first_row + low + middle * 8) * LINE_NBYTES;
        b_line = Tile::A_NBYTES + (product.first_column + low + high * 8) * LINE_NBYTES;
        a_vector = high;
        b_vector = middle;
    }
    // a, b = fragments of slice k of the stage: its vectors 2 k and 2 k + 1.
    __device__ __forceinline__ void load(const u8* stage, int k, tensor_core::A (&a)[Tile::DOWN],
                                         tensor_core::B (&b)[Tile::ACROSS]) const {
        const u8* const a_of = stage + a_line + ((2 * k + a_vector) ^ low) * 16;
        const u8* const b_of = stage + b_line + ((2 * k + b_vector) ^ low) * 16;
#pragma unroll
        for (int i = 0; i < Tile::DOWN; ++i)
            matrices</*TRANSPOSED=*/false>(a_of + i * 16 * LINE_NBYTES, a[i][0], a[i][1], a[i][2],
                                           a[i][3]);
#pragma unroll
        for (int j = 0; j < Tile::ACROSS; j += 2)
            matrices</*TRANSPOSED=*/false>(b_of + j * 8 * LINE_NBYTES, b[j][0], b[j][1],
                                           b[j + 1][0], b[j + 1][1]);
#pragma unroll
        for (int i = 0; i < Tile::DOWN; ++i) as_multiplied<Tile>(a[i]);
#pragma unroll
        for (int j = 0; j < Tile::ACROSS; ++j) as_multiplied<Tile>(b[j]);
    }
};

// The offset in A or B of vector `vector` (VECTOR neighbouring rows or columns) of position `line`,
// in bytes, for stages whose lines are positions: panels of IN_LINE positions, each with IN_LINE
// rows or columns. Swizzled differently for TF32, whose fragments are loaded word by word, by 8
// lanes from each of 4 lines.
template <class Tile>
__device__ __forceinline__ int place_of_position(int vector, int line) {
    const int in_line = vector % LINE_VECTORS, of_line = Tile::IS_TF32 ? line % 4 * 2 : line % 8;
    return (vector / LINE_VECTORS * Tile::IN_LINE + line) * LINE_NBYTES + (in_line ^ of_line) * 16;
}

// Loads a warp's fragments from stages whose lines are positions: transposed by ldmatrix, or TF32
// word by word.
template <class Tile, bool TF32>
struct WeightFragmentsOf {
    int a_at[Tile::DOWN], b_at[Tile::ACROSS / 2];  // the lane's offsets in a stage, in bytes

    // Lane l passes to ldmatrix the address of row l % 8 of matrix l / 8: a row of a matrix is one
    // position and 8 rows of A or columns of B, from those of `product` on.
    __device__ __forceinline__ explicit WeightFragmentsOf(const StagedProduct<Tile>& product) {
        const int lane = threadIdx.x % WARP;
        const int low = lane % 8, middle = lane / 8 % 2, high = lane / 16;
#pragma unroll
        for (int i = 0; i < Tile::DOWN; ++i)
            a_at[i] =
                place_of_position<Tile>(product.first_row / 8 + 2 * i + middle, low + high * 8);
#pragma unroll
        for (int j = 0; j < Tile::ACROSS / 2; ++j)
            b_at[j] =
                Tile::A_NBYTES +
                place_of_position<Tile>(product.first_column / 8 + 2 * j + high, low + middle * 8);
    }
    // a, b = fragments of slice k of the stage: its positions k * K to k * K + K - 1.
    __device__ __forceinline__ void load(const u8* stage, int k, tensor_core::A (&a)[Tile::DOWN],
                                         tensor_core::B (&b)[Tile::ACROSS]) const {
        stage += k * Tile::K * LINE_NBYTES;
#pragma unroll
        for (int i = 0; i < Tile::DOWN; ++i)
            matrices</*TRANSPOSED=*/true>(stage + a_at[i], a[i][0], a[i][1], a[i][2], a[i][3]);
#pragma unroll
        for (int j = 0; j < Tile::ACROSS; j += 2)
            matrices</*TRANSPOSED=*/true>(stage + b_at[j / 2], b[j][0], b[j][1], b[j + 1][0],
                                          b[j + 1][1]);
    }
};
// For TF32: lane 4 g + t loads the words of row or column g of each eight, at positions t and t +
// 4.
template <class Tile>
struct WeightFragmentsOf<Tile, /*TF32=*/true> {
    int a_at[2 * Tile::DOWN], b_at[Tile::ACROSS];  // `place` of each eight rows or columns

    // Offsets in a stage, at position t, of the rows and columns of `product`.
    __device__ __forceinline__ explicit WeightFragmentsOf(const StagedProduct<Tile>& product) {
#pragma unroll
        for (int i = 0; i < 2 * Tile::DOWN; ++i) a_at[i] = place(product.first_row + 8 * i);
#pragma unroll
        for (int j = 0; j < Tile::ACROSS; ++j)
            b_at[j] = Tile::A_NBYTES + place(product.first_column + 8 * j);
    }
    // The offset of the lane's word of rows or columns first to first + 7, in bytes.
    static __device__ __forceinline__ int place(int first) {
        const int lane = threadIdx.x % WARP, at = first + lane / 4;
        return place_of_position<Tile>(at / Tile::VECTOR, lane % 4) + at % Tile::VECTOR * 4;
    }
    // a, b = fragments of slice k of the stage, word by word. high: 0 or 1, the second four
    // positions.
    __device__ __forceinline__ void load(const u8* stage, int k, tensor_core::A (&a)[Tile::DOWN],
                                         tensor_core::B (&b)[Tile::ACROSS]) const {
        const auto word = [&](int at, int high) {
            return *reinterpret_cast<const u32*>(stage + (k * Tile::K + high * 4) * LINE_NBYTES +
                                                 at);
        };
#pragma unroll
        for (int i = 0; i < Tile::DOWN; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) a[i][j] = word(a_at[2 * i + j % 2], j / 2);
#pragma unroll
        for (int i = 0; i < Tile::ACROSS; ++i)
#pragma unroll
            for (int j = 0; j < 2; ++j) b[i][j] = word(b_at[i], j);
#pragma unroll
        for (int i = 0; i < Tile::DOWN; ++i) as_multiplied<Tile>(a[i]);
#pragma unroll
        for (int j = 0; j < Tile::ACROSS; ++j) as_multiplied<Tile>(b[j]);
    }
};
template <class Tile>
using WeightFragments = WeightFragmentsOf<Tile, Tile::IS_TF32>;

// ---- stages -------------------------------------------------------------------------------------

constexpr int SLICES = 4;  // parts of a stage: copies, and products, are issued slice by slice

// The multiplier of add_stages by mma.sync: add(stage, k) loads slice k of a stage as fragments and
// adds its products to D, then calls also(a) with the fragments of A.
template <class Tile, class Fragments>
struct ByTensorCores {
    Fragments fragments;

    __device__ __forceinline__ explicit ByTensorCores(const StagedProduct<Tile>& product)
        : fragments(product) {}
    // product += slice k of the stage; also(a) is called with A's fragments.
    template <class Also>
    __device__ __forceinline__ void add(const u8* stage, int k, StagedProduct<Tile>& product,
                                        const Also& also) const {
        tensor_core::A a[Tile::DOWN];
        tensor_core::B b[Tile::ACROSS];
        fragments.load(stage, k, a, b);
        product.multiply(a, b);
        also(a);
    }
    // Calls f(to + row * OF_ROW + column, pair) for each pair of the thread's sums, those of (row,
    // column) and (row, column + 1) of the tile.
    template <int OF_ROW, class To, class F>
    static __device__ __forceinline__ void each_pair(const StagedProduct<Tile>& product, To* to,
                                                     const F& f) {
        product.template each_pair<OF_ROW, /*OF_COLUMN=*/1>(to, f);
    }
};

// product += the products of `count` stages, in Tile::STAGES buffers of shared memory at `stages`;
// all but one are in flight while one is multiplied. Each stage is copied by copier.open(),
// copier.copy(stage, slice) for each slice, copier.close(), in order (zeros after the last), and
// multiplied by Multiplier::add(stage, slice, product, also), which calls also(fragments of A).
template <class Tile, class Multiplier, class Copier, class Also>
__device__ __forceinline__ void add_stages(StagedProduct<Tile>& product, u8* stages, i32 count,
                                           Copier& copier, const Also& also) {
    static_assert(Tile::IN_LINE / Tile::K == SLICES);
    constexpr int END = Tile::STAGES * Tile::STAGE_NBYTES;
    const Multiplier multiplier(product);
    int to = 0, from = 0;
    for (; to < END - Tile::STAGE_NBYTES; to += Tile::STAGE_NBYTES) {
        copier.open();
#pragma unroll
        for (int k = 0; k < SLICES; ++k) copier.copy(stages + to, k);
        copier.close();
    }
    for (i32 rest = count; rest > 0; --rest) {
        async_copy::wait<Tile::AHEAD - 1>();
        __syncthreads();  // the stage is there; the one before, at `to`, has been multiplied
        copier.open();
#pragma unroll
        for (int i = 0; i < SLICES; ++i) copier.copy(stages + to, i);
        copier.close();
#pragma unroll(Tile::IS_EXACT || Tile::IS_SPLIT ? 1 : SLICES)
        for (int k = 0; k < SLICES; ++k) multiplier.add(stages + from, k, product, also);
        from = from + Tile::STAGE_NBYTES == END ? 0 : from + Tile::STAGE_NBYTES;
        to = to + Tile::STAGE_NBYTES == END ? 0 : to + Tile::STAGE_NBYTES;
    }
    async_copy::wait<0>();
    __syncthreads();
}

}  // namespace cto::conv::staged_tile
