# SPDX-License-Identifier: MIT
"""Gradient descent of PyTorch's protocol."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...errors import refuse, shown
from ...optimizers.rated import SGDUpdate
from ...optimizers.steps import SGDStep
from .base import Group, Optimizer
from .groups import rate
from .part import Update


class SGD(Optimizer):
    """`torch.optim.SGD` without momentum and weight decay, with clipping in its steps.

    params, lr, max_norm: as of AdamW. It has no state. momentum, weight_decay: 0; what is not is
    refused, since its kernel has no such term.
    """

    has_moments = False

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
        max_norm: float | None = None,
    ) -> None:
        defaults = {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
            "nesterov": nesterov, "maximize": maximize, "foreach": foreach,
            "differentiable": differentiable, "fused": fused,
        }  # fmt: skip
        super().__init__(params, defaults, max_norm)

    def _check(self, group: Group) -> None:
        super()._check(group)
        if group["weight_decay"]:
            refuse("SGD", "weight_decay", "0", shown(group["weight_decay"]))

    def _update(self, group: Group, *, is_measured: bool) -> Update:
        numbers = {"lr": rate(group["lr"]), "max_norm": self.max_norm}
        kind = SGDStep if is_measured else SGDUpdate
        return Update(self._operator(kind, kind), is_measured, numbers)
