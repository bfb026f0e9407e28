// SPDX-License-Identifier: MIT
// Scaling, division, quantisation, finiteness.  CPU provider: cupy_training_ops/families/elementwise/reference.py
//
// Kernels with `aligned` are element-wise (algorithm/elementwise.cuh): a block has one tile of n
// elements; aligned: all arrays begin at multiples of 16 bytes, and are read and written in
// vectors.
#include "algorithm/elementwise.cuh"
#include "core/slots.cuh"
#include "elementwise/div_grad.cuh"
#include "elementwise/facts.cuh"

namespace cto {

using namespace facts::elementwise;
using namespace elementwise;
using div_gradient::DivGradient;

using slots::ACC;
using slots::T;
static_assert(ARE_SAME<ACC, Acc<T>>);

constexpr int WIDTH = vec::WIDTH<T>;
constexpr int READ = sizeof(T) == 8 ? 4 : 8;  // elements that is_finite reads at once
using Tile = Tiling<T, THREADS, NBYTES>;

// x rounded to an integer, to the nearest even one where two are as near.
__device__ __forceinline__ float rounded(float x) { return rintf(x); }
__device__ __forceinline__ double rounded(double x) { return rint(x); }

// ---- maps of one element ------------------------------------------------------------------------

struct ScaleUp {
    ACC factor;
    __device__ void operator()(ACC x, ACC& y) const { y = x * factor; }
};
struct ScaleDown {
    ACC factor;
    __device__ void operator()(ACC x, ACC& y) const { y = x / factor; }
};
struct BatchScale {
    ACC s0, s1, s2;
    // y0, y1, y2 = x times each of three scales.
    __device__ void operator()(ACC x, ACC& y0, ACC& y1, ACC& y2) const {
        y0 = x * s0;
        y1 = x * s1;
        y2 = x * s2;
    }
};
struct ScaledSum {
    ACC s0, s1, s2;
    __device__ void operator()(ACC x0, ACC x1, ACC x2, ACC& y) const {
        y = x0 * s0 + x1 * s1 + x2 * s2;
    }
};
struct FakeQuant {
    ACC scale, zero_point, quant_min, quant_max;
    // q = round(x / scale) + zero_point; y = (clamp(q, quant_min, quant_max) - zero_point) scale;
    // inside = q was not clamped.
    __device__ void operator()(ACC x, ACC& y, bool& inside) const {
        const ACC q = rounded(x / scale) + zero_point;
        inside = q >= quant_min && q <= quant_max;
        const ACC raised = q < quant_min ? quant_min : q;  // NaN is neither below nor above
        y = ((raised > quant_max ? quant_max : raised) - zero_point) * scale;
    }
};
struct FakeQuantGrad {
    __device__ void operator()(ACC dy, bool inside, ACC& dx) const { dx = inside ? dy : ACC(0); }
};
struct IsFinite {
    // inf - inf is NaN
    __device__ void operator()(ACC x, bool& y) const { y = x - x == ACC(0); }
};
struct DivGrad {
    // da = dy / b, db = -(dy / b) (a / b).
    __device__ void operator()(ACC dy, ACC a, ACC b, ACC& da, ACC& db) const {
        const DivGradient<T> g = div_gradient::div_gradient<T>(dy, a, b);
        da = g.da;
        db = g.db;
    }
};

}  // namespace cto

using namespace cto;

