// SPDX-License-Identifier: MIT
// Activations and their gradients.  CPU provider: cupy_training_ops/families/activation/reference.py
//
// All kernels are element-wise (algorithm/elementwise.cuh) over arrays of n elements: block b
// computes elements [b * Tile::size, (b + 1) * Tile::size). aligned: all arrays begin at multiples
// of 16 bytes, and are read and written in vectors; else element by element. A bias, where there is
// one, is a row of columns.value elements that is added to each row of the other arrays, or null
// for none. dy is the gradient of the output, dx of the input x.
#include "activation/facts.cuh"
#include "activation/gelu.cuh"
#include "activation/halves.cuh"
#include "algorithm/elementwise.cuh"
#include "core/slots.cuh"

namespace cto {

using namespace facts::activation;
using namespace elementwise;
using namespace halves;
using namespace math::gelu;

using slots::ACC;
using slots::T;
static_assert(ARE_SAME<ACC, Acc<T>>);

using Tile = Tiling<T, THREADS, NBYTES>;

// x > 0; a subnormal counts, which -ftz=true would flush before the comparison. Floats above 0, up
// to infinity, have the bits 1 to 0x7F800000; 0 - 1 wraps around, negatives and NaN are larger.
__device__ __forceinline__ bool is_positive(float x) { return bits_of(x) - 1u < 0x7F800000u; }
__device__ __forceinline__ bool is_positive(double x) { return x > 0.0; }

// Each struct below is the map of one element of the kernel of its name, which states the formula:
// inputs by value, then outputs by reference; dy is the gradient of the output, dx of the input.
struct ReluGrad {
    __device__ void operator()(ACC dy, ACC x, ACC& dx) const { dx = is_positive(x) ? dy : ACC(0); }
};
// One element of leaky_relu_grad: dx = dy, or alpha dy where y <= 0.
struct LeakyReluGrad {
    ACC alpha;
    __device__ void operator()(ACC dy, ACC y, ACC& dx) const {
        dx = is_positive(y) ? dy : alpha * dy;
    }
};
struct SigmoidGrad {
    __device__ void operator()(ACC dy, ACC y, ACC& dx) const { dx = dy * y * (ACC(1) - y); }
};
struct TanhGrad {
    __device__ void operator()(ACC dy, ACC y, ACC& dx) const { dx = dy * (ACC(1) - y * y); }
};

struct Gelu {
    __device__ void operator()(ACC x, ACC& y) const { y = gelu_value(x); }
};
struct GeluGrad {
    __device__ void operator()(ACC dy, ACC x, ACC& dx) const { dx = dy * gelu_slope(x); }
};
struct BiasGelu {
    __device__ void operator()(ACC a, ACC b, ACC& c) const { c = gelu_value(a + b); }
};
struct BiasGeluGrad {
    __device__ void operator()(ACC dy, ACC x, ACC b, ACC& dx) const { dx = dy * gelu_slope(x + b); }
};

struct FastGelu {
    __device__ void operator()(ACC x, ACC b, ACC& y) const { y = fast_gelu_value(x + b); }
};
struct FastGeluGrad {
    __device__ void operator()(ACC dy, ACC x, ACC& dx) const { dx = dy * fast_gelu_slope(x); }
};
struct BiasFastGeluGrad {
    __device__ void operator()(ACC dy, ACC x, ACC b, ACC& dx) const {
        dx = dy * fast_gelu_slope(x + b);
    }
};

struct QuickGelu {
    ACC alpha;
    __device__ void operator()(ACC x, ACC& y) const { y = gated(x, alpha * x); }
};
// One element of quick_gelu_grad: dy times the derivative of x / (1 + e^(-alpha x)).
struct QuickGeluGrad {
    ACC alpha;
    __device__ void operator()(ACC dy, ACC x, ACC& dx) const {
        dx = dy * quick_gelu_slope(alpha * x);
    }
};

struct SwiGlu {
    __device__ void operator()(ACC a, ACC b, ACC& y) const { y = gated(a, a) * b; }
};
// One element of swi_glu_grad: the gradients of y = a s b, s = 1 / (1 + e^-a), by a and b.
struct SwiGluGrad {
    __device__ void operator()(ACC dy, ACC a, ACC b, ACC& da, ACC& db) const {
        da = dy * b * quick_gelu_slope(a);
        db = dy * gated(a, a);
    }
};
struct FastGeGlu {
    __device__ void operator()(ACC a, ACC b, ACC& y) const { y = fast_gelu_value(a) * b; }
};
// One element of fast_ge_glu_grad: the gradients of y = fast_gelu_value(a) b by a and b.
struct FastGeGluGrad {
    __device__ void operator()(ACC dy, ACC a, ACC b, ACC& da, ACC& db) const {
        da = dy * b * fast_gelu_slope(a);
        db = dy * fast_gelu_value(a);
    }
};

}  // namespace cto

