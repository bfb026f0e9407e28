// SPDX-License-Identifier: MIT
// Gradient descent, norms of gradients and clipping.  CPU provider: cupy_training_ops/families/optimizer/reference.py
//
// A step is computed in the accumulator of the weights' type, and rounded once for each output. An
// Either is a number in a launch argument or in GPU memory. Lists of tensors are cut into chunks;
// sizes: elements and first chunk of each tensor.
#include "algorithm/l2_norm.cuh"
#include "algorithm/multi_tensor.cuh"
#include "algorithm/parameter_update.cuh"
#include "algorithm/range_map.cuh"
#include "core/either.cuh"
#include "core/slots.cuh"
#include "math/step.cuh"
#include "optimizer/facts.cuh"

namespace cto {

using namespace facts::optimizer;
using namespace either;
using namespace multi_tensor;
using namespace parameter_update;
using facts::Partials;
using vec::Vec;
using zeroed::Zeroed;

using slots::GRAD;
using slots::W;
using ACC = Acc<W>;
using NORM = Acc<GRAD>;

constexpr int NORM_UNROLL = 4;
constexpr int WIDTH = vec::WIDTH<W>;
constexpr i64 CHUNK = STEP_NBYTES / sizeof(W);
using Tiling = range_map::Tiling<WIDTH, VECS, THREADS>;
using Chunk = multi_tensor::BlockChunk<CHUNK>;

// ---- SGD ----------------------------------------------------------------------------------------

// Numbers of a step that all elements share: `by` in the formulas of struct Sgd. The divisor of
// gradients is negative to maximize; rest_of_dampening = 1 - dampening; is_first: the first step.
// rounding: of new weights in bfloat16.
struct SgdFactors {
    ACC divisor, rate, weight_decay, momentum, rest_of_dampening;
    RandomRounding rounding;
    bool nesterov, is_first, update;  // without update the step is skipped
};

// The SgdFactors of a step, computed by each thread. rule: attributes. rate: learning rate. step:
// number of the step, from 1. Gradients are divided by loss_scale, or by norm / max_norm where that
// is larger (norm: of all of them, before the division), which clips them. update: 0 to skip the
// step.
__device__ __forceinline__ SgdFactors sgd_factors(const SGDRule& rule, const Either<1>& rate,
                                                  const Either<1>& step,
                                                  const Either<1>& loss_scale,
                                                  const Either<1>& norm, const Either<1>& max_norm,
                                                  const Either<1>& update) {
    const double scale = as_double(loss_scale), lr = as_double(rate);
    const double divisor = step::gradient_divisor(scale, as_double(norm), as_double(max_norm));
    const i64 count = as_i64(step);
    SgdFactors by;
    by.divisor = static_cast<ACC>(rule.maximize ? -divisor : divisor);
    by.rate = static_cast<ACC>(lr);
    by.weight_decay = static_cast<ACC>(rule.weight_decay);
    by.momentum = static_cast<ACC>(rule.momentum);
    by.rest_of_dampening = static_cast<ACC>(1.0 - rule.dampening);
    by.rounding = {rule.seed, static_cast<u64>(count), rule.rounds_at_random != 0};
    by.nesterov = rule.nesterov;
    by.is_first = count <= 1;
    by.update = as_i64(update) && step::allows_step(lr, scale);
    return by;
}

// range_map's Map of a step:
// g = gradient / divisor + weight_decay w, u = g; with HAS_MOMENTUM b = momentum b + (1 -
// dampening) g, or g in the first step, and u = b, or g + momentum b with nesterov. delta = -rate
// u; w = w + delta.
template <bool HAS_MOMENTUM>
struct Sgd : Descent<W, GRAD> {
    const ACC* momentum;  // null without HAS_MOMENTUM
    ACC* new_momentum;
    SgdFactors by;

    using Base = Descent<W, GRAD>;

    template <int N>
    struct Loaded : Base::template Loaded<N> {
        Vec<ACC, HAS_MOMENTUM ? N : 1> momentum;
    };

