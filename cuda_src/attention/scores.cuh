// SPDX-License-Identifier: MIT
// Scores of queries and keys: scaled, bent by a softcap, masked. power(factor score) is e to what the
// operator calls a score: plain ones are products that are not yet scaled.
#pragma once
#include "attention/tiles.cuh"
#include "math/exp.cuh"

namespace cto::attention::scores {

using namespace tiles;

// power(x UNIT) = e^x.
constexpr Sum UNIT = sizeof(Sum) == 4 ? 1.4426950408889634 : 1.0;
__device__ __forceinline__ float power(float x) { return exp2f(x); }
__device__ __forceinline__ double power(double x) { return math::exp::exponential(x); }

// What scores are multiplied with before power; positive.
__device__ __forceinline__ Sum factor_of(const Problem& problem) {
    if constexpr (PLAIN) return static_cast<Sum>(problem.scale * UNIT);
    return 1;
}

__device__ __forceinline__ Sum infinity() { return __int_as_float(0x7F800000); }

// Where a block is, and which keys its queries see.
struct Head {
    const Problem& problem;
    int batch, head;  // of queries
    int limit;        // keys
    int offset;       // query i sees keys up to i + offset, if it is causal

    __device__ Head(const Problem& of, const i64* lengths, int number, int heads)
        : problem(of), batch(number / heads), head(number % heads), limit(of.keys), offset(0) {
        if (lengths != nullptr) {
            constexpr i64 MOST = MAX_EXTENT;
            const int bounded = static_cast<int>(max(-MOST, min(lengths[batch], MOST)));
            limit = max(0, min(limit, bounded));
            offset = bounded - of.queries;
        }
        if (of.mask != NO_MASK) limit = min(limit, of.mask_keys);
    }
    // The rows of an array that has `heads` heads.
    __device__ Rows rows(int heads, int number, int n, int width) const {
        const i64 before = static_cast<i64>(batch) * heads * n * width;
        if (problem.is_flat)
            return {before + static_cast<i64>(number) * width, heads * width, n, width};
        return {before + static_cast<i64>(number) * n * width, width, n, width};
    }
    __device__ Rows queries(int width) const {
        return rows(problem.heads, head, problem.queries, width);
    }
    __device__ Rows keys(int width) const {
        const int number = head / (problem.heads / problem.kv_heads);
        return rows(problem.kv_heads, number, problem.keys, width);
    }
    // A query's place in an array of one number for each.
    __device__ i64 place(int query) const {
        return (static_cast<i64>(batch) * problem.heads + head) * problem.queries + query;
    }
    // Keys that a query sees: those before this one.
    __device__ int bound(int query) const {
        if (query >= problem.queries) return 0;
        return problem.is_causal ? min(limit, query + offset + 1) : limit;
    }
    // True if all pairs of a tile are seen.
    __device__ bool are_seen(int query, int n_queries, int key, int n_keys) const {
        return key + n_keys <= min(bound(query), bound(query + n_queries - 1));
    }
    // Keys up to the last one that these queries see.
    __device__ int end(int query, int n_queries) const {
        return problem.is_causal ? min(limit, query + n_queries + offset) : limit;
    }
};

// Turns products of a query and a key into scores. BY_KEYS: rows are keys, columns queries. `bent`
// is called with (m, n, i, slope) where there is a softcap, slope the derivative by the product.
template <bool BY_KEYS, int BANDS, int N, class Bent>
__device__ __forceinline__ void score(Sums<BANDS, N>& products, const Head& head, const void* mask,
                                      int first_row, int first_column, const Bent& bent) {
    const Problem& problem = head.problem;
    if (PLAIN) {
    } else if (problem.softcap > 0) {
        const Sum inner = problem.scale / problem.softcap, outer = problem.softcap * UNIT;
        for_each<BANDS, N>([&](int m, int n, int i, int, int) {
            const Sum bend = tanh(products[m][n][i] * inner);
            products[m][n][i] = bend * outer;
            bent(m, n, i, 1 - bend * bend);
        });
    } else {
        const Sum scale = problem.scale * UNIT;
        for_each<BANDS, N>([&](int m, int n, int i, int, int) { products[m][n][i] *= scale; });
    }
    const int query = BY_KEYS ? first_column : first_row, key = BY_KEYS ? first_row : first_column;
    const int n_queries = BY_KEYS ? N : BANDS * BAND, n_keys = BY_KEYS ? BANDS * BAND : N;
    if (!head.are_seen(query, n_queries, key, n_keys))
        for_each<BANDS, N>([&](int m, int n, int i, int row, int column) {
            const int q = query + (BY_KEYS ? column : row), k = key + (BY_KEYS ? row : column);
            if (k >= head.bound(q)) products[m][n][i] = -infinity();
        });
    if (PLAIN || problem.mask == NO_MASK) return;
    const i64 of_head = head.batch * problem.mask_batch + head.head * problem.mask_head;
    for_each<BANDS, N>([&](int m, int n, int i, int row, int column) {
        const int q = query + (BY_KEYS ? column : row), k = key + (BY_KEYS ? row : column);
        if (k >= head.bound(q)) return;
        const i64 place = of_head + q * problem.mask_query + k * problem.mask_key;
        if (problem.mask == ADDENDS)
            products[m][n][i] += to_acc(static_cast<const T*>(mask)[place]) * UNIT;
        else if (!static_cast<const bool*>(mask)[place])
            products[m][n][i] = -infinity();
    });
}

}  // namespace cto::attention::scores
