// SPDX-License-Identifier: MIT
// Steps of LAMB. CPU provider: cupy_training_ops/families/lamb/reference.py
//
// A batch of tensors takes two launches: lamb__direction writes directions d and the norms of w and
// d, lamb__update then computes w - rate * |w| / |d| * d. Directions are rounded to the type of the
// gradients, and stored in new_g or, where that is null, in scratch memory. W, GRAD and MOMENT are
// the types of weights, gradients and moments. An Either is a number in a launch argument or GPU
// memory.
#include "algorithm/multi_tensor.cuh"
#include "algorithm/parameter_update.cuh"
#include "algorithm/range_map.cuh"
#include "core/either.cuh"
#include "core/slots.cuh"
#include "lamb/facts.cuh"
#include "math/step.cuh"

namespace cto {

using namespace facts::lamb;
using namespace either;
using namespace multi_tensor;
using namespace parameter_update;
using zeroed::Zeroed;

using slots::GRAD;
using slots::MOMENT;
using slots::W;
using ACC = Acc<W>;

constexpr int WIDTH = vec::WIDTH<W>;
constexpr i64 CHUNK = CHUNK_NBYTES / sizeof(W);
using Tiling = range_map::Tiling<WIDTH, sizeof(W) == 8 ? 1 : VECS, THREADS>;
using Chunk = multi_tensor::BlockChunk<CHUNK>;
// Least number of resident blocks in the launch bounds. With six, weights of 2 or 8 bytes spill,
// and all types on 7.0; for 12.0, NVRTC 12.9 crashes.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 750 || __CUDA_ARCH__ >= 1200)
constexpr int DIRECTION_BLOCKS = 4;
#else
constexpr int DIRECTION_BLOCKS = sizeof(W) == 4 ? 6 : 4;
#endif

// Numbers of a step that all elements share, `by` of struct Direction: the divisor of gradients; as
// there alpha, 1 - alpha, beta, 1 - beta, lambda, epsilon, c1, c2. Without `update` the step is
// skipped.
struct DirectionFactors {
    ACC divisor, alpha, rest_of_alpha, beta, rest_of_beta, lambda, epsilon, c1, c2;
    bool update;
};

// The DirectionFactors of a step. rule: the attributes alpha, beta, lambda, epsilon. numbers: loss
// scale, norm of all gradients and its limit, which give the divisor; `update`. of_moments = {c1,
// c2} = {1 - alpha^t, 1 - beta^t}, or {1, 1} without bias correction.
__device__ __forceinline__ DirectionFactors direction_factors(const LambRule& rule,
                                                              const Numbers& numbers,
                                                              const double (&of_moments)[2]) {
    DirectionFactors by;
    by.divisor = static_cast<ACC>(numbers.gradient_divisor());
    by.alpha = static_cast<ACC>(rule.alpha);
    by.rest_of_alpha = static_cast<ACC>(1.0 - rule.alpha);
    by.beta = static_cast<ACC>(rule.beta);
    by.rest_of_beta = static_cast<ACC>(1.0 - rule.beta);
    by.lambda = static_cast<ACC>(rule.lambda_);
    by.epsilon = static_cast<ACC>(rule.epsilon);
    by.c1 = static_cast<ACC>(of_moments[0]);
    by.c2 = static_cast<ACC>(of_moments[1]);
    by.update = numbers.allows_step();
    return by;
}

// Sums of squares of weights and directions. In double, as a square of a float may overflow or
// underflow in float; the squares of one vector are added in float if their sum is far from both.
struct SumsOfSquares {
    double weights, directions;

    // Adds the squares of N weights and of N directions.
    template <int N>
    __device__ __forceinline__ void add(const ACC (&weight)[N], const ACC (&direction)[N]) {
        add_to(weights, weight);
        add_to(directions, direction);
    }

