// SPDX-License-Identifier: MIT
#pragma once

#include "scheduler.h"

namespace emulator {

void begin_products_of_block();

// All lanes of the warp wait with their parts of a product of its warpgroup.
void begin_products(Warp& warp);

// Fails if the current thread has begun products and not waited for them.
void require_no_products();

}  // namespace emulator
