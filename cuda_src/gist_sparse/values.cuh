// SPDX-License-Identifier: MIT
// Codecs of the values of a sparse code: GROUP values to and from 16 bytes.
#pragma once
#include "core/vec.cuh"
#include "format/fp10.cuh"
#include "format/msfp15.cuh"
#include "format/nan.cuh"
#include "gist_sparse/facts.cuh"

namespace cto::gist_sparse::values {

// An element of 16 bytes with an alignment of 8.
struct Pair {
    u64 low, high;
};

// N values, aligned so that compilers move them by 16 or 8 bytes.
template <class E, int N>
struct alignas(sizeof(E) * N % 16 == 0 ? 16 : 8) Group {
    E at[N];
};

// Members of each codec. encode: the 16 bytes of values[0 .. GROUP); decode: values[0 .. GROUP)
// from them. HAS_NAN: tiles whose values lie outside the code decode to NaN, else to 0. AS_LONG: a
// value takes as many bytes as an element.

// Values as the elements are.
template <class E>
struct AsTheyAre {
    static constexpr int GROUP = vec::WIDTH<E>;
    static constexpr bool HAS_NAN = false, AS_LONG = true;
    static __device__ uint4 encode(const E* values) {
        return *reinterpret_cast<const uint4*>(values);
    }
    static __device__ void decode(const uint4& code, E* values) {
        *reinterpret_cast<uint4*>(values) = code;
    }
};

// 12 values in 4 words of 3 FP10 codes.
template <class E>
struct Fp10 {
    static constexpr int GROUP = facts::gist_sparse::FP10_GROUP;
    static constexpr bool HAS_NAN = true, AS_LONG = false;
    // Twelve values to 16 bytes.
    static __device__ uint4 encode(const E* values) {
        const auto group = *reinterpret_cast<const Group<E, GROUP>*>(values);
        u32 words[4];
        format::fp10::encode<4>(group.at, words);
        return make_uint4(words[0], words[1], words[2], words[3]);
    }
    // 16 bytes to twelve values.
    static __device__ void decode(const uint4& code, E* values) {
        const u32 words[4] = {code.x, code.y, code.z, code.w};
        Group<E, GROUP> group;
#pragma unroll
        for (int i = 0; i < GROUP / facts::FP10_IN_WORD; ++i)
            format::fp10::decode_word(words[i], group.at + i * facts::FP10_IN_WORD);
        *reinterpret_cast<Group<E, GROUP>*>(values) = group;
    }
};

// 16 values in two MSFP15 boxes of 8 bytes. KEEP_SIGN: elements other than 0 get M >= 1.
template <class E, bool KEEP_SIGN = false>
struct Msfp15 {
    static constexpr int GROUP = facts::gist_sparse::MSFP15_GROUP;
    static constexpr bool HAS_NAN = true, AS_LONG = false;
    static __device__ uint4 encode(const E* values) {
        const uint2 low = encode_box(values), high = encode_box(values + 8);
        return make_uint4(low.x, low.y, high.x, high.y);
    }
    // values[0..15] = those of two MSFP15 boxes; boxes with NaN or infinities are decoded again,
    // exactly.
    static __device__ void decode(const uint4& code, E* values) {
        const uint2 low = make_uint2(code.x, code.y), high = make_uint2(code.z, code.w);
        Group<E, GROUP> group;
        format::msfp15::decode_share</*N=*/8>(low, /*share=*/0, /*keep_nonfinite=*/false, group.at);
        format::msfp15::decode_share</*N=*/8>(high, /*share=*/0, /*keep_nonfinite=*/false,
                                              group.at + 8);
        *reinterpret_cast<Group<E, GROUP>*>(values) = group;
        decode_nonfinite(low, values);
        decode_nonfinite(high, values + 8);
    }

  private:
    // values[0..7] = the box, if it is not finite.
    static __device__ void decode_nonfinite(uint2 codes, E* values) {
        if (format::msfp15::shared_exponent_of(codes) == format::msfp15::NOT_FINITE)
            format::msfp15::decode_nonfinite(codes, /*first=*/0, /*n=*/8, values);
    }
    // The box of values[0..7].
    static __device__ uint2 encode_box(const E* values) {
        constexpr int AT_ONCE = sizeof(E) == 8 ? 2 : 8;  // doubles would take 16 registers
        float box[8];
#pragma unroll
        for (int first = 0; first < 8; first += AT_ONCE) {
            const auto some = *reinterpret_cast<const Group<E, AT_ONCE>*>(values + first);
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                box[first + i] = format::msfp15::truncated<KEEP_SIGN>(some.at[i]);
        }
        const u32 exponent = format::msfp15::exponent_of(box);
        return exponent == format::msfp15::NOT_FINITE
                   ? format::msfp15::encode_nonfinite<KEEP_SIGN>(values)
                   : format::msfp15::encode_box<KEEP_SIGN>(box, exponent);
    }
};

template <class E>
struct Msfp15KeepSign : Msfp15<E, /*KEEP_SIGN=*/true> {};

// 16 bytes of NaNs.
template <class E>
__device__ __forceinline__ vec::Vec<E, vec::WIDTH<E>> vector_of_nan() {
    vec::Vec<E, vec::WIDTH<E>> all;
#pragma unroll
    for (int i = 0; i < vec::WIDTH<E>; ++i) all.at[i] = format::nan::of_sign<E>(0);
    return all;
}

}  // namespace cto::gist_sparse::values
