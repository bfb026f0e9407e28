# SPDX-License-Identifier: MIT
"""Calls of losses."""

from __future__ import annotations

import numpy as np
import pytest

from cupy_training_ops import get_op
from cupy_training_ops.families.cross_entropy.samples import REDUCTIONS
from cupy_training_ops.plan import Device

H200 = Device(132, (9, 0), 227 * 1024)


LOSS, GRADIENT = "SoftmaxCrossEntropyLossInternal", "SoftmaxCrossEntropyLossInternalGrad"
BOTH = "CrossEntropyLossAndGrad"
reductions = pytest.mark.parametrize("reduction", REDUCTIONS)


def call(run, name, *inputs, out=None, outputs=None, **attributes):
    """The results as NumPy arrays."""
    op = get_op(name)(**attributes)
    actual = op(*run.place_inputs(op, inputs), out=out, outputs=outputs)
    actual = actual if isinstance(actual, tuple) else (actual,)
    return [None if array is None else run.host(array) for array in actual]


LABELS = np.array([3, 0, 36, 5, 5, 9])
