// SPDX-License-Identifier: MIT
// Steps of Adam.  CPU provider: cupy_training_ops/families/adam/reference.py
//
// A step is computed in the accumulator of the weights' type, and rounded once for each output.
//
// Arguments of all kernels: w, g, m, v are weight, gradient, first and second moment; copy is an
// array of weights in float16, or in bfloat16 if is_bfloat16; new_* are the outputs, new_g the
// change of the weight. Numbers, each a launch argument or in memory (core/either.cuh): learning
// rate, step (the number t of this step), loss_scale (of which gradients are multiples), norm and
// max_norm (gradients with this norm are clipped to that one), update (0: the step is skipped).
// rule: alpha and beta, the decay rates of first and second moment; lambda_, that of the weight;
// epsilon; seed, of the rounding of bfloat16 weights if rounds_at_random. Flags: correct_bias, of
// the moments; decays_updated, the weight is decayed after the update instead of before;
// decays_gradient, lambda_ w is added to the gradient instead; maximize, the sign of the gradient
// changes.
#include "adam/codes.cuh"
#include "adam/facts.cuh"
#include "algorithm/multi_tensor.cuh"
#include "algorithm/parameter_update.cuh"
#include "algorithm/range_map.cuh"
#include "core/either.cuh"
#include "core/slots.cuh"
#include "math/step.cuh"

namespace cto {

using namespace facts::adam;
using namespace either;
using namespace multi_tensor;
using namespace parameter_update;

using slots::GRAD;
using slots::MOMENT;
using slots::W;
using ACC = Acc<W>;

// A vector is WIDTH elements, 16 bytes of the wider of weights and moments.
constexpr bool MOMENT_IS_WIDER = sizeof(MOMENT) > sizeof(W);
constexpr int WIDTH = 16 / (MOMENT_IS_WIDER ? sizeof(MOMENT) : sizeof(W));
// Vectors of each array that a thread loads before it stores: more would take too many registers.
constexpr int WEIGHT_VECS = sizeof(W) == 4 ? VECS : 1;
// Elements of a block: of a list of parameters, or of a single one.
constexpr i64 CHUNK = CHUNK_NBYTES / 16 * WIDTH;
constexpr i64 OF_ONE = ONE_NBYTES / 16 * WIDTH;
using Tiling = range_map::Tiling<WIDTH, WEIGHT_VECS, THREADS>;
using Chunk = multi_tensor::BlockChunk<CHUNK>;

// Numbers of a step that all weights share; struct Adam has the formulas. divisor: of gradients,
// with the sign of `maximize`; rest_of_x: 1 - x; decay: of the weight, lr lambda, or penalty:
// lambda, if the gradient is decayed instead; rounding: of new weights in bfloat16; update: false
// skips the step.
struct AdamFactors {
    ACC divisor, alpha, rest_of_alpha, beta, rest_of_beta, rate, root_scale, epsilon, decay,
        penalty;
    RandomRounding rounding;
    bool decays_updated, update;
};

// The factors of step number `step` of rule and numbers. In u = rate m / (sqrt(v) root_scale +
// epsilon), where c = of_moments = {1 - alpha^t, 1 - beta^t}, or {1, 1} without bias correction:
//     decays_updated   rate = lr sqrt(c[1]) / c[0], root_scale = 1
//     else             rate = lr / c[0],            root_scale = 1 / sqrt(c[1])
__device__ __forceinline__ AdamFactors adam_factors(const AdamRule& rule, const Numbers& numbers,
                                                    const double (&of_moments)[2], i64 step) {
    const double lr = numbers.rate, of_first = of_moments[0], root = sqrt(of_moments[1]);
    AdamFactors by;
    const double divisor = numbers.gradient_divisor();
    by.divisor = static_cast<ACC>(rule.maximize ? -divisor : divisor);
    by.alpha = static_cast<ACC>(rule.alpha);
    by.rest_of_alpha = static_cast<ACC>(1.0 - rule.alpha);
    by.beta = static_cast<ACC>(rule.beta);
    by.rest_of_beta = static_cast<ACC>(1.0 - rule.beta);
    by.rate = static_cast<ACC>((rule.decays_updated ? lr * root : lr) / of_first);
    by.root_scale = static_cast<ACC>(rule.decays_updated ? 1.0 : 1.0 / root);
    by.epsilon = static_cast<ACC>(rule.epsilon);
    by.decay = static_cast<ACC>(rule.decays_gradient ? 0.0 : lr * rule.lambda_);
    by.penalty = static_cast<ACC>(rule.decays_gradient ? rule.lambda_ : 0.0);
    by.rounding = {rule.seed, static_cast<u64>(step), rule.rounds_at_random != 0};
    by.decays_updated = rule.decays_updated;
    by.update = numbers.allows_step();
    return by;
}

// by = the factors of this step, which every block computes from the numbers. `by` and `of_moments`
// are in shared memory; all threads call it, and may read `by` afterwards. Numbers are read by one
// thread of warps 2 and 3 each, while warps 0 and 1 compute of_moments, the bias corrections {1 -
// alpha^step, 1 - beta^step}.
__device__ __forceinline__ void make_factors(AdamFactors& by, double (&of_moments)[2],
                                             const AdamRule& rule, const Either<1>& rate,
                                             const Either<1>& step, const Either<1>& loss_scale,
                                             const Either<1>& norm, const Either<1>& max_norm,
                                             const Either<1>& update) {
    static_assert(THREADS >= 4 * WARP);
    __shared__ Numbers numbers;
    if (threadIdx.x == 2 * WARP) numbers.max_norm = as_double(max_norm);
    read_numbers(numbers, of_moments, rule, rate, step, loss_scale, norm, update);
    if (threadIdx.x == 0)
        by = adam_factors(rule, numbers, of_moments, rule.rounds_at_random ? as_i64(step) : 0);
    __syncthreads();
}

// The step of one parameter, as a map of range_map::map_range:
//     g = gradient / divisor + penalty w; m = alpha m + (1 - alpha) g; v = beta v + (1 - beta) g g;
//     u = rate m / (sqrt(v) root_scale + epsilon), with HAS_LARGEST of x = max(x, v) for v;
//     delta = -u - decay w, or with decays_updated -u - decay (w - u); new_w = w + delta.
// HAS_LARGEST: AMSGrad, x is the largest second moment so far.
template <bool HAS_LARGEST>
struct Adam : Parameter<W, GRAD, MOMENT> {
    const MOMENT* x;  // null without HAS_LARGEST
    MOMENT* new_x;
    W* new_w;
    GRAD* new_g;
    MOMENT* new_m;
    MOMENT* new_v;
    Copy copy;
    AdamFactors by;

