// SPDX-License-Identifier: MIT
// Steps of Adam.  CPU provider: cupy_training_ops/families/adam/reference.py
//
// A step is computed in the accumulator of the weights' type, and rounded once for each output.
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

constexpr bool MOMENT_IS_WIDER = sizeof(MOMENT) > sizeof(W);
constexpr int WIDTH = 16 / (MOMENT_IS_WIDER ? sizeof(MOMENT) : sizeof(W));
// Vectors of each array that a thread loads before it stores: more would take too many registers.
constexpr int WEIGHT_VECS = sizeof(W) == 4 ? VECS : 1;
constexpr i64 CHUNK = CHUNK_NBYTES / 16 * WIDTH;
constexpr i64 OF_ONE = ONE_NBYTES / 16 * WIDTH;
using Tiling = range_map::Tiling<WIDTH, WEIGHT_VECS, THREADS>;
using Chunk = multi_tensor::BlockChunk<CHUNK>;

// Numbers of a step that all weights share; see struct Adam for their use.
struct AdamFactors {
    ACC divisor, alpha, rest_of_alpha, beta, rest_of_beta, rate, root_scale, epsilon, decay;
    bool decays_updated, update;
};

// u = rate m / (sqrt(v) root_scale + epsilon), where c = of_moments = {1 - alpha^t, 1 - beta^t}, or
// {1, 1} without bias correction:
//     decays_updated   rate = lr sqrt(c[1]) / c[0], root_scale = 1
//     else             rate = lr / c[0],            root_scale = 1 / sqrt(c[1])
__device__ __forceinline__ AdamFactors adam_factors(const AdamRule& rule, const Numbers& numbers,
                                                    const double (&of_moments)[2]) {
    const double lr = numbers.rate, of_first = of_moments[0], root = sqrt(of_moments[1]);
    AdamFactors by;
    by.divisor = static_cast<ACC>(numbers.gradient_divisor());
    by.alpha = static_cast<ACC>(rule.alpha);
    by.rest_of_alpha = static_cast<ACC>(1.0 - rule.alpha);
    by.beta = static_cast<ACC>(rule.beta);
    by.rest_of_beta = static_cast<ACC>(1.0 - rule.beta);
    by.rate = static_cast<ACC>((rule.decays_updated ? lr * root : lr) / of_first);
    by.root_scale = static_cast<ACC>(rule.decays_updated ? 1.0 : 1.0 / root);
    by.epsilon = static_cast<ACC>(rule.epsilon);
    by.decay = static_cast<ACC>(lr * rule.lambda_);
    by.decays_updated = rule.decays_updated;
    by.update = numbers.can_be_made();
    return by;
}

// by = the factors of this step; every block computes them. `by` and `of_moments` are in shared memory.
__device__ __forceinline__ void make_factors(AdamFactors& by, double (&of_moments)[2],
                                             const AdamRule& rule, const Either<1>& rate,
                                             const Either<1>& step, const Either<1>& loss_scale,
                                             const Either<1>& norm, const Either<1>& max_norm,
                                             const Either<1>& update) {
    static_assert(THREADS >= 4 * WARP);
    __shared__ Numbers numbers;
    if (threadIdx.x == 2 * WARP) numbers.max_norm = as_double(max_norm);
    read_numbers(numbers, of_moments, rule, rate, step, loss_scale, norm, update);
    if (threadIdx.x == 0) by = adam_factors(rule, numbers, of_moments);
    __syncthreads();
}

// m = alpha m + (1 - alpha) g; v = beta v + (1 - beta) g g; u = rate m / (sqrt(v) root_scale + eps);
// delta = -u - decay w, or with decays_updated -u - decay (w - u).
struct Adam : Parameter<W, GRAD, MOMENT> {
    W* new_w;
    GRAD* new_g;
    MOMENT* new_m;
    MOMENT* new_v;
    Copy copy;
    AdamFactors by;

