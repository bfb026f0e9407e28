// SPDX-License-Identifier: MIT
// Sums over a channel: of a thread's elements, over threads, over parts, in a fixed order.
//
// A thread has K sums of each of N channels, or of N columns, some of which may be of one channel.
// An `Over` adds them up over a set of threads: over(values) replaces values[k][i] by its sum over
// these threads, in each of them; k < K numbers the sums, i < N the channels.
#pragma once
#include "algorithm/reduce.cuh"
#include "batch_norm/facts.cuh"
#include "batch_norm/relu.cuh"

namespace cto::batch_norm::sums {

using namespace facts::batch_norm;
using vec::Vec;

// Calls see(x), with READ = 2 arrays see(x, dy), with 3 (Y of relu) see(x, masked dy), for the
// elements [first, last) of each of the first batch.n of the thread's DEPTH slots.
template <int READ, int DEPTH, class Batch, class See>
__device__ __forceinline__ void show(const Batch& batch, int first, int last, const See& see) {
#pragma unroll
    for (int u = 0; u < DEPTH; ++u) {
        if (u >= batch.n) continue;
#pragma unroll
        for (int i = first; i < last; ++i) {
            if constexpr (READ == 1)
                see(batch.at(0, u, i));
            else if constexpr (READ == 2)
                see(batch.at(0, u, i), batch.at(1, u, i));
            else
                see(batch.at(0, u, i), relu::masked_slope(batch, u, i));
        }
    }
}

// ---- over threads -------------------------------------------------------------------------------

// Adds up over all threads of a block, which have one channel (N = 1): in warps, then over warps in
// their order. Two calls use different memory, so no barrier is needed between them; before a
// third, or another OverBlock, there must be one.
template <class A>
struct OverBlock {
    A* warp_sums;  // shared memory, four entries for each warp
    mutable u32 n_sums = 0;

    // values[k][0] = sum over all threads, k < K, by way of an entry of shared memory for each
    // warp.
    template <int K>
    __device__ void operator()(A (&values)[K][1]) const {
        static_assert(K <= 2);
        const u32 warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP;
        A* const own = warp_sums + 2 * n_warps * (n_sums++ % 2);
#pragma unroll
        for (int k = 0; k < K; ++k) {
            values[k][0] = reduce::sum_lanes(values[k][0], WARP);
            if (threadIdx.x % WARP == 0) own[k * n_warps + warp] = values[k][0];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < K; ++k) {
            values[k][0] = own[k * n_warps];
#pragma unroll 1
            for (u32 i = 1; i < n_warps; ++i) values[k][0] += own[k * n_warps + i];
        }
    }
};

// Adds up over the threads of a block with the same channels. The block is a matrix of width x
// height threads; thread (x, y) has N columns from x * N on, and `length` neighbouring columns of
// n_columns are a channel. Sum k of column i of thread (x, y) is in thread_sums[(k * N + i) *
// THREADS + y * width + x].
template <class A>
struct OverColumns {
    u32 x, y, width, height;  // threads with y >= height have no columns
    u32 n_columns, length;
    A* thread_sums;  // shared memory, K * N * THREADS entries

    // Writes the values to shared memory; then each of the K N columns of entries is added up by
    // one thread of each x, and all threads read the sums of their channels.
    template <int K, int N>
    __device__ void operator()(A (&values)[K][N]) const {
        __syncthreads();
        if (y < height) store(values);
        __syncthreads();
        for (u32 q = y; q < K * N && y < height; q += height)
            sum_rows(thread_sums + q * THREADS + x);
        __syncthreads();
        gather(values);
    }

