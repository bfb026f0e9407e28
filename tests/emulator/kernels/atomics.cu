// SPDX-License-Identifier: MIT
// Every atomic operation. The sources that must not compile are in test_atomics.py.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T>
__global__ void add(const T* x, T* total, T* old_values, int n) {
  const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) old_values[i] = atomicAdd(total, x[i]);
}

template <typename T>
__global__ void add_pairs(const T* x, T* total) {
  atomicAdd(total, x[threadIdx.x]);
}

template <typename T>
__global__ void extremes(const T* x, T* results) {
  const T value = x[blockIdx.x * blockDim.x + threadIdx.x];
  atomicMin(&results[0], value);
  atomicMax(&results[1], value);
}

template <typename T>
__global__ void bitwise(const T* x, T* results) {
  const T value = x[blockIdx.x * blockDim.x + threadIdx.x];
  atomicAnd(&results[0], value);
  atomicOr(&results[1], value);
  atomicXor(&results[2], value);
}

// Pushes every thread's value through one cell: what comes out is what went in, moved along.
template <typename T>
__global__ void exchange(const T* x, T* cell, T* out) {
  out[threadIdx.x] = atomicExch(cell, x[threadIdx.x]);
}

// Addition of value + 1 by compare and swap.
template <typename T>
__global__ void add_by_compare_and_swap(const T* x, T* total) {
  T seen = *total;
  for (;;) {
    const T previous = atomicCAS(total, seen, (T)(seen + x[threadIdx.x] + 1));
    if (previous == seen) return;
    seen = previous;
  }
}

// 16-bit addition of halves by compare and swap, as older GPUs need it.
extern "C" __global__ void add_half_by_compare_and_swap(const __half* x, __half* total) {
  unsigned short* bits = reinterpret_cast<unsigned short*>(total);
  unsigned short seen = *bits;
  unsigned short previous;
  do {
    previous = seen;
    const __half sum = __hadd(__ushort_as_half(previous), x[threadIdx.x]);
    seen = atomicCAS(bits, previous, __half_as_ushort(sum));
  } while (seen != previous);
}

extern "C" __global__ void wrap_around(unsigned* up, unsigned* down, int* difference,
                                       unsigned limit) {
  atomicInc(up, limit);
  atomicDec(down, limit);
  atomicSub(difference, 3);
}

// The order in which threads of different warps meet a lock does not matter.
extern "C" __global__ void locked_increment(int* lock, int* counter) {
  bool done = false;
  while (!done) {
    if (atomicCAS(lock, 0, 1) == 0) {
      *counter = *counter * 1 + 1;
      __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
  }
}
