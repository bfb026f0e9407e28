# SPDX-License-Identifier: MIT
"""What an operator declares about itself: inputs, outputs, attributes, as plain data."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from .dtypes import to_dtype
from .errors import ArgumentError

Memory = Literal["device", "host", "either"]
REQUIRED: Any = type("REQUIRED", (), {"__repr__": lambda _: "REQUIRED"})()


@dataclass(frozen=True)
class Input:
    """One declared input. `type` names a type variable of the operator, or a dtype."""

    name: str
    type: str
    memory: Memory = "device"
    optional: bool = False
    variadic: bool = False
    strided: bool = False


@dataclass(frozen=True)
class Output:
    """One declared output. `aliases` names the input whose array it is written into."""

    name: str
    type: str
    memory: Memory = "device"
    optional: bool = False
    variadic: bool = False
    aliases: str | None = None


@dataclass(frozen=True)
class Attribute:
    """One declared attribute: `convert` checks a value and gives it its frozen form.

    `type` is the type variable that an attribute holding a dtype binds.
    """

    name: str
    convert: Callable[[Any], Any]
    default: Any = REQUIRED
    type: str = ""


@dataclass(frozen=True)
class Spec:
    """What planning may know of an array: shape, dtype and 16-byte alignment; never its values."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    aligned: bool = True
    size: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", math.prod(self.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.dtype.itemsize


def integer(value: Any) -> int:
    """An attribute that is a whole number."""
    if isinstance(value, bool | np.bool_):
        raise ArgumentError(f"expected an integer, got {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise ArgumentError(f"expected an integer, got {value!r}") from None


def boolean(value: Any) -> bool:
    """An attribute that is a truth value (ONNX writes them as 0 and 1)."""
    if isinstance(value, bool | np.bool_) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise ArgumentError(f"expected a bool, got {value!r}")


def shape(value: Any) -> tuple[int, ...]:
    """A shape: an integer or a sequence of integers, none negative."""
    try:
        extents = (integer(value),) if np.ndim(value) == 0 else tuple(map(integer, value))
    except (TypeError, ValueError):
        raise ArgumentError(f"expected a shape, got {value!r}") from None
    if any(extent < 0 for extent in extents):
        raise ArgumentError(f"expected extents of at least 0, got {extents}")
    return extents


def optional(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A converter that also takes None."""
    return lambda value: None if value is None else convert(value)


dtype = to_dtype