  private:
    // The entry of sum k of column i of thread (column, row); n: columns of a thread.
    __device__ A& at(u32 k, u32 n, int i, u32 row, u32 column) const {
        return thread_sums[(k * n + i) * THREADS + row * width + column];
    }
    // Writes the thread's values to its entries.
    template <int K, int N>
    __device__ void store(const A (&values)[K][N]) const {
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (int i = 0; i < N; ++i) at(k, N, i, y, x) = values[k][i];
    }
    // column[0] = sum over y of column[y * width]; SOME loads at a time, to hide their latency.
    __device__ void sum_rows(A* column) const {
        constexpr u32 SOME = 4;
        A sums[SOME] = {};
#pragma unroll 1
        for (u32 row = 0; row < height; row += SOME)
#pragma unroll
            for (u32 k = 0; k < SOME; ++k)
                if (row + k < height) sums[k] += column[(row + k) * width];
        column[0] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
    // values = the sums, which are in row 0; there sum_channels adds up the columns of a channel.
    template <int K, int N>
    __device__ void gather(A (&values)[K][N]) const {
        if (length > 1) sum_channels<K, N>();
        if (y >= height) return;
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (int i = 0; i < N; ++i) values[k][i] = at(k, N, i, 0, x);
    }
    // Replaces, in row 0, the sum of each column by that of its channel. A thread does a channel,
    // or a warp if channels have at least WARP columns.
    template <int K, int N>
    __device__ void sum_channels() const {
        const u32 lanes = length >= WARP ? WARP : 1, lane = threadIdx.x % lanes;
        const u32 n_at_once = blockDim.x / lanes * length;
#pragma unroll 1
        for (u32 first = threadIdx.x / lanes * length; first < n_columns; first += n_at_once)
#pragma unroll 1
            for (u32 k = 0; k < K; ++k) {
                A sum = 0;
#pragma unroll 1
                for (u32 column = first + lane; column < first + length; column += lanes)
                    sum += at(k, N, column % N, 0, column / N);
                if (lanes > 1) sum = reduce::sum_lanes(sum, WARP), __syncwarp();
#pragma unroll 1
                for (u32 column = first + lane; column < first + length; column += lanes)
                    at(k, N, column % N, 0, column / N) = sum;
            }
        __syncthreads();
    }
};

// ---- what is summed -----------------------------------------------------------------------------

// sum / n, or 0 if n is 0.
template <class A>
__device__ A quotient_or_0(A sum, A n) {
    return n > 0 ? fast_divide(sum, n) : A(0);
}

// Sums of the elements x of each of N channels: n = number of elements, sum = sum of x - reference,
// squares = sum of (x - mean)^2. Elements are added relative to a number close to them (`start`),
// and such sets are merged by the distance of their means, so nothing cancels, even if the
// reference is far away.
//
// Two ways to use it:
//     include each batch of elements, in a set of its own, which is then merged
//     begin, add all batches, end: one set, cheaper
//
// A batch, `seen`, is a pieces::Batch or rows::Rows: seen.each(i, see) calls see(x) for its
// elements of channel or column i, seen.any_of(i, reference) returns one of them, or `reference` if
// there is none.
template <class A, int N = 1>
struct Moments {
    static constexpr int FIELDS = MOMENTS;
    A n = 0;
    A sum[N] = {}, squares[N] = {};
    A start[N] = {};  // from begin to end, sums are of x - start

    // Mean of x - reference in channel i.
    __device__ A mean(int i = 0) const { return quotient_or_0(sum[i], n); }

