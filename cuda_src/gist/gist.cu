// SPDX-License-Identifier: MIT
// Gist activation codecs.  CPU provider: cupy_training_ops/families/gist/reference.py
//
// Encoders read 16 to 64 bytes at a time, decoders write 16. Tests for zero, sign and NaN look at
// bits, because comparison flushes subnormals (CuPy compiles with -ftz=true). n_x, n_y: elements of
// x and of y; aligned: both begin at multiples of 16 bytes. map_vecs calls a codec with a vector of
// x, and the number of the share that this thread makes of it (0 unless SHARES > 1).
#include "algorithm/map.cuh"
#include "core/slots.cuh"
#include "format/msfp15.cuh"
#include "format/nan.cuh"
#include "gist/e5m2.cuh"
#include "gist/facts.cuh"

namespace cto {

using namespace facts::gist;
using namespace format;
using map::map_vecs;
using map::Tiling;
using vec::Vec;

using slots::T;  // type of decoded elements

constexpr int READ = sizeof(T) == 8 ? 4 : 8;           // elements of one load of an encoder
constexpr int WRITE = vec::WIDTH<T>;                   // elements of one store of a decoder
constexpr int READ_BOXES = sizeof(T) == 1 ? 16 : 8;    // READ for Pack1 and MSFP15: whole boxes
constexpr int SHARES = WRITE < BOX ? BOX / WRITE : 1;  // threads that decode one box together
constexpr int WRITTEN_BOXES = WRITE < BOX ? 1 : WRITE / BOX;  // boxes that one store writes

// map::Tiling of each kind of codec. CODES: bytes of an encoder's store. BOX_CODES: bytes of a box.
using EncodeElements = Tiling</*IN=*/READ, /*OUT=*/READ, /*SHARE=*/1, ELEMENT_NBYTES, THREADS>;
using DecodeElements = Tiling</*IN=*/WRITE, /*OUT=*/WRITE, /*SHARE=*/1, ELEMENT_NBYTES, THREADS>;
template <int CODES>
using EncodeBoxes = Tiling</*IN=*/READ_BOXES, /*OUT=*/CODES, /*SHARE=*/1, TILE_NBYTES, THREADS>;
template <int BOX_CODES>
using DecodeBoxes =
    Tiling</*IN=*/BOX_CODES * WRITTEN_BOXES, /*OUT=*/WRITE, /*SHARE=*/SHARES, TILE_NBYTES, THREADS>;

// ---- one element to one element -----------------------------------------------------------------

// x > 0, false for NaN: positive numbers have bits from 1 to those of infinity.
__device__ __forceinline__ bool is_positive(bool x) { return x; }
__device__ __forceinline__ bool is_positive(__half x) { return bits_of(x) - 1u < 0x7C00u; }
__device__ __forceinline__ bool is_positive(__nv_bfloat16 x) { return bits_of(x) - 1u < 0x7F80u; }
__device__ __forceinline__ bool is_positive(float x) { return bits_of(x) - 1u < 0x7F800000u; }
// x > 0, by its bits: one comparison, false for NaN.
__device__ __forceinline__ bool is_positive(double x) {
    return bits_of(x) - 1u < 0x7FF0000000000000ull;
}

// x rounded to float16; a NaN keeps its sign.
template <class E>
__device__ __forceinline__ __half to_half(E x) {
    return nan::converted<__half>(x);
}
__device__ __forceinline__ __half to_half(bool x) { return from_acc<__half>(x ? 1.0f : 0.0f); }

// Functions F of Each: y = the code of x, or the number of the code x.
struct Binarize {
    __device__ void operator()(T x, bool& y) const { y = is_positive(x); }
};
struct Unbinarize {
    __device__ void operator()(bool x, T& y) const { y = from_acc<T>(x ? 1.0f : 0.0f); }
};
struct FromE5m2 {
    __device__ void operator()(u8 x, T& y) const { y = nan::converted<T>(e5m2::from_e5m2(x)); }
};
struct ToHalf {
    __device__ void operator()(T x, __half& y) const { y = to_half(x); }
};
struct FromHalf {
    __device__ void operator()(__half x, T& y) const { y = nan::converted<T>(x); }
};

// y[i] = F(x[i]), of type Y, for each of N elements.
template <class Y, class F>
struct Each {
    template <class X, int N>
    __device__ Vec<Y, N> operator()(const Vec<X, N>& x, int) const {
        Vec<Y, N> y;
#pragma unroll
        for (int i = 0; i < N; ++i) F{}(x.at[i], y.at[i]);
        return y;
    }
};

// y[i] = F(x[i]), i < n_x: one element is one code. aligned: x and y begin at multiples of 16
// bytes.
template <class F, class Y>
__device__ __forceinline__ void encode_elements(bool aligned, const T* x, Y* y, i64 n_x, i64 n_y) {
    map_vecs<EncodeElements>(aligned, x, y, n_x, n_y, Each<Y, F>{});
}

// y[i] = F(x[i]), i < n_y: one code x[i] is one element. aligned: x and y begin at multiples of 16
// bytes.
template <class F, class X>
__device__ __forceinline__ void decode_elements(bool aligned, const X* x, T* y, i64 n_x, i64 n_y) {
    map_vecs<DecodeElements>(aligned, x, y, n_x, n_y, Each<T, F>{});
}

// ---- Pack8: four elements at a time to E5M2 -----------------------------------------------------

// y[i] = x[i] in E5M2, four elements at a time.
struct ToE5m2 {
    // Byte 4 k + j = x[4 k + j] in E5M2.
    __device__ Vec<u8, READ> operator()(const Vec<T, READ>& x, int) const {
        Vec<u8, READ> y;
#pragma unroll
        for (int i = 0; i < READ; i += 4)
            *reinterpret_cast<u32*>(y.at + i) = e5m2::four_to_e5m2(x.at + i);
        return y;
    }
};

// ---- Pack1: eight elements to one byte, the first element in the highest bit --------------------

// Bit 7 - i % 8 of y[i / 8] is set where x[i] > 0.
struct Pack1 {
    // Bit 7 - i % 8 of byte i / 8 = x[i] > 0.
    __device__ Vec<u8, READ_BOXES / 8> operator()(const Vec<T, READ_BOXES>& x, int) const {
        Vec<u8, READ_BOXES / 8> y{};
#pragma unroll
        for (int i = 0; i < READ_BOXES; ++i)
            y.at[i / 8] |= static_cast<u8>(is_positive(x.at[i]) << (7 - i % 8));
        return y;
    }
};

// y[i] = 1 where bit 7 - (share * WRITE + i % 8) of x[i / 8] is set, else 0. The SHARES threads
// that read the same byte have different `share`s of WRITE bits.
struct Unpack1 {
    // y[i] = bit share * WRITE + i % 8 of x[i / 8], counted from the highest, as 1 or 0.
    template <int N>
    __device__ Vec<T, WRITE> operator()(const Vec<u8, N>& x, int share) const {
        Vec<T, WRITE> y;
#pragma unroll
        for (int i = 0; i < WRITE; ++i) {
            const u32 bits = static_cast<u32>(x.at[i / 8]) << (share * WRITE + i % 8);
            y.at[i] = from_acc<T>(bits & 0x80u ? 1.0f : 0.0f);
        }
        return y;
    }
};

// ---- MSFP15: eight elements to eight bytes ------------------------------------------------------

// codes[8 b .. 8 b + 7] = the eight bytes of box b, of x[8 b .. 8 b + 7]; zeros for a box that is
// not finite, and saw_nonfinite is set. KEEP_SIGN: elements other than 0 get M >= 1.
template <bool KEEP_SIGN>
struct Msfp15Encode {
    bool& saw_nonfinite;
    // Returns the codes of the READ_BOXES / 8 boxes of x.
    __device__ Vec<u8, READ_BOXES> operator()(const Vec<T, READ_BOXES>& x, int) const {
        Vec<u8, READ_BOXES> codes;
#pragma unroll
        for (int box = 0; box < READ_BOXES / BOX; ++box) {
            u32 exponent;
            reinterpret_cast<uint2*>(codes.at)[box] =
                msfp15::encode_elements<KEEP_SIGN>(x.at + BOX * box, exponent);
            saw_nonfinite |= exponent == msfp15::NOT_FINITE;
        }
        return codes;
    }
};

// Writes to y, of n_y bytes, the codes of those of the thread's boxes of x, of n_x elements, that
// are not finite: of the vectors that map_vecs gave it. x is read again, so that the other boxes
// are encoded without more registers. KEEP_SIGN: elements other than 0 get M >= 1.
template <bool KEEP_SIGN>
__device__ __forceinline__ void encode_nonfinite_boxes(const T* x, u8* y, i64 n_x, i64 n_y) {
    constexpr int VECTORS = THREADS * (TILE_NBYTES / (READ_BOXES * sizeof(T)));
    const i64 first = static_cast<i64>(blockIdx.x) * VECTORS;
#pragma unroll 1
    for (i64 i = first + threadIdx.x; i < first + VECTORS; i += THREADS) {
#pragma unroll 1
        for (i64 element = i * READ_BOXES; element < (i + 1) * READ_BOXES; element += BOX) {
            const auto loaded = vec::load_elements<T, BOX>(x, element, n_x);
            u32 exponent;
            msfp15::encode_elements<KEEP_SIGN>(loaded.at, exponent);
            if (exponent != msfp15::NOT_FINITE) continue;
            const uint2 codes = msfp15::encode_copy<KEEP_SIGN>(loaded.at);
            vec::store_elements<u8, BOX>(y, element, n_y,
                                         *reinterpret_cast<const Vec<u8, BOX>*>(&codes));
        }
    }
}

// y = the MSFP15 boxes of x, n_y bytes for n_x elements. Without keep_nonfinite a box with an
// infinity or a NaN is zeros. KEEP_SIGN: elements other than 0 keep their sign, with M >= 1.
// aligned: x and y begin at multiples of 16 bytes.
template <bool KEEP_SIGN>
__device__ __forceinline__ void encode_msfp15(bool aligned, const T* x, u8* y, i64 n_x, i64 n_y,
                                              bool keep_nonfinite) {
    bool saw_nonfinite = false;
    map_vecs<EncodeBoxes<READ_BOXES>>(aligned, x, y, n_x, n_y,
                                      Msfp15Encode<KEEP_SIGN>{saw_nonfinite});
    if (saw_nonfinite && keep_nonfinite) encode_nonfinite_boxes<KEEP_SIGN>(x, y, n_x, n_y);
}

// y = elements share * 8 / SHARES to (share + 1) * 8 / SHARES - 1 of each box of eight bytes.
// keep_nonfinite: an exponent of 255 marks a box with infinities or NaNs; else it is one as others.
struct Msfp15Decode {
    bool keep_nonfinite;
    // Returns the elements of share `share` of each box in `codes`.
    template <int N>
    __device__ Vec<T, WRITE> operator()(const Vec<u8, N>& codes, int share) const {
        Vec<T, WRITE> y;
#pragma unroll
        for (int box = 0; box < N / BOX; ++box)
            msfp15::decode_share<BOX / SHARES>(reinterpret_cast<const uint2*>(codes.at)[box], share,
                                               keep_nonfinite, y.at + box * BOX);
        return y;
    }
};

// ---- gradient of Relu from the bits that Pack1 makes --------------------------------------------

// dx[i] = dy[i] where bit 7 - (shift + i) of `bits` is set, else 0.
__device__ __forceinline__ Vec<T, WRITE> gated(const Vec<T, WRITE>& dy, u32 bits, int shift) {
    Vec<T, WRITE> dx;
#pragma unroll
    for (int i = 0; i < WRITE; ++i)
        dx.at[i] = bits << (shift + i) & 0x80u ? dy.at[i] : from_acc<T>(0.0f);
    return dx;
}

// dx[i] = dy[i] where bit 7 - i % 8 of bits[i / 8] is set, else 0, i < n. A thread has UNROLL
// vectors of WRITE elements, THREADS vectors apart; whole tiles of aligned arrays are loaded before
// any is stored.
__device__ __forceinline__ void gate_elements(const T* dy, const u8* __restrict__ bits, T* dx,
                                              i64 n, bool aligned) {
    constexpr int UNROLL = TILE_NBYTES / 16;
    const i64 first = static_cast<i64>(blockIdx.x) * (UNROLL * THREADS) + threadIdx.x;
    if (aligned && static_cast<i64>(blockIdx.x + 1) * (UNROLL * THREADS * WRITE) <= n) {
        Vec<T, WRITE> loaded[UNROLL];
        u32 bytes[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const i64 i = first + u * THREADS;
            loaded[u] = vec::load_streaming(reinterpret_cast<const Vec<T, WRITE>*>(dy) + i);
            bytes[u] = bits[i * WRITE / 8];
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const i64 i = first + u * THREADS;
            vec::store_streaming(reinterpret_cast<Vec<T, WRITE>*>(dx) + i,
                                 gated(loaded[u], bytes[u], static_cast<int>(i * WRITE % 8)));
        }
        return;
    }
#pragma unroll 1
    for (int u = 0; u < UNROLL; ++u) {
        const i64 element = (first + u * THREADS) * WRITE;
        if (element >= n) return;
        const Vec<T, WRITE> loaded = vec::load_elements<T, WRITE>(dy, element, n);
        vec::store_elements<T, WRITE>(
            dx, element, n, gated(loaded, bits[element / 8], static_cast<int>(element % 8)));
    }
}

// ---- Relu, and bits of what it passes on --------------------------------------------------------

// x[i] = max(x[i], 0), a NaN stays. Returns a byte: bit 7 - j is set where element j is positive or
// NaN. SHARES neighbouring threads have the eight elements of a byte; each returns the byte.
__device__ __forceinline__ u32 rectify(Vec<T, WRITE>& x) {
    u32 bits = 0;
#pragma unroll
    for (int i = 0; i < WRITE; ++i) {
        const bool passes = is_positive(x.at[i]) || nan::is_nan(x.at[i]);
        bits |= static_cast<u32>(passes) << (WRITE - 1 - i);
        if (!passes) x.at[i] = from_acc<T>(0.0f);
    }
    bits <<= (SHARES - 1 - threadIdx.x % SHARES) * WRITE;
#pragma unroll
    for (u32 step = 1; step < SHARES; step *= 2) bits |= __shfl_xor_sync(ALL_LANES, bits, step);
    return bits;
}

// y[i] = max(x[i], 0), a NaN stays; bit 7 - i % 8 of bits[i / 8] is set where x[i] is positive or
// NaN; i < n. y or bits may be null. A thread has UNROLL vectors of WRITE elements, THREADS vectors
// apart.
__device__ __forceinline__ void rectify_elements(const T* x, T* y, u8* bits, i64 n, bool aligned) {
    constexpr int UNROLL = TILE_NBYTES / 16;
    const i64 first = static_cast<i64>(blockIdx.x) * (UNROLL * THREADS) + threadIdx.x;
    const bool has_byte = bits && threadIdx.x % SHARES == 0;
    if (aligned && static_cast<i64>(blockIdx.x + 1) * (UNROLL * THREADS * WRITE) <= n) {
        Vec<T, WRITE> loaded[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            loaded[u] = vec::load_streaming(reinterpret_cast<const Vec<T, WRITE>*>(x) + first +
                                            u * THREADS);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const i64 i = first + u * THREADS;
            const u32 relu_bits = rectify(loaded[u]);
            if (y) reinterpret_cast<Vec<T, WRITE>*>(y)[i] = loaded[u];
            if (has_byte) bits[i / SHARES] = static_cast<u8>(relu_bits);
        }
        return;
    }
#pragma unroll 1
    for (int u = 0; u < UNROLL; ++u) {  // no early return: rectify shuffles among all lanes
        const i64 element = (first + u * THREADS) * WRITE;
        Vec<T, WRITE> loaded = vec::load_elements<T, WRITE>(x, element, n);
        const u32 relu_bits = rectify(loaded);
        if (y) vec::store_elements<T, WRITE>(y, element, n, loaded);
        if (has_byte && element < n) bits[element / BOX] = static_cast<u8>(relu_bits);
    }
}

}  // namespace cto

