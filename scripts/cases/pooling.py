# SPDX-License-Identifier: MIT
"""Pools of a residual network's beginning and end; PyTorch's as peers."""

from __future__ import annotations

from typing import Any

from cupy_training_ops.dtypes import FLOAT16, FLOAT32
from cupy_training_ops.families.pooling.operators import AveragePool, MaxPool

from . import Case, over
from .parameters import normals
from .peers import on_tensors, torch

IMAGES = (64, 64, 112, 112)
OVERLAPPING = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
APART = {"kernel_shape": (2, 2), "strides": (2, 2)}


def _images(dtype: Any) -> Any:
    return normals(dtype, IMAGES)


def _max_gradients(dtype: Any) -> Any:
    return lambda rng: (*MaxPool(**OVERLAPPING)(*_images(dtype)(rng)), IMAGES)


def _average_gradients(dtype: Any) -> Any:
    return lambda rng: (AveragePool(**APART)(*_images(dtype)(rng)), IMAGES)


AVERAGE = on_tensors(lambda x: torch.ops.aten.avg_pool2d(x, [2, 2], [2, 2]))
GLOBAL = on_tensors(lambda x: x.mean((2, 3), keepdim=True))
MAX = on_tensors(lambda x: torch.ops.aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1]))
KINDS: tuple[tuple[str, Any, dict[str, Any], dict[str, Any]], ...] = (
    ("AveragePool", _images, APART, {"torch": AVERAGE}),
    ("AveragePoolGrad", _average_gradients, APART, {}),
    ("GlobalAveragePool", _images, {}, {"torch": GLOBAL}),
    ("MaxPool", _images, OVERLAPPING, {"torch": MAX}),
    ("MaxPoolGrad", _max_gradients, OVERLAPPING, {}),
)
CASES: list[Case] = [
    case
    for op, make, attributes, peers in KINDS
    for case in over((FLOAT32, FLOAT16), op, make, "", attributes, peers)
]