    using Base = Parameter<W, GRAD, MOMENT>;

    template <int N>
    struct Loaded : Base::template Loaded<N> {
        Vec<MOMENT, HAS_LARGEST ? N : 1> x;
    };

    // Loads N elements from i on of each input of the step.
    template <int N>
    __device__ __forceinline__ void load(Loaded<N>& loaded, i64 i) const {
        Base::load(loaded, i);
        if constexpr (HAS_LARGEST) parameter_update::load(loaded.x, x, i);
    }
    // Elements before the first 16-byte boundary of the widest array.
    __device__ int head() const {
        return MOMENT_IS_WIDER ? vec::elements_to_16(m) : vec::elements_to_16(w);
    }
    // True if all arrays may be accessed in vectors from element `first` on.
    __device__ bool has_vecs_at(int first) const {
        return all_may_have_vecs_at<WIDTH>(first, w, g, m, v, x, new_w, new_g, new_m, new_v,
                                           new_x) &&
               copy.may_have_vecs_at<WIDTH>(first);
    }
    // Computes and writes the step of the N elements from i on. A null output is left out.
    template <int N>
    __device__ __forceinline__ void store(const Loaded<N>& loaded, i64 i) const {
        ACC mean[N], square[N], delta[N], weight[N], most[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const ACC before = to_acc(loaded.w.at[k]);
            ACC gradient = to_acc(loaded.g.at[k]) / by.divisor;
            if (by.penalty != 0) gradient += by.penalty * before;
            mean[k] = by.alpha * to_acc(loaded.m.at[k]) + by.rest_of_alpha * gradient;
            square[k] = by.beta * to_acc(loaded.v.at[k]) + by.rest_of_beta * gradient * gradient;
            most[k] = square[k];
            if constexpr (HAS_LARGEST) {
                const ACC largest = to_acc(loaded.x.at[k]);  // a NaN of either stays
                if (!(square[k] > largest) && square[k] == square[k]) most[k] = largest;
            }
            const ACC root = step::square_root(most[k]) * by.root_scale;
            const ACC u = by.rate * mean[k] / (root + by.epsilon);
            delta[k] = -u - by.decay * (by.decays_updated ? before - u : before);
            weight[k] = before + delta[k];
        }
        parameter_update::store(new_m, i, mean);
        parameter_update::store(new_v, i, square);
        if constexpr (HAS_LARGEST) parameter_update::store(new_x, i, most);
        put(new_w, new_g, copy, i, weight, delta, by.rounding);
    }
    // The block's step of elements [first, end) of n, or, if it is skipped, copies of all inputs.
    __device__ __forceinline__ void run(i64 first, i64 end, i64 n) const {
        if (by.update) {
            range_map::map_range<Tiling>(*this, first, end, n);
            return;
        }
        copy_through(w, new_w, first, end);
        copy_through(g, new_g, first, end);
        copy_through(m, new_m, first, end);
        copy_through(v, new_v, first, end);
        copy_through(x, new_x, first, end);
        copy.copy_through(first, end);
    }
};

// Least number of resident blocks in the launch bounds of kernels over codes, which are bound by
// computation. Six leave too few registers before 8.0, where the maximum of a warp takes shuffles;
// nine do so but for 8 bits of float weights.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int CODED_BLOCKS = 4, BYTE_BLOCKS = 4;
#else
constexpr int CODED_BLOCKS = 6, BYTE_BLOCKS = sizeof(W) == 4 ? 9 : 6;
#endif

// struct Adam for moments m and v in codes of 8 or 4 bits (codes.cuh, Code is EightBits or
// FourBits). A warp has CODED_BLOCK elements at a time, a lane WIDTH of them. Moments have the same
// bits as on the host: __fmul_rn and __fadd_rn keep the compiler from using fma. step: seed of the
// rounding's noise.
template <class Code>
struct CodedAdam {
    static constexpr int WIDTH = codes::WIDTH;

