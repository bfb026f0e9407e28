// SPDX-License-Identifier: MIT
// What `mma.sync` is in a kernel: D (16 x 8) += A (16 x K) B (K x 8) of fragments that a warp holds.
#pragma once

#include <type_traits>

namespace emulator {

template <typename E>
constexpr Element element_of() {
  if constexpr (std::is_same_v<E, float>) return Element::kFloat;
  return std::is_same_v<E, __half> ? Element::kHalf : Element::kBfloat16;
}

}  // namespace emulator

template <typename E>
void emulated_mma_sync(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                       emulator::Site site = emulator::here()) {
  static_assert(emulator::is_one_of<E, float, __half, __nv_bfloat16>);
  emulator::Fragments fragments{emulator::element_of<E>(), d, a, b};
  emulator::exchange(emulator::WarpOperation::kMultiply, 0xFFFFFFFFu,
                     reinterpret_cast<uintptr_t>(&fragments), site);
}
