// SPDX-License-Identifier: MIT
// A number, or a few, that a kernel finds in its arguments or in memory, of whatever type: neither
// place nor type costs a compilation.
#pragma once
#include "core/types.cuh"

namespace cto::either {

// runtime/arguments.py's `either` fills it. `type` is the ONNX number of the array's element type.
template <int N>
struct Either {
    void* array;  // null where the numbers are here
    i64 whole[N];
    double real[N];
    i32 type;

    __device__ double as_double(int i = 0) const {
        if (!array) return real[i];
        switch (type) {
            case 1:
                return at<float>(i);
            case 10:
                return __half2float(at<__half>(i));
            case 16:
                return __bfloat162float(at<__nv_bfloat16>(i));
            case 11:
                return at<double>(i);
            case 13:
                return static_cast<double>(at<u64>(i));
            default:
                return static_cast<double>(as_i64(i));
        }
    }
    __device__ float as_float(int i = 0) const { return static_cast<float>(as_double(i)); }

    // Unsigned 64-bit numbers by their bits.
    __device__ i64 as_i64(int i = 0) const {
        if (!array) return whole[i];
        switch (type) {
            case 6:
                return at<i32>(i);
            case 9:
                return at<bool>(i);
            case 12:
                return at<u32>(i);
            default:
                return at<i64>(i);
        }
    }

    // Into the array, where there is one; `value` is of a 64-bit type.
    __device__ void store(int i, i64 value) const {
        if (array) static_cast<i64*>(array)[i] = value;
    }

  private:
    template <class E>
    __device__ E at(int i) const {
        return static_cast<const E*>(array)[i];
    }
};

}  // namespace cto::either
