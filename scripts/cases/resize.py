# SPDX-License-Identifier: MIT
"""Twofold upsampling of 64 images with 64 channels; PyTorch's backward as peer."""

from __future__ import annotations

from functools import partial
from typing import Any

import cupy

from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOAT64

from . import Case, as_torch

IMAGES, PIXELS = (64, 64), (64, 64)
SHORT = {FLOAT32: "f4", FLOAT16: "f2", FLOAT64: "f8"}
ATTRIBUTES = {"mode": "linear"}


def _inputs(rng: Any, scale: int, dtype: Any) -> tuple[Any, ...]:
    sizes = tuple(scale * pixels for pixels in PIXELS)
    dy, x = (
        rng.standard_normal((*IMAGES, *shape), dtype=cupy.float32).astype(dtype)
        for shape in (sizes, PIXELS)
    )
    return dy, x, None, (1.0, 1.0, float(scale), float(scale))


def _nbytes(dy: Any, x: Any, *_: Any) -> int:
    """X counts only by its shape."""
    return int(dy.nbytes + x.nbytes)


def _torch_backward(dy: Any, x: Any, _roi: Any, scales: tuple[float, ...]) -> Any:
    import torch

    tensor = as_torch(dy)
    backward = torch.ops.aten.upsample_bilinear2d_backward
    sizes = (list(dy.shape[2:]), list(x.shape), False, scales[2], scales[3])
    return lambda: backward(tensor, *sizes)


CASES = [
    Case(
        "ResizeGrad",
        f"{SHORT[dtype]},linear",
        partial(_inputs, scale=2, dtype=dtype),
        ATTRIBUTES,
        {"torch": _torch_backward},
        _nbytes,
    )
    for dtype in SHORT
]
