// SPDX-License-Identifier: MIT
// Gist activation codecs.  CPU provider: cupy_training_ops/cpu/gist.py
//
// CTO_PACKET decoded elements are one packet. Tests for zero, sign and NaN look at bits, because
// floating-point comparison flushes subnormals (CuPy compiles with -ftz=true).
#include "include/e5m2.cuh"
#include "include/msfp15.cuh"
#include "include/packets.cuh"

namespace cto {

constexpr int PACKET = CTO_PACKET;
constexpr int TILED = PACKET < 8 ? 8 : PACKET;

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
struct ToE5m2 {
    __device__ void operator()(T x, u8& y) const { y = to_e5m2(x); }
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
    F f;
    template <class X>
    __device__ Packet<Y, PACKET> operator()(const Packet<X, PACKET>& x) const {
        Packet<Y, PACKET> y;
#pragma unroll
        for (int i = 0; i < PACKET; ++i) f(x.at[i], y.at[i]);
        return y;
    }
};

template <bool ALIGNED, class F, class X, class Y>
__device__ __forceinline__ void map_elements(const X* x, Y* y, i64 n_x, i64 n_y) {
    map_packets<ALIGNED, PACKET, PACKET>(x, y, n_x, n_y, Each<Y, F>{});
}

// ---- Pack1: eight elements to one byte, the first element in the highest bit -----------------------

struct Pack1 {
    __device__ Packet<u8, TILED / 8> operator()(const Packet<T, TILED>& x) const {
        Packet<u8, TILED / 8> y{};
#pragma unroll
        for (int i = 0; i < TILED; ++i)
            y.at[i / 8] |= static_cast<u8>(is_positive(x.at[i]) << (7 - i % 8));
        return y;
    }
};

struct Unpack1 {
    __device__ Packet<T, TILED> operator()(const Packet<u8, TILED / 8>& x) const {
        Packet<T, TILED> y;
#pragma unroll
        for (int i = 0; i < TILED; ++i)
            y.at[i] = from_float<T>(x.at[i / 8] >> (7 - i % 8) & 1 ? 1.0f : 0.0f);
        return y;
    }
};

// ---- MSFP15: eight elements to eight bytes -----------------------------------------------------------

struct Msfp15Encode {
    bool keep_nonfinite;
    __device__ Packet<u8, TILED> operator()(const Packet<T, TILED>& x) const {
        Packet<u8, TILED> codes;
#pragma unroll
        for (int tile = 0; tile < TILED / 8; ++tile) {
            u32 bits[8];
#pragma unroll
            for (int j = 0; j < 8; ++j) bits[j] = truncated_float_bits(x.at[8 * tile + j]);
            reinterpret_cast<u64*>(codes.at)[tile] = msfp15_encode(bits, keep_nonfinite);
        }
        return codes;
    }
};

struct Msfp15Decode {
    bool keep_nonfinite;
    __device__ Packet<T, TILED> operator()(const Packet<u8, TILED>& codes) const {
        Packet<T, TILED> y;
#pragma unroll
        for (int tile = 0; tile < TILED / 8; ++tile) {
            const u64 bytes = reinterpret_cast<const u64*>(codes.at)[tile];
            const u32 shared_exponent = msfp15_shared_exponent(bytes);
            const bool nan = keep_nonfinite && shared_exponent == 255;
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const u32 byte = static_cast<u32>(bytes >> 8 * j) & 0xFFu;
                const u32 bits = nan ? 0x7FC00000u : msfp15_decode(byte, shared_exponent);
                y.at[8 * tile + j] = from_float<T>(__uint_as_float(bits));
            }
        }
        return y;
    }
};

}  // namespace cto

using namespace cto;

// ---- entry points; `__unaligned` takes arrays that do not start at a multiple of 16 bytes ---------

