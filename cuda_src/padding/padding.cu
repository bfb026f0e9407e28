// SPDX-License-Identifier: MIT
// Padding with zeros, and its removal.  CPU provider: cupy_training_ops/families/padding/reference.py
//
// Elements are only copied, so arrays are `void*` and all lengths count words; see
// algorithm/copy_runs.cuh. An operator is a Source, whose at(position) is the run of words, or of
// zeros, that the output has from `position` on.
#include "algorithm/copy_runs.cuh"
#include "core/fast_division.cuh"
#include "padding/facts.cuh"

// T: words. A vector has WORDS of them, a thread writes CHUNKS vectors, a block has THREADS. INDEX:
// type of indices.
#ifndef CTO_T
#define CTO_T u8
#endif
#ifndef CTO_INDEX
#define CTO_INDEX i64
#endif

namespace cto {

using namespace facts::padding;
using copy_runs::RESIDENT;
using facts::WORDS;
using fast_division::Cell;
using fast_division::cell_at;
using fast_division::Divisor;

using T = CTO_T;
using INDEX = CTO_INDEX;
using Run = copy_runs::Run<T>;

using Tile = copy_runs::Tiling<T, WORDS, CHUNKS, THREADS>;

// ---- SliceGrad: dX is dY at the sliced positions, else 0 ----------------------------------------

// True if neighbouring positions are neighbours in dY, too: step 1.
__device__ __forceinline__ bool is_run(const Dimension& dimension) {
    return dimension.distance.value == 1 && !dimension.backwards;
}

// The j < dimension.count with position = start + j * distance, or backwards start - j * distance;
// -1 if there is none: the position of dX is not sliced.
__device__ __forceinline__ i64 position_in_dy(i64 position, const Dimension& dimension) {
    const i64 offset =
        dimension.backwards ? dimension.start - position : position - dimension.start;
    if (offset < 0) return -1;
    const i64 j = fast_division::quotient(offset, dimension.distance);
    return j < dimension.count && j * dimension.distance.value == offset ? j : -1;
}

// min(max(n, 0), words of a vector).
__device__ __forceinline__ int of_vector(i64 n) {
    return static_cast<int>(min(max(n, i64(0)), i64(Tile::words)));
}

// The Source of SliceGrad's dX; n_dy: words of dY. A row is the last dimension, `inner`; the others
// are the n_outer first of `outer`.
struct Unsliced {
    const T* dy;
    i64 n_dy;
    int n_outer;
    const Dimensions& outer;
    const Dimension& inner;

    // The row of dY for a row of dX, -1 if it is zeros. If the first dimension is not sliced, it is
    // not in `outer`.
    __device__ i64 row_of(i64 row) const {
        i64 source = 0, stride = 1;
#pragma unroll 1
        for (int d = n_outer - 1; d >= 0; --d) {
            const Dimension& dimension = outer.at[d];
            const Cell cell = cell_at(row, dimension.extent);
            const i64 j = position_in_dy(cell.column, dimension);
            if (j < 0) return -1;
            source += j * stride;
            stride *= dimension.count;
            row = cell.row;
        }
        return source + row * stride;
    }

    // The longest known run from `position` on: neighbours in dY, or zeros.
    __device__ Run at(i64 position) const {
        const Cell cell = cell_at(position, inner.extent);
        const i64 row = row_of(cell.row);
        if (row < 0) return copy_runs::zeros<T>(inner.extent.value - cell.column);
        const i64 j = position_in_dy(cell.column, inner);
        if (j < 0) return copy_runs::zeros<T>(zeros_from(cell.column));
        const i64 length = is_run(inner) ? inner.count - j : 1;
        return {dy + row * inner.count + j, length, /*begin=*/dy, /*end=*/dy + n_dy};
    }

    // The address of word j of dY's row for row `row` of dX, where j may be outside of that row;
    // null if the row of dX is zeros.
    __device__ const T* source_of(i64 row, i64 j) const {
        const i64 source = row_of(row);
        return source < 0 ? nullptr : dy + source * inner.count + j;
    }

