// SPDX-License-Identifier: MIT
// Gist codecs of numbers in few bits.  CPU provider: cupy_training_ops/families/gist_narrow/reference.py
//
// FP10 and indices: a thread encodes or decodes one vector by itself; map_vecs calls a codec with a
// vector of x and the number of the share that the thread makes of it. Scaled numbers: blocks of
// 128 elements (int8: 32) share a scale; 16 neighbouring threads (int8: 4) find it by shuffles,
// each encoding 8 elements. A tile is 1,024 elements, of 128 threads. n_x, n_y: elements of x and
// of y, bytes where it is u8; aligned: both begin at multiples of 16 bytes.
#include "algorithm/map.cuh"
#include "core/slots.cuh"
#include "format/fp10.cuh"
#include "gist_narrow/facts.cuh"
#include "gist_narrow/scaled_fp8.cuh"
#include "gist_narrow/scaled_int8.cuh"

// T: decoded numbers; INDEX: decoded indices, as unsigned words of their size.
#ifndef CTO_INDEX
#define CTO_INDEX u8
#endif

namespace cto {

using namespace facts::gist_narrow;
using namespace format;
using map::map_vecs;
using map::Tiling;
using vec::Vec;

using slots::T;
using Index = CTO_INDEX;

// Blocks on a multiprocessor: 3 leave 56 registers a thread, which float64 spills with CUDA 13.5.
constexpr int RESIDENT = sizeof(T) == 8 && ONE_RESIDENT == 1 ? 2 : 3;
constexpr int WRITE = vec::WIDTH<T>;  // elements in a decoder's 16-byte store

// ---- FP10: an encoder's 48 bytes become whole words, which three decoding threads share ---------

constexpr int FP10_READ = 48 / sizeof(T);
constexpr int FP10_WORDS = FP10_READ / facts::FP10_IN_WORD;

using EncodeFp10 = Tiling</*IN=*/FP10_READ, /*OUT=*/FP10_WORDS, /*SHARE=*/1, FP10_NBYTES, THREADS>;
using DecodeFp10 = Tiling</*IN=*/FP10_WORDS, /*OUT=*/WRITE, /*SHARE=*/3, NBYTES, THREADS>;

// y[k] = the FP10 codes of x[3 k], x[3 k + 1] and x[3 k + 2].
struct ToFp10 {
    __device__ Vec<u32, FP10_WORDS> operator()(const Vec<T, FP10_READ>& x, int) const {
        Vec<u32, FP10_WORDS> y;
        fp10::encode<FP10_WORDS>(x.at, y.at);
        return y;
    }
};
// y = elements share * WRITE to (share + 1) * WRITE - 1 of those that the
// words x encode, share < 3.
struct FromFp10 {
    __device__ Vec<T, WRITE> operator()(const Vec<u32, FP10_WORDS>& x, int share) const {
        Vec<T, WRITE> y;
        fp10::decode_share<WRITE, FP10_WORDS>(x.at, share, y.at);
        return y;
    }
};

// ---- indices: two in a byte, the first in its lower half ----------------------------------------

constexpr int READ_INDICES = sizeof(Index) == 1 ? 16 : 8;
constexpr int WRITTEN_INDICES = vec::WIDTH<Index>;

using EncodeIndices = Tiling<READ_INDICES, READ_INDICES / IN_BYTE, 1, NBYTES, THREADS>;
using DecodeIndices = Tiling<WRITTEN_INDICES / IN_BYTE, WRITTEN_INDICES, 1, NBYTES, THREADS>;

// y[k] = x[2 k] & 15 | (x[2 k + 1] & 15) << 4.
struct ToIndices {
    // y[k] = two indices, the lowest 4 bits of x[2 k] in the lower half and those of x[2 k + 1] in
    // the upper one.
    __device__ Vec<u8, READ_INDICES / IN_BYTE> operator()(const Vec<Index, READ_INDICES>& x,
                                                          int) const {
        Vec<u8, READ_INDICES / IN_BYTE> y;
#pragma unroll
        for (int k = 0; k < READ_INDICES / IN_BYTE; ++k)
            y.at[k] = static_cast<u8>((x.at[2 * k] & 15u) | (x.at[2 * k + 1] & 15u) << 4);
        return y;
    }
};

// With x and y as bytes, y[2 k] = x[k] & 15 and y[2 k + 1] = x[k] >> 4: a word of x at a time,
// whose lower and upper halves of bytes are put in turn (0x5140: bytes 0 and 1 of each).
__device__ __forceinline__ void decode_words(const u32* x, u32* y) {
#pragma unroll
    for (int i = 0; i < WRITTEN_INDICES / 8; ++i) {
        const u32 lower = x[i] & 0x0F0F0F0Fu, upper = x[i] >> 4 & 0x0F0F0F0Fu;
        y[2 * i] = __byte_perm(lower, upper, 0x5140);
        y[2 * i + 1] = __byte_perm(lower, upper, 0x7362);
    }
}

// y[i] = x[i / 2] & 15 for even i, x[i / 2] >> 4 for odd i.
struct FromIndices {
    // y[2 k] = the lower half of x[k], y[2 k + 1] the upper one.
    __device__ Vec<Index, WRITTEN_INDICES> operator()(const Vec<u8, WRITTEN_INDICES / IN_BYTE>& x,
                                                      int) const {
        Vec<Index, WRITTEN_INDICES> y;
        if constexpr (sizeof(Index) == 1) {
            decode_words(reinterpret_cast<const u32*>(x.at), reinterpret_cast<u32*>(y.at));
        } else {
#pragma unroll
            for (int i = 0; i < WRITTEN_INDICES; ++i)
                y.at[i] = static_cast<Index>(x.at[i / 2] >> 4 * (i % 2) & 15u);
        }
        return y;
    }
};

// ---- scaled numbers: an encoded tile is its scales, 2 bytes a block, then 1,024 codes of 1 byte -

constexpr int READ = 8;
constexpr int TILE_THREADS = TILE / READ;
constexpr int TILES = THREADS / TILE_THREADS;          // tiles that a thread block encodes at once
constexpr int ENCODED = NBYTES / (READ * sizeof(T));   // vectors that a thread encodes
constexpr int DECODED = NBYTES / (WRITE * sizeof(T));  // vectors that a thread decodes
static_assert(THREADS % TILE_THREADS == 0, "no tile is that of two blocks of threads");

using Elements = Vec<T, READ>;

// Position of a vector's first element: its tile and its number in the tile. in_array is its index
// in the decoded array; of_code and of_scale are offsets of its code and scale in the encoded
// bytes, where a tile is its scales, then its codes. BLOCK: elements that share a scale.
template <int BLOCK>
struct Place {
    static constexpr int SCALES = 2 * TILE / BLOCK;  // bytes of a tile's scales
    i64 tile;
    int element;
    __device__ i64 in_array() const { return tile * TILE + element; }
    __device__ i64 of_code() const { return tile * (TILE + SCALES) + SCALES + element; }
    __device__ i64 of_scale() const { return tile * (TILE + SCALES) + element / BLOCK * 2; }
};

// The place of the thread's vector u, of READ elements: 128 neighbouring threads have one tile.
template <int BLOCK>
__device__ __forceinline__ Place<BLOCK> encoded_place(int u) {
    const i64 first = static_cast<i64>(blockIdx.x) * (ENCODED * TILES) + u * TILES;
    return {first + threadIdx.x / TILE_THREADS,
            static_cast<int>(threadIdx.x % TILE_THREADS) * READ};
}
// The place of the thread's vector u, of WRITE elements: THREADS vectors apart.
template <int BLOCK>
__device__ __forceinline__ Place<BLOCK> decoded_place(int u) {
    const i64 first = (static_cast<i64>(blockIdx.x) * DECODED + u) * THREADS + threadIdx.x;
    return {first * WRITE / TILE, static_cast<int>(first * WRITE % TILE)};
}

// The largest `largest` of the BLOCK / READ neighbouring threads of a block of elements, in each.
template <int BLOCK, class M>
__device__ __forceinline__ M largest_of_block(M largest) {
#pragma unroll
    for (int lanes = BLOCK / READ / 2; lanes > 0; lanes /= 2)
        largest = max(largest, __shfl_xor_sync(ALL_LANES, largest, lanes));
    return largest;
}

// A thread's codes, and the scale of its block in the lower 16 bits.
struct Encoded {
    Vec<u8, READ> codes;
    int scale;
};

// code = x / 2^scale in the 8-bit float F, E4m3 or E5m2. scale is the smallest integer at which the
// block's largest finite element does not round beyond F's largest number. A block with infinities
// has a marked scale in E4M3: see scaled_fp8.cuh.
template <class F>
struct ScaledFp8 {
    static constexpr int BLOCK = facts::gist_narrow::BLOCK;
    using Magnitude = decltype(scaled_fp8::magnitude_of(Acc<T>(0)));

