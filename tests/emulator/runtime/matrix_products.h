// SPDX-License-Identifier: MIT
#pragma once

#include "scheduler.h"

namespace emulator {

// Element `p` of a word.
float element(Element type, uint32_t word, unsigned p);

// All lanes of the warp wait with their fragments.
void multiply_fragments(Warp& warp);

}  // namespace emulator
