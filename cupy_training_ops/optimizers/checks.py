# SPDX-License-Identifier: MIT
"""What optimizers refuse as they are made."""

from __future__ import annotations

from typing import Any

from ..dtypes import FLOAT16, Dtype, to_dtype
from ..errors import refuse, shown


def pair(optimizer: str, argument: str, value: Any) -> tuple[Any, Any]:
    """Two numbers, which the operator checks."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        refuse(optimizer, argument, "two numbers", shown(value))
    return value[0], value[1]


def moment_dtype(optimizer: str, given: object) -> Dtype:
    """float16 has no room for the squares of gradients below 2e-4."""
    dtype = to_dtype(given)
    if dtype == FLOAT16:
        expected = "float32 or bfloat16, which hold the squares of small gradients"
        refuse(optimizer, "moment_dtype", expected, "float16")
    return dtype
