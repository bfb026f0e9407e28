// SPDX-License-Identifier: MIT
// Runs the threads of a block one at a time; a thread gives way only where it must wait.
#pragma once

#include <cstdint>

#include "interface.h"

namespace emulator {

constexpr unsigned kWarpSize = 32;
constexpr unsigned kMaxWarps = 32;
constexpr unsigned kMaxBarriers = 16;

// Sets of lanes as bit masks. A lane that is live and in none of the other sets is running.
struct Warp {
  uint32_t live;
  uint32_t unstarted;
  uint32_t ready;
  uint32_t at_barrier;
  Site barrier_site;  // of the last one
  uint32_t at_operation;
  WarpCall* calls[kWarpSize];
};

enum class ThreadOrder : uint32_t { kForward, kReverse, kRandom };

struct ThreadProgram {
  void (*body)(void** arguments);
  void** arguments;
  ThreadOrder order;
  uint64_t seed;
};

void prepare_threads(const ThreadProgram& program);

// Runs all threads of the block at blockIdx. False: the launch failed.
bool run_block();

// Leaves the running thread for good and makes run_block return false.
[[noreturn]] void abandon_block();

bool is_thread_running();

Warp& current_warp();
unsigned current_lane();
unsigned current_thread();  // of the block

// Moves waiting lanes to those that may run.
void release_lanes(Warp& warp, uint32_t lanes);

// Lets other threads run until the current one, which must be waiting or ready, is chosen again.
void suspend_thread();

}  // namespace emulator
