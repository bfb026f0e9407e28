// SPDX-License-Identifier: MIT
// The lane that arrives last computes every lane's result, so no lane can overwrite a value that
// another has not read yet.
#include "warp_operations.h"

#include <algorithm>

#include "matrix_products.h"
#include "races.h"
#include "warpgroup_products.h"

namespace emulator {

namespace {

template <typename Visit>
void for_each_lane(uint32_t lanes, Visit visit) {
  for (; lanes != 0; lanes &= lanes - 1) visit(static_cast<unsigned>(__builtin_ctz(lanes)));
}

unsigned shuffle_source(const WarpCall& call, unsigned lane) {
  const unsigned first = lane & ~(call.width - 1);
  const unsigned last = first + call.width - 1;
  const unsigned argument = call.lane_argument % kWarpSize;
  switch (call.operation) {
    case WarpOperation::kShuffleIndex:
      return first + argument % call.width;
    case WarpOperation::kShuffleUp:
      return lane < first + argument ? lane : lane - argument;
    case WarpOperation::kShuffleDown:
      return lane + argument > last ? lane : lane + argument;
    default:
      return (lane ^ argument) > last ? lane : lane ^ argument;
  }
}

uint64_t combine(WarpOperation operation, uint64_t a, uint64_t b) {
  const auto signed_a = static_cast<int64_t>(a);
  const auto signed_b = static_cast<int64_t>(b);
  switch (operation) {
    case WarpOperation::kAdd:
      return a + b;
    case WarpOperation::kMin:
      return std::min(signed_a, signed_b);
    case WarpOperation::kMax:
      return std::max(signed_a, signed_b);
    case WarpOperation::kAnd:
      return a & b;
    case WarpOperation::kOr:
      return a | b;
    default:
      return a ^ b;
  }
}

uint32_t lanes_with_value(const Warp& warp, uint32_t group, uint64_t value) {
  uint32_t equal = 0;
  for_each_lane(group, [&](unsigned l) {
    if (warp.calls[l]->value == value) equal |= 1u << l;
  });
  return equal;
}

uint64_t reduce(const Warp& warp, uint32_t group) {
  const unsigned first = __builtin_ctz(group);
  uint64_t result = warp.calls[first]->value;
  for_each_lane(group & (group - 1), [&](unsigned l) {
    result = combine(warp.calls[l]->operation, result, warp.calls[l]->value);
  });
  return result;
}

// A shuffle from a lane that does not take part gives all ones: a NaN, noticed in results.
uint64_t shuffle(const Warp& warp, uint32_t group, unsigned lane) {
  const unsigned source = shuffle_source(*warp.calls[lane], lane);
  return group >> source & 1 ? warp.calls[source]->value : ~uint64_t{0};
}

uint64_t lane_result(const Warp& warp, uint32_t group, unsigned lane) {
  const WarpCall& call = *warp.calls[lane];
  switch (call.operation) {
    case WarpOperation::kShuffleIndex:
    case WarpOperation::kShuffleUp:
    case WarpOperation::kShuffleDown:
    case WarpOperation::kShuffleXor:
      return shuffle(warp, group, lane);
    case WarpOperation::kMatchAny:
      return lanes_with_value(warp, group, call.value);
    case WarpOperation::kMatchAll:
      return lanes_with_value(warp, group, call.value) == group ? call.mask : 0;
    default:
      return 0;
  }
}

void store_results(Warp& warp, uint32_t group) {
  const WarpOperation operation = warp.calls[__builtin_ctz(group)]->operation;
  if (operation == WarpOperation::kSynchronize) return;
  if (operation == WarpOperation::kMultiply) return multiply_fragments(warp);
  if (operation == WarpOperation::kMultiplyGroup) return begin_products(warp);
  if (operation == WarpOperation::kBallot) {
    const uint32_t votes = group & ~lanes_with_value(warp, group, 0);
    for_each_lane(group, [&](unsigned l) { warp.calls[l]->result = votes; });
  } else if (operation >= WarpOperation::kAdd) {
    const uint64_t total = reduce(warp, group);
    for_each_lane(group, [&](unsigned l) { warp.calls[l]->result = total; });
  } else {
    for_each_lane(group, [&](unsigned l) {
      warp.calls[l]->result = lane_result(warp, group, l);
    });
  }
}

void check_agreement(const Warp& warp, const WarpCall& call, uint32_t group) {
  for_each_lane(group, [&](unsigned l) {
    const WarpCall& other = *warp.calls[l];
    if (other.mask == call.mask && other.operation == call.operation) return;
    fail(call.site, "lanes disagree: %s with mask 0x%08x here, %s with mask 0x%08x at %s:%d",
         operation_name(call.operation), call.mask, operation_name(other.operation), other.mask,
         other.site.file, other.site.line);
  });
}

void complete_operation_if_full(Warp& warp, unsigned lane) {
  const WarpCall& call = *warp.calls[lane];
  const uint32_t group = call.mask & warp.live;
  if (call.operation == WarpOperation::kActiveMask || (warp.at_operation & group) != group) return;
  check_agreement(warp, call, group);
  const bool multiplies = call.operation == WarpOperation::kMultiply ||
                          call.operation == WarpOperation::kMultiplyGroup;
  if (multiplies && group != ~0u)
    fail(call.site, "%s: of the warp only lanes 0x%08x take part",
         operation_name(call.operation), group);
  store_results(warp, group);
  if (call.operation == WarpOperation::kSynchronize) order_warp(current_thread() / kWarpSize);
  release_lanes(warp, group);
}

void check_call(const WarpCall& call) {
  const char* name = operation_name(call.operation);
  if (!(call.mask >> current_lane() & 1))
    fail(call.site, "%s: mask 0x%08x lacks the calling lane", name, call.mask);
  if (call.width == 0 || call.width > kWarpSize || (call.width & (call.width - 1)) != 0)
    fail(call.site, "%s: width %u is not a power of two up to 32", name, call.width);
}

}  // namespace

const char* operation_name(WarpOperation operation) {
  static const char* const names[] = {
      "__syncwarp",      "__activemask",     "__shfl_sync",         "__shfl_up_sync",
      "__shfl_down_sync", "__shfl_xor_sync", "vote (ballot, any, all)", "__match_any_sync",
      "__match_all_sync", "mma.sync", "wgmma", "__reduce_add_sync", "__reduce_min_sync",  "__reduce_max_sync",
      "__reduce_and_sync", "__reduce_or_sync", "__reduce_xor_sync"};
  return names[static_cast<int>(operation)];
}

uint64_t warp_operation(WarpCall call) {
  check_call(call);
  Warp& warp = current_warp();
  const unsigned lane = current_lane();
  warp.calls[lane] = &call;
  warp.at_operation |= 1u << lane;
  complete_operation_if_full(warp, lane);
  suspend_thread();
  return call.result;
}

void complete_operations_after_exit(Warp& warp) {
  for (unsigned lane = 0; lane < kWarpSize; ++lane)
    if (warp.at_operation >> lane & 1) complete_operation_if_full(warp, lane);
}

void answer_active_mask(Warp& warp) {
  uint32_t lanes = 0;
  for_each_lane(warp.at_operation, [&](unsigned l) {
    if (warp.calls[l]->operation == WarpOperation::kActiveMask) lanes |= 1u << l;
  });
  for_each_lane(lanes, [&](unsigned l) { warp.calls[l]->result = lanes; });
  release_lanes(warp, lanes);
}

}  // namespace emulator
