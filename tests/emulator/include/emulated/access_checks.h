// SPDX-License-Identifier: MIT
// g++ -fsanitize=kernel-address puts a call of one of these before every load and store. They see
// an overrun of one byte even where the array does not end at an inaccessible page.
#pragma once

#include "../../runtime/interface.h"

namespace emulator {

__attribute__((always_inline)) inline void check_access(const void* pointer, uintptr_t bytes,
                                                        bool is_store) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const uintptr_t offset = address - arena;
  if (offset >= kArenaBytes) return;
  const Extent& extent = extents[offset >> kSlotBits];
  if (address < extent.begin || address + bytes > extent.end)
    report_access(address, bytes, is_store, __builtin_return_address(0));
}

}  // namespace emulator

#define CTO_ACCESS_CHECKS(bytes)                                                       \
  extern "C" __attribute__((used, no_sanitize("kernel-address"))) void                 \
      __asan_load##bytes(const void* pointer) {                                        \
    emulator::check_access(pointer, bytes, false);                                     \
  }                                                                                    \
  extern "C" __attribute__((used, no_sanitize("kernel-address"))) void                 \
      __asan_store##bytes(const void* pointer) {                                       \
    emulator::check_access(pointer, bytes, true);                                      \
  }

CTO_ACCESS_CHECKS(1)
CTO_ACCESS_CHECKS(2)
CTO_ACCESS_CHECKS(4)
CTO_ACCESS_CHECKS(8)
CTO_ACCESS_CHECKS(16)

#undef CTO_ACCESS_CHECKS

extern "C" __attribute__((used, no_sanitize("kernel-address"))) void __asan_loadN(
    const void* pointer, unsigned long bytes) {
  emulator::check_access(pointer, bytes, false);
}

extern "C" __attribute__((used, no_sanitize("kernel-address"))) void __asan_storeN(
    const void* pointer, unsigned long bytes) {
  emulator::check_access(pointer, bytes, true);
}

extern "C" __attribute__((used, no_sanitize("kernel-address"))) void __asan_handle_no_return() {}
