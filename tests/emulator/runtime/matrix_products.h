// SPDX-License-Identifier: MIT
#pragma once

#include "scheduler.h"

namespace emulator {

// All lanes of the warp wait with their fragments.
void multiply_fragments(Warp& warp);

}  // namespace emulator
