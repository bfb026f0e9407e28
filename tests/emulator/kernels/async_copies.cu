// SPDX-License-Identifier: MIT
// Copies to shared memory that are waited for, or not: instructions of cuda_src/core/async_copy.cuh
// on GPUs, so that there is something of them here for a CPU alone.
#ifdef __CUDA_CPU__
#ifndef CTO_LEFT
#define CTO_LEFT 1
#endif

// y = x by way of two groups of copies, of which the first is read while CTO_LEFT groups go on.
extern "C" __global__ void by_two_groups(const float* x, float* y, long long n) {
  __shared__ __align__(16) float staged[2][4];
  for (int group = 0; group < 2; ++group) {
    emulated_memcpy_async<16>(staged[group], x + 4 * group, 4 * group < n);
    emulated_commit_copies();
  }
  emulated_wait_for_copies(CTO_LEFT);
  for (int i = 0; i < 4; ++i) y[i] = staged[0][i];
  emulated_wait_for_copies(0);
  for (int i = 0; i < 4; ++i) y[4 + i] = staged[1][i];
}
#endif
