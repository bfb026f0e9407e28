// SPDX-License-Identifier: MIT
// Arrays of optimizer steps. Some may be null, outputs may be the input arrays, and a skipped step
// copies inputs to outputs. An Either is a number that is a launch argument or in GPU memory. W, G
// and M are the types of weights, gradients and moments, A that of the computation.
#pragma once
#include "algorithm/multi_tensor.cuh"
#include "algorithm/range_map.cuh"
#include "core/either.cuh"
#include "math/philox.cuh"
#include "math/step.cuh"

namespace cto::parameter_update {

using vec::Vec;

// True if the array is null or may be accessed by vectors of WIDTH from element `first` on.
template <int WIDTH, class E>
__device__ __forceinline__ bool may_have_vecs_at(const E* array, int first) {
    return !array || range_map::has_vecs_at<WIDTH>(array, first);
}

// may_have_vecs_at of each array.
template <int WIDTH, class... E>
__device__ __forceinline__ bool all_may_have_vecs_at(int first, const E*... arrays) {
    return (may_have_vecs_at<WIDTH>(arrays, first) && ...);
}

// loaded = from[i .. i + N - 1].
template <class E, int N>
__device__ __forceinline__ void load(Vec<E, N>& loaded, const E* from, i64 i) {
    loaded = *reinterpret_cast<const Vec<E, N>*>(from + i);
}

// Prefetches the first NBYTES of elements [first, end) of `array` into the L2 cache, a line of 128
// bytes a thread: for a block that reads them after it has computed the numbers of its step.
template <int NBYTES, class E>
__device__ __forceinline__ void expect(const E* array, i64 first, i64 end) {
#ifndef __CUDA_CPU__
    constexpr i64 LINE = 128 / sizeof(E);
    const i64 i = first + threadIdx.x * LINE;
    if (threadIdx.x < NBYTES / 128 && i < end)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(array + i));
#endif
}

// to[i + k] = values[k] rounded to E, k < N; nothing where `to` is null.
template <class E, class A, int N>
__device__ __forceinline__ void store(E* to, i64 i, const A (&values)[N]) {
    if (to) vec::store_streaming(reinterpret_cast<Vec<E, N>*>(to + i), vec::from_acc<E>(values));
}

// to[i] = from[i], first <= i < end, by this block; nothing where `to` is null or `from` itself.
template <class E>
__device__ __forceinline__ void copy_through(const E* from, E* to, i64 first, i64 end) {
    if (!to || to == from) return;
#pragma unroll 1
    for (i64 i = first + threadIdx.x; i < end; i += blockDim.x) to[i] = from[i];
}

// An output of low-precision weights, float16 or bfloat16 as chosen at run time; `from` is its
// input, for skipped steps.
struct Copy {
    const u16* from;
    u16* to;
    bool is_bfloat16;

    // True if `to` is null or may be accessed by vectors of WIDTH from element `first` on.
    template <int WIDTH>
    __device__ bool may_have_vecs_at(int first) const {
        return parameter_update::may_have_vecs_at<WIDTH>(to, first);
    }
    // to[i + k] = w[k] rounded to float16 or bfloat16, k < N.
    template <class A, int N>
    __device__ __forceinline__ void store(i64 i, const A (&w)[N]) const {
        if (is_bfloat16)
            parameter_update::store(reinterpret_cast<__nv_bfloat16*>(to), i, w);
        else
            parameter_update::store(reinterpret_cast<__half*>(to), i, w);
    }
    // to[i] = from[i], first <= i < end: the weights of a skipped step.
    __device__ void copy_through(i64 first, i64 end) const {
        parameter_update::copy_through(from, to, first, end);
    }
};

// new_w[i + k] = weight[k], new_g[i + k] = delta[k], copy[i + k] = weight[k], k < N, each rounded;
// null arrays are left out.
template <class W, class G, class A, int N>
__device__ __forceinline__ void put(W* new_w, G* new_g, const Copy& copy, i64 i,
                                    const A (&weight)[N], const A (&delta)[N]) {
    store(new_w, i, weight);
    store(new_g, i, delta);
    copy.store(i, weight);
}