    const W* w;
    const GRAD* g;
    const u8* m;
    const u8* v;
    W* new_w;
    GRAD* new_g;
    u8* new_m;
    u8* new_v;
    Copy copy;
    AdamFactors by;
    u32 step;

    // True if all arrays may be accessed in vectors of WIDTH from element 0 on.
    __device__ bool has_vecs() const {
        return all_may_have_vecs_at<WIDTH>(0, w, g, m, v, new_w, new_g, new_m, new_v) &&
               copy.may_have_vecs_at<WIDTH>(0);
    }
    // from[i .. i + WIDTH), elements from n on 0. ARE_VECS: all exist, and are loaded as a vector.
    template <bool ARE_VECS, class E>
    __device__ __forceinline__ Vec<E, WIDTH> loaded(const E* from, i64 i, i64 n) const {
        if constexpr (ARE_VECS)
            return *reinterpret_cast<const Vec<E, WIDTH>*>(from + i);
        else
            return vec::load_elements<E, WIDTH>(from, i, n);
    }
    // gradient / by.divisor + by.penalty weight. The divisor is mostly 1, then nothing is divided.
    __device__ __forceinline__ float penalized(float gradient, float weight) const {
        const float divisor = static_cast<float>(by.divisor);
        const float own = divisor == 1 ? gradient : __fdiv_rn(gradient, divisor);
        if (by.penalty == 0) return own;
        return __fadd_rn(own, __fmul_rn(static_cast<float>(by.penalty), weight));
    }
    // The warp's step for elements [start, start + CODED_BLOCK) of n. ARE_VECS: all of them exist,
    // and arrays are accessed in vectors.
    template <bool ARE_VECS>
    __device__ __forceinline__ void run_block(i64 start, i64 n) const {
        const i64 i = start + threadIdx.x % WARP * WIDTH;
        const Vec<W, WIDTH> weights = loaded<ARE_VECS>(w, i, n);
        const Vec<GRAD, WIDTH> gradients = loaded<ARE_VECS>(g, i, n);
        codes::Floats mean, square;
        Code::template load<ARE_VECS>(m, v, i, n, mean, square);
        ACC weight[WIDTH], delta[WIDTH];
        codes::Bits noises;
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
            const ACC before = to_acc(weights.at[k]);
            const float gradient = penalized(to_acc(gradients.at[k]), before);
            mean[k] =
                __fadd_rn(__fmul_rn(mean[k], by.alpha), __fmul_rn(gradient, by.rest_of_alpha));
            square[k] = __fadd_rn(__fmul_rn(square[k], by.beta),
                                  __fmul_rn(__fmul_rn(by.rest_of_beta, gradient), gradient));
            const ACC root = step::fast_square_root(square[k]) * by.root_scale;
            const ACC u = by.rate * mean[k] * fast_reciprocal(root + by.epsilon);
            delta[k] = -u - by.decay * (by.decays_updated ? before - u : before);
            weight[k] = before + delta[k];
            noises[k] = codes::noise(static_cast<u32>(i) + k, step);
        }
        Code::template store<ARE_VECS>(new_m, new_v, i, n, mean, square, noises);
        if constexpr (ARE_VECS) {
            put(new_w, new_g, copy, i, weight, delta, by.rounding);
            return;
        }
        for (int k = 0; k < WIDTH && i + k < n; ++k) {
            const ACC one[1] = {weight[k]}, change[1] = {delta[k]};
            put(new_w, new_g, copy, i + k, one, change, by.rounding);
        }
    }
    // The step of elements [first, end), a block of CODED_BLOCK elements a warp, or, if it is
    // skipped, copies of all inputs.
    __device__ __forceinline__ void run(i64 first, i64 end, i64 n) const {
        if (by.update) {
            const bool are_vecs = has_vecs();
#pragma unroll 1
            for (i64 start = first + threadIdx.x / WARP * CODED_BLOCK; start < end;
                 start += THREADS / WARP * CODED_BLOCK) {
                if (are_vecs && start + CODED_BLOCK <= n)
                    run_block</*ARE_VECS=*/true>(start, n);
                else
                    run_block</*ARE_VECS=*/false>(start, n);
            }
            return;
        }
        copy_through(w, new_w, first, end);
        copy_through(g, new_g, first, end);
        copy.copy_through(first, end);
        Code::stay(m, v, new_m, new_v, first, end, n);
    }
};

