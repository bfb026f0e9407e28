// SPDX-License-Identifier: MIT
// Blocks on a multiprocessor, for __launch_bounds__: as many as shared memory and registers allow
// without spills. T: the elements, Values: their codec.
#pragma once
#include "gist_sparse/values.cuh"

namespace cto::gist_sparse::resident {

using namespace facts::gist_sparse;
using namespace values;

#if !defined(__CUDA_CPU__) && \
    (__CUDA_ARCH__ == 800 || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200))
template <class T, class Values>
constexpr int ENCODING = sizeof(T) == 2 ? (__CUDA_ARCH__ / 100 == 9 ? 5 : 4)
                         : sizeof(T) == 1 && __CUDA_ARCH__ >= 1000 ? 2
                         : (sizeof(T) == 16 && __CUDA_ARCH__ == 800) ||
                                 (ARE_SAME<Values, Fp10<double>> && __CUDA_ARCH__ >= 1000) ||
                                 (ARE_SAME<Values, Msfp15KeepSign<double>> && __CUDA_ARCH__ == 800)
                             ? 3
                             : 4;
#else
template <class T, class Values>
constexpr int ENCODING = sizeof(T) == 2 ? 2 * THREADS / NARROW_THREADS : 2;
#endif
#if !defined(__CUDA_CPU__) && __CUDA_ARCH__ == 1000 && __CUDACC_VER_MAJOR__ >= 13
template <class T, class Values>
constexpr int DECODING = sizeof(T) == 1 ? 5 : 6;  // of 32 registers CUDA 13 spills some there
#elif !defined(__CUDA_CPU__) && __CUDA_ARCH__ < 800
template <class T, class Values>
constexpr int DECODING = sizeof(T) == 1                  ? 5
                         : ARE_SAME<Values, Fp10<float>> ? 6
                                                         : 8;
#else
template <class T, class Values>
constexpr int DECODING = sizeof(T) == 1 ? 5 : 8;
#endif

}  // namespace cto::gist_sparse::resident
