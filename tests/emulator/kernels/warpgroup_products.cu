// SPDX-License-Identifier: MIT
// Products of warpgroups of operands that lie as descriptors say, or that are copied stage by stage
// with a fault of each kind: instructions of cuda_src/conv/warpgroup.cuh on GPUs, so that there is
// something of them here for a CPU alone.
#ifdef __CUDA_CPU__

constexpr int WARPGROUP = 128, COLUMNS = 16, EIGHTS = COLUMNS / 8;

// to[row][column] = d, as a thread has it.
__device__ void store(const float (&d)[EIGHTS][4], float* to) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  for (int j = 0; j < EIGHTS; ++j)
    for (int i = 0; i < 4; ++i)
      to[(row + i / 2 * 8) * COLUMNS + j * 8 + lane % 4 * 2 + i % 2] = d[j][i];
}

// Copies what operands are read from, and returns where it begins, as descriptors have it.
__device__ unsigned long long place(const unsigned* memory, int n_words) {
  extern __shared__ __align__(1024) unsigned shared[];
  for (int i = threadIdx.x; i < n_words; i += WARPGROUP) shared[i] = memory[i];
  emulated_proxy_fence();
  __syncthreads();
  return __cvta_generic_to_shared(shared) / 16;
}

// to = `times` A B, operands in `memory`; descriptors without the address where that begins. layout:
// bit 0 if A is transposed, bit 1 if B is; 4: floats.
extern "C" __global__ void one_product(const unsigned* memory, int n_words, float* to,
                                       unsigned long long a, unsigned long long b, int layout,
                                       int times) {
  const unsigned long long from = place(memory, n_words);
  float d[EIGHTS][4] = {};
  emulated_wgmma_fence();
  for (int i = 0; i < times; ++i) {
    if (layout == 0) emulated_wgmma<__half, false, false>(d, a + from, b + from);
    if (layout == 1) emulated_wgmma<__half, true, false>(d, a + from, b + from);
    if (layout == 2) emulated_wgmma<__half, false, true>(d, a + from, b + from);
    if (layout == 3) emulated_wgmma<__half, true, true>(d, a + from, b + from);
    if (layout == 4) emulated_wgmma<float, false, false>(d, a + from, b + from);
  }
  emulated_wgmma_commit();
  emulated_wgmma_wait(0);
  store(d, to);
}

enum Fault {
  NONE,
  NO_FENCE,
  NO_COMMIT,
  NO_WAIT,
  WAITS_FOR_ONE_LESS,
  NO_PROXY_FENCE,
  PROXY_FENCE_TOO_EARLY,
  NO_BARRIER,
  COPIES_OVER_IT,
  STAGE_NOT_COPIED,
  OTHER_STAGE,
  NEVER_WAITS,
  LANES_DIFFER,
  WARPS_DIFFER,
  HALF_A_WARP,
  WRITES_SUMS,
};

constexpr int STAGES = 2, K = 16, LINE = 32, STAGE_NBYTES = (64 + COLUMNS) * LINE;

// to = A B over `count` stages of 16 k: of a stage, lines of 32 bytes, 64 rows of A and then columns
// of B, whose halves change places in lines 4 to 7 of each eight (swizzle mode 3).
extern "C" __global__ void by_stages(const unsigned* from, int count, float* to, int fault) {
  extern __shared__ __align__(1024) unsigned char stages[];
  const auto copy = [&](int stage, int place) {
    for (int i = threadIdx.x; stage < count && i < STAGE_NBYTES / 16; i += WARPGROUP)
      emulated_memcpy_async<16>(
          stages + place * STAGE_NBYTES + i / 2 * LINE + (i % 2 ^ i / 8 % 2) * 16,
          from + (stage * STAGE_NBYTES / 16 + i) * 4, true);
    emulated_commit_copies();
  };
  float d[EIGHTS][4] = {};
  copy(0, 0);
  for (int stage = 0; stage < count; ++stage) {
    const bool planted = stage == count - 2;
    const int place = stage % STAGES, is = planted ? fault : NONE;
    if (is == PROXY_FENCE_TOO_EARLY) emulated_proxy_fence();
    emulated_wait_for_copies(is == STAGE_NOT_COPIED);
    if (is != NO_PROXY_FENCE && is != PROXY_FENCE_TOO_EARLY) emulated_proxy_fence();
    if (is != NO_BARRIER) __syncthreads();
    if (is != NO_FENCE) emulated_wgmma_fence();
    const int of = is == OTHER_STAGE ? 1 - place : place;
    const auto at = __cvta_generic_to_shared(stages + of * STAGE_NBYTES) / 16;
    const auto how = 3ull << 62 | 8ull * LINE / 16 << 32;
    unsigned long long b = how | (at + 64 * LINE / 16);
    if (is == LANES_DIFFER && threadIdx.x == 5) b += 16;
    if (is == WARPS_DIFFER && threadIdx.x / 32 == 1) b += 16;
    if (is != HALF_A_WARP || threadIdx.x % 32 < 16)
      emulated_wgmma<__half, false, false>(d, how | at, b);
    if (is != NO_COMMIT) emulated_wgmma_commit();
    copy(stage + 1, is == COPIES_OVER_IT ? place : 1 - place);
    if (is == WRITES_SUMS) d[0][0] = 1;
    if (is == NEVER_WAITS && threadIdx.x == 7) return;
    if (is != NO_WAIT) emulated_wgmma_wait(is == WAITS_FOR_ONE_LESS);
    if (is == NO_WAIT || is == NO_COMMIT || is == WAITS_FOR_ONE_LESS) {
      store(d, to);
      emulated_wgmma_commit();
      emulated_wgmma_wait(0);
      return;
    }
  }
  store(d, to);
}

constexpr int PRODUCTS = 3, IN_ROW = 8;  // products of a group, floats of a row of A

// to = the sum of A B over `n_groups` groups of products, each of the next A, 64 rows of 8 floats,
// and the same B in `memory`. The fault is one of the last group.
extern "C" __global__ void of_registers(const unsigned* memory, int n_words, const unsigned* a,
                                        float* to, unsigned long long b, int n_groups, int fault) {
  b += place(memory, n_words);
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  float d[EIGHTS][4] = {};
  for (int group = 0; group < n_groups; ++group) {
    const int is = group == n_groups - 1 ? fault : NONE;
    unsigned words[PRODUCTS][4];
    for (int i = 0; i < PRODUCTS; ++i, a += 64 * IN_ROW)
      for (int j = 0; j < 4; ++j) words[i][j] = a[(row + j % 2 * 8) * IN_ROW + lane % 4 + j / 2 * 4];
    if (is != NO_FENCE) emulated_wgmma_fence();
    for (int i = 0; i < PRODUCTS; ++i)
      if (is == LANES_DIFFER && threadIdx.x == 5)
        emulated_wgmma<float, false, false>(d, 0, b);
      else
        emulated_wgmma<float>(d, words[i], b);
    emulated_wgmma_commit();
    if (is != NO_WAIT) emulated_wgmma_wait(0);
  }
  store(d, to);
  emulated_wgmma_wait(0);
}
#endif
