// SPDX-License-Identifier: MIT
// FlashAttention and its gradient.  CPU provider: cupy_training_ops/families/attention/reference.py
//
//     S = scale Q K^T, softcapped and masked     LSE = log(sum of e^S), over keys
//     P = e^(S - LSE)     Y = P V     slope = sum of dY Y, over a row
//     dS = P (dY V^T - slope)     dV = P^T dY     dQ = scale dS K     dK = scale dS^T Q
//
// A block has some rows in shared memory and goes over tiles of others: queries over keys, for Y
// and for dQ; keys over queries, for dK and dV. Scores exist only in registers, and are computed
// again for gradients. Sums have a fixed order.
//
// facts::Problem states the shapes of q, k, v and mask; y and dy are like q with v's width, lse and
// slopes are (batch, heads, queries), ds is (batch, heads, queries, keys). mask is of bools, true
// for keys that are seen, or, if problem.mask is ADDENDS, of T, added to S; it may be null. So may
// lengths, the number of keys of each batch entry. Null outputs are not written.
#include "attention/scores.cuh"

namespace cto {

using namespace attention::scores;
using slots::ACC;
static_assert(ARE_SAME<ACC, Sum>);

// Blocks that fit a multiprocessor at once, at least (launch bounds): without a number the compiler
// was seen to spill registers.
constexpr int RESIDENT = 2, MORE_RESIDENT = PLAIN ? 3 : 2;

// Loops over tiles first .. end - 1 of a block: load(stage, i) begins asynchronous copies of the
// pair of tiles i to buffer `stage` of shared memory, use(stage, i) reads it once they have
// arrived. With STAGES = 2 buffers tile i + 1 is copied while tile i is read; with 1 it is copied
// afterwards.
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
        __syncthreads();  // all threads' copies of tile i have arrived
        use(stage, i);
        __syncthreads();  // all threads have read it: its buffer may be written
        if constexpr (STAGES == 1) {
            if (i + 1 < end) load(0, i + 1);
            async_copy::commit();
        }
    }
    async_copy::wait<0>();
}

// The sum of x over the four lanes 4 g .. 4 g + 3 that share a row of sums (tiles.cuh), in each.
__device__ __forceinline__ Sum sum_of_row(Sum x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}
// The maximum of x over those four lanes, in each.
__device__ __forceinline__ Sum largest_of_row(Sum x) {
    x = max(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return max(x, __shfl_xor_sync(ALL_LANES, x, 2));
}

// lse * UNIT, so that power(S * UNIT - it) = e^(S - lse); infinity for a row without keys (lse =
// -inf), whose e^(S - lse) is to be 0.
__device__ __forceinline__ Sum subtrahend(Sum lse) {
    return lse == -infinity() ? infinity() : lse * UNIT;
}

// Online softmax of a warp's queries, BANDS x 16 rows, over tiles of LENGTH keys. [m][half] is row
// 16 m + g + 8 half of lane 4 g + t (tiles.cuh). ROWS: queries of a block.
//     largest   maximum of the row's scores so far, not yet multiplied by `factor`
//     total     this lane's part of the sum of p = power(score * factor - largest * factor)
//     sums      the row's sum of p V, not yet divided by the sum of p
template <int BANDS>
struct Forward {
    static constexpr int BAND_ROWS = BANDS * BAND, ROWS = BAND_ROWS * WARPS;
    static constexpr int LENGTH = FORWARD_LENGTH;
    Sums<BANDS, HEAD> sums;
    Sum largest[BANDS][2], total[BANDS][2];

    // The state before the first tile of keys.
    __device__ __forceinline__ Forward() {
        for_each<BANDS, HEAD>([&](int m, int n, int i, int, int) { sums[m][n][i] = 0; });
#pragma unroll
        for (int m = 0; m < BANDS; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) largest[m][half] = -infinity(), total[m][half] = 0;
    }
    // Adds a tile of keys: `scores` of the warp's queries with them, which become p; `values`,
    // their rows of V in shared memory. factor: by which scores are multiplied before power. Where
    // a row's maximum grows, its sums so far are multiplied by `before` = e^(old maximum - new
    // one).
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

// The sum of a[i] b[i] for i < width, in each of four neighbouring lanes, which pass the same a and
// b, rows in global memory. Each lane reads every fourth vector.
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

// Writes the warp's tile of dS, BANDS x 16 queries by N keys: ds[query + row][key + column] = steps
// of that row and column, where both exist; `query` and `key` are the first of the tile, in the
// head's part of ds.
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

// Writes y = softmax(S) V and lse = log(sum of e^S) of ROWS queries of a head. There is a block for
// each ROWS queries of each batch entry and head, the last queries first: if it is causal, they
// have the most keys. Shared memory: the block's rows of Q, then STAGES pairs of tiles {K, V}, each
// row of PITCH elements. A warp has BAND_ROWS of the queries.
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
            score</*BY_KEYS=*/false, FORWARD_BANDS, LENGTH>(scores, head, mask,
                                                            first_query + warp_row, i * LENGTH,
                                                            /*bent=*/[](int, int, int, Sum) {});
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

// Writes slopes[query] = sum of dy y, and dq, of ROWS queries of a head. There is a block for each
// ROWS queries of each batch entry and head, the last queries first. ds, where it is not null,
// takes the gradient of the softcapped scores, to which the mask is added: 0 for keys that a causal
// query does not see. Shared memory: the block's rows of Q and dY, then STAGES pairs of tiles {K,
// V}.
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
            // Pass 0, where ds is wanted, leaves out the softcap's derivative; pass 1 has it.
            for (int pass = PLAIN || ds == nullptr; pass < 2; ++pass) {
                multiply_rows<BANDS, LENGTH>(scores, q_tile + warp_row * PITCH, tile);
                multiply_rows<BANDS, LENGTH>(steps, dy_tile + warp_row * PITCH,
                                             tile + LENGTH * PITCH);
                for_each<BANDS, LENGTH>(
                    [&](int m, int n, int i, int, int) { steps[m][n][i] -= slope[m][i / 2]; });
                score</*BY_KEYS=*/false, BANDS, LENGTH>(scores, head, mask, row, i * LENGTH,
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

// Writes dk and dv of ROWS keys of a head of K: sums over the queries of the `group` query heads
// that share it (grouped-query attention). There is a block for each ROWS keys of each batch entry
// and head of K. Shared memory: the block's rows of K and V, STAGES pairs of tiles {Q, dY}, and for
// each stage the LENGTH queries' `subtrahend`s, then their slopes. Rows of sums are keys, columns
// queries.
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

    // Step i of the loop is tile first + i % n_tiles of the group's head i / n_tiles. Tiles before
    // `first` have no query that sees the block's first key.
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
            score</*BY_KEYS=*/true, BANDS, LENGTH>(
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
