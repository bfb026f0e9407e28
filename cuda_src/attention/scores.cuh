// SPDX-License-Identifier: MIT
// Scores of queries and keys: products q.k, scaled, softcapped (softcap tanh(x / softcap)) and
// masked.
//
// Scores are computed in units of 1 / UNIT, so that e^score is one instruction: power(factor *
// stored score) = e^score. PLAIN (no softcap, no mask): stored scores are the bare products, factor
// = scale UNIT. Else they are scaled already, and factor = 1.
#pragma once
#include "attention/tiles.cuh"
#include "math/exp.cuh"

namespace cto::attention::scores {

using namespace tiles;

// power(x UNIT) = e^x: UNIT is log2(e) where power is 2^x, in float; 1 where it is e^x, in double.
constexpr Sum UNIT = sizeof(Sum) == 4 ? 1.4426950408889634 : 1.0;
__device__ __forceinline__ float power(float x) { return exp2f(x); }
__device__ __forceinline__ double power(double x) { return math::exp::exponential(x); }

// The positive factor by which stored scores are multiplied before power.
__device__ __forceinline__ Sum factor_of(const Problem& problem) {
    if constexpr (PLAIN) return static_cast<Sum>(problem.scale * UNIT);
    return 1;
}

__device__ __forceinline__ Sum infinity() { return __int_as_float(0x7F800000); }

// The batch entry and head of Q that a block works on, and which keys its queries see.
struct Head {
    const Problem& problem;
    int batch, head;  // head of Q
    int limit;        // keys from this one on are seen by no query
    int offset;       // query i sees keys 0 .. i + offset, if it is causal

    // Head `number` % heads of batch entry `number` / heads. heads: of a batch entry. lengths:
    // null, or the number of keys of each batch entry; the last query then sees up to the last of
    // them.
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
    // Where the n rows of `width` elements of head `number` of `heads` lie in an array (batch,
    // heads, n, width), or, if is_flat, (batch, n, heads * width).
    __device__ Rows rows(int heads, int number, int n, int width) const {
        const i64 before = static_cast<i64>(batch) * heads * n * width;
        if (problem.is_flat)
            return {before + static_cast<i64>(number) * width, heads * width, n, width};
        return {before + static_cast<i64>(number) * n * width, width, n, width};
    }
    // The rows of this head of Q, or of an array like it.
    __device__ Rows queries(int width) const {
        return rows(problem.heads, head, problem.queries, width);
    }
    // The rows of the head of K or V that this head of Q uses.
    __device__ Rows keys(int width) const {
        const int number = head / (problem.heads / problem.kv_heads);
        return rows(problem.kv_heads, number, problem.keys, width);
    }
    // Index of a query's element in an array (batch, heads, queries).
    __device__ i64 place(int query) const {
        return (static_cast<i64>(batch) * problem.heads + head) * problem.queries + query;
    }
    // Returns how many keys, the first ones, the query sees, but for those that `mask` hides.
    __device__ int bound(int query) const {
        if (query >= problem.queries) return 0;
        return problem.is_causal ? min(limit, query + offset + 1) : limit;
    }
    // True if each of n_queries queries from `query` on sees all of n_keys keys from `key` on.
    __device__ bool are_seen(int query, int n_queries, int key, int n_keys) const {
        return key + n_keys <= min(bound(query), bound(query + n_queries - 1));
    }
    // The first key that none of n_queries queries from `query` on sees, nor any later one.
    __device__ int end(int query, int n_queries) const {
        return problem.is_causal ? min(limit, query + n_queries + offset) : limit;
    }
};

// Turns a warp's products of BANDS x 16 rows and N columns, of the batch entry and head `head`,
// into scores in place, times UNIT unless PLAIN; -inf for a pair that is not seen or is masked.
// BY_KEYS: rows are keys, columns queries; else the other way round. first_row, first_column:
// numbers of the tile's first row and column (query or key). Where there is a softcap, calls
// bent(m, n, i, slope) for each product, slope = the derivative of softcap tanh(x / softcap) by x =
// 1 - tanh^2.
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
