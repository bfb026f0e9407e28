# SPDX-License-Identifier: MIT
"""Tensor movement in NumPy. Formulas: the classes of the same names in `operators.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...dtypes import HostArray

Integers = Sequence[int]


def view(x: HostArray, shapes: Sequence[tuple[int, ...]]) -> tuple[HostArray, ...]:
    """Return pieces of x, in order, in these shapes."""
    ends = np.cumsum([math.prod(shape) for shape in shapes], dtype=np.int64)
    pieces = np.split(x.reshape(-1), ends[:-1])
    return tuple(p.reshape(shape) for p, shape in zip(pieces, shapes, strict=False))


def concat_training(xs: Sequence[HostArray], *, axis: int) -> HostArray:
    return np.concatenate(xs, axis)


def split_training(
    x: HostArray, split: Integers | None = None, *, axis: int, num_outputs: int | None
) -> tuple[HostArray, ...]:
    """Return x split along the axis into `split` lengths, or num_outputs equal parts."""
    ends: Any = np.cumsum(split)[:-1] if split else num_outputs
    return tuple(np.split(x, ends, axis))
