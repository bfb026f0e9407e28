# SPDX-License-Identifier: MIT
"""Peers on PyTorch's tensors, over the memory of the case's inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import Peer

try:
    import torch
except ImportError:  # then the benchmark leaves these peers out
    torch = None


def as_torch(array: Any) -> Any:
    """A CuPy array as a PyTorch tensor over the same memory."""
    if array.dtype.name == "bfloat16":
        return torch.from_dlpack(array.view("uint16")).view(torch.bfloat16)
    if array.dtype.name == "bool":
        return torch.from_dlpack(array.view("uint8")).view(torch.bool)
    return torch.from_dlpack(array)


def tensors(value: Any) -> Any:
    """An input with tensors in place of arrays, also in a list."""
    if isinstance(value, list):
        return [tensors(each) for each in value]
    return as_torch(value) if hasattr(value, "__dlpack__") else value


def ready(make: Callable[..., Callable[[], Any]]) -> Peer:
    """Peer whose call is made from tensors in place of arrays."""
    return lambda *inputs: make(*map(tensors, inputs))


def on_tensors(function: Callable[..., Any], *prepared: Callable[..., Any]) -> Peer:
    """A function of the inputs, and behind them of what is prepared from these before the clock."""

    def make(*arguments: Any) -> Callable[[], Any]:
        every = *arguments, *(prepare(*arguments) for prepare in prepared)
        return lambda: function(*every)

    return ready(make)


def like(x: Any, *_: Any) -> Any:
    """Room for a result of the first input's shape and type."""
    return torch.empty_like(x)


def cast(to: str, view: str = "") -> Peer:
    """A cast into an existing tensor, from codes seen as dtype `view`."""

    def peer(x: Any) -> Callable[[], Any]:
        tensor = as_torch(x).view(getattr(torch, view)) if view else as_torch(x)
        out = torch.empty_like(tensor, dtype=getattr(torch, to))
        return lambda: out.copy_(tensor)

    return peer


def finite_check(gradients: list[Any], number: float = 1.0) -> tuple[Any, Callable[[], Any]]:
    """Mixed-precision training's check, which also multiplies by a number in place, and the flag
    that it sets."""
    found_inf, scale = (torch.full((1,), v, device="cuda") for v in (0.0, number))
    check = torch._amp_foreach_non_finite_check_and_unscale_
    return found_inf, lambda: check(gradients, found_inf, scale)


def norm(gradients: list[Any]) -> Any:
    """The norm of all gradients."""
    if len(gradients) == 1:
        return torch.linalg.vector_norm(gradients[0])
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
