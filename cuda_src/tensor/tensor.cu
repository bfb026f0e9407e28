// SPDX-License-Identifier: MIT
// Tensor movement.  CPU provider: cupy_training_ops/families/tensor/reference.py
//
// Elements are only copied, so arrays are `void*`, and all lengths count words of type T, whatever
// the element type; see algorithm/copy_runs.cuh. A Source's at(position) is the run of input words
// that the output has from `position` on.
#include "algorithm/copy_runs.cuh"
#include "core/fast_division.cuh"
#include "tensor/facts.cuh"

// T: the type of words. A vector has WORDS words, a thread writes CHUNKS vectors.
#ifndef CTO_T
#define CTO_T u8
#endif

namespace cto {

using namespace facts::tensor;
using copy_runs::RESIDENT;
using facts::Pointers;
using facts::WORDS;
using fast_division::Cell;
using fast_division::cell_at;
using fast_division::Divisor;

using T = CTO_T;
using Run = copy_runs::Run<T>;

using Tile = copy_runs::Tiling<T, WORDS, CHUNKS, THREADS>;

// Returns the largest i < count with start(i) <= position, starts ascending. Tries `guess` and the
// next first, then bisection.
template <class Start>
__device__ __forceinline__ u32 find_part(const Start& start, u32 count, i64 position, u32 guess) {
    u32 low = 0, high = count;
    const auto probe = [&](u32 i) {
        if (i <= low || i >= high) return;
        (start(i) <= position ? low : high) = i;
    };
    probe(guess);
    probe(guess + 1);
    while (high - low > 1) probe((low + high) / 2);
    return low;
}

// ---- ConcatTraining: columns of the result come from parts that start at ascending columns ------

// parts.array(i) is part i, parts(i) the column of the result at which it starts; parts(n_parts) is
// the width of the result.
struct PartsByValue {
    const Pointers<CAPACITY>& arrays;
    const PartStarts<CAPACITY>& starts;
    __device__ const T* array(u32 i) const { return static_cast<const T*>(arrays.at[i]); }
    __device__ i64 operator()(u32 i) const { return starts.at[i]; }
};

// Parts of a table in memory: parts.array(i) is part i, parts(i) the column of the result at which
// it starts.
struct PartsInMemory {
    const Part* parts;
    __device__ const T* array(u32 i) const { return static_cast<const T*>(parts[i].array); }
    __device__ i64 operator()(u32 i) const { return parts[i].start; }
};

// Source of the result of a concatenation of n_parts parts (PartsByValue or PartsInMemory), n_rows
// rows of whole_width words: at() finds the part that a position is copied from. if_even: its
// number if all parts were as wide.
template <class Parts>
struct Joined {
    Divisor whole_width;
    i64 n_rows;
    u32 n_parts;
    Parts parts;

    // Where element `position` of the concatenation comes from: its address in one of the inputs,
    // and how many neighbours follow there.
    __device__ Run at(i64 position) const {
        const Cell cell = cell_at(position, whole_width);
        const u32 if_even =
            static_cast<u32>(fast_division::quotient(cell.column * n_parts, whole_width));
        const u32 i = find_part(parts, n_parts, cell.column, if_even);
        const i64 width = parts(i + 1) - parts(i);
        const i64 column = cell.column - parts(i);
        const T* array = parts.array(i);
        const T* row = array + cell.row * width;
        return {row + column, width - column, /*begin=*/array, /*end=*/array + n_rows * width};
    }
};

// Writes the block's tile of `out`, n_rows rows of `width` words, the concatenation of n_parts
// parts. ARE_LONG: most tiles lie in one part's row.
template <bool ARE_LONG, class Parts>
__device__ __forceinline__ void concat(void* out, i64 n_rows, const Divisor& width, u32 n_parts,
                                       const Parts& parts) {
    const Joined<Parts> source{width, n_rows, n_parts, parts};
    copy_runs::write_tile<Tile, ARE_LONG>(static_cast<T*>(out), n_rows * width.value, blockIdx.x,
                                          source);
}

// ---- SplitTraining: a part is some columns of the input -----------------------------------------

// Source of one part: columns [start, start + width) of the input, which is `whole`, n words in
// rows of whole_width.
struct InputColumns {
    Divisor width;
    const T* whole;
    i64 n, whole_width, start;