  private:
    // sum += x[0]^2 + ... + x[N - 1]^2. Squares that are added in float may lose what float cannot
    // hold: above 2^128 all of them, so the sum must be well below that; below 2^-126 some of them,
    // which are too small to matter beside a sum of 2^-64.
    template <int N>
    static __device__ __forceinline__ void add_to(double& sum, const ACC (&x)[N]) {
        constexpr ACC LEAST = static_cast<ACC>(0x1p-64), MOST = static_cast<ACC>(0x1p96);
        ACC squares = 0;
#pragma unroll
        for (int k = 0; k < N; ++k) squares += x[k] * x[k];
        if (squares >= LEAST && squares <= MOST) {
            sum += squares;
            return;
        }
#pragma unroll
        for (int k = 0; k < N; ++k) sum += static_cast<double>(x[k]) * x[k];
    }
};

// The sum of chunks[0 .. n) of a tensor, in a fixed order; by one block, returned in each thread.
// scratch: shared memory.
__device__ __forceinline__ SumsOfSquares
sum_chunks(const SumsOfSquares* chunks, u32 n, reduce::BlockScratch<double, THREADS>& scratch) {
    constexpr u32 MANY = 8;  // loads in flight: few other blocks run, so latency is not hidden
    SumsOfSquares sums{0, 0};
    for (u32 first = threadIdx.x; first < n; first += MANY * THREADS) {
        double2 loaded[MANY];
#pragma unroll
        for (u32 j = 0; j < MANY; ++j)
            if (first + j * THREADS < n)
                loaded[j] = __ldcg(reinterpret_cast<const double2*>(chunks) + first + j * THREADS);
#pragma unroll
        for (u32 j = 0; j < MANY; ++j) {
            if (first + j * THREADS >= n) break;
            sums.weights += loaded[j].x;
            sums.directions += loaded[j].y;
        }
    }
    return {reduce::sum_block(sums.weights, scratch), reduce::sum_block(sums.directions, scratch)};
}

// range_map's Map of the first launch, g being the gradient / divisor:
// m = alpha m + (1 - alpha) g; v = beta v + (1 - beta) g g;
// d = lambda w + (m / c1) / (sqrt(v / c2) + epsilon). Where d is not finite, d = 0 and m, v stay.
// Adds to `sums` the squares of w and of d as rounded.
struct Direction : Parameter<W, GRAD, MOMENT> {
    GRAD* d;
    MOMENT* new_m;
    MOMENT* new_v;
    const DirectionFactors& by;
    SumsOfSquares& sums;  // of this thread

    __device__ int head() const { return vec::elements_to_16(w); }
    __device__ bool has_vecs_at(int first) const {
        return all_may_have_vecs_at<WIDTH>(first, w, g, m, v, d, new_m, new_v);
    }
    // g, m and v are loaded evict-first: the L2 cache is for w and d, which the next launch reads.
    template <int N>
    __device__ __forceinline__ void load(Loaded<N>& loaded, i64 i) const {
        parameter_update::load(loaded.w, w, i);
        loaded.g = vec::load_streaming(reinterpret_cast<const Vec<GRAD, N>*>(g + i));
        loaded.m = vec::load_streaming(reinterpret_cast<const Vec<MOMENT, N>*>(m + i));
        loaded.v = vec::load_streaming(reinterpret_cast<const Vec<MOMENT, N>*>(v + i));
    }
    // Computes the outputs of elements i to i + N - 1 from their inputs `loaded`, and stores them.
    template <int N>
    __device__ __forceinline__ void store(const Loaded<N>& loaded, i64 i) const {
        ACC mean[N], square[N], direction[N], weights[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const ACC gradient = to_acc(loaded.g.at[k]) / by.divisor;
            const ACC old_mean = to_acc(loaded.m.at[k]), old_square = to_acc(loaded.v.at[k]);
            const ACC weight = to_acc(loaded.w.at[k]);
            mean[k] = by.alpha * old_mean + by.rest_of_alpha * gradient;
            square[k] = by.beta * old_square + by.rest_of_beta * gradient * gradient;
            const ACC root = step::square_root(square[k] / by.c2);
            const ACC exact = by.lambda * weight + mean[k] / by.c1 / (root + by.epsilon);
            const bool finite = isfinite(exact);
            if (!finite) mean[k] = old_mean;
            if (!finite) square[k] = old_square;
            direction[k] = to_acc(from_acc<GRAD>(finite ? exact : ACC(0)));
            weights[k] = weight;
        }
        sums.add(weights, direction);
        parameter_update::store(new_m, i, mean);
        parameter_update::store(new_v, i, square);
        *reinterpret_cast<Vec<GRAD, N>*>(d + i) = vec::from_acc<GRAD>(direction);
    }
};

// rate * |w| / |d|, the ratio |w| / |d| limited to [rule.ratio_min, rule.ratio_max]; rate if a norm
// is 0. rate: the learning rate. of_weights and of_directions: |w|^2 and |d|^2 of the tensor.
__device__ __forceinline__ ACC trusted_rate(const LambRule& rule, double rate, double of_weights,
                                            double of_directions) {
    if (of_weights == 0 || of_directions == 0) return static_cast<ACC>(rate);
    const double ratio = sqrt(of_weights / of_directions);
    return static_cast<ACC>(rate * fmax(rule.ratio_min, fmin(rule.ratio_max, ratio)));
}

// range_map's Map of the second launch: new_w = w + delta, new_g = delta = -rate d. Where w + delta
// is not finite, new_w = w and delta = 0.
struct Update : Descent<W, GRAD> {  // g is d
    // trusted_rate of the tensor
    ACC rate;

