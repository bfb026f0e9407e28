# SPDX-License-Identifier: MIT
"""Gather gradients at the sizes of a language model's embedding; PyTorch's scatters as peers."""

from __future__ import annotations

from functools import partial
from typing import Any

import cupy

from cupy_training_ops.dtypes import FLOAT16, FLOAT32

from . import Case, as_torch
from .parameters import normal

VOCABULARY, HIDDEN, TOKENS = 50257, 1024, 32768
ROWS = 65536
SHORT = {FLOAT32: "f4", FLOAT16: "f2"}


def _indices(rng: Any, kind: str, n: Any, extent: int) -> Any:
    """Uniform, Zipf(1.2) clipped, or all 7."""
    if kind == "same":
        return cupy.full(n, 7, cupy.int64)
    if kind == "zipf":
        return cupy.minimum(cupy.random.zipf(1.2, n), extent).astype(cupy.int64) - 1
    # A generator's kernels were seen to run before others of the null stream were done with memory
    # that they reuse: normal values stood in the indices.
    cupy.cuda.Device().synchronize()
    indices = rng.integers(0, extent, n, dtype=cupy.int64)
    cupy.cuda.Device().synchronize()
    return indices


def _gather(rng: Any, kind: str, dtype: Any) -> tuple[Any, ...]:
    indices = _indices(rng, kind, TOKENS, VOCABULARY)
    return (VOCABULARY, HIDDEN), indices, normal(rng, (TOKENS, HIDDEN), dtype)


def _gather_nd(rng: Any) -> tuple[Any, ...]:
    indices = _indices(rng, "ids", (ROWS, 1), ROWS)
    return (ROWS, HIDDEN), indices, normal(rng, (ROWS, HIDDEN), FLOAT32)


def _gather_elements(rng: Any) -> tuple[Any, ...]:
    indices = _indices(rng, "ids", (ROWS, HIDDEN), ROWS)
    return normal(rng, (ROWS, HIDDEN), FLOAT32), (ROWS, HIDDEN), indices


def _index_put(shape: tuple[int, ...], indices: Any, dy: Any) -> Any:
    """Sorted, as autograd's own way."""
    import torch

    dx, rows, values = (
        as_torch(cupy.empty(shape, dy.dtype)),
        as_torch(indices.ravel()),
        as_torch(dy),
    )
    return lambda: torch.Tensor.index_put_(dx.zero_(), (rows,), values, accumulate=True)


def _index_add(shape: tuple[int, ...], indices: Any, dy: Any) -> Any:
    """Atomics."""
    dx, rows, values = (
        as_torch(cupy.empty(shape, dy.dtype)),
        as_torch(indices.ravel()),
        as_torch(dy),
    )
    return lambda: dx.zero_().index_add_(0, rows, values)


def _scatter_add(dy: Any, shape: tuple[int, ...], indices: Any) -> Any:
    """Atomics."""
    dx, rows, values = as_torch(cupy.empty(shape, dy.dtype)), as_torch(indices), as_torch(dy)
    return lambda: dx.zero_().scatter_add_(0, rows, values)


def _index_put_elements(dy: Any, shape: tuple[int, ...], indices: Any) -> Any:
    """Sorted: PyTorch's way to the same sums run after run."""
    import torch

    dx, rows, values = as_torch(cupy.empty(shape, dy.dtype)), as_torch(indices), as_torch(dy)
    columns = torch.arange(shape[1], device="cuda")
    return lambda: torch.Tensor.index_put_(dx.zero_(), (rows, columns), values, accumulate=True)


ROW_PEERS = {"torch index_put": _index_put, "torch index_add": _index_add}
ATOMIC = {"deterministic": False}

CASES = [
    *(
        Case("GatherGrad", f"{t},{kind}", partial(_gather, kind=kind, dtype=dtype), {}, ROW_PEERS)
        for dtype, t in SHORT.items()
        for kind in ("ids", "zipf", "same")
    ),
    Case(
        "GatherGrad",
        "f2,ids,not deterministic",
        partial(_gather, kind="ids", dtype=FLOAT16),
        ATOMIC,
        ROW_PEERS,
    ),
    Case("GatherNDGrad", "f4", _gather_nd, {}, ROW_PEERS),
    Case(
        "GatherElementsGrad", "f4,atomic", _gather_elements, ATOMIC, {"torch scatter": _scatter_add}
    ),
    Case(
        "GatherElementsGrad",
        "f4",
        _gather_elements,
        {},
        {"torch scatter": _scatter_add, "torch index_put": _index_put_elements},
    ),
]
