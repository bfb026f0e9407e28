// SPDX-License-Identifier: MIT
// Floating-point formats of a few bits: codes without their signs, rounded to nearest even.
#pragma once
#include "core/types.cuh"

namespace cto::format::narrow_float {

// code = exponent (this BIAS) << FRACTION | fraction, of the float whose bits without the sign are
// `magnitude`, rounded to nearest even; it may be beyond the format's largest. A number below the
// smallest normal one, 2^(1 - BIAS), is rounded by a sum with 2^(24 - BIAS - FRACTION), whose unit
// in the last place is the code's. For others, below_half makes the sum carry if the DROPPED bits
// are above half of the code's unit, or half of it and the code's last bit is 1.
template <int BIAS, int FRACTION>
__device__ __forceinline__ u32 rounded(u32 magnitude) {
    constexpr u32 SMALLEST_NORMAL = (128u - BIAS) << 23;
    constexpr u32 ADDED = (151u - BIAS - FRACTION) << 23;
    constexpr int DROPPED = 23 - FRACTION;
    if (magnitude < SMALLEST_NORMAL)
        return bits_of(__uint_as_float(magnitude) + __uint_as_float(ADDED)) - ADDED;
    const u32 below_half = (1u << (DROPPED - 1)) - 1 + (magnitude >> DROPPED & 1u);
    return ((magnitude + below_half) >> DROPPED) - ((127u - BIAS) << FRACTION);
}
// code = exponent (this BIAS) << FRACTION | fraction, of the double whose bits without the sign are
// `magnitude`, rounded to nearest even; it may be beyond the format's largest. A number below 2^(1
// - BIAS) is rounded by a sum with 2^(53 - BIAS - FRACTION).
template <int BIAS, int FRACTION>
__device__ __forceinline__ u32 rounded(u64 magnitude) {
    constexpr u64 SMALLEST_NORMAL = (1024ull - BIAS) << 52;
    constexpr u64 ADDED = (1076ull - BIAS - FRACTION) << 52;
    constexpr int DROPPED = 52 - FRACTION;
    if (magnitude < SMALLEST_NORMAL)
        return static_cast<u32>(bits_of(double_of(magnitude) + double_of(ADDED)) - ADDED);
    const u64 below_half = (1ull << (DROPPED - 1)) - 1 + (magnitude >> DROPPED & 1u);
    return static_cast<u32>(((magnitude + below_half) >> DROPPED) - ((1023ull - BIAS) << FRACTION));
}

}  // namespace cto::format::narrow_float
