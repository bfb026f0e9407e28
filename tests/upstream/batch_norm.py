# SPDX-License-Identifier: MIT
"""Calls of batch normalisation that onnxruntime answers on the CPU too.

Its running variance is biased, and it aborts on arrays of rank 1. The smaller types go through
float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from cupy_training_ops.dtypes import FLOAT16, FLOAT32, dtype_name
from cupy_training_ops.families.batch_norm.samples import NAMES, Row, inputs
from cupy_training_ops.samples import Sample

SHAPES = ((5, 3), (3, 5, 7), (2, 4, 3, 3), (2, 3, 2, 2, 3), (1, 4, 9))
ROWS: tuple[Row, ...] = (
    (FLOAT32,) * 3,
    (FLOAT16,) * 3,
    (FLOAT16, FLOAT16, FLOAT32),
    (FLOAT16, FLOAT32, FLOAT32),
)


def samples() -> Iterator[Sample]:
    """Each shape in float32, one in each row of types, and given statistics."""
    for name in NAMES:
        for i, shape in enumerate(SHAPES):
            for row in ROWS if i == 2 else ROWS[:1]:
                yield _sample(name, shape, row, attributes(name))
    for shape in SHAPES:
        yield _sample(NAMES[0], shape, ROWS[0], {"epsilon": 0.01, "training_mode": 0})


def attributes(name: str) -> dict[str, Any]:
    """Ours alone: `unbiased`, which the test does not hand on."""
    forward = {"epsilon": 0.01, "momentum": 0.75, "training_mode": 1, "unbiased": False}
    return forward if name == "BatchNormInternal" else {"epsilon": 0.01}


def _sample(name: str, shape: tuple[int, ...], row: Row, given: dict[str, Any]) -> Sample:
    label = "-".join([*map(dtype_name, row), "x".join(map(str, shape))])
    if not given.get("training_mode", 1):
        label += "-given"
    return Sample(name, label, partial(inputs, name=name, shape=shape, row=row), given)
