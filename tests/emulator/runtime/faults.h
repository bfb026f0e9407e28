// SPDX-License-Identifier: MIT
// Everything that ends a launch early, and the message that it leaves.
#pragma once

#include <cstdint>

namespace emulator {

// Turns signals caused by the running kernel, and its time limit, into failures.
class FaultGuard {
 public:
  explicit FaultGuard(uint64_t time_limit_milliseconds);
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;
};

[[noreturn]] void report_access(uintptr_t address, uintptr_t bytes, bool is_store,
                                void* return_address);

// What the current thread and another did to shared memory, so many bytes from where it begins.
[[noreturn]] void report_race(uintptr_t offset, bool is_dynamic, bool is_store, unsigned other,
                              bool other_is_store, void* return_address);

}  // namespace emulator