// Lists of a launch, each an array for every tensor: 0 to 4 are w, g, m, v and low-precision
// weights, 5 the largest second moments; AFTER + k are the new values of list k. A list may be
// absent: its columns.at[k] is negative.
constexpr int LISTED = 12, AFTER = 6;

// The arrays of one tensor among a launch's lists (see LISTED): those of list k begin at
// arrays.at[columns.at[k] * columns.n_tensors].
struct Lists {
    const Pointers<POINTERS>& arrays;
    const Columns<LISTED>& columns;
    int tensor;

    // This tensor's array in list k (0 to LISTED - 1, see above); null if the list is absent.
    template <class E>
    __device__ __forceinline__ E* at(int k) const {
        return array_of<E>(arrays, columns, k, tensor);
    }
    // The low-precision weights before and after the step.
    __device__ __forceinline__ Copy copy(bool is_bfloat16) const {
        return {at<const u16>(4), at<u16>(AFTER + 4), is_bfloat16};
    }
};

// One step of Adam (struct Adam) on each of columns.n_tensors parameters; arrays and columns are
// tables of their addresses (struct Lists). HAS_LARGEST: AMSGrad, with the largest second moments
// so far. Block c has chunk c of the list, CHUNK elements of one tensor; sizes says where tensors
// begin. It prefetches (expect) its inputs before it computes the factors.
template <bool HAS_LARGEST>
__device__ __forceinline__ void update_lists(const Pointers<POINTERS>& arrays,
                                             const Columns<LISTED>& columns,
                                             const TensorSizes<CAPACITY>& sizes,
                                             const AdamRule& rule, const Either<1>& rate,
                                             const Either<1>& step, const Either<1>& loss_scale,
                                             const Either<1>& norm, const Either<1>& max_norm,
                                             const Either<1>& update, bool is_bfloat16) {
    __shared__ AdamFactors by;
    __shared__ double of_moments[2];
    const Chunk chunk(sizes, columns.n_tensors);
    const Lists lists{arrays, columns, chunk.tensor};
    const Parameter<W, GRAD, MOMENT> parameter{lists.at<const W>(0), lists.at<const GRAD>(1),
                                               lists.at<const MOMENT>(2),
                                               lists.at<const MOMENT>(3)};
    parameter.expect<EXPECTED_NBYTES>(chunk.first, chunk.end);
    const MOMENT* const x = HAS_LARGEST ? lists.at<const MOMENT>(5) : nullptr;
    MOMENT* const new_x = HAS_LARGEST ? lists.at<MOMENT>(AFTER + 5) : nullptr;
    if constexpr (HAS_LARGEST) expect<EXPECTED_NBYTES>(x, chunk.first, chunk.end);
    make_factors(by, of_moments, rule, rate, step, loss_scale, norm, max_norm, update);
    const Adam<HAS_LARGEST> adam{parameter,
                                 x,
                                 new_x,
                                 lists.at<W>(AFTER),
                                 lists.at<GRAD>(AFTER + 1),
                                 lists.at<MOMENT>(AFTER + 2),
                                 lists.at<MOMENT>(AFTER + 3),
                                 lists.copy(is_bfloat16),
                                 by};
    adam.run(chunk.first, chunk.end, chunk.n);
}

