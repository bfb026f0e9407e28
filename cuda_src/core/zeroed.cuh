// SPDX-License-Identifier: MIT
// Memory that is zero when a kernel starts and when it ends: tickets, counters, flags of tiles.
//
// A kernel's parameter of this type takes only scratch memory that its plan declares as zeros, and
// such memory goes to no other parameter.
#pragma once
#include "core/types.cuh"

namespace cto::zeroed {

template <class T>
struct Zeroed {
    T value;
};

}  // namespace cto::zeroed
