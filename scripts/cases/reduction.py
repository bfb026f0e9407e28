# SPDX-License-Identifier: MIT
"""Reductions at 64 Mi elements and over a transformer's parameters; PyTorch's as peers."""

from __future__ import annotations

from typing import Any

import cupy

from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32

from . import Case, over
from .parameters import normal, normals, parameters
from .peers import norm, on_tensors, ready, torch, unscaled

ROWS, COLUMNS = 65_536, 1024
TYPES = (FLOAT32, FLOAT16, BFLOAT16)
SUMS = {
    "rows": ((ROWS, COLUMNS), 1),
    "cols": ((ROWS, COLUMNS), 0),
    "one row": ((1, ROWS * COLUMNS), 1),
    "short rows": ((ROWS * 64, 16), 1),
    "few long rows": ((16, ROWS * 64), 1),
    "narrow cols": ((ROWS * 64, 16), 0),
    "wide cols": ((16, ROWS * 64), 0),
    "rows of one": ((ROWS * COLUMNS, 1), 1),
}


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
    "IsAllFinite": {"torch amp check+unscale": ready(lambda xs: unscaled(xs)[1])},
}
CASES = [
    *(
        case
        for label, (shape, axis) in SUMS.items()
        for case in over(
            (FLOAT32, FLOAT16),
            "ReduceSumTraining",
            lambda t, shape=shape, axis=axis: normals(t, shape, then=((axis,),)),
            f",{label}",
            peers={"torch sum": SUM},
        )
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