extern "C" __global__ void gist_binarize_encoder(const T* x, bool* y, i64 n_x, i64 n_y) {
    map_elements<true, Binarize>(x, y, n_x, n_y);
}
extern "C" __global__ void gist_binarize_encoder__unaligned(const T* x, bool* y, i64 n_x, i64 n_y) {
    map_elements<false, Binarize>(x, y, n_x, n_y);
}
extern "C" __global__ void gist_binarize_decoder(const bool* x, T* y, i64 n_x, i64 n_y) {
    map_elements<true, Unbinarize>(x, y, n_x, n_y);
}
extern "C" __global__ void gist_binarize_decoder__unaligned(const bool* x, T* y, i64 n_x, i64 n_y) {
    map_elements<false, Unbinarize>(x, y, n_x, n_y);
}
extern "C" __global__ void gist_pack8_encoder(const T* x, u8* y, i64 n_x, i64 n_y) {
    map_elements<true, ToE5m2>(x, y, n_x, n_y);
}
extern "C" __global__ void gist_pack8_encoder__unaligned(const T* x, u8* y, i64 n_x, i64 n_y) {
    map_elements<false, ToE5m2>(x, y, n_x, n_y);
}
extern "C" __global__ void gist_pack8_decoder(const u8* x, T* y, i64 n_x, i64 n_y) {
    map_elements<true, FromE5m2>(x, y, n_x, n_y);
}
extern "C" __global__ void gist_pack8_decoder__unaligned(const u8* x, T* y, i64 n_x, i64 n_y) {
    map_elements<false, FromE5m2>(x, y, n_x, n_y);
}
extern "C" __global__ void gist_pack16_encoder(const T* x, __half* y, i64 n_x, i64 n_y) {
    map_elements<true, ToHalf>(x, y, n_x, n_y);
}
extern "C" __global__ void gist_pack16_encoder__unaligned(const T* x, __half* y, i64 n_x, i64 n_y) {
    map_elements<false, ToHalf>(x, y, n_x, n_y);
}
extern "C" __global__ void gist_pack16_decoder(const __half* x, T* y, i64 n_x, i64 n_y) {
    map_elements<true, FromHalf>(x, y, n_x, n_y);
}
extern "C" __global__ void gist_pack16_decoder__unaligned(const __half* x, T* y, i64 n_x, i64 n_y) {
    map_elements<false, FromHalf>(x, y, n_x, n_y);
}
extern "C" __global__ void gist_pack1_encoder(const T* x, u8* y, i64 n_x, i64 n_y) {
    map_packets<true, TILED, TILED / 8>(x, y, n_x, n_y, Pack1{});
}
extern "C" __global__ void gist_pack1_encoder__unaligned(const T* x, u8* y, i64 n_x, i64 n_y) {
    map_packets<false, TILED, TILED / 8>(x, y, n_x, n_y, Pack1{});
}
extern "C" __global__ void gist_pack1_decoder(const u8* x, T* y, i64 n_x, i64 n_y) {
    map_packets<true, TILED / 8, TILED>(x, y, n_x, n_y, Unpack1{});
}
extern "C" __global__ void gist_pack1_decoder__unaligned(const u8* x, T* y, i64 n_x, i64 n_y) {
    map_packets<false, TILED / 8, TILED>(x, y, n_x, n_y, Unpack1{});
}
extern "C" __global__ void gist_pack_msfp15_encoder(const T* x, u8* y, i64 n_x, i64 n_y,
                                                    bool keep_nonfinite) {
    map_packets<true, TILED, TILED>(x, y, n_x, n_y, Msfp15Encode{keep_nonfinite});
}
extern "C" __global__ void gist_pack_msfp15_encoder__unaligned(const T* x, u8* y, i64 n_x, i64 n_y,
                                                    bool keep_nonfinite) {
    map_packets<false, TILED, TILED>(x, y, n_x, n_y, Msfp15Encode{keep_nonfinite});
}
extern "C" __global__ void gist_pack_msfp15_decoder(const u8* x, T* y, i64 n_x, i64 n_y,
                                                    bool keep_nonfinite) {
    map_packets<true, TILED, TILED>(x, y, n_x, n_y, Msfp15Decode{keep_nonfinite});
}
extern "C" __global__ void gist_pack_msfp15_decoder__unaligned(const u8* x, T* y, i64 n_x, i64 n_y,
                                                    bool keep_nonfinite) {
    map_packets<false, TILED, TILED>(x, y, n_x, n_y, Msfp15Decode{keep_nonfinite});
}
