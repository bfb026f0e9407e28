# SPDX-License-Identifier: MIT
"""What an operator asks of the GPU, as plain data: launches and the scratch memory they share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .errors import ArgumentError

MAX_THREADS = 1024
MAX_PARAMETER_NBYTES = 4000  # 4 KiB in all before CUDA 12.1
MAX_GRID = (2**31 - 1, 65_535, 65_535)
MAX_BLOCK = (1024, 1024, 64)


class LaunchError(ArgumentError):
    """What no GPU launches; says what that is, the frame for which operator."""


@dataclass(frozen=True)
class Device:
    """What planning may know of a GPU."""

    multiprocessors: int
    capability: tuple[int, int]


@dataclass(frozen=True)
class Config:
    """Grid, block and dynamic shared memory of one launch; refuses what no GPU takes."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_nbytes: int = 0

    def __post_init__(self) -> None:
        fits = _within(self.grid, MAX_GRID) and _within(self.block, MAX_BLOCK)
        if not fits or math.prod(self.block) > MAX_THREADS or self.shared_nbytes < 0:
            raise LaunchError(f"grid {self.grid} with block {self.block}")


@dataclass(frozen=True)
class Scratch:
    """A launch argument: the workspace from this byte on."""

    offset: int


@dataclass(frozen=True)
class Pointers:
    """A launch argument: the addresses of these arrays in one struct, passed by value.

    Its CUDA type is `Pointers<capacity>` of include/tables.cuh.
    """

    names: tuple[str, ...]
    capacity: int


def by_value(**fields: Any) -> Any:
    """A launch argument: a struct of NumPy arrays and sized scalars, laid out as C does."""
    arrays = {name: np.asarray(value) for name, value in fields.items()}
    layout = np.dtype([(n, a.dtype, a.shape) for n, a in arrays.items()], align=True)
    struct = np.zeros((), layout)
    for name, array in arrays.items():
        struct[name] = array
    if struct.nbytes > MAX_PARAMETER_NBYTES:
        raise LaunchError(f"{struct.nbytes} bytes by value, at most {MAX_PARAMETER_NBYTES}")
    return struct[()]


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    `args` follow the kernel's parameters: a string names an input or output of the operator (the
    third of a variadic X is "X[2]"), a Scratch points into the workspace, Pointers gather several
    arrays, `by_value` makes a struct, anything else is a scalar cast to the declared C type.
    """

    symbol: str
    config: Config
    args: tuple[Any, ...]
    slots: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """The launches of one call, in order, and the bytes of scratch memory they need."""

    launches: tuple[Launch, ...]
    workspace_nbytes: int = 0


def _within(extents: tuple[int, ...], most: tuple[int, ...]) -> bool:
    """One to three extents, none zero, none too large."""
    pairs = zip(extents, most, strict=False)
    return 1 <= len(extents) <= len(most) and all(1 <= e <= limit for e, limit in pairs)


def ceil_div(a: int, b: int) -> int:
    """The quotient rounded up."""
    return -(-a // b)