    // Where element `position` of one part comes from: its address in the whole array, and how many
    // neighbours follow.
    __device__ Run at(i64 position) const {
        const Cell cell = cell_at(position, width);
        const T* from = whole + cell.row * whole_width + start + cell.column;
        return {from, width.value - cell.column, /*begin=*/whole, /*end=*/whole + n};
    }
};

// Positions 0 .. n_rows * whole_width over all parts one after the other: part 0, part 1, ...; part
// i is an (n_rows, width) array that takes the columns from parts[i].start on of the whole.
struct AllParts {
    i64 n_rows, whole_width;
    Divisor even;  // words of a part, if all have the same number
    u32 n_parts;
    const Part* parts;

    // A word: its index in the whole, and its address in its part.
    struct Word {
        i64 in_whole;
        T* in_part;
    };
    // Where element `position` of all parts, one after the other, is: its index in the whole array,
    // its address in its part.
    __device__ Word at(i64 position) const {
        const auto start = [&](u32 i) { return parts[i].start * n_rows; };
        const u32 if_even = static_cast<u32>(fast_division::quotient(position, even));
        const u32 i = find_part(start, n_parts, position, if_even);
        const i64 width = parts[i + 1].start - parts[i].start, own = position - start(i);
        const bool is_short = own >> 32 == 0 && width >> 32 == 0;
        // Unsigned, as with signed divisions CUDA 13 spills for 10.0.
        const i64 row = is_short ? static_cast<u32>(own) / static_cast<u32>(width)
                                 : static_cast<u64>(own) / static_cast<u64>(width);
        return {row * whole_width + parts[i].start + (own - row * width),
                static_cast<T*>(parts[i].array) + own};
    }
    // Copies CHUNKS words of this thread: store(word, load(word)), all loads before the first
    // store.
    template <class Load, class Store>
    __device__ __forceinline__ void copy(const Load& load, const Store& store) const {
        const i64 n = n_rows * whole_width;
        const i64 first = static_cast<i64>(blockIdx.x) * (CHUNKS * THREADS) + threadIdx.x;
        T loaded[CHUNKS];
        Word words[CHUNKS];
#pragma unroll
        for (int k = 0; k < CHUNKS; ++k) {
            if (first + k * THREADS >= n) break;
            words[k] = at(first + k * THREADS);
            loaded[k] = load(words[k]);
        }
#pragma unroll
        for (int k = 0; k < CHUNKS; ++k)
            if (first + k * THREADS < n) store(words[k], loaded[k]);
    }
};

// Start of find_part: the first tile of the launch that part i has.
struct SplitTiles {
    const Split<CAPACITY>& split;
    __device__ i64 operator()(u32 i) const { return split.tile[i]; }
};

}  // namespace cto

using namespace cto;

// concat_result[row] = inputs[0][row], inputs[1][row], ... of n_parts inputs, one behind the other:
// part i starts at column starts[i]. The result has n_rows rows of `width` words; a block writes
// one tile of it.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    concat_training(void* concat_result, i64 n_rows, const __grid_constant__ Divisor width,
                    u32 n_parts, const __grid_constant__ Pointers<CAPACITY> inputs,
                    const __grid_constant__ PartStarts<CAPACITY> starts) {
    concat</*ARE_LONG=*/true>(concat_result, n_rows, width, n_parts, PartsByValue{inputs, starts});
}