    // Words [begin, end) of the vector at `from`, zeros for the others. Lanes read neighbouring
    // words, so single words are no slower than vectors, which would have to be shifted.
    __device__ Tile::Vec vector_at(const T* from, int begin, int end) const {
        Tile::Vec loaded{};
#pragma unroll
        for (int i = 0; i < Tile::words; ++i)
            if (from && i >= begin && i < end) loaded.at[i] = __ldg(from + i);
        return loaded;
    }

    // How many zeros dX has from `column` on, which has one: up to the run's start or the row's
    // end; 1 if dY's words are apart.
    __device__ i64 zeros_from(i64 column) const {
        if (!is_run(inner)) return 1;
        return (column < inner.start ? inner.start : inner.extent.value) - column;
    }
};

// Writes n_rows rows of dx, of whole vectors, from the Source of SliceGrad: a thread writes one
// vector of Tile::vecs rows, blockDim.y apart, always at the same columns. These are dY's columns
// j, j + 1, ...; of these, words outside of [begin, end) of the vector do not exist and give 0.
// `column_blocks` blocks share a row.
__device__ __forceinline__ void write_rows(T* dx, i64 n_rows, const Unsliced& source,
                                           u32 column_blocks) {
    const u32 row_group = blockIdx.x / column_blocks;
    const u32 column_block = blockIdx.x - row_group * column_blocks;
    const i64 column = (static_cast<i64>(column_block) * blockDim.x + threadIdx.x) * Tile::words;
    const i64 first = static_cast<i64>(row_group) * (Tile::vecs * blockDim.y) + threadIdx.y;
    const i64 width = source.inner.extent.value, j = column - source.inner.start;
    const int begin = of_vector(-j), end = of_vector(source.inner.count - j);
    if (column >= width) return;
    const T* from[Tile::vecs];
#pragma unroll
    for (int u = 0; u < Tile::vecs; ++u) {
        const i64 row = first + u * blockDim.y;
        from[u] = row < n_rows ? source.source_of(row, j) : nullptr;
    }
    Tile::Vec loaded[Tile::vecs];
#pragma unroll
    for (int u = 0; u < Tile::vecs; ++u) loaded[u] = source.vector_at(from[u], begin, end);
    T* const to = dx + first * width + column;
#pragma unroll
    for (int u = 0; u < Tile::vecs; ++u)
        if (first + u * blockDim.y < n_rows)
            vec::store_streaming(reinterpret_cast<Tile::Vec*>(to + u * blockDim.y * width),
                                 loaded[u]);
}

// ---- FlattenAndUnpad: output[row] = x[indices[row]] ---------------------------------------------

// The Source of FlattenAndUnpad's output. width: words of a row; x: the input, n_x_rows rows.
struct Selected {
    Divisor width;
    const T* x;
    i64 n_x_rows;
    const INDEX* indices;

    // The words from `position` to its row's end; zeros for an index out of range.
    __device__ Run at(i64 position) const {
        const Cell cell = cell_at(position, width);
        const i64 row = indices[cell.row], length = width.value - cell.column;
        if (row < 0 || row >= n_x_rows) return copy_runs::zeros<T>(length);
        return {x + row * width.value + cell.column, length, /*begin=*/x,
                /*end=*/x + n_x_rows * width.value};
    }
};

// ---- PadAndUnflatten: output[row] = x[last k with indices[k] == row], else 0 --------------------

// True if `entry`, an entry of the table last_rows, is a row of x, of n_rows, whose index is
// `target`. The table is never cleared; an entry of an earlier call that passes this test is right,
// too.
__device__ __forceinline__ bool is_row_of(i64 entry, i64 n_rows, const INDEX* indices, i64 target) {
    return entry >= 0 && entry < n_rows && indices[entry] == target;
}

// The Source of PadAndUnflatten's output. width: words of a row; x: the input, n_x_rows rows;
// indices: a row of the output for each of them. last_rows[row]: the last k with
// indices[k] == row, if is_row_of is true of it.
struct Padded {
    Divisor width;
    const T* x;
    i64 n_x_rows;
    const INDEX* indices;
    const i64* last_rows;