// One step of Adam on each of columns.n_tensors parameters with moments in codes (Code: EightBits
// or FourBits); arrays and columns are tables of their addresses (struct Lists). Block c has chunk
// c of the list, CODED_CHUNK elements of one tensor (sizes); a warp has CODED_BLOCK of them at a
// time.
template <class Code>
__device__ __forceinline__ void update_coded(const Pointers<POINTERS>& arrays,
                                             const Columns<LISTED>& columns,
                                             const TensorSizes<CAPACITY>& sizes,
                                             const AdamRule& rule, const Either<1>& rate,
                                             const Either<1>& step, const Either<1>& loss_scale,
                                             const Either<1>& norm, const Either<1>& max_norm,
                                             const Either<1>& update, bool is_bfloat16) {
    __shared__ AdamFactors by;
    __shared__ double of_moments[2];
    make_factors(by, of_moments, rule, rate, step, loss_scale, norm, max_norm, update);
    const multi_tensor::BlockChunk<CODED_CHUNK> chunk(sizes, columns.n_tensors);
    const Lists lists{arrays, columns, chunk.tensor};
    const CodedAdam<Code> adam{lists.at<const W>(0),
                               lists.at<const GRAD>(1),
                               lists.at<const u8>(2),
                               lists.at<const u8>(3),
                               lists.at<W>(AFTER),
                               lists.at<GRAD>(AFTER + 1),
                               lists.at<u8>(AFTER + 2),
                               lists.at<u8>(AFTER + 3),
                               lists.copy(is_bfloat16),
                               by,
                               static_cast<u32>(as_i64(step))};
    adam.run(chunk.first, chunk.end, chunk.n);
}

}  // namespace cto

using namespace cto;

// One step of Adam (struct Adam) on one parameter of n elements; block b has OF_ONE of them, from b
// * OF_ONE on. Outputs, new_*, may be null, or the same arrays as the inputs. A skipped step copies
// inputs to outputs.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    adam_optimizer(const W* w, const GRAD* g, const MOMENT* m, const MOMENT* v, const void* copy,
                   W* new_w, GRAD* new_g, MOMENT* new_m, MOMENT* new_v, void* new_copy,
                   const __grid_constant__ AdamRule rule, const __grid_constant__ Either<1> rate,
                   const __grid_constant__ Either<1> step,
                   const __grid_constant__ Either<1> loss_scale,
                   const __grid_constant__ Either<1> norm,
                   const __grid_constant__ Either<1> max_norm,
                   const __grid_constant__ Either<1> update, bool is_bfloat16, i64 n) {
    __shared__ AdamFactors by;
    __shared__ double of_moments[2];
    const i64 first = blockIdx.x * OF_ONE, end = first + OF_ONE < n ? first + OF_ONE : n;
    const Parameter<W, GRAD, MOMENT> parameter{w, g, m, v};
    parameter.expect<EXPECTED_NBYTES>(first, end);
    make_factors(by, of_moments, rule, rate, step, loss_scale, norm, max_norm, update);
    const Copy rounded{static_cast<const u16*>(copy), static_cast<u16*>(new_copy), is_bfloat16};
    const Adam</*HAS_LARGEST=*/false> adam{
        parameter, /*x=*/nullptr, /*new_x=*/nullptr, new_w, new_g, new_m, new_v, rounded, by};
    adam.run(first, end, n);
}

