# SPDX-License-Identifier: MIT
"""Gather gradients at the sizes of a language model's embedding; PyTorch's scatters as peers."""

from __future__ import annotations

from functools import partial
from typing import Any

import cupy

from cupy_training_ops.dtypes import FLOAT16, FLOAT32

from . import Case, over
from .parameters import integers, normal
from .peers import as_torch, on_tensors, torch

VOCABULARY, HIDDEN, TOKENS = 50257, 1024, 32768
ROWS = 65536


def _gather(dtype: Any, kind: str) -> Any:
    """Indices are uniform, Zipf(1.2) clipped, or all 7."""

    def make(rng: Any) -> tuple[Any, ...]:
        if kind == "same":
            indices = cupy.full(TOKENS, 7, cupy.int64)
        elif kind == "zipf":
            drawn = cupy.random.zipf(1.2, TOKENS)
            indices = cupy.minimum(drawn, VOCABULARY).astype(cupy.int64) - 1
        else:
            indices = integers(rng, VOCABULARY, TOKENS)
        return (VOCABULARY, HIDDEN), indices, normal(rng, (TOKENS, HIDDEN), dtype)

    return make


def _gather_nd(rng: Any) -> tuple[Any, ...]:
    indices = integers(rng, ROWS, (ROWS, 1))
    return (ROWS, HIDDEN), indices, normal(rng, (ROWS, HIDDEN), FLOAT32)


def _gather_elements(rng: Any) -> tuple[Any, ...]:
    indices = integers(rng, ROWS, (ROWS, HIDDEN))
    return normal(rng, (ROWS, HIDDEN), FLOAT32), (ROWS, HIDDEN), indices


def _rows(shape: tuple[int, ...], indices: Any, dy: Any, sorts: bool) -> Any:
    """Sorted, as autograd's own way, or by atomics."""
    dx = as_torch(cupy.empty(shape, dy.dtype))
    rows, values = as_torch(indices.ravel()), as_torch(dy)
    if sorts:
        return lambda: dx.zero_().index_put_((rows,), values, accumulate=True)
    return lambda: dx.zero_().index_add_(0, rows, values)


def _zeros(dy: Any, shape: tuple[int, ...], _: Any) -> Any:
    return torch.zeros(shape, dtype=dy.dtype, device=dy.device)


SCATTER = on_tensors(lambda dy, _, rows, dx: dx.zero_().scatter_add_(0, rows, dy), _zeros)
SORTED = on_tensors(  # PyTorch's way to the same sums run after run
    lambda dy, _, rows, dx, columns: dx.zero_().index_put_((rows, columns), dy, accumulate=True),
    _zeros,
    lambda _, shape, __: torch.arange(shape[1], device="cuda"),
)
ROW_PEERS = {
    "torch index_put": partial(_rows, sorts=True),
    "torch index_add": partial(_rows, sorts=False),
}
ATOMIC = {"deterministic": False}

KINDS = {f",{kind}": {"kind": kind} for kind in ("ids", "zipf", "same")}

CASES = [
    *over((FLOAT32, FLOAT16), "GatherGrad", _gather, peers=ROW_PEERS, variants=KINDS),
    Case("GatherGrad", "f2,ids,not deterministic", _gather(FLOAT16, "ids"), ATOMIC, ROW_PEERS),
    Case("GatherNDGrad", "f4", _gather_nd, {}, ROW_PEERS),
    Case("GatherElementsGrad", "f4,atomic", _gather_elements, ATOMIC, {"torch scatter": SCATTER}),
    Case(
        "GatherElementsGrad",
        "f4",
        _gather_elements,
        {},
        {"torch scatter": SCATTER, "torch index_put": SORTED},
    ),
]
