// SPDX-License-Identifier: MIT
// Races in shared memory: two threads of a block at one byte, at least one of which writes, with
// nothing between them that orders them. That both write the same value makes no difference.
#pragma once

#include <cstdint>

namespace emulator {

struct SharedRange {
  uintptr_t begin;
  uintptr_t bytes;
};

extern SharedRange static_shared_range;
extern SharedRange dynamic_shared_range;

inline bool holds(const SharedRange& range, uintptr_t address) {
  return address - range.begin < range.bytes;
}

void watch_shared_memory(SharedRange of_variables, SharedRange dynamic);

// A block begins: what earlier ones wrote does not count.
void begin_block();

// All that came before in the block, or in a warp, comes before all that follows.
void order_block();
void order_warp(unsigned warp);

// An access of the current thread to one of the ranges.
void note_shared_access(const SharedRange& range, uintptr_t address, uintptr_t bytes,
                        bool is_store, void* return_address);

// Whether a thread of the block wrote to these bytes without an order_proxy since.
bool is_hidden_from_proxy(const SharedRange& range, uintptr_t address, uintptr_t bytes);

}  // namespace emulator
