# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of cross_entropy share: cuda_src/cross_entropy/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot, Struct, flag, i32, i64
from ...facts import HELD_NBYTES

NBYTES = Slot(HELD_NBYTES)  # bytes of a row of scores in a thread's registers at a time
# Bytes of a row of log-probabilities in a thread's registers at a time, if a bias of a wider type
# is beside them.
NBYTES_BESIDE_WIDER = 64
# Bytes of a row of scores in a thread's registers at a time, in losses with other terms than a
# class's log_prob. Of more, some would be spilled.
NBYTES_OF_TERMS = 64
# Bytes of a row of scores and of target probabilities, together, in a thread's registers at a
# time; the weights of their classes are beside them.
NBYTES_OF_SHARES = 64
MOST_SMOOTHED = 2**24  # most classes with label smoothing: float32 counts no further exactly
TERMS_THREADS = 256  # most threads of a block of these losses, which take registers
UNCAPPED_THREADS = 512  # most threads of a row of them without a cap, against labels
SUM_THREADS = 256  # threads of a block that sums over rows
N_SUMS = 2  # sums over rows of a launch, at most: of losses and of weights

# How labels and weights are read. n_classes: labels are below it. ignore_index: the label of rows
# without loss, if `ignores`. weight_type: ONNX number of the weights' type, 0 without weights;
# known at run time, so that it costs no compilation. wide_labels: labels are int64, else int32.
# row_weights: there is a weight for each row; else for each class.
Rule = Struct(
    "Rule",
    n_classes=i64,
    ignore_index=i64,
    weight_type=i32,
    ignores=flag,
    wide_labels=flag,
    row_weights=flag,
)
