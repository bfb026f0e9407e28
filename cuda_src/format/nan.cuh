// SPDX-License-Identifier: MIT
// NaN in codecs: only its sign survives. Decoded NaNs have just the highest fraction bit set. Made
// from bits, because conversions on GPUs give NaNs with other bits.
#pragma once
#include "core/types.cuh"

namespace cto::format::nan {

__device__ __forceinline__ bool is_nan(bool) { return false; }
__device__ __forceinline__ bool is_nan(__half x) { return (bits_of(x) & 0x7FFFu) > 0x7C00u; }
__device__ __forceinline__ bool is_nan(__nv_bfloat16 x) { return (bits_of(x) & 0x7FFFu) > 0x7F80u; }
__device__ __forceinline__ bool is_nan(float x) { return (bits_of(x) & 0x7FFFFFFFu) > 0x7F800000u; }
__device__ __forceinline__ bool is_nan(double x) {
    return (bits_of(x) & 0x7FFFFFFFFFFFFFFFull) > 0x7FF0000000000000ull;
}

// The sign bit of x as the highest bit of a word.
__device__ __forceinline__ u32 sign_of(bool) { return 0; }
// The sign of x as bit 31 of a word.
template <class E>
__device__ __forceinline__ u32 sign_of(E x) {
    if constexpr (sizeof(E) == 8)
        return static_cast<u32>(bits_of(x) >> 32) & 0x80000000u;
    else
        return static_cast<u32>(bits_of(x)) << (32 - 8 * sizeof(E)) & 0x80000000u;
}

// The NaN of type E with the sign in the highest bit of `sign`; 0 for types without NaN.
template <class E>
__device__ __forceinline__ E of_sign(u32 sign) {
    if constexpr (ARE_SAME<E, double>)
        return double_of(static_cast<u64>(sign | 0x7FF80000u) << 32);
    else if constexpr (ARE_SAME<E, float>)
        return __uint_as_float(sign | 0x7FC00000u);
    else if constexpr (ARE_SAME<E, __nv_bfloat16>)
        return __ushort_as_bfloat16(static_cast<u16>(sign >> 16 | 0x7FC0u));
    else if constexpr (ARE_SAME<E, __half>)
        return __ushort_as_half(static_cast<u16>(sign >> 16 | 0x7E00u));
    else
        return E();
}

// x rounded to type Y; a NaN keeps its sign.
template <class Y, class X>
__device__ __forceinline__ Y converted(X x) {
    if (is_nan(x)) return of_sign<Y>(sign_of(x));
    if constexpr (ARE_SAME<Y, X>)
        return x;
    else
        return from_acc<Y>(to_acc(x));
}

}  // namespace cto::format::nan
