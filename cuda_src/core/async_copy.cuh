// SPDX-License-Identifier: MIT
// Asynchronous copies from global to shared memory (cp.async). GPUs before compute capability 8.0
// have none: there copies are synchronous. A thread begins copies, closes them as a group by
// commit(), and waits for groups by wait(); other threads see the data after a barrier besides.
#pragma once
#include "core/vec.cuh"

namespace cto::async_copy {

// Begins to copy NBYTES (4, 8 or 16) bytes from `global` to `shared`, both aligned to NBYTES.
template <int NBYTES>
__device__ __forceinline__ void copy(void* shared, const void* global) {
#if defined(__CUDA_CPU__)
    emulated_memcpy_async<NBYTES>(shared, global, /*exists=*/true);
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

// Begins to copy NBYTES (4, 8 or 16) bytes if `exists`; else writes NBYTES zeros to `shared` and
// does not read `global`. AGAIN: a copy of 16 bytes stays in the L1 cache, for data that is read
// again; without it such a copy bypasses that cache.
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

// Place: an address in shared memory, as copy_16 takes it; in 32 bits on a GPU. place_of(shared)
// returns the Place of `shared`, which is the same for all threads of the block; all of them call
// it, as it has a barrier. It works around a bug of ptxas, which encodes a copy with a cache policy
// wrongly if it sees that all lanes have the same base address: thread 0 writes the address to
// shared memory, and all read it back from there.
#ifdef __CUDA_CPU__
using Place = u8*;
__device__ __forceinline__ Place place_of(void* shared) { return static_cast<u8*>(shared); }
#else
using Place = u32;
// The Place of `shared`, by way of shared memory; all threads of the block call it.
__device__ __forceinline__ Place place_of(void* shared) {
    __shared__ u32 hidden;
    volatile u32* const place = &hidden;
    if (threadIdx.x == 0) *place = static_cast<u32>(__cvta_generic_to_shared(shared));
    __syncthreads();
    return *place;
}
#endif

// Begins to copy 16 bytes from `global` to `to`, a place_of some shared memory plus a multiple of
// 16 bytes. STREAMING: the L2 cache evicts them first, for data that is read once.
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

// Closes a group: the copies that this thread has begun since its last commit().
__device__ __forceinline__ void commit() {
#if defined(__CUDA_CPU__)
    emulated_commit_copies();
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until all groups that this thread has closed are complete, except the latest N.
template <int N>
__device__ __forceinline__ void wait() {
#if defined(__CUDA_CPU__)
    emulated_wait_for_copies(N);
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

}  // namespace cto::async_copy
