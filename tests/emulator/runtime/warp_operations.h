// SPDX-License-Identifier: MIT
#pragma once

#include "scheduler.h"

namespace emulator {

// A thread of the warp has exited: operations that waited for it alone are complete.
void complete_operations_after_exit(Warp& warp);

// Answers __activemask() in a warp all of whose live lanes wait.
void answer_active_mask(Warp& warp);

const char* operation_name(WarpOperation operation);

}  // namespace emulator
