// SPDX-License-Identifier: MIT
// Gist activation codecs.  CPU provider: cupy_training_ops/cpu/gist.py
//
// Encoders read 16 to 64 bytes at a time, decoders write 16. Tests for zero, sign and NaN
// look at bits, because comparison flushes subnormals (CuPy compiles with -ftz=true).
#include "include/e5m2.cuh"
#include "include/msfp15.cuh"
#include "include/packets.cuh"

// Bytes of decoded elements a thread has in flight; the launch gives both.
#ifndef CTO_ELEMENT_NBYTES
#define CTO_ELEMENT_NBYTES 32
#endif
#ifndef CTO_TILE_NBYTES
#define CTO_TILE_NBYTES 64
#endif

namespace cto {

constexpr int READ = sizeof(T) == 8 ? 4 : 8;
constexpr int READ_TILES = sizeof(T) == 1 ? 16 : 8;
constexpr int WRITE = 16 / sizeof(T);
constexpr int TILE = 8;  // elements of an MSFP15 tile, and bits of a Pack1 byte
constexpr int PARTS = WRITE < TILE ? TILE / WRITE : 1;  // decoding threads that share a tile
constexpr int WRITTEN_TILES = WRITE < TILE ? 1 : WRITE / TILE;

using EncodeElements = Packets<READ, READ, 1, CTO_ELEMENT_NBYTES>;
using DecodeElements = Packets<WRITE, WRITE, 1, CTO_ELEMENT_NBYTES>;
template <int CODES>
using EncodeTiles = Packets<READ_TILES, CODES, 1, CTO_TILE_NBYTES>;
template <int CODES_A_TILE>
using DecodeTiles = Packets<CODES_A_TILE * WRITTEN_TILES, WRITE, PARTS, CTO_TILE_NBYTES>;

// ---- one element to one element -----------------------------------------------------------------

__device__ __forceinline__ bool is_positive(bool x) { return x; }
__device__ __forceinline__ bool is_positive(__half x) { return bits_of(x) - 1u < 0x7C00u; }
__device__ __forceinline__ bool is_positive(__nv_bfloat16 x) { return bits_of(x) - 1u < 0x7F80u; }
__device__ __forceinline__ bool is_positive(float x) { return bits_of(x) - 1u < 0x7F800000u; }
__device__ __forceinline__ bool is_positive(double x) {
    return bits_of(x) - 1u < 0x7FF0000000000000ull;
}

template <class E>
__device__ __forceinline__ __half to_half(E x) {
    return __float2half_rn(to_float(x));
}
__device__ __forceinline__ __half to_half(__half x) { return x; }
__device__ __forceinline__ __half to_half(double x) { return __double2half(x); }

__device__ __forceinline__ void widen(__half x, __half& y) { y = x; }
template <class E>
__device__ __forceinline__ void widen(__half x, E& y) {
    y = from_float<E>(to_float(x));
}

struct Binarize {
    __device__ void operator()(T x, bool& y) const { y = is_positive(x); }
};
struct Unbinarize {
    __device__ void operator()(bool x, T& y) const { y = from_float<T>(x ? 1.0f : 0.0f); }
};
struct FromE5m2 {
    __device__ void operator()(u8 x, T& y) const { widen(from_e5m2(x), y); }
};
struct ToHalf {
    __device__ void operator()(T x, __half& y) const { y = to_half(x); }
};
struct FromHalf {
    __device__ void operator()(__half x, T& y) const { widen(x, y); }
};

template <class Y, class F>
struct Each {
    template <class X, int N>
    __device__ Packet<Y, N> operator()(const Packet<X, N>& x, int) const {
        Packet<Y, N> y;
#pragma unroll
        for (int i = 0; i < N; ++i) F{}(x.at[i], y.at[i]);
        return y;
    }
};

template <bool ALIGNED, class F, class Y>
__device__ __forceinline__ void encode_elements(const T* x, Y* y, i64 n_x, i64 n_y) {
    map_packets<ALIGNED, EncodeElements>(x, y, n_x, n_y, Each<Y, F>{});
}

template <bool ALIGNED, class F, class X>
__device__ __forceinline__ void decode_elements(const X* x, T* y, i64 n_x, i64 n_y) {
    map_packets<ALIGNED, DecodeElements>(x, y, n_x, n_y, Each<T, F>{});
}

// ---- Pack8: four elements at a time to E5M2 -----------------------------------------------------

struct ToE5m2 {
    __device__ Packet<u8, READ> operator()(const Packet<T, READ>& x, int) const {
        Packet<u8, READ> y;
#pragma unroll
        for (int i = 0; i < READ; i += 4)
            *reinterpret_cast<u32*>(y.at + i) = four_to_e5m2(x.at + i);
        return y;
    }
};

// ---- Pack1: eight elements to one byte, the first element in the highest bit --------------------

struct Pack1 {
    __device__ Packet<u8, READ_TILES / 8> operator()(const Packet<T, READ_TILES>& x, int) const {
        Packet<u8, READ_TILES / 8> y{};
#pragma unroll
        for (int i = 0; i < READ_TILES; ++i)
            y.at[i / 8] |= static_cast<u8>(is_positive(x.at[i]) << (7 - i % 8));
        return y;
    }
};

struct Unpack1 {
    template <int N>
    __device__ Packet<T, WRITE> operator()(const Packet<u8, N>& x, int part) const {
        Packet<T, WRITE> y;
#pragma unroll
        for (int i = 0; i < WRITE; ++i) {
            const u32 bits = static_cast<u32>(x.at[i / 8]) << (part * WRITE + i % 8);
            y.at[i] = from_float<T>(bits & 0x80u ? 1.0f : 0.0f);
        }
        return y;
    }
};

// ---- MSFP15: eight elements to eight bytes ------------------------------------------------------

struct Msfp15Encode {
    bool keep_nonfinite;
    __device__ Packet<u8, READ_TILES> operator()(const Packet<T, READ_TILES>& x, int) const {
        Packet<u8, READ_TILES> codes;
#pragma unroll
        for (int tile = 0; tile < READ_TILES / TILE; ++tile) {
            float values[TILE];
#pragma unroll
            for (int j = 0; j < TILE; ++j) values[j] = truncated(x.at[TILE * tile + j]);
            reinterpret_cast<uint2*>(codes.at)[tile] = encode_tile(values, keep_nonfinite);
        }
        return codes;
    }
};

struct Msfp15Decode {
    bool keep_nonfinite;
    template <int N>
    __device__ Packet<T, WRITE> operator()(const Packet<u8, N>& codes, int part) const {
        constexpr int PART = TILE / PARTS;
        Packet<T, WRITE> y;
#pragma unroll
        for (int tile = 0; tile < N / TILE; ++tile)
            decode_part<PART>(reinterpret_cast<const uint2*>(codes.at)[tile], part, keep_nonfinite,
                              y.at + tile * TILE);
        return y;
    }
};

}  // namespace cto

