// SPDX-License-Identifier: MIT
// A sparse code of elements of one type: its parts, tiles and groups of values.
//
//     code | head | starts, 8 bytes a tile | mask | values of tile 0 | values of tile 1 | ...
//          0      16                      mask   values
#pragma once
#include "gist_sparse/mask.cuh"
#include "gist_sparse/values.cuh"

// T: elements, or words of their size (Pair: 16 bytes) where values are as they are. VALUES: what values become.
#ifndef CTO_T
#define CTO_T u32
#endif
#ifndef CTO_VALUES
#define CTO_VALUES AsTheyAre
#endif

namespace cto::gist_sparse::code {

using namespace facts::gist_sparse;
using namespace mask;
using namespace tile;
using namespace values;

using T = CTO_T;
using Values = CTO_VALUES<T>;

constexpr int WIDTH = vec::WIDTH<T>;
constexpr int GROUP = Values::GROUP;
constexpr int GROUPS = (TILE<T> + GROUP - 1) / GROUP;  // that a tile's values have at most
// Vectors of a tile that each thread has where a block has THREADS.
constexpr int DECODED_ROWS = TILE_NBYTES / (16 * THREADS);

// A code's parts, in bytes from its beginning; nbytes of it are there.
struct Code {
    i64 nbytes, mask, values;
};

__device__ __forceinline__ i64 tiles_of(i64 n) { return (n + TILE<T> - 1) / TILE<T>; }
__device__ __forceinline__ u32 groups_of(u32 count) { return (count + GROUP - 1) / GROUP; }

}  // namespace cto::gist_sparse::code