// One step of Adam on each of columns.n_tensors parameters. arrays: addresses of all their arrays,
// those of list k from columns.at[k] * columns.n_tensors on (LISTED); sizes: elements of each
// tensor, and its chunks.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    adam__list(const __grid_constant__ Pointers<POINTERS> arrays,
               const __grid_constant__ Columns<12> columns,
               const __grid_constant__ TensorSizes<CAPACITY> sizes,
               const __grid_constant__ AdamRule rule, const __grid_constant__ Either<1> rate,
               const __grid_constant__ Either<1> step, const __grid_constant__ Either<1> loss_scale,
               const __grid_constant__ Either<1> norm, const __grid_constant__ Either<1> max_norm,
               const __grid_constant__ Either<1> update, bool is_bfloat16) {
    update_lists</*HAS_LARGEST=*/false>(arrays, columns, sizes, rule, rate, step, loss_scale, norm,
                                        max_norm, update, is_bfloat16);
}

// One step of Adam on each of columns.n_tensors parameters, as adam__list, with AMSGrad: the
// largest second moments so far are lists 5 and 11 of `arrays`; sizes: elements of each tensor, and
// its chunks.
extern "C" __global__ void __launch_bounds__(THREADS, 3) adam__largest_list(
    const __grid_constant__ Pointers<POINTERS> arrays, const __grid_constant__ Columns<12> columns,
    const __grid_constant__ TensorSizes<CAPACITY> sizes, const __grid_constant__ AdamRule rule,
    const __grid_constant__ Either<1> rate, const __grid_constant__ Either<1> step,
    const __grid_constant__ Either<1> loss_scale, const __grid_constant__ Either<1> norm,
    const __grid_constant__ Either<1> max_norm, const __grid_constant__ Either<1> update,
    bool is_bfloat16) {
    update_lists</*HAS_LARGEST=*/true>(arrays, columns, sizes, rule, rate, step, loss_scale, norm,
                                       max_norm, update, is_bfloat16);
}

// One step of Adam on each of columns.n_tensors parameters, as adam__list, with moments in codes of
// 8 bits (codes::EightBits); sizes: elements of each tensor, and its chunks.
extern "C" __global__ void __launch_bounds__(THREADS, BYTE_BLOCKS) adam__coded_list(
    const __grid_constant__ Pointers<POINTERS> arrays, const __grid_constant__ Columns<12> columns,
    const __grid_constant__ TensorSizes<CAPACITY> sizes, const __grid_constant__ AdamRule rule,
    const __grid_constant__ Either<1> rate, const __grid_constant__ Either<1> step,
    const __grid_constant__ Either<1> loss_scale, const __grid_constant__ Either<1> norm,
    const __grid_constant__ Either<1> max_norm, const __grid_constant__ Either<1> update,
    bool is_bfloat16) {
    update_coded<codes::EightBits>(arrays, columns, sizes, rule, rate, step, loss_scale, norm,
                                   max_norm, update, is_bfloat16);
}

// One step of Adam on each of columns.n_tensors parameters, as adam__list, with moments in codes of
// 4 bits (codes::FourBits); sizes: elements of each tensor, and its chunks.
extern "C" __global__ void __launch_bounds__(THREADS, CODED_BLOCKS) adam__few_bits_list(
    const __grid_constant__ Pointers<POINTERS> arrays, const __grid_constant__ Columns<12> columns,
    const __grid_constant__ TensorSizes<CAPACITY> sizes, const __grid_constant__ AdamRule rule,
    const __grid_constant__ Either<1> rate, const __grid_constant__ Either<1> step,
    const __grid_constant__ Either<1> loss_scale, const __grid_constant__ Either<1> norm,
    const __grid_constant__ Either<1> max_norm, const __grid_constant__ Either<1> update,
    bool is_bfloat16) {
    update_coded<codes::FourBits>(arrays, columns, sizes, rule, rate, step, loss_scale, norm,
                                  max_norm, update, is_bfloat16);
}

// *new_step = step + 1, or step if the step is skipped: by a rate or loss scale that allows none,
// or by `update`. One thread.
extern "C" __global__ void adam__count(const __grid_constant__ Either<1> rate,
                                       const __grid_constant__ Either<1> step,
                                       const __grid_constant__ Either<1> loss_scale,
                                       const __grid_constant__ Either<1> update, i64* new_step) {
    parameter_update::count(rate, step, loss_scale, update, new_step);
}
