// SPDX-License-Identifier: MIT
// Coefficients of a channel: computed from its sums, applied to its elements.
#pragma once
#include "batch_norm/facts.cuh"
#include "batch_norm/relu.cuh"
#include "core/types.cuh"

namespace cto::batch_norm::coefficients {

using namespace facts::batch_norm;

// Where numbers that other threads have written are read from.
enum class Memory { shared, global };

// *from, which another thread has written, in global memory maybe one of another block: then the
// load bypasses the L1 cache, which may have an older value.
template <Memory MEMORY, class A>
__device__ A load_from(const A* from) {
    if constexpr (MEMORY == Memory::global)
        return __ldcg(from);
    else
        return *from;
}

// Input numbers of a channel from which its coefficients follow, beside its sums: {scale, bias} in
// the normalization, {scale, inv_std} in the gradient.
template <class A>
struct ChannelInputs {
    A first, second;
};

// The numbers of a channel from which every element of its result is computed:
//     normalization   y = (x - reference - offset) * factor + term
//     gradient        dx = ((dy - offset) - (x - reference) * term) * factor
template <class A>
struct Coefficients {
    A reference, offset, factor, term;

    // to[0..3] = reference, offset, factor, term.
    __device__ void store(A* to) const {
        to[0] = reference, to[1] = offset, to[2] = factor, to[3] = term;
    }
    // Reads {reference, offset, factor, term} = from[0..3], as `store` has written them.
    template <Memory MEMORY>
    static __device__ Coefficients load(const A* from) {
        return {load_from<MEMORY>(from), load_from<MEMORY>(from + 1), load_from<MEMORY>(from + 2),
                load_from<MEMORY>(from + 3)};
    }
};
static_assert(sizeof(Coefficients<float>) == COEFFICIENTS * sizeof(float));

template <class Op>
using OpCoefficients = Coefficients<typename Op::A>;

// The result of element i of the thread's slot u: Op::map of that element of each input array,
// Op::READ of them: (x), (x, dY), or with relu (x, dY masked by Y). coefs: of the element's
// channel; rows: the thread's elements in registers.
template <class Op, class Rows>
__device__ typename Op::A map_element(const OpCoefficients<Op>& coefs, const Rows& rows, int u,
                                      int i) {
    if constexpr (Op::READ == 1)
        return Op::map(coefs, rows.at(0, u, i));
    else if constexpr (Op::READ == 2)
        return Op::map(coefs, rows.at(0, u, i), rows.at(1, u, i));
    else
        return Op::map(coefs, rows.at(0, u, i), relu::masked_slope(rows, u, i));
}

}  // namespace cto::batch_norm::coefficients