    // Computes and stores the outputs of elements i to i + N - 1 from their inputs `loaded`.
    template <int N>
    __device__ __forceinline__ void store(const Loaded<N>& loaded, i64 i) const {
        ACC weight[N], delta[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const ACC before = to_acc(loaded.w.at[k]), change = -rate * to_acc(loaded.g.at[k]);
            const bool finite = isfinite(before + change);
            weight[k] = finite ? before + change : before;
            delta[k] = finite ? change : ACC(0);
        }
        put(new_w, new_g, copy, i, weight, delta);
    }
};

}  // namespace cto

using namespace cto;

// First launch of a step: with g = gradient / divisor, new_m = alpha m + (1 - alpha) g, new_v =
// beta v + (1 - beta) g g, d = lambda w + (new_m / c1) / (sqrt(new_v / c2) + epsilon); and for each
// tensor t, norms[2 t] = sum of w^2, norms[2 t + 1] = sum of d^2. A block has one chunk of CHUNK
// elements of one tensor, and writes its two sums to partials[blockIdx.x]; the block of a tensor
// that finishes last, by tickets[t], adds them up. arrays, columns: lists 0 to 3 are w, g, m, v of
// all tensors; 4 to 6, each of which may be absent, are d, new_m, new_v. Without list 4, the d of
// tensor t begins at directions[first_chunk[t] * CHUNK]. sizes: elements and first chunk of each
// tensor. rule: the attributes. rate: learning rate. step: t in c1 = 1 - alpha^t, c2 = 1 - beta^t.
// loss_scale, norm: the divisor is loss_scale, or norm / rule.max_norm where that is larger; norm:
// of all gradients. If `update` is 0, or rate or loss_scale allow no step, inputs are copied to
// outputs.
extern "C" __global__ void __launch_bounds__(THREADS, DIRECTION_BLOCKS) lamb__direction(
    const __grid_constant__ Pointers<POINTERS> arrays, const __grid_constant__ Columns<7> columns,
    const __grid_constant__ TensorSizes<CAPACITY> sizes, const __grid_constant__ LambRule rule,
    const __grid_constant__ Either<1> rate, const __grid_constant__ Either<1> step,
    const __grid_constant__ Either<1> loss_scale, const __grid_constant__ Either<1> norm,
    const __grid_constant__ Either<1> update, GRAD* directions, SumsOfSquares* partials,
    double* norms, Zeroed<u32>* tickets) {
    static_assert(THREADS >= 4 * WARP);
    __shared__ DirectionFactors by;
    __shared__ Numbers numbers;
    __shared__ double of_moments[2];
    __shared__ bool last;
    __shared__ reduce::BlockScratch<double, THREADS> scratch;
    const Chunk chunk(sizes, columns.n_tensors);
    const int t = chunk.tensor;
    const W* const w = array_of<const W>(arrays, columns, 0, t);
    const GRAD* const g = array_of<const GRAD>(arrays, columns, 1, t);
    const MOMENT* const m = array_of<const MOMENT>(arrays, columns, 2, t);
    const MOMENT* const v = array_of<const MOMENT>(arrays, columns, 3, t);
    const Parameter<W, GRAD, MOMENT> parameter{w, g, m, v};
    parameter.expect<EXPECTED_NBYTES>(chunk.first, chunk.end);
    if (threadIdx.x == 2 * WARP) numbers.max_norm = rule.max_norm;
    read_numbers(numbers, of_moments, rule, rate, step, loss_scale, norm, update);
    if (threadIdx.x == 0) by = direction_factors(rule, numbers, of_moments);
    __syncthreads();
    GRAD* const new_g = array_of<GRAD>(arrays, columns, 4, t);
    MOMENT* const new_m = array_of<MOMENT>(arrays, columns, 5, t);
    MOMENT* const new_v = array_of<MOMENT>(arrays, columns, 6, t);
    if (!by.update) {
        copy_through(g, new_g, chunk.first, chunk.end);
        copy_through(m, new_m, chunk.first, chunk.end);
        copy_through(v, new_v, chunk.first, chunk.end);
        return;
    }
    const u32 first_chunk = sizes.first_chunk[t];
    GRAD* const d = new_g ? new_g : directions + first_chunk * CHUNK;
    SumsOfSquares sums{0, 0};
    const Direction direction{parameter, d, new_m, new_v, by, sums};
    range_map::map_range<Tiling>(direction, chunk.first, chunk.end, chunk.n);
    const u32 of_tensor = sizes.first_chunk[t + 1] - first_chunk;
    const SumsOfSquares of_chunk{reduce::sum_block(sums.weights, scratch),
                                 reduce::sum_block(sums.directions, scratch)};
    if (threadIdx.x == 0) partials[blockIdx.x] = of_chunk;
    if (!reduce::arrives_last</*FIRST_WROTE=*/true>(tickets + t, of_tensor, last)) return;
    const SumsOfSquares all = sum_chunks(partials + first_chunk, of_tensor, scratch);
    if (threadIdx.x > 0) return;
    norms[2 * t] = all.weights;
    norms[2 * t + 1] = all.directions;
}

