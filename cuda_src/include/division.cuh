// SPDX-License-Identifier: MIT
// Exact 64-bit division by numbers that the host knows: a multiplication and a shift.
#pragma once
#include "include/types.cuh"

namespace cto {

// runtime/words.py's `divisor` makes one. Dividends are from 0 to 2^63 - 1.
struct Divisor {
    i64 value;
    u64 multiplier;  // 2^(63 + b) / value, rounded up, b the bits of value - 1

    __device__ i64 quotient(i64 dividend) const {
        if (value == 1) return dividend;
        const u64 high = __umul64hi(static_cast<u64>(dividend), multiplier);
        return static_cast<i64>(high >> (63 - __clzll(value - 1)));
    }
};

struct Cell {
    i64 row, column;
};

// A position in a matrix whose rows have `width` elements.
__device__ __forceinline__ Cell cell_at(i64 position, const Divisor& width) {
    const i64 row = width.quotient(position);
    return {row, position - row * width.value};
}

}  // namespace cto
