# SPDX-License-Identifier: MIT
"""Zeros around data, in NumPy. Formulas: the classes of the same names in `operators.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...dtypes import HostArray

Integers = Sequence[int]


def slice_grad(
    dy: HostArray,
    shape: tuple[int, ...],
    starts: Integers,
    ends: Integers,
    axes: Integers | None = None,
    steps: Integers | None = None,
) -> HostArray:
    """Return dX of `shape`: zeros, but dX[slices] = dY.

    The i-th of starts, ends and steps (None: 1 each) is of axis axes[i] (None: of axis i), as in
    ONNX Slice.
    """
    slices = [slice(None) for _ in shape]
    steps = (1,) * len(starts) if steps is None else steps
    for i, axis in enumerate(range(len(starts)) if axes is None else axes):
        slices[axis] = _slice(shape[axis], starts[i], ends[i], steps[i])
    dx = np.zeros(shape, dy.dtype)
    slots = dx[tuple(slices)]
    slots[...] = dy.reshape(slots.shape)
    return dx


def _slice(extent: int, start: int, end: int, step: int) -> slice:
    """Return ONNX's slice start:end:step of an axis with `extent` elements, as Python's.

    A start before the front is 0, also for a negative step.
    """
    start, end = (bound + extent if bound < 0 else bound for bound in (start, end))
    low, high = (0, extent) if step > 0 else (-1, extent - 1)
    first, last = max(0, min(start, high)), max(low, min(end, high))
    return slice(first, last if last >= 0 else None, step) if extent else slice(0)


def flatten_and_unpad(x: HostArray, indices: HostArray) -> HostArray:
    """Return rows x.reshape(M1 M2, ...)[indices], zeros for an index out of range."""
    rows = x.reshape(-1, *x.shape[2:])
    inside = (indices >= 0) & (indices < len(rows))
    y = np.zeros((len(indices), *x.shape[2:]), x.dtype)
    y[inside] = rows[indices[inside]]
    return y


def pad_and_unflatten(
    x: HostArray, indices: HostArray, unflatten_dims: tuple[int, int]
) -> HostArray:
    """Return y, zeros but y.reshape(M1 M2, ...)[indices[k]] = x[k], the last k of equal indices.

    unflatten_dims: (M1, M2), y's first two extents. Indices out of range are skipped.
    """
    n_rows = math.prod(unflatten_dims)
    y = np.zeros((n_rows, *x.shape[1:]), x.dtype)
    inside = np.flatnonzero((indices >= 0) & (indices < n_rows))
    last = np.full(n_rows, -1)
    np.maximum.at(last, indices[inside], inside)
    y[last >= 0] = x[last[last >= 0]]
    return y.reshape(*unflatten_dims, *x.shape[1:])
