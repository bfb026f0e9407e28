# SPDX-License-Identifier: MIT
"""Reductions at 64 Mi elements and over a transformer's parameters; PyTorch's as peers."""

from __future__ import annotations

from functools import partial
from typing import Any

import cupy

from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32

from . import Case, as_torch
from .parameters import normal, parameters

ROWS, COLUMNS = 65_536, 1024
SHORT = {FLOAT32: "f4", FLOAT16: "f2", BFLOAT16: "bf2"}


def _matrix(rng: Any, dtype: Any, shape: tuple[int, int], axis: int) -> tuple[Any, ...]:
    return normal(rng, shape, dtype), (axis,)


def _one(rng: Any, dtype: Any) -> tuple[Any, ...]:
    return ([normal(rng, (ROWS * COLUMNS,), dtype)],)


def _model(rng: Any, dtype: Any) -> tuple[Any, ...]:
    return (parameters(rng, dtype),)


def _bools(_rng: Any) -> tuple[Any, ...]:
    return (cupy.ones(ROWS * COLUMNS, cupy.bool_),)


def _torch_sum(x: Any, axes: tuple[int, ...]) -> Any:
    import torch

    tensor = as_torch(x)
    out = torch.empty_like(tensor.sum(axes, keepdim=True))
    return lambda: torch.sum(tensor, axes, keepdim=True, out=out)


def _torch_norm(xs: list[Any]) -> Any:
    import torch

    tensors = [as_torch(x) for x in xs]
    if len(tensors) == 1:
        return lambda: torch.linalg.vector_norm(tensors[0])
    return lambda: torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)))


def _torch_check(xs: list[Any]) -> Any:
    """The check of mixed-precision training, which also scales (by one) in place."""
    import torch

    tensors = [as_torch(x) for x in xs]
    found, scale = (torch.full((1,), v, device="cuda") for v in (0.0, 1.0))
    check = torch._amp_foreach_non_finite_check_and_unscale_
    return lambda: check(tensors, found, scale)


def _torch_all(x: Any) -> Any:
    tensor = as_torch(x)
    return lambda: tensor.all()


def _sums() -> list[Case]:
    shapes = {
        "rows": ((ROWS, COLUMNS), 1),
        "cols": ((ROWS, COLUMNS), 0),
        "one row": ((1, ROWS * COLUMNS), 1),
        "short rows": ((ROWS * 64, 16), 1),
        "few long rows": ((16, ROWS * 64), 1),
        "narrow cols": ((ROWS * 64, 16), 0),
        "wide cols": ((16, ROWS * 64), 0),
        "rows of one": ((ROWS * COLUMNS, 1), 1),
    }
    return [
        Case(
            "ReduceSumTraining",
            f"{SHORT[dtype]},{label}",
            partial(_matrix, dtype=dtype, shape=shape, axis=axis),
            peers={"torch sum": _torch_sum},
        )
        for dtype in (FLOAT32, FLOAT16)
        for label, (shape, axis) in shapes.items()
    ]


def _lists(op: str, dtypes: Any, peers: dict[str, Any]) -> list[Case]:
    makers = {"": _one, ",model": _model}
    return [
        Case(
            op,
            SHORT[dtype] + label,
            partial(maker, dtype=dtype),
            peers=peers,
            eager=maker is _model,
        )
        for label, maker in makers.items()
        for dtype in dtypes
    ]


CASES = [
    *_sums(),
    *_lists("ReduceAllL2", SHORT, {"torch norm": _torch_norm}),
    *_lists("IsAllFinite", SHORT, {"torch amp check+unscale": _torch_check}),
    Case("All", "bool", _bools, peers={"torch all": _torch_all}),
]
