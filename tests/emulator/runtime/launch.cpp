// SPDX-License-Identifier: MIT
// A launch: the blocks of a grid, one after the other.
#include <algorithm>
#include <cstring>

#include "faults.h"
#include "races.h"
#include "scheduler.h"

namespace emulator {

// Mirrored field by field by LaunchRequest in native.py.
struct LaunchRequest {
  void (*body)(void** arguments);
  void** arguments;
  uint32_t grid[3];
  uint32_t block[3];
  ThreadOrder thread_order;
  uint32_t reverse_blocks;
  uint64_t seed;
  uint64_t time_limit_milliseconds;
  void* dynamic_shared;
  uint64_t dynamic_shared_bytes;
  const Extent* static_shared;
  uint64_t static_shared_count;
};

namespace {

// All ones: a NaN in every floating-point type, and no small index.
void poison_shared_memory(const LaunchRequest& request) {
  std::memset(request.dynamic_shared, 0xFF, request.dynamic_shared_bytes);
  for (uint64_t i = 0; i < request.static_shared_count; ++i) {
    const Extent& extent = request.static_shared[i];
    std::memset(reinterpret_cast<void*>(extent.begin), 0xFF, extent.end - extent.begin);
  }
}

// From the first of the variables to the last.
SharedRange range_of_variables(const LaunchRequest& request) {
  if (request.static_shared_count == 0) return {};
  uintptr_t begin = UINTPTR_MAX, end = 0;
  for (uint64_t i = 0; i < request.static_shared_count; ++i) {
    begin = std::min(begin, request.static_shared[i].begin);
    end = std::max(end, request.static_shared[i].end);
  }
  return {begin, end - begin};
}

void set_block_index(uint64_t block) {
  blockIdx.x = block % gridDim.x;
  blockIdx.y = block / gridDim.x % gridDim.y;
  blockIdx.z = block / gridDim.x / gridDim.y;
}

bool run_blocks(const LaunchRequest& request) {
  const uint64_t count = uint64_t{gridDim.x} * gridDim.y * gridDim.z;
  for (uint64_t i = 0; i < count; ++i) {
    set_block_index(request.reverse_blocks ? count - 1 - i : i);
    poison_shared_memory(request);
    if (!run_block()) return false;
  }
  return true;
}

}  // namespace

}  // namespace emulator

// True: every thread of every block ran to its end.
extern "C" bool emulator_launch(const emulator::LaunchRequest* request) {
  using namespace emulator;
  gridDim = {request->grid[0], request->grid[1], request->grid[2]};
  blockDim = {request->block[0], request->block[1], request->block[2]};
  dynamic_shared = request->dynamic_shared;
  prepare_threads({request->body, request->arguments, request->thread_order, request->seed});
  watch_shared_memory(range_of_variables(*request),
                      {reinterpret_cast<uintptr_t>(request->dynamic_shared),
                       request->dynamic_shared_bytes});
  const FaultGuard guard(request->time_limit_milliseconds);
  return run_blocks(*request);
}
