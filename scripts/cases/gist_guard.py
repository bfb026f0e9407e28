# SPDX-License-Identifier: MIT
"""The encoder that measures its error at 64 Mi elements, without groups and in each layout.

Bytes are the array and its codes; the sample is read twice.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import cupy

from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOATS, dtype_name

from . import Case

SHORT = {"float32": "f4", "float16": "f2", "float64": "f8", "bfloat16": "bf2"}
NAME = "GistGuardedMsfp15Encoder"
N = 2**26
# What a layer norm of 768, 4,096 and 8,192 features centres, a linear layer's features, and the
# channels of images of 56 x 56, 14 x 14 and 7 x 7.
GROUPINGS = {
    "rows 768": (1, N // 768, 768),
    "rows 4096": (1, N // 4096, 4096),
    "rows 8192": (1, N // 8192, 8192),
    "features 768": (N // 768, 768, 1),
    "features 8192": (N // 8192, 8192, 1),
    "channels 56x56": (256, 83, 3136),
    "channels 14x14": (256, 1024, 196),
    "channels 7x7": (256, 2048, 49),
}


def _inputs(n: int, dtype: Any, rng: Any) -> tuple[Any, ...]:
    return (rng.standard_normal(n, dtype=cupy.float32).astype(dtype),)


def _case(dtype: Any, label: str, grouping: tuple[int, int, int] | None) -> Case:
    a, c, b = grouping or (N, 1, 1)
    words = ",".join(filter(None, (SHORT[dtype_name(dtype)], label)))
    return Case(NAME, words, partial(_inputs, a * c * b, dtype), {"grouping": grouping})


CASES = [_case(dtype, "", None) for dtype in FLOATS] + [
    _case(dtype, label, grouping)
    for label, grouping in GROUPINGS.items()
    for dtype in (FLOAT32, FLOAT16)
]
