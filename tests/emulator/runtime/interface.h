// SPDX-License-Identifier: MIT
// What compiled kernels and the runtime know of each other.
#pragma once

#include <cstddef>
#include <cstdint>

#include "vector_types.h"

extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;

namespace emulator {

// A line of a kernel. `here()` as a default argument gives the line of the outermost call.
struct Site {
  const char* file;
  int line;
};

constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return {file, line};
}

[[noreturn]] __attribute__((format(printf, 2, 3))) void fail(Site site, const char* format, ...);

// Blocks -------------------------------------------------------------------------------------

struct BarrierVotes {
  unsigned arrived;
  unsigned nonzero;
};

BarrierVotes block_barrier(bool predicate, Site site);

// Of so many threads of the block; `number` from 1 on.
void group_barrier(unsigned number, unsigned threads, Site site);

// Ends the current thread. Returns as another thread that has not started yet.
void finish_thread();

// Warps --------------------------------------------------------------------------------------

enum class WarpOperation {
  kSynchronize,
  kActiveMask,
  kShuffleIndex,
  kShuffleUp,
  kShuffleDown,
  kShuffleXor,
  kBallot,
  kMatchAny,
  kMatchAll,
  kMultiply,
  kMultiplyGroup,
  kAdd,
  kMin,
  kMax,
  kAnd,
  kOr,
  kXor,
};

// One lane's part of a warp operation. Lives on the lane's stack while the lane waits.
struct WarpCall {
  WarpOperation operation;
  uint32_t mask;
  uint64_t value;
  uint32_t lane_argument;
  uint32_t width;
  Site site;
  uint64_t result;
};

uint64_t warp_operation(WarpCall call);

// A lane's part of a product: what it holds of A and B, and its sums.
enum class Element { kFloat, kHalf, kBfloat16 };
struct Fragments {
  Element type;
  float* d;
  const uint32_t* a;
  const uint32_t* b;
};

// A thread's part of a product of its warpgroup: matrix descriptors of A and B, and its sums. Of
// an A in registers there are words instead, and `a` is 0.
struct GroupProduct {
  Element type;
  unsigned columns;
  bool a_transposed, b_transposed;
  uint64_t a, b;
  const uint32_t* a_words;
  float* d;
};

// Of the current thread.
void fence_products();
void end_group_of_products();
void wait_for_products(size_t n_groups_left, Site site);
void forget_products();  // of a thread that begins: what was left there by another

// Memory -------------------------------------------------------------------------------------

struct Extent {
  uintptr_t begin;
  uintptr_t end;
};

extern void* dynamic_shared;

// A thread's copy to shared memory that it has begun and not waited for; zeros where nothing exists.
struct AsyncCopy {
  void* to;
  const void* from;
  size_t nbytes;
  bool exists;
};

void forget_copies();  // of a thread that begins: what was left there by another
void begin_copy(const AsyncCopy& copy);
void end_group_of_copies();
// The next one of all groups but the last so many, if any is left.
bool next_copy(size_t n_groups_left, AsyncCopy& copy);

// The address in the window of shared memory that descriptors use.
uint32_t shared_address(const void* pointer, Site site);

// What the current thread has written to shared memory becomes visible to products of warpgroups.
void order_proxy();

// Around an atomic operation.
void begin_atomic(const void* address, uintptr_t bytes);
void end_atomic();

}  // namespace emulator
