# SPDX-License-Identifier: MIT
"""Sums, norms and finiteness checks in NumPy. Formulas: the classes in `operators.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...dtypes import FLOAT64, FLOATS, Dtype, HostArray
from ...rules.widening import cast, quiet


@quiet
def reduce_sum_training(
    data: HostArray,
    axes: tuple[int, ...],
    *,
    keepdims: bool,
    noop_with_empty_axes: bool,
) -> HostArray:
    """Return the sum over axes, floats in float64; data itself where each axis has one element.

    axes: () is all of them, or none with noop_with_empty_axes. keepdims: they stay, with extent 1.
    """
    if not axes and noop_with_empty_axes:
        return data
    axes = axes or tuple(range(data.ndim))
    if {data.shape[axis] for axis in axes} <= {1}:
        return data if keepdims else data.squeeze(axes)
    wide = FLOAT64 if data.dtype in FLOATS else data.dtype
    summed = data.astype(wide).sum(axis=axes, dtype=wide, keepdims=keepdims)
    return cast(summed, data.dtype)


@quiet
def reduce_all_l2(x: Sequence[HostArray], *, output_type: Dtype | None) -> HostArray:
    """Return sqrt(sum of squares) of all elements, in output_type, or x's dtype if that is None."""
    y_type = output_type or x[0].dtype
    total = sum(np.sum(np.square(item.astype(FLOAT64))) for item in x)
    return cast(np.sqrt(np.asarray(total)), y_type)


@quiet
def is_all_finite(x: Sequence[HostArray], *, isinf_only: bool, isnan_only: bool) -> HostArray:
    """Return a bool () that no element is infinite or NaN; *_only: looks for one of them alone."""
    fails = np.isinf if isinf_only else np.isnan if isnan_only else _not_finite
    return np.array(not any(fails(item.astype(FLOAT64)).any() for item in x))


def _not_finite(x: HostArray) -> HostArray:
    return ~np.isfinite(x)


def all(x: HostArray) -> HostArray:
    return np.array([x.all()])
