# SPDX-License-Identifier: MIT
"""Layer normalisations and their gradients over 64 Mi elements, in rows of many lengths; PyTorch
as peer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cupy

from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32

from . import Case, as_torch, liger
from .parameters import normal

ELEMENTS = 65_536 * 1024
SHORT = {FLOAT32: "f4", FLOAT16: "f2", BFLOAT16: "bf2"}
LENGTHS = (256, 1023, 1024, 4096, 16_384)
EPSILON = 1e-5

Inputs = tuple[Any, ...]


def _shape(length: int) -> tuple[int, int]:
    """Whole multiples of 32 rows, so that odd lengths start at every alignment."""
    return ELEMENTS // length // 32 * 32, length


def _ones(count: int, value: float) -> Any:
    return cupy.full((count, 1), value, cupy.float32)


def _gradient(rng: Any, length: int, dtype: Any) -> Inputs:
    """dY, X, scale, and statistics that X about has."""
    shape = _shape(length)
    arrays = (normal(rng, shape, dtype), normal(rng, shape, dtype), normal(rng, (length,), dtype))
    return *arrays, _ones(shape[0], 0), _ones(shape[0], 1)


def _simplified(rng: Any, length: int, dtype: Any) -> Inputs:
    dy, x, scale, _, inv_std = _gradient(rng, length, dtype)
    return dy, x, scale, inv_std


def _invertible(rng: Any, length: int, dtype: Any) -> Inputs:
    dy, y, scale, _, inv_std = _gradient(rng, length, dtype)
    return dy, y, scale, normal(rng, (length,), dtype), inv_std


def _forward(rng: Any, length: int, dtype: Any, has_bias: bool) -> Inputs:
    row = [normal(rng, (length,), dtype) for _ in range(1 + has_bias)]
    return normal(rng, _shape(length), dtype), *row


# ---- peers ---------------------------------------------------------------------------------------


def _torch_gradient(dy: Any, x: Any, scale: Any, mean: Any, inv_std: Any) -> Callable[[], Any]:
    import torch

    slope, given, of, center, root = map(as_torch, (dy, x, scale, mean, inv_std))
    bias, wanted = torch.zeros_like(of), [True, True, True]
    backward = torch.ops.aten.native_layer_norm_backward
    return lambda: backward(slope, given, [given.shape[1]], center, root, of, bias, wanted)


def _torch_simplified(dy: Any, x: Any, scale: Any, inv_std: Any) -> Callable[[], Any]:
    """The formulas, which are for the compiler to fuse."""
    slope, given, of, root = map(as_torch, (dy, x, scale, inv_std))

    def backward() -> Any:
        wide, x_hat = slope.float(), given.float() * root
        h = wide * of.float()
        dx = root * (h - x_hat * (h * x_hat).mean(1, keepdim=True))
        return dx.to(given.dtype), (wide * x_hat).sum(0).to(of.dtype)

    return backward


def _torch_forward(x: Any, scale: Any, bias: Any) -> Callable[[], Any]:
    import torch

    given, of, shift = map(as_torch, (x, scale, bias))
    return lambda: torch.native_layer_norm(given, [given.shape[1]], of, shift, EPSILON)


def _torch_simplified_forward(x: Any, scale: Any) -> Callable[[], Any]:
    """With the statistics, which torch.nn.functional.rms_norm keeps to itself."""
    import torch

    given, of = map(as_torch, (x, scale))

    def forward() -> Any:
        wide = given.float()
        root = torch.rsqrt((wide * wide).mean(1, keepdim=True) + EPSILON)
        return (wide * root * of.float()).to(given.dtype), root

    return forward


def _torch_rms_norm(x: Any, scale: Any) -> Callable[[], Any]:
    import torch

    given, of = map(as_torch, (x, scale))
    return lambda: torch.nn.functional.rms_norm(given, [given.shape[1]], of, EPSILON)


def _torch_fused(dy: Any, x: Any, scale: Any, inv_std: Any) -> Callable[[], Any]:
    """What autograd calls for rms_norm, since PyTorch 2.9."""
    import torch

    if not hasattr(torch.ops.aten, "_fused_rms_norm_backward"):
        raise NotImplementedError("this PyTorch has no fused backward pass of rms_norm")
    slope, given, of, root = map(as_torch, (dy, x, scale, inv_std))
    backward, row = torch.ops.aten._fused_rms_norm_backward, [given.shape[1]]
    return lambda: backward(slope, given, row, root, of, [True, True])


CASES = [
    *(
        Case(op, f"{t},{length}", partial(make, length=length, dtype=dtype), {}, peers)
        for op, make, peers in (
            (
                "LayerNormalizationGrad",
                _gradient,
                {"torch": _torch_gradient, "Liger": liger.layer_norm_grad},
            ),
            (
                "SimplifiedLayerNormalizationGrad",
                _simplified,
                {
                    "torch": _torch_fused,
                    "torch formula": _torch_simplified,
                    "Liger": liger.rms_norm_grad,
                },
            ),
        )
        for dtype, t in SHORT.items()
        for length in LENGTHS
    ),
    *(
        Case(
            "InvertibleLayerNormalizationGrad",
            f"{t},1024",
            partial(_invertible, length=1024, dtype=dtype),
        )
        for dtype, t in SHORT.items()
    ),
    *(
        Case(
            "LayerNormalization",
            f"{t},{length}",
            partial(_forward, length=length, dtype=dtype, has_bias=True),
            {},
            {"torch": _torch_forward, "Liger": partial(liger.layer_norm, epsilon=EPSILON)},
        )
        for dtype, t in SHORT.items()
        for length in (1024, 4096, 8192)
    ),
    *(
        Case(
            "SimplifiedLayerNormalization",
            f"{t},{length}",
            partial(_forward, length=length, dtype=dtype, has_bias=False),
            {},
            {
                "torch": _torch_simplified_forward,
                "torch rms_norm": _torch_rms_norm,
                "Liger": partial(liger.rms_norm, epsilon=EPSILON),
            },
        )
        for dtype, t in SHORT.items()
        for length in (1024, 4096, 8192)
    ),
    Case(
        "LayerNormalizationGrad",
        "f4,1024,X_grad alone",
        partial(_gradient, length=1024, dtype=FLOAT32),
        outputs=("X_grad",),
    ),
]