    // True if all arrays may be accessed in vectors from element `first` on.
    __device__ bool has_vecs_at(int first) const {
        return Base::has_vecs_at(first) &&
               all_may_have_vecs_at<WIDTH>(first, momentum, new_momentum);
    }
    // Loads N elements from i on of each input of the step.
    template <int N>
    __device__ __forceinline__ void load(Loaded<N>& loaded, i64 i) const {
        Base::load(loaded, i);
        if constexpr (HAS_MOMENTUM) parameter_update::load(loaded.momentum, momentum, i);
    }
    // Makes the step of elements i to i + N - 1, of which `loaded` has the inputs, and writes all
    // outputs.
    template <int N>
    __device__ __forceinline__ void store(const Loaded<N>& loaded, i64 i) const {
        ACC delta[N], weight[N], next_momentum[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const ACC before = to_acc(loaded.w.at[k]);
            ACC u = to_acc(loaded.g.at[k]) / by.divisor;
            if (by.weight_decay != 0) u += by.weight_decay * before;
            if constexpr (HAS_MOMENTUM) {
                const ACC sum = by.momentum * loaded.momentum.at[k] + by.rest_of_dampening * u;
                next_momentum[k] = by.is_first ? u : sum;
                u = by.nesterov ? u + by.momentum * next_momentum[k] : next_momentum[k];
            }
            delta[k] = -by.rate * u;
            weight[k] = before + delta[k];
        }
        if constexpr (HAS_MOMENTUM) parameter_update::store(new_momentum, i, next_momentum);
        put(new_w, new_g, copy, i, weight, delta, by.rounding);
    }
    // Makes the step of a block's elements [first, end) of n, or, if it is skipped, copies all
    // inputs.
    __device__ __forceinline__ void run(i64 first, i64 end, i64 n) const {
        if (by.update) {
            range_map::map_range<Tiling>(*this, first, end, n);
            return;
        }
        stay(first, end);
        copy_through(momentum, new_momentum, first, end);
    }
};

// Lists of a launch: 0 to 3 are w, g, low-precision weights and momenta; 4 to 6 the new w,
// low-precision weights and momenta. A list may be absent.
constexpr int LISTED = 7, AFTER = 4;

// A step, by the numbers `by`, for a list of parameters, or the same weights if it is skipped; a
// block has one chunk of one tensor. arrays, columns: lists 0 to 3 are w, g, low-precision weights,
// momenta; 4 to 6 the new w, low-precision weights, momenta. is_bfloat16: the type of low-precision
// weights, else float16.
template <bool HAS_MOMENTUM>
__device__ __forceinline__ void descend(const Pointers<POINTERS>& arrays,
                                        const Columns<LISTED>& columns,
                                        const TensorSizes<TWO_LISTS>& sizes, const SgdFactors& by,
                                        bool is_bfloat16) {
    const Chunk chunk(sizes, columns.n_tensors);
    const int t = chunk.tensor;
    const Copy copy{array_of<const u16>(arrays, columns, 2, t),
                    array_of<u16>(arrays, columns, AFTER + 1, t), is_bfloat16};
    const ACC* const momentum = HAS_MOMENTUM ? array_of<const ACC>(arrays, columns, 3, t) : nullptr;
    ACC* const new_momentum = HAS_MOMENTUM ? array_of<ACC>(arrays, columns, AFTER + 2, t) : nullptr;
    const Sgd<HAS_MOMENTUM> sgd{
        {array_of<const W>(arrays, columns, 0, t), array_of<const GRAD>(arrays, columns, 1, t),
         array_of<W>(arrays, columns, AFTER, t), /*new_g=*/nullptr, copy},
        momentum,
        new_momentum,
        by};
    sgd.run(chunk.first, chunk.end, chunk.n);
}

// ---- clipping -----------------------------------------------------------------------------------

// range_map's Map of new_g = g * factor. The factor may be subnormal: norms may be close to the
// largest float.
struct Clip {
    const GRAD* g;
    GRAD* new_g;
    NORM factor;

    template <int N>
    using Loaded = Vec<GRAD, N>;

