// SPDX-License-Identifier: MIT
#include "fibers.h"

#include <sys/mman.h>

#include <cstdlib>

namespace emulator {

namespace {

constexpr size_t kGuardBytes = 4096;
constexpr size_t kStackBytes = 64 * 1024;
// Stack tops at one offset modulo 4 KiB would all compete for the same cache sets.
constexpr size_t kColours = 16;
constexpr size_t kColourBytes = 256;

Fiber fibers[kMaxThreads];
Fiber* idle[kMaxThreads];
unsigned idle_count;
unsigned taken_count;
void (*fiber_entry)();

char* allocate_stack() {
  void* memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) std::abort();
  return static_cast<char*>(memory) + kGuardBytes;
}

}  // namespace

void reset_fibers(void (*entry)()) {
  fiber_entry = entry;
  idle_count = 0;
  taken_count = 0;
}

Fiber* take_fiber() {
  if (idle_count > 0) return idle[--idle_count];
  Fiber* fiber = &fibers[taken_count++];
  if (fiber->stack == nullptr) fiber->stack = allocate_stack();
  const size_t colour = (fiber - fibers) % kColours;
  prepare_context(fiber->context, fiber->stack, kStackBytes - colour * kColourBytes, fiber_entry);
  return fiber;
}

void give_back_fiber(Fiber* fiber) { idle[idle_count++] = fiber; }

bool is_stack_guard(const void* address) {
  for (unsigned i = 0; i < taken_count; ++i) {
    const char* guard = fibers[i].stack - kGuardBytes;
    if (guard <= address && address < fibers[i].stack) return true;
  }
  return false;
}

}  // namespace emulator
