// SPDX-License-Identifier: MIT
// Gist's sparse encoding.  CPU provider: cupy_training_ops/families/gist_sparse/reference.py
#include "gist_sparse/decode.cuh"
#include "gist_sparse/encode.cuh"

using namespace cto;
using namespace gist_sparse::encode;
using namespace gist_sparse::decode;

// ---- entry points; aligned: both arrays start at a multiple of 16 bytes -------------------------

extern "C" __global__ void __launch_bounds__(ENCODERS, ENCODING)
    gist_sparse__encode(const void* x, u8* y, i64 n_x, i64 n_y, i64 mask, i64 values,
                        Zeroed<u32>* tickets, Zeroed<u32>* groups, u64* begins, u64* nbytes,
                        u32* full, bool aligned) {
    __shared__ Shared shared;
    encode_tiles(shared, {static_cast<const T*>(x),
                          n_x,
                          y,
                          {n_y, mask, values},
                          {tickets, groups, begins, nbytes, full},
                          static_cast<u32>(tiles_of(n_x)),
                          aligned});
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gist_sparse__finish(const void* x, u8* y, i64 n_x, i64 n_y, i64 mask, i64 values,
                        Zeroed<u32>* groups, u64* begins, u64* nbytes, u32* full, bool aligned) {
    const i64 tiles = tiles_of(n_x), kept = HEAD_NBYTES + n_x * static_cast<i64>(sizeof(T));
    const i64 thread = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    for (i64 tile = thread; tile < tiles; tile += gridDim.x * THREADS) groups[tile].value = 0;
    const bool was_encoded = kept > values;
    const u32 first = Values::AS_LONG && was_encoded ? *full : 0;
    if (was_encoded && static_cast<i64>(*nbytes) < kept) {
        if constexpr (Values::AS_LONG) {
            __shared__ Packed packed;
            __shared__ Counts counts;
            const Encoding call{static_cast<const T*>(x),
                                n_x,
                                y,
                                {n_y, mask, values},
                                {nullptr, groups, begins, nbytes, full},
                                static_cast<u32>(tiles),
                                aligned};
            if (first > 0) encode_again(call, counts, packed);
        }
        return;
    }
    if (thread == 0) {
        store_any<u64>(y, kept, aligned);
        store_any<u64>(y + 8, 1, aligned);
    }
    for (i64 tile = first + blockIdx.x; tile < tiles; tile += gridDim.x)
        copy_tile<T, DECODED_ROWS>(static_cast<const u8*>(x), y + HEAD_NBYTES, tile, n_x, aligned);
}

extern "C" __global__ void __launch_bounds__(THREADS, DECODING)
    gist_sparse__decode(const u8* x, void* y, i64 n_x, i64 n_y, i64 mask, i64 values,
                        bool aligned) {
    // A vector more than the values: bytes are looked for in two words.
    alignas(16) __shared__ T packed[GROUPS * GROUP + WIDTH];
    __shared__ Counts counts;
    decode_tile(packed, counts, x, blockIdx.x, n_y, {n_x, mask, values}, static_cast<T*>(y),
                aligned);
}
