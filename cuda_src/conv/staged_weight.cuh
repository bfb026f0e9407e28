// SPDX-License-Identifier: MIT
// The gradient of W over staged arrays: rows are filters, columns are (tap, channel), and the sum
// is over positions. A block sums one part of the positions; staged_total.cuh adds the parts.
// Blocks of the first columns also sum Y, for the gradient of a bias, where staging does not.
#pragma once
#include "conv/staged_image.cuh"
#include "conv/staged_row_sums.cuh"
#include "conv/staged_weight_tf32.cuh"
#include "conv/weight.cuh"

namespace cto::conv::staged_weight {

using namespace image;
using namespace staged_image;
using namespace staged_exact;
using namespace staged_row_sums;
using namespace staged_tile;
using namespace staged_warpgroups;
using namespace staged_weight_tf32;

using weight::weight_tile;
using weight::WeightTile;

// Buffers for the StagedRows of a stage: they are copied AHEAD stages before the stage itself,
// which is copied AHEAD stages before it is multiplied. (AHEAD + 1 would do, but no barrier
// separates the first.)
template <class Tile>
constexpr int ROW_SLOTS = 2 * Tile::AHEAD;

// What a vector of columns (channels of one tap) reads: X `at` vectors after what a position reads
// by tap 0; and the bit of its tap in StagedRow::inside, 0 if it does not exist.
struct ColumnReads {
    i32 at;
    u32 bit;
};

// Shared memory of sum_staged_weights beside the stages.
template <class Tile>
struct WeightShared {
    StagedRow rows[ROW_SLOTS<Tile>][Tile::IN_LINE];     // what positions read of X
    ColumnReads columns[Tile::COLUMNS / Tile::VECTOR];  // if SHARES_COLUMNS
    i32 shifts[STAGED_TAPS];                            // of each tap, else
};

// True if `columns` is computed once in shared memory. Exact products take up to 17 % longer with
// it: compilers then put more factors in one bank of registers.
template <class Tile>
constexpr bool SHARES_COLUMNS = !Tile::IS_EXACT;

// True if Y lies as lines of filters, (filter, position), for the products of a TransposedProduct.
template <class Tile>
constexpr bool Y_IS_LINES = Tile::BY_WARPGROUPS && !Tile::TRANSPOSES;

// Copies stages of Y, as A: from lines of filters, or from (position, filter). A thread copies one
// vector in eight (LINE_VECTORS) of every AT_ONCE-th filter, or position.
template <class Tile, bool IS_LINES>
struct YCopier {
    static constexpr int AT_ONCE = Tile::THREADS / LINE_VECTORS;
    static constexpr int LINES = Tile::ROWS / AT_ONCE;  // filters of a thread

    const uint4* next;  // the thread's vector of its first filter
    i64 step;           // to that of its next filter
    i32 rows;           // filters from its first on
    int own;            // offset of its first vector in a stage

    __device__ __forceinline__ YCopier(const typename Tile::E* y, const WeightTile& tile, i64 begin,
                                       const WeightLayout& layout) {
        const int line = threadIdx.x / LINE_VECTORS, vector = threadIdx.x % LINE_VECTORS;
        const i64 pitch =
            staging::pitch_of_lines<typename Tile::E>(layout.positions) / Tile::VECTOR;
        const i64 filter = static_cast<i64>(tile.group) * layout.rows + tile.first_row + line;
        next = reinterpret_cast<const uint4*>(y) + filter * pitch + begin / Tile::VECTOR + vector;
        step = AT_ONCE * pitch;
        rows = layout.rows - tile.first_row - line;
        own = line * LINE_NBYTES + place_in_line(vector, line);
    }
    // Copies every SLICES-th of the thread's filters from `slice` on; zeros past the last stage.
    __device__ __forceinline__ void copy_lines(u8* stage, int slice, bool exists) const {
#pragma unroll
        for (int i = slice; i < LINES; i += SLICES)
            async_copy::copy_or_zeros<16>(stage + own + i * AT_ONCE * LINE_NBYTES, next + i * step,
                                          exists && i * AT_ONCE < rows);
    }
    __device__ __forceinline__ void copy_position(u8*, int, bool) {}
    // Moves on by a stage.
    __device__ __forceinline__ void close() { next += LINE_VECTORS; }
};
template <class Tile>
struct YCopier<Tile, /*IS_LINES=*/false> {
    static constexpr int AT_ONCE = Tile::THREADS / LINE_VECTORS;
    static constexpr int PANELS = Tile::ROWS / Tile::IN_LINE;
    static constexpr int PANEL_NBYTES = Tile::IN_LINE * LINE_NBYTES;

