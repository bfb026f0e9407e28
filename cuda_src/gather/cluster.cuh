// SPDX-License-Identifier: MIT
// A cluster: blocks that run together, and that read and write each other's shared memory. From 9.0 on;
// a cluster of one block is anywhere.
#pragma once
#include "core/types.cuh"

namespace cto::cluster {

#if !defined(__CUDA_CPU__) && __CUDA_ARCH__ >= 900
#define CLUSTER_OF(blocks) __cluster_dims__(blocks, 1, 1)
constexpr bool EXISTS = true;
#else
#define CLUSTER_OF(blocks)
constexpr bool EXISTS = false;
#endif

// A barrier of all threads of the BLOCKS blocks, behind which what they wrote before is seen.
template <int BLOCKS>
__device__ __forceinline__ void sync() {
#if !defined(__CUDA_CPU__) && __CUDA_ARCH__ >= 900
    if constexpr (BLOCKS > 1) {
        // One warp's fence for what all have written: each thread's would take a microsecond.
        __syncthreads();
        if (threadIdx.x < WARP) asm volatile("fence.acq_rel.cluster;" ::: "memory");
        asm volatile(
            "barrier.cluster.arrive.relaxed.aligned;\n"
            "barrier.cluster.wait.acquire.aligned;" ::
                : "memory");
        return;
    }
#endif
    __syncthreads();
}

// The same behind which nothing is seen: other blocks are done with this one's shared memory.
template <int BLOCKS>
__device__ __forceinline__ void leave() {
#if !defined(__CUDA_CPU__) && __CUDA_ARCH__ >= 900
    if constexpr (BLOCKS > 1)
        asm volatile(
            "barrier.cluster.arrive.relaxed.aligned;\n"
            "barrier.cluster.wait.aligned;");
#endif
}

// The same place of another block's shared memory.
template <int BLOCKS, class E>
__device__ __forceinline__ E* of_block(E* shared, u32 block) {
#if !defined(__CUDA_CPU__) && __CUDA_ARCH__ >= 900
    if constexpr (BLOCKS > 1) {
        E* there;
        asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(shared), "r"(block));
        return there;
    }
#endif
    return shared;
}

}  // namespace cto::cluster
