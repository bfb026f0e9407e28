// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace emulator {

// Where an address lies relative to the nearest guarded array, in words.
const char* describe_address(uintptr_t address);

}  // namespace emulator
