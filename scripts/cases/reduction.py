# SPDX-License-Identifier: MIT
"""Reductions at 64 Mi elements and over a transformer's parameters; PyTorch's as peers."""

from __future__ import annotations

from typing import Any

import cupy

from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32

from . import Case, over
from .parameters import normal, normals, parameters
from .peers import finite_check, norm, on_tensors, ready, torch

ROWS, COLUMNS = 65_536, 1024
TYPES = (FLOAT32, FLOAT16, BFLOAT16)
SUMS: dict[str, dict[str, Any]] = {
    ",rows": {"shape": (ROWS, COLUMNS), "axis": 1},
    ",cols": {"shape": (ROWS, COLUMNS), "axis": 0},
    ",one row": {"shape": (1, ROWS * COLUMNS), "axis": 1},
    ",short rows": {"shape": (ROWS * 64, 16), "axis": 1},
    ",few long rows": {"shape": (16, ROWS * 64), "axis": 1},
    ",narrow cols": {"shape": (ROWS * 64, 16), "axis": 0},
    ",wide cols": {"shape": (16, ROWS * 64), "axis": 0},
    ",rows of one": {"shape": (ROWS * COLUMNS, 1), "axis": 1},
}


def _matrix(dtype: Any, shape: tuple[int, int], axis: int) -> Any:
    return normals(dtype, shape, then=((axis,),))


def _one(dtype: Any) -> Any:
    return lambda rng: ([normal(rng, (ROWS * COLUMNS,), dtype)],)


def _model(dtype: Any) -> Any:
    return lambda rng: (parameters(rng, dtype),)


SUM = on_tensors(
    lambda x, axes, out: torch.sum(x, axes, keepdim=True, out=out),
    lambda x, axes: torch.empty_like(x.sum(axes, keepdim=True)),
)
LISTS = {
    "ReduceAllL2": {"torch norm": on_tensors(norm)},
    "IsAllFinite": {"torch amp check+unscale": ready(lambda xs: finite_check(xs)[1])},
}
CASES = [
    *over(
        (FLOAT32, FLOAT16), "ReduceSumTraining", _matrix, peers={"torch sum": SUM}, variants=SUMS
    ),
    *(
        case
        for op, peers in LISTS.items()
        for case in (
            *over(TYPES, op, _one, peers=peers),
            *over(TYPES, op, _model, ",model", peers=peers, eager=True),
        )
    ),
    Case(
        "All",
        "bool",
        lambda _: (cupy.ones(ROWS * COLUMNS, cupy.bool_),),
        peers={"torch all": on_tensors(lambda x: x.all())},
    ),
]