    // Byte j = the code of x[j], j < 4; power = 2^-scale. The conversion to four codes at once is
    // from float; all are finite.
    static __device__ __forceinline__ u32 four_codes(const T* x,
                                                     const scaled_fp8::Power<Acc<T>>& power) {
        if constexpr (ARE_SAME<Acc<T>, float>) {
            float scaled[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) scaled[j] = scaled_fp8::times(to_acc(x[j]), power);
            return scaled_fp8::codes_of<F>(scaled);
        }
        u32 codes = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) codes |= scaled_fp8::encode<F>(x[j], power) << 8 * j;
        return codes;
    }

    // The codes of x, the thread's READ elements, and the scale of their block. All threads of a
    // warp call it: the threads of a block of elements find its scale together.
    static __device__ __forceinline__ Encoded encode(const Elements& x) {
        Magnitude largest = 0;
#pragma unroll
        for (int i = 0; i < READ; ++i)
            largest = max(largest, scaled_fp8::magnitude_of(to_acc(x.at[i])));
        largest = largest_of_block<BLOCK>(largest);
        if (__any_sync(ALL_LANES, largest >= scaled_fp8::infinity_like(Acc<T>(0))))
            return encode_nonfinite(x);
        Encoded encoded;
        encoded.scale = scaled_fp8::scale_of<F>(largest);
        const auto power = scaled_fp8::power_of_two(-encoded.scale, Acc<T>(0));
#pragma unroll
        for (int word = 0; word < READ / 4; ++word)
            reinterpret_cast<u32*>(encoded.codes.at)[word] = four_codes(x.at + 4 * word, power);
        return encoded;
    }

