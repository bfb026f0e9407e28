# SPDX-License-Identifier: MIT
"""AdamW of PyTorch's protocol."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ...optimizers.rated import AdamWMeasured, AdamWUpdate
from .base import Group, Optimizer
from .groups import rate
from .part import Update


class AdamW(Optimizer):
    """`torch.optim.AdamW`, with the norm of the gradients and clipping in its steps.

    params, lr, betas, eps, weight_decay: as PyTorch's, in groups too; schedulers may write them. lr
    may be a tensor on the parameters' device, which a captured step reads there. max_norm: what the
    norm of all gradients is kept within, as `clip_grad_norm_` would.

    One pass over the gradients finds their norm, where max_norm is given; one more unscales
    (GradScaler does not), clips and updates. Counts of steps are on the device, so that a step can
    be captured. Moments of half-precision parameters are float32. Its state dicts are those of
    `torch.optim.AdamW`, and it loads that class's. Parameters on the CPU are updated by NumPy.
    Gradients are read only. Where PyTorch would spread a NaN with clipping, the step is skipped.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        max_norm: float | None = None,
    ) -> None:
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad,
            "maximize": maximize, "foreach": foreach, "capturable": capturable,
            "differentiable": differentiable, "fused": fused, "decoupled_weight_decay": True,
        }  # fmt: skip
        super().__init__(params, defaults, max_norm)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # that of PyTorch's Adam says otherwise
            group["decoupled_weight_decay"] = True

    def _update(self, group: Group, *, is_measured: bool) -> Update:
        kind = AdamWMeasured if is_measured else AdamWUpdate
        op = self._operator(kind, lambda: kind(max_norm_clip=math.inf))
        beta1, beta2 = group["betas"]
        numbers = {
            "lr": rate(group["lr"]),
            "beta1": float(beta1),
            "beta2": float(beta2),
            "weight_decay": group["weight_decay"],
            "eps": group["eps"],
            "max_norm": self.max_norm,
        }
        return Update(op, is_measured, numbers)
