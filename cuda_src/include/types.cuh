// SPDX-License-Identifier: MIT
// Element types: slots with defaults, sized aliases, conversions.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef CTO_T
#define CTO_T float
#endif

namespace cto {

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

using T = CTO_T;

constexpr int WARP = 32;
constexpr u32 ALL_LANES = 0xFFFFFFFFu;

// Widening to float is exact for all but double, which rounds to nearest.
__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(double x) { return static_cast<float>(x); }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(bool x) { return x ? 1.0f : 0.0f; }

// Narrowing rounds once, to nearest even.
template <class To>
__device__ __forceinline__ To from_float(float x) {
    return static_cast<To>(x);
}
template <>
__device__ __forceinline__ __half from_float<__half>(float x) {
    return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}

// The type that E is computed in, the exact way there, and the way back, which rounds once.
__device__ __forceinline__ float widened(float x) { return x; }
__device__ __forceinline__ float widened(__half x) { return to_float(x); }
__device__ __forceinline__ float widened(__nv_bfloat16 x) { return to_float(x); }
__device__ __forceinline__ double widened(double x) { return x; }
__device__ __forceinline__ bool widened(bool x) { return x; }

template <class E>
using Wide = decltype(widened(E{}));

template <class E>
__device__ __forceinline__ E narrow(Wide<E> x) {
    if constexpr (sizeof(E) == 2)
        return from_float<E>(x);
    else
        return x;
}

// Operations that keep subnormals, which -ftz=true makes the compiler's own ones flush.
__device__ __forceinline__ float multiply_subnormal(float x, float y) {
#ifdef __CUDA_CPU__
    return x * y;
#else
    float product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(x), "f"(y));
    return product;
#endif
}
__device__ __forceinline__ float divide_subnormal(float x, float y) {
#ifdef __CUDA_CPU__
    return x / y;
#else
    float quotient;
    asm("div.rn.f32 %0, %1, %2;" : "=f"(quotient) : "f"(x), "f"(y));
    return quotient;
#endif
}
// Within 2 units in the last place.
__device__ __forceinline__ float divide_roughly(float x, float y) {
#ifdef __CUDA_CPU__
    return x / y;
#else
    float quotient;
    asm("div.full.f32 %0, %1, %2;" : "=f"(quotient) : "f"(x), "f"(y));
    return quotient;
#endif
}
__device__ __forceinline__ double widen_subnormal(float x) {
#ifdef __CUDA_CPU__
    return x;
#else
    double wide;
    asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(x));
    return wide;
#endif
}

__device__ __forceinline__ u16 bits_of(__half x) { return __half_as_ushort(x); }
__device__ __forceinline__ u16 bits_of(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }
__device__ __forceinline__ u32 bits_of(float x) { return __float_as_uint(x); }
__device__ __forceinline__ u64 bits_of(double x) {
    return static_cast<u64>(__double_as_longlong(x));
}
__device__ __forceinline__ double double_of(u64 bits) {
    return __longlong_as_double(static_cast<i64>(bits));
}

}  // namespace cto
