# SPDX-License-Identifier: MIT
"""What a session knows of that which runs a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..call.op import Op

Run = Callable[..., Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Runner:
    """What runs a node, and what a session may know of it.

    `make(xp)` gives the function of a list of inputs, which takes outputs by place as `out`. `host`
    are inputs that are read on the host, `either` those that may be there, `makes_host` outputs
    that are always there. `views` says of outputs which input's memory they may be. The rest is as
    in the table.
    """

    make: Callable[[Any], Run]
    host: frozenset[int] = frozenset()
    either: frozenset[int] = frozenset()
    makes_host: frozenset[int] = frozenset()
    follows: bool = False  # is computed on the host where its inputs are
    shapes_only: bool = False
    grows: bool = False
    views: Mapping[int, int] = field(default_factory=dict)
    updates: frozenset[int] = frozenset()  # inputs that are written in place, whoever else has them
    keeps: bool = False
    overwrites: tuple[int, ...] = ()  # inputs of the first result's type and, if largest, shape
    op: Op | None = None
