// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "interface.h"

namespace emulator {

// Every guarded array has a slot of the arena for itself, so that an address gives its array.
constexpr unsigned kSlotBits = 30;
constexpr unsigned kSlotCount = 16384;
constexpr uintptr_t kArenaBytes = static_cast<uintptr_t>(kSlotCount) << kSlotBits;

extern uintptr_t arena;
extern Extent extents[kSlotCount];

// Where an address lies relative to the nearest guarded array, in words.
const char* describe_address(uintptr_t address);

}  // namespace emulator