    __device__ int head() const { return vec::elements_to_16(g); }
    // True if all arrays may be accessed in vectors from element `first` on.
    __device__ bool has_vecs_at(int first) const {
        return range_map::has_vecs_at<vec::WIDTH<GRAD>>(g, first) &&
               range_map::has_vecs_at<vec::WIDTH<GRAD>>(new_g, first);
    }
    template <int N>
    __device__ __forceinline__ void load(Vec<GRAD, N>& loaded, i64 i) const {
        parameter_update::load(loaded, g, i);
    }
    // new_g[i + k] = factor loaded[k], k < N.
    template <int N>
    __device__ __forceinline__ void store(const Vec<GRAD, N>& loaded, i64 i) const {
        NORM clipped[N];
#pragma unroll
        for (int k = 0; k < N; ++k) clipped[k] = multiply_subnormal(to_acc(loaded.at[k]), factor);
        parameter_update::store(new_g, i, clipped);
    }
};

constexpr i64 CLIP_CHUNK = CHUNK_NBYTES / sizeof(GRAD);
using ClipTiling = range_map::Tiling<vec::WIDTH<GRAD>, 2 * VECS, THREADS>;
using ClipChunk = multi_tensor::BlockChunk<CLIP_CHUNK>;

}  // namespace cto

using namespace cto;

// delta = -rate * g, new_w = w + delta, new_g = delta, n elements each; if the learning rate `rate`
// is not finite, new_w = w, new_g = g. A block has Tiling::tile elements.
extern "C" __global__ void __launch_bounds__(THREADS)
    sgd_optimizer(const W* w, const GRAD* g, W* new_w, GRAD* new_g,
                  const __grid_constant__ Either<1> rate, i64 n) {
    const i64 first = blockIdx.x * Tiling::tile;
    const i64 end = first + Tiling::tile < n ? first + Tiling::tile : n;
    const double lr = as_double(rate);
    SgdFactors by{};
    by.divisor = 1;
    by.rate = static_cast<ACC>(lr);
    by.update = step::allows_step(lr, 1);
    const Sgd</*HAS_MOMENTUM=*/false> sgd{
        {w, g, new_w, new_g, Copy{}}, /*momentum=*/nullptr, /*new_momentum=*/nullptr, by};
    sgd.run(first, end, n);
}

// A step for a list of parameters: u = g / divisor + weight_decay w, new w = w - rate u. arrays,
// columns: lists 0 to 2 are w, g, low-precision weights (float16, or bfloat16 with is_bfloat16); 4
// and 5 the new w and low-precision weights; absent ones have a negative column. rule: attributes.
// rate: learning rate. step: number of the step, from 1. Gradients are divided by loss_scale, or by
// norm / max_norm where that is larger (norm: of all of them, before the division), which clips
// them. If `update` is 0, or rate or loss_scale allow no step, weights are copied. A block has one
// chunk of one tensor.
extern "C" __global__ void __launch_bounds__(THREADS, 4) optimizer__sgd(
    const __grid_constant__ Pointers<POINTERS> arrays, const __grid_constant__ Columns<7> columns,
    const __grid_constant__ TensorSizes<TWO_LISTS> sizes, const __grid_constant__ SGDRule rule,
    const __grid_constant__ Either<1> rate, const __grid_constant__ Either<1> step,
    const __grid_constant__ Either<1> loss_scale, const __grid_constant__ Either<1> norm,
    const __grid_constant__ Either<1> max_norm, const __grid_constant__ Either<1> update,
    bool is_bfloat16) {
    const SgdFactors by = sgd_factors(rule, rate, step, loss_scale, norm, max_norm, update);
    descend</*HAS_MOMENTUM=*/false>(arrays, columns, sizes, by, is_bfloat16);
}

