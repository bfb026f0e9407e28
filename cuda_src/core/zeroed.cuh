// SPDX-License-Identifier: MIT
// Memory that is zero when a kernel starts and when it ends: counters and flags of blocks, such as
// the `ticket` by which reduce::arrives_last counts blocks that have finished.
//
// A kernel's parameter Zeroed<T>* takes only scratch memory that the host's launch plan declares as
// zeros, and such memory goes to no other parameter.
#pragma once
#include "core/types.cuh"

namespace cto::zeroed {

// A T in such memory: 0 at the start, and to be 0 again at the end.
template <class T>
struct Zeroed {
    T value;
};

}  // namespace cto::zeroed
