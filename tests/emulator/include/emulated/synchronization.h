// SPDX-License-Identifier: MIT
// Block barriers and warp operations.
#pragma once

#include <cstring>

#include "memory.h"

namespace emulator {

template <typename T>
constexpr bool is_shuffled =
    is_one_of<T, int, unsigned, long, unsigned long, long long, unsigned long long, float, double,
              __half, __half2, __nv_bfloat16, __nv_bfloat162>;

template <typename T>
uint64_t pack(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

template <typename T>
T unpack(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <typename T>
T shuffle(WarpOperation operation, unsigned mask, T value, unsigned argument, int width,
          Site site) {
  return unpack<T>(warp_operation({operation, mask, pack(value), argument,
                                   static_cast<uint32_t>(width), site, 0}));
}

inline uint64_t exchange(WarpOperation operation, unsigned mask, uint64_t value, Site site) {
  return warp_operation({operation, mask, value, 0, 32, site, 0});
}

}  // namespace emulator

inline void __syncthreads(emulator::Site site = emulator::here()) {
  emulator::block_barrier(false, site);
}
inline int __syncthreads_count(int predicate, emulator::Site site = emulator::here()) {
  return static_cast<int>(emulator::block_barrier(predicate != 0, site).nonzero);
}
inline int __syncthreads_or(int predicate, emulator::Site site = emulator::here()) {
  return emulator::block_barrier(predicate != 0, site).nonzero > 0;
}
inline int __syncthreads_and(int predicate, emulator::Site site = emulator::here()) {
  const emulator::BarrierVotes votes = emulator::block_barrier(predicate != 0, site);
  return votes.nonzero == votes.arrived;
}

// What `bar.sync number, threads` is in a kernel.
inline void emulated_bar_sync(unsigned number, unsigned threads,
                              emulator::Site site = emulator::here()) {
  emulator::group_barrier(number, threads, site);
}

inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, emulator::Site site = emulator::here()) {
  emulator::exchange(emulator::WarpOperation::kSynchronize, mask, 0, site);
}

inline unsigned __activemask(emulator::Site site = emulator::here()) {
  return static_cast<unsigned>(
      emulator::exchange(emulator::WarpOperation::kActiveMask, 0xFFFFFFFFu, 0, site));
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              emulator::Site site = emulator::here()) {
  return static_cast<unsigned>(
      emulator::exchange(emulator::WarpOperation::kBallot, mask, predicate != 0, site));
}
inline int __any_sync(unsigned mask, int predicate, emulator::Site site = emulator::here()) {
  return __ballot_sync(mask, predicate, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, emulator::Site site = emulator::here()) {
  return __ballot_sync(mask, predicate == 0, site) == 0;
}

#define CTO_SHUFFLE(name, operation, argument_type)                                        \
  template <typename T, typename = std::enable_if_t<emulator::is_shuffled<T>>>             \
  T name(unsigned mask, T value, argument_type argument, int width = warpSize,             \
         emulator::Site site = emulator::here()) {                                         \
    return emulator::shuffle(emulator::WarpOperation::operation, mask, value,              \
                             static_cast<unsigned>(argument), width, site);                \
  }

CTO_SHUFFLE(__shfl_sync, kShuffleIndex, int)
CTO_SHUFFLE(__shfl_up_sync, kShuffleUp, unsigned)
CTO_SHUFFLE(__shfl_down_sync, kShuffleDown, unsigned)
CTO_SHUFFLE(__shfl_xor_sync, kShuffleXor, int)

#undef CTO_SHUFFLE

#define CTO_MATCH(type)                                                                      \
  inline unsigned __match_any_sync(unsigned mask, type value,                                \
                                   emulator::Site site = emulator::here()) {                 \
    return static_cast<unsigned>(emulator::exchange(emulator::WarpOperation::kMatchAny,      \
                                                    mask, emulator::pack(value), site));     \
  }                                                                                          \
  inline unsigned __match_all_sync(unsigned mask, type value, int* all_equal,                \
                                   emulator::Site site = emulator::here()) {                 \
    const auto lanes = static_cast<unsigned>(emulator::exchange(                             \
        emulator::WarpOperation::kMatchAll, mask, emulator::pack(value), site));             \
    *all_equal = lanes != 0;                                                                 \
    return lanes;                                                                            \
  }

CTO_MATCH(int)
CTO_MATCH(unsigned)
CTO_MATCH(long)
CTO_MATCH(unsigned long)
CTO_MATCH(long long)
CTO_MATCH(unsigned long long)
CTO_MATCH(float)
CTO_MATCH(double)

#undef CTO_MATCH

// A signed value is passed on as 64 bits with its sign, so that the runtime compares it rightly.
#define CTO_REDUCE(name, type, operation)                                                   \
  inline type name(unsigned mask, type value, emulator::Site site = emulator::here()) {     \
    return static_cast<type>(emulator::exchange(emulator::WarpOperation::operation, mask,   \
                                                static_cast<uint64_t>(value), site));       \
  }

CTO_REDUCE(__reduce_add_sync, int, kAdd)
CTO_REDUCE(__reduce_add_sync, unsigned, kAdd)
CTO_REDUCE(__reduce_min_sync, int, kMin)
CTO_REDUCE(__reduce_min_sync, unsigned, kMin)
CTO_REDUCE(__reduce_max_sync, int, kMax)
CTO_REDUCE(__reduce_max_sync, unsigned, kMax)
CTO_REDUCE(__reduce_and_sync, unsigned, kAnd)
CTO_REDUCE(__reduce_or_sync, unsigned, kOr)
CTO_REDUCE(__reduce_xor_sync, unsigned, kXor)

#undef CTO_REDUCE