using namespace cto;

// ---- entry points; aligned: both arrays start at a multiple of 16 bytes -------------------------

// y[i] = x[i] > 0, i < n_x = n_y.
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_binarize_encoder(const T* x, bool* y, i64 n_x, i64 n_y, bool aligned) {
    encode_elements<Binarize>(aligned, x, y, n_x, n_y);
}
// y[i] = x[i] in E5M2, i < n_x = n_y.
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_pack8_encoder(const T* x, u8* y, i64 n_x, i64 n_y, bool aligned) {
    map_vecs<EncodeElements>(aligned, x, y, n_x, n_y, ToE5m2{});
}
// y[i] = x[i] in float16, i < n_x = n_y.
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_pack16_encoder(const T* x, __half* y, i64 n_x, i64 n_y, bool aligned) {
    encode_elements<ToHalf>(aligned, x, y, n_x, n_y);
}
// y[i] = 1 where x[i], else 0, i < n_x = n_y.
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_binarize_decoder(const bool* x, T* y, i64 n_x, i64 n_y, bool aligned) {
    decode_elements<Unbinarize>(aligned, x, y, n_x, n_y);
}
// y[i] = the E5M2 number x[i], i < n_x = n_y.
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_pack8_decoder(const u8* x, T* y, i64 n_x, i64 n_y, bool aligned) {
    decode_elements<FromE5m2>(aligned, x, y, n_x, n_y);
}
// y[i] = the float16 number x[i], i < n_x = n_y.
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_pack16_decoder(const __half* x, T* y, i64 n_x, i64 n_y, bool aligned) {
    decode_elements<FromHalf>(aligned, x, y, n_x, n_y);
}
// Bit 7 - i % 8 of y[i / 8] is set where x[i] > 0, i < n_x; n_y: bytes of y.
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_pack1_encoder(const T* x, u8* y, i64 n_x, i64 n_y, bool aligned) {
    map_vecs<EncodeBoxes<READ_BOXES / BOX>>(aligned, x, y, n_x, n_y, Pack1{});
}
// y[i] = 1 where bit 7 - i % 8 of x[i / 8] is set, else 0, i < n_y; n_x: bytes of x.
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_pack1_decoder(const u8* x, T* y, i64 n_x, i64 n_y, bool aligned) {
    map_vecs<DecodeBoxes<1>>(aligned, x, y, n_x, n_y, Unpack1{});
}
// y[8 b .. 8 b + 7] = the MSFP15 box of x[8 b .. 8 b + 7], zeros being added past x[n_x - 1]; n_y:
// bytes of y; format/msfp15.cuh has the bytes. Without keep_nonfinite a box with an infinity or a
// NaN is zeros.
extern "C" __global__ void __launch_bounds__(THREADS, ONE_RESIDENT)
    gist_pack_msfp15_encoder(const T* x, u8* y, i64 n_x, i64 n_y, bool aligned,
                             bool keep_nonfinite) {
    encode_msfp15</*KEEP_SIGN=*/false>(aligned, x, y, n_x, n_y, keep_nonfinite);
}
// y[8 b .. 8 b + 7] = the MSFP15 box of x[8 b .. 8 b + 7], zeros being added past x[n_x - 1], in
// which what is not 0 has M >= 1 and so keeps its sign; n_y: bytes of y. Without keep_nonfinite a
// box with an infinity or a NaN is zeros.
extern "C" __global__ void __launch_bounds__(THREADS, ONE_RESIDENT)
    gist_pack_msfp15_encoder__keep_sign(const T* x, u8* y, i64 n_x, i64 n_y, bool aligned,
                                        bool keep_nonfinite) {
    encode_msfp15</*KEEP_SIGN=*/true>(aligned, x, y, n_x, n_y, keep_nonfinite);
}
// y[8 b .. 8 b + 7] = the numbers of the MSFP15 box x[8 b .. 8 b + 7]; n_x: bytes of x, n_y:
// elements of y. keep_nonfinite: an exponent of 255 marks a box with infinities or NaNs; else it is
// one as others.
extern "C" __global__ void __launch_bounds__(THREADS)
    gist_pack_msfp15_decoder(const u8* x, T* y, i64 n_x, i64 n_y, bool aligned,
                             bool keep_nonfinite) {
    map_vecs<DecodeBoxes<BOX>>(aligned, x, y, n_x, n_y, Msfp15Decode{keep_nonfinite});
}
// dx[i] = dy[i] where bit 7 - i % 8 of bits[i / 8] is set, else 0, i < n.
extern "C" __global__ void __launch_bounds__(THREADS)
    relu_grad_from_bits(const T* dy, const u8* bits, T* dx, i64 n, bool aligned) {
    gate_elements(dy, bits, dx, n, aligned);
}
// y[i] = max(x[i], 0), and bit 7 - i % 8 of bits[i / 8] set where x[i] is positive or NaN, i < n;
// y or bits may be null.
extern "C" __global__ void __launch_bounds__(THREADS)
    relu_with_bits(const T* x, T* y, u8* bits, i64 n, bool aligned) {
    rectify_elements(x, y, bits, n, aligned);
}
