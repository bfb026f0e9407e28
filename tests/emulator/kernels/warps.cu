// SPDX-License-Identifier: MIT
// Warp operations, right and wrong.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Row k of out holds what shuffle number k gave each lane.
template <typename T>
__global__ void shuffles(const T* x, T* out, int argument, int width) {
  const unsigned lane = threadIdx.x;
  const T value = x[lane];
  out[0 * 32 + lane] = __shfl_sync(0xFFFFFFFFu, value, argument, width);
  out[1 * 32 + lane] = __shfl_up_sync(0xFFFFFFFFu, value, (unsigned)argument, width);
  out[2 * 32 + lane] = __shfl_down_sync(0xFFFFFFFFu, value, (unsigned)argument, width);
  out[3 * 32 + lane] = __shfl_xor_sync(0xFFFFFFFFu, value, argument, width);
}

extern "C" __global__ void warp_votes(const int* x, unsigned* ballot, int* any, int* all,
                                      unsigned mask) {
  const unsigned lane = threadIdx.x;
  if (!(mask >> lane & 1)) return;
  const int predicate = x[lane];
  ballot[lane] = __ballot_sync(mask, predicate);
  any[lane] = __any_sync(mask, predicate);
  all[lane] = __all_sync(mask, predicate);
}

extern "C" __global__ void warp_matches(const int* x, unsigned* same, unsigned* everywhere,
                                        int* all_equal) {
  const unsigned t = threadIdx.x;
  same[t] = __match_any_sync(0xFFFFFFFFu, x[t]);
  everywhere[t] = __match_all_sync(0xFFFFFFFFu, x[t], &all_equal[t]);
}

extern "C" __global__ void warp_reductions(const int* x, int* out, unsigned* bits) {
  const unsigned lane = threadIdx.x;
  out[0 * 32 + lane] = __reduce_add_sync(0xFFFFFFFFu, x[lane]);
  out[1 * 32 + lane] = __reduce_min_sync(0xFFFFFFFFu, x[lane]);
  out[2 * 32 + lane] = __reduce_max_sync(0xFFFFFFFFu, x[lane]);
  bits[0 * 32 + lane] = __reduce_min_sync(0xFFFFFFFFu, (unsigned)x[lane]);
  bits[1 * 32 + lane] = __reduce_max_sync(0xFFFFFFFFu, (unsigned)x[lane]);
  bits[2 * 32 + lane] = __reduce_and_sync(0xFFFFFFFFu, (unsigned)x[lane]);
  bits[3 * 32 + lane] = __reduce_or_sync(0xFFFFFFFFu, (unsigned)x[lane]);
  bits[4 * 32 + lane] = __reduce_xor_sync(0xFFFFFFFFu, (unsigned)x[lane]);
}

// The two halves of a warp go separate ways and exchange among themselves.
extern "C" __global__ void half_warps(const float* x, float* out) {
  const unsigned lane = threadIdx.x;
  float value = x[lane];
  if (lane < 16) {
    for (int step = 8; step > 0; step /= 2) value += __shfl_xor_sync(0x0000FFFFu, value, step);
  } else {
    for (int step = 8; step > 0; step /= 2)
      value = fmaxf(value, __shfl_xor_sync(0xFFFF0000u, value, step));
  }
  out[lane] = value;
}

// A value goes from lane to lane through shared memory; wrong without the barrier.
extern "C" __global__ void neighbour_through_memory(const int* x, int* out) {
  __shared__ int staged[32];
  staged[threadIdx.x] = x[threadIdx.x];
#ifndef CTO_NO_BARRIER
  __syncwarp();
#endif
  out[threadIdx.x] = staged[(threadIdx.x + 1) % 32] + staged[(threadIdx.x + 31) % 32];
}

extern "C" __global__ void active_lanes(unsigned* out, int limit) {
  if (threadIdx.x < limit) {
    out[threadIdx.x] = __activemask();
  } else {
    __syncthreads();
  }
}

// Lanes from `stay` on exit before the warp operations.
extern "C" __global__ void exited_lanes(int* out, int stay) {
  const int lane = (int)threadIdx.x;
  if (lane >= stay) return;
  out[lane] = (int)__ballot_sync(0xFFFFFFFFu, 1);
  out[32 + lane] = __shfl_sync(0xFFFFFFFFu, lane + 100, 31);
}

extern "C" __global__ void masks_disagree(int* out) {
  const unsigned mask = threadIdx.x < 4 ? 0x0000FFFFu : 0xFFFFFFFFu;
  out[threadIdx.x] = __shfl_sync(mask, (int)threadIdx.x, 0);  // line: masks
}

extern "C" __global__ void operations_disagree(int* out) {
  if (threadIdx.x % 2) {
    out[threadIdx.x] = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x, 0);
  } else {
    out[threadIdx.x] = __any_sync(0xFFFFFFFFu, 1);
  }
}

extern "C" __global__ void not_in_own_mask(int* out) {
  out[threadIdx.x] = __shfl_sync(0xFFFFFFFEu, (int)threadIdx.x, 1);
}

extern "C" __global__ void lane_never_comes(int* out) {
  if (threadIdx.x != 5) {
    out[threadIdx.x] = __any_sync(0xFFFFFFFFu, 1);  // line: vote
  } else {
    __syncthreads();
  }
}

extern "C" __global__ void odd_width(int* out, int width) {
  out[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFFu, (int)threadIdx.x, 1, width);
}

#ifdef __CUDA_CPU__  // GPUs have an instruction
extern "C" __global__ void product_of_some(int* out) {
  if (threadIdx.x == 5) return;
  float d[4] = {0};
  const unsigned a[4] = {1, 2, 3, 4}, b[2] = {5, 6};
  emulated_mma_sync<float>(d, a, b);  // line: product
  out[threadIdx.x] = (int)d[0];
}
#endif