// table[first + i] = {parts[i], starts[i]}, i < n_parts, and {null, the end of the last part}. For
// more parts than launch arguments have room for: several launches write the table, one reads it.
// One block.
extern "C" __global__ void tensor__table(Part* table, i64 first, u32 n_parts,
                                         const __grid_constant__ Pointers<CAPACITY> parts,
                                         const __grid_constant__ PartStarts<CAPACITY> starts) {
    const u32 i = threadIdx.x;
    if (i <= n_parts) table[first + i] = {i < n_parts ? parts.at[i] : nullptr, starts.at[i]};
}
// table[first + i] = {parts[i], (first + i) * width}, i < n_parts, and {null, the end of the last
// part}: parts of `width` columns each. One block; several launches may write one table.
extern "C" __global__ void tensor__even_table(Part* table, i64 first, u32 n_parts, i64 width,
                                              const __grid_constant__ Pointers<CAPACITY> parts) {
    const u32 i = threadIdx.x;
    if (i <= n_parts) table[first + i] = {i < n_parts ? parts.at[i] : nullptr, (first + i) * width};
}

// concat_result[row] = part 0's row, part 1's row, ... of n_parts parts, one behind the other, for
// many parts: part i is table[i].array and starts at column table[i].start. The result has n_rows
// rows of `width` words; a block writes one tile of it.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    concat_training__many(void* concat_result, i64 n_rows, const __grid_constant__ Divisor width,
                          u32 n_parts, const Part* table) {
    concat</*ARE_LONG=*/false>(concat_result, n_rows, width, n_parts, PartsInMemory{table});
}

// outputs[i][row] = input[row][split.column[i] .. split.column[i + 1]), row < n_rows, i < n_parts;
// a row of the input has `width` words. A block writes one tile of one part; part i has the blocks
// from split.tile[i] on. The Divisor of a part's width is put together here, as the launch has room
// for multipliers only.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    split_training(const void* input, i64 n_rows, i64 width, u32 n_parts,
                   const __grid_constant__ Pointers<CAPACITY> outputs,
                   const __grid_constant__ Split<CAPACITY> split) {
    const u32 i = find_part(SplitTiles{split}, n_parts, blockIdx.x, n_parts / 2);
    const i64 part_width = split.column[i + 1] - split.column[i];
    const InputColumns source{
        /*width=*/{part_width, split.multiplier[i], 64 - __clzll(part_width - 1)},
        static_cast<const T*>(input),
        /*n=*/n_rows * width,
        /*whole_width=*/width,
        /*start=*/split.column[i]};
    copy_runs::write_tile<Tile, /*ARE_LONG=*/true>(
        static_cast<T*>(outputs.at[i]), n_rows * part_width, blockIdx.x - split.tile[i], source);
}

// concat_result[row] = part 0's row, part 1's row, ... of n_parts parts, part i being
// table[i].array from column table[i].start on, for wide parts whose runs have no whole vectors:
// threads copy single words, neighbouring threads neighbouring words of the parts. The result has
// n_rows rows of `width` words. even: words of a part, if all have the same number.
extern "C" __global__ void __launch_bounds__(THREADS)
    concat_training__words(void* concat_result, i64 n_rows, i64 width,
                           const __grid_constant__ Divisor even, u32 n_parts, const Part* table) {
    T* const whole = static_cast<T*>(concat_result);
    AllParts{n_rows, /*whole_width=*/width, even, n_parts, /*parts=*/table}.copy(
        [](const AllParts::Word& word) { return __ldcs(word.in_part); },
        [=](const AllParts::Word& word, const T& x) { __stcs(whole + word.in_whole, x); });
}
// table[i].array[row] = input[row][table[i].start .. table[i + 1].start), row < n_rows, i <
// n_parts; a row of the input has `width` words. Threads copy single words, neighbouring threads
// neighbouring words of the parts. even: words of a part, if all have the same number.
extern "C" __global__ void __launch_bounds__(THREADS)
    split_training__words(const void* input, i64 n_rows, i64 width,
                          const __grid_constant__ Divisor even, u32 n_parts, const Part* table) {
    const T* const whole = static_cast<const T*>(input);
    AllParts{n_rows, /*whole_width=*/width, even, n_parts, /*parts=*/table}.copy(
        [=](const AllParts::Word& word) { return __ldcs(whole + word.in_whole); },
        [](const AllParts::Word& word, const T& x) { __stcs(word.in_part, x); });
}
