# SPDX-License-Identifier: MIT
"""Arrays as functions need them: without gaps; sums of half types in float32, rounded once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...dtypes import BFLOAT16, FLOAT16, FLOAT32

Array = Any
Module = Any
HALVES = (FLOAT16, BFLOAT16)


def dense(xp: Module, value: Any) -> Any:
    """An array without gaps, as operators take it; anything else as it is."""
    flags = getattr(value, "flags", None)
    return value if flags is None or flags.c_contiguous else xp.ascontiguousarray(value)


def wide(x: Array) -> Array:
    """An array of a half type in float32; anything else as it is."""
    return x.astype(FLOAT32) if getattr(x, "dtype", None) in HALVES else x


def in_float32(function: Callable[..., Array]) -> Callable[..., Array]:
    """The function of an array of a half type and others, in float32."""

    @functools.wraps(function)
    def run(xp: Module, *arrays: Array, **attributes: Any) -> Array:
        if arrays[0].dtype not in HALVES:
            return function(xp, *arrays, **attributes)
        y = function(xp, *map(wide, arrays), **attributes)
        return y.astype(arrays[0].dtype)

    return run