    const uint4* next;  // at the thread's next position
    i64 step;           // to the thread's position after that
    u32 exists;         // bit i: panel i has the thread's vector

    __device__ __forceinline__ YCopier(const typename Tile::E* y, const WeightTile& tile, i64 begin,
                                       const WeightLayout& layout) {
        const int line = threadIdx.x / LINE_VECTORS, vector = threadIdx.x % LINE_VECTORS;
        const i32 filters = vectors_of(layout.rows, Tile::VECTOR);
        const i32 first = tile.first_row / Tile::VECTOR + vector;
        const i64 pitch = static_cast<i64>(filters) * layout.groups;
        next = reinterpret_cast<const uint4*>(y) + (begin + line) * pitch +
               (tile.group * filters + first);
        step = AT_ONCE * pitch;
        exists = 0;
#pragma unroll
        for (int panel = 0; panel < PANELS; ++panel)
            exists |= static_cast<u32>(first + panel * LINE_VECTORS < filters) << panel;
    }
    __device__ __forceinline__ void copy_lines(u8*, int, bool) const {}
    // Copies the thread's vectors of its next position, number i of a stage, to `to`; zeros if it
    // is not there.
    __device__ __forceinline__ void copy_position(u8* to, int i, bool is_there) {
#pragma unroll
        for (int panel = 0; panel < PANELS; ++panel)
            async_copy::copy_or_zeros<16>(to + (panel * PANEL_NBYTES + i * AT_ONCE * LINE_NBYTES),
                                          next + panel * LINE_VECTORS,
                                          is_there && (exists >> panel & 1) != 0);
        next += step;
    }
    __device__ __forceinline__ void close() {}
};

// The copier of add_stages: copies stages of IN_LINE positions of Y, as A, and X, as B, to shared
// memory. Of X a thread copies one vector in eight (LINE_VECTORS) of every AT_ONCE-th position.
template <class Tile>
struct WeightCopier {
    using E = typename Tile::E;
    static constexpr int AT_ONCE = Tile::THREADS / LINE_VECTORS;
    static constexpr int LINES = Tile::IN_LINE / AT_ONCE;  // positions of a thread in a stage
    static constexpr int B_PANELS = Tile::COLUMNS / Tile::IN_LINE;
    static constexpr int PANEL_NBYTES = Tile::IN_LINE * LINE_NBYTES;
    static constexpr int ROWS_NBYTES = Tile::IN_LINE * sizeof(StagedRow);

    WeightShared<Tile>& shared;
    YCopier<Tile, Y_IS_LINES<Tile>> y;
    const uint4* rows;   // StagedRows of the part; null if each position reads itself (1 x 1)
    i32 first_position;  // of the part
    i32 x_vectors;       // vectors of X at a position
    i32 count;           // stages of the part
    const uint4* x;
    i64 rest;                     // positions of the part from the thread's first of the stage on
    i32 x_at[B_PANELS];           // ColumnReads of the thread's columns: at
    u32 x_bits[B_PANELS];         // and bit
    int line, own, stage_number;  // its first position in a stage; offset of its first vector there
    const StagedRow* reads;       // of the stage being copied