// Stochastic rounding of new weights to bfloat16, used where is_on: away from 0 with a probability
// that is the distance to the bfloat16 nearer to 0, in units of the last place. Element i is
// rounded by word i % 4 of Philox's counter {i / 4, step} for `seed`; step: number of the optimizer
// step.
struct RandomRounding {
    u64 seed, step;
    bool is_on;

    // to[i + k] = x[k] rounded at random, k < N. A counter gives four words, so four elements from
    // a multiple of 4 on share one.
    template <int N>
    __device__ __forceinline__ void store(__nv_bfloat16* to, i64 i, const float (&x)[N]) const {
        const philox::RandomSequence words{philox::Seed{seed}, step};
        Vec<u16, N> rounded;
        if (N % 4 == 0 && i % 4 == 0) {
#pragma unroll
            for (int first = 0; first < N; first += 4) {
                const u64 block = static_cast<u64>(i + first) / 4;
                const philox::Words drawn =
                    words.block(static_cast<u32>(block), static_cast<u32>(block >> 32));
#pragma unroll
                for (int k = first; k < first + 4 && k < N; ++k)
                    rounded.at[k] = at_random(x[k], drawn.at[k - first]);
            }
        } else {
#pragma unroll
            for (int k = 0; k < N; ++k) rounded.at[k] = at_random(x[k], words.word_of(i + k));
        }
        vec::store_streaming(reinterpret_cast<Vec<u16, N>*>(to + i), rounded);
    }

  private:
    // Bits of the bfloat16 below x in magnitude, or of the next one with a probability that is x's
    // distance from the lower one, in units of the last place: 16 random bits, the upper half of
    // `word`, are added to the 16 bits that are cut off.
    static __device__ __forceinline__ u16 at_random(float x, u32 word) {
        const u32 bits = __float_as_uint(x);
        if ((bits & 0x7F800000u) == 0x7F800000u)  // NaN and infinity stay what they are
            return static_cast<u16>(bits_of(from_acc<__nv_bfloat16>(x)));
        return static_cast<u16>(bits + (word >> 16) >> 16);
    }
};

// new_w[i + k] = weight[k], new_g[i + k] = delta[k], copy[i + k] = weight[k], k < N, each rounded:
// new_w in bfloat16 at random where `rounding` is on, all others to nearest. Null arrays are left
// out.
template <class W, class G, class A, int N>
__device__ __forceinline__ void put(W* new_w, G* new_g, const Copy& copy, i64 i,
                                    const A (&weight)[N], const A (&delta)[N],
                                    const RandomRounding& rounding) {
    if constexpr (ARE_SAME<W, __nv_bfloat16>) {
        if (rounding.is_on && new_w) {
            rounding.store(new_w, i, weight);
            new_w = nullptr;
        }
    }
    put(new_w, new_g, copy, i, weight, delta);
}

// Numbers of a step: learning rate, factor that gradients were multiplied with, norm of all
// gradients so multiplied, and limit of their norm without the factor (for clipping); update: false
// if the caller asks for the step to be skipped.
struct Numbers {
    double rate, loss_scale, norm, max_norm;
    bool update;

    // False if the step is skipped: by `update`, or because rate or loss_scale allow none.
    __device__ bool allows_step() const { return update && step::allows_step(rate, loss_scale); }
    // What gradients are divided by: loss_scale, or norm / max_norm where that is larger.
    __device__ double gradient_divisor() const {
        return step::gradient_divisor(loss_scale, norm, max_norm);
    }
};

