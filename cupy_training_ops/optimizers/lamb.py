# SPDX-License-Identifier: MIT
"""LAMB for training loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..declare.schema import finite
from ..errors import refuse, shown
from ..planning.step import above_zero
from . import checks
from .base import Names, Optimizer
from .steps import LambStep


class Lamb(Optimizer):
    """LAMB: p = p - lr ratio d, ratio = |p| / |d| of each parameter.

    d = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon) + weight_decay p is the direction, with
    the moments and numbers of AdamW. The ratio is kept between the two ratio_limits and is 1 where
    either norm is 0.

    parameters, lr, names, low_precision, moment_dtype: as for Adam; parameters are float32 or
    float64.

    max_norm of a step is a number, not an array, and one that is new prepares the step anew. A
    direction or a parameter that would not be finite is left out, element by element; NaN and
    infinite gradients: see `step`. Deterministic. Raises ArgumentError and DtypeError.

    Memory: a workspace for directions, see LambOptimizer.

    Source: GradientNorm and LambOptimizer do the work; You et al., Large batch optimization for
    deep learning.
    """

    def __init__(
        self,
        parameters: Sequence[Any],
        lr: Any = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-6,
        weight_decay: float = 1e-2,
        ratio_limits: tuple[float, float] = (-math.inf, math.inf),
        names: Names | None = None,
        low_precision: Sequence[Any] | None = None,
        moment_dtype: object = None,
    ) -> None:
        alpha, beta = checks.betas("Lamb", betas)
        weight_decay = checks.number("Lamb", "weight_decay", finite, weight_decay)
        ratio_min, ratio_max = checks.limits("Lamb", ratio_limits)
        self._attributes = {
            "alpha": alpha, "beta": beta, "lambda_": weight_decay, "epsilon": epsilon,
            "ratio_min": ratio_min, "ratio_max": ratio_max,
        }  # fmt: skip
        super().__init__(self._operator(None), parameters, lr, names, low_precision, moment_dtype)

    def _variant(self, max_norm: Any) -> object:
        if max_norm is not None and type(max_norm) not in (int, float):
            refuse("Lamb", "max_norm", "a number", shown(max_norm))
        return max_norm

    def _operator(self, max_norm: Any) -> LambStep:
        limit = math.inf
        if max_norm is not None:
            limit = checks.number("Lamb", "max_norm", above_zero, max_norm)
        return LambStep(**self._attributes, max_norm_clip=limit)
