// SPDX-License-Identifier: MIT
// A block's threads run one at a time, from one wait to the next, so that what they do has an order.
// Time passes with each barrier and each __syncwarp: an access is ordered before the current one if
// it is the same thread's, or older than the last barrier, or of the same warp and older than its
// last __syncwarp. A barrier of some warps counts as one of all: races across it stay unseen.
#include "races.h"

#include <vector>

#include "faults.h"
#include "interface.h"
#include "scheduler.h"

namespace emulator {

SharedRange static_shared_range;
SharedRange dynamic_shared_range;

namespace {

bool access_is_atomic;

// When, by whom, and whether atomic. No later launch takes an older one for its own.
using Stamp = uint64_t;

constexpr unsigned kThreadBits = 10;
constexpr Stamp kAtomic = 1 << kThreadBits;

// The last accesses to a byte, reads by two threads, and what it was at the last of them.
//
// g++ has an access checked once a basic block: what `x += 1` writes is not announced. If the byte has
// changed since it was read last, that thread has written it.
struct Byte {
  Stamp write;
  Stamp reads[2];
  uint8_t value;
  bool was_read_last;
};

std::vector<Byte> static_bytes;
std::vector<Byte> dynamic_bytes;
uint64_t now = 1;
uint64_t block_ordered;
uint64_t warp_ordered[kMaxWarps];
uint64_t block_began;
uint64_t proxy_ordered[kMaxWarps * kWarpSize];

unsigned thread_of(Stamp stamp) { return stamp & (kAtomic - 1); }
uint64_t time_of(Stamp stamp) { return stamp >> (kThreadBits + 1); }

Stamp stamp_of_current() {
  return now << (kThreadBits + 1) | (access_is_atomic ? kAtomic : 0) | current_thread();
}

// Whether the access of the stamp may happen after, or while, what the current thread does.
bool is_unordered(Stamp stamp) {
  const uint64_t time = time_of(stamp);
  if (time < block_ordered) return false;
  const unsigned other = thread_of(stamp), own = current_thread();
  if (other == own || (access_is_atomic && (stamp & kAtomic))) return false;
  return other / kWarpSize != own / kWarpSize || time >= warp_ordered[own / kWarpSize];
}

[[noreturn]] void report(const SharedRange& range, uintptr_t address, bool is_store, Stamp other,
                         bool other_is_store, void* return_address) {
  report_race(address - range.begin, &range == &dynamic_shared_range, is_store, thread_of(other),
              other_is_store, return_address);
}

std::vector<Byte>& bytes_of(const SharedRange& range) {
  return &range == &dynamic_shared_range ? dynamic_bytes : static_bytes;
}

void note(const SharedRange& range, uintptr_t address, uintptr_t bytes, bool is_store,
          void* return_address) {
  std::vector<Byte>& all = bytes_of(range);
  const Stamp own = stamp_of_current();
  for (uintptr_t i = address - range.begin; i < address - range.begin + bytes; ++i) {
    if (i >= range.bytes) return;
    Byte& byte = all[i];
    const uint8_t value = *reinterpret_cast<const uint8_t*>(range.begin + i);
    if (byte.was_read_last && value != byte.value) byte.write = byte.reads[0];
    byte.value = value;
    byte.was_read_last = !is_store;
    if (is_unordered(byte.write))
      report(range, address, is_store, byte.write, true, return_address);
    if (is_store) {
      for (const Stamp read : byte.reads)
        if (is_unordered(read)) report(range, address, true, read, false, return_address);
      byte.write = own;
    } else {
      if (thread_of(byte.reads[0]) != current_thread()) byte.reads[1] = byte.reads[0];
      byte.reads[0] = own;
    }
  }
}

}  // namespace

void watch_shared_memory(SharedRange of_variables, SharedRange dynamic) {
  access_is_atomic = false;  // which a failed launch may have left
  static_shared_range = of_variables;
  dynamic_shared_range = dynamic;
  if (static_bytes.size() < of_variables.bytes) static_bytes.resize(of_variables.bytes);
  if (dynamic_bytes.size() < dynamic.bytes) dynamic_bytes.resize(dynamic.bytes);
}

void begin_block() {
  order_block();
  block_began = now;
}

void order_block() { block_ordered = ++now; }

void order_warp(unsigned warp) { warp_ordered[warp] = ++now; }

void order_proxy() { proxy_ordered[current_thread()] = ++now; }

bool is_hidden_from_proxy(const SharedRange& range, uintptr_t address, uintptr_t bytes) {
  for (uintptr_t i = address - range.begin; i < address - range.begin + bytes; ++i) {
    const Stamp write = bytes_of(range)[i].write;
    if (time_of(write) >= block_began && time_of(write) >= proxy_ordered[thread_of(write)])
      return true;
  }
  return false;
}

void begin_atomic(const void* address, uintptr_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  void* const caller = __builtin_return_address(0);
  access_is_atomic = true;
  for (const SharedRange* range : {&static_shared_range, &dynamic_shared_range})
    if (holds(*range, begin)) note(*range, begin, bytes, true, caller);
}

void end_atomic() { access_is_atomic = false; }

void note_shared_access(const SharedRange& range, uintptr_t address, uintptr_t bytes,
                        bool is_store, void* return_address) {
  if (!access_is_atomic) note(range, address, bytes, is_store, return_address);
}

}  // namespace emulator
