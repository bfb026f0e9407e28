// SPDX-License-Identifier: MIT
// Gradient bookkeeping.  CPU provider: cupy_training_ops/cpu/gradient.py
//
// Maps over arrays that may be the same (in place): every element is read and written by one thread,
// and a thread loads all of its packets before it stores the first.
#include "include/multi_tensor.cuh"

// T: what is written. VALUE: what is added or scaled. NBYTES: of the wider type, a thread and tile.
#ifndef CTO_VALUE
#define CTO_VALUE float
#endif
#ifndef CTO_NBYTES
#define CTO_NBYTES 32
#endif

namespace cto {

using VALUE = CTO_VALUE;

constexpr int WIDTH = 16 / (sizeof(T) > sizeof(VALUE) ? sizeof(T) : sizeof(VALUE));
constexpr int PACKETS = CTO_NBYTES / 16;  // a thread has in flight
constexpr i64 TILE = PACKETS * THREADS * WIDTH;
constexpr i64 CHUNK = CHUNK_NBYTES / 16 * WIDTH;

// Elements before an array's first 16-byte boundary, and whether a packet may start `first` on.
template <class E>
__device__ __forceinline__ int before_boundary(const E* array) {
    return (16u - (static_cast<u32>(reinterpret_cast<u64>(array)) & 15u)) % 16u / sizeof(E);
}
template <class E>
__device__ __forceinline__ bool packet_at(const E* array, int first) {
    return reinterpret_cast<u64>(array + first) % sizeof(Packet<E, WIDTH>) == 0;
}

// Stores map.load of the elements first, first + N, ... that fall to this thread, MANY in flight.
template <int N, int MANY, class Map>
__device__ __forceinline__ void map_some(const Map& map, i64 first, i64 end) {
    typename Map::template Loaded<N> loaded[MANY];
    const i64 i = first + static_cast<i64>(threadIdx.x) * N;
#pragma unroll
    for (int u = 0; u < MANY; ++u)
        if (i + u * (THREADS * N) < end) map.load(loaded[u], i + u * (THREADS * N));
#pragma unroll
    for (int u = 0; u < MANY; ++u)
        if (i + u * (THREADS * N) < end) map.store(loaded[u], i + u * (THREADS * N));
}

// The elements [first, end) of n: packets where all arrays have theirs on the same elements, and
// single elements before the first and after the last of them.
template <class Map>
__device__ __forceinline__ void map_range(const Map& map, i64 first, i64 end, i64 n) {
    const int head = map.before_boundary();
    const bool packets = map.packets_at(head);
    if (!packets) {
#pragma unroll 1
        for (i64 i = first; i < end; i += 4 * THREADS) map_some<1, 4>(map, i, end);
        return;
    }
    if (first == 0) map_some<1, 1>(map, 0, head < n ? head : n);
    const i64 whole = n <= head ? head : head + (n - head) / WIDTH * WIDTH;
    const i64 last = end + head < whole ? end + head : whole;
#pragma unroll 1
    for (i64 i = first + head; i < last; i += TILE) map_some<WIDTH, PACKETS>(map, i, last);
    if (end == n) map_some<1, 1>(map, whole, n);
}

template <class E, int N>
__device__ __forceinline__ void store_packet(E* to, const Packet<E, N>& packet) {
    if constexpr (sizeof(packet) == 16)
        store_streaming(reinterpret_cast<Packet<E, N>*>(to), packet);
    else
        *reinterpret_cast<Packet<E, N>*>(to) = packet;
}

// new_sum = old_sum + value: in the wider of the two accumulators, rounded once.
struct Accumulate {
    const T* old_sum;
    const VALUE* value;
    T* new_sum;

    template <int N>
    struct Loaded {
        Packet<T, N> sum;
        Packet<VALUE, N> value;
    };

    __device__ int before_boundary() const {
        return sizeof(T) >= sizeof(VALUE) ? cto::before_boundary(new_sum)
                                          : cto::before_boundary(value);
    }
    __device__ bool packets_at(int first) const {
        return packet_at(old_sum, first) && packet_at(value, first) && packet_at(new_sum, first);
    }
    template <int N>
    __device__ __forceinline__ void load(Loaded<N>& loaded, i64 i) const {
        loaded.sum = *reinterpret_cast<const Packet<T, N>*>(old_sum + i);
        loaded.value = *reinterpret_cast<const Packet<VALUE, N>*>(value + i);
    }
    template <int N>
    __device__ __forceinline__ void store(const Loaded<N>& loaded, i64 i) const {
        Packet<T, N> sum;
#pragma unroll
        for (int k = 0; k < N; ++k)
            sum.at[k] = from_accumulator<T>(to_accumulator(loaded.sum.at[k]) +
                                            to_accumulator(loaded.value.at[k]));
        store_packet(new_sum + i, sum);
    }
};

// y = rule(x).
template <class X, class Rule>
struct Convert {
    const X* x;
    T* y;
    Rule rule;

    template <int N>
    using Loaded = Packet<X, N>;