    // Adds the elements of `seen`, `count` a channel. reference: the number that each channel's
    // `sum` is relative to.
    template <class Seen>
    __device__ void include(const Seen& seen, A count, const A (&reference)[N]) {
        Moments some;
        some.n = count;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            some.start[i] = seen.any_of(i, reference[i]);
            if (!isfinite(some.start[i])) some.start[i] = reference[i];
        }
        some.add(seen);
        some.end(count, reference);
        merge(some);
    }
    // start = mean of the elements of `seen`, the first ones, `count` a channel. They are not added
    // yet.
    template <class Seen>
    __device__ void begin(const Seen& seen, A count, const A (&reference)[N]) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            A distances = 0;
            seen.each(i, [&](A x) { distances += x - reference[i]; });
            start[i] = reference[i] + quotient_or_0(distances, count);
            if (!isfinite(start[i])) start[i] = reference[i];
        }
    }
    // Adds the elements of `seen` to the sums of x - start and (x - start)^2.
    template <class Seen>
    __device__ void add(const Seen& seen) {
#pragma unroll
        for (int i = 0; i < N; ++i)
            seen.each(i, [&](A x) {
                const A distance = x - start[i];
                sum[i] += distance;
                squares[i] += distance * distance;
            });
    }
    // All `count` elements are added: makes sum and squares relative to reference and mean.
    __device__ void end(A count, const A (&reference)[N]) {
        n = count;
        const A inverse = quotient_or_0(A(1), n);
#pragma unroll
        for (int i = 0; i < N; ++i) {
            squares[i] -= sum[i] * inverse * sum[i];
            if (count > 0) sum[i] += count * (start[i] - reference[i]);
        }
    }
    // Merges this set with `other`, of other elements of the same channels: n, sum and squares +
    // (distance of the means)^2 n_1 n_2 / (n_1 + n_2).
    __device__ void merge(const Moments& other) {
        const bool both = n > 0 && other.n > 0;
        const A weight = both ? n * fast_divide(other.n, n + other.n) : A(0);
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const A distance = both ? other.mean(i) - mean(i) : A(0);
            squares[i] += other.squares[i] + distance * distance * weight;
            sum[i] += other.sum[i];
        }
        n += other.n;
    }
    // Merges the sets of all threads of `over`, in each of them: first n and sum, hence the common
    // mean, then squares plus n times the squared distance from that mean.
    template <class Over>
    __device__ void join(const Over& over) {
        A first[2][N], second[1][N];
#pragma unroll
        for (int i = 0; i < N; ++i) first[0][i] = n, first[1][i] = sum[i];
        over(first);
        const A inverse = quotient_or_0(A(1), n);
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const A distance = sum[i] * inverse - quotient_or_0(first[1][i], first[0][i]);
            second[0][i] = squares[i] + (n > 0 ? n * distance * distance : A(0));
            sum[i] = first[1][i];
        }
        over(second);
        n = first[0][0];
#pragma unroll
        for (int i = 0; i < N; ++i) squares[i] = second[0][i];
    }
    // Becomes the merge of the sets of all threads of `over`, each of which passes its own to `see`
    // when each(see) is called (twice). All have one reference.
    template <class Each, class Over>
    __device__ void join_all(const Each& each, const Over& over) {
        A first[2][1] = {}, second[1][1] = {};
        each([&](const Moments& one) { first[0][0] += one.n, first[1][0] += one.sum[0]; });
        over(first);
        const A middle = quotient_or_0(first[1][0], first[0][0]);
        each([&](const Moments& one) {
            const A distance = one.n > 0 ? one.mean() - middle : A(0);
            second[0][0] += one.squares[0] + one.n * distance * distance;
        });
        over(second);
        n = first[0][0], sum[0] = first[1][0], squares[0] = second[0][0];
    }
    // The set of channel or column i alone.
    __device__ Moments<A> column(int i) const {
        Moments<A> one;
        one.n = n, one.sum[0] = sum[i], one.squares[0] = squares[i];
        return one;
    }
    // The merged set of columns [first, last).
    __device__ Moments<A> columns(int first, int last) const {
        Moments<A> all;
        all.n = n * (last - first);
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (i >= first && i < last) all.sum[0] += sum[i];
        const A middle = all.mean();
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const A distance = mean(i) - middle;
            if (i >= first && i < last) all.squares[0] += squares[i] + n * distance * distance;
        }
        return all;
    }
    // Reads from shared memory what `store` has written, numbers `stride` elements apart.
    static __device__ Moments from_shared(const A* from, u32 stride = 1) {
        Moments moments;
        moments.n = from[0], moments.sum[0] = from[stride], moments.squares[0] = from[2 * stride];
        return moments;
    }
    // Writes n, sum and squares of the first channel, `stride` elements apart.
    __device__ void store(A* to, u32 stride = 1) const {
        to[0] = n, to[stride] = sum[0], to[2 * stride] = squares[0];
    }
    // Reads from global memory what `store` has written in another block, numbers `stride` elements
    // apart.
    static __device__ Moments load(const A* from, u32 stride) {
        Moments moments;
        moments.n = __ldcg(from);
        moments.sum[0] = __ldcg(from + stride);
        moments.squares[0] = __ldcg(from + 2 * stride);
        return moments;
    }
};

