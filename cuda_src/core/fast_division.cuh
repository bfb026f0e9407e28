// SPDX-License-Identifier: MIT
// Exact integer division by a divisor that the host knows: a multiplication and a shift.
#pragma once
#include "core/types.cuh"

namespace cto::fast_division {

using facts::Divisor;  // planning/fast_division.py computes it

// dividend / divisor.value, rounded down, for 0 <= dividend < 2^63. With m = divisor.multiplier =
// 2^(63 + shift) / value, rounded up, it is (2 dividend m) >> (64 + shift); __umul64hi shifts by
// 64.
__device__ __forceinline__ i64 quotient(i64 dividend, const Divisor& divisor) {
    const u64 high = __umul64hi(2 * static_cast<u64>(dividend), divisor.multiplier);
    return static_cast<i64>(high >> divisor.shift);
}
// dividend / divisor.value, rounded down, both below 2^31, in 32-bit instructions.
__device__ __forceinline__ u32 quotient(u32 dividend, const Divisor& divisor) {
    const u32 upper = static_cast<u32>(divisor.multiplier >> 32) + 1;  // > 2^(31 + shift) / value
    return __umulhi(2 * dividend, upper) >> static_cast<u32>(divisor.shift);
}

// Returns `divisor`, but in registers instead of launch parameters (constant memory): saved
// FastGelu and BiasGelu in 2-byte types six other registers, and 5 to 7 % of their time on an H200.
__device__ __forceinline__ Divisor in_registers(Divisor divisor) {
#ifndef __CUDA_CPU__
    asm("" : "+l"(divisor.value), "+l"(divisor.multiplier), "+l"(divisor.shift));
#endif
    return divisor;
}

// A cell of a matrix.
struct Cell {
    i64 row, column;
};

// Element `position` of a matrix with rows of `width` elements: {row, column} = {position / width,
// position % width}.
__device__ __forceinline__ Cell cell_at(i64 position, const Divisor& width) {
    const i64 row = quotient(position, width);
    return {row, position - row * width.value};
}

}  // namespace cto::fast_division
