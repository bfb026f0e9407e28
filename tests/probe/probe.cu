// SPDX-License-Identifier: MIT
// Kernels of operators that exist to prove the frame.
#include "algorithm/elementwise.cuh"
#include "core/zeroed.cuh"

#ifndef CTO_T
#define CTO_T float
#endif

namespace cto {

using facts::Pointers;
using fast_division::Divisor;
using zeroed::Zeroed;

using T = CTO_T;
constexpr int THREADS = 256;
using Tile = elementwise::Tiling<T, THREADS, 32>;

// The sum of a block's threads, valid in thread 0; partial: shared memory.
__device__ float block_sum(float value, float (&partial)[THREADS]) {
    partial[threadIdx.x] = value;
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step) partial[threadIdx.x] += partial[threadIdx.x + step];
    }
    __syncthreads();
    return partial[0];
}

struct Extents {
    i64 at[4];
    i32 count;
};

}  // namespace cto

using namespace cto;

// Two stages in one launch: the block that takes the last ticket adds the partial sums, in order.
extern "C" __global__ void probe_sum(const float* x, float* y, float* partials, Zeroed<u32>* ticket,
                                     i64 n) {
    __shared__ float partial[THREADS];
    __shared__ bool last;
    const i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    const float sum = block_sum(i < n ? x[i] : 0.0f, partial);
    if (threadIdx.x == 0) {
        partials[blockIdx.x] = sum;
        __threadfence();
        last = atomicAdd(&ticket->value, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last || threadIdx.x != 0) return;
    float total = 0.0f;
    for (u32 block = 0; block < gridDim.x; ++block)
        total += static_cast<volatile float*>(partials)[block];
    y[0] = total;
    ticket->value = 0;
}

extern "C" __global__ void probe_axpy(const T* x, T* y, float a, i64 n) {
    const i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) y[i] = from_acc<T>(a * to_acc(x[i]) + to_acc(y[i]));
}

// Outputs that are not asked for are null.
extern "C" __global__ void probe_halves(const float* x, float* low, float* high, i64 n) {
    const i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    if (low && i < n / 2) low[i] = x[i];
    if (high && i >= n / 2) high[i - n / 2] = x[i];
}

// One block copies one input behind the other.
extern "C" __global__ void probe_join(const __grid_constant__ Pointers<4> inputs,
                                      const __grid_constant__ Extents extents, float* y) {
    i64 start = 0;
    for (u32 b = 0; b < blockIdx.x; ++b) start += extents.at[b];
    const float* x = static_cast<const float*>(inputs.at[blockIdx.x]);
    for (i64 i = threadIdx.x; i < extents.at[blockIdx.x]; i += blockDim.x) y[start + i] = x[i];
}

// Reads one element past the end, for the memory checkers.
extern "C" __global__ void probe_overrun(const float* x, float* y, i64 n) {
    const i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i + 1];
}

// Where the positions x stand in a row that is repeated.
extern "C" __global__ void probe_column(const i64* x, i64* y, i64 n,
                                        const __grid_constant__ Divisor columns) {
    const i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const u32 offset = static_cast<u32>(i % min(static_cast<i64>(Tile::size), x[i] + 1));
    auto row = elementwise::row_or_none(static_cast<const T*>(nullptr), columns).operand<Tile>();
    row.seek(x[i] - offset);
    y[i] = row.column(offset);
}
