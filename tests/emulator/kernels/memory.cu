// SPDX-License-Identifier: MIT
// Memory accesses, right and wrong.

struct PointerTable {
  int count;
  const float* sources[3];
  float* target;
};

// y[to] = x[from], whatever the indices.
extern "C" __global__ void copy_one(const float* x, float* y, long long from, long long to) {
  y[to] = x[from];  // line: copy
}

extern "C" __global__ void copy_one_byte(const unsigned char* x, unsigned char* y, long long from,
                                         long long to) {
  y[to] = x[from];
}

extern "C" __global__ void copy_wide(const long long* x, long long* y, int index) {
  y[index] = x[index];
}

extern "C" __global__ void copy_vectors(const float* x, float* y, int n) {
  const int i = (int)threadIdx.x;
  if (i < n / 4) reinterpret_cast<float4*>(y)[i] = reinterpret_cast<const float4*>(x)[i];
}

extern "C" __global__ void alignment_of(const void* p, unsigned long long* remainder) {
  *remainder = (unsigned long long)p % 16;
}

extern "C" __global__ void add_in_place(const float* x, float* y, int n) {
  const int i = (int)threadIdx.x;
  if (i < n) y[i] = x[i] + 1.0f;
}

extern "C" __global__ void clear_bytes(unsigned char* y, int n) {
  memset(y, 0, n);
}

extern "C" __global__ void write_dynamic(int* out, int index) {
  extern __shared__ int smem[];
  smem[index] = 5;  // line: dynamic
  out[0] = smem[index];
}

extern "C" __global__ void write_static(int* out, int index) {
  __shared__ int staged[8];
  staged[index] = 5;  // line: static
  out[0] = staged[index];
}

// What shared memory holds before anything is written; the second block must not see the first.
extern "C" __global__ void read_unwritten(float* from_static, float* from_dynamic) {
  __shared__ float staged[64];
  extern __shared__ __align__(16) unsigned char raw[];
  float* dynamic = reinterpret_cast<float*>(raw);
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  from_static[i] = staged[threadIdx.x];
  from_dynamic[i] = dynamic[threadIdx.x];
  staged[threadIdx.x] = dynamic[threadIdx.x] = 1.0f;
}

// A variable that nobody writes must not be taken for a constant zero.
extern "C" __global__ void read_never_written(float* out) {
  __shared__ float scalar;
  __shared__ float array[2];
  out[0] = scalar;
  out[1] = array[threadIdx.x];
}

extern "C" __global__ void large_static(int* out) {
  __shared__ int staged[12 * 1024 - 256];
  staged[threadIdx.x] = 3;
  out[threadIdx.x] = staged[threadIdx.x];
}

extern "C" __global__ void sum_of_table(PointerTable table, int n) {
  const int i = (int)threadIdx.x;
  if (i >= n) return;
  float sum = 0.0f;
  for (int k = 0; k < table.count; ++k) sum += table.sources[k][i];
  table.target[i] = sum;
}

extern "C" __global__ void sum_through_addresses(const float* const* sources, float* target,
                                                 int count, int n) {
  const int i = (int)threadIdx.x;
  if (i >= n) return;
  float sum = 0.0f;
  for (int k = 0; k < count; ++k) sum += sources[k][i];
  target[i] = sum;
}
