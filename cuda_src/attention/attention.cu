// SPDX-License-Identifier: MIT
// FlashAttention and its gradient.  CPU provider: cupy_training_ops/families/attention/reference.py
//
//     S = scale Q K^T, bent and masked     P = e^(S - LSE)     Y = P V
//     dS = P (dY V^T - sum of dY Y)     dV = P^T dY     dQ = scale dS K     dK = scale dS^T Q
//
// A block has some rows in shared memory and goes over tiles of others: queries over keys, for Y and
// for dQ; keys over queries, for dK and dV. Scores exist only in registers, and are computed again
// for gradients. Sums have a fixed order.
#include "attention/scores.cuh"

namespace cto {

using namespace attention::scores;
using slots::ACC;
static_assert(ARE_SAME<ACC, Sum>);

// Blocks of a multiprocessor, at least; without a number the compiler was seen to spill.
constexpr int RESIDENT = 2, MORE_RESIDENT = PLAIN ? 3 : 2;

// The tiles that a block goes over: STAGES pairs of them, so that one is copied while another is
// read. load(stage, i) begins the copies of tile i, use(stage, i) reads them.
template <class Load, class Use>
__device__ __forceinline__ void go_over(int first, int end, const Load& load, const Use& use) {
    if (first < end) load(0, first);
    async_copy::commit();
    for (int i = first; i < end; ++i) {
        const int stage = STAGES == 2 ? (i - first) % 2 : 0;
        if constexpr (STAGES == 2) {
            if (i + 1 < end) load(1 - stage, i + 1);
            async_copy::commit();
        }
        async_copy::wait<STAGES - 1>();
        __syncthreads();
        use(stage, i);
        __syncthreads();
        if constexpr (STAGES == 1) {
            if (i + 1 < end) load(0, i + 1);
            async_copy::commit();
        }
    }
    async_copy::wait<0>();
}

// The sum over the four lanes that have a row.
__device__ __forceinline__ Sum sum_of_row(Sum x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}
__device__ __forceinline__ Sum largest_of_row(Sum x) {
    x = max(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return max(x, __shfl_xor_sync(ALL_LANES, x, 2));
}

// A row's logarithm in units of UNIT, infinite where e^(S - LSE) is to be 0.
__device__ __forceinline__ Sum subtrahend(Sum lse) {
    return lse == -infinity() ? infinity() : lse * UNIT;
}

template <int BANDS>
struct Forward {
    static constexpr int BAND_ROWS = BANDS * BAND, ROWS = BAND_ROWS * WARPS;
    static constexpr int LENGTH = FORWARD_LENGTH;
    Sums<BANDS, HEAD> sums;
    Sum largest[BANDS][2], total[BANDS][2];

    __device__ __forceinline__ Forward() {
        for_each<BANDS, HEAD>([&](int m, int n, int i, int, int) { sums[m][n][i] = 0; });
#pragma unroll
        for (int m = 0; m < BANDS; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) largest[m][half] = -infinity(), total[m][half] = 0;
    }
    // Includes the scores of a tile of keys, and its values.
    __device__ __forceinline__ void include(Sums<BANDS, LENGTH>& scores, const T* values,
                                            Sum factor) {
#pragma unroll
        for (int m = 0; m < BANDS; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                Sum peak = largest[m][half];
#pragma unroll
                for (int n = 0; n < LENGTH / 8; ++n)
                    peak = max(peak, max(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
                peak = largest_of_row(peak);
                const Sum base = peak == -infinity() ? Sum(0) : peak * factor;
                const Sum before = power(largest[m][half] * factor - base);
                largest[m][half] = peak;
                Sum sum = 0;
#pragma unroll
                for (int n = 0; n < LENGTH / 8; ++n)
#pragma unroll
                    for (int c = 2 * half; c < 2 * half + 2; ++c)
                        sum += scores[m][n][c] = power(scores[m][n][c] * factor - base);
                total[m][half] = total[m][half] * before + sum;
#pragma unroll
                for (int n = 0; n < HEAD / 8; ++n)
#pragma unroll
                    for (int c = 2 * half; c < 2 * half + 2; ++c) sums[m][n][c] *= before;
            }
        add_products<BANDS, LENGTH>(sums, scores, values);
    }
};

// The sum of a b over the elements of a row, which four lanes share.
__device__ __forceinline__ Sum product_of_rows(const T* a, const T* b, int width) {
    Sum sum = 0;
    for (int first = threadIdx.x % 4 * WIDTH; first < width; first += 4 * WIDTH) {
        const auto x = vec::load_elements<T, WIDTH>(a, first, width);
        const auto y = vec::load_elements<T, WIDTH>(b, first, width);
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) sum += to_acc(x.at[j]) * to_acc(y.at[j]);
    }
    return sum_of_row(sum);
}

// ds = steps, from a query and a key on.
template <int BANDS, int N>
__device__ __forceinline__ void store_steps(T* ds, const Head& head, int query, int key,
                                            const Sums<BANDS, N>& steps) {
    const Problem& problem = head.problem;
    for_each<BANDS, N>([&](int m, int n, int i, int row, int column) {
        if (query + row < problem.queries && key + column < problem.keys)
            ds[head.place(query + row) * problem.keys + key + column] = from_acc<T>(steps[m][n][i]);
    });
}

}  // namespace cto

using namespace cto;

// y and lse of ROWS queries of a head. A block for each, the last queries first: if it is causal,
// they have the most keys.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    attention__forward(const T* q, const T* k, const T* v, const void* mask, const i64* lengths,
                       T* y, ACC* lse, const __grid_constant__ Problem problem) {
    using Rule = Forward<FORWARD_BANDS>;
    constexpr int LENGTH = Rule::LENGTH;
    extern __shared__ __align__(16) u8 shared[];
    T* const q_tile = reinterpret_cast<T*>(shared);
    T* const tiles = q_tile + Rule::ROWS * PITCH;

    const int n_blocks = (problem.queries + Rule::ROWS - 1) / Rule::ROWS;
    const int first_query = (n_blocks - 1 - blockIdx.x % n_blocks) * Rule::ROWS;
    const Head head(problem, lengths, blockIdx.x / n_blocks, problem.heads);
    const int warp_row = threadIdx.x / WARP * Rule::BAND_ROWS;
    const int end = (head.end(first_query, Rule::ROWS) + LENGTH - 1) / LENGTH;

    const Rows k_rows = head.keys(problem.width), v_rows = head.keys(problem.v_width);
    load_rows<Rule::ROWS>(q_tile, q, head.queries(problem.width), first_query);
    const Sum factor = factor_of(problem);
    Rule rule;
    go_over(
        0, end,
        [&](int stage, int i) {
            T* const tile = tiles + stage * 2 * LENGTH * PITCH;
            load_rows<LENGTH>(tile, k, k_rows, i * LENGTH);
            load_rows<LENGTH>(tile + LENGTH * PITCH, v, v_rows, i * LENGTH);
        },
        [&](int stage, int i) {
            const T* const tile = tiles + stage * 2 * LENGTH * PITCH;
            Sums<FORWARD_BANDS, LENGTH> scores;
            multiply_rows<FORWARD_BANDS, LENGTH>(scores, q_tile + warp_row * PITCH, tile);
            score<false, FORWARD_BANDS, LENGTH>(scores, head, mask, first_query + warp_row,
                                                i * LENGTH, [](int, int, int, Sum) {});
            rule.include(scores, tile + LENGTH * PITCH, factor);
        });

#pragma unroll
    for (int m = 0; m < FORWARD_BANDS; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const Sum total = rule.total[m][half] = sum_of_row(rule.total[m][half]);
            const int query = first_query + warp_row + m * BAND + threadIdx.x % WARP / 4 + half * 8;
            if (lse != nullptr && threadIdx.x % 4 == 0 && query < problem.queries)
                lse[head.place(query)] = total == 0 ? -infinity()
                                                    : rule.largest[m][half] * factor / UNIT +
                                                          math::exp::logarithm(total);
        }
    if (y == nullptr) return;
    store_rows<FORWARD_BANDS>(y, head.queries(problem.v_width), first_query + warp_row, rule.sums,
                              [&](int m, int half) {
                                  const Sum total = rule.total[m][half];
                                  return total == 0 ? Sum(0) : 1 / total;
                              });
}

// slopes[query] = sum of dy y, and dq of ROWS queries of a head. Where there is ds, its elements are
// the derivatives by what the mask is added to; if it is causal, those of hidden keys are 0.
extern "C" __global__ void __launch_bounds__(THREADS, MORE_RESIDENT)
    attention__gradient_of_queries(const T* dy, const T* q, const T* k, const T* v, const T* y,
                                   const ACC* lse, const void* mask, const i64* lengths, T* dq,
                                   T* ds, ACC* slopes, const __grid_constant__ Problem problem) {
    constexpr int BANDS = GRADIENT_BANDS, LENGTH = GRADIENT_LENGTH;
    constexpr int BAND_ROWS = BANDS * BAND, ROWS = BAND_ROWS * WARPS;
    extern __shared__ __align__(16) u8 shared[];
    T* const q_tile = reinterpret_cast<T*>(shared);
    T* const dy_tile = q_tile + ROWS * PITCH;
    T* const tiles = dy_tile + ROWS * PITCH;

    const int n_blocks = (problem.queries + ROWS - 1) / ROWS;
    const int first_query = (n_blocks - 1 - blockIdx.x % n_blocks) * ROWS;
    const Head head(problem, lengths, blockIdx.x / n_blocks, problem.heads);
    const int warp_row = threadIdx.x / WARP * BAND_ROWS;
    const int n_keys = ds != nullptr   ? problem.keys
                       : dq != nullptr ? head.end(first_query, ROWS)
                                       : 0;

    const Rows dy_rows = head.queries(problem.v_width);
    const Rows k_rows = head.keys(problem.width), v_rows = head.keys(problem.v_width);
    load_rows<ROWS>(q_tile, q, head.queries(problem.width), first_query);
    load_rows<ROWS>(dy_tile, dy, dy_rows, first_query);

    Sum slope[BANDS][2], logarithm[BANDS][2];
#pragma unroll
    for (int m = 0; m < BANDS; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int query = first_query + warp_row + m * BAND + threadIdx.x % WARP / 4 + half * 8;
            const int existing = min(query, problem.queries - 1);
            const i64 row = dy_rows.first + static_cast<i64>(existing) * dy_rows.pitch;
            slope[m][half] = product_of_rows(dy + row, y + row, problem.v_width);
            logarithm[m][half] = subtrahend(lse[head.place(existing)]);
            if (threadIdx.x % 4 == 0 && query == existing)
                slopes[head.place(query)] = slope[m][half];
        }

    const Sum factor = factor_of(problem);
    Sums<BANDS, HEAD> sums;
    for_each<BANDS, HEAD>([&](int m, int n, int i, int, int) { sums[m][n][i] = 0; });
    go_over(
        0, (n_keys + LENGTH - 1) / LENGTH,
        [&](int stage, int i) {
            T* const tile = tiles + stage * 2 * LENGTH * PITCH;
            load_rows<LENGTH>(tile, k, k_rows, i * LENGTH);
            load_rows<LENGTH>(tile + LENGTH * PITCH, v, v_rows, i * LENGTH);
        },
        [&](int stage, int i) {
            const T* const tile = tiles + stage * 2 * LENGTH * PITCH;
            const int row = first_query + warp_row;
            Sums<BANDS, LENGTH> scores, steps;
            for (int pass = PLAIN || ds == nullptr; pass < 2;
                 ++pass) {  // the first one is for ds alone
                multiply_rows<BANDS, LENGTH>(scores, q_tile + warp_row * PITCH, tile);
                multiply_rows<BANDS, LENGTH>(steps, dy_tile + warp_row * PITCH,
                                             tile + LENGTH * PITCH);
                for_each<BANDS, LENGTH>(
                    [&](int m, int n, int i, int, int) { steps[m][n][i] -= slope[m][i / 2]; });
                score<false, BANDS, LENGTH>(scores, head, mask, row, i * LENGTH,
                                            [&](int m, int n, int i, Sum bend) {
                                                if (pass == 1) steps[m][n][i] *= bend;
                                            });
                for_each<BANDS, LENGTH>([&](int m, int n, int i, int, int) {
                    steps[m][n][i] *= power(scores[m][n][i] * factor - logarithm[m][i / 2]);
                });
                if (pass == 0) store_steps<BANDS, LENGTH>(ds, head, row, i * LENGTH, steps);
            }
            add_products<BANDS, LENGTH>(sums, steps, tile);
        });
    if (dq != nullptr)
        store_rows<BANDS>(dq, head.queries(problem.width), first_query + warp_row, sums,
                          [&](int, int) { return static_cast<Sum>(problem.scale); });
}

// dk and dv of ROWS keys of a head: sums over the queries of all heads that share it.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    attention__gradient_of_keys(const T* dy, const T* q, const T* k, const T* v, const ACC* lse,
                                const ACC* slopes, const void* mask, const i64* lengths, T* dk,
                                T* dv, const __grid_constant__ Problem problem) {
    constexpr int BANDS = GRADIENT_BANDS, LENGTH = GRADIENT_LENGTH;
    constexpr int BAND_ROWS = BANDS * BAND, ROWS = BAND_ROWS * WARPS;
    extern __shared__ __align__(16) u8 shared[];
    T* const k_tile = reinterpret_cast<T*>(shared);
    T* const v_tile = k_tile + ROWS * PITCH;
    T* const tiles = v_tile + ROWS * PITCH;
    Sum* const numbers = reinterpret_cast<Sum*>(tiles + STAGES * 2 * LENGTH * PITCH);

    const int n_blocks = (problem.keys + ROWS - 1) / ROWS, group = problem.heads / problem.kv_heads;
    const int first_key = blockIdx.x % n_blocks * ROWS, warp_row = threadIdx.x / WARP * BAND_ROWS;
    const int number = blockIdx.x / n_blocks % problem.kv_heads;
    const int batch = blockIdx.x / n_blocks / problem.kv_heads;
    Head head(problem, lengths, batch * problem.heads + number * group, problem.heads);
    const int first_head = head.head;

    // Of each head the tiles from `first` on; the first of these queries is the first to see a key.
    const int first = problem.is_causal ? max(0, first_key - head.offset) / LENGTH : 0;
    const int n_tiles = max(0, (problem.queries + LENGTH - 1) / LENGTH - first);
    const int end = first_key < head.limit ? group * n_tiles : 0;

    load_rows<ROWS>(k_tile, k, head.keys(problem.width), first_key);
    load_rows<ROWS>(v_tile, v, head.keys(problem.v_width), first_key);
    const Sum factor = factor_of(problem);
    Sums<BANDS, HEAD> dk_sums, dv_sums;
    for_each<BANDS, HEAD>(
        [&](int m, int n, int i, int, int) { dk_sums[m][n][i] = dv_sums[m][n][i] = 0; });
    go_over(
        0, end,
        [&](int stage, int i) {
            T* const tile = tiles + stage * 2 * LENGTH * PITCH;
            head.head = first_head + i / n_tiles;
            const int query = (first + i % n_tiles) * LENGTH;
            load_rows<LENGTH>(tile, q, head.queries(problem.width), query);
            load_rows<LENGTH>(tile + LENGTH * PITCH, dy, head.queries(problem.v_width), query);
            for (int j = threadIdx.x; j < LENGTH; j += THREADS) {
                const i64 place = head.place(min(query + j, problem.queries - 1));
                numbers[stage * 2 * LENGTH + j] = subtrahend(lse[place]);
                numbers[(stage * 2 + 1) * LENGTH + j] = slopes[place];
            }
        },
        [&](int stage, int i) {
            const T* const tile = tiles + stage * 2 * LENGTH * PITCH;
            const Sum* const logarithm = numbers + stage * 2 * LENGTH;
            const Sum* const slope = logarithm + LENGTH;
            head.head = first_head + i / n_tiles;
            Sums<BANDS, LENGTH> scores, steps;
            multiply_rows<BANDS, LENGTH>(scores, k_tile + warp_row * PITCH, tile);
            multiply_rows<BANDS, LENGTH>(steps, v_tile + warp_row * PITCH, tile + LENGTH * PITCH);
            for_each<BANDS, LENGTH>(
                [&](int m, int n, int i, int, int column) { steps[m][n][i] -= slope[column]; });
            score<true, BANDS, LENGTH>(
                scores, head, mask, first_key + warp_row, (first + i % n_tiles) * LENGTH,
                [&](int m, int n, int i, Sum bend) { steps[m][n][i] *= bend; });
            for_each<BANDS, LENGTH>([&](int m, int n, int i, int, int column) {
                scores[m][n][i] = power(scores[m][n][i] * factor - logarithm[column]);
                steps[m][n][i] *= scores[m][n][i];
            });
            add_products<BANDS, LENGTH>(dv_sums, scores, tile + LENGTH * PITCH);
            add_products<BANDS, LENGTH>(dk_sums, steps, tile);
        });
    head.head = first_head;
    if (dk != nullptr)
        store_rows<BANDS>(dk, head.keys(problem.width), first_key + warp_row, dk_sums,
                          [&](int, int) { return static_cast<Sum>(problem.scale); });
    if (dv != nullptr)
        store_rows<BANDS>(dv, head.keys(problem.v_width), first_key + warp_row, dv_sums,
                          [&](int, int) { return Sum(1); });
}