    // The codes of x, the thread's READ elements, and the scale of their block, where a block of
    // the warp has an infinity or a NaN. It is not inlined, and indexes x in loops, so that it
    // costs the others no registers.
    static __device__ __noinline__ Encoded encode_nonfinite(Elements x) {
        const Magnitude infinity = scaled_fp8::infinity_like(Acc<T>(0));
        Magnitude largest = 0;
        u32 infinite = 0;
#pragma unroll 1
        for (int i = 0; i < READ; ++i) {
            const Magnitude magnitude = scaled_fp8::magnitude_of(to_acc(x.at[i]));
            if (magnitude < infinity) largest = max(largest, magnitude);
            if (magnitude == infinity) infinite = 1;
        }
        const int scale = scaled_fp8::scale_of<F>(largest_of_block<BLOCK>(largest));
        const bool marked = largest_of_block<BLOCK>(infinite) != 0 && F::MARKS_INFINITY;
        const auto power = scaled_fp8::power_of_two(marked ? -scale - 1 : -scale, Acc<T>(0));
        Encoded encoded;
        encoded.scale = marked ? scaled_fp8::marked(scale) : scale;
#pragma unroll 1
        for (int i = 0; i < READ; ++i)
            encoded.codes.at[i] = static_cast<u8>(scaled_fp8::encode<F>(x.at[i], power));
        return encoded;
    }

    // y[i] = (number of codes[i]) * 2^scale. decode_four is faster for E4M3 only.
    static __device__ __forceinline__ Vec<T, WRITE> decode(const Vec<u8, WRITE>& codes, int scale) {
        Vec<T, WRITE> y;
        if (F::MARKS_INFINITY && scaled_fp8::is_marked(scale)) {
            const auto power =
                scaled_fp8::power_of_two(scaled_fp8::unmarked(scale) + F::UNSCALED, Acc<T>(0));
#pragma unroll
            for (int i = 0; i < WRITE; ++i)
                y.at[i] = scaled_fp8::decode_marked<F, T>(codes.at[i], power);
            return y;
        }
        const auto power = scaled_fp8::power_of_two(scale + F::UNSCALED, Acc<T>(0));
        if constexpr (WRITE % 4 == 0 && F::AS_HALF < 8) {
#pragma unroll
            for (int i = 0; i < WRITE; i += 4)
                scaled_fp8::decode_four<F>(reinterpret_cast<const u32*>(codes.at)[i / 4], power,
                                           y.at + i);
        } else {
#pragma unroll
            for (int i = 0; i < WRITE; ++i) y.at[i] = scaled_fp8::decode<F, T>(codes.at[i], power);
        }
        return y;
    }
};

