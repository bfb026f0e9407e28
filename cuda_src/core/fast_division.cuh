// SPDX-License-Identifier: MIT
// Exact 64-bit division by numbers that the host knows: a multiplication and a shift.
#pragma once
#include "core/types.cuh"

namespace cto::fast_division {

using facts::Divisor;  // planning/fast_division.py computes it

// dividend / value, rounded down, by a multiplication and a shift.
__device__ __forceinline__ i64 quotient(i64 dividend, const Divisor& divisor) {
    const u64 high = __umul64hi(2 * static_cast<u64>(dividend), divisor.multiplier);
    return static_cast<i64>(high >> divisor.shift);
}
// dividend / value with half the bits, for dividends below 2^31 and value below 2^31.
__device__ __forceinline__ u32 quotient(u32 dividend, const Divisor& divisor) {
    const u32 upper = static_cast<u32>(divisor.multiplier >> 32) + 1;
    return __umulhi(2 * dividend, upper) >> static_cast<u32>(divisor.shift);
}

// Returns `divisor`, which the compiler then keeps in registers. Left in the launch parameters, it cost
// FastGelu and BiasGelu six registers more in 2-byte types, and 5 to 7 % of their time on an H200.
__device__ __forceinline__ Divisor in_registers(Divisor divisor) {
#ifndef __CUDA_CPU__
    asm("" : "+l"(divisor.value), "+l"(divisor.multiplier), "+l"(divisor.shift));
#endif
    return divisor;
}

struct Cell {
    i64 row, column;
};

// Where a position is in a matrix whose rows have `width` elements.
__device__ __forceinline__ Cell cell_at(i64 position, const Divisor& width) {
    const i64 row = quotient(position, width);
    return {row, position - row * width.value};
}

}  // namespace cto::fast_division