// Sums of the gradient of each of N channels: sum of dy, and product = sum of dy * (x - reference).
// Used in the same two ways, include, or begin, add and end; numbers of elements are not needed.
template <class A, int N = 1>
struct Slopes {
    static constexpr int FIELDS = SLOPES;
    A sum[N] = {}, product[N] = {};

    A start[N] = {};  // the reference

    // Adds the elements of a batch, relative to `reference`.
    template <class Seen>
    __device__ void include(const Seen& seen, A, const A (&reference)[N]) {
        begin(seen, 0, reference);
        add(seen);
    }
    // Sets the reference; adds nothing.
    template <class Seen>
    __device__ void begin(const Seen&, A, const A (&reference)[N]) {
#pragma unroll
        for (int i = 0; i < N; ++i) start[i] = reference[i];
    }
    // Adds the elements of `seen`: dy to `sum`, dy (x - start) to `product`.
    template <class Seen>
    __device__ void add(const Seen& seen) {
#pragma unroll
        for (int i = 0; i < N; ++i)
            seen.each(i, [&](A x, A dy) {
                sum[i] += dy;
                product[i] += dy * (x - start[i]);
            });
    }
    __device__ void end(A, const A (&)[N]) {}
    // Adds the sums of other elements of the same channels.
    __device__ void merge(const Slopes& other) {
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] += other.sum[i], product[i] += other.product[i];
    }
    // Adds up the sums of all threads of `over`; each has the result.
    template <class Over>
    __device__ void join(const Over& over) {
        A both[2][N];
#pragma unroll
        for (int i = 0; i < N; ++i) both[0][i] = sum[i], both[1][i] = product[i];
        over(both);
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] = both[0][i], product[i] = both[1][i];
    }
    // Adds up the sums that each(see) passes to `see`, of all threads of `over`.
    template <class Each, class Over>
    __device__ void join_all(const Each& each, const Over& over) {
        each([&](const Slopes& one) { merge(one); });
        join(over);
    }
    // The sums of channel or column i.
    __device__ Slopes<A> column(int i) const {
        Slopes<A> one;
        one.sum[0] = sum[i], one.product[0] = product[i];
        return one;
    }
    // The sums over columns [first, last), of one channel.
    __device__ Slopes<A> columns(int first, int last) const {
        Slopes<A> all;
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (i >= first && i < last) all.merge(column(i));
        return all;
    }
    // Reads from shared memory what `store` has written, numbers `stride` elements apart.
    static __device__ Slopes from_shared(const A* from, u32 stride = 1) {
        Slopes slopes;
        slopes.sum[0] = from[0], slopes.product[0] = from[stride];
        return slopes;
    }
    // Writes sum and product of the first channel, `stride` elements apart.
    __device__ void store(A* to, u32 stride = 1) const { to[0] = sum[0], to[stride] = product[0]; }
    // Reads from global memory what `store` has written in another block, numbers `stride` elements
    // apart.
    static __device__ Slopes load(const A* from, u32 stride) {
        Slopes slopes;
        slopes.sum[0] = __ldcg(from), slopes.product[0] = __ldcg(from + stride);
        return slopes;
    }
};

}  // namespace cto::batch_norm::sums