// code = round(x / scale), an int8; scale = the block's largest magnitude / 127, a bfloat16; of a
// block that is not finite as scaled_int8.cuh says.
// KEEP_SIGN: elements other than 0 that would round to 0 become 1 or -1.
template <bool KEEP_SIGN>
struct ScaledInt8 {
    static constexpr int BLOCK = INT8_BLOCK;

    // The codes of x, the thread's READ elements, and the scale of their block. All threads of a
    // warp call it: the threads of a block of elements find its scale together.
    static __device__ __forceinline__ Encoded encode(const Elements& x) {
        float narrow[READ];
        u32 largest = 0;
#pragma unroll
        for (int i = 0; i < READ; ++i) {
            narrow[i] = static_cast<float>(to_acc(x.at[i]));
            largest = max(largest, scaled_fp8::magnitude_of(narrow[i]));
        }
        largest = largest_of_block<BLOCK>(largest);
        if (__any_sync(ALL_LANES, largest >= scaled_int8::INFINITY_BITS))
            return encode_nonfinite(x, largest);
        constexpr int MOST = scaled_int8::LARGEST;
        const u32 scale = scaled_int8::scale_of<MOST>(largest);
        const float inverse = 1.0f / scaled_int8::value_of(scale);
        Encoded encoded;
        encoded.scale = static_cast<int>(scale);
#pragma unroll
        for (int i = 0; i < READ; ++i)
            encoded.codes.at[i] =
                static_cast<u8>(with_sign(scaled_int8::rounded<MOST>(narrow[i], inverse), x.at[i]));
        return encoded;
    }

    // The codes of x, the thread's READ elements, and the scale of their block, where a block of
    // the warp has an infinity or a NaN; largest: magnitude of the thread's block, bits of a float.
    // It is not inlined, and indexes x in loops, so that it costs the others no registers.
    static __device__ __noinline__ Encoded encode_nonfinite(Elements x, u32 largest) {
        const bool is_finite = largest < scaled_int8::INFINITY_BITS;
        u32 of_finite = 0;
#pragma unroll 1
        for (int i = 0; i < READ; ++i) {
            const u32 magnitude = scaled_fp8::magnitude_of(static_cast<float>(to_acc(x.at[i])));
            if (magnitude < scaled_int8::INFINITY_BITS) of_finite = max(of_finite, magnitude);
        }
        of_finite = largest_of_block<BLOCK>(of_finite);
        constexpr int ALONE = scaled_int8::LARGEST, BESIDE = scaled_int8::LARGEST_BESIDE_NONFINITE;
        const u32 scale = is_finite ? scaled_int8::scale_of<ALONE>(of_finite)
                                    : scaled_int8::scale_of<BESIDE>(of_finite);
        const float inverse = 1.0f / scaled_int8::value_of(scale);
        Encoded encoded;
        encoded.scale = static_cast<int>(is_finite ? scale : scale | scaled_int8::IS_NONFINITE);
#pragma unroll 1
        for (int i = 0; i < READ; ++i) {
            const float narrow = static_cast<float>(to_acc(x.at[i]));
            const u32 magnitude = scaled_fp8::magnitude_of(narrow);
            int code = scaled_int8::CODE_OF_NAN;
            if (magnitude == scaled_int8::INFINITY_BITS)
                code = nan::sign_of(x.at[i]) ? -scaled_int8::CODE_OF_INFINITY
                                             : scaled_int8::CODE_OF_INFINITY;
            if (magnitude < scaled_int8::INFINITY_BITS)
                code = with_sign(is_finite ? scaled_int8::rounded<ALONE>(narrow, inverse)
                                           : scaled_int8::rounded<BESIDE>(narrow, inverse),
                                 x.at[i]);
            encoded.codes.at[i] = static_cast<u8>(code);
        }
        return encoded;
    }

    // KEEP_SIGN: 1 or -1 in place of a code 0 of x, unless x is 0.
    static __device__ __forceinline__ int with_sign(int code, T x) {
        const bool is_lost = KEEP_SIGN && code == 0 && scaled_fp8::magnitude_of(to_acc(x)) != 0;
        return is_lost ? (nan::sign_of(x) ? -1 : 1) : code;
    }

