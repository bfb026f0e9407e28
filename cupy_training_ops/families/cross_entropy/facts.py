# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of cross_entropy share: cuda_src/cross_entropy/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot, Struct, flag, i32, i64
from ...facts import HELD_NBYTES

NBYTES = Slot(HELD_NBYTES)
NBYTES_BESIDE_WIDER = 64  # of log-probabilities that a thread holds beside a wider bias
# Of scores and shares of classes that a thread has in registers: more are spilled beside addresses
# of weights.
NBYTES_OF_SHARES = 32
MOST_SMOOTHED = 2**24  # classes, which float32 counts exactly
REGULARIZED_THREADS = 512  # of a block at most, as capped scores take registers
SUM_THREADS = 256
N_SUMS = 2  # over rows, at most: of losses and of weights

# How labels and weights are read. Types are ONNX numbers, so that they cost no compilation.
# `ignores`: whether ignore_index is one; `wide_labels`: of 64 bits, not 32; `row_weights`: a weight
# for each row, not for each class.
Rule = Struct(
    "Rule",
    n_classes=i64,
    ignore_index=i64,
    weight_type=i32,
    ignores=flag,
    wide_labels=flag,
    row_weights=flag,
)
