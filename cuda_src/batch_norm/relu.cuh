// SPDX-License-Identifier: MIT
// relu after batch normalisation: the residual that is added before it, and the mask of its
// gradient. Where RELU is 1, Op::ADDS (Normalization) or Op::MASKS (Gradient) is true; else nothing
// of this is compiled.
#pragma once
#include "batch_norm/facts.cuh"
#include "core/types.cuh"
#include "core/vec.cuh"

namespace cto::batch_norm::relu {

using vec::Vec;

// dY of element i of the thread's slot u, or 0 where relu's output Y is 0: the gradient before
// relu. Arrays of `rows` are (X, dY, Y). Where Y is NaN, dY is returned, as in PyTorch.
template <class Rows>
__device__ __forceinline__ auto masked_slope(const Rows& rows, int u, int i) {
    const auto slope = rows.at(1, u, i);
    return rows.at(2, u, i) <= 0 ? decltype(slope + slope)(0) : slope;
}

// The residual's elements of DEPTH slots of W elements of a thread, in registers; zeros where there
// is no residual.
template <class Op, int W, int DEPTH>
struct Residuals {
    using T = typename Op::T;
    using A = typename Op::A;
    using Unit = vec::Unit<T, vec::IN_WORDS<T, W>>;
    using Register = typename Unit::Register;
    using Slot = Vec<Register, W * sizeof(T) / sizeof(Register)>;

    Slot registers[DEPTH];

    // Loads slot u of op.residual, from index `element` of the array on, if it exists. Not aligned:
    // only its first n_columns elements, one by one.
    __device__ void load(const Op& op, int u, i64 element, bool exists, bool aligned = true,
                         u32 n_columns = W) {
        registers[u] = {};
        if (!exists || !op.residual) return;
        const T* const from = op.residual + element;
        if (aligned) {
            registers[u] = vec::load_streaming(reinterpret_cast<const Slot*>(from));
        } else {
            const auto elements = vec::load_elements<T, W>(from, 0, n_columns);
            registers[u] = *reinterpret_cast<const Slot*>(&elements);
        }
    }
    // values[i] = relu(values[i] + element i of slot u). NaN stays NaN.
    __device__ void rectify(A (&values)[W], int u) const {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            const A sum = values[i] + Unit::at(registers[u].at, i);
            values[i] = sum <= 0 ? A(0) : sum;
        }
    }
};

// Stores the results `values` of the thread's slot u (of W elements, of `rows`) at `to` by
// store(to, values), if op.result is not null. In the gradient also the residual's gradient, masked
// dY, at index `element` of its array, if that is not null; `values` are overwritten.
template <class Op, class Rows, int W, class Store>
__device__ __forceinline__ void store_results(const Op& op, const Rows& rows, int u,
                                              typename Op::T* to, i64 element,
                                              typename Op::A (&values)[W], const Store& store) {
    if constexpr (Op::MASKS) {
        if (op.result) store(to, values);
        if (!op.residual_grad) return;
#pragma unroll
        for (int i = 0; i < W; ++i) values[i] = masked_slope(rows, u, i);
        store(op.residual_grad + element, values);
    } else {
        store(to, values);
    }
}

}  // namespace cto::batch_norm::relu