// output[i] = input[i] * factor, i < n.
extern "C" __global__ void __launch_bounds__(THREADS)
    scale(const T* input, T* output, i64 n, bool aligned, ACC factor) {
    map_elements<Tile>(n, aligned, ScaleUp{factor}, in(input), out(output));
}
// output[i] = input[i] / factor, i < n.
extern "C" __global__ void __launch_bounds__(THREADS)
    scale__down(const T* input, T* output, i64 n, bool aligned, ACC factor) {
    map_elements<Tile>(n, aligned, ScaleDown{factor}, in(input), out(output));
}
// output[i] = input[i] * *factor, a number in GPU memory, i < n; does nothing if it is 1 and output
// is input. A block has `tiles` tiles, as blocks that do nothing take time, too.
extern "C" __global__ void __launch_bounds__(THREADS)
    scale_in_place(const T* input, T* output, i64 n, bool aligned, u32 tiles, const float* factor) {
    const float by = *factor;
    if (by == 1 && input == output) return;
    map_tiles<Tile>(n, aligned, tiles, ScaleUp{static_cast<ACC>(by)}, in(input), out(output));
}
// output_0[i] = input[i] * scale_0, output_1[i] = input[i] * scale_1, output_2[i] = input[i] *
// scale_2, i < n; an output may be null.
extern "C" __global__ void __launch_bounds__(THREADS)
    batch_scale(const T* input, T* output_0, T* output_1, T* output_2, i64 n, bool aligned,
                ACC scale_0, ACC scale_1, ACC scale_2) {
    map_elements<Tile>(n, aligned, BatchScale{scale_0, scale_1, scale_2}, in(input),
                       out_if_wanted(output_0), out_if_wanted(output_1), out_if_wanted(output_2));
}
// output[i] = input_0[i] * scale_0 + input_1[i] * scale_1 + input_2[i] * scale_2, i < n; input_2
// may be null, which counts as zeros.
extern "C" __global__ void __launch_bounds__(THREADS)
    scaled_sum(const T* input_0, const T* input_1, const T* input_2, T* output, i64 n, bool aligned,
               ACC scale_0, ACC scale_1, ACC scale_2) {
    map_elements<Tile>(n, aligned, ScaledSum{scale_0, scale_1, scale_2}, in(input_0), in(input_1),
                       in_or_zero(input_2), out(output));
}
// q = round(input / scale) + zero_point, to nearest even, for each of n elements; output = (q
// clamped to [quant_min, quant_max] - zero_point) * scale, mask = q is in that range. output or
// mask may be null.
extern "C" __global__ void __launch_bounds__(THREADS)
    fake_quant(const T* input, T* output, bool* mask, i64 n, bool aligned, ACC scale,
               ACC zero_point, ACC quant_min, ACC quant_max) {
    map_elements<Tile>(n, aligned, FakeQuant{scale, zero_point, quant_min, quant_max}, in(input),
                       out_if_wanted(output), out_if_wanted<WIDTH>(mask));
}
// dx[i] = dy[i] where gradient_mask[i], else 0, i < n.
extern "C" __global__ void __launch_bounds__(THREADS)
    fake_quant_grad(const T* dy, const bool* gradient_mask, T* dx, i64 n, bool aligned) {
    map_elements<Tile>(n, aligned, FakeQuantGrad{}, in(dy), in<WIDTH>(gradient_mask), out(dx));
}
// y[i] = x[i] is neither infinite nor NaN, i < n.
extern "C" __global__ void __launch_bounds__(THREADS)
    is_finite(const T* x, bool* y, i64 n, bool aligned) {
    map_elements<Tile>(n, aligned, IsFinite{}, in<READ>(x), out<READ>(y));
}

// ---- DivGrad: equal shapes; one operand repeats a row, or one dimension; any shapes -------------
// (With launch bounds of 4 blocks the compiler uses enough registers not to spill.)

