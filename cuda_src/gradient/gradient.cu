// SPDX-License-Identifier: MIT
// Sums, zeroing and scaling of gradients.  CPU provider: cupy_training_ops/families/gradient/reference.py
//
// Output and input may be the same array (in place). sizes: elements and first chunk of each tensor
// of a list. A block has a tile of Tiling::tile elements, or a chunk of CHUNK_NBYTES.
#include "algorithm/multi_tensor.cuh"
#include "algorithm/range_map.cuh"
#include "algorithm/reduce.cuh"
#include "core/slots.cuh"
#include "core/vec.cuh"
#include "gradient/facts.cuh"

// T: what is written. VALUE: what is added or scaled.
#ifndef CTO_VALUE
#define CTO_VALUE float
#endif

namespace cto {

using namespace facts::gradient;
using facts::Pointers;
using facts::TensorStarts;
using multi_tensor::TensorSizes;
using vec::Vec;

using slots::T;
using VALUE = CTO_VALUE;

// Elements of a vector: 16 bytes of the wider type.
constexpr int WIDTH = 16 / (sizeof(T) > sizeof(VALUE) ? sizeof(T) : sizeof(VALUE));
constexpr int VECS = NBYTES / 16;  // vectors of the wider type that a thread loads together
using Chunk = multi_tensor::BlockChunk<CHUNK_NBYTES / 16 * WIDTH>;

using Tiling = range_map::Tiling<WIDTH, VECS, THREADS>;
using range_map::map_range;

// range_map's Map of new_sum = old_sum + value: in the wider of the two accumulators, rounded once.
struct Accumulate {
    const T* old_sum;
    const VALUE* value;
    T* new_sum;

    template <int N>
    struct Loaded {
        Vec<T, N> sum;
        Vec<VALUE, N> value;
    };

    // Elements before the first vector of the wider type.
    __device__ int head() const {
        return sizeof(T) >= sizeof(VALUE) ? vec::elements_to_16(new_sum)
                                          : vec::elements_to_16(value);
    }
    // True if all arrays may be accessed in vectors from element `first` on.
    __device__ bool has_vecs_at(int first) const {
        return range_map::has_vecs_at<WIDTH>(old_sum, first) &&
               range_map::has_vecs_at<WIDTH>(value, first) &&
               range_map::has_vecs_at<WIDTH>(new_sum, first);
    }
    // Loads N elements from i on of each input.
    template <int N>
    __device__ __forceinline__ void load(Loaded<N>& loaded, i64 i) const {
        loaded.sum = *reinterpret_cast<const Vec<T, N>*>(old_sum + i);
        loaded.value = *reinterpret_cast<const Vec<VALUE, N>*>(value + i);
    }
    // new_sum[i + k] = old_sum[i + k] + value[i + k], k < N.
    template <int N>
    __device__ __forceinline__ void store(const Loaded<N>& loaded, i64 i) const {
        Vec<T, N> sum;
#pragma unroll
        for (int k = 0; k < N; ++k)
            sum.at[k] = from_acc<T>(to_acc(loaded.sum.at[k]) + to_acc(loaded.value.at[k]));
        vec::store_streaming(reinterpret_cast<Vec<T, N>*>(new_sum + i), sum);
    }
};

// range_map's Map of y[i] = rule(x[i]), x of type X; rule: a Copy, Cast or Scale.
template <class X, class Rule>
struct Convert {
    const X* x;
    T* y;
    Rule rule;

    template <int N>
    using Loaded = Vec<X, N>;

    __device__ int head() const {
        return sizeof(T) >= sizeof(X) ? vec::elements_to_16(y) : vec::elements_to_16(x);
    }
    __device__ bool has_vecs_at(int first) const {
        return range_map::has_vecs_at<WIDTH>(x, first) && range_map::has_vecs_at<WIDTH>(y, first);
    }
    template <int N>
    __device__ __forceinline__ void load(Vec<X, N>& loaded, i64 i) const {
        loaded = *reinterpret_cast<const Vec<X, N>*>(x + i);
    }
    // y[i + k] = rule(x[i + k]), k < N.
    template <int N>
    __device__ __forceinline__ void store(const Vec<X, N>& loaded, i64 i) const {
        Vec<T, N> converted;
#pragma unroll
        for (int k = 0; k < N; ++k) converted.at[k] = rule(loaded.at[k]);
        vec::store_streaming(reinterpret_cast<Vec<T, N>*>(y + i), converted);
    }
};

struct Copy {
    __device__ T operator()(T x) const { return x; }
};
struct Cast {
    __device__ T operator()(VALUE x) const { return from_acc<T>(to_acc(x)); }
};
struct Scale {
    float scale;
    __device__ T operator()(VALUE x) const { return from_acc<T>(scale * to_acc(x)); }
};

}  // namespace cto

using namespace cto;

