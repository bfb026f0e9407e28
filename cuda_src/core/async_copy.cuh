// SPDX-License-Identifier: MIT
// Asynchronous copies from global to shared memory (cp.async). GPUs before compute capability 8.0
// have none: there copies are synchronous.
#pragma once
#include "core/vec.cuh"

namespace cto::async_copy {

// Begins to copy NBYTES (4, 8 or 16); both addresses are multiples of NBYTES.
template <int NBYTES>
__device__ __forceinline__ void copy(void* shared, const void* global) {
#if defined(__CUDA_CPU__)
    emulated_memcpy_async<NBYTES>(shared, global, true);
#elif __CUDA_ARCH__ < 800
    using Words = vec::Vec<u32, NBYTES / 4>;
    *static_cast<Words*>(shared) = *static_cast<const Words*>(global);
#else
    const u32 to = static_cast<u32>(__cvta_generic_to_shared(shared));
    if constexpr (NBYTES == 16)  // bypasses the L1 cache
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(NBYTES)
                     : "memory");
#endif
}

// copy if `exists`, else writes zeros and reads nothing. AGAIN: 16 bytes go through the L1 cache
// too, as they are read again; else they bypass it.
template <int NBYTES, bool AGAIN = false>
__device__ __forceinline__ void copy_or_zeros(void* shared, const void* global, bool exists) {
#if defined(__CUDA_CPU__)
    emulated_memcpy_async<NBYTES>(shared, global, exists);
#elif __CUDA_ARCH__ < 800
    using Words = vec::Vec<u32, NBYTES / 4>;
    *static_cast<Words*>(shared) = exists ? *static_cast<const Words*>(global) : Words{};
#else
    const u32 to = static_cast<u32>(__cvta_generic_to_shared(shared));
    const u32 nbytes = exists ? NBYTES : 0;
    if constexpr (NBYTES == 16 && !AGAIN)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
                     "r"(nbytes)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global),
                     "n"(NBYTES), "r"(nbytes)
                     : "memory");
#endif
}

// The destination of copy_16. Works around a bug of ptxas: it encodes a copy with a cache policy
// wrongly if it sees that all lanes have the same base address. So they read the address from
// shared memory, where ptxas cannot see it. All threads of a block call it.
#ifdef __CUDA_CPU__
using Place = u8*;
__device__ __forceinline__ Place place_of(void* shared) { return static_cast<u8*>(shared); }
#else
using Place = u32;
// The address of `shared`, written to shared memory and read back, so that ptxas cannot see that it is
// the same in all lanes.
__device__ __forceinline__ Place place_of(void* shared) {
    __shared__ u32 hidden;
    volatile u32* const place = &hidden;
    if (threadIdx.x == 0) *place = static_cast<u32>(__cvta_generic_to_shared(shared));
    __syncthreads();
    return *place;
}
#endif

// Copies 16 bytes. STREAMING: the L2 cache evicts them first.
template <bool STREAMING>
__device__ __forceinline__ void copy_16(Place to, const void* global) {
#if defined(__CUDA_CPU__)
    copy<16>(to, global);
#elif __CUDA_ARCH__ < 800
    using Words = vec::Vec<u32, 4>;
    const Words words = *static_cast<const Words*>(global);
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words.at[0]),
                 "r"(words.at[1]), "r"(words.at[2]), "r"(words.at[3])
                 : "memory");
#else
    if constexpr (STREAMING)
        asm volatile(
            "{ .reg .b64 policy; createpolicy.fractional.L2::evict_first.b64 policy, 1.0;"
            " cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, policy; }" ::"r"(to),
            "l"(global)
            : "memory");
    else
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
#endif
}

// Ends a group of this thread's copies.
__device__ __forceinline__ void commit() {
#if defined(__CUDA_CPU__)
    emulated_commit_copies();
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for all of this thread's groups but the last N.
template <int N>
__device__ __forceinline__ void wait() {
#if defined(__CUDA_CPU__)
    emulated_wait_for_copies(N);
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

}  // namespace cto::async_copy
