// SPDX-License-Identifier: MIT
// Grids, argument kinds, and what a source may look like.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef CTO_T
#define CTO_T float
#endif

#define CTO_BLOCK 128

struct Shape {
  long long rows;
  int columns;
  float factor;
};

// One number per thread that tells its whole position.
extern "C" __global__ void positions(long long* out) {
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  out[(long long)block * threads + thread] += 1000LL * block + thread;
}

extern "C" __global__ void __launch_bounds__(CTO_BLOCK) scale(const CTO_T* __restrict__ x,
                                                              CTO_T* __restrict__ y, float a,
                                                              long long n) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = CTO_T(float(x[i]) * a);
}

// extern "C" __global__ void commented_out(int* out) {}

#ifdef CTO_NEVER
extern "C" __global__ void left_out(int* out) { undeclared(out); }
#endif

extern "C" __global__ __launch_bounds__(2 * CTO_BLOCK, 1) void argument_kinds(
    double* out, bool flag, unsigned char byte, int number, unsigned long long big, double real,
    const Shape shape, const float* nothing) {
  out[0] = flag;
  out[1] = byte;
  out[2] = number;
  out[3] = (double)big;
  out[4] = real;
  out[5] = (double)(shape.rows * shape.columns) * shape.factor;
  out[6] = nothing == nullptr;
}

extern "C" __global__ void order_of_threads(int* order, int* count) {
  order[atomicAdd(count, 1)] = (int)(blockIdx.x * blockDim.x + threadIdx.x);
}

template <typename T, int N>
__global__ void fill(T* out, T value) {
  __shared__ T staged[N];
  staged[threadIdx.x] = value;
  __syncthreads();
  out[threadIdx.x] = staged[N - 1 - threadIdx.x] + T(N);
}
