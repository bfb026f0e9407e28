# SPDX-License-Identifier: MIT
"""Twofold upsampling of 64 images with 64 channels; PyTorch's backward as peer."""

from __future__ import annotations

from typing import Any

from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOAT64

from . import over
from .parameters import normals
from .peers import on_tensors, torch

IMAGES, PIXELS, SCALE = (64, 64), 64, 2


def _inputs(dtype: Any) -> Any:
    shapes = ((*IMAGES, n, n) for n in (SCALE * PIXELS, PIXELS))
    return normals(dtype, *shapes, then=(None, (1.0, 1.0, float(SCALE), float(SCALE))))


def _backward(dy: Any, x: Any, _roi: Any, scales: tuple[float, ...]) -> Any:
    sizes = list(dy.shape[2:]), list(x.shape), False, scales[2], scales[3]
    return torch.ops.aten.upsample_bilinear2d_backward(dy, *sizes)


CASES = over(
    (FLOAT32, FLOAT16, FLOAT64),
    "ResizeGrad",
    _inputs,
    ",linear",
    {"mode": "linear"},
    {"torch": on_tensors(_backward)},
    nbytes=lambda dy, x, *_: int(dy.nbytes + x.nbytes),  # X counts only by its shape
)
