# SPDX-License-Identifier: MIT
"""Joining, splitting and viewing matrices of 1,024 rows; PyTorch's cat and split as peers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import cupy

from cupy_training_ops.dtypes import FLOAT16, FLOAT32

from . import Case, as_torch

ROWS = 1024


def _matrix(rng: Any, width: int, dtype: Any) -> Any:
    return rng.standard_normal((ROWS, width), dtype=cupy.float32).astype(dtype)


def _parts(rng: Any, widths: Sequence[int], dtype: Any) -> tuple[Any, ...]:
    return ([_matrix(rng, width, dtype) for width in widths],)


def _whole(rng: Any, widths: Sequence[int], dtype: Any) -> tuple[Any, ...]:
    return _matrix(rng, sum(widths), dtype), tuple(widths)


def _views(rng: Any, widths: Sequence[int], dtype: Any) -> tuple[Any, ...]:
    return _matrix(rng, sum(widths), dtype), [(ROWS, width) for width in widths]


def _torch_cat(parts: Sequence[Any]) -> Any:
    import torch

    tensors = list(map(as_torch, parts))
    out = torch.cat(tensors, 1)
    return lambda: torch.cat(tensors, 1, out=out)


def _torch_split(x: Any, split: Sequence[int]) -> Any:
    import torch

    tensor = as_torch(x)
    return lambda: torch.split_with_sizes_copy(tensor, list(split), 1)


SIZES: tuple[tuple[str, tuple[int, ...], Any], ...] = (
    ("f4,8x same", (8192,) * 8, FLOAT32),
    ("f4,8x mixed", tuple(range(4096, 11_265, 1024)), FLOAT32),
    ("f4,64x same", (1024,) * 64, FLOAT32),
    ("f2,8x odd", tuple(range(8191, 8183, -1)), FLOAT16),
    ("f4,4096x narrow", (16,) * 4096, FLOAT32),
)
AXIS = {"axis": 1}

CASES = [
    *(
        Case(
            "ConcatTraining",
            label,
            partial(_parts, widths=widths, dtype=dtype),
            AXIS,
            {"torch cat": _torch_cat},
            eager=len(widths) == 64,
        )
        for label, widths, dtype in SIZES
    ),
    *(
        Case("SplitTraining", label, partial(_whole, widths=widths, dtype=dtype), AXIS, peers)
        for peers in ({"torch split copy": _torch_split},)
        for label, widths, dtype in (("f4,8", (8192,) * 8, FLOAT32), *SIZES[1:])
    ),
]