// new_sum[i] = old_sum[i] + value[i], or old_sum[i] where value is null, i < n. A block has one
// tile.
extern "C" __global__ void __launch_bounds__(THREADS)
    in_place_accumulator(const T* old_sum, const VALUE* value, T* new_sum, i64 n) {
    const i64 first = blockIdx.x * Tiling::tile;
    const i64 end = first + Tiling::tile < n ? first + Tiling::tile : n;
    if (value)
        map_range<Tiling>(Accumulate{old_sum, value, new_sum}, first, end, n);
    else
        map_range<Tiling>(Convert<T, Copy>{/*x=*/old_sum, /*y=*/new_sum}, first, end, n);
}

// new_sum[i] = old_sum[i] + value[i], or value[i] where old_sum is null, i < n. A block has one
// tile.
extern "C" __global__ void __launch_bounds__(THREADS)
    in_place_accumulator_v2(const T* old_sum, const VALUE* value, T* new_sum, i64 n) {
    const i64 first = blockIdx.x * Tiling::tile;
    const i64 end = first + Tiling::tile < n ? first + Tiling::tile : n;
    if (old_sum)
        map_range<Tiling>(Accumulate{old_sum, value, new_sum}, first, end, n);
    else
        map_range<Tiling>(Convert<VALUE, Cast>{/*x=*/value, /*y=*/new_sum}, first, end, n);
}

// new_sums[t][i] = old_sums[t][i] + values[t][i], or old_sums[t][i] without `update`, for each of
// n_tensors tensors t, of sizes.size[t] elements; a block has one chunk.
extern "C" __global__ void __launch_bounds__(THREADS)
    in_place_accumulator_list(const __grid_constant__ Pointers<CAPACITY> old_sums,
                              const __grid_constant__ Pointers<CAPACITY> values,
                              const __grid_constant__ Pointers<CAPACITY> new_sums,
                              const __grid_constant__ TensorSizes<CAPACITY> sizes, i32 n_tensors,
                              bool update) {
    const Chunk chunk(sizes, n_tensors);
    const T* const old_sum = static_cast<const T*>(old_sums.at[chunk.tensor]);
    const VALUE* const value = static_cast<const VALUE*>(values.at[chunk.tensor]);
    T* const new_sum = static_cast<T*>(new_sums.at[chunk.tensor]);
    if (update)
        map_range<Tiling>(Accumulate{old_sum, value, new_sum}, chunk.first, chunk.end, chunk.n);
    else
        map_range<Tiling>(Convert<T, Copy>{/*x=*/old_sum, /*y=*/new_sum}, chunk.first, chunk.end,
                          chunk.n);
}

// gradient[0 .. nbytes) = 0: aligned vectors by all blocks, the bytes before and after them by
// block 0.
extern "C" __global__ void __launch_bounds__(THREADS) zero_gradient(void* gradient, i64 nbytes) {
    constexpr i64 BLOCK = VECS * THREADS * 16;
    const reduce::Range<u8> range(static_cast<const u8*>(gradient), nbytes);
    uint4* const middle = reinterpret_cast<uint4*>(static_cast<u8*>(gradient) + range.head);
    const i64 first = blockIdx.x * (BLOCK / 16) + threadIdx.x;
#pragma unroll
    for (int u = 0; u < VECS; ++u)
        if (first + u * THREADS < range.n_vecs) middle[first + u * THREADS] = uint4{0, 0, 0, 0};
    if (blockIdx.x > 0) return;
    u8* const bytes = static_cast<u8*>(gradient);
    if (threadIdx.x < range.head) bytes[threadIdx.x] = 0;
    if (range.tail() + threadIdx.x < nbytes) bytes[range.tail() + threadIdx.x] = 0;
}

// ys[t][i] = xs[t][i] * *s for each of n_tensors tensors t, of sizes.size[t] elements; a block has
// one chunk.
extern "C" __global__ void __launch_bounds__(THREADS)
    mixed_precision_scale(const float* s, const __grid_constant__ Pointers<CAPACITY> xs,
                          const __grid_constant__ Pointers<CAPACITY> ys,
                          const __grid_constant__ TensorSizes<CAPACITY> sizes, i32 n_tensors) {
    const Chunk chunk(sizes, n_tensors);
    const Convert<VALUE, Scale> map{
        static_cast<const VALUE*>(xs.at[chunk.tensor]), static_cast<T*>(ys.at[chunk.tensor]), {*s}};
    map_range<Tiling>(map, chunk.first, chunk.end, chunk.n);
}

// y[starts[t] + i] = xs[t][i] * *s for each of n_tensors tensors t, of sizes.size[t] elements; a
// block has one chunk.
extern "C" __global__ void __launch_bounds__(THREADS)
    mixed_precision_scale__fused(const float* s, const __grid_constant__ Pointers<CAPACITY> xs,
                                 T* y, const __grid_constant__ TensorStarts<CAPACITY> starts,
                                 const __grid_constant__ TensorSizes<CAPACITY> sizes,
                                 i32 n_tensors) {
    const Chunk chunk(sizes, n_tensors);
    const Convert<VALUE, Scale> map{
        static_cast<const VALUE*>(xs.at[chunk.tensor]), y + starts.at[chunk.tensor], {*s}};
    map_range<Tiling>(map, chunk.first, chunk.end, chunk.n);
}