// da = dy / b, db = -(dy / b) * (a / b), element by element, n in all; da or db may be null.
extern "C" __global__ void __launch_bounds__(THREADS)
    div_grad(const T* dy, const T* a, const T* b, T* da, T* db, i64 n, bool aligned) {
    map_elements<Tile>(n, aligned, DivGrad{}, in(dy), in(a), in(b), out_if_wanted(da),
                       out_if_wanted(db));
}
// `whole` has the shape (rows, columns) of dy, `repeated` is one row, broadcast to all rows.
// d_whole = gradient of `whole`; partials[blockIdx.y * blockDim.y + threadIdx.y][column] = sum,
// over this thread's rows, of the gradient of `repeated`; a block has span_rows rows.
// b_is_repeated: b is `repeated` and a is `whole`, else the other way round. vecs: rows are whole
// vectors of 16 bytes, aligned. d_whole or partials may be null.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    div_grad__columns(const T* __restrict__ dy, const T* __restrict__ whole,
                      const T* __restrict__ repeated, T* __restrict__ d_whole, ACC* partials,
                      i64 rows, i64 columns, i64 span_rows, bool b_is_repeated, bool vecs) {
    const div_gradient::Operands<T, /*B_IS_REPEATED=*/true> b_repeated{dy, whole, repeated,
                                                                       d_whole};
    const div_gradient::Operands<T, /*B_IS_REPEATED=*/false> a_repeated{dy, whole, repeated,
                                                                        d_whole};
    if (vecs && b_is_repeated)
        div_gradient::sum_columns<WIDTH>(b_repeated, partials, rows, columns, span_rows);
    else if (vecs)
        div_gradient::sum_columns<WIDTH>(a_repeated, partials, rows, columns, span_rows);
    else if (b_is_repeated)
        div_gradient::sum_columns</*N=*/1>(b_repeated, partials, rows, columns, span_rows);
    else
        div_gradient::sum_columns</*N=*/1>(a_repeated, partials, rows, columns, span_rows);
}
// Blocks that share a multiprocessor: before 8.0, bfloat16 takes more registers.
#if !defined(__CUDA_CPU__) && __CUDA_ARCH__ < 800
#define RUN_BOUNDS THREADS, 4
#else
#define RUN_BOUNDS THREADS, 6
#endif
// dy and `whole` are [outer, middle, inner]; repeated[k], k < middle, is broadcast over outer and
// inner. d_whole = gradient of `whole`; sum[k] = sum over outer and inner of the gradient of
// repeated[k]. `sizes.lanes` threads add up one span of one k: to d_repeated[k] if sizes.n_spans is
// 1 (partials is null), else to partials[span][k]. vecs: `inner` is a multiple of a vector's
// elements, and arrays are aligned. b_is_repeated: b is `repeated`, a is `whole`; else the other
// way round. d_whole or d_repeated may be null.
extern "C" __global__ void __launch_bounds__(RUN_BOUNDS)
    div_grad__runs(const T* __restrict__ dy, const T* __restrict__ whole,
                   const T* __restrict__ repeated, T* __restrict__ d_whole, T* d_repeated,
                   ACC* partials, const __grid_constant__ OuterMiddleInner sizes,
                   bool b_is_repeated, bool vecs) {
    using div_gradient::sum_outer_and_inner;
    const div_gradient::Operands<T, /*B_IS_REPEATED=*/true> b_repeated{dy, whole, repeated,
                                                                       d_whole};
    const div_gradient::Operands<T, /*B_IS_REPEATED=*/false> a_repeated{dy, whole, repeated,
                                                                        d_whole};
    if (vecs && b_is_repeated)
        sum_outer_and_inner<WIDTH, THREADS>(b_repeated, partials, d_repeated, sizes);
    else if (vecs)
        sum_outer_and_inner<WIDTH, THREADS>(a_repeated, partials, d_repeated, sizes);
    else if (b_is_repeated)
        sum_outer_and_inner</*N=*/1, THREADS>(b_repeated, partials, d_repeated, sizes);
    else
        sum_outer_and_inner</*N=*/1, THREADS>(a_repeated, partials, d_repeated, sizes);
}
// out[i] = sum over j < summed of g(i, j), i < n_out; g = dy / b if of_a, else -(dy / b) * (a / b).
// i counts along the dimensions that the operand has, j along those in which it is broadcast;
// dimensions: extents of both, i's first, and strides in dy, a and b. `lanes` threads add up one
// span, `span` of the j: to out[i] if n_spans is 1 (partials is null), else to partials[span][i].
extern "C" __global__ void __launch_bounds__(THREADS)
    div_grad__general(const T* dy, const T* a, const T* b, T* out, ACC* partials,
                      const __grid_constant__ Broadcast dimensions, i64 n_out, i64 summed, i64 span,
                      i64 n_spans, u32 lanes, bool of_a) {
    const div_gradient::Task<THREADS> task(n_out, n_spans, lanes);
    const ACC sum = div_gradient::sum_span(dy, a, b, dimensions, task, summed, span, lanes, of_a);
    task.emit(reduce::sum_lanes(sum, lanes), partials, out);
}
// out[column] = partials[0][column] + ... + partials[rows - 1][column], rounded, column < columns.
extern "C" __global__ void __launch_bounds__(facts::MAX_THREADS)
    div_grad__finish(const ACC* partials, T* out, i64 rows, i64 columns) {
    __shared__ vec::Vec<ACC, 1> per_thread[facts::MAX_THREADS];
    div_gradient::add_rows(partials, out, rows, columns, per_thread);
}
