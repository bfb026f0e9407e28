// SPDX-License-Identifier: MIT
// Exactly CUDA's overloads: atomicAdd(size_t*, ...) or atomicMax(float*, ...) must not compile.
// Threads change only where one waits, so plain reads and writes are atomic.
#pragma once

#include "../../runtime/interface.h"

namespace emulator {

template <typename T, typename Update>
T exchange_with(T* address, Update update) {
  begin_atomic(address, sizeof(T));
  const T old = *address;
  *address = update(old);
  end_atomic();
  return old;
}

}  // namespace emulator

#define CTO_ATOMIC(name, type, expression)                                      \
  inline type name(type* address, type value) {                                 \
    return emulator::exchange_with(address, [value](type old) -> type { return expression; }); \
  }                                                                             \
  inline type name##_block(type* address, type value) { return name(address, value); }  \
  inline type name##_system(type* address, type value) { return name(address, value); }

// Unsigned arithmetic, because GPU integers wrap.
CTO_ATOMIC(atomicAdd, int, static_cast<int>(0u + old + value))
CTO_ATOMIC(atomicAdd, unsigned, old + value)
CTO_ATOMIC(atomicAdd, unsigned long long, old + value)
CTO_ATOMIC(atomicAdd, float, old + value)
CTO_ATOMIC(atomicAdd, double, old + value)
CTO_ATOMIC(atomicAdd, __half, __float2half_rn(__half2float(old) + __half2float(value)))
CTO_ATOMIC(atomicAdd, __half2, __hadd2(old, value))
CTO_ATOMIC(atomicAdd, __nv_bfloat16,
           __float2bfloat16_rn(__bfloat162float(old) + __bfloat162float(value)))
CTO_ATOMIC(atomicAdd, __nv_bfloat162, __hadd2(old, value))

CTO_ATOMIC(atomicSub, int, static_cast<int>(0u + old - value))
CTO_ATOMIC(atomicSub, unsigned, old - value)

CTO_ATOMIC(atomicExch, int, (void(old), value))
CTO_ATOMIC(atomicExch, unsigned, (void(old), value))
CTO_ATOMIC(atomicExch, unsigned long long, (void(old), value))
CTO_ATOMIC(atomicExch, float, (void(old), value))

CTO_ATOMIC(atomicInc, unsigned, old >= value ? 0 : old + 1)
CTO_ATOMIC(atomicDec, unsigned, old == 0 || old > value ? value : old - 1)

#define CTO_ATOMIC_EXTREMES(type)                          \
  CTO_ATOMIC(atomicMin, type, value < old ? value : old)   \
  CTO_ATOMIC(atomicMax, type, old < value ? value : old)

CTO_ATOMIC_EXTREMES(int)
CTO_ATOMIC_EXTREMES(unsigned)
CTO_ATOMIC_EXTREMES(long long)
CTO_ATOMIC_EXTREMES(unsigned long long)

#define CTO_ATOMIC_BITWISE(type)              \
  CTO_ATOMIC(atomicAnd, type, old & value)    \
  CTO_ATOMIC(atomicOr, type, old | value)     \
  CTO_ATOMIC(atomicXor, type, old ^ value)

CTO_ATOMIC_BITWISE(int)
CTO_ATOMIC_BITWISE(unsigned)
CTO_ATOMIC_BITWISE(unsigned long long)

#define CTO_ATOMIC_COMPARE(type)                                                             \
  inline type atomicCAS(type* address, type expected, type value) {                          \
    return emulator::exchange_with(                                                          \
        address, [=](type old) -> type { return old == expected ? value : old; });           \
  }                                                                                          \
  inline type atomicCAS_block(type* address, type expected, type value) {                    \
    return atomicCAS(address, expected, value);                                              \
  }                                                                                          \
  inline type atomicCAS_system(type* address, type expected, type value) {                   \
    return atomicCAS(address, expected, value);                                              \
  }

CTO_ATOMIC_COMPARE(int)
CTO_ATOMIC_COMPARE(unsigned)
CTO_ATOMIC_COMPARE(unsigned short)
CTO_ATOMIC_COMPARE(unsigned long long)

#undef CTO_ATOMIC_COMPARE
#undef CTO_ATOMIC_BITWISE
#undef CTO_ATOMIC_EXTREMES
#undef CTO_ATOMIC
