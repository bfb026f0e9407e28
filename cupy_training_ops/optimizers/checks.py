# SPDX-License-Identifier: MIT
"""Checks of optimizers' arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..dtypes import BFLOAT16, FLOAT64, Dtype, dtype_name, to_dtype
from ..errors import ArgumentError, refuse, shown
from ..planning.step import limit
from .rated import beta

Convert = Callable[[Any], float]


def number(optimizer: str, argument: str, convert: Convert, value: Any) -> float:
    """A number, refused by the caller's name for it, not by the operator's."""
    try:
        return convert(value)
    except ArgumentError as error:
        raise ArgumentError(f"{optimizer}: {argument}: {error}") from None


def pair(optimizer: str, argument: str, convert: Convert, value: Any) -> tuple[float, float]:
    """Two of them."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        refuse(optimizer, argument, "two numbers", shown(value))
    first, second = (number(optimizer, argument, convert, each) for each in value)
    return first, second


def betas(optimizer: str, value: Any) -> tuple[float, float]:
    """The decays of both moments."""
    return pair(optimizer, "betas", beta, value)


def limits(optimizer: str, value: Any) -> tuple[float, float]:
    """The least and the greatest ratio."""
    low, high = pair(optimizer, "ratio_limits", limit, value)
    if low > high:
        refuse(optimizer, "ratio_limits", "the lower one first", shown(value))
    return low, high


def moment_dtype(optimizer: str, given: object, wide: Dtype) -> Dtype:
    """float16 has no room for the squares of gradients below 2e-4. `wide` is what it may be of any
    parameters such as these."""
    dtype = to_dtype(given)
    allowed = (wide,) if wide == FLOAT64 else (wide, BFLOAT16)
    if dtype not in allowed:
        names = " or ".join(map(dtype_name, allowed))
        expected = f"{names}, which hold the squares of small gradients"
        refuse(optimizer, "moment_dtype", expected, dtype_name(dtype))
    return dtype
