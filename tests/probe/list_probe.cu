// SPDX-License-Identifier: MIT
// Kernels of operators that exist to prove what lists of arrays ask of the frame.
#include "algorithm/multi_tensor.cuh"
#include "core/either.cuh"
#include "core/types.cuh"

#ifndef CTO_T
#define CTO_T float
#endif

using namespace cto;
using either::as_double;
using either::Either;
using facts::Pointers;
using T = CTO_T;

struct Extents {
    i64 at[4];
};

// One block an array: raised = x + 1, scaled = x w (2 x without w), negated = -x.
extern "C" __global__ void probe_spread(const __grid_constant__ Pointers<4> xs,
                                        const __grid_constant__ Pointers<4> ws,
                                        const __grid_constant__ Pointers<4> raised,
                                        const __grid_constant__ Pointers<4> scaled,
                                        const __grid_constant__ Pointers<4> negated,
                                        const __grid_constant__ Extents sizes) {
    const int k = blockIdx.x;
    const float* const xs_k = static_cast<const float*>(xs.at[k]);
    const float* const w = static_cast<const float*>(ws.at[k]);
    for (i64 i = threadIdx.x; i < sizes.at[k]; i += blockDim.x) {
        const float x = xs_k[i];  // read before `raised`, which is the same array, is written
        if (raised.at[k]) static_cast<float*>(raised.at[k])[i] = x + 1.0f;
        if (scaled.at[k]) static_cast<float*>(scaled.at[k])[i] = x * (w ? w[i] : 2.0f);
        if (negated.at[k]) static_cast<float*>(negated.at[k])[i] = -x;
    }
}

// One block an array: y = x - rate g.
extern "C" __global__ void probe_descend(const __grid_constant__ Pointers<4> xs,
                                         const __grid_constant__ Pointers<4> gs,
                                         const __grid_constant__ Pointers<4> ys,
                                         const __grid_constant__ Either<1> rate,
                                         const __grid_constant__ Extents sizes) {
    const int k = blockIdx.x;
    const float* const x = static_cast<const float*>(xs.at[k]);
    const float* const g = static_cast<const float*>(gs.at[k]);
    float* const y = static_cast<float*>(ys.at[k]);
    for (i64 i = threadIdx.x; i < sizes.at[k]; i += blockDim.x)
        y[i] = x[i] - static_cast<float>(as_double(rate)) * g[i];
}

#ifndef CTO_CAPACITY
#define CTO_CAPACITY 80
#endif
constexpr int CAPACITY = CTO_CAPACITY;
constexpr int CHUNK = 1024;
using multi_tensor::BlockChunk;
using multi_tensor::TensorSizes;

// A step with momentum, over lists: m = 0.9 m + g, v = v + g g, w = w - rate m.
extern "C" __global__ void probe_momentum(const __grid_constant__ Pointers<CAPACITY> ws,
                                          const __grid_constant__ Pointers<CAPACITY> gs,
                                          const __grid_constant__ Pointers<CAPACITY> ms,
                                          const __grid_constant__ Pointers<CAPACITY> vs,
                                          const __grid_constant__ TensorSizes<CAPACITY> sizes,
                                          i32 n_tensors, float rate) {
    const BlockChunk<CHUNK> chunk(sizes, n_tensors);
    float* const w = static_cast<float*>(ws.at[chunk.tensor]);
    const float* const g = static_cast<const float*>(gs.at[chunk.tensor]);
    float* const m = static_cast<float*>(ms.at[chunk.tensor]);
    float* const v = static_cast<float*>(vs.at[chunk.tensor]);
    for (i64 i = chunk.first + threadIdx.x; i < chunk.end; i += blockDim.x) {
        m[i] = 0.9f * m[i] + g[i];
        v[i] += g[i] * g[i];
        w[i] -= rate * m[i];
    }
}

extern "C" __global__ void probe_mixed(const T* x, float* y, i64 place) {
    y[place] = static_cast<float>(x[0]);
}
