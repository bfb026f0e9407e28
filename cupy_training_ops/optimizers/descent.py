# SPDX-License-Identifier: MIT
"""Gradient descent for training loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .base import Names, Optimizer
from .steps import SGDStep


class SGD(Optimizer):
    """Gradient descent: p = p - lr g / d, where d unscales and clips the gradients.

    d is the loss scale s; where the norm n of all gradients is above s max_norm, it is
    n / max_norm.

    parameters: a list of arrays of one dtype (any float), C-contiguous and on one device,
    NumPy (CPU provider), CuPy (CUDA provider) or anything with `__dlpack__`. They are updated in
    place and stay what they are. lr: a number, or one element in an array on that device, which a
    step reads there. names: texts that tell the parameters apart in a state; their places by
    default. low_precision: an array of float16 or bfloat16, or None, for each parameter; every step
    that is made writes the new parameters there too, rounded once.

    State: none that steps change. NaN and infinities: see `step`. Deterministic. Raises
    ArgumentError and DtypeError.

    Source: this package; GradientNorm and SGDOptimizerList do the work.
    """

    moments = ()
    counts = False

    def __init__(
        self,
        parameters: Sequence[Any],
        lr: Any = 1e-3,
        *,
        names: Names | None = None,
        low_precision: Sequence[Any] | None = None,
    ) -> None:
        super().__init__(SGDStep(), parameters, lr, names, low_precision)
