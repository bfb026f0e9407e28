// SPDX-License-Identifier: MIT
// One row of results per function.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

extern "C" __global__ void integer_functions(const unsigned* x, const unsigned* y, unsigned* out,
                                             int n) {
  const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const unsigned a = x[i], b = y[i];
  int row = 0;
  out[n * row++ + i] = __popc(a);
  out[n * row++ + i] = __clz((int)a);
  out[n * row++ + i] = __ffs((int)a);
  out[n * row++ + i] = __brev(a);
  out[n * row++ + i] = __umulhi(a, b);
  out[n * row++ + i] = (unsigned)__mulhi((int)a, (int)b);
  out[n * row++ + i] = __funnelshift_l(a, b, b);
  out[n * row++ + i] = __funnelshift_r(a, b, b);
  out[n * row++ + i] = __byte_perm(a, b, 0x7250);
  out[n * row++ + i] = min(a, b);
  out[n * row++ + i] = (unsigned)max((int)a, (int)b);
  out[n * row++ + i] = __float_as_uint(__uint_as_float(a));
  out[n * row++ + i] = (unsigned)__float_as_int(__int_as_float((int)b));
}

extern "C" __global__ void wide_integer_functions(const unsigned long long* x,
                                                  const unsigned long long* y,
                                                  unsigned long long* out, int n) {
  const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const unsigned long long a = x[i], b = y[i];
  int row = 0;
  out[n * row++ + i] = __popcll(a);
  out[n * row++ + i] = __clzll((long long)a);
  out[n * row++ + i] = __ffsll((long long)a);
  out[n * row++ + i] = __brevll(a);
  out[n * row++ + i] = __umul64hi(a, b);
  out[n * row++ + i] = (unsigned long long)__double_as_longlong(__longlong_as_double((long long)a));
  out[n * row++ + i] = (unsigned long long)min((long long)a, (long long)b);
}

extern "C" __global__ void float_functions(const float* x, const float* y, float* out, int n) {
  const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const float a = x[i], b = y[i];
  int row = 0;
  out[n * row++ + i] = rsqrtf(a);
  out[n * row++ + i] = __expf(b);
  out[n * row++ + i] = __logf(a);
  out[n * row++ + i] = __powf(a, b);
  out[n * row++ + i] = __fdividef(b, a);
  out[n * row++ + i] = erff(b);
  out[n * row++ + i] = normcdff(b);
  out[n * row++ + i] = __fmaf_rn(a, b, a);
  out[n * row++ + i] = __saturatef(b);
  out[n * row++ + i] = fmaxf(a, b);
  out[n * row++ + i] = (float)__float2int_rn(b * 1e9f);
  out[n * row++ + i] = tanhf(b);
  out[n * row++ + i] = (float)rsqrt((double)a);
}

extern "C" __global__ void directed_rounding(const float* x, const float* y, float* out, int n) {
  const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const float a = x[i], b = y[i];
  int row = 0;
  out[n * row++ + i] = __fadd_rd(a, b);
  out[n * row++ + i] = __fadd_ru(a, b);
  out[n * row++ + i] = __fadd_rz(a, b);
  out[n * row++ + i] = __fmul_rd(a, b);
  out[n * row++ + i] = __fmul_ru(a, b);
  out[n * row++ + i] = __fmul_rz(a, b);
  out[n * row++ + i] = __fadd_rn(a, b);
}

extern "C" __global__ void half_functions(const __half* x, const __half* y, __half* out, int n) {
  const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const __half a = x[i], b = y[i];
  int row = 0;
  out[n * row++ + i] = a + b;
  out[n * row++ + i] = __hmul(a, b);
  out[n * row++ + i] = __hfma(a, b, a);
  out[n * row++ + i] = __hmax(a, b);
  out[n * row++ + i] = hexp(b);
  out[n * row++ + i] = hsqrt(a);
  out[n * row++ + i] = __low2half(__hadd2(__halves2half2(a, b), __halves2half2(b, a)));
  out[n * row++ + i] = __float2half_rn(__half2float(a) / __half2float(b));
}

extern "C" __global__ void bfloat16_functions(const __nv_bfloat16* x, const __nv_bfloat16* y,
                                              __nv_bfloat16* out, int n) {
  const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const __nv_bfloat16 a = x[i], b = y[i];
  int row = 0;
  out[n * row++ + i] = a + b;
  out[n * row++ + i] = __hmul(a, b);
  out[n * row++ + i] = __hfma(a, b, a);
  out[n * row++ + i] = __hmax(a, b);
  out[n * row++ + i] = hexp(b);
  out[n * row++ + i] = hsqrt(a);
  out[n * row++ + i] = __low2bfloat16(__hadd2(__halves2bfloat162(a, b), __halves2bfloat162(b, a)));
  out[n * row++ + i] = __float2bfloat16_rn(__bfloat162float(a) / __bfloat162float(b));
}

extern "C" __global__ void to_fp8(const float* x, unsigned char* e4m3, unsigned char* e5m2, int n) {
  const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  e4m3[i] = __nv_cvt_float_to_fp8(x[i], __NV_NOSAT, __NV_E4M3);
  e5m2[i] = __nv_cvt_float_to_fp8(x[i], __NV_NOSAT, __NV_E5M2);
}

extern "C" __global__ void half_to_float(const __half* x, float* y, __half* back, int n) {
  const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  y[i] = __half2float(x[i]);
  back[i] = __float2half_rn(y[i]);
}

extern "C" __global__ void vector_types(const float4* x, uint4* bits, ulonglong2* wide) {
  const float4 v = __ldg(x + threadIdx.x);
  const uint4 u = make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z),
                             __float_as_uint(v.w));
  __stcs(bits + threadIdx.x, u);
  const ulonglong2 pair = make_ulonglong2((unsigned long long)u.y << 32 | u.x,
                                          (unsigned long long)u.w << 32 | u.z);
  __stcg(wide + threadIdx.x, pair);
}

// On the CPU the plain branch runs; on the GPU the same function may use PTX.
__device__ int lane_number() {
#ifdef __CUDA_CPU__
  return (int)(threadIdx.x % 32) + 1000;
#else
  int lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
#endif
}

extern "C" __global__ void guarded_ptx(int* out) {
  out[threadIdx.x] = lane_number();
}
