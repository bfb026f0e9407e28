// SPDX-License-Identifier: MIT
// Products of single fragments, from shared memory in every layout.
#include "algorithm/tensor_core.cuh"

#ifndef CTO_T
#define CTO_T __half
#endif

using namespace cto;
using T = CTO_T;

constexpr int K = tensor_core::K<T>, SIDE = 16, PITCH = SIDE + 8;

template <bool BY_ROWS, bool BY_COLUMNS>
__device__ void multiply(const T* a, const T* b, bool by_shuffles, float (&d)[2][4]) {
    tensor_core::A of_rows;
    tensor_core::B of_columns[2];
    a += tensor_core::place_in_a<T, BY_ROWS>(PITCH);
    b += tensor_core::place_in_b<T, BY_COLUMNS>(PITCH);
    tensor_core::load_a<BY_ROWS>(a, PITCH, of_rows);
    tensor_core::load_b<BY_COLUMNS>(b, PITCH, of_columns[0], of_columns[1]);
    for (int i = 0; i < 2; ++i) {
        if (by_shuffles)
            tensor_core::multiply_by_shuffles<T>(d[i], of_rows, of_columns[i]);
        else
            tensor_core::multiply<T>(d[i], of_rows, of_columns[i]);
    }
}

// d (16 x 16) += a (16 x K) b (K x 16), by one warp.
extern "C" __global__ void __launch_bounds__(WARP)
    probe_fragments(const T* a, const T* b, const float* c, float* d, bool by_rows, bool by_columns,
                    bool by_shuffles) {
    __shared__ __align__(16) T of_a[SIDE * PITCH], of_b[SIDE * PITCH];
    for (int i = threadIdx.x; i < SIDE * K; i += WARP) {
        const int row = i / K, k = i % K;
        of_a[by_rows ? row * PITCH + k : k * PITCH + row] = a[row * K + k];
        of_b[by_columns ? row * PITCH + k : k * PITCH + row] = b[k * SIDE + row];
    }
    __syncwarp();
    const int lane = threadIdx.x;
    float sums[2][4];
    const auto place = [&](int half, int i) {
        return (lane / 4 + i / 2 * 8) * SIDE + half * 8 + lane % 4 * 2 + i % 2;
    };
    for (int half = 0; half < 2; ++half)
        for (int i = 0; i < 4; ++i) sums[half][i] = c[place(half, i)];
    if (by_rows && by_columns)
        multiply<true, true>(of_a, of_b, by_shuffles, sums);
    else if (by_rows)
        multiply<true, false>(of_a, of_b, by_shuffles, sums);
    else if (by_columns)
        multiply<false, true>(of_a, of_b, by_shuffles, sums);
    else
        multiply<false, false>(of_a, of_b, by_shuffles, sums);
    for (int half = 0; half < 2; ++half)
        for (int i = 0; i < 4; ++i) d[place(half, i)] = sums[half][i];
}

extern "C" __global__ void probe_tf32(const float* x, float* y, i64 n) {
    const i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) y[i] = tensor_core::to_tf32(x[i]);
}