// Sets all of `numbers` but max_norm from launch arguments or arrays (Either), by warps 2 and 3,
// while warps 0 and 1 compute of_moments, the bias corrections {1 - rule.alpha^step, 1 -
// rule.beta^step} (1 without rule.correct_bias): in one warp this would take twice as long. rate:
// learning rate. step: number of the step. loss_scale: factor of the
// gradients, norm: of all so multiplied; update: 0 to skip the step. Both results are
// in shared memory. Ends with __syncthreads.
template <class Rule>
__device__ __forceinline__ void read_numbers(Numbers& numbers, double (&of_moments)[2],
                                             const Rule& rule, const either::Either<1>& rate,
                                             const either::Either<1>& step,
                                             const either::Either<1>& loss_scale,
                                             const either::Either<1>& norm,
                                             const either::Either<1>& update) {
    if (threadIdx.x == 2 * WARP) {
        numbers.rate = either::as_double(rate);
        numbers.update = either::as_i64(update) != 0;
    }
    if (threadIdx.x == 3 * WARP) {
        numbers.loss_scale = either::as_double(loss_scale);
        numbers.norm = either::as_double(norm);
    }
    const i64 steps = rule.correct_bias ? either::as_i64(step) : 0;
    step::bias_corrections(rule.alpha, rule.beta, steps, of_moments);
}

// Inputs of an optimizer step with two moments: weight, gradient, first and second moment.
template <class W, class G, class M>
struct Parameter {
    const W* w;
    const G* g;
    const M* m;
    const M* v;

    template <int N>
    struct Loaded {
        Vec<W, N> w;
        Vec<G, N> g;
        Vec<M, N> m, v;
    };

    // Loads elements [i, i + N) of each of the four arrays.
    template <int N>
    __device__ __forceinline__ void load(Loaded<N>& loaded, i64 i) const {
        parameter_update::load(loaded.w, w, i);
        parameter_update::load(loaded.g, g, i);
        parameter_update::load(loaded.m, m, i);
        parameter_update::load(loaded.v, v, i);
    }
    // Prefetches into the L2 cache the first NBYTES of the elements [first, end) of each of the
    // four arrays.
    template <int NBYTES>
    __device__ __forceinline__ void expect(i64 first, i64 end) const {
        parameter_update::expect<NBYTES>(w, first, end);
        parameter_update::expect<NBYTES>(g, first, end);
        parameter_update::expect<NBYTES>(m, first, end);
        parameter_update::expect<NBYTES>(v, first, end);
    }
};

// Arrays of an optimizer step without moments: weight and gradient, outputs new_w, new_g (the
// change of the weight) and the low-precision `copy` of new weights; outputs may be null. W, G:
// types of weights and gradients.
template <class W, class G>
struct Descent {
    const W* w;
    const G* g;
    W* new_w;
    G* new_g;
    Copy copy;

    template <int N>
    struct Loaded {
        Vec<W, N> w;
        Vec<G, N> g;
    };

    // Elements before the first 16-byte boundary of w.
    __device__ int head() const { return vec::elements_to_16(w); }
    // True if all arrays may be accessed in vectors from element `first` on.
    __device__ bool has_vecs_at(int first) const {
        constexpr int WIDTH = vec::WIDTH<W>;
        return all_may_have_vecs_at<WIDTH>(first, w, g, new_w, new_g) &&
               copy.may_have_vecs_at<WIDTH>(first);
    }
    // Loads N weights and gradients from element i on.
    template <int N>
    __device__ __forceinline__ void load(Loaded<N>& loaded, i64 i) const {
        parameter_update::load(loaded.w, w, i);
        parameter_update::load(loaded.g, g, i);
    }
    // new_w = w, new_g = g and the copy = its input in [first, end): a step that is skipped.
    __device__ __forceinline__ void stay(i64 first, i64 end) const {
        parameter_update::copy_through(w, new_w, first, end);
        parameter_update::copy_through(g, new_g, first, end);
        copy.copy_through(first, end);
    }
};

// *new_step = step + 1, or step if the step is skipped: if `update` is 0, or the learning rate
// `rate` or loss_scale is not finite, or loss_scale <= 0. Wraps around at the largest integer.
// Called in the last launch, as the others read `step`.
__device__ __forceinline__ void count(const either::Either<1>& rate, const either::Either<1>& step,
                                      const either::Either<1>& loss_scale,
                                      const either::Either<1>& update, i64* new_step) {
    const bool applies = step::allows_step(either::as_double(rate), either::as_double(loss_scale));
    const u64 now = static_cast<u64>(either::as_i64(step));
    *new_step = static_cast<i64>(now + (applies && either::as_i64(update) != 0));
}

}  // namespace cto::parameter_update
