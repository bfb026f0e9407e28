// SPDX-License-Identifier: MIT
#include "scheduler.h"

#include <cstring>

#include "fibers.h"
#include "races.h"
#include "wait_report.h"
#include "warp_operations.h"
#include "warpgroup_products.h"

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace emulator {

namespace {

struct Barrier {
  Site site;
  unsigned arrived;
  unsigned nonzero;
  BarrierVotes released;
  uint32_t lanes[kMaxWarps];  // that wait
};

ThreadProgram program;
uint3 thread_indices[kMaxThreads];
unsigned block_threads;
uint64_t random_state;

Warp warps[kMaxWarps];
uint32_t runnable_warps;
unsigned live_threads;
Barrier barriers[kMaxBarriers];  // the first is the block's

Context launcher;
Fiber* running_fiber;
Fiber* parked_fibers[kMaxThreads];
unsigned current;
bool thread_running;
bool block_failed;

unsigned warp_count() { return (block_threads + kWarpSize - 1) / kWarpSize; }

void update_runnable(const Warp& warp) {
  const uint32_t bit = 1u << (&warp - warps);
  runnable_warps = (warp.ready | warp.unstarted) ? runnable_warps | bit : runnable_warps & ~bit;
}

unsigned random_below_32() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state >> 59;
}

unsigned choose_bit(uint32_t set) {
  if (program.order == ThreadOrder::kForward) return __builtin_ctz(set);
  if (program.order == ThreadOrder::kReverse) return 31 - __builtin_clz(set);
  const unsigned shift = random_below_32();
  const uint32_t rotated = (set >> shift) | (set << ((32 - shift) & 31));
  return (__builtin_ctz(rotated) + shift) & 31;
}

unsigned choose_thread() {
  if (runnable_warps == 0) {
    for (unsigned w = 0; w < warp_count(); ++w) answer_active_mask(warps[w]);
    if (runnable_warps == 0) fail({}, "%s", deadlock_text(warps, warp_count()));
  }
  const unsigned w = choose_bit(runnable_warps);
  return w * kWarpSize + choose_bit(warps[w].ready | warps[w].unstarted);
}

// Makes the chosen thread the current one and gives the fiber that carries it.
Fiber* dispatch_next() {
  current = choose_thread();
  threadIdx = thread_indices[current];
  Warp& warp = current_warp();
  const uint32_t lane = 1u << current_lane();
  const bool starts = warp.unstarted & lane;
  warp.unstarted &= ~lane;
  warp.ready &= ~lane;
  update_runnable(warp);
  return starts ? take_fiber() : parked_fibers[current];
}

void switch_to(Fiber* next) {
  Fiber* self = running_fiber;
  running_fiber = next;
  if (next != self) switch_context(self->context, next->context);
}

void run_program() { program.body(program.arguments); }

void complete_if_full(Barrier& barrier, unsigned threads) {
  if (barrier.arrived == 0 || barrier.arrived != threads) return;
  barrier.released = {barrier.arrived, barrier.nonzero};
  barrier.arrived = barrier.nonzero = 0;
  order_block();
  for (unsigned w = 0; w < warp_count(); ++w) {
    release_lanes(warps[w], barrier.lanes[w]);
    barrier.lanes[w] = 0;
  }
}

BarrierVotes wait_at(Barrier& barrier, unsigned threads, bool predicate, Site site) {
  if (barrier.arrived > 0 && !same_site(barrier.site, site)) {
    fail(site, "divergent barrier: this thread waits here, others of its block wait at %s:%d",
         barrier.site.file, barrier.site.line);
  }
  barrier.site = site;
  ++barrier.arrived;
  barrier.nonzero += predicate;
  const uint32_t lane = 1u << current_lane();
  barrier.lanes[current / kWarpSize] |= lane;
  current_warp().at_barrier |= lane;
  current_warp().barrier_site = site;
  complete_if_full(barrier, threads);
  suspend_thread();
  return barrier.released;
}

void prepare_block() {
  begin_block();
  begin_products_of_block();
  std::memset(warps, 0, sizeof warps);
  runnable_warps = 0;
  std::memset(barriers, 0, sizeof barriers);
  live_threads = block_threads;
  for (unsigned t = 0; t < block_threads; ++t) warps[t / kWarpSize].live |= 1u << t % kWarpSize;
  for (unsigned w = 0; w < warp_count(); ++w) {
    warps[w].unstarted = warps[w].live;
    update_runnable(warps[w]);
  }
}

void return_to_launcher() {
  thread_running = false;
  switch_context(running_fiber->context, launcher);
}

}  // namespace

void prepare_threads(const ThreadProgram& next_program) {
  program = next_program;
  random_state = (program.seed + 1) * 0x9e3779b97f4a7c15u;
  block_threads = 0;
  for (unsigned z = 0; z < blockDim.z; ++z)
    for (unsigned y = 0; y < blockDim.y; ++y)
      for (unsigned x = 0; x < blockDim.x; ++x) thread_indices[block_threads++] = {x, y, z};
  reset_fibers(run_program);
}

bool run_block() {
  prepare_block();
  block_failed = false;
  running_fiber = dispatch_next();
  thread_running = true;
  switch_context(launcher, running_fiber->context);
  return !block_failed;
}

void abandon_block() {
  block_failed = true;
  return_to_launcher();
  __builtin_unreachable();
}

bool is_thread_running() { return thread_running; }

Warp& current_warp() { return warps[current / kWarpSize]; }

unsigned current_lane() { return current % kWarpSize; }

unsigned current_thread() { return current; }

void release_lanes(Warp& warp, uint32_t lanes) {
  warp.at_barrier &= ~lanes;
  warp.at_operation &= ~lanes;
  warp.ready |= lanes;
  update_runnable(warp);
}

void suspend_thread() {
  parked_fibers[current] = running_fiber;
  switch_to(dispatch_next());
}

void finish_thread() {
  require_no_products();
  Warp& warp = current_warp();
  warp.live &= ~(1u << current_lane());
  --live_threads;
  give_back_fiber(running_fiber);
  if (live_threads == 0) return return_to_launcher();
  complete_if_full(barriers[0], live_threads);
  complete_operations_after_exit(warp);
  switch_to(dispatch_next());
}

BarrierVotes block_barrier(bool predicate, Site site) {
  return wait_at(barriers[0], live_threads, predicate, site);
}

void group_barrier(unsigned number, unsigned threads, Site site) {
  if (number == 0 || number >= kMaxBarriers || threads == 0 || threads % kWarpSize != 0)
    fail(site, "no such barrier: number %u, %u threads", number, threads);
  wait_at(barriers[number], threads, false, site);
}

}  // namespace emulator
