// SPDX-License-Identifier: MIT
// What two threads of a block do to one byte of shared memory, with and without what orders it.

enum Order { NOTHING, SYNCWARP, SYNCTHREADS, SHUFFLE };

template <int ORDER>
__device__ void order() {
  if (ORDER == SYNCWARP) __syncwarp();
  if (ORDER == SYNCTHREADS) __syncthreads();
  if (ORDER == SHUFFLE) __shfl_sync(0xFFFFFFFFu, 1, 0);
}

// Thread 0 writes, thread `other` reads; or the other way about.
template <int ORDER>
__global__ void read_after_write(int other, int* out) {
  __shared__ int cell;
  if (threadIdx.x == 0) cell = 7;
  order<ORDER>();
  if (threadIdx.x == other) *out = cell;
}
template <int ORDER>
__global__ void write_after_read(int other, int* out) {
  __shared__ int cell;
  if (threadIdx.x == 0) cell = 7;
  __syncthreads();
  if (threadIdx.x == other) *out = cell;
  order<ORDER>();
  if (threadIdx.x == 0) cell = 8;
}
// All write what is the same everywhere.
template <int ORDER>
__global__ void write_after_write(int other, int* out) {
  extern __shared__ int cells[];
  if (threadIdx.x == 0) cells[1] = 7;
  order<ORDER>();
  if (threadIdx.x == other) cells[1] = 7;
  __syncthreads();
  if (threadIdx.x == 0) *out = cells[1];
}

// Each thread has a byte of its own, in blocks and launches one after the other.
extern "C" __global__ void bytes(int other, int* out) {
  __shared__ unsigned char own[64];
  own[threadIdx.x] = 7;
  if (threadIdx.x == other) *out = own[threadIdx.x];
}

extern "C" __global__ void atomics(int other, int* out) {
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, 1);
  atomicMax(&sum, 1);
  __syncthreads();
  if (threadIdx.x == other) *out = sum;
}
extern "C" __global__ void read_among_atomics(int other, int* out) {
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  if (threadIdx.x != other) atomicAdd(&sum, 1);
  if (threadIdx.x == other) *out = sum;
}

// Its sum is announced as a read alone.
extern "C" __global__ void sum_without_order(int other, int* out) {
  __shared__ int sums[2];
  if (threadIdx.x < 2) sums[threadIdx.x] = 7;
  __syncthreads();
  if (threadIdx.x == 0 || threadIdx.x == other) sums[other / 64] += 1;
  __syncthreads();
  if (threadIdx.x == 0) *out = sums[0];
}
