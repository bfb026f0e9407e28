// SPDX-License-Identifier: MIT
// Coefficients of a channel: made of its sums, and applied to its elements.
#pragma once
#include "batch_norm/facts.cuh"
#include "core/types.cuh"

namespace cto::batch_norm::coefficients {

using namespace facts::batch_norm;

enum class Memory { shared, global };

// A number that another thread has written; in global memory also one of another block.
template <Memory MEMORY, class A>
__device__ A load_from(const A* from) {
    if constexpr (MEMORY == Memory::global)
        return __ldcg(from);
    else
        return *from;
}

// Inputs of a channel's coefficients beside its sums.
template <class A>
struct ChannelInputs {
    A first, second;
};

// Numbers that a channel's elements are mapped with.
template <class A>
struct Coefficients {
    A reference, offset, factor, term;

    __device__ void store(A* to) const {
        to[0] = reference, to[1] = offset, to[2] = factor, to[3] = term;
    }
    template <Memory MEMORY>
    static __device__ Coefficients load(const A* from) {
        return {load_from<MEMORY>(from), load_from<MEMORY>(from + 1), load_from<MEMORY>(from + 2),
                load_from<MEMORY>(from + 3)};
    }
};
static_assert(sizeof(Coefficients<float>) == COEFFICIENTS * sizeof(float));

template <class Op>
using OpCoefficients = Coefficients<typename Op::A>;

template <class Op, class Held>
__device__ typename Op::A map_element(const OpCoefficients<Op>& of, const Held& held, int u,
                                      int i) {
    if constexpr (Op::READ == 1)
        return Op::map(of, held.at(0, u, i));
    else
        return Op::map(of, held.at(0, u, i), held.at(1, u, i));
}

}  // namespace cto::batch_norm::coefficients
