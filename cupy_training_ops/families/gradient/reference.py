# SPDX-License-Identifier: MIT
"""Gradient bookkeeping in NumPy. Formulas: the classes of the same names in `operators.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...dtypes import FLOAT32, FLOAT64, Dtype, HostArray
from ...rules.widening import cast, quiet


@quiet
def in_place_accumulator(
    old_sum: HostArray, value: HostArray, update_signal: bool | None = None
) -> HostArray:
    """Return old_sum + value, or old_sum where update_signal is False."""
    if update_signal is False:
        return old_sum
    wide = _wide(old_sum, value)
    return cast(old_sum.astype(wide) + value.astype(wide), old_sum.dtype)


@quiet
def in_place_accumulator_v2(
    accumulation_buffer: HostArray, value: HostArray, overwrite_flag: bool | None = None
) -> HostArray:
    """Return accumulation_buffer + value, or value alone with overwrite_flag."""
    if overwrite_flag:
        return cast(value, accumulation_buffer.dtype)
    return in_place_accumulator(accumulation_buffer, value)


def in_place_accumulator_list(
    old_sums: Sequence[HostArray], values: Sequence[HostArray], update_signal: bool | None = None
) -> tuple[HostArray, ...]:
    """Return old_sums[i] + values[i] for each i, or old_sums."""
    pairs = zip(old_sums, values, strict=True)
    return tuple(in_place_accumulator(*pair, update_signal) for pair in pairs)


def zero_gradient(old_gradient: HostArray, _reset_signal: HostArray) -> HostArray:
    return np.zeros_like(old_gradient)


@quiet
def mixed_precision_scale(
    s: HostArray, xs: Sequence[HostArray], *, to: Dtype, fuse_outputs: bool
) -> tuple[HostArray, ...]:
    """Return s x in dtype `to` for each x; with fuse_outputs one flat array of all."""
    scaled = [cast(s.reshape(()) * x.astype(_wide(x)), to) for x in xs]
    return (np.concatenate([y.ravel() for y in scaled]),) if fuse_outputs else tuple(scaled)


def _wide(*arrays: HostArray) -> Dtype:
    """Return the type to compute in: float64 where an array has it, else float32."""
    return FLOAT64 if any(array.dtype == FLOAT64 for array in arrays) else FLOAT32