    // Begins to copy the StagedRows of stage `number`, or computes them where positions read
    // themselves.
    __device__ __forceinline__ void copy_rows(i32 number) const {
        StagedRow* const to = shared.rows[number % ROW_SLOTS<Tile>];
        const int at = threadIdx.x;
        if (rows && at < ROWS_NBYTES / 16 && number < count)
            async_copy::copy<16>(reinterpret_cast<uint4*>(to) + at,
                                 rows + static_cast<i64>(number) * (ROWS_NBYTES / 16) + at);
        if (!rows && at < Tile::IN_LINE)
            to[at] = {(first_position + number * Tile::IN_LINE + at) * x_vectors, 1};
    }
    // Starts a stage, to which `copy` is called for each slice; `close` ends it and moves on.
    __device__ __forceinline__ void open() {
        copy_rows(stage_number + Tile::AHEAD);
        reads = shared.rows[stage_number % ROW_SLOTS<Tile>] + line;
    }
    // Copies the thread's vectors of Y to A and of X to B, for every SLICES-th of its positions
    // from `slice` on; zeros outside of the arrays. Called in the order of slices.
    __device__ __forceinline__ void copy(u8* stage, int slice) {
        u8* const to = stage + own;
        y.copy_lines(stage, slice, stage_number < count);
#pragma unroll
        for (int i = slice; i < LINES; i += SLICES) {
            const bool exists = i * AT_ONCE < rest;
            const StagedRow row = reads[i * AT_ONCE];
            y.copy_position(to, i, exists);
#pragma unroll
            for (int panel = 0; panel < B_PANELS; ++panel)
                async_copy::copy_or_zeros<16, /*AGAIN=*/true>(
                    to + (Tile::A_NBYTES + panel * PANEL_NBYTES + i * AT_ONCE * LINE_NBYTES),
                    x + (row.offset + x_at[panel]), exists && (row.inside & x_bits[panel]) != 0);
        }
    }
    // Closes the stage's group of copies, and moves on by IN_LINE positions.
    __device__ __forceinline__ void close() {
        async_copy::commit();
        ++stage_number;
        y.close();
        rest -= Tile::IN_LINE;
    }
};

// Sums of A's rows (Y's filters), for the gradient of a bias, as products with ones. The
// MULTIPLIERS_ACROSS warps or warpgroups with the same rows share them: each has every
// MULTIPLIERS_ACROSS-th fragment.
template <class Tile>
struct StagedRowSums {
    using E = typename Tile::E;
    static constexpr int COUNT =
        (Tile::DOWN + Tile::MULTIPLIERS_ACROSS - 1) / Tile::MULTIPLIERS_ACROSS;

    float sums[COUNT][4] = {};
    bool wanted;

    // The number of this warp among those with the same rows.
    static __device__ __forceinline__ int across() {
        return StagedProduct<Tile>::multiplier() % Tile::MULTIPLIERS_ACROSS;
    }
    // Adds the sums of the rows of the warp's fragments `a`.
    __device__ __forceinline__ void add(const tensor_core::A (&a)[Tile::DOWN]) {
        // A word of one float, or of two 2-byte elements, all 1.
        const u32 ones = bits_of(from_acc<E>(1.0f)) * (sizeof(E) == 2 ? 0x10001u : 1u);
        const tensor_core::B b = {ones, ones};
#pragma unroll
        for (int i = 0; i < Tile::DOWN; ++i)
            if (i % Tile::MULTIPLIERS_ACROSS == across())
                tensor_core::multiply<E>(sums[i / Tile::MULTIPLIERS_ACROSS], a[i], b);
    }
    // Adds a whole stage, from which it loads A. For warpgroups, whose products do not have A in
    // registers.
    __device__ __forceinline__ void add(const u8* stage) {
        const int lane = threadIdx.x % WARP;
        const int low = lane % 8, middle = lane / 8 % 2, high = lane / 16;
        const int first_row = StagedProduct<Tile>::row_of_warp();
#pragma unroll
        for (int k = 0; k < SLICES; ++k) {
            tensor_core::A a[Tile::DOWN];
#pragma unroll
            for (int i = 0; i < Tile::DOWN; ++i) {
                const int vector = (first_row + i * PANEL) / 8 + middle;
                matrices</*TRANSPOSED=*/true>(stage + k * Tile::K * LINE_NBYTES +
                                                  place_of_position<Tile>(vector, low + high * 8),
                                              a[i][0], a[i][1], a[i][2], a[i][3]);
            }
            add(a);
        }
    }
    // to[row] = sum of the row, row < count; the first of the four lanes that have it writes it.
    __device__ __forceinline__ void write(float* to, int count) const {
        const int lane = threadIdx.x % WARP;
        const int first = StagedProduct<Tile>::row_of_warp() + lane / 4;
        if (!wanted || lane % 4 != 0) return;
#pragma unroll
        for (int i = 0; i < Tile::DOWN; ++i) {
            if (i % Tile::MULTIPLIERS_ACROSS != across()) continue;
#pragma unroll
            for (int down = 0; down < 2; ++down) {
                const int row = first + i * Tile::ROW_STEP + down * 8;
                if (row < count) to[row] = sums[i / Tile::MULTIPLIERS_ACROSS][2 * down];
            }
        }
    }
};

// The column of D of a tap (of `taps`) and a channel (of `channels`): tap * channels + channel. But
// if channels are whole panels (of `panel` channels), in the order (panel, tap, channel of the
// panel): a tap reads mostly what the tap before read, which is in the L1 cache.
__device__ __forceinline__ i32 column_of(i32 tap, i32 channel, i32 channels, i32 taps, i32 panel) {
    if (channels % panel != 0) return tap * channels + channel;
    return (channel / panel * taps + tap) * panel + channel % panel;
}

// The tap of a vector of columns, and the vector's number among those of the tap: inverse of
// column_of. tap >= taps: the vector does not exist. I: u32 or i32.
template <class I>
struct ColumnVector {
    I tap, vector;

