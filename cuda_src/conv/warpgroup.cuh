// SPDX-License-Identifier: MIT
// Products of a warpgroup, four warps, with operands in shared memory: D (64 x N) += A B. The
// instruction, wgmma of 9.0, is asynchronous: threads go on. Emulated on the CPU.
//
// An operand is panels of 64 lines of 128 bytes, which begin at multiples of 1024 bytes; vector i
// (16 bytes) of line l is at i ^ (l % 8) in the line. Lines are rows of A and columns of B; if
// TRANSPOSED, a line is one k of the sum, and a panel has 64 rows or columns of two bytes. Floats are
// cut off to TF32, and are not transposed. D is in registers: d[j][i] of lane 4 g + t of warp w is
// row 16 w + g + 8 (i / 2), column 8 j + 2 t + i % 2.
#pragma once
#include "core/vec.cuh"

namespace cto::warpgroup {

constexpr int ROWS = 64, WARPS = 4;
constexpr int LINE_NBYTES = 128, EIGHT_NBYTES = 8 * LINE_NBYTES, PANEL_NBYTES = 64 * LINE_NBYTES;
constexpr int K_NBYTES = 32;  // bytes of a line that one instruction sums over

// Elements k that one instruction sums over.
template <class E>
constexpr int K = K_NBYTES / sizeof(E);

// The matrix descriptor of wgmma, in units of 16 bytes:
//
//     bits 0-13    start address               bits 32-45   from eight lines to the next eight
//     bits 16-29   from a panel to the next    bits 62-63   swizzle mode, 1: 128 bytes
using Operand = u64;

// The descriptor of the operand that begins at `first` in shared memory; moved: of that nbytes
// further on. Addresses of shared memory have 18 bits.
__device__ __forceinline__ Operand operand(const u8* first) {
    const u32 at = static_cast<u32>(__cvta_generic_to_shared(first));
    constexpr u64 HOW = static_cast<u64>(1) << 62 | static_cast<u64>(EIGHT_NBYTES / 16) << 32 |
                        PANEL_NBYTES / 16 << 16;
    return HOW | (at & 0x3FFFF) / 16;
}
__device__ __forceinline__ Operand moved(Operand operand, int nbytes) {
    return operand + nbytes / 16;
}

// Makes this thread's copies to shared memory visible to products that start
// after the next barrier.
__device__ __forceinline__ void show_copies() {
#ifdef __CUDA_CPU__
    emulated_proxy_fence();
#else
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
// Fence that all warps of the warpgroup execute before the first product: it then sees the sums d
// in registers as they were written.
__device__ __forceinline__ void begin() {
#ifdef __CUDA_CPU__
    emulated_wgmma_fence();
#else
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
// Closes a group: the products that this warpgroup has started since its last commit().
__device__ __forceinline__ void commit() {
#ifdef __CUDA_CPU__
    emulated_wgmma_commit();
#else
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Waits until all closed groups are complete, except the latest N.
template <int N>
__device__ __forceinline__ void wait() {
#ifdef __CUDA_CPU__
    emulated_wgmma_wait(N);
#else
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}

// The instruction's text and operands, for N columns: N / 2 registers of d, written {%0, %1, ...},
// then the descriptors and constants: D is added to, A and B have factor 1, and are transposed or
// not.
#define FOUR(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 1), FOUR(i + 2), FOUR(i + 3)
#define SIXTY_FOUR(i) SIXTEEN(i), SIXTEEN(i + 4), SIXTEEN(i + 8), SIXTEEN(i + 12)
#define NUMBERS_TO_31                                                        \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NUMBERS_TO_63                                                                    \
    NUMBERS_TO_31                                                                        \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NUMBERS_TO_95                                                                    \
    NUMBERS_TO_63                                                                        \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NUMBERS_TO_127                                                                           \
    NUMBERS_TO_95                                                                                \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "   \
    "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, " \
    "%126, %127"
#define PRODUCT_OF_FLOATS(SHAPE, NUMBERS, AFTER, ...)                                             \
    asm volatile("wgmma.mma_async.sync.aligned." SHAPE ".f32.tf32.tf32 {" NUMBERS "}, " AFTER ";" \
                 : __VA_ARGS__                                                                    \
                 : "l"(a), "l"(b))
#define PRODUCT(SHAPE, NUMBERS, AFTER, ...)                                         \
    asm volatile("wgmma.mma_async.sync.aligned." SHAPE " {" NUMBERS "}, " AFTER ";" \
                 : __VA_ARGS__                                                      \
                 : "l"(a), "l"(b), "n"(A_TRANSPOSED), "n"(B_TRANSPOSED))
#define PRODUCT_OF(TYPES)                                                                   \
    if constexpr (N == 128)                                                                 \
        PRODUCT("m64n128k16.f32." TYPES, NUMBERS_TO_63, "%64, %65, 1, 1, 1, %66, %67",      \
                SIXTY_FOUR(0));                                                             \
    else if constexpr (N == 192)                                                            \
        PRODUCT("m64n192k16.f32." TYPES, NUMBERS_TO_95, "%96, %97, 1, 1, 1, %98, %99",      \
                SIXTY_FOUR(0), SIXTEEN(16), SIXTEEN(20));                                   \
    else                                                                                    \
        PRODUCT("m64n256k16.f32." TYPES, NUMBERS_TO_127, "%128, %129, 1, 1, 1, %130, %131", \
                SIXTY_FOUR(0), SIXTY_FOUR(16))

// Starts d += A B, over K<E> of the sum, for 64 rows and N columns, a and b being the operands'
// descriptors; A_TRANSPOSED, B_TRANSPOSED: lines in shared memory are k of the sum. All threads of
// the warpgroup call it. wait() waits for it, after commit().
template <class E, int N, bool A_TRANSPOSED, bool B_TRANSPOSED>
__device__ __forceinline__ void multiply(float (&d)[N / 8][4], Operand a, Operand b) {
    static_assert(N == 128 || N == 192 || N == 256);
#ifdef __CUDA_CPU__
    emulated_wgmma<E, A_TRANSPOSED, B_TRANSPOSED>(d, a, b);
#else
    if constexpr (ARE_SAME<E, float>) {
        if constexpr (N == 128)
            PRODUCT_OF_FLOATS("m64n128k8", NUMBERS_TO_63, "%64, %65, 1, 1, 1", SIXTY_FOUR(0));
        else if constexpr (N == 192)
            PRODUCT_OF_FLOATS("m64n192k8", NUMBERS_TO_95, "%96, %97, 1, 1, 1", SIXTY_FOUR(0),
                              SIXTEEN(16), SIXTEEN(20));
        else
            PRODUCT_OF_FLOATS("m64n256k8", NUMBERS_TO_127, "%128, %129, 1, 1, 1", SIXTY_FOUR(0),
                              SIXTY_FOUR(16));
    } else if constexpr (ARE_SAME<E, __half>) {
        PRODUCT_OF("f16.f16");
    } else {
        PRODUCT_OF("bf16.bf16");
    }
#endif
}

#define PRODUCT_OF_REGISTERS(SHAPE, NUMBERS, AFTER, ...)                                          \
    asm volatile("wgmma.mma_async.sync.aligned." SHAPE ".f32.tf32.tf32 {" NUMBERS "}, " AFTER ";" \
                 : __VA_ARGS__                                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

// Starts d += A B as above, of floats cut off to TF32, with A in registers: a[i] of lane 4 g + t of
// warp w is row 16 w + g + 8 (i % 2) at k = t + 4 (i / 2). They may change after wait() alone.
template <int N>
__device__ __forceinline__ void multiply_registers(float (&d)[N / 8][4], const u32 (&a)[4],
                                                   Operand b) {
    static_assert(N == 64 || N == 128);
#ifdef __CUDA_CPU__
    emulated_wgmma<float>(d, a, b);
#else
    if constexpr (N == 64)
        PRODUCT_OF_REGISTERS("m64n64k8", NUMBERS_TO_31, "{%32, %33, %34, %35}, %36, 1, 1, 1",
                             SIXTEEN(0), SIXTEEN(4));
    else
        PRODUCT_OF_REGISTERS("m64n128k8", NUMBERS_TO_63, "{%64, %65, %66, %67}, %68, 1, 1, 1",
                             SIXTY_FOUR(0));
#endif
}

#undef PRODUCT_OF_REGISTERS
#undef PRODUCT_OF
#undef PRODUCT
#undef PRODUCT_OF_FLOATS
#undef NUMBERS_TO_127
#undef NUMBERS_TO_95
#undef NUMBERS_TO_63
#undef NUMBERS_TO_31
#undef SIXTY_FOUR
#undef SIXTEEN
#undef FOUR

// stmatrix.x4.trans: stores four fragments of 8 x 8 elements of two bytes, transposed, to shared
// memory: words[i] is the lane's part of fragment i, in the layout of D's fragments. Lane l passes
// the address of row l % 8 of fragment l / 8 (16 bytes).
__device__ __forceinline__ void store_transposed(void* row, const u32 (&words)[4]) {
#ifndef __CUDA_CPU__
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     static_cast<u32>(__cvta_generic_to_shared(row))),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
#else
    const int lane = threadIdx.x % WARP;
    const u64 own = reinterpret_cast<u64>(row);
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 2; ++j) {
            const u64 to = __shfl_sync(ALL_LANES, own, i * 8 + lane % 4 * 2 + j);
            reinterpret_cast<u16*>(to)[lane / 4] = static_cast<u16>(words[i] >> 16 * j);
        }
#endif
}

}  // namespace cto::warpgroup
