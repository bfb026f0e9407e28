// SPDX-License-Identifier: MIT
// Block barriers, right and wrong.

#ifndef CTO_BARRIER
#define CTO_BARRIER __syncthreads()
#endif

// Each block reverses its part of x through shared memory; wrong without a barrier.
extern "C" __global__ void reverse_in_blocks(const float* x, float* y) {
  extern __shared__ __align__(16) unsigned char smem_raw[];
  float* staged = reinterpret_cast<float*>(smem_raw);
  const long long first = (long long)blockIdx.x * blockDim.x;
  staged[threadIdx.x] = x[first + threadIdx.x];
  CTO_BARRIER;
  y[first + threadIdx.x] = staged[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void block_sum(const int* x, int* sums) {
  __shared__ int partial[1024];
  const unsigned t = threadIdx.x;
  partial[t] = x[(long long)blockIdx.x * blockDim.x + t];
  CTO_BARRIER;
  for (unsigned width = blockDim.x / 2; width > 0; width /= 2) {
    if (t < width) partial[t] += partial[t + width];
    CTO_BARRIER;
  }
  if (t == 0) sums[blockIdx.x] = partial[0];
}

extern "C" __global__ void votes(const int* x, int* count, int* any, int* all) {
  const int predicate = x[blockIdx.x * blockDim.x + threadIdx.x];
  const int n = __syncthreads_count(predicate);
  const int o = __syncthreads_or(predicate);
  const int a = __syncthreads_and(predicate);
  if (threadIdx.x == blockDim.x - 1) {
    count[blockIdx.x] = n;
    any[blockIdx.x] = o;
    all[blockIdx.x] = a;
  }
}

// Threads from `stay` on leave before the barriers, which count the others only.
extern "C" __global__ void early_exit(int* out, int stay) {
  __shared__ int seen[1024];
  if (threadIdx.x >= stay) return;
  seen[threadIdx.x] = (int)threadIdx.x + 1;
  const int present = __syncthreads_count(1);
  out[threadIdx.x] = seen[(threadIdx.x + 1) % stay] * 10000 + present;
}

extern "C" __global__ void divergent_barrier(int* out) {
  if (threadIdx.x < 7) {
    __syncthreads();  // line: some
    out[threadIdx.x] = 1;
  } else {
    __syncthreads();  // line: others
  }
}

extern "C" __global__ void barrier_against_shuffle(int* out) {
  if (threadIdx.x == 3) {
    __syncthreads();  // line: barrier
  } else {
    out[threadIdx.x] = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x, 0);  // line: shuffle
  }
  __syncthreads();
}

// The last block to arrive adds up what all blocks left.
extern "C" __global__ void total_by_last_block(const int* x, int* partial, unsigned* ticket,
                                               int* total) {
  __shared__ int sum;
  __shared__ bool is_last;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, x[blockIdx.x * blockDim.x + threadIdx.x]);
  __syncthreads();
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
    __threadfence();
    is_last = atomicAdd(ticket, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (is_last && threadIdx.x == 0) {
    int result = 0;
    for (unsigned b = 0; b < gridDim.x; ++b) result += partial[b];
    *total = result;
    *ticket = 0;
  }
}

#ifdef __CUDA_CPU__
#define CTO_BAR_SYNC(number, threads) emulated_bar_sync(number, threads)
#else
#define CTO_BAR_SYNC(number, threads) \
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory")
#endif

// Groups of threads turn their numbers round, each group once more than the one before it.
extern "C" __global__ void turn_in_groups(int* numbers, int threads) {
  __shared__ int staged[1024];
  const int group = (int)threadIdx.x / threads, own = (int)threadIdx.x % threads;
  const int next = group * threads + (own + 1) % threads;
  int number = numbers[threadIdx.x];
  for (int round = 0; round <= group; ++round) {
    staged[threadIdx.x] = number;
    CTO_BAR_SYNC(group + 1, threads);
    number = staged[next];
    CTO_BAR_SYNC(group + 1, threads);
  }
  numbers[threadIdx.x] = number;
}

extern "C" __global__ void sync_group(int number, int threads) {
  CTO_BAR_SYNC(number, threads);  // line: group
}
