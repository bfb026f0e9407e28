# SPDX-License-Identifier: MIT
"""Layer normalisations and their gradients over 64 Mi elements, in rows of many lengths; PyTorch
as peer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cupy

from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32

from . import Case, liger, of_lengths, over
from .parameters import normals, rows
from .peers import on_tensors, torch

TYPES = (FLOAT32, FLOAT16, BFLOAT16)
EPSILON = 1e-5


def _gradient(dtype: Any, length: int, kind: str = "") -> Callable[[Any], tuple[Any, ...]]:
    """dY, X or Y, scale, and statistics that X about has."""

    def make(rng: Any) -> tuple[Any, ...]:
        shape = rows(length)
        arrays = normals(dtype, shape, shape, (length,))(rng)
        mean, inv_std = (cupy.full((shape[0], 1), value, cupy.float32) for value in (0, 1))
        if kind == "simplified":
            return *arrays, inv_std
        if kind == "invertible":
            return *arrays, *normals(dtype, (length,))(rng), inv_std
        return *arrays, mean, inv_std

    return make


def _forward(dtype: Any, length: int, n_rows: int) -> Callable[[Any], tuple[Any, ...]]:
    """X, scale, and perhaps a bias."""
    return normals(dtype, rows(length), *[(length,)] * n_rows)


# ---- peers ---------------------------------------------------------------------------------------


def _torch_gradient(dy: Any, x: Any, scale: Any, mean: Any, inv_std: Any, bias: Any) -> Any:
    return torch.ops.aten.native_layer_norm_backward(
        dy, x, [x.shape[1]], mean, inv_std, scale, bias, [True] * 3
    )


def _torch_formula(dy: Any, x: Any, scale: Any, inv_std: Any) -> Any:
    """Gradient by its formula, which is for the compiler to fuse."""
    wide, x_hat = dy.float(), x.float() * inv_std
    h = wide * scale.float()
    dx = inv_std * (h - x_hat * (h * x_hat).mean(1, keepdim=True))
    return dx.to(x.dtype), (wide * x_hat).sum(0).to(scale.dtype)


def _torch_fused(*inputs: Any) -> Callable[[], Any]:
    """Backward of rms_norm as autograd calls it, since PyTorch 2.9."""
    if not hasattr(torch.ops.aten, "_fused_rms_norm_backward"):
        raise NotImplementedError("this PyTorch has no fused backward pass of rms_norm")
    backward = torch.ops.aten._fused_rms_norm_backward
    return on_tensors(
        lambda dy, x, scale, root: backward(dy, x, [x.shape[1]], root, scale, [True, True])
    )(*inputs)


def _torch_simplified(x: Any, scale: Any) -> Any:
    """With the statistics, which torch.nn.functional.rms_norm keeps to itself."""
    wide = x.float()
    root = torch.rsqrt((wide * wide).mean(1, keepdim=True) + EPSILON)
    return (wide * root * scale.float()).to(x.dtype), root


FORWARD = on_tensors(
    lambda x, scale, bias: torch.native_layer_norm(x, [x.shape[1]], scale, bias, EPSILON)
)
RMS_NORM = on_tensors(
    lambda x, scale: torch.nn.functional.rms_norm(x, [x.shape[1]], scale, EPSILON)
)


GRADIENT, SIMPLIFIED = "LayerNormalizationGrad", "SimplifiedLayerNormalizationGrad"
OF_GRADIENTS = of_lengths(256, 1023, 1024, 4096, 16_384)
LENGTHS = of_lengths(1024, 4096, 8192)
CASES = [
    *over(TYPES, GRADIENT, _gradient, variants=OF_GRADIENTS, peers={
        "torch": on_tensors(_torch_gradient, lambda _, __, scale, *___: torch.zeros_like(scale)),
        "Liger": liger.layer_norm_grad,
    }),
    *over(TYPES, SIMPLIFIED, partial(_gradient, kind="simplified"), variants=OF_GRADIENTS, peers={
        "torch": _torch_fused,
        "torch formula": on_tensors(_torch_formula),
        "Liger": liger.rms_norm_grad,
    }),
    *over(
        TYPES,
        "InvertibleLayerNormalizationGrad",
        partial(_gradient, kind="invertible"),
        variants=of_lengths(1024),
    ),
    *over(TYPES, "LayerNormalization", partial(_forward, n_rows=2), variants=LENGTHS, peers={
        "torch": FORWARD, "Liger": partial(liger.layer_norm, epsilon=EPSILON),
    }),
    *over(
        TYPES,
        "SimplifiedLayerNormalization",
        partial(_forward, n_rows=1),
        variants=LENGTHS,
        peers={
            "torch": on_tensors(_torch_simplified),
            "torch rms_norm": RMS_NORM,
            "Liger": partial(liger.rms_norm, epsilon=EPSILON),
        },
    ),
    Case(GRADIENT, "f4,1024,X_grad alone", _gradient(FLOAT32, 1024), outputs=("X_grad",)),
]  # fmt: skip
