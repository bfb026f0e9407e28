// SPDX-License-Identifier: MIT
// Loads and stores with a cache hint, and memory fences.
#pragma once

#include <type_traits>

namespace emulator {

template <typename T, typename... Allowed>
constexpr bool is_one_of = (std::is_same_v<T, Allowed> || ...);

template <typename T>
constexpr bool has_cache_hints =
    is_one_of<T, char, signed char, unsigned char, short, unsigned short, int, unsigned, long,
              unsigned long, long long, unsigned long long, float, double, __half, __half2,
              __nv_bfloat16, __nv_bfloat162> ||
    is_one_of<T, char2, char4, uchar2, uchar4, short2, short4, ushort2, ushort4, int2, int4, uint2,
              uint4, longlong2, ulonglong2, float2, float4, double2>;

template <typename T>
using CacheHinted = std::enable_if_t<has_cache_hints<T>>;

// The same variable, of which the compiler does not know that it is.
template <typename T>
T& opaque(T& variable) {
  T* address = &variable;
  asm("" : "+r"(address));
  return *address;
}

}  // namespace emulator

#define CTO_LOAD(name)                                            \
  template <typename T, typename = emulator::CacheHinted<T>>      \
  T name(const T* address) {                                      \
    return *address;                                              \
  }

CTO_LOAD(__ldg)
CTO_LOAD(__ldcg)
CTO_LOAD(__ldca)
CTO_LOAD(__ldcs)
CTO_LOAD(__ldlu)
CTO_LOAD(__ldcv)

#undef CTO_LOAD

#define CTO_STORE(name)                                           \
  template <typename T, typename = emulator::CacheHinted<T>>      \
  void name(T* address, T value) {                                \
    *address = value;                                             \
  }

CTO_STORE(__stwb)
CTO_STORE(__stcg)
CTO_STORE(__stcs)
CTO_STORE(__stwt)

#undef CTO_STORE

inline size_t __cvta_generic_to_shared(const void* pointer,
                                       emulator::Site site = emulator::here()) {
  return emulator::shared_address(pointer, site);
}

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
