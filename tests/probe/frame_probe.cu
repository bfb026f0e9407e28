// SPDX-License-Identifier: MIT
// Kernels of operators that exist to prove what losses, optimizers and collectives ask of the frame.
#include "core/either.cuh"
#include "core/types.cuh"

#ifndef CTO_T
#define CTO_T float
#endif
#ifndef CTO_U
#define CTO_U float
#endif

using namespace cto;
using either::as_double;
using either::as_i64;
using either::Either;
using T = CTO_T;
using U = CTO_U;

// y = rate (1 - 0.9^step) x + seed + offset; one block, so that it may write what it has read.
extern "C" __global__ void probe_either(const float* x, float* y,
                                        const __grid_constant__ Either<1> rate,
                                        const __grid_constant__ Either<1> step,
                                        const __grid_constant__ Either<2> state, i64* new_step,
                                        i64 n) {
    const i64 t = as_i64(step), seed = as_i64(state, 0), offset = as_i64(state, 1);
    const double scale = as_double(rate) * (1.0 - pow(0.9, static_cast<double>(t)));
    for (i64 i = threadIdx.x; y && i < n; i += blockDim.x)
        y[i] = static_cast<float>(scale * x[i] + static_cast<double>(seed + offset));
    __syncthreads();
    if (threadIdx.x > 0) return;
    if (new_step) *new_step = t + 1;  // null for a number, and where it is not asked for
    either::store(state, 1, offset + 1);
}

extern "C" __global__ void probe_decay(const float* x, float* y, float rate, double decay, i32 step,
                                       i64 n) {
    const i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) y[i] = static_cast<float>(x[i] * rate * decay) + step;
}

extern "C" __global__ void probe_rows(const T* x, const U* z, T* y, i64 n) {
    const i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) y[i] = static_cast<T>(static_cast<float>(x[i]) + (z ? static_cast<float>(z[i]) : 0));
}

// What a kernel reads of a number or an array, as a real number and as a whole one.
extern "C" __global__ void probe_read(const __grid_constant__ Either<1> value, double* y, i64* z) {
    y[0] = as_double(value);
    if (z) z[0] = as_i64(value);
}

extern "C" __global__ void probe_fill(float* y, float value, i64 n) {
    const i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) y[i] = value;
}

// y = x in reverse order, by way of as much shared memory as x takes, and a little beside it.
extern "C" __global__ void probe_shared(const float* x, float* y, i32 n) {
    extern __shared__ float held[];
    __shared__ i32 last;
    if (threadIdx.x == 0) last = n - 1;
    for (i32 i = threadIdx.x; i < n; i += blockDim.x) held[i] = x[i];
    __syncthreads();
    for (i32 i = threadIdx.x; i < n; i += blockDim.x) y[i] = held[last - i];
}

extern "C" __global__ void probe_old_scale(const float* x, float* y, float factor, i64 n) {
    const i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * factor;
}
