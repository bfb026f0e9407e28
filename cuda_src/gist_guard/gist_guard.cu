// SPDX-License-Identifier: MIT
// An encoder that says how far its codes are off.  CPU provider: cupy_training_ops/families/gist_guard/reference.py
//
// A thread encodes tiles of eight elements and adds up, in quanta, what is off and how the elements
// deviate; sums over tiles are in double. Groups that are runs, or columns of rows of whole tiles, are
// summed in the same pass; of other columns a second launch reads elements and codes. The last launch
// merges what a group has in several places.
#include "gist_guard/columns.cuh"
#include "gist_guard/encode.cuh"
#include "gist_guard/groups.cuh"
#include "gist_guard/sums.cuh"

#ifndef CTO_T
#define CTO_T float
#endif
#ifndef CTO_THREADS
#define CTO_THREADS 128
#endif
// Bytes of elements a thread has in flight.
#ifndef CTO_NBYTES
#define CTO_NBYTES 64
#endif

namespace cto {

using namespace gist_guard::columns;
using namespace gist_guard::encode;
using namespace gist_guard::groups;

using T = CTO_T;

constexpr int THREADS = CTO_THREADS;
constexpr int RESIDENT = 512 / THREADS;  // blocks of a multiprocessor: 128 registers a thread
constexpr int UNROLL = CTO_NBYTES / (TILE * sizeof(T));

}  // namespace cto

using namespace cto;

// ---- entry points -------------------------------------------------------------------------------
// aligned: both arrays start at a multiple of 16 bytes. y, guard: or null. totals: of each block, of
// this launch from `first` on; n_in_all: of all launches, in the last one, else 0. moments: as doubles.

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gist_guard__tiles(const T* x, u8* y, i64 n, bool aligned, bool keep_nonfinite, double* totals,
                      u32 n_in_all, Zeroed<u32>* ticket, float* guard) {
    __shared__ Shared<THREADS> shared;
    Totals own{};
    encode_tiles<THREADS, UNROLL>(Encoding<T>{x, y, n, aligned, keep_nonfinite}, own);
    finish(own, Finish{totals, 0, n_in_all, ticket, guard}, shared);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gist_guard__runs(const T* x, u8* y, i64 n, bool aligned, bool keep_nonfinite, i64 runs,
                     i64 length, i64 part, u32 parts, u32 lanes, double* moments, double* totals,
                     u32 n_in_all, Zeroed<u32>* ticket, float* guard) {
    __shared__ Shared<THREADS> shared;
    Totals own{};
    const Runs all{runs, length, part, parts, lanes, reinterpret_cast<Moments*>(moments)};
    encode_runs<THREADS, UNROLL>(Encoding<T>{x, y, n, aligned, keep_nonfinite}, all, own);
    finish(own, Finish{totals, 0, n_in_all, ticket, guard}, shared);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gist_guard__columns(const T* x, u8* y, i64 n, bool aligned, bool keep_nonfinite, i64 n_rows,
                        i64 tiles, i64 span, double* moments, double* totals, Zeroed<u32>* ticket) {
    __shared__ Shared<THREADS> shared;
    Totals own{};
    const Matrix matrix{n_rows, tiles, span, reinterpret_cast<Moments*>(moments)};
    const u32 warp = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    encode_columns<UNROLL>(Encoding<T>{x, y, n, aligned, keep_nonfinite}, matrix, warp, own);
    finish(own, Finish{totals, 0, 0, ticket, nullptr}, shared);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gist_guard__any_runs(const T* x, u8* y, i64 n, bool aligned, bool keep_nonfinite, i64 runs,
                         i64 length, i64 part, u32 parts, u32 lanes, double* moments,
                         double* totals, u32 n_in_all, Zeroed<u32>* ticket, float* guard) {
    __shared__ Shared<THREADS> shared;
    Totals own{};
    const Runs all{runs, length, part, parts, lanes, reinterpret_cast<Moments*>(moments)};
    encode_any_runs<THREADS>(Encoding<T>{x, y, n, aligned, keep_nonfinite}, all, own);
    finish(own, Finish{totals, 0, n_in_all, ticket, guard}, shared);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gist_guard__any_columns(const T* x, const u8* y, bool aligned, i64 n_rows, i64 n_columns,
                            i64 span, double* moments) {
    sum_columns(Coded<T>{x, y, aligned}, n_rows, n_columns, span,
                static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x,
                reinterpret_cast<Moments*>(moments));
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gist_guard__merge(const double* moments, i64 outer, i64 groups, i64 parts, i64 n,
                      i64 fewer_outer, i64 fewer_parts, u32 across, double* totals, u32 first,
                      u32 n_in_all, Zeroed<u32>* ticket, float* guard) {
    __shared__ Shared<THREADS> shared;
    __shared__ double of_thread[THREADS][3];
    Totals own{};
    const Parted parted{reinterpret_cast<const Moments*>(moments),
                        outer,
                        groups,
                        parts,
                        n,
                        fewer_outer,
                        fewer_parts};
    merge_groups<THREADS>(parted, across, of_thread, own);
    finish(own, Finish{totals, first, n_in_all, ticket, guard}, shared);
}