    // The words from `position` to its row's end: x[last_rows[row]], zeros if
    // that entry is not valid.
    __device__ Run at(i64 position) const {
        const Cell cell = cell_at(position, width);
        const i64 row = last_rows[cell.row], length = width.value - cell.column;
        if (!is_row_of(row, n_x_rows, indices, cell.row)) return copy_runs::zeros<T>(length);
        return {x + row * width.value + cell.column, length, /*begin=*/x,
                /*end=*/x + n_x_rows * width.value};
    }
};

}  // namespace cto

using namespace cto;

// dx[position] = dy[j] if the slice has it as number j in every dimension, else 0. n_dy, n_dx:
// words of dY and dX. inner: the last dimension; outer: the n_outer others, from the first sliced
// one on; each with its extent in dX and start, step, direction and count of its slice. A block
// writes a tile of dX.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    slice_grad(const void* dy, void* dx, i64 n_dy, i64 n_dx, i32 n_outer,
               const __grid_constant__ Dimensions outer, const __grid_constant__ Dimension inner) {
    const Unsliced source{static_cast<const T*>(dy), n_dy, n_outer, outer, inner};
    copy_runs::write_tile<Tile>(static_cast<T*>(dx), n_dx, blockIdx.x, source);
}

// dx[position] = dy[j] if the slice has it as number j in every dimension, else 0, for n_rows rows
// of dX that are whole vectors. A thread has the same columns of several rows; column_blocks blocks
// share a row. n_dy: words of dY. inner: the last dimension; outer: the n_outer others, from the
// first sliced one on; each with its extent in dX and start, step, direction and count of its
// slice. With RESIDENT blocks, words of one byte would have too few registers.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT - 1)
    slice_grad__rows(const void* dy, void* dx, i64 n_dy, i64 n_rows, i32 n_outer,
                     const __grid_constant__ Dimensions outer,
                     const __grid_constant__ Dimension inner, u32 column_blocks) {
    const Unsliced source{static_cast<const T*>(dy), n_dy, n_outer, outer, inner};
    write_rows(static_cast<T*>(dx), n_rows, source, column_blocks);
}

// output[row] = input[indices[row]], row < n_output_rows, zeros where the index is not from 0 to
// n_input_rows - 1. width: words of a row. A block writes a tile of output.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    flatten_and_unpad(const void* input, const INDEX* indices, void* output, i64 n_input_rows,
                      i64 n_output_rows, const __grid_constant__ Divisor width) {
    const Selected source{width, static_cast<const T*>(input), n_input_rows, indices};
    copy_runs::write_tile<Tile>(static_cast<T*>(output), n_output_rows * width.value, blockIdx.x,
                                source);
}

// last_rows[indices[row]] = row, the last of n_input_rows rows with this index; entries of other
// targets, of n_output_rows, stay as they are. pad_and_unflatten reads the table. A row a thread;
// threads with one target exchange entries until the last row is there.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    pad_and_unflatten__last_rows(const INDEX* indices, i64* last_rows, i64 n_input_rows,
                                 i64 n_output_rows) {
    const i64 row = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    if (row >= n_input_rows) return;
    const i64 target = indices[row];
    if (target < 0 || target >= n_output_rows) return;
    u64* const entry = reinterpret_cast<u64*>(last_rows + target);
    i64 last = row;
    while (true) {
        const i64 before = static_cast<i64>(atomicExch(entry, static_cast<u64>(last)));
        if (before <= last || !is_row_of(before, n_input_rows, indices, target)) return;
        last = before;  // a later row was replaced: store it again
    }
}

// output[row] = input[last_rows[row]], row < n_output_rows, zeros where that is no row of the
// input, of n_input_rows, or indices[last_rows[row]] is not `row`. width: words of a row. A block
// writes a tile of output.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    pad_and_unflatten(const void* input, const INDEX* indices, const i64* last_rows, void* output,
                      i64 n_input_rows, i64 n_output_rows, const __grid_constant__ Divisor width) {
    const Padded source{width, static_cast<const T*>(input), n_input_rows, indices, last_rows};
    copy_runs::write_tile<Tile>(static_cast<T*>(output), n_output_rows * width.value, blockIdx.x,
                                source);
}
