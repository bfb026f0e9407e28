# SPDX-License-Identifier: MIT
"""Adam and AdamW for training loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .base import Names, Optimizer, pair
from .steps import AdamStep, AdamWStep


class Adam(Optimizer):
    """Adam: p = p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon).

    m = b1 m + (1 - b1) g and v = b2 v + (1 - b2) g^2 are the moments, betas = (b1, b2), t counts
    the steps that were made, for all parameters alike. g is the gradient over its loss scale s;
    where the norm n of all gradients is above s max_norm, it is the gradient over n / max_norm.

    parameters, lr, names, low_precision: as for SGD. moment_dtype: float32 or bfloat16, not
    float16, in which squares of small gradients are 0; float64 for float64 parameters.

    NaN and infinities: see `step`. Deterministic. Raises ArgumentError and DtypeError.

    Source: GradientNorm and AdamOptimizerList do the work; Kingma and Ba, Adam: a method for
    stochastic optimization.
    """

    def __init__(
        self,
        parameters: Sequence[Any],
        lr: Any = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        names: Names | None = None,
        low_precision: Sequence[Any] | None = None,
        moment_dtype: object = None,
    ) -> None:
        alpha, beta = pair("Adam", "betas", betas)
        op = AdamStep(alpha=alpha, beta=beta, epsilon=epsilon, max_norm_clip=math.inf)
        super().__init__(op, parameters, lr, names, low_precision, moment_dtype)


class AdamW(Optimizer):
    """AdamW: p = p - lr ((m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon) + weight_decay p).

    As Adam, whose moments, numbers and arguments it has, with a weight decay that the moments do
    not see. This is PyTorch's AdamW.

    NaN and infinities: see `step`. Deterministic. Raises ArgumentError and DtypeError.

    Source: GradientNorm and AdamOptimizerList do the work; Loshchilov and Hutter, Decoupled weight
    decay regularization.
    """

    def __init__(
        self,
        parameters: Sequence[Any],
        lr: Any = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 1e-2,
        names: Names | None = None,
        low_precision: Sequence[Any] | None = None,
        moment_dtype: object = None,
    ) -> None:
        alpha, beta = pair("AdamW", "betas", betas)
        op = AdamWStep(
            alpha=alpha, beta=beta, epsilon=epsilon, lambda_=weight_decay, max_norm_clip=math.inf
        )
        super().__init__(op, parameters, lr, names, low_precision, moment_dtype)
