# SPDX-License-Identifier: MIT
"""Activations and their gradients at 64 Mi elements; PyTorch's operators as peers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cupy

from cupy_training_ops.declare.declaration import snake_case
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS
from cupy_training_ops.families.activation.operators import OPS

from . import Case, as_torch

ROWS, COLUMNS = 65_536, 1024
SHORT = {FLOAT32: "f4", FLOAT16: "f2", FLOAT64: "f8", BFLOAT16: "bf2"}


def _inputs(rng: Any, name: str, dtype: Any) -> tuple[Any, ...]:
    """Normal numbers; a matrix and a row where the operator takes a bias."""
    op = OPS[name]
    shape = (ROWS, COLUMNS) if op.row else (ROWS * COLUMNS,)
    shapes = [shape[-1:] if item.name == op.row else shape for item in op.inputs]
    return tuple(rng.standard_normal(s, dtype=cupy.float32).astype(dtype) for s in shapes)


def backward(name: str, *arrays: Any, **keywords: Any) -> Callable[[], Any]:
    """An ATen backward operator into an existing tensor."""
    import torch

    dy, x = map(as_torch, arrays)
    operator, out = getattr(torch.ops.aten, name), torch.empty_like(dy)
    return lambda: operator.grad_input(dy, x, **keywords, grad_input=out)


def _named(*arrays: Any, name: str) -> Callable[[], Any]:
    """ATen's backward operator of our gradient's name, with the forward operator's defaults."""
    import torch

    word = snake_case(name).removesuffix("_grad")
    found = getattr(torch.ops.aten, f"{word}_backward", None)
    if found is None or "grad_input" not in found.overloads():
        raise NotImplementedError(f"PyTorch has no {word}_backward that writes into a tensor")
    forward = getattr(torch.ops.aten, word).default._schema.arguments
    taken = {argument.name for argument in found.grad_input._schema.arguments}
    defaults = {
        a.name: a.default_value for a in forward if a.name in taken and a.has_default_value()
    }
    return backward(f"{word}_backward", *arrays, **defaults)


def _leaky_relu_backward(dy: Any, y: Any) -> Callable[[], Any]:
    return backward("leaky_relu_backward", dy, y, negative_slope=0.01, self_is_result=True)


def _biased_backward(dy: Any, x: Any, b: Any, approximate: str) -> Callable[[], Any]:
    import torch

    t_dy, t_x, t_b = map(as_torch, (dy, x, b))
    return lambda: torch.ops.aten.gelu_backward(t_dy, t_x + t_b, approximate=approximate)


def _gelu(*arrays: Any, approximate: str) -> Callable[[], Any]:
    import torch

    x, *bias = map(as_torch, arrays)
    return lambda: torch.nn.functional.gelu(x + bias[0] if bias else x, approximate=approximate)


# Of what does not bear ATen's name, or takes more than the forward operator.
PEERS: dict[str, Callable[..., Callable[[], Any]]] = {
    "ReluGrad": partial(backward, "threshold_backward", threshold=0),
    "FastGeluGrad": partial(backward, "gelu_backward", approximate="tanh"),
    "LeakyReluGrad": _leaky_relu_backward,
    "BiasGeluGrad_dX": partial(_biased_backward, approximate="none"),
    "BiasFastGeluGrad_dX": partial(_biased_backward, approximate="tanh"),
    "Gelu": partial(_gelu, approximate="none"),
    "BiasGelu": partial(_gelu, approximate="none"),
    "FastGelu": partial(_gelu, approximate="tanh"),
}


def _peers(name: str) -> dict[str, Callable[..., Callable[[], Any]]]:
    if name in PEERS:
        return {"torch": PEERS[name]}
    return {"torch": partial(_named, name=name)} if name.endswith("Grad") else {}


CASES = [
    Case(name, SHORT[dtype], partial(_inputs, name=name, dtype=dtype), peers=_peers(name))
    for name in OPS
    for dtype in FLOATS
]
