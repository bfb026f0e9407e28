# SPDX-License-Identifier: MIT
"""LAMB for training loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..errors import refuse, shown
from ..planning.step import refuse_uncorrectable
from .base import Names, Optimizer
from .checks import pair
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
        alpha, beta = pair("Lamb", "betas", betas)
        ratio_min, ratio_max = pair("Lamb", "ratio_limits", ratio_limits)
        self._attributes = {
            "alpha": alpha, "beta": beta, "lambda_": weight_decay, "epsilon": epsilon,
            "ratio_min": ratio_min, "ratio_max": ratio_max,
        }  # fmt: skip
        op = self._operator(None)
        refuse_uncorrectable("Lamb", betas=(op.alpha, op.beta))
        super().__init__(op, parameters, lr, names, low_precision, moment_dtype)

    def _variant(self, max_norm: Any) -> object:
        if max_norm is not None and type(max_norm) not in (int, float):
            refuse("Lamb", "max_norm", "a number", shown(max_norm))
        return max_norm

    def _operator(self, max_norm: Any) -> LambStep:
        return LambStep(
            **self._attributes, max_norm_clip=math.inf if max_norm is None else max_norm
        )
