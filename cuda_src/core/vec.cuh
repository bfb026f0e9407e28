// SPDX-License-Identifier: MIT
// Vectors: neighbouring elements that are loaded and stored together, 16 bytes at a time.
#pragma once
#include "core/types.cuh"

namespace cto::vec {

// Elements in 16 bytes.
template <class E>
constexpr int WIDTH = 16 / sizeof(E);

// N neighbouring elements, aligned so that they are moved by instructions of up to 16 bytes.
template <class E, int N>
struct alignas(sizeof(E) * N < 16 ? sizeof(E) * N : 16) Vec {
    E at[N];
};

// ---- addresses ----------------------------------------------------------------------------------

// address % 16.
__device__ __forceinline__ u32 bytes_past_16(const void* address) {
    return static_cast<u32>(reinterpret_cast<u64>(address)) & 15u;
}

// Number of elements of `array` before the first whose address is a multiple of 16; 0 if the array
// itself begins at one.
template <class E>
__device__ __forceinline__ i64 elements_to_16(const E* array) {
    return (16u - bytes_past_16(array)) % 16u / sizeof(E);
}

// ---- loads and stores ---------------------------------------------------------------------------

// *from. A load of 16 bytes is marked evict-first in the caches: for data that is read once.
template <class V>
__device__ __forceinline__ V load_streaming(const V* from) {
    if constexpr (sizeof(V) == 16) {
        V loaded;
        *reinterpret_cast<uint4*>(&loaded) = __ldcs(reinterpret_cast<const uint4*>(from));
        return loaded;
    } else {
        return *from;
    }
}

// *from, marked evict-last in the caches, so that stores do not displace it: for data that is read
// while as much is written. GPUs before 8.0 have no such mark.
#if !defined(__CUDA_CPU__) && __CUDA_ARCH__ >= 800
constexpr bool HAS_PRIORITIES = true;
__device__ __forceinline__ uint4 load_before_stores(const uint4* from) {
    uint4 x;
    asm volatile(
        "{ .reg .b64 policy; createpolicy.fractional.L2::evict_last.b64 policy, 1.0;"
        " ld.global.L1::evict_last.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], policy; }"
        : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
        : "l"(from)
        : "memory");
    return x;
}
#else
constexpr bool HAS_PRIORITIES = false;
__device__ __forceinline__ uint4 load_before_stores(const uint4* from) { return *from; }
#endif

// *from, by a read-only load (__ldg), which the compiler may move up past stores: for memory that
// no thread writes while the kernel runs.
template <class V>
__device__ __forceinline__ V load_constant(const V* from) {
    V loaded;
    if constexpr (sizeof(V) == 16)
        *reinterpret_cast<uint4*>(&loaded) = __ldg(reinterpret_cast<const uint4*>(from));
    else if constexpr (sizeof(V) == 8)
        *reinterpret_cast<uint2*>(&loaded) = __ldg(reinterpret_cast<const uint2*>(from));
    else
        loaded = *from;
    return loaded;
}

// *to = value. A store of 8 or a multiple of 16 bytes is marked evict-first in the caches, as
// outputs are larger than they are.
template <class V>
__device__ __forceinline__ void store_streaming(V* to, const V& value) {
    if constexpr (sizeof(V) % 16 == 0) {
#pragma unroll
        for (int i = 0; i < static_cast<int>(sizeof(V) / 16); ++i)
            __stcs(reinterpret_cast<uint4*>(to) + i, reinterpret_cast<const uint4*>(&value)[i]);
    } else if constexpr (sizeof(V) == 8) {
        __stcs(reinterpret_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&value));
    } else {
        *to = value;
    }
}

// The elements [first, first + N) of an array of n elements at `from`, loaded one by one, with
// zeros from n on: for the end of an array, and for arrays that are not aligned.
template <class E, int N>
__device__ __forceinline__ Vec<E, N> load_elements(const E* from, i64 first, i64 n) {
    Vec<E, N> loaded{};
#pragma unroll
    for (int i = 0; i < N; ++i)
        if (first + i < n) loaded.at[i] = from[first + i];
    return loaded;
}
// to[first + i] = value.at[i], i < N and first + i < n, one by one.
template <class E, int N>
__device__ __forceinline__ void store_elements(E* to, i64 first, i64 n, const Vec<E, N>& value) {
#pragma unroll
    for (int i = 0; i < N; ++i)
        if (first + i < n) to[first + i] = value.at[i];
}

// ---- widening ---------------------------------------------------------------------------------

// True if a vector is kept in registers as 32-bit words: elements of 1 or 2 bytes, which would else
// take a register each.
template <class E, int WIDTH>
constexpr bool IN_WORDS = sizeof(E) < sizeof(u32) && sizeof(E) * WIDTH >= sizeof(u32);

// How a vector of elements E lies in registers: as an array of units, of type Register. A unit is
// one element, or, with WORDS, a 32-bit word of 2 or 4 neighbouring elements, the first in its low
// bits.
//     at(units, i)   element i of the vector, as its accumulator type
//     fill(x)        a unit whose elements are all x
template <class E, bool WORDS>
struct Unit {
    using Register = E;
    static __device__ Register fill(E x) { return x; }
    static __device__ Acc<E> at(const Register* units, int i) { return to_acc(units[i]); }
};
// Unit for 2-byte elements and bools, EACH of them in a word.
template <class E>
struct Unit<E, /*WORDS=*/true> {
    using Register = u32;
    static constexpr int EACH = sizeof(u32) / sizeof(E);  // elements in a word
    static __device__ Register fill(E x) {  // the product repeats the 16 or 8 bits of x
        return bits_of(x) * (EACH == 2 ? 0x10001u : 0x1010101u);
    }
    static __device__ Acc<E> at(const Register* units, int i) {
        return widened(units[i / EACH], i % EACH, E());
    }