    // y[i] = codes[i] * scale, a bfloat16's bits, sign-extended: it is negative for a block that is
    // not finite.
    static __device__ __forceinline__ Vec<T, WRITE> decode(const Vec<u8, WRITE>& codes, int scale) {
        Vec<T, WRITE> y;
        if (scale < 0) {
#pragma unroll
            for (int i = 0; i < WRITE; ++i)
                y.at[i] = scaled_int8::decode_nonfinite<T>(codes.at[i], scale);
            return y;
        }
#pragma unroll
        for (int i = 0; i < WRITE; ++i) y.at[i] = scaled_int8::decode<T>(codes.at[i], scale);
        return y;
    }
};

// y = the tiles of x encoded by C, a ScaledFp8 or ScaledInt8; n_x elements, n_y bytes. A thread
// encodes ENCODED vectors; the first thread of a block of elements stores its scale. Full tiles of
// aligned arrays are loaded before any is stored.
template <class C>
__device__ __forceinline__ void encode_blocks(const T* __restrict__ x, u8* __restrict__ y, i64 n_x,
                                              i64 n_y, bool aligned) {
    const bool first = threadIdx.x % (C::BLOCK / READ) == 0;
    if (aligned && static_cast<i64>(blockIdx.x + 1) * (ENCODED * TILES * TILE) <= n_x) {
        Elements loaded[ENCODED];
#pragma unroll
        for (int u = 0; u < ENCODED; ++u)
            loaded[u] =
                *reinterpret_cast<const Elements*>(x + encoded_place<C::BLOCK>(u).in_array());
#pragma unroll
        for (int u = 0; u < ENCODED; ++u) {
            const auto place = encoded_place<C::BLOCK>(u);
            const Encoded encoded = C::encode(loaded[u]);
            *reinterpret_cast<uint2*>(y + place.of_code()) =
                *reinterpret_cast<const uint2*>(encoded.codes.at);
            if (first)
                *reinterpret_cast<i16*>(y + place.of_scale()) = static_cast<i16>(encoded.scale);
        }
        return;
    }
#pragma unroll 1
    for (int u = 0; u < ENCODED; ++u) {
        const auto place = encoded_place<C::BLOCK>(u);
        const Encoded encoded = C::encode(vec::load_elements<T, READ>(x, place.in_array(), n_x));
        vec::store_elements<u8, READ>(y, place.of_code(), n_y, encoded.codes);
        if (first && place.tile * TILE < n_x) {
            y[place.of_scale()] = static_cast<u8>(encoded.scale);
            y[place.of_scale() + 1] = static_cast<u8>(encoded.scale >> 8);
        }
    }
}

// y = the n_y elements that C, a ScaledFp8 or ScaledInt8, has encoded in x, n_x bytes. A thread
// decodes DECODED vectors, THREADS vectors apart.
template <class C>
__device__ __forceinline__ void decode_blocks(const u8* __restrict__ x, T* __restrict__ y, i64 n_x,
                                              i64 n_y, bool aligned) {
    if (aligned && static_cast<i64>(blockIdx.x + 1) * (DECODED * THREADS * WRITE) <= n_y) {
        Vec<u8, WRITE> codes[DECODED];
        int scales[DECODED];
#pragma unroll
        for (int u = 0; u < DECODED; ++u) {
            const auto place = decoded_place<C::BLOCK>(u);
            codes[u] = *reinterpret_cast<const Vec<u8, WRITE>*>(x + place.of_code());
            scales[u] = *reinterpret_cast<const i16*>(x + place.of_scale());
        }
#pragma unroll
        for (int u = 0; u < DECODED; ++u)
            vec::store_streaming(
                reinterpret_cast<Vec<T, WRITE>*>(y + decoded_place<C::BLOCK>(u).in_array()),
                C::decode(codes[u], scales[u]));
        return;
    }
#pragma unroll 1
    for (int u = 0; u < DECODED; ++u) {
        const auto place = decoded_place<C::BLOCK>(u);
        if (place.in_array() >= n_y) return;
        const auto codes = vec::load_elements<u8, WRITE>(x, place.of_code(), n_x);
        const u8* const scale = x + place.of_scale();
        const auto decoded = C::decode(codes, static_cast<i16>(scale[0] | scale[1] << 8));
        vec::store_elements<T, WRITE>(y, place.in_array(), n_y, decoded);
    }
}

}  // namespace cto

using namespace cto;

// ---- entry points; aligned: both arrays start at a multiple of 16 bytes -------------------------

