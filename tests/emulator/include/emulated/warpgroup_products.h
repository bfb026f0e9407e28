// SPDX-License-Identifier: MIT
// What `wgmma` and its fences are in a kernel: D (64 x N) += A B, of operands in shared memory that
// matrix descriptors tell of, or of an A in registers. See runtime/warpgroup_products.cpp.
#pragma once

#include "matrix_products.h"

namespace emulator {

inline void multiply_group(const GroupProduct& product, Site site) {
  exchange(WarpOperation::kMultiplyGroup, 0xFFFFFFFFu, reinterpret_cast<uintptr_t>(&product), site);
}

}  // namespace emulator

template <typename E, bool A_TRANSPOSED, bool B_TRANSPOSED, size_t EIGHTS>
void emulated_wgmma(float (&d)[EIGHTS][4], uint64_t a, uint64_t b,
                    emulator::Site site = emulator::here()) {
  static_assert(emulator::is_one_of<E, __half, __nv_bfloat16, float> && EIGHTS <= 32);
  static_assert(sizeof(E) == 2 || !(A_TRANSPOSED || B_TRANSPOSED), "no transposed floats");
  emulator::multiply_group(
      {emulator::element_of<E>(), 8 * EIGHTS, A_TRANSPOSED, B_TRANSPOSED, a, b, nullptr, d[0]},
      site);
}
// Not checked: GPUs need a fence behind what wrote `a`, which nothing may write until the wait.
template <typename E, size_t EIGHTS>
void emulated_wgmma(float (&d)[EIGHTS][4], const unsigned (&a)[4], uint64_t b,
                    emulator::Site site = emulator::here()) {
  static_assert(emulator::is_one_of<E, float> && EIGHTS <= 32);
  emulator::multiply_group({emulator::element_of<E>(), 8 * EIGHTS, false, false, 0, b, a, d[0]},
                           site);
}
inline void emulated_wgmma_fence() { emulator::fence_products(); }
inline void emulated_wgmma_commit() { emulator::end_group_of_products(); }
inline void emulated_wgmma_wait(size_t n_groups, emulator::Site site = emulator::here()) {
  emulator::wait_for_products(n_groups, site);
}
inline void emulated_proxy_fence() { emulator::order_proxy(); }
