// SPDX-License-Identifier: MIT
// Sums over a channel: of threads, of a block, of parts, always in the same order.
//
// A thread has the sums of N channels (or of N columns, whose channels may be the same). `Over`
// stands for the threads that share channels: over(values) makes each of the K values of each of
// the N channels the sum over these threads, in each of them.
#pragma once
#include "algorithm/reduce.cuh"
#include "batch_norm/facts.cuh"

namespace cto::batch_norm::sums {

using namespace facts::batch_norm;
using vec::Vec;

// Shows `see` elements first to last - 1 of each of the first batch.n of DEPTH slots that a thread
// has read of one or two arrays.
template <int READ, int DEPTH, class Batch, class See>
__device__ __forceinline__ void show(const Batch& batch, int first, int last, const See& see) {
#pragma unroll
    for (int u = 0; u < DEPTH; ++u) {
        if (u >= batch.n) continue;
#pragma unroll
        for (int i = first; i < last; ++i) {
            if constexpr (READ == 1)
                see(batch.at(0, u, i));
            else
                see(batch.at(0, u, i), batch.at(1, u, i));
        }
    }
}

// ---- over threads -------------------------------------------------------------------------------

// The threads of a block have one channel. The second sums have memory of their own, so that the
// first need not have been read; a third, or another OverBlock, comes after another barrier.
template <class A>
struct OverBlock {
    A* of_warp;  // shared memory, four entries for each warp
    mutable u32 n_sums = 0;

    template <int K>
    __device__ void operator()(A (&values)[K][1]) const {
        static_assert(K <= 2);
        const u32 warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP;
        A* const own = of_warp + 2 * n_warps * (n_sums++ % 2);
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

// A block is a matrix of threads: those of one row have neighbouring columns, N each, and `length`
// neighbouring columns are a channel.
template <class A>
struct OverColumns {
    u32 x, y, width, height;  // where the thread is, of how many; none where y >= height
    u32 n_columns, length;
    A* of_thread;  // shared memory, K N entries for each thread

    template <int K, int N>
    __device__ void operator()(A (&values)[K][N]) const {
        __syncthreads();
        if (y < height) store(values);
        __syncthreads();
        for (u32 q = y; q < K * N && y < height; q += height) sum_rows(of_thread + q * THREADS + x);
        __syncthreads();
        gather(values);
    }

  private:
    __device__ A& at(u32 k, u32 n, int i, u32 row, u32 column) const {
        return of_thread[(k * n + i) * THREADS + row * width + column];
    }
    template <int K, int N>
    __device__ void store(const A (&values)[K][N]) const {
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (int i = 0; i < N; ++i) at(k, N, i, y, x) = values[k][i];
    }
    // The sum of a column takes the place of its first row: some at a time, as they take long to come.
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
    // The sums of columns are in the first row; channels of several have theirs added up there.
    template <int K, int N>
    __device__ void gather(A (&values)[K][N]) const {
        if (length > 1) sum_channels<K, N>();
        if (y >= height) return;
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (int i = 0; i < N; ++i) values[k][i] = at(k, N, i, 0, x);
    }
    // The sum of a channel takes the place of each of its columns': by a thread, or where it has many by
    // a warp.
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

template <class A>
__device__ A quotient_or_0(A sum, A n) {
    return n > 0 ? fast_divide(sum, n) : A(0);
}

// Number, sum and squared distances from their mean of numbers x - reference. Some at a time are
// taken relative to the first of them, and these are merged by the distance of their means: nothing
// cancels, wherever the reference is.
template <class A, int N = 1>
struct Moments {
    static constexpr int FIELDS = MOMENTS;
    A n = 0;
    A sum[N] = {}, squares[N] = {};
    A start[N] = {};  // what elements are added relative to, until they are related to `reference`

    __device__ A mean(int i = 0) const { return quotient_or_0(sum[i], n); }

    // Elements of one channel that `seen` has.
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
    // A thread's sums of several channels: `begin` with its first elements, `add` all, `end`. They are
    // relative to the mean of the first, which costs less than to merge.
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
    __device__ void end(A count, const A (&reference)[N]) {
        n = count;
        const A inverse = quotient_or_0(A(1), n);
#pragma unroll
        for (int i = 0; i < N; ++i) {
            squares[i] -= sum[i] * inverse * sum[i];
            if (count > 0) sum[i] += count * (start[i] - reference[i]);
        }
    }
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
    // Merges all that `each` shows, related to one reference, over the threads of `over`.
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
    __device__ Moments<A> of(int i) const {
        Moments<A> one;
        one.n = n, one.sum[0] = sum[i], one.squares[0] = squares[i];
        return one;
    }
    // Moments of columns first to last - 1 together.
    __device__ Moments<A> of_columns(int first, int last) const {
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
    // Reads what `store` wrote to shared memory.
    static __device__ Moments from_shared(const A* from, u32 apart = 1) {
        Moments moments;
        moments.n = from[0], moments.sum[0] = from[apart], moments.squares[0] = from[2 * apart];
        return moments;
    }
    __device__ void store(A* to, u32 apart = 1) const {
        to[0] = n, to[apart] = sum[0], to[2 * apart] = squares[0];
    }
    static __device__ Moments load(const A* from, u32 apart) {
        Moments moments;
        moments.n = __ldcg(from);
        moments.sum[0] = __ldcg(from + apart);
        moments.squares[0] = __ldcg(from + 2 * apart);
        return moments;
    }
};

// Sums of gradients, and of gradients times x - reference.
template <class A, int N = 1>
struct Slopes {
    static constexpr int FIELDS = SLOPES;
    A sum[N] = {}, product[N] = {};

    A start[N] = {};

    template <class Seen>
    __device__ void include(const Seen& seen, A, const A (&reference)[N]) {
        begin(seen, 0, reference);
        add(seen);
    }
    template <class Seen>
    __device__ void begin(const Seen&, A, const A (&reference)[N]) {
#pragma unroll
        for (int i = 0; i < N; ++i) start[i] = reference[i];
    }
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
    __device__ void merge(const Slopes& other) {
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] += other.sum[i], product[i] += other.product[i];
    }
    template <class Over>
    __device__ void join(const Over& over) {
        A both[2][N];
#pragma unroll
        for (int i = 0; i < N; ++i) both[0][i] = sum[i], both[1][i] = product[i];
        over(both);
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] = both[0][i], product[i] = both[1][i];
    }
    template <class Each, class Over>
    __device__ void join_all(const Each& each, const Over& over) {
        each([&](const Slopes& one) { merge(one); });
        join(over);
    }
    __device__ Slopes<A> of(int i) const {
        Slopes<A> one;
        one.sum[0] = sum[i], one.product[0] = product[i];
        return one;
    }
    __device__ Slopes<A> of_columns(int first, int last) const {
        Slopes<A> all;
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (i >= first && i < last) all.merge(of(i));
        return all;
    }
    static __device__ Slopes from_shared(const A* from, u32 apart = 1) {
        Slopes slopes;
        slopes.sum[0] = from[0], slopes.product[0] = from[apart];
        return slopes;
    }
    __device__ void store(A* to, u32 apart = 1) const { to[0] = sum[0], to[apart] = product[0]; }
    static __device__ Slopes load(const A* from, u32 apart) {
        Slopes slopes;
        slopes.sum[0] = __ldcg(from), slopes.product[0] = __ldcg(from + apart);
        return slopes;
    }
};

}  // namespace cto::batch_norm::sums
