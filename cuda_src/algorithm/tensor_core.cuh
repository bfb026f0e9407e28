// SPDX-License-Identifier: MIT
// Products of fragments, mma.sync: D (16 x 8) += A (16 x K) B (K x 8), in the registers of a warp.
//
// K = 16 for float16 and bfloat16, K = 8 for floats in TF32. Sums are float. A word has P
// neighbouring k: 2 elements of two bytes, or 1 float. Word i of lane 4 g + t (t < 4) is
//
//     A   row g + 8 (i % 2), k from P t + 4 P (i / 2) on
//     B   column g, k from P t + 4 P i on
//     D   row g + 8 (i / 2), column 2 t + i % 2
//
// GPUs before 8.0 do the same with shuffles.
#pragma once
#include "core/vec.cuh"

namespace cto::tensor_core {

template <class E>
constexpr int K = sizeof(E) == 2 ? 16 : 8;

using A = u32[4];  // a lane's words of A
using B = u32[2];  // a lane's words of B; its four of D are float[4]

// x rounded to the 10 bits of a TF32's mantissa, ties away from zero: 0x1000 is half of its last
// bit, the lower 13 bits are cut off.
__device__ __forceinline__ float to_tf32(float x) {
#if defined(__CUDA_CPU__) || __CUDA_ARCH__ < 800
    const u32 bits = __float_as_uint(x);
    const bool is_finite = (bits & 0x7F800000u) != 0x7F800000u;
    return is_finite ? __uint_as_float((bits + 0x1000u) & 0xFFFFE000u) : x;
#else
    u32 rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
    return __uint_as_float(rounded);
#endif
}

// ---- fragments from shared memory ---------------------------------------------------------------

#if !defined(__CUDA_CPU__) && __CUDA_ARCH__ >= 800
// ldmatrix.x4: loads four matrices of 8 rows of 16 bytes, one to each of w0 to w3; lane l passes
// the address of row l % 8 of matrix l / 8. Lane 4 g + t gets word t of row g, or, TRANSPOSED, the
// 2-byte elements 2 t and 2 t + 1 of column g.
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(const void* row, u32& w0, u32& w1, u32& w2, u32& w3) {
    const u32 from = static_cast<u32>(__cvta_generic_to_shared(row));
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(w0), "=r"(w1), "=r"(w2), "=r"(w3)
                     : "r"(from));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(w0), "=r"(w1), "=r"(w2), "=r"(w3)
                     : "r"(from));
}
#endif

// A fragment's word: *from, a float, or the 2-byte elements from[0] (lower half) and from[step].
template <class E>
__device__ __forceinline__ u32 word_at(const E* from, int step) {
    if constexpr (sizeof(E) == 4)
        return bits_of(*from);
    else
        return bits_of(from[0]) | static_cast<u32>(bits_of(from[step])) << 16;
}

// The offset, in elements from the fragment's first, that this lane passes to load_a: with ldmatrix
// (2-byte elements) of the row of 16 bytes that it loads, else of its first word. Element (row, k)
// of A is at row * pitch + k if BY_ROWS, else at k * pitch + row; rows of memory begin at multiples
// of 16 bytes.
template <class E, bool BY_ROWS>
__device__ __forceinline__ int place_in_a(int pitch) {
    const int lane = threadIdx.x % WARP;
#if !defined(__CUDA_CPU__) && __CUDA_ARCH__ >= 800
    if constexpr (sizeof(E) == 2) {
        // Matrices 0 to 3 are words 0 to 3: rows + 8 in odd ones, k + 8 in the last two.
        const int low = lane % 8, middle = lane / 8 % 2 * 8, high = lane / 16 * 8;
        return BY_ROWS ? (low + middle) * pitch + high : (low + high) * pitch + middle;
    }
#endif
    const int k = lane % 4 * static_cast<int>(4 / sizeof(E)), row = lane / 4;
    return BY_ROWS ? row * pitch + k : k * pitch + row;
}
// The offset, in elements, that this lane passes to load_b. Element (k, column) of B is at column *
// pitch + k if BY_COLUMNS, else at k * pitch + column.
template <class E, bool BY_COLUMNS>
__device__ __forceinline__ int place_in_b(int pitch) {
    const int lane = threadIdx.x % WARP;
#if !defined(__CUDA_CPU__) && __CUDA_ARCH__ >= 800
    if constexpr (sizeof(E) == 2) {
        // Matrices 0 to 3 are b[0], b[1], next[0], next[1]: k + 8 in odd ones, columns + 8 in
        // `next`.
        const int low = lane % 8, middle = lane / 8 % 2 * 8, high = lane / 16 * 8;
        return BY_COLUMNS ? (low + high) * pitch + middle : (low + middle) * pitch + high;
    }
#endif
    const int k = lane % 4 * static_cast<int>(4 / sizeof(E)), column = lane / 4;
    return BY_COLUMNS ? column * pitch + k : k * pitch + column;
}