    __device__ int head() const {
        return MOMENT_IS_WIDER ? vec::elements_to_16(m) : vec::elements_to_16(w);
    }
    __device__ bool has_vecs_at(int first) const {
        return all_may_have_vecs_at<WIDTH>(first, w, g, m, v, new_w, new_g, new_m, new_v) &&
               copy.may_have_vecs_at<WIDTH>(first);
    }
    template <int N>
    __device__ __forceinline__ void store(const Loaded<N>& loaded, i64 i) const {
        ACC mean[N], square[N], delta[N], weight[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const ACC gradient = to_acc(loaded.g.at[k]) / by.divisor;
            mean[k] = by.alpha * to_acc(loaded.m.at[k]) + by.rest_of_alpha * gradient;
            square[k] = by.beta * to_acc(loaded.v.at[k]) + by.rest_of_beta * gradient * gradient;
            const ACC root = step::square_root(square[k]) * by.root_scale;
            const ACC u = by.rate * mean[k] / (root + by.epsilon);
            const ACC before = to_acc(loaded.w.at[k]);
            delta[k] = -u - by.decay * (by.decays_updated ? before - u : before);
            weight[k] = before + delta[k];
        }
        parameter_update::store(new_m, i, mean);
        parameter_update::store(new_v, i, square);
        put(new_w, new_g, copy, i, weight, delta);
    }
    __device__ __forceinline__ void run(i64 first, i64 end, i64 n) const {
        if (by.update) {
            range_map::map_range<Tiling>(*this, first, end, n);
            return;
        }
        copy_through(w, new_w, first, end);
        copy_through(g, new_g, first, end);
        copy_through(m, new_m, first, end);
        copy_through(v, new_v, first, end);
        copy.copy_through(first, end);
    }
};

// Least number of resident blocks in the launch bounds of adam__coded_list, which is bound by
// computation. Six leave too few registers before 8.0, where the maximum of a warp takes shuffles.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int CODED_BLOCKS = 4;
#else
constexpr int CODED_BLOCKS = 6;
#endif

// struct Adam for moments in codes (codes.cuh). A warp has CODED_BLOCK elements, a lane WIDTH of them.
// Moments have the same bits as on the host: __fmul_rn and __fadd_rn keep the compiler from using fma.
struct CodedAdam {
    static constexpr int WIDTH = CODED_BLOCK / WARP;  // elements of a lane
    static_assert(WIDTH == 4);

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

    struct Moments {
        float mean[WIDTH], square[WIDTH];
    };

