// SPDX-License-Identifier: MIT
// N numbers that are either launch arguments (number i is whole[i], as a double real[i]; `array` is
// null) or elements of `array` in GPU memory, whose ONNX element type is `type`, known at run time:
// one compiled kernel serves both.
#pragma once
#include "core/types.cuh"

namespace cto::either {

using facts::Either;  // device/arguments.py's `either` fills it

// Element i of number.array, whose elements are of type E.
template <class E, int N>
__device__ E in_array(const Either<N>& number, int i) {
    return static_cast<const E*>(number.array)[i];
}

// The i-th of the N numbers as an integer; a uint64 keeps its bits.
template <int N>
__device__ i64 as_i64(const Either<N>& number, int i = 0) {
    if (!number.array) return number.whole[i];
    switch (number.type) {
        case facts::ONNX_INT32:
            return in_array<i32>(number, i);
        case facts::ONNX_BOOL:
            return in_array<bool>(number, i);
        case facts::ONNX_UINT32:
            return in_array<u32>(number, i);
        default:
            return in_array<i64>(number, i);
    }
}

// The i-th of the N numbers as a double.
template <int N>
__device__ double as_double(const Either<N>& number, int i = 0) {
    if (!number.array) return number.real[i];
    switch (number.type) {
        case facts::ONNX_FLOAT32:
            return in_array<float>(number, i);
        case facts::ONNX_FLOAT16:
            return __half2float(in_array<__half>(number, i));
        case facts::ONNX_BFLOAT16:
            return __bfloat162float(in_array<__nv_bfloat16>(number, i));
        case facts::ONNX_FLOAT64:
            return in_array<double>(number, i);
        case facts::ONNX_UINT64:
            return static_cast<double>(in_array<u64>(number, i));
        default:
            return static_cast<double>(as_i64(number, i));
    }
}

// Writes back number i: array[i] = value, whose elements are 64-bit integers. Does nothing where
// the numbers are launch arguments.
template <int N>
__device__ void store(const Either<N>& number, int i, i64 value) {
    if (number.array) static_cast<i64*>(number.array)[i] = value;
}

}  // namespace cto::either
