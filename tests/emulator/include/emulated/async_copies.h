// SPDX-License-Identifier: MIT
// What `cp.async` is in a kernel: copies from global to shared memory that go on while a thread
// computes. Each is made as late as it is waited for; until then there are all ones in its place,
// which nobody may still need, either.
#pragma once

#include "memory.h"

namespace emulator {

template <size_t NBYTES>
struct alignas(NBYTES) Words {
  unsigned at[NBYTES / 4];
};

template <size_t NBYTES>
void fill(void* to, unsigned word) {
  Words<NBYTES> words;
  for (unsigned& each : words.at) each = word;
  *static_cast<Words<NBYTES>*>(to) = words;
}

template <size_t NBYTES>
void make(const AsyncCopy& copy) {
  if (copy.exists)
    *static_cast<Words<NBYTES>*>(copy.to) = *static_cast<const Words<NBYTES>*>(copy.from);
  else
    fill<NBYTES>(copy.to, 0);
}

}  // namespace emulator

// Zeros for all bytes, or for none.
template <size_t NBYTES>
void emulated_memcpy_async(void* shared, const void* global, bool exists) {
  static_assert(NBYTES == 4 || NBYTES == 8 || NBYTES == 16);
  emulator::fill<NBYTES>(shared, ~0u);
  emulator::begin_copy({shared, global, NBYTES, exists});
}
inline void emulated_commit_copies() { emulator::end_group_of_copies(); }
inline void emulated_wait_for_copies(size_t n_groups) {
  emulator::AsyncCopy copy;
  while (emulator::next_copy(n_groups, copy))
    copy.nbytes == 4 ? emulator::make<4>(copy)
                     : copy.nbytes == 8 ? emulator::make<8>(copy) : emulator::make<16>(copy);
}
