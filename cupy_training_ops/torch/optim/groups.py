# SPDX-License-Identifier: MIT
"""Checks of groups and states: numbers in their ranges, options that go together,
moments of their shapes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...declare.schema import positive_or_zero
from ...errors import refuse
from ...optimizers import checks
from ...optimizers.checks import number
from ...planning.step import not_negative
from .part import MOMENTS

_NUMBERS: dict[str, checks.Convert] = {
    "lr": positive_or_zero,
    "weight_decay": positive_or_zero,
    "eps": not_negative,
}


def rate(lr: Any) -> Any:
    """A learning rate as operators take it: a tensor of the host is read there."""
    return lr.item() if isinstance(lr, Tensor) and lr.device.type == "cpu" else lr


def check_numbers(optimizer: str, group: dict[str, Any]) -> None:
    """Refuse numbers out of their ranges, before a first step has them."""
    if group.get("foreach") and group.get("fused"):
        refuse(optimizer, "fused", "foreach or fused, not both", "both")
    for name in _NUMBERS.keys() & group.keys():
        value = group[name]
        if isinstance(value, Tensor) and value.numel() != 1:
            refuse(optimizer, name, "one element", f"shape {tuple(value.shape)}")
        if not isinstance(value, Tensor) or value.device.type == "cpu":
            number(optimizer, name, _NUMBERS[name], rate(value))
    if "betas" in group:
        _check_betas(optimizer, group["betas"])


def check_state(optimizer: str, parameter: Tensor, state: dict[str, Any]) -> None:
    """Refuse a parameter's state that is another's; codes are looked at where they are decoded."""
    expected = ("step", *MOMENTS)
    if not state.keys() >= set(expected):
        refuse(optimizer, "state", ", ".join(expected), ", ".join(map(str, state)))
    step = float(state["step"])
    if not 0 <= step < math.inf:
        refuse(optimizer, "state: step", "a number of steps", str(step))
    for name in MOMENTS:
        found = state[name]
        if found.shape != parameter.shape and found.dtype != torch.uint8:
            words = f"{name} of shape {tuple(parameter.shape)}"
            refuse(optimizer, "state", words, str(tuple(found.shape)))


def _check_betas(optimizer: str, betas: Any) -> None:
    checks.betas(optimizer, tuple(map(rate, betas)) if isinstance(betas, list | tuple) else betas)
