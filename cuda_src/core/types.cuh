// SPDX-License-Identifier: MIT
// Integer types by size; element types, their accumulators, and conversions between the two.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/facts.cuh"

namespace cto {

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

using facts::WARP;
constexpr u32 ALL_LANES = 0xFFFFFFFFu;
// Resident blocks in __launch_bounds__ of kernels that may take any number of registers. The compiler
// of CUDA 13.5 spills some for the sake of more resident blocks, unless it is told of one; 0 leaves the
// number to the compiler.
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1305
constexpr int ONE_RESIDENT = 1;
#else
constexpr int ONE_RESIDENT = 0;
#endif

template <class A, class B>
constexpr bool ARE_SAME = false;
template <class A>
constexpr bool ARE_SAME<A, A> = true;

// std::conditional; NVRTC has no standard headers.
template <bool IS_FIRST, class First, class Second>
struct ConditionalOf {
    using Type = First;
};
template <class First, class Second>
struct ConditionalOf<false, First, Second> {
    using Type = Second;
};
template <bool IS_FIRST, class First, class Second>
using Conditional = typename ConditionalOf<IS_FIRST, First, Second>::Type;

// The accumulator of an element type is the type in which it is computed and summed. Those of
// integers are unsigned: their sums wrap around, where a signed overflow is undefined. Bools are
// never summed.
__device__ bool accumulator_of(bool);
__device__ float accumulator_of(__half);
__device__ float accumulator_of(__nv_bfloat16);
__device__ float accumulator_of(float);
__device__ double accumulator_of(double);
__device__ u32 accumulator_of(u32);
__device__ u32 accumulator_of(i32);
__device__ u64 accumulator_of(u64);
__device__ u64 accumulator_of(i64);

template <class E>
using Acc = decltype(accumulator_of(E{}));

// x as its accumulator type; exact.
template <class E>
__device__ __forceinline__ Acc<E> to_acc(E x) {
    return static_cast<Acc<E>>(x);
}

// x, an accumulator, rounded once to element type E, to nearest even.
template <class E, class A>
__device__ __forceinline__ E from_acc(A x) {
    return static_cast<E>(x);
}

// x * y without flushing subnormals, which -ftz=true does to `*` but not to inline assembly.
__device__ __forceinline__ float multiply_subnormal(float x, float y) {
#ifdef __CUDA_CPU__
    return x * y;
#else
    float product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(x), "f"(y));
    return product;
#endif
}
// x / y without flushing subnormals.
__device__ __forceinline__ float divide_subnormal(float x, float y) {
#ifdef __CUDA_CPU__
    return x / y;
#else
    float quotient;
    asm("div.rn.f32 %0, %1, %2;" : "=f"(quotient) : "f"(x), "f"(y));
    return quotient;
#endif
}
__device__ __forceinline__ double multiply_subnormal(double x, double y) { return x * y; }
__device__ __forceinline__ double divide_subnormal(double x, double y) { return x / y; }
// 1 / y within 1 unit in the last place; 0 where that is subnormal.
__device__ __forceinline__ float fast_reciprocal(float y) {
#ifdef __CUDA_CPU__
    const float nearest = 1 / y;
    return fabsf(nearest) < 0x1p-126f ? copysignf(0.0f, nearest) : nearest;
#else
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(y));
    return reciprocal;
#endif
}
// x / y within 2 units in the last place, without flushing subnormals.
__device__ __forceinline__ float fast_divide(float x, float y) {
#ifdef __CUDA_CPU__
    return x / y;
#else
    float quotient;
    asm("div.full.f32 %0, %1, %2;" : "=f"(quotient) : "f"(x), "f"(y));
    return quotient;
#endif
}
__device__ __forceinline__ double fast_divide(double x, double y) { return x / y; }
// x as a double, exactly: with -ftz=true, a cast would flush a subnormal to 0.
__device__ __forceinline__ double widen_subnormal(float x) {
#ifdef __CUDA_CPU__
    return x;
#else
    double wide;
    asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(x));
    return wide;
#endif
}

// x * y as 64 bits, by one instruction. The compiler itself widens a constant y to 64 bits first,
// and multiplies its upper half, 0, too.
__device__ __forceinline__ u64 multiply_wide(u32 x, u32 y) {
#ifdef __CUDA_CPU__
    return static_cast<u64>(x) * y;
#else
    u64 product;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(x), "r"(y));
    return product;
#endif
}

// The bits of x as an unsigned integer.
__device__ __forceinline__ u8 bits_of(bool x) { return x; }
__device__ __forceinline__ u16 bits_of(__half x) { return __half_as_ushort(x); }
__device__ __forceinline__ u16 bits_of(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }
__device__ __forceinline__ u32 bits_of(float x) { return __float_as_uint(x); }
__device__ __forceinline__ u64 bits_of(double x) {
    return static_cast<u64>(__double_as_longlong(x));
}
// The double with these bits.
__device__ __forceinline__ double double_of(u64 bits) {
    return __longlong_as_double(static_cast<i64>(bits));
}

}  // namespace cto
