# SPDX-License-Identifier: MIT
"""Activations and their gradients at 64 Mi elements; PyTorch's operators as peers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cupy_training_ops.declare.declaration import snake_case
from cupy_training_ops.dtypes import FLOATS
from cupy_training_ops.families.activation.operators import OPS

from . import Case, Peer, over
from .parameters import normals
from .peers import as_torch, on_tensors, torch

ROWS, COLUMNS = 65_536, 1024


def _inputs(dtype: Any, name: str) -> Any:
    """Normal numbers; a matrix and a row where the operator takes a bias."""
    op = OPS[name]
    if "Halves" in name:
        return normals(dtype, *((ROWS, COLUMNS) for _ in op.inputs[1:]), (ROWS, 2 * COLUMNS))
    shape = (ROWS, COLUMNS) if op.row else (ROWS * COLUMNS,)
    return normals(dtype, *(shape[-1:] if item.name == op.row else shape for item in op.inputs))


def backward(name: str, *arrays: Any, **keywords: Any) -> Callable[[], Any]:
    """An ATen backward operator into an existing tensor."""
    dy, x = map(as_torch, arrays)
    operator, out = getattr(torch.ops.aten, name), torch.empty_like(dy)
    return lambda: operator.grad_input(dy, x, **keywords, grad_input=out)


def _named(*arrays: Any, name: str) -> Callable[[], Any]:
    """ATen's backward operator of our gradient's name, with the forward operator's defaults."""
    word = snake_case(name).removesuffix("_grad")
    result = getattr(torch.ops.aten, f"{word}_backward", None)
    if result is None or "grad_input" not in result.overloads():
        raise NotImplementedError(f"PyTorch has no {word}_backward that writes into a tensor")
    forward = getattr(torch.ops.aten, word).default._schema.arguments
    types = {argument.name for argument in result.grad_input._schema.arguments}
    defaults = {
        a.name: a.default_value for a in forward if a.name in types and a.has_default_value()
    }
    return backward(f"{word}_backward", *arrays, **defaults)


def _gelu(approximate: str) -> Peer:
    return on_tensors(
        lambda x, *bias: torch.nn.functional.gelu(
            x + bias[0] if bias else x, approximate=approximate
        )
    )


def _biased_backward(approximate: str) -> Peer:
    return on_tensors(
        lambda dy, x, b: torch.ops.aten.gelu_backward(dy, x + b, approximate=approximate)
    )


def _gated_halves(x: Any) -> Any:
    gate, value = x.chunk(2, -1)
    return torch.nn.functional.silu(gate) * value


# Of what does not bear ATen's name, or takes more than the forward operator.
PEERS: dict[str, Peer] = {
    "ReluGrad": partial(backward, "threshold_backward", threshold=0),
    "FastGeluGrad": partial(backward, "gelu_backward", approximate="tanh"),
    "LeakyReluGrad": partial(
        backward, "leaky_relu_backward", negative_slope=0.01, self_is_result=True
    ),
    "BiasGeluGrad_dX": _biased_backward("none"),
    "BiasFastGeluGrad_dX": _biased_backward("tanh"),
    "Gelu": _gelu("none"),
    "BiasGelu": _gelu("none"),
    "FastGelu": _gelu("tanh"),
    "SwiGlu": on_tensors(lambda a, b: torch.nn.functional.silu(a) * b),
    "SwiGluHalves": on_tensors(_gated_halves),
    "FastGeGlu": on_tensors(lambda a, b: torch.nn.functional.gelu(a, approximate="tanh") * b),
}
# ATen has no operator for both gradients.
ALONE = ("SwiGluGrad", "SwiGluHalvesGrad", "FastGeGluGrad")


def _peers(name: str) -> dict[str, Peer]:
    if name in PEERS:
        return {"torch": PEERS[name]}
    is_named = name.endswith("Grad") and name not in ALONE
    return {"torch": partial(_named, name=name)} if is_named else {}


CASES: list[Case] = [
    case
    for name in OPS
    for case in over(FLOATS, name, partial(_inputs, name=name), peers=_peers(name))
]