    // Vector `number` of the columns; each of `taps` taps has `depth` vectors of channels.
    __device__ __forceinline__ ColumnVector(I number, I depth, I taps) {
        if (depth % LINE_VECTORS == 0) {  // as column_of has them
            const I panel = number / LINE_VECTORS, channels = panel / taps;
            tap = channels * LINE_VECTORS < depth ? panel - channels * taps : taps;
            vector = channels * LINE_VECTORS + number % LINE_VECTORS;
        } else {
            tap = number / depth;
            vector = number - tap * depth;
        }
    }
};

// Positions of X from what tap 0 reads to what a tap reads.
__device__ __forceinline__ i32 shift_of(const WeightLayout& layout, u32 tap) {
    i32 shift = 0, pitch = 1;
#pragma unroll 1
    for (int axis = 2; axis >= 0; --axis) {
        const u32 next = divide(tap, layout.kernel[axis]);
        shift += static_cast<i32>(tap - next * layout.kernel[axis]) * layout.dilation[axis] * pitch;
        pitch *= layout.image[axis];
        tap = next;
    }
    return shift;
}

// Columns of all tiles: taps by channels.
__device__ __forceinline__ i32 columns_of(const WeightLayout& layout) {
    return static_cast<i32>(volume(layout.kernel)) * layout.padded_channels;
}

// The sums of sum_staged_weights over the stages that `copier` copies, block `block` being the one
// of `tile` and `part`, by warps or warpgroups that load both operands from shared memory.
template <class Tile>
__device__ __forceinline__ void sum_tile(WeightCopier<Tile>& copier, float* sums, float* y_sums,
                                         u32 block, u32 part, const WeightTile& tile,
                                         const WeightLayout& layout, u8* stages) {
    // After the products, so that these have registers.
    const auto of_y = [&] {
        const i64 of_group = static_cast<i64>(part) * layout.groups + tile.group;
        return y_sums + of_group * layout.rows + tile.first_row;
    };
    using Multiplier = typename Multipliers<Tile>::Weights;
    StagedProduct<Tile> product;
    if constexpr (Tile::IS_TF32) {
        FloatRowSums<Tile> row_sums;
        row_sums.wanted = y_sums && tile.first_column == 0;
        AlsoRowSums<Tile> also{row_sums, sums != nullptr};
        add_stages<Tile, AndRowSums<Tile, Multiplier>>(product, stages, copier.count, copier, also);
        row_sums.write(of_y(), layout.rows - tile.first_row, reinterpret_cast<float*>(stages));
    } else {
        StagedRowSums<Tile> row_sums;
        row_sums.wanted = sizeof(typename Tile::E) == 2 && y_sums && tile.first_column == 0;
        if constexpr (Tile::BY_WARPGROUPS)
            add_stages_by_warpgroups<Tile, Multiplier>(product, stages, copier.count, copier,
                                                       [&](const u8* stage) {
                                                           if (row_sums.wanted) row_sums.add(stage);
                                                       });
        else
            add_stages<Tile, Multiplier>(product, stages, copier.count, copier,
                                         [&](const tensor_core::A(&a)[Tile::DOWN]) {
                                             if (row_sums.wanted) row_sums.add(a);
                                         });
        if (y_sums) row_sums.write(of_y(), layout.rows - tile.first_row);
    }
    const i32 columns = columns_of(layout) - tile.first_column;
    if (!sums || product.first_row >= layout.rows - tile.first_row ||
        product.first_column >= columns)
        return;
    float* const to = sums + static_cast<i64>(block) * (Tile::ROWS * Tile::COLUMNS);
    Multiplier::template each_pair<Tile::COLUMNS>(product, to, [](float* at, const float* pair) {
        using Pair = vec::Vec<float, 2>;
        *reinterpret_cast<Pair*>(at) = Pair{pair[0], pair[1]};
    });
}

// sums[part][tile][row][column] = sum over the part's positions of y * x, y_sums[part][filter] =
// sum of y, either may be null; block part * layout.tiles + tile of this kernel's part of the
// launch. x, y: staged arrays; where Y_IS_LINES lines of y, and `sums` without y_sums. rows: what
// each position reads of X, null for 1 x 1 taps and stride 1; `stages`: dynamic shared memory.
template <class Tile>
__device__ __forceinline__ void sum_staged_weights(const typename Tile::E* x,
                                                   const typename Tile::E* y, const StagedRow* rows,
                                                   Acc<typename Tile::E>* sums,
                                                   Acc<typename Tile::E>* y_sums, u32 block,
                                                   const WeightLayout& layout, u8* stages) {
    if constexpr (Tile::EXISTS) {
        using Copier = WeightCopier<Tile>;
        __shared__ __align__(16) WeightShared<Tile> shared;
        const u32 part = block / static_cast<u32>(layout.tiles);
        const WeightTile tile =
            weight_tile(layout, block - part * layout.tiles, Tile::ROWS, Tile::COLUMNS);
        const i64 begin = part * layout.positions_of_part;
        const i64 end = min(begin + layout.positions_of_part, layout.positions);
        const i32 depth = layout.padded_channels / Tile::VECTOR;
        const int line = threadIdx.x / LINE_VECTORS, vector = threadIdx.x % LINE_VECTORS;
        Copier copier{shared, {y, tile, begin, layout}};
        copier.rows = rows ? reinterpret_cast<const uint4*>(rows + begin) : nullptr;
        copier.first_position = static_cast<i32>(begin);
        copier.x_vectors = depth * layout.groups;
        copier.count = static_cast<i32>((end - begin + Tile::IN_LINE - 1) / Tile::IN_LINE);
        copier.x = reinterpret_cast<const uint4*>(x);
        copier.rest = end - begin - line;
        copier.line = line;
        copier.own = place_of_position<Tile>(vector, line);
        copier.stage_number = 0;
        for (int i = 0; i < Tile::AHEAD; ++i) copier.copy_rows(i);
        async_copy::commit();
        const u32 taps = static_cast<u32>(volume(layout.kernel));
        if constexpr (!SHARES_COLUMNS<Tile>) {
            if (threadIdx.x < STAGED_TAPS)
                shared.shifts[threadIdx.x] =
                    shift_of(layout, min(threadIdx.x, taps - 1)) * copier.x_vectors;
        } else if (threadIdx.x < Tile::COLUMNS / Tile::VECTOR) {
            const ColumnVector<u32> column(tile.first_column / Tile::VECTOR + threadIdx.x, depth,
                                           taps);
            const bool exists = sums && column.tap < taps;
            const i32 shift = shift_of(layout, exists ? column.tap : 0);
            shared.columns[threadIdx.x] = {
                shift * copier.x_vectors + tile.group * depth + static_cast<i32>(column.vector),
                exists ? 1u << column.tap : 0};
        }
        async_copy::wait<0>();
        __syncthreads();
#pragma unroll
        for (int panel = 0; panel < Copier::B_PANELS; ++panel) {
            if constexpr (SHARES_COLUMNS<Tile>) {
                const ColumnReads columns = shared.columns[panel * LINE_VECTORS + vector];
                copier.x_at[panel] = columns.at;
                copier.x_bits[panel] = columns.bit;
            } else {
                const i32 number = tile.first_column / Tile::VECTOR + panel * LINE_VECTORS + vector;
                const i32 n_taps = static_cast<i32>(taps);
                const ColumnVector<i32> column(number, depth, n_taps);
                const bool exists = sums && column.tap < n_taps;
                copier.x_at[panel] =
                    shared.shifts[exists ? column.tap : 0] + tile.group * depth + column.vector;
                copier.x_bits[panel] = exists ? 1u << column.tap : 0;
            }
        }
        if constexpr (Y_IS_LINES<Tile>) {
            TransposedProduct<Tile> product;
            add_stages_by_warpgroups<Tile, TransposedByWarpgroups<Tile>>(
                product, stages, copier.count, copier, /*also=*/[](const u8*) {});
            product.write(sums + static_cast<i64>(block) * (Tile::ROWS * Tile::COLUMNS),
                          layout.rows - tile.first_row, columns_of(layout) - tile.first_column);
        } else {
            sum_tile<Tile>(copier, sums, y_sums, block, part, tile, layout, stages);
        }
    }
}

}  // namespace cto::conv::staged_weight