using namespace cto;

// dx = dy where x > 0, else 0.
extern "C" __global__ void __launch_bounds__(THREADS)
    relu_grad(const T* dy, const T* x, T* dx, i64 n, bool aligned) {
    map_elements<Tile>(n, aligned, ReluGrad{}, in(dy), in(x), out(dx));
}
// dx = dy where y > 0, else alpha * dy.
extern "C" __global__ void __launch_bounds__(THREADS)
    leaky_relu_grad(const T* dy, const T* y, T* dx, i64 n, bool aligned, ACC alpha) {
    map_elements<Tile>(n, aligned, LeakyReluGrad{alpha}, in(dy), in(y), out(dx));
}
// dx = dy * y * (1 - y), y the sigmoid's output.
extern "C" __global__ void __launch_bounds__(THREADS)
    sigmoid_grad(const T* dy, const T* y, T* dx, i64 n, bool aligned) {
    map_elements<Tile>(n, aligned, SigmoidGrad{}, in(dy), in(y), out(dx));
}
// dx = dy * (1 - y^2), y the output of tanh.
extern "C" __global__ void __launch_bounds__(THREADS)
    tanh_grad(const T* dy, const T* y, T* dx, i64 n, bool aligned) {
    map_elements<Tile>(n, aligned, TanhGrad{}, in(dy), in(y), out(dx));
}

// y = x * Phi(x), Phi the normal distribution function.
extern "C" __global__ void __launch_bounds__(THREADS) gelu(const T* x, T* y, i64 n, bool aligned) {
    map_elements<Tile>(n, aligned, Gelu{}, in(x), out(y));
}
// dx = dy * d/dx (x * Phi(x)), Phi the normal distribution function.
extern "C" __global__ void __launch_bounds__(THREADS)
    gelu_grad(const T* dy, const T* x, T* dx, i64 n, bool aligned) {
    map_elements<Tile>(n, aligned, GeluGrad{}, in(dy), in(x), out(dx));
}
// c = s * Phi(s), s = a + b, b the bias, Phi the normal distribution function.
extern "C" __global__ void __launch_bounds__(THREADS)
    bias_gelu(const T* a, const T* b, T* c, i64 n, bool aligned,
              const __grid_constant__ Divisor columns) {
    map_elements<Tile>(n, aligned, BiasGelu{}, in(a), row_or_none(b, columns), out(c));
}
// dx = dy * d/ds (s * Phi(s)), s = x + b, b the bias, Phi the normal distribution function.
extern "C" __global__ void __launch_bounds__(THREADS)
    bias_gelu_grad_dx(const T* dy, const T* x, const T* b, T* dx, i64 n, bool aligned,
                      const __grid_constant__ Divisor columns) {
    map_elements<Tile>(n, aligned, BiasGeluGrad{}, in(dy), in(x), row_or_none(b, columns), out(dx));
}

