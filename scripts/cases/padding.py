# SPDX-License-Identifier: MIT
"""Slices of a matrix and rows of padded sentences; PyTorch's slicing and indexing as peers."""

from __future__ import annotations

from functools import partial
from typing import Any

import cupy

from cupy_training_ops.dtypes import FLOAT16, FLOAT32

from . import Case, as_torch
from .parameters import normal

ROWS, WIDTH = 65536, 1024
DIMS, HIDDEN, TOKENS = (64, 512), 1024, 24576
SHORT = {FLOAT32: "f4", FLOAT16: "f2"}


def _slice(rng: Any, start: int, dtype: Any) -> tuple[Any, ...]:
    dy = normal(rng, (ROWS, WIDTH // 2), dtype)
    return dy, (ROWS, WIDTH), (start,), (start + WIDTH // 2,), (1,), (1,)


def _indices() -> Any:
    return cupy.sort(cupy.random.permutation(DIMS[0] * DIMS[1])[:TOKENS])


def _packed(rng: Any, dtype: Any) -> tuple[Any, ...]:
    return normal(rng, (TOKENS, HIDDEN), dtype), _indices(), DIMS


def _padded(rng: Any, dtype: Any) -> tuple[Any, ...]:
    return normal(rng, (*DIMS, HIDDEN), dtype), _indices()


def _selected_nbytes(x: Any, indices: Any) -> int:
    """Selected rows are read and written."""
    return int(indices.nbytes + 2 * indices.size * x.nbytes // (DIMS[0] * DIMS[1]))


def _torch_slice(dy: Any, shape: tuple[int, ...], starts: Any, ends: Any, *_: Any) -> Any:
    dx, values = as_torch(cupy.empty(shape, dy.dtype)), as_torch(dy)
    return lambda: dx.zero_()[:, starts[0] : ends[0]].copy_(values)


def _torch_pad(x: Any, indices: Any, dims: tuple[int, int]) -> Any:
    y = as_torch(cupy.empty((dims[0] * dims[1], x.shape[1]), x.dtype))
    rows, values = as_torch(indices), as_torch(x)
    return lambda: y.zero_().index_copy_(0, rows, values)


def _torch_select(x: Any, indices: Any) -> Any:
    rows, index = as_torch(x.reshape(-1, x.shape[2])), as_torch(indices)
    return lambda: rows.index_select(0, index)


CASES = [
    *(
        Case(
            "SliceGrad",
            f"{SHORT[dtype]}{label}",
            partial(_slice, start=start, dtype=dtype),
            peers={"torch slice": _torch_slice},
        )
        for dtype in (FLOAT32, FLOAT16)
        for label, start in (("", 256), (",odd", 3))
    ),
    *(
        Case(
            "PadAndUnflatten",
            SHORT[dtype],
            partial(_packed, dtype=dtype),
            peers={"torch index_copy": _torch_pad},
        )
        for dtype in (FLOAT32, FLOAT16)
    ),
    *(
        Case(
            "FlattenAndUnpad",
            SHORT[dtype],
            partial(_padded, dtype=dtype),
            peers={"torch index_select": _torch_select},
            nbytes=_selected_nbytes,
        )
        for dtype in (FLOAT32, FLOAT16)
    ),
]
