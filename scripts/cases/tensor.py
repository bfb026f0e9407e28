# SPDX-License-Identifier: MIT
"""Joining and splitting matrices of 1,024 rows; PyTorch's cat and split as peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cupy_training_ops.dtypes import FLOAT16, FLOAT32

from . import Case
from .parameters import normals
from .peers import on_tensors, torch

ROWS = 1024


def _parts(widths: Sequence[int], dtype: Any) -> Any:
    return lambda rng: (list(normals(dtype, *((ROWS, width) for width in widths))(rng)),)


def _whole(widths: Sequence[int], dtype: Any) -> Any:
    return normals(dtype, (ROWS, sum(widths)), then=(tuple(widths),))


SIZES: tuple[tuple[str, tuple[int, ...], Any], ...] = (
    ("f4,8x same", (8192,) * 8, FLOAT32),
    ("f4,8x mixed", tuple(range(4096, 11_265, 1024)), FLOAT32),
    ("f4,64x same", (1024,) * 64, FLOAT32),
    ("f2,8x odd", tuple(range(8191, 8183, -1)), FLOAT16),
    ("f4,4096x narrow", (16,) * 4096, FLOAT32),
)
AXIS = {"axis": 1}
CAT = on_tensors(lambda x, out: torch.cat(x, 1, out=out), lambda x: torch.cat(x, 1))
SPLIT = on_tensors(lambda x, widths: torch.split_with_sizes_copy(x, list(widths), 1))
CASES = [
    *(
        Case(
            "ConcatTraining",
            label,
            _parts(widths, dtype),
            AXIS,
            {"torch cat": CAT},
            eager=len(widths) == 64,
        )
        for label, widths, dtype in SIZES
    ),
    *(
        Case("SplitTraining", label, _whole(widths, dtype), AXIS, {"torch split copy": SPLIT})
        for label, widths, dtype in (("f4,8", *SIZES[0][1:]), *SIZES[1:])
    ),
]
