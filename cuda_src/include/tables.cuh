// SPDX-License-Identifier: MIT
// Tables passed by value in the launch parameters.
#pragma once
#include "include/types.cuh"

namespace cto {

// The addresses of several arrays; runtime/plan.py's Pointers fills it.
template <int CAPACITY>
struct Pointers {
    void* at[CAPACITY];
};

}  // namespace cto
