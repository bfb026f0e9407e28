// SPDX-License-Identifier: MIT
// Adaptive sums of two ranks' tensors.  CPU provider: cupy_training_ops/families/collective/reference.py
//
// For each tensor of a list, result = a * own + b * other, where `other` is the tensor that the
// partner rank sent, and with dot products over all elements of the tensor
//     a = 1 - own.other / (2 own.own)      b = 1 - own.other / (2 other.other)
// Both ranks do this; they add in the same order, so that they get the same bits.
//
// Tensors are cut into chunks of CHUNK elements, numbered over the list (sizes.first_chunk). Own
// tensors have an address each (tensors.at[t]); the partner's lie in one array `others`, tensor t
// from element starts.at[t] on. No tensor is empty. n_tensors of CAPACITY entries are used.
#include "algorithm/multi_tensor.cuh"
#include "collective/facts.cuh"
#include "core/slots.cuh"

namespace cto {

using namespace facts::collective;
using facts::Pointers;
using facts::TensorStarts;
using multi_tensor::TensorSizes;

using slots::T;

constexpr i64 CHUNK = CHUNK_NBYTES / sizeof(T);
constexpr int UNROLL = 8;  // elements of each tensor that a thread loads together

using Chunk = multi_tensor::BlockChunk<CHUNK>;

// Sums of own^2, other^2 and own * other over a tensor's elements, or over a part of them.
struct Dots {
    double own, other, both;

    // Adds the products of own element x and the partner's element y.
    __device__ __forceinline__ void add(double x, double y) {
        own += x * x;
        other += y * y;
        both += x * y;
    }
    // Replaces each sum by that over the threads of the block.
    __device__ __forceinline__ void sum_block(reduce::BlockScratch<double, THREADS>& scratch) {
        own = reduce::sum_block(own, scratch);
        other = reduce::sum_block(other, scratch);
        both = reduce::sum_block(both, scratch);
    }
};
static_assert(sizeof(Dots) == DOTS * sizeof(double));

// The factors a and b of a tensor.
struct Scales {
    double own, other;
};
static_assert(sizeof(Scales) == SCALES * sizeof(double));

// Calls visit(i, own[i], other[i]) for this thread's elements i of the block's chunk: every
// THREADS-th one. own and other point to the tensor's element 0.
template <class Visit>
__device__ __forceinline__ void visit_pairs(const T* own, const T* other, const Chunk& chunk,
                                            Visit visit) {
#pragma unroll 1
    for (i64 i = chunk.first + threadIdx.x; i < chunk.end; i += UNROLL * THREADS) {
        T x[UNROLL], y[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (i + u * THREADS < chunk.end)
                x[u] = own[i + u * THREADS], y[u] = other[i + u * THREADS];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (i + u * THREADS < chunk.end) visit(i + u * THREADS, x[u], y[u]);
    }
}

constexpr double SMALL = 1.4916681462400413e-154;  // sqrt of the least normal double

// 1 - both / (2 square): a or b, of square = own.own or other.other, both = own.other; 1 if the
// square is so small that the tensor counts as zero.
__device__ __forceinline__ double scale_of(double square, double both) {
    return square < SMALL ? 1.0 : 1.0 - both / (2.0 * square);
}

}  // namespace cto

using namespace cto;

// Writes the Dots of chunk c, three doubles, to partials[3 c], for the launch's n_tensors tensors;
// block c does so.
extern "C" __global__ void __launch_bounds__(THREADS)
    adasum_all_reduce__dots(const __grid_constant__ Pointers<CAPACITY> tensors,
                            const __grid_constant__ TensorSizes<CAPACITY> sizes,
                            const __grid_constant__ TensorStarts<CAPACITY> starts, const T* others,
                            double* partials, i32 n_tensors) {
    __shared__ reduce::BlockScratch<double, THREADS> scratch;
    const Chunk chunk(sizes, n_tensors);
    const T* const own = static_cast<const T*>(tensors.at[chunk.tensor]);
    Dots dots{};
    visit_pairs(own, others + starts.at[chunk.tensor], chunk,
                [&](i64, T x, T y) { dots.add(to_acc(x), to_acc(y)); });
    dots.sum_block(scratch);
    if (threadIdx.x == 0) reinterpret_cast<Dots*>(partials)[blockIdx.x] = dots;
}

// Writes the Scales of tensor t, two doubles, to scales[2 t], from its chunks' Dots in `partials`,
// added in a fixed order. Block t does so.
extern "C" __global__ void __launch_bounds__(THREADS)
    adasum_all_reduce__scales(const __grid_constant__ TensorSizes<CAPACITY> sizes,
                              const double* partials, double* scales) {
    __shared__ reduce::BlockScratch<double, THREADS> scratch;
    const u32 end = sizes.first_chunk[blockIdx.x + 1];
    Dots dots{};
    for (u32 i = sizes.first_chunk[blockIdx.x] + threadIdx.x; i < end; i += THREADS) {
        const Dots part = reinterpret_cast<const Dots*>(partials)[i];
        dots.own += part.own;
        dots.other += part.other;
        dots.both += part.both;
    }
    dots.sum_block(scratch);
    if (threadIdx.x == 0)
        reinterpret_cast<Scales*>(scales)[blockIdx.x] = {scale_of(dots.own, dots.both),
                                                         scale_of(dots.other, dots.both)};
}

// results[t][i] = a * tensors[t][i] + b * others[starts[t] + i], {a, b} = the Scales of tensor t,
// at scales[2 t]; block c does so for chunk c. own_is_first: this rank is the lower one, whose term
// comes first on both ranks.
extern "C" __global__ void __launch_bounds__(THREADS)
    adasum_all_reduce__combine(const __grid_constant__ Pointers<CAPACITY> tensors,
                               const __grid_constant__ Pointers<CAPACITY> results,
                               const __grid_constant__ TensorSizes<CAPACITY> sizes,
                               const __grid_constant__ TensorStarts<CAPACITY> starts,
                               const T* others, const double* scales, i32 n_tensors,
                               bool own_is_first) {
    const Chunk chunk(sizes, n_tensors);
    const Scales by = reinterpret_cast<const Scales*>(scales)[chunk.tensor];
    const T* const own = static_cast<const T*>(tensors.at[chunk.tensor]);
    T* const result = static_cast<T*>(results.at[chunk.tensor]);
    visit_pairs(own, others + starts.at[chunk.tensor], chunk, [&](i64 i, T x, T y) {
        const double mine = by.own * static_cast<double>(to_acc(x));
        const double theirs = by.other * static_cast<double>(to_acc(y));
        result[i] = from_acc<T>(own_is_first ? mine + theirs : theirs + mine);
    });
}
