// SPDX-License-Identifier: MIT
// What `wgmma` and its fences are in a kernel: D (64 x N) += A B, of operands in shared memory that
// matrix descriptors tell of. See runtime/warpgroup_products.cpp.
#pragma once

#include "matrix_products.h"

template <typename E, bool A_TRANSPOSED, bool B_TRANSPOSED, size_t EIGHTS>
void emulated_wgmma(float (&d)[EIGHTS][4], uint64_t a, uint64_t b,
                    emulator::Site site = emulator::here()) {
  static_assert(emulator::is_one_of<E, __half, __nv_bfloat16> && EIGHTS <= 32);
  emulator::GroupProduct product{emulator::element_of<E>(), 8 * EIGHTS, A_TRANSPOSED,
                                 B_TRANSPOSED,              a,          b,
                                 d[0]};
  emulator::exchange(emulator::WarpOperation::kMultiplyGroup, 0xFFFFFFFFu,
                     reinterpret_cast<uintptr_t>(&product), site);
}
inline void emulated_wgmma_fence() { emulator::fence_products(); }
inline void emulated_wgmma_commit() { emulator::end_group_of_products(); }
inline void emulated_wgmma_wait(size_t n_groups, emulator::Site site = emulator::here()) {
  emulator::wait_for_products(n_groups, site);
}
inline void emulated_proxy_fence() { emulator::order_proxy(); }
