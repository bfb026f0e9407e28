# SPDX-License-Identifier: MIT
"""Cases of the benchmark: operators at given sizes, and peers beside them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cupy_training_ops.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, Dtype
from cupy_training_ops.registry import get_op

MODULES = (
    "activation", "attention", "batch_norm", "conv", "cross_entropy", "dropout", "elementwise",
    "gather", "gist", "gradient", "layer_norm", "optimizer", "padding", "pooling", "reduction",
    "resize", "rotary", "softmax", "tensor",
)  # fmt: skip
SHORT: Mapping[Dtype, str] = {
    FLOAT32: "f4", FLOAT16: "f2", FLOAT64: "f8", BFLOAT16: "bf2", BOOL: "bool",
} | {np.dtype(t): t for t in ("u1", "i2", "i4", "i8")}  # fmt: skip
Make = Callable[[Any], Sequence[Any]]
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
    make: Make
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


def over(
    types: Iterable[Dtype],
    op: str,
    make: Callable[..., Make],
    label: str = "",
    attributes: Mapping[str, Any] = {},
    peers: Mapping[str, Peer] = {},
    variants: Mapping[str, Mapping[str, Any]] = {"": {}},
    **more: Any,
) -> list[Case]:
    """A case of an operator for each type and variant: `make(dtype, ...)`, with what a variant has
    behind its label, gives what makes the inputs."""
    return [
        Case(op, SHORT[t] + each + label, make(t, **keywords), attributes, peers, **more)
        for each, keywords in variants.items()
        for t in types
    ]


def of_lengths(*lengths: int) -> dict[str, dict[str, int]]:
    """Variants with rows of these lengths."""
    return {f",{length}": {"length": length} for length in lengths}


def all_cases() -> list[Case]:
    """The cases of every family that has some."""
    modules = [importlib.import_module(f"{__name__}.{name}") for name in MODULES]
    return [case for module in modules for case in module.CASES]


def chosen_cases(families: Collection[str], op: str = "", label: str = "") -> list[Case]:
    """The cases of these families, or of all, whose operator and label contain these words."""
    return [
        case
        for case in all_cases()
        if (not families or case.family in families) and op in case.op and label in case.label
    ]
