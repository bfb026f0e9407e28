# SPDX-License-Identifier: MIT
"""What the benchmark runs, by the family's family: operators at given sizes, peers beside them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cupy_training_ops.registry import FAMILIES, get_op

# A peer takes the case's inputs as CuPy arrays and returns the call to time.
Peer = Callable[..., Callable[[], Any]]


@dataclass(frozen=True)
class Case:
    """One operator at one size. `make(generator)` gives its inputs as CuPy arrays or host values.

    `nbytes` overrides the bytes that must move, where they are not every input read once and every
    output written once; `read_again` has those that a kernel in two passes reads twice. `eager`
    says that calls are also timed outside a graph, the host included. `outputs` are those that are
    asked for; `run(op, *inputs)` makes the call to time where it is more than the operator's.
    """

    op: str
    label: str
    make: Callable[[Any], Sequence[Any]]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    peers: Mapping[str, Peer] = field(default_factory=dict)
    nbytes: Callable[..., int] | None = None
    eager: bool = False
    outputs: tuple[str, ...] | None = None
    run: Callable[..., Callable[[], Any]] | None = None
    read_again: Callable[..., int] | None = None

    @property
    def family(self) -> str:
        """The operator's family."""
        return get_op(self.op).family

    @property
    def id(self) -> str:
        """The name in tables: GistPack1Encoder[f4]."""
        return f"{self.op}[{self.label}]"


def all_cases() -> list[Case]:
    """The cases of every family that has some."""
    modules = [importlib.import_module(f"{__name__}.{family}") for family in FAMILIES]
    return [case for module in modules for case in module.CASES]


def chosen_cases(families: Collection[str], op: str = "", label: str = "") -> list[Case]:
    """The cases of these families, or of all, whose operator and label contain these words."""
    return [
        case
        for case in all_cases()
        if (not families or case.family in families) and op in case.op and label in case.label
    ]


def as_torch(array: Any) -> Any:
    """A CuPy array as a PyTorch tensor over the same memory."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_dlpack(array.view("uint16")).view(torch.bfloat16)
    return torch.from_dlpack(array)
