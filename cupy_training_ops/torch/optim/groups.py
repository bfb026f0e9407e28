# SPDX-License-Identifier: MIT
"""What groups and states of parameters may say: numbers in their ranges, options that go together,
moments of their shapes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...declare.schema import positive_or_zero
from ...errors import ArgumentError, refuse, shown
from ...optimizers.rated import beta
from ...planning.step import not_negative
from .part import MOMENTS

Check = Callable[[Any], float]

_NUMBERS: dict[str, Check] = {
    "lr": positive_or_zero,
    "weight_decay": positive_or_zero,
    "eps": not_negative,
}


def rate(lr: Any) -> Any:
    """A learning rate as operators take it: a tensor of the host is read there."""
    return lr.item() if isinstance(lr, Tensor) and lr.device.type == "cpu" else lr


def check(optimizer: str, name: str, convert: Check, value: Any) -> None:
    """Refuse a number that an operator would refuse."""
    try:
        convert(value)
    except ArgumentError as error:
        raise ArgumentError(f"{optimizer}: {name}: {error}") from None


def check_numbers(optimizer: str, group: dict[str, Any]) -> None:
    """Refuse numbers out of their ranges, before a first step has them."""
    if group.get("foreach") and group.get("fused"):
        refuse(optimizer, "fused", "foreach or fused, not both", "both")
    for name in _NUMBERS.keys() & group.keys():
        value = group[name]
        if isinstance(value, Tensor) and value.numel() != 1:
            refuse(optimizer, name, "one element", f"shape {tuple(value.shape)}")
        if not isinstance(value, Tensor) or value.device.type == "cpu":
            check(optimizer, name, _NUMBERS[name], rate(value))
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
    if not isinstance(betas, list | tuple) or len(betas) != 2:
        refuse(optimizer, "betas", "two numbers", shown(betas))
    for each in betas:
        check(optimizer, "betas", beta, rate(each))