  private:
    // Element i of a word; the last parameter only says its type. A bfloat16 is the upper half of a
    // float's bits.
    static __device__ float widened(u32 word, int i, __nv_bfloat16) {
        return __uint_as_float(i == 0 ? word << 16 : word & 0xFFFF0000u);
    }
    static __device__ float widened(u32 word, int i, __half) {
        const __half2 both = *reinterpret_cast<const __half2*>(&word);
        return i == 0 ? __low2float(both) : __high2float(both);
    }
    static __device__ bool widened(u32 word, int i, bool) { return word & 0xFFu << 8 * i; }
};

// Compiler barrier: keeps loads that stand above the call from being moved below it, as the
// compiler does to save registers. So all of them are issued before the first is used.
__device__ __forceinline__ void all_are_asked_for() {
#ifndef __CUDA_CPU__
    asm volatile("" ::: "memory");
#endif
}

// N neighbouring elements of an array, in registers. Addresses are aligned to the N elements' size,
// at most 16 bytes.
template <class E, int N>
struct Elements {
    using Unit = vec::Unit<E, IN_WORDS<E, N>>;
    using Register = typename Unit::Register;
    Vec<Register, N * sizeof(E) / sizeof(Register)> registers;

    // Loads the N elements at `from`.
    __device__ __forceinline__ void load(const E* from) {
        registers = *reinterpret_cast<const decltype(registers)*>(from);
    }
    // Loads the N elements at `from`, 16 bytes, marked evict-last in the caches: for data that is
    // read while as much is written.
    __device__ __forceinline__ void load_before_stores(const E* from) {
        *reinterpret_cast<uint4*>(&registers) =
            vec::load_before_stores(reinterpret_cast<const uint4*>(from));
    }
    // Element i as its accumulator type.
    __device__ __forceinline__ Acc<E> at(int i) const { return Unit::at(registers.at, i); }
};

// larger_pair(x, y, E()): x and y are words of two 2-byte elements E each; returns the word
// {max(x[0], y[0]), max(x[1], y[1])}. One instruction since compute capability 8.0; before,
// HAS_LARGER_PAIR is false, and the result is x: it must not be called.
#if defined(__CUDA_CPU__)
constexpr bool HAS_LARGER_PAIR = true;
// The larger of each of two elements, compared as floats.
template <class E>
__device__ __forceinline__ u32 larger_pair(u32 x, u32 y, E) {
    Vec<E, 2> of_x, of_y;
    *reinterpret_cast<u32*>(&of_x) = x;
    *reinterpret_cast<u32*>(&of_y) = y;
    for (int i = 0; i < 2; ++i)
        of_x.at[i] = cto::from_acc<E>(fmaxf(to_acc(of_x.at[i]), to_acc(of_y.at[i])));
    return *reinterpret_cast<const u32*>(&of_x);
}
#else
constexpr bool HAS_LARGER_PAIR = __CUDA_ARCH__ >= 800;
// The larger of each of two float16.
__device__ __forceinline__ u32 larger_pair(u32 x, u32 y, __half) {
    u32 larger = x;
#if __CUDA_ARCH__ >= 800
    asm("max.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(x), "r"(y));
#endif
    return larger;
}
// The larger of each of two bfloat16.
__device__ __forceinline__ u32 larger_pair(u32 x, u32 y, __nv_bfloat16) {
    u32 larger = x;
#if __CUDA_ARCH__ >= 800
    asm("max.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(x), "r"(y));
#endif
    return larger;
}
#endif

// Loads N elements E at `from` as one vector; to[i] = element i as its accumulator type. CONSTANT:
// by a read-only load, for memory that no thread writes while the kernel runs.
template <class E, bool CONSTANT = false, int N>
__device__ __forceinline__ void widen(const void* from, Acc<E> (&to)[N]) {
    using Unit = vec::Unit<E, IN_WORDS<E, N>>;
    using Register = typename Unit::Register;
    using Words = Vec<Register, N * sizeof(E) / sizeof(Register)>;
    const auto* const address = reinterpret_cast<const Words*>(from);
    const Words words = CONSTANT ? load_constant(address) : *address;
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = Unit::at(words.at, i);
}

// ---- rounding -----------------------------------------------------------------------------------

// to[k] = from[k] rounded to E, k < 2; one instruction for 2-byte types.
template <class E, class A>
__device__ __forceinline__ void round_pair(const A* from, E* to) {
    to[0] = cto::from_acc<E>(from[0]);
    to[1] = cto::from_acc<E>(from[1]);
}
__device__ __forceinline__ void round_pair(const float* from, __half* to) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(from[0], from[1]);
}
__device__ __forceinline__ void round_pair(const float* from, __nv_bfloat16* to) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(from[0], from[1]);
}

// The N values rounded to element type E, as a vector.
template <class E, class A, int N>
__device__ __forceinline__ Vec<E, N> from_acc(const A (&values)[N]) {
    Vec<E, N> rounded;
#pragma unroll
    for (int i = 0; i + 1 < N; i += 2) round_pair(values + i, rounded.at + i);
    if constexpr (N % 2 == 1) rounded.at[N - 1] = cto::from_acc<E>(values[N - 1]);
    return rounded;
}

}  // namespace cto::vec
