// SPDX-License-Identifier: MIT
// Scaling, division, quantisation, finiteness.  CPU provider: cupy_training_ops/cpu/elementwise.py
#include "include/div_grad.cuh"
#include "include/elementwise.cuh"

namespace cto {

__device__ __forceinline__ float rounded(float x) { return rintf(x); }
__device__ __forceinline__ double rounded(double x) { return rint(x); }

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
    __device__ void operator()(ACC dy, ACC a, ACC b, ACC& da, ACC& db) const {
        const DivGradient g = div_gradient(dy, a, b);
        da = g.da;
        db = g.db;
    }
};

constexpr int READ = sizeof(T) == 8 ? 4 : 8;  // elements that give a packet of bools

}  // namespace cto

using namespace cto;

extern "C" __global__ void __launch_bounds__(THREADS)
    scale(const T* input, T* output, i64 n, bool aligned, ACC factor) {
    map_elements(n, aligned, ScaleUp{factor}, in(input), out(output));
}
extern "C" __global__ void __launch_bounds__(THREADS)
    scale__down(const T* input, T* output, i64 n, bool aligned, ACC factor) {
    map_elements(n, aligned, ScaleDown{factor}, in(input), out(output));
}
extern "C" __global__ void __launch_bounds__(THREADS)
    batch_scale(const T* input, T* output_0, T* output_1, T* output_2, i64 n, bool aligned,
                ACC scale_0, ACC scale_1, ACC scale_2) {
    map_elements(n, aligned, BatchScale{scale_0, scale_1, scale_2}, in(input),
                 out_if_wanted(output_0), out_if_wanted(output_1), out_if_wanted(output_2));
}
extern "C" __global__ void __launch_bounds__(THREADS)
    scaled_sum(const T* input_0, const T* input_1, const T* input_2, T* output, i64 n, bool aligned,
               ACC scale_0, ACC scale_1, ACC scale_2) {
    map_elements(n, aligned, ScaledSum{scale_0, scale_1, scale_2}, in(input_0), in(input_1),
                 in_or_zero(input_2), out(output));
}
extern "C" __global__ void __launch_bounds__(THREADS)
    fake_quant(const T* input, T* output, bool* mask, i64 n, bool aligned, ACC scale,
               ACC zero_point, ACC quant_min, ACC quant_max) {
    map_elements(n, aligned, FakeQuant{scale, zero_point, quant_min, quant_max}, in(input),
                 out_if_wanted(output), out_if_wanted<WIDTH>(mask));
}
extern "C" __global__ void __launch_bounds__(THREADS)
    fake_quant_grad(const T* dy, const bool* gradient_mask, T* dx, i64 n, bool aligned) {
    map_elements(n, aligned, FakeQuantGrad{}, in(dy), in<WIDTH>(gradient_mask), out(dx));
}
extern "C" __global__ void __launch_bounds__(THREADS)
    is_finite(const T* x, bool* y, i64 n, bool aligned) {
    map_elements(n, aligned, IsFinite{}, in<READ>(x), out<READ>(y));
}

// ---- DivGrad: equal shapes; a part that is a row; a part that is one dimension; any shapes ------
// (Told that 4 blocks are enough, the compiler takes the registers it needs and spills none.)

extern "C" __global__ void __launch_bounds__(THREADS)
    div_grad(const T* dy, const T* a, const T* b, T* da, T* db, i64 n, bool aligned) {
    map_elements(n, aligned, DivGrad{}, in(dy), in(a), in(b), out_if_wanted(da), out_if_wanted(db));
}
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    div_grad__columns(const T* __restrict__ dy, const T* __restrict__ whole,
                      const T* __restrict__ part, T* __restrict__ d_whole, ACC* partials, i64 rows,
                      i64 columns, i64 rows_each, bool b_is_part, bool packets) {
    const WholeAndPart arrays{dy, whole, part, d_whole};
    if (packets && b_is_part)
        sum_columns<WIDTH, true>(arrays, partials, rows, columns, rows_each);
    else if (packets)
        sum_columns<WIDTH, false>(arrays, partials, rows, columns, rows_each);
    else if (b_is_part)
        sum_columns<1, true>(arrays, partials, rows, columns, rows_each);
    else
        sum_columns<1, false>(arrays, partials, rows, columns, rows_each);
}
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    div_grad__runs(const T* __restrict__ dy, const T* __restrict__ whole,
                   const T* __restrict__ part, T* __restrict__ d_whole, T* d_part, ACC* partials,
                   Runs runs, bool b_is_part, bool packets) {
    const WholeAndPart arrays{dy, whole, part, d_whole};
    if (packets && b_is_part)
        sum_runs<WIDTH, true>(arrays, partials, d_part, runs);
    else if (packets)
        sum_runs<WIDTH, false>(arrays, partials, d_part, runs);
    else if (b_is_part)
        sum_runs<1, true>(arrays, partials, d_part, runs);
    else
        sum_runs<1, false>(arrays, partials, d_part, runs);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    div_grad__general(const T* dy, const T* a, const T* b, T* out, ACC* partials,
                      Dimensions dimensions, i64 kept, i64 summed, i64 each, i64 chunks, u32 lanes,
                      bool of_a) {
    const Task task(kept, chunks, lanes);
    ACC sum = ACC(0);
    if (task.exists) {
        Offsets start{};
        start.add(dimensions, task.kept, 0, dimensions.n_kept);
        const i64 end = min(summed, (task.chunk + 1) * each);
        for (i64 i = task.chunk * each + task.lane; i < end; i += lanes) {
            Offsets at = start;
            at.add(dimensions, i, dimensions.n_kept, dimensions.n);
            const DivGradient g =
                div_gradient(widened(dy[at.dy]), widened(a[at.a]), widened(b[at.b]));
            sum += of_a ? g.da : g.db;
        }
    }
    task.emit(group_sum(sum, lanes), partials, out);
}
extern "C" __global__ void __launch_bounds__(1024)
    div_grad__finish(const ACC* partials, T* out, i64 rows, i64 columns) {
    add_rows(partials, out, rows, columns);
}
