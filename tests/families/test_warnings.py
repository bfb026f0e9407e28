# SPDX-License-Identifier: MIT
"""NumPy's warnings are errors in tests: no function of the CPU provider leaks one."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cupy_training_ops import get_op
from cupy_training_ops.dtypes import FLOATS
from cupy_training_ops.registry import names
from cupy_training_ops.testing.samples import all_samples, mapped_inputs

SAMPLES = all_samples()


def extremes(array: Any, rng: np.random.Generator) -> Any:
    """An array of the same kind with infinities, NaN, and the type's largest and smallest."""
    if not isinstance(array, np.ndarray | np.generic) or array.dtype not in FLOATS:
        return array
    limits = ml_dtypes.finfo(array.dtype)
    values = [np.inf, -np.inf, np.nan, limits.max, limits.min, limits.smallest_subnormal, -1.0, 0.0]
    return rng.choice(np.array(values).astype(array.dtype), array.shape)


@pytest.mark.parametrize("name", names())
def test_extreme_values_are_no_warnings(name, rng) -> None:
    """Nor errors of NumPy's, for those who asked for them."""
    small = (sample for sample in SAMPLES[name] if "large" not in sample.label)
    for sample in small:
        op, inputs = get_op(name)(**sample.attributes), sample.make(rng)
        with np.errstate(all="raise"):
            op(*mapped_inputs(op, inputs, lambda x: extremes(x, rng)))
