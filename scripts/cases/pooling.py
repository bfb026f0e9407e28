# SPDX-License-Identifier: MIT
"""Pools of a residual network's beginning and end; PyTorch's as peers."""

from __future__ import annotations

from functools import partial
from typing import Any

import cupy

from cupy_training_ops.dtypes import FLOAT16, FLOAT32
from cupy_training_ops.families.pooling.operators import AveragePool, MaxPool

from . import Case, as_torch

IMAGES = (64, 64, 112, 112)
SHORT = {FLOAT32: "f4", FLOAT16: "f2"}
OVERLAPPING = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
APART = {"kernel_shape": (2, 2), "strides": (2, 2)}


def _images(rng: Any, dtype: Any) -> tuple[Any, ...]:
    return (rng.standard_normal(IMAGES, dtype=cupy.float32).astype(dtype),)


def _max_gradients(rng: Any, dtype: Any) -> tuple[Any, ...]:
    y, indices = MaxPool(**OVERLAPPING)(*_images(rng, dtype))
    return y, indices, IMAGES


def _average_gradients(rng: Any, dtype: Any) -> tuple[Any, ...]:
    return AveragePool(**APART)(*_images(rng, dtype)), IMAGES


def _torch_max(x: Any) -> Any:
    import torch

    images = as_torch(x)
    return lambda: torch.ops.aten.max_pool2d_with_indices(images, [3, 3], [2, 2], [1, 1])


def _torch_average(x: Any) -> Any:
    import torch

    images = as_torch(x)
    return lambda: torch.ops.aten.avg_pool2d(images, [2, 2], [2, 2])


def _torch_global(x: Any) -> Any:
    images = as_torch(x)
    return lambda: images.mean((2, 3), keepdim=True)


CASES = [
    Case(name, SHORT[dtype], partial(make, dtype=dtype), attributes, peers)
    for dtype in SHORT
    for name, make, attributes, peers in (
        ("AveragePool", _images, APART, {"torch": _torch_average}),
        ("AveragePoolGrad", _average_gradients, APART, {}),
        ("GlobalAveragePool", _images, {}, {"torch": _torch_global}),
        ("MaxPool", _images, OVERLAPPING, {"torch": _torch_max}),
        ("MaxPoolGrad", _max_gradients, OVERLAPPING, {}),
    )
]
