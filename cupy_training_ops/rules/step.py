# SPDX-License-Identifier: MIT
"""An optimizer's step: its numbers, what gradients are divided by, corrections and counting."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..dtypes import BFLOAT16, HostArray
from .philox import words
from .widening import cast


def number(value: object, absent: float = 1.0) -> float:
    """Return an option of a step, a number or an array of one element, as a float; None: absent."""
    return absent if value is None else float(np.ravel(np.asarray(value))[0])


def gradient_divisor(loss_scale: object, norm: object, max_norm: float) -> float:
    """Return max(loss_scale, norm / max_norm), by which gradients are divided.

    The loss scale (None: 1) alone if max_norm is 0, or the norm None or NaN.
    """
    scale, length = number(loss_scale), number(norm, np.nan)
    return length / max_norm if max_norm > 0 and length > scale * max_norm else scale


def allows_step(rate: object, loss_scale: object = None) -> bool:
    """Return True if a step can be made with these; else it changes nothing."""
    scale = number(loss_scale)
    return math.isfinite(number(rate)) and math.isfinite(scale) and scale > 0


def bias_correction(beta: float, step: int) -> float:
    """Return 1 - beta^step, by which Adam divides a moment; 1 for a step below 1."""
    return 1.0 - beta**step if step > 0 else 1.0


def count_step(step: object, update: bool) -> tuple[int, HostArray]:
    """Return (step, step + update) as an int and an int64 array; None is step 0.

    The step after 2^63 - 1 wraps around to -2^63.
    """
    after = np.array(0 if step is None else step, np.int64)
    before: int = after.item()
    after += update
    return before, after


def rounded_weights(
    wide: Sequence[HostArray], weights: Sequence[HostArray], seed: int | None, step: int
) -> tuple[HostArray, ...]:
    """Return the new weights, rounded to nearest even, or with a seed at random.

    wide: new weights in the dtype that they were computed in. weights: the old ones, whose dtypes
    the results have. step: its number, as each step has other random numbers.
    """
    pairs = zip(wide, weights, strict=True)
    if seed is None:
        return tuple(cast(x, w.dtype) for x, w in pairs)
    return tuple(_rounded_at_random(x, seed, step) for x, _ in pairs)


def _rounded_at_random(x: HostArray, seed: int, step: int) -> HostArray:
    """Return float32 x as bfloat16, rounded away from zero as often as it is nearer to there.

    bfloat16 is the upper 16 bits of float32: random 16 bits are added to the lower ones, and these
    cut off. Infinities and NaN, which a carry would change, are converted as usual.
    """
    noises = words((seed, step % 2**64), 0, x.size).reshape(x.shape) >> np.uint32(16)
    up = ((x.view(np.uint32) + noises) >> np.uint32(16)).astype(np.uint16).view(BFLOAT16)
    rounded: HostArray = np.where(np.isfinite(x), up, cast(x, BFLOAT16))
    return rounded
