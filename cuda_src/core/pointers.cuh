// SPDX-License-Identifier: MIT
// The addresses of several arrays, passed by value in the launch parameters.
#pragma once
#include "core/types.cuh"

namespace cto::pointers {

template <int CAPACITY>
struct Pointers {
    void* at[CAPACITY];
};

}  // namespace cto::pointers
