# SPDX-License-Identifier: MIT
"""Rotary embeddings of 8 sequences of 2,048 with 32 heads of 128; PyTorch's operations as peer."""

from __future__ import annotations

from functools import partial
from typing import Any

from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32

from . import over
from .parameters import normals
from .peers import on_tensors, torch

BATCH, HEADS, ROWS, WIDTH = 8, 32, 2048, 128


def _inputs(dtype: Any, heads_last: bool = False) -> Any:
    middle = (ROWS, HEADS) if heads_last else (HEADS, ROWS)
    return normals(dtype, (BATCH, *middle, WIDTH), *[(1, ROWS, WIDTH)] * 2)


def _forward(x: Any, cos: Any, sin: Any, dim: int = 1) -> Any:
    """X cos + rotate_half(X) sin, as models compute it."""
    first, second = x.chunk(2, -1)
    return x * cos.unsqueeze(dim) + torch.cat((-second, first), -1) * sin.unsqueeze(dim)


def _backward(dy: Any, cos: Any, sin: Any, dim: int = 1) -> Any:
    """The operations that autograd makes of it."""
    first, second = (dy * sin.unsqueeze(dim)).chunk(2, -1)
    return dy * cos.unsqueeze(dim) + torch.cat((second, -first), -1)


TYPES, LAST = (BFLOAT16, FLOAT16, FLOAT32), partial(_inputs, heads_last=True)
OF_LAST = {"heads_last": True}
CASES = [
    case
    for op, formula in (("RotaryHalves", _forward), ("RotaryHalvesGrad", _backward))
    for case in (
        *over(TYPES, op, _inputs, peers={"torch": on_tensors(formula)}),
        *over(
            (BFLOAT16,),
            op,
            LAST,
            ",heads last",
            OF_LAST,
            {"torch": on_tensors(partial(formula, dim=2))},
        ),
    )
]
