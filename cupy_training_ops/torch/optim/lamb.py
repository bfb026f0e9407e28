# SPDX-License-Identifier: MIT
"""LAMB of PyTorch's protocol."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ...optimizers.checks import limits
from ...optimizers.rated import LambUpdate
from ...optimizers.steps import LambStep
from .base import Group, Optimizer
from .groups import rate
from .part import Update


class Lamb(Optimizer):
    """LAMB as `torch.optim` would have it: see `cupy_training_ops.Lamb` for its formula.

    params, lr, betas, eps, weight_decay, max_norm: as of AdamW; ratio_limits as of
    `cupy_training_ops.Lamb`. Other betas, eps, weight_decay or max_norm prepare the step anew:
    schedulers should leave betas alone (`cycle_momentum=False`). Parameters are float32 or float64.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 1e-2,
        *,
        ratio_limits: tuple[float, float] = (-math.inf, math.inf),
        capturable: bool = False,
        max_norm: float | None = None,
    ) -> None:
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "ratio_limits": ratio_limits, "capturable": capturable,
        }  # fmt: skip
        super().__init__(params, defaults, max_norm)

    def _check(self, group: Group) -> None:
        super()._check(group)
        limits("Lamb", group["ratio_limits"])

    def _update(self, group: Group, *, is_measured: bool) -> Update:
        (alpha, beta), (low, high) = group["betas"], group["ratio_limits"]
        attributes = {
            "alpha": alpha, "beta": beta, "lambda_": group["weight_decay"], "epsilon": group["eps"],
            "ratio_min": low, "ratio_max": high,
            "max_norm_clip": math.inf if self.max_norm is None else self.max_norm,
        }  # fmt: skip
        kind, key = LambStep if is_measured else LambUpdate, (is_measured, *attributes.values())
        op = self._operator(key, lambda: kind(**attributes))
        return Update(op, key, {"lr": rate(group["lr"])})
