// SPDX-License-Identifier: MIT
#include "context_switch.h"

#ifdef CTO_EMULATOR_UCONTEXT

namespace emulator {

void prepare_context(Context& context, void* stack, size_t stack_bytes, void (*entry)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = stack_bytes;
  context.uc_link = nullptr;
  makecontext(&context, entry, 0);
}

void switch_context(Context& from, Context& to) { swapcontext(&from, &to); }

}  // namespace emulator

#else

// Saves what the x86-64 System V calling convention lets a callee keep; floating-point control
// words are never changed by kernels.
asm(R"(
.text
.globl emulator_switch_stacks
.type emulator_switch_stacks, @function
emulator_switch_stacks:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulator_switch_stacks, . - emulator_switch_stacks
)");

extern "C" void emulator_switch_stacks(void** save, void** load);

namespace emulator {

namespace {
constexpr int kSavedRegisters = 6;
}

void prepare_context(Context& context, void* stack, size_t stack_bytes, void (*entry)()) {
  void** top = reinterpret_cast<void**>(static_cast<char*>(stack) + stack_bytes);
  // A function starts with its return address at 8 modulo 16; a null one ends debuggers' walks.
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  context.stack_pointer = top;
}

void switch_context(Context& from, Context& to) {
  emulator_switch_stacks(&from.stack_pointer, &to.stack_pointer);
}

}  // namespace emulator

#endif
