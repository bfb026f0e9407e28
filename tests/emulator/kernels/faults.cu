// SPDX-License-Identifier: MIT
// Kernels that go wrong at one thread, number `victim`, and what they report.

extern "C" __global__ void endless_loop(volatile int* out, int victim) {
  while (threadIdx.x == victim) out[0] += 0;  // line: loop
}

extern "C" __global__ void divide(int* out, int victim) {
  out[threadIdx.x] = 12 / ((int)threadIdx.x - victim);
}

extern "C" __global__ void overflow(int* out, int victim) {
  out[threadIdx.x] = (0x7FFFFFFF / victim + 1) * (int)threadIdx.x;
}

extern "C" __global__ void shift(int* out, int victim) {
  out[threadIdx.x] = 1 << (32 - victim + (int)threadIdx.x);
}

extern "C" __global__ void call_trap(int* out, int victim) {
  out[threadIdx.x] = 1;
  if (threadIdx.x == victim) __trap();
}

extern "C" __global__ void assertion(int* out, int victim) {
  out[threadIdx.x] = 1;
  assert(threadIdx.x < victim);
}

extern "C" __global__ void false_assumption(int* out, int victim) {
  __builtin_assume(threadIdx.x < victim);
  out[threadIdx.x] = 1;
}

// After every other thread has reached the barrier: stacks full of waiting threads are abandoned.
extern "C" __global__ void trap_among_waiting_threads(int* out, int victim) {
  out[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFFu, (int)threadIdx.x, 1);
  if (threadIdx.x == victim) __trap();
  __syncthreads();
}

__device__ __noinline__ int deep(volatile int* out, int depth) {
  volatile char local[512];
  local[depth % 512] = (char)depth;
  return depth == 0 ? local[0] : deep(out, depth - 1) + local[depth % 512] * 0 + out[0];
}

extern "C" __global__ void recursion(int* out, int victim) {
  out[threadIdx.x] = deep(out, threadIdx.x == victim ? 1000000 : 3);
}

extern "C" __global__ void wild_pointer(int* out, int victim) {
  if (threadIdx.x == victim) out = reinterpret_cast<int*>(64);
  out[threadIdx.x] = 1;
}

extern "C" __global__ void harmless(int* out, int victim) {
  __syncthreads();
  out[threadIdx.x] = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x, 31) + victim;
}

struct Where {
  int* values;
};

// Takes what it reads: a second launch over the same memory would find nothing wrong.
extern "C" __global__ void take_and_shift(Where where, int* out) {
  const int taken = where.values[threadIdx.x];
  where.values[threadIdx.x] = 0;
  out[threadIdx.x] = 1 << taken;
}