    __device__ bool has_vecs() const {
        return all_may_have_vecs_at<WIDTH>(0, w, g, m, v, new_w, new_g, new_m, new_v) &&
               copy.may_have_vecs_at<WIDTH>(0);
    }
    template <bool ARE_VECS, class E>
    __device__ __forceinline__ Vec<E, WIDTH> loaded(const E* from, i64 i, i64 n) const {
        if constexpr (ARE_VECS)
            return *reinterpret_cast<const Vec<E, WIDTH>*>(from + i);
        else
            return vec::load_elements<E, WIDTH>(from, i, n);
    }
    template <bool ARE_VECS>
    __device__ __forceinline__ void store_codes(u8* to, i64 i, i64 n, const u8 (&codes)[WIDTH],
                                                u32 exponent) const {
        if (!to) return;
        Vec<u8, WIDTH> row;
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) row.at[k] = codes[k];
        if constexpr (ARE_VECS)
            *reinterpret_cast<Vec<u8, WIDTH>*>(to + i) = row;
        else
            vec::store_elements(to, i, n, row);
        if (threadIdx.x % WARP == 0) to[n + i / CODED_BLOCK] = static_cast<u8>(exponent);
    }
    template <bool ARE_VECS>
    __device__ __forceinline__ Moments decoded(i64 i, i64 n) const {
        const Vec<u8, WIDTH> first = loaded<ARE_VECS>(m, i, n), second = loaded<ARE_VECS>(v, i, n);
        const i64 block = n + i / CODED_BLOCK;
        const u32 below_first = codes::First::base(m[block]);
        const u32 below_second = codes::Second::base(v[block]);
        Moments found;
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
            found.mean[k] = codes::decoded_first(first.at[k], below_first);
            found.square[k] = codes::decoded_second(second.at[k], below_second);
        }
        return found;
    }
    // gradient / by.divisor; the divisor is mostly 1.
    __device__ __forceinline__ float divided(float gradient) const {
        return by.divisor == 1 ? gradient : __fdiv_rn(gradient, static_cast<float>(by.divisor));
    }
    // The step for elements [start, start + CODED_BLOCK) of n.
    template <bool ARE_VECS>
    __device__ __forceinline__ void run_block(i64 start, i64 n) const {
        const i64 i = start + threadIdx.x % WARP * WIDTH;
        const Vec<W, WIDTH> weights = loaded<ARE_VECS>(w, i, n);
        const Vec<GRAD, WIDTH> gradients = loaded<ARE_VECS>(g, i, n);
        Moments now = decoded<ARE_VECS>(i, n);
        ACC weight[WIDTH], delta[WIDTH];
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
            const float gradient = divided(to_acc(gradients.at[k]));
            float &mean = now.mean[k], &square = now.square[k];
            mean = __fadd_rn(__fmul_rn(mean, by.alpha), __fmul_rn(gradient, by.rest_of_alpha));
            square = __fadd_rn(__fmul_rn(square, by.beta),
                               __fmul_rn(__fmul_rn(by.rest_of_beta, gradient), gradient));
            const ACC root = step::square_root(square) * by.root_scale;
            const ACC u = by.rate * mean / (root + by.epsilon);
            const ACC before = to_acc(weights.at[k]);
            delta[k] = -u - by.decay * (by.decays_updated ? before - u : before);
            weight[k] = before + delta[k];
        }
        u8 row[WIDTH];
        u32 noises[WIDTH];
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) noises[k] = codes::noise(static_cast<u32>(i) + k, step);
        u32 exponent = codes::encode_first(now.mean, noises, row);
        store_codes<ARE_VECS>(new_m, i, n, row, exponent);
        exponent = codes::encode_second(now.square, noises, row);
        store_codes<ARE_VECS>(new_v, i, n, row, exponent);
        if constexpr (ARE_VECS) {
            put(new_w, new_g, copy, i, weight, delta);
            return;
        }
        for (int k = 0; k < WIDTH && i + k < n; ++k) {
            const ACC one[1] = {weight[k]}, change[1] = {delta[k]};
            put(new_w, new_g, copy, i + k, one, change);
        }
    }
    __device__ __forceinline__ void run(i64 first, i64 end, i64 n) const {
        if (by.update) {
            const bool are_vecs = has_vecs();
#pragma unroll 1
            for (i64 start = first + threadIdx.x / WARP * CODED_BLOCK; start < end;
                 start += THREADS / WARP * CODED_BLOCK) {
                if (are_vecs && start + CODED_BLOCK <= n)
                    run_block<true>(start, n);
                else
                    run_block<false>(start, n);
            }
            return;
        }
        const i64 block = n + first / CODED_BLOCK;
        const i64 last = n + (end + CODED_BLOCK - 1) / CODED_BLOCK;
        copy_through(w, new_w, first, end);
        copy_through(g, new_g, first, end);
        copy_through(m, new_m, first, end);
        copy_through(v, new_v, first, end);
        copy_through(m, new_m, block, last);
        copy_through(v, new_v, block, last);
        copy.copy_through(first, end);
    }
};

}  // namespace cto

using namespace cto;

// One step of Adam (struct Adam) on one parameter of n elements; a block has OF_ONE of them.
// Outputs may be null, or the same arrays as the inputs. A skipped step copies inputs to outputs.
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
    Adam{parameter, new_w, new_g, new_m, new_v, rounded, by}.run(first, end, n);
}

