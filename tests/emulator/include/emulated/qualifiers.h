// SPDX-License-Identifier: MIT
// Qualifiers of CUDA C++. Must follow every standard header: some use the name __noinline__.
#pragma once

#undef __host__
#undef __device__
#undef __global__
#undef __constant__
#undef __shared__
#undef __grid_constant__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__

#define __host__
#define __device__
#define __global__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline  // with calls left to g++ a build takes two thirds of the time
#define __noinline__ __attribute__((noinline))
// One block runs at a time, so one copy will do. The loader finds these variables by their symbols.
#define __shared__ static __attribute__((used))

#ifndef __restrict__
#define __restrict__ __restrict
#endif

constexpr int warpSize = 32;

#undef assert
#define assert(condition)                                                              \
  (static_cast<bool>(condition) ? void(0)                                              \
                                : ::emulator::fail(::emulator::here(),                 \
                                                   "assertion failed: %s", #condition))

#define __builtin_assume(condition) \
  do {                              \
    if (!(condition)) __builtin_unreachable(); \
  } while (false)

#define __assume(condition) __builtin_assume(condition)

[[noreturn]] inline void __trap(emulator::Site site = emulator::here()) {
  emulator::fail(site, "__trap() called");
}

inline void __nanosleep(unsigned) {}

inline long long clock64() {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

