# SPDX-License-Identifier: MIT
"""Dropout and its gradients at 64 Mi elements; PyTorch as peer."""

from __future__ import annotations

from functools import partial
from typing import Any

import cupy
import numpy as np

from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32

from . import Case, over
from .parameters import normal, normals
from .peers import on_tensors, torch

SHAPE = 65_536, 1024
RATIO, SCALE = 0.1, 1 / 0.9


def _forward(dtype: Any) -> Any:
    """In the training mode."""
    return normals(dtype, SHAPE, then=(RATIO, True))


def _biased_inputs(dtype: Any) -> Any:
    def make(rng: Any) -> tuple[Any, ...]:
        x, residual, bias = normals(dtype, SHAPE, SHAPE, SHAPE[1:])(rng)
        return x, bias, residual, RATIO, True

    return make


def _mask(rng: Any) -> Any:
    return rng.random(SHAPE, dtype=cupy.float32) < 1 - RATIO


def _bits(rng: Any) -> Any:
    """Mask of bits in words."""
    return cupy.packbits(_mask(rng), bitorder="little").view(np.uint32)


def _gradient(dtype: Any, mask: Any = _mask) -> Any:
    return lambda rng: (normal(rng, SHAPE, dtype), mask(rng), RATIO)


def _softmax_gradient(dtype: Any) -> Any:
    def make(rng: Any) -> tuple[Any, ...]:
        return *_gradient(dtype)(rng)[:2], cupy.abs(normal(rng, SHAPE, dtype)), RATIO

    return make


# ---- peers: functions of tensors, so that they compile to one graph ------------------------------


def _torch_dropout(x: Any, ratio: float, *_: Any) -> Any:
    return torch.native_dropout(x, ratio, True)


def _torch_biased(x: Any, bias: Any, residual: Any, ratio: float, *_: Any) -> Any:
    output, mask = torch.native_dropout(x + bias, ratio, True)
    return output + residual, mask


def _torch_gradient(slope: Any, mask: Any, *_: Any) -> Any:
    return torch.ops.aten.native_dropout_backward(slope, mask, SCALE)


def _torch_of_bits(dy: Any, mask: Any, ratio: float) -> Any:
    """The bits taken apart first."""
    peer = on_tensors(
        lambda slope, words, _, places: _torch_gradient(
            slope, (words[:, None] >> places & 1).to(torch.bool).reshape(slope.shape)
        ),
        lambda *_: torch.arange(32, device="cuda", dtype=torch.int32),
    )
    return peer(dy, mask.view("int32"), ratio)


def _torch_softmax(x: Any, bias: Any, ratio: float) -> Any:
    p = torch.softmax(x + bias, -1)
    return *torch.native_dropout(p, ratio, True), p


def _torch_softmax_gradient(slope: Any, mask: Any, p: Any, _ratio: float) -> Any:
    return torch._softmax_backward_data(_torch_gradient(slope, mask), p, -1, p.dtype)


ROWS = {"is_inner_broadcast": True}
KINDS: tuple[tuple[str, Any, dict[str, Any], Any], ...] = (
    ("Dropout", _forward, {}, on_tensors(_torch_dropout)),
    ("BitmaskDropout", _forward, {}, on_tensors(_torch_dropout)),
    ("BiasDropout", _biased_inputs, {}, on_tensors(_torch_biased)),
    ("DropoutGrad", _gradient, {}, on_tensors(_torch_gradient)),
    ("BitmaskDropoutGrad", partial(_gradient, mask=_bits), {}, _torch_of_bits),
    (
        "BiasSoftmaxDropout",
        lambda t: normals(t, SHAPE, SHAPE, then=(RATIO,)),
        ROWS,
        on_tensors(_torch_softmax),
    ),
    ("SoftmaxDropoutGrad", _softmax_gradient, {"axis": 1}, on_tensors(_torch_softmax_gradient)),
)
CASES = [
    *(
        case
        for op, make, attributes, peer in KINDS
        for case in over((FLOAT32, FLOAT16, BFLOAT16), op, make, "", attributes, {"torch": peer})
    ),
    Case(
        "Dropout",
        "f2,state in memory",
        lambda rng: (*_forward(FLOAT16)(rng), cupy.array([1, 2], np.uint64)),
    ),
]
