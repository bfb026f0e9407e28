# SPDX-License-Identifier: MIT
"""Dropout and its gradients at 64 Mi elements; PyTorch as peer."""

from __future__ import annotations

from functools import partial
from typing import Any

import cupy
import numpy as np

from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32

from . import Case, as_torch
from .parameters import normal

SHAPE = 65_536, 1024
SHORT = {FLOAT32: "f4", FLOAT16: "f2", BFLOAT16: "bf2"}
RATIO, SCALE = 0.1, 1 / 0.9
ROWS = {"is_inner_broadcast": True}

Inputs = tuple[Any, ...]


def _mask(rng: Any) -> Any:
    return rng.random(SHAPE, dtype=cupy.float32) < 1 - RATIO


def _forward(rng: Any, dtype: Any, moving: bool = False) -> Inputs:
    """In the training mode; numbers, or a state on the device."""
    state = (cupy.array([1, 2], np.uint64),) if moving else ()
    return normal(rng, SHAPE, dtype), RATIO, True, *state


def _biased(rng: Any, dtype: Any) -> Inputs:
    x, residual = normal(rng, SHAPE, dtype), normal(rng, SHAPE, dtype)
    return x, normal(rng, SHAPE[1:], dtype), residual, RATIO, True


def _gradient(rng: Any, dtype: Any) -> Inputs:
    return normal(rng, SHAPE, dtype), _mask(rng), RATIO


def _bits(rng: Any, dtype: Any) -> Inputs:
    mask = cupy.packbits(_mask(rng), bitorder="little").view(np.uint32)
    return normal(rng, SHAPE, dtype), mask, RATIO


def _softmax(rng: Any, dtype: Any) -> Inputs:
    return normal(rng, SHAPE, dtype), normal(rng, SHAPE, dtype), RATIO


def _softmax_gradient(rng: Any, dtype: Any) -> Inputs:
    return normal(rng, SHAPE, dtype), _mask(rng), cupy.abs(normal(rng, SHAPE, dtype)), RATIO


# ---- peers: functions of tensors, so that they compile to one graph ------------------------------


def _as_bools(mask: Any) -> Any:
    import torch

    return as_torch(mask.view("uint8")).view(torch.bool)


def _torch_dropout(x: Any, ratio: float, *_: Any) -> Any:
    import torch

    tensor = as_torch(x)
    return lambda: torch.native_dropout(tensor, ratio, True)


def _torch_biased(x: Any, bias: Any, residual: Any, ratio: float, *_: Any) -> Any:
    import torch

    t, b, r = map(as_torch, (x, bias, residual))

    def dropout() -> Any:
        output, mask = torch.native_dropout(t + b, ratio, True)
        return output + r, mask

    return dropout


def _torch_gradient(dy: Any, mask: Any, *_: Any) -> Any:
    import torch

    slope, kept = as_torch(dy), _as_bools(mask)
    return lambda: torch.ops.aten.native_dropout_backward(slope, kept, SCALE)


def _torch_of_bits(dy: Any, mask: Any, *_: Any) -> Any:
    """The bits taken apart first."""
    import torch

    slope, words = as_torch(dy), as_torch(mask.view("int32"))
    places = torch.arange(32, device="cuda", dtype=torch.int32)

    def gradient() -> Any:
        kept = (words[:, None] >> places & 1).to(torch.bool).reshape(slope.shape)
        return torch.ops.aten.native_dropout_backward(slope, kept, SCALE)

    return gradient


def _torch_softmax(x: Any, bias: Any, ratio: float) -> Any:
    import torch

    t, b = as_torch(x), as_torch(bias)

    def dropout() -> Any:
        p = torch.softmax(t + b, -1)
        return *torch.native_dropout(p, ratio, True), p

    return dropout


def _torch_softmax_gradient(dy: Any, mask: Any, y: Any, _ratio: float) -> Any:
    import torch

    slope, kept, p = as_torch(dy), _as_bools(mask), as_torch(y)

    def gradient() -> Any:
        through = torch.ops.aten.native_dropout_backward(slope, kept, SCALE)
        return torch._softmax_backward_data(through, p, -1, p.dtype)

    return gradient


KINDS = (
    ("Dropout", _forward, {}, _torch_dropout),
    ("BitmaskDropout", _forward, {}, _torch_dropout),
    ("BiasDropout", _biased, {}, _torch_biased),
    ("DropoutGrad", _gradient, {}, _torch_gradient),
    ("BitmaskDropoutGrad", _bits, {}, _torch_of_bits),
    ("BiasSoftmaxDropout", _softmax, ROWS, _torch_softmax),
    ("SoftmaxDropoutGrad", _softmax_gradient, {"axis": 1}, _torch_softmax_gradient),
)
CASES = [
    *(
        Case(op, t, partial(make, dtype=dtype), attributes, {"torch": peer})
        for op, make, attributes, peer in KINDS
        for dtype, t in SHORT.items()
    ),
    Case("Dropout", "f2,state in memory", partial(_forward, dtype=FLOAT16, moving=True)),
]
