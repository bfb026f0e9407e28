// SPDX-License-Identifier: MIT
#include "faults.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <iterator>

#include "fibers.h"
#include "guarded_memory.h"
#include "scheduler.h"

namespace emulator {

namespace {

constexpr size_t kMaxFrames = 32;

// Where the kernel was: return addresses from the innermost call outwards, ended by a null one.
struct Failure {
  char text[4096];
  void* return_addresses[kMaxFrames + 1];
};

Failure failure;

const int kFaultSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
struct sigaction previous_actions[std::size(kFaultSignals)];
struct sigaction previous_timer_action;
sigset_t previous_mask;
stack_t previous_alternate_stack;
alignas(16) char alternate_stack[64 * 1024];
timer_t timer;
uint64_t time_limit;
pid_t owner;

// Not SIGALRM, which test time-outs use.
int timer_signal() { return SIGRTMAX - 2; }

pid_t thread_id() { return static_cast<pid_t>(syscall(SYS_gettid)); }

void* faulting_instruction(const void* context) {
  const mcontext_t& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return reinterpret_cast<void*>(machine.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return reinterpret_cast<void*>(machine.pc);
#else
  (void)machine;
  return nullptr;
#endif
}

__attribute__((format(printf, 1, 0))) int write_position_and(const char* format, va_list values) {
  const int size = std::snprintf(failure.text, sizeof failure.text,
                                 "block (%u,%u,%u) thread (%u,%u,%u): ", blockIdx.x, blockIdx.y,
                                 blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
  return size + std::vsnprintf(failure.text + size, sizeof failure.text - size, format, values);
}

[[noreturn]] __attribute__((format(printf, 1, 2))) void fail_here(const char* format, ...) {
  va_list values;
  va_start(values, format);
  write_position_and(format, values);
  va_end(values);
  abandon_block();
}

// The handler's own frames are skipped. The instruction itself stands as if it were a call.
void record_frames(const void* context) {
  void* frames[kMaxFrames];
  const int count = backtrace(frames, kMaxFrames);
  void* const instruction = faulting_instruction(context);
  void** out = failure.return_addresses;
  *out++ = static_cast<char*>(instruction) + 1;
  const auto found = std::find(frames, frames + count, instruction);
  if (found != frames + count) out = std::copy(found + 1, frames + count, out);
  *out = nullptr;
}

void restore_action(int signal_number) {
  for (size_t i = 0; i < std::size(kFaultSignals); ++i)
    if (kFaultSignals[i] == signal_number)
      sigaction(signal_number, &previous_actions[i], nullptr);
}

[[noreturn]] void fail_for_address(const void* address) {
  if (is_stack_guard(address)) fail_here("stack overflow (local arrays too large, or recursion)");
  fail_here("invalid memory access at %p: %s", address,
            describe_address(reinterpret_cast<uintptr_t>(address)));
}

void on_fault(int signal_number, siginfo_t* information, void* context) {
  if (!is_thread_running() || thread_id() != owner) return restore_action(signal_number);
  record_frames(context);
  if (signal_number == SIGSEGV || signal_number == SIGBUS) fail_for_address(information->si_addr);
  fail_here(signal_number == SIGFPE ? "arithmetic fault" : "illegal instruction");
}

void on_timer(int, siginfo_t*, void* context) {
  if (!is_thread_running() || thread_id() != owner) return;
  record_frames(context);
  fail_here("time limit of %llu ms passed (endless loop?)",
            static_cast<unsigned long long>(time_limit));
}

struct sigaction action_for(void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action = {};
  action.sa_sigaction = handler;
  // The handler leaves by switching stacks, so nothing would unblock the signal again.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  // The timer must not interrupt a handler: the unwinder may hold a lock, which a second one
  // would wait for. ~FaultGuard unblocks its signal.
  sigaddset(&action.sa_mask, timer_signal());
  return action;
}

void start_timer() {
  struct sigevent event = {};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = timer_signal();
  event._sigev_un._tid = owner;
  timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer);
  const auto seconds = static_cast<time_t>(time_limit / 1000);
  const auto nanoseconds = static_cast<long>(time_limit % 1000) * 1'000'000;
  // Repeats, because a signal between two blocks is ignored.
  const struct itimerspec times = {{0, 10'000'000}, {seconds, nanoseconds}};
  timer_settime(timer, 0, &times, nullptr);
}

}  // namespace

void fail(Site site, const char* format, ...) {
  va_list values;
  va_start(values, format);
  const int size = write_position_and(format, values);
  va_end(values);
  if (site.file != nullptr && size < static_cast<int>(sizeof failure.text))
    std::snprintf(failure.text + size, sizeof failure.text - size, " at %s:%d", site.file,
                  site.line);
  failure.return_addresses[0] = nullptr;
  abandon_block();
}

void report_access(uintptr_t address, uintptr_t bytes, bool is_store, void* return_address) {
  failure.return_addresses[0] = return_address;
  failure.return_addresses[1] = nullptr;
  fail_here("invalid memory access, %s of %zu bytes: %s", is_store ? "a write" : "a read",
            static_cast<size_t>(bytes), describe_address(address));
}

void report_race(uintptr_t offset, bool is_dynamic, bool is_store, unsigned other,
                 bool other_is_store, void* return_address) {
  failure.return_addresses[0] = return_address;
  failure.return_addresses[1] = nullptr;
  fail_here("a race: %s of byte %zu of %s shared memory, which thread %u %s and no barrier divides",
            is_store ? "a write" : "a read", static_cast<size_t>(offset),
            is_dynamic ? "dynamic" : "static", other, other_is_store ? "wrote" : "read");
}

FaultGuard::FaultGuard(uint64_t time_limit_milliseconds) {
  // The first call loads a library, which a signal handler must not do.
  static const int preloaded = backtrace(failure.return_addresses, 1);
  static_cast<void>(preloaded);
  owner = thread_id();
  time_limit = time_limit_milliseconds;
  pthread_sigmask(SIG_BLOCK, nullptr, &previous_mask);
  stack_t stack = {};
  stack.ss_sp = alternate_stack;
  stack.ss_size = sizeof alternate_stack;
  sigaltstack(&stack, &previous_alternate_stack);
  const struct sigaction on_fault_action = action_for(on_fault);
  for (size_t i = 0; i < std::size(kFaultSignals); ++i)
    sigaction(kFaultSignals[i], &on_fault_action, &previous_actions[i]);
  const struct sigaction on_timer_action = action_for(on_timer);
  sigaction(timer_signal(), &on_timer_action, &previous_timer_action);
  start_timer();
}

FaultGuard::~FaultGuard() {
  timer_delete(timer);
  // Before the action: a signal that is still pending comes now, and is ignored.
  pthread_sigmask(SIG_SETMASK, &previous_mask, nullptr);
  sigaction(timer_signal(), &previous_timer_action, nullptr);
  for (size_t i = 0; i < std::size(kFaultSignals); ++i)
    sigaction(kFaultSignals[i], &previous_actions[i], nullptr);
  sigaltstack(&previous_alternate_stack, nullptr);
}

}  // namespace emulator

extern "C" const char* emulator_failure_text() { return emulator::failure.text; }

extern "C" void** emulator_failure_return_addresses() { return emulator::failure.return_addresses; }