// A step with momenta for a list of parameters: g = gradient / divisor + weight_decay w, b =
// momentum b + (1 - dampening) g (g in the first step), u = b, or g + momentum b with nesterov, new
// w = w - rate u. arrays, columns: lists 0 to 2 are w, g, low-precision weights (float16, or
// bfloat16 with is_bfloat16); 3 the momenta b; 4 to 6 the new w, low-precision weights, momenta;
// absent ones have a negative column. rule: attributes. rate: learning rate. step: number of the
// step, from 1. Gradients are divided by loss_scale, or by norm / max_norm where that is larger
// (norm: of all of them, before the division), which clips them. If `update` is 0, or rate or
// loss_scale allow no step, inputs are copied. A block has one chunk of one tensor.
extern "C" __global__ void __launch_bounds__(THREADS, 4) optimizer__sgd_momentum(
    const __grid_constant__ Pointers<POINTERS> arrays, const __grid_constant__ Columns<7> columns,
    const __grid_constant__ TensorSizes<TWO_LISTS> sizes, const __grid_constant__ SGDRule rule,
    const __grid_constant__ Either<1> rate, const __grid_constant__ Either<1> step,
    const __grid_constant__ Either<1> loss_scale, const __grid_constant__ Either<1> norm,
    const __grid_constant__ Either<1> max_norm, const __grid_constant__ Either<1> update,
    bool is_bfloat16) {
    const SgdFactors by = sgd_factors(rule, rate, step, loss_scale, norm, max_norm, update);
    descend</*HAS_MOMENTUM=*/true>(arrays, columns, sizes, by, is_bfloat16);
}

// *new_step = step + 1, or step if the step is skipped: if `update` is 0, or the learning rate
// `rate` or loss_scale is not finite, or loss_scale <= 0. One thread.
extern "C" __global__ void optimizer__count(const __grid_constant__ Either<1> rate,
                                            const __grid_constant__ Either<1> step,
                                            const __grid_constant__ Either<1> loss_scale,
                                            const __grid_constant__ Either<1> update,
                                            i64* new_step) {
    parameter_update::count(rate, step, loss_scale, update, new_step);
}

// norm = sqrt(sum of squares of all elements of the list), is_finite = norm is finite; either may
// be null. arrays.at[t], sizes.size[t]: tensor t. Blocks take chunks in turn and write their sums
// (SumsOfSquares::N of them, 1 or 3) to `partials`, block b at (place.first + b) * N; the last
// block of the last launch, by `ticket`, adds up those of all place.n_in_all blocks (0 in other
// launches).
extern "C" __global__ void __launch_bounds__(THREADS)
    optimizer__norm(const __grid_constant__ Pointers<ONE_LIST> arrays,
                    const __grid_constant__ TensorSizes<ONE_LIST> sizes, NORM* partials,
                    Zeroed<u32>* ticket, const __grid_constant__ Partials place, W* norm,
                    bool* is_finite) {
    __shared__ bool last;
    __shared__ reduce::BlockScratch<NORM, THREADS> scratch;
    l2_norm::SumsOfSquares<GRAD, NORM> squares;
    multi_tensor::visit_tensors<GRAD, CHUNK_NBYTES, THREADS, NORM_UNROLL, /*BATCHES=*/true>(
        arrays, sizes, squares);
    if (!l2_norm::sums_all(squares, partials, ticket, place, scratch, last)) return;
    if (threadIdx.x > 0) return;
    const NORM root = squares.norm();
    if (norm) *norm = from_acc<W>(root);
    if (is_finite) *is_finite = isfinite(root);
}

// new_g = f g if f = max_norm / (norm + 1e-6) < 1, else g, also if the norm is NaN. A block has one
// chunk of one tensor. arrays, columns: list 0 is g, 1 is new_g. norm: of all gradients, in GPU
// memory.
extern "C" __global__ void __launch_bounds__(THREADS)
    inplace_clip_grad_norm(const __grid_constant__ Pointers<POINTERS> arrays,
                           const __grid_constant__ Columns<2> columns,
                           const __grid_constant__ TensorSizes<TWO_LISTS> sizes, const NORM* norm,
                           double max_norm) {
    const ClipChunk chunk(sizes, columns.n_tensors);
    const GRAD* const g = array_of<const GRAD>(arrays, columns, 0, chunk.tensor);
    GRAD* const new_g = array_of<GRAD>(arrays, columns, 1, chunk.tensor);
    const NORM factor =
        divide_subnormal(static_cast<NORM>(max_norm), *norm + static_cast<NORM>(1e-6));
    if (factor < 1)
        range_map::map_range<ClipTiling>(Clip{g, new_g, factor}, chunk.first, chunk.end, chunk.n);
    else
        copy_through(g, new_g, chunk.first, chunk.end);
}