using namespace cto;

// ---- entry points; `__unaligned` takes arrays that do not start at a multiple of 16 bytes -------

extern "C" __global__ void __launch_bounds__(THREADS)
    gist_binarize_encoder(const T* x, bool* y, i64 n_x, i64 n_y) {
    encode_elements<true, Binarize>(x, y, n_x, n_y);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_binarize_encoder__unaligned(const T* x, bool* y, i64 n_x, i64 n_y) {
    encode_elements<false, Binarize>(x, y, n_x, n_y);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_pack8_encoder(const T* x, u8* y, i64 n_x, i64 n_y) {
    map_packets<true, EncodeElements>(x, y, n_x, n_y, ToE5m2{});
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_pack8_encoder__unaligned(const T* x, u8* y, i64 n_x, i64 n_y) {
    map_packets<false, EncodeElements>(x, y, n_x, n_y, ToE5m2{});
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_pack16_encoder(const T* x, __half* y, i64 n_x, i64 n_y) {
    encode_elements<true, ToHalf>(x, y, n_x, n_y);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_pack16_encoder__unaligned(const T* x, __half* y, i64 n_x, i64 n_y) {
    encode_elements<false, ToHalf>(x, y, n_x, n_y);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_binarize_decoder(const bool* x, T* y, i64 n_x, i64 n_y) {
    decode_elements<true, Unbinarize>(x, y, n_x, n_y);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_binarize_decoder__unaligned(const bool* x, T* y, i64 n_x, i64 n_y) {
    decode_elements<false, Unbinarize>(x, y, n_x, n_y);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_pack8_decoder(const u8* x, T* y, i64 n_x, i64 n_y) {
    decode_elements<true, FromE5m2>(x, y, n_x, n_y);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_pack8_decoder__unaligned(const u8* x, T* y, i64 n_x, i64 n_y) {
    decode_elements<false, FromE5m2>(x, y, n_x, n_y);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_pack16_decoder(const __half* x, T* y, i64 n_x, i64 n_y) {
    decode_elements<true, FromHalf>(x, y, n_x, n_y);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_pack16_decoder__unaligned(const __half* x, T* y, i64 n_x, i64 n_y) {
    decode_elements<false, FromHalf>(x, y, n_x, n_y);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_pack1_encoder(const T* x, u8* y, i64 n_x, i64 n_y) {
    map_packets<true, EncodeTiles<READ_TILES / 8>>(x, y, n_x, n_y, Pack1{});
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_pack1_encoder__unaligned(const T* x, u8* y, i64 n_x, i64 n_y) {
    map_packets<false, EncodeTiles<READ_TILES / 8>>(x, y, n_x, n_y, Pack1{});
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_pack1_decoder(const u8* x, T* y, i64 n_x, i64 n_y) {
    map_packets<true, DecodeTiles<1>>(x, y, n_x, n_y, Unpack1{});
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_pack1_decoder__unaligned(const u8* x, T* y, i64 n_x, i64 n_y) {
    map_packets<false, DecodeTiles<1>>(x, y, n_x, n_y, Unpack1{});
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_pack_msfp15_encoder(const T* x, u8* y, i64 n_x, i64 n_y, bool keep_nonfinite) {
    map_packets<true, EncodeTiles<READ_TILES>>(x, y, n_x, n_y, Msfp15Encode{keep_nonfinite});
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_pack_msfp15_encoder__unaligned(const T* x, u8* y, i64 n_x, i64 n_y, bool keep_nonfinite) {
    map_packets<false, EncodeTiles<READ_TILES>>(x, y, n_x, n_y, Msfp15Encode{keep_nonfinite});
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_pack_msfp15_decoder(const u8* x, T* y, i64 n_x, i64 n_y, bool keep_nonfinite) {
    map_packets<true, DecodeTiles<TILE>>(x, y, n_x, n_y, Msfp15Decode{keep_nonfinite});
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_pack_msfp15_decoder__unaligned(const u8* x, T* y, i64 n_x, i64 n_y, bool keep_nonfinite) {
    map_packets<false, DecodeTiles<TILE>>(x, y, n_x, n_y, Msfp15Decode{keep_nonfinite});
}