    __device__ int before_boundary() const {
        return sizeof(T) >= sizeof(X) ? cto::before_boundary(y) : cto::before_boundary(x);
    }
    __device__ bool packets_at(int first) const {
        return packet_at(x, first) && packet_at(y, first);
    }
    template <int N>
    __device__ __forceinline__ void load(Packet<X, N>& loaded, i64 i) const {
        loaded = *reinterpret_cast<const Packet<X, N>*>(x + i);
    }
    template <int N>
    __device__ __forceinline__ void store(const Packet<X, N>& loaded, i64 i) const {
        Packet<T, N> converted;
#pragma unroll
        for (int k = 0; k < N; ++k) converted.at[k] = rule(loaded.at[k]);
        store_packet(y + i, converted);
    }
};

struct Copy {
    __device__ T operator()(T x) const { return x; }
};
struct Cast {
    __device__ T operator()(VALUE x) const { return from_accumulator<T>(to_accumulator(x)); }
};
struct Scale {
    float scale;
    __device__ T operator()(VALUE x) const {
        return from_accumulator<T>(scale * to_accumulator(x));
    }
};

// The part of a list that is this block's: elements [first, end) of a tensor of n.
struct Part {
    int tensor;
    i64 first, end, n;

    __device__ Part(const TensorSizes& sizes, int n_tensors) {
        tensor = sizes.tensor_of(blockIdx.x, n_tensors);
        n = sizes.size[tensor];
        first = (blockIdx.x - sizes.first_chunk[tensor]) * CHUNK;
        end = first + CHUNK < n ? first + CHUNK : n;
    }
};

// Where the tensors of a list begin in an array that joins them.
struct Starts {
    i64 at[CAPACITY];
};

}  // namespace cto

using namespace cto;

// Without a value, which is then null, a copy.
extern "C" __global__ void __launch_bounds__(THREADS)
    in_place_accumulator(const T* old_sum, const VALUE* value, T* new_sum, i64 n) {
    const i64 first = blockIdx.x * TILE, end = first + TILE < n ? first + TILE : n;
    if (value)
        map_range(Accumulate{old_sum, value, new_sum}, first, end, n);
    else
        map_range(Convert<T, Copy>{old_sum, new_sum}, first, end, n);
}

// Without an old sum, which is then null, the value.
extern "C" __global__ void __launch_bounds__(THREADS)
    in_place_accumulator_v2(const T* old_sum, const VALUE* value, T* new_sum, i64 n) {
    const i64 first = blockIdx.x * TILE, end = first + TILE < n ? first + TILE : n;
    if (old_sum)
        map_range(Accumulate{old_sum, value, new_sum}, first, end, n);
    else
        map_range(Convert<VALUE, Cast>{value, new_sum}, first, end, n);
}

// Without an update, copies.
extern "C" __global__ void __launch_bounds__(THREADS)
    in_place_accumulator_list(Pointers<CAPACITY> old_sums, Pointers<CAPACITY> values,
                              Pointers<CAPACITY> new_sums, TensorSizes sizes, i32 n_tensors,
                              bool update) {
    const Part part(sizes, n_tensors);
    const T* const old_sum = static_cast<const T*>(old_sums.at[part.tensor]);
    const VALUE* const value = static_cast<const VALUE*>(values.at[part.tensor]);
    T* const new_sum = static_cast<T*>(new_sums.at[part.tensor]);
    if (update)
        map_range(Accumulate{old_sum, value, new_sum}, part.first, part.end, part.n);
    else
        map_range(Convert<T, Copy>{old_sum, new_sum}, part.first, part.end, part.n);
}

extern "C" __global__ void __launch_bounds__(THREADS) zero_gradient(void* gradient, i64 nbytes) {
    constexpr i64 BLOCK = PACKETS * THREADS * 16;
    const Run<u8> run(static_cast<const u8*>(gradient), nbytes);
    uint4* const middle = reinterpret_cast<uint4*>(static_cast<u8*>(gradient) + run.head);
    const i64 first = blockIdx.x * (BLOCK / 16) + threadIdx.x;
#pragma unroll
    for (int u = 0; u < PACKETS; ++u)
        if (first + u * THREADS < run.packets) middle[first + u * THREADS] = uint4{0, 0, 0, 0};
    if (blockIdx.x > 0) return;
    u8* const bytes = static_cast<u8*>(gradient);
    if (threadIdx.x < run.head) bytes[threadIdx.x] = 0;
    if (run.tail() + threadIdx.x < nbytes) bytes[run.tail() + threadIdx.x] = 0;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    mixed_precision_scale(const float* s, Pointers<CAPACITY> xs, Pointers<CAPACITY> ys,
                          TensorSizes sizes, i32 n_tensors) {
    const Part part(sizes, n_tensors);
    const Convert<VALUE, Scale> map{
        static_cast<const VALUE*>(xs.at[part.tensor]), static_cast<T*>(ys.at[part.tensor]), {*s}};
    map_range(map, part.first, part.end, part.n);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    mixed_precision_scale__fused(const float* s, Pointers<CAPACITY> xs, T* y, Starts starts,
                                 TensorSizes sizes, i32 n_tensors) {
    const Part part(sizes, n_tensors);
    const Convert<VALUE, Scale> map{
        static_cast<const VALUE*>(xs.at[part.tensor]), y + starts.at[part.tensor], {*s}};
    map_range(map, part.first, part.end, part.n);
}
