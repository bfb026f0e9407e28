# SPDX-License-Identifier: MIT
"""What the benchmark runs, by the family's family: operators at given sizes, peers beside them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cupy_training_ops.registry import FAMILIES

# A peer takes the case's inputs as CuPy arrays and returns the call to time.
Peer = Callable[..., Callable[[], Any]]


@dataclass(frozen=True)
class Case:
    """One operator at one size. `make(generator)` gives its inputs as CuPy arrays or host values.

    `nbytes` overrides the bytes that must move, where they are not every input read once and every
    output written once.
    """

    op: str
    label: str
    make: Callable[[Any], Sequence[Any]]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    peers: Mapping[str, Peer] = field(default_factory=dict)
    nbytes: Callable[..., int] | None = None

    @property
    def id(self) -> str:
        """The name in tables: GistPack1Encoder[f4]."""
        return f"{self.op}[{self.label}]"


def all_cases() -> list[Case]:
    """The cases of every family that has some."""
    modules = [importlib.import_module(f"{__name__}.{family}") for family in FAMILIES]
    return [case for module in modules for case in module.CASES]


def as_torch(array: Any) -> Any:
    """A CuPy array as a PyTorch tensor over the same memory."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_dlpack(array.view("uint16")).view(torch.bfloat16)
    return torch.from_dlpack(array)
