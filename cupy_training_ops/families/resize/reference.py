# SPDX-License-Identifier: MIT
"""The gradient of resizing in NumPy. Formula: the class of the same name in `operators.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...dtypes import HostArray
from ...rules.widening import cast, quiet


@quiet
def resize_grad(
    dy: HostArray,
    x: HostArray,
    roi: object = None,
    scales: Sequence[float] | None = None,
    *,
    mode: str,
    coordinate_transformation_mode: str,
    antialias: int,
    axes: tuple[int, ...],
    keep_aspect_ratio_policy: str,
    cubic_coeff_a: float,
    exclude_outside: bool,
    extrapolation_value: float,
    nearest_mode: str,
) -> HostArray:
    """Return dX of linear interpolation: dY shared out to its two neighbours, axis after axis.

    x: has the shape of dX. scales: outputs for a pixel, of each of the four axes; None: from the
    shapes. Of the attributes only coordinate_transformation_mode matters.
    """
    del roi, mode, antialias, axes, keep_aspect_ratio_policy  # none changes anything
    del cubic_coeff_a, exclude_outside, extrapolation_value, nearest_mode  # of other modes
    dx = dy.astype(np.float64)
    align_corners = coordinate_transformation_mode == "align_corners"
    real = np.float64 if dy.dtype == np.float64 else np.float32
    for axis in (2, 3):
        n, m = x.shape[axis], dy.shape[axis]
        low, share = _taps(n, m, scales[axis] if scales else None, align_corners, real)
        outputs = np.moveaxis(dx, axis, 0)
        dx = np.moveaxis(_share_out(outputs, n, low, share), 0, axis)
    return cast(dx, dy.dtype)


def _taps(
    n: int, m: int, scale: float | None, align_corners: bool, real: Any
) -> tuple[HostArray, HostArray]:
    """Return the pixel below each of m outputs, and what an output takes of the next pixel, 0 to 1.

    n: pixels along the axis. scale: outputs for a pixel; None: m / n. align_corners: first and last
    outputs lie on the first and last pixels. real: type that positions are computed in.
    """
    o = np.arange(m, dtype=real)
    if align_corners:
        position = o * (real(n - 1) / real(m - 1) if m > 1 else real(0))
    else:
        ratio = real(n) / real(max(m, 1)) if scale is None else real(1) / real(scale)
        position = np.maximum(ratio * (o + real(0.5)) - real(0.5), real(0))
    low = np.minimum(position.astype(np.int64), n - 1)
    return low, np.where(low < n - 1, position - low.astype(real), real(0))


def _share_out(dy: HostArray, n: int, low: HostArray, share: HostArray) -> HostArray:
    """Return dX, n pixels along axis 0: each row of dY is added to pixels low and low + 1.

    low, share: of each output, as _taps gives them.
    """
    share = share.reshape(-1, *[1] * (dy.ndim - 1))
    dx = np.zeros((n, *dy.shape[1:]))
    _add_runs(dx, low, (1 - share) * dy)
    touched = np.flatnonzero(share)  # zero times infinity is no number
    _add_runs(dx, low[touched] + 1, share[touched] * dy[touched])
    return dx


def _add_runs(dx: HostArray, rows: HostArray, values: HostArray) -> None:
    """Add values[i] to dx[rows[i]] for all i, where rows ascend and may repeat."""
    several, first = np.unique(rows, return_index=True)  # equal rows are neighbours
    if several.size:
        dx[several] += np.add.reduceat(values, first)
