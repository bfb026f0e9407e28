// SPDX-License-Identifier: MIT
// Switching between stacks: assembly on x86-64, ucontext elsewhere.
#pragma once

#include <cstddef>

#if !defined(__x86_64__) && !defined(CTO_EMULATOR_UCONTEXT)
#define CTO_EMULATOR_UCONTEXT
#endif

#ifdef CTO_EMULATOR_UCONTEXT
#include <ucontext.h>
#endif

namespace emulator {

#ifdef CTO_EMULATOR_UCONTEXT
using Context = ucontext_t;
#else
struct Context {
  void* stack_pointer;
};
#endif

// Makes `context` start `entry` on the given stack when first switched to. `entry` never returns.
void prepare_context(Context& context, void* stack, size_t stack_bytes, void (*entry)());

void switch_context(Context& from, Context& to);

}  // namespace emulator
