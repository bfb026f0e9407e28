// SPDX-License-Identifier: MIT
// A pool of stacks on which GPU threads run.
#pragma once

#include "context_switch.h"

namespace emulator {

constexpr unsigned kMaxThreads = 1024;

struct Fiber {
  char* stack;
  Context context;
};

// Forgets what every fiber was doing; from now on they start at `entry`.
void reset_fibers(void (*entry)());

Fiber* take_fiber();
void give_back_fiber(Fiber* fiber);

bool is_stack_guard(const void* address);

}  // namespace emulator