// One step of Adam (struct Adam) on each of columns.n_tensors parameters; a block has one chunk of one
// tensor. arrays: lists 0 to 4 are w, g, m, v and low-precision weights; 5 to 9 are their new values. A
// list may be absent.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    adam__list(const __grid_constant__ Pointers<POINTERS> arrays,
               const __grid_constant__ Columns<10> columns,
               const __grid_constant__ TensorSizes<CAPACITY> sizes,
               const __grid_constant__ AdamRule rule, const __grid_constant__ Either<1> rate,
               const __grid_constant__ Either<1> step, const __grid_constant__ Either<1> loss_scale,
               const __grid_constant__ Either<1> norm, const __grid_constant__ Either<1> max_norm,
               const __grid_constant__ Either<1> update, bool is_bfloat16) {
    __shared__ AdamFactors by;
    __shared__ double of_moments[2];
    const Chunk chunk(sizes, columns.n_tensors);
    const int t = chunk.tensor;
    const Parameter<W, GRAD, MOMENT> parameter{array_of<const W>(arrays, columns, 0, t),
                                               array_of<const GRAD>(arrays, columns, 1, t),
                                               array_of<const MOMENT>(arrays, columns, 2, t),
                                               array_of<const MOMENT>(arrays, columns, 3, t)};
    parameter.expect<EXPECTED_NBYTES>(chunk.first, chunk.end);
    make_factors(by, of_moments, rule, rate, step, loss_scale, norm, max_norm, update);
    const Copy copy{array_of<const u16>(arrays, columns, 4, t),
                    array_of<u16>(arrays, columns, 9, t), is_bfloat16};
    const Adam adam{parameter,
                    array_of<W>(arrays, columns, 5, t),
                    array_of<GRAD>(arrays, columns, 6, t),
                    array_of<MOMENT>(arrays, columns, 7, t),
                    array_of<MOMENT>(arrays, columns, 8, t),
                    copy,
                    by};
    adam.run(chunk.first, chunk.end, chunk.n);
}

// adam__list for moments in codes (struct CodedAdam): a warp has CODED_BLOCK elements at a time.
extern "C" __global__ void __launch_bounds__(THREADS, CODED_BLOCKS) adam__coded_list(
    const __grid_constant__ Pointers<POINTERS> arrays, const __grid_constant__ Columns<10> columns,
    const __grid_constant__ TensorSizes<CAPACITY> sizes, const __grid_constant__ AdamRule rule,
    const __grid_constant__ Either<1> rate, const __grid_constant__ Either<1> step,
    const __grid_constant__ Either<1> loss_scale, const __grid_constant__ Either<1> norm,
    const __grid_constant__ Either<1> max_norm, const __grid_constant__ Either<1> update,
    bool is_bfloat16) {
    __shared__ AdamFactors by;
    __shared__ double of_moments[2];
    make_factors(by, of_moments, rule, rate, step, loss_scale, norm, max_norm, update);
    const multi_tensor::BlockChunk<CODED_CHUNK> chunk(sizes, columns.n_tensors);
    const int t = chunk.tensor;
    const Copy copy{array_of<const u16>(arrays, columns, 4, t),
                    array_of<u16>(arrays, columns, 9, t), is_bfloat16};
    const CodedAdam adam{array_of<const W>(arrays, columns, 0, t),
                         array_of<const GRAD>(arrays, columns, 1, t),
                         array_of<const u8>(arrays, columns, 2, t),
                         array_of<const u8>(arrays, columns, 3, t),
                         array_of<W>(arrays, columns, 5, t),
                         array_of<GRAD>(arrays, columns, 6, t),
                         array_of<u8>(arrays, columns, 7, t),
                         array_of<u8>(arrays, columns, 8, t),
                         copy,
                         by,
                         static_cast<u32>(as_i64(step))};
    adam.run(chunk.first, chunk.end, chunk.n);
}

// new_step = step + 1, or step if the step is skipped. One thread.
extern "C" __global__ void adam__count(const __grid_constant__ Either<1> rate,
                                       const __grid_constant__ Either<1> step,
                                       const __grid_constant__ Either<1> loss_scale,
                                       const __grid_constant__ Either<1> update, i64* new_step) {
    parameter_update::count(rate, step, loss_scale, update, new_step);
}