// Loads the fragment a (16 x K); `from` is the address of its first element + place_in_a. Element
// (row, k) is at row * pitch + k if BY_ROWS, else at k * pitch + row; pitch: in elements.
template <bool BY_ROWS, class E>
__device__ __forceinline__ void load_a(const E* from, int pitch, A& a) {
#if !defined(__CUDA_CPU__) && __CUDA_ARCH__ >= 800
    if constexpr (sizeof(E) == 2) {
        load_matrices<!BY_ROWS>(from, a[0], a[1], a[2], a[3]);
        return;
    }
#endif
    constexpr int P = 4 / sizeof(E);
    const int of_row = BY_ROWS ? pitch : 1, of_k = BY_ROWS ? 1 : pitch;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        a[i] = word_at(from + i / 2 * (4 * P * of_k) + i % 2 * 8 * of_row, of_k);
}
// Loads the fragment b (K x 8), and `next` of the 8 columns after it; `from` is the address of b's
// first element + place_in_b. Element (k, column) is at column * pitch + k if BY_COLUMNS, else at k
// * pitch + column; pitch: in elements.
template <bool BY_COLUMNS, class E>
__device__ __forceinline__ void load_b(const E* from, int pitch, B& b, B& next) {
#if !defined(__CUDA_CPU__) && __CUDA_ARCH__ >= 800
    if constexpr (sizeof(E) == 2) {
        load_matrices<!BY_COLUMNS>(from, b[0], b[1], next[0], next[1]);
        return;
    }
#endif
    constexpr int P = 4 / sizeof(E);
    const int of_column = BY_COLUMNS ? pitch : 1, of_k = BY_COLUMNS ? 1 : pitch;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        b[i] = word_at(from + i * 4 * P * of_k, of_k);
        next[i] = word_at(from + i * 4 * P * of_k + 8 * of_column, of_k);
    }
}

// ---- products -----------------------------------------------------------------------------------

// to[0 .. P) = the elements of a word.
template <class E, int P>
__device__ __forceinline__ void widen(u32 word, float (&to)[P]) {
    if constexpr (P == 1)
        to[0] = __uint_as_float(word);
    else
        vec::widen<E>(&word, to);
}

// d += A B: a lane gets each of its two rows of A, and two columns of B, from four lanes. Lane 4 g
// + t has rows g and g + 8 and columns 2 t and 2 t + 1 of D; in round (half, j) it gets the P
// products' k from P j + 4 P half on: of A from lane 4 g + j, of B's column 2 t + i from lane 4 (2
// t + i) + j.
template <class E>
__device__ __forceinline__ void multiply_by_shuffles(float (&d)[4], const A& a, const B& b) {
    constexpr int P = 4 / sizeof(E);
    const int lane = threadIdx.x % WARP;
#pragma unroll 1
    for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float row[2][P], column[2][P];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const u32 of_row = __shfl_sync(ALL_LANES, a[2 * half + i], lane / 4 * 4 + j);
                const u32 of_column = __shfl_sync(ALL_LANES, b[half], lane % 4 * 8 + 4 * i + j);
                widen<E>(of_row, row[i]);
                widen<E>(of_column, column[i]);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int p = 0; p < P; ++p) d[i] += row[i / 2][p] * column[i % 2][p];
        }
    }
}

#if !defined(__CUDA_CPU__) && __CUDA_ARCH__ >= 800
#define FRAGMENT_PRODUCT(SHAPE)                                            \
    asm("mma.sync.aligned." SHAPE                                          \
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                   \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#endif

// d += A B, of the fragments a and b; all lanes of the warp call it.
template <class E>
__device__ __forceinline__ void multiply(float (&d)[4], const A& a, const B& b) {
#if defined(__CUDA_CPU__)
    emulated_mma_sync<E>(d, a, b);
#elif __CUDA_ARCH__ >= 800
    if constexpr (ARE_SAME<E, __half>)
        FRAGMENT_PRODUCT("m16n8k16.row.col.f32.f16.f16.f32");
    else if constexpr (ARE_SAME<E, __nv_bfloat16>)
        FRAGMENT_PRODUCT("m16n8k16.row.col.f32.bf16.bf16.f32");
    else
        FRAGMENT_PRODUCT("m16n8k8.row.col.f32.tf32.tf32.f32");
#else
    multiply_by_shuffles<E>(d, a, b);
#endif
}

#undef FRAGMENT_PRODUCT

}  // namespace cto::tensor_core