// y = s / (1 + e^-v), s = x + bias, v = 2 sqrt(2 / pi) (s + 0.044715 s^3).
extern "C" __global__ void __launch_bounds__(THREADS)
    fast_gelu(const T* x, const T* bias, T* y, i64 n, bool aligned,
              const __grid_constant__ Divisor columns) {
    map_elements<Tile>(n, aligned, FastGelu{}, in(x), row_or_none(bias, columns), out(y));
}
// dx = dy * d/dx (x / (1 + e^-v)), v = 2 sqrt(2 / pi) (x + 0.044715 x^3).
extern "C" __global__ void __launch_bounds__(THREADS)
    fast_gelu_grad(const T* dy, const T* x, T* dx, i64 n, bool aligned) {
    map_elements<Tile>(n, aligned, FastGeluGrad{}, in(dy), in(x), out(dx));
}
// dx = dy * d/ds (s / (1 + e^-v)), s = x + b, b the bias, v = 2 sqrt(2 / pi) (s + 0.044715 s^3).
extern "C" __global__ void __launch_bounds__(THREADS)
    bias_fast_gelu_grad_dx(const T* dy, const T* x, const T* b, T* dx, i64 n, bool aligned,
                           const __grid_constant__ Divisor columns) {
    map_elements<Tile>(n, aligned, BiasFastGeluGrad{}, in(dy), in(x), row_or_none(b, columns),
                       out(dx));
}

// y = x / (1 + e^(-alpha x)).
extern "C" __global__ void __launch_bounds__(THREADS)
    quick_gelu(const T* x, T* y, i64 n, bool aligned, ACC alpha) {
    map_elements<Tile>(n, aligned, QuickGelu{alpha}, in(x), out(y));
}
// dx = dy * d/dx (x / (1 + e^(-alpha x))).
extern "C" __global__ void __launch_bounds__(THREADS)
    quick_gelu_grad(const T* dy, const T* x, T* dx, i64 n, bool aligned, ACC alpha) {
    map_elements<Tile>(n, aligned, QuickGeluGrad{alpha}, in(dy), in(x), out(dx));
}

// y = a s b, s = 1 / (1 + e^-a).
extern "C" __global__ void __launch_bounds__(THREADS)
    swi_glu(const T* a, const T* b, T* y, i64 n, bool aligned) {
    map_elements<Tile>(n, aligned, SwiGlu{}, in(a), in(b), out(y));
}
// da = dy b d/da (a s), db = dy a s, s = 1 / (1 + e^-a). A null da or db is not written.
extern "C" __global__ void __launch_bounds__(THREADS, ONE_RESIDENT)
    swi_glu_grad(const T* dy, const T* a, const T* b, T* da, T* db, i64 n, bool aligned) {
    map_elements<Tile>(n, aligned, SwiGluGrad{}, in(dy), in(a), in(b), out_if_wanted(da),
                       out_if_wanted(db));
}
// y = a s b, s = 1 / (1 + e^-a); rows of x are a, then b, of columns.value elements each.
extern "C" __global__ void __launch_bounds__(THREADS)
    swi_glu_halves(const T* x, T* y, i64 n, bool aligned, const __grid_constant__ Divisor columns) {
    map_elements<Tile>(n, aligned, SwiGlu{}, first_half(x, columns), second_half(x, columns),
                       out(y));
}
// Rows of dx are da = dy b d/da (a s), then db = dy a s, as those of x are a and b.
extern "C" __global__ void __launch_bounds__(THREADS, ONE_RESIDENT)
    swi_glu_halves_grad(const T* dy, const T* x, T* dx, i64 n, bool aligned,
                        const __grid_constant__ Divisor columns) {
    map_elements<Tile>(n, aligned, SwiGluGrad{}, in(dy), first_half(x, columns),
                       second_half(x, columns), to_first_half(dx, columns),
                       to_second_half(dx, columns));
}
// y = a s b, s = 1 / (1 + e^-v), v = 2 sqrt(2 / pi) (a + 0.044715 a^3).
extern "C" __global__ void __launch_bounds__(THREADS)
    fast_ge_glu(const T* a, const T* b, T* y, i64 n, bool aligned) {
    map_elements<Tile>(n, aligned, FastGeGlu{}, in(a), in(b), out(y));
}
// da = dy b d/da (a s), db = dy a s, s = 1 / (1 + e^-v), v = 2 sqrt(2 / pi) (a + 0.044715 a^3). A
// null da or db is not written.
extern "C" __global__ void __launch_bounds__(THREADS, ONE_RESIDENT)
    fast_ge_glu_grad(const T* dy, const T* a, const T* b, T* da, T* db, i64 n, bool aligned) {
    map_elements<Tile>(n, aligned, FastGeGluGrad{}, in(dy), in(a), in(b), out_if_wanted(da),
                       out_if_wanted(db));
}
