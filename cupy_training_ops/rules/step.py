# SPDX-License-Identifier: MIT
"""An optimizer's step: its numbers, what gradients are divided by, corrections and counting."""

from __future__ import annotations

import math

import numpy as np

from ..dtypes import HostArray


def number(value: object, absent: float = 1.0) -> float:
    """An option of a step as a float: a number, an array of one element, or `absent` for None."""
    return absent if value is None else float(np.ravel(np.asarray(value))[0])


def gradient_divisor(loss_scale: object, norm: object, max_norm: float) -> float:
    """max(loss_scale, norm / max_norm), which gradients are divided by.

    The loss scale alone where max_norm is 0 or the norm is NaN.
    """
    scale, length = number(loss_scale), number(norm, np.nan)
    return length / max_norm if max_norm > 0 and length > scale * max_norm else scale


def can_be_made(rate: object, loss_scale: object = None) -> bool:
    """Return True if a step can be made with these; else it changes nothing."""
    scale = number(loss_scale)
    return math.isfinite(number(rate)) and math.isfinite(scale) and scale > 0


def bias_correction(beta: float, step: int) -> float:
    """1 - beta^step, from the first step on."""
    return 1.0 - beta**step if step > 0 else 1.0


def count_step(step: object, update: bool) -> tuple[int, HostArray]:
    """(step, step + update): this step, 0 for None, and the next one; the largest wraps around."""
    after = np.array(0 if step is None else step, np.int64)
    before: int = after.item()
    after += update
    return before, after