// y[k] = the FP10 codes of x[3 k], x[3 k + 1] and x[3 k + 2], the first in the lowest bits; zeros
// after x[n_x - 1].
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_fp10_encoder(const T* x, u32* y, i64 n_x, i64 n_y, bool aligned) {
    map_vecs<EncodeFp10>(aligned, x, y, n_x, n_y, ToFp10{});
}
// y[i] = the FP10 number in bits 10 (i % 3) to 10 (i % 3) + 9 of x[i / 3], i < n_y.
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_fp10_decoder(const u32* x, T* y, i64 n_x, i64 n_y, bool aligned) {
    map_vecs<DecodeFp10>(aligned, x, y, n_x, n_y, FromFp10{});
}
// y[k] = x[2 k] & 15 | (x[2 k + 1] & 15) << 4: indices from 0 to 15, two in a byte, n_x in all.
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_index4_encoder(const void* x, u8* y, i64 n_x, i64 n_y, bool aligned) {
    map_vecs<EncodeIndices>(aligned, static_cast<const Index*>(x), y, n_x, n_y, ToIndices{});
}
// y[i] = x[i / 2] & 15 for even i, x[i / 2] >> 4 for odd i, i < n_y.
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_index4_decoder(const u8* x, void* y, i64 n_x, i64 n_y, bool aligned) {
    map_vecs<DecodeIndices>(aligned, x, static_cast<Index*>(y), n_x, n_y, FromIndices{});
}
// y = for each tile of 1,024 elements 8 scales s of 16 bits, then 1,024 codes x[i] / 2^s in E4M3,
// s being the scale of the element's block of 128. A thread encodes 8 elements of a tile at a time.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gist_block_e4m3_encoder(const T* x, u8* y, i64 n_x, i64 n_y, bool aligned) {
    encode_blocks<ScaledFp8<scaled_fp8::E4m3>>(x, y, n_x, n_y, aligned);
}
// y[i] = (E4M3 number of code i) * 2^s, i < n_y, s being the scale of the element's block of 128;
// x: for each tile of 1,024 elements 8 scales of 16 bits, then 1,024 codes.
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_block_e4m3_decoder(const u8* x, T* y, i64 n_x, i64 n_y, bool aligned) {
    decode_blocks<ScaledFp8<scaled_fp8::E4m3>>(x, y, n_x, n_y, aligned);
}
// y = for each tile of 1,024 elements 8 scales s of 16 bits, then 1,024 codes x[i] / 2^s in E5M2,
// s being the scale of the element's block of 128. A thread encodes 8 elements of a tile at a time.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gist_block_e5m2_encoder(const T* x, u8* y, i64 n_x, i64 n_y, bool aligned) {
    encode_blocks<ScaledFp8<scaled_fp8::E5m2>>(x, y, n_x, n_y, aligned);
}
// y[i] = (E5M2 number of code i) * 2^s, i < n_y, s being the scale of the element's block of 128;
// x: for each tile of 1,024 elements 8 scales of 16 bits, then 1,024 codes.
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_block_e5m2_decoder(const u8* x, T* y, i64 n_x, i64 n_y, bool aligned) {
    decode_blocks<ScaledFp8<scaled_fp8::E5m2>>(x, y, n_x, n_y, aligned);
}
// y = for each tile of 1,024 elements 32 scales s in bfloat16, then 1,024 codes round(x[i] / s) in
// int8, s being the scale of the element's block of 32. A thread encodes 8 elements at a time.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gist_int8_encoder(const T* x, u8* y, i64 n_x, i64 n_y, bool aligned) {
    encode_blocks<ScaledInt8</*KEEP_SIGN=*/false>>(x, y, n_x, n_y, aligned);
}
// y = for each tile of 1,024 elements of x 32 scales s in bfloat16, then 1,024 codes round(x[i] /
// s) in int8, s being the scale of the element's block of 32; elements other than 0 that would
// round to 0 become 1 or -1.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gist_int8_encoder__keep_sign(const T* x, u8* y, i64 n_x, i64 n_y, bool aligned) {
    encode_blocks<ScaledInt8</*KEEP_SIGN=*/true>>(x, y, n_x, n_y, aligned);
}
// y[i] = (int8 of code i) * s, i < n_y, s being the scale of the element's block of 32; x: for each
// tile of 1,024 elements 32 scales in bfloat16, then 1,024 codes.
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_int8_decoder(const u8* x, T* y, i64 n_x, i64 n_y, bool aligned) {
    decode_blocks<ScaledInt8</*KEEP_SIGN=*/false>>(x, y, n_x, n_y, aligned);
}