// Second launch of a step: new_w = w + delta, new_g = delta = -rate * ratio * d, where ratio = |w|
// / |d| limited to [rule.ratio_min, rule.ratio_max], 1 if a norm is 0; w stays where w + delta is
// not finite. UPDATE_PARTS blocks share a chunk of a tensor; block 0 takes the last part: it was
// read and written last by lamb__direction, and may still be in the L2 cache.
// arrays, columns: lists 0 and 1 are w and low-precision weights of all tensors, float16 or, with
// is_bfloat16, bfloat16; 2 is d, overwritten by new_g; 3 and 4 are new_w and its low-precision
// copy. Lists other than 0 may be absent; without 2, the d of tensor t begins at
// directions[first_chunk[t] * CHUNK]. norms[2 t], norms[2 t + 1]: sums of w^2 and d^2 from
// lamb__direction. sizes: elements and first chunk of each tensor. rate: learning rate. If `update`
// is 0, or rate or loss_scale allow no step, weights are copied.
extern "C" __global__ void __launch_bounds__(THREADS)
    lamb__update(const __grid_constant__ Pointers<POINTERS> arrays,
                 const __grid_constant__ Columns<5> columns,
                 const __grid_constant__ TensorSizes<CAPACITY> sizes,
                 const __grid_constant__ LambRule rule, const __grid_constant__ Either<1> rate,
                 const __grid_constant__ Either<1> loss_scale,
                 const __grid_constant__ Either<1> update, const GRAD* directions,
                 const double* norms, bool is_bfloat16) {
    constexpr i64 PART = CHUNK / UPDATE_PARTS;
    static_assert(PART % WIDTH == 0);
    const u32 part = gridDim.x - 1 - blockIdx.x;
    Chunk chunk(sizes, columns.n_tensors, part / UPDATE_PARTS);
    chunk.first += part % UPDATE_PARTS * PART;
    if (chunk.first >= chunk.end) return;
    if (chunk.first + PART < chunk.end) chunk.end = chunk.first + PART;
    const int t = chunk.tensor;
    const W* const w = array_of<const W>(arrays, columns, 0, t);
    GRAD* const new_g = array_of<GRAD>(arrays, columns, 2, t);
    const GRAD* const d = new_g ? new_g : directions + sizes.first_chunk[t] * CHUNK;
    expect<EXPECTED_NBYTES>(w, chunk.first, chunk.end);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 1200  // for 12.0, NVRTC 12.9 crashes
    expect<EXPECTED_NBYTES>(d, chunk.first, chunk.end);
#endif
    W* const new_w = array_of<W>(arrays, columns, 3, t);
    const Copy copy{array_of<const u16>(arrays, columns, 1, t),
                    array_of<u16>(arrays, columns, 4, t), is_bfloat16};
    const double lr = as_double(rate);
    if (as_i64(update) == 0 || !step::allows_step(lr, as_double(loss_scale))) {
        copy_through(w, new_w, chunk.first, chunk.end);
        copy.copy_through(chunk.first, chunk.end);
        return;
    }
    const ACC trusted = trusted_rate(rule, lr, norms[2 * t], norms[2 * t + 1]);
    const Update change{{w, /*g=*/d, new_w, new_g, copy}, /*rate=*/trusted};
    range_map::map_range<Tiling>(change, chunk.first, chunk.end, chunk.n);
}

// *new_step = step + 1, or step if the step is skipped: if `update` is 0, or the learning rate
// `rate` or loss_scale is not finite, or loss_scale <= 0. One thread.
extern "C" __global__ void lamb__count(const __grid_constant__ Either<1> rate,
                                       const __grid_constant__ Either<1> step,
                                       const __grid_constant__ Either<1> loss_scale,
                                       const __grid_constant__ Either<1> update, i64* new_step) {
    parameter_update::count(rate, step, loss_scale, update, new_step);
}
