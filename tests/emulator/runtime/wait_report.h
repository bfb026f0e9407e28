// SPDX-License-Identifier: MIT
#pragma once

#include "scheduler.h"

namespace emulator {

bool same_site(Site a, Site b);

// Who waits where, in a block none of whose threads can go on.
const char* deadlock_text(const Warp* warps, unsigned warp_count);

}  // namespace emulator
