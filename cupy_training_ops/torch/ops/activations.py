# SPDX-License-Identifier: MIT
"""Activations: gelu and its kin with a bias, relu that keeps a bit an element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...errors import refuse, shown
from ...families.activation.operators import (
    BiasFastGeluGrad_dX,
    BiasGelu,
    BiasGeluGrad_dX,
    FastGelu,
    FastGeluGrad,
    Gelu,
    GeluGrad,
    QuickGelu,
    QuickGeluGrad,
)
from ...families.gist.operators import ReluGradFromBits, ReluWithBits
from .launching import Run, instance
from .nodes import Operator
from .registration import register
from .shortcuts import Shortcuts
from .sums import over_rows

# By `approximate` and whether there is a bias: the operator, and its gradient.
_GELUS = {
    ("none", False): (Gelu, GeluGrad),
    ("none", True): (BiasGelu, BiasGeluGrad_dX),
    ("tanh", False): (FastGelu, FastGeluGrad),
    ("tanh", True): (FastGelu, BiasFastGeluGrad_dX),
}


def _gelus(approximate: str, bias: Tensor | None) -> Any:
    found = _GELUS.get((approximate, bias is not None))
    if found is None:
        refuse("cto::gelu", "approximate", "'none' or 'tanh'", shown(approximate))
    return found


def _gelu(run: Run, x: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
    op, _ = _gelus(approximate, bias)
    return run(instance(op), x) if bias is None else run(instance(op), x, bias)


def _gelu_backward(
    run: Run, dy: Tensor, x: Tensor, bias: Tensor | None, approximate: str
) -> Tensor:
    _, op = _gelus(approximate, bias)
    return run(instance(op), dy, x) if bias is None else run(instance(op), dy, x, bias)


def _keep_gelu(ctx: Any, arguments: Sequence[Any], _: Tensor) -> None:
    *tensors, ctx.approximate = arguments
    ctx.save_for_backward(*[x for x in tensors if x is not None])


def _gelu_derivative(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, bias = (*ctx.saved_tensors, None)[:2]
    dx = DOORS["gelu_backward"].every(dy, x, bias, ctx.approximate)
    return dx, over_rows(dx, bias) if ctx.needs_input_grad[1] else None, None


def _quick_gelu(run: Run, x: Tensor, alpha: float) -> Tensor:
    return run(instance(QuickGelu, alpha=alpha), x)


def _quick_gelu_backward(run: Run, dy: Tensor, x: Tensor, alpha: float) -> Tensor:
    op = instance(QuickGeluGrad, alpha=alpha)
    return run(op, dy, x)


def _keep_quick_gelu(ctx: Any, arguments: Sequence[Any], _: Tensor) -> None:
    x, ctx.alpha = arguments
    ctx.save_for_backward(x)


def _quick_gelu_derivative(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    return DOORS["quick_gelu_backward"].every(dy, *ctx.saved_tensors, ctx.alpha), None


def _relu(run: Run, x: Tensor) -> Any:
    return run(instance(ReluWithBits), x)


def _relu_backward(run: Run, dy: Tensor, bits: Tensor) -> Tensor:
    return run(instance(ReluGradFromBits), dy, bits)


def _keep_relu(ctx: Any, _: Sequence[Any], results: Any) -> None:
    ctx.save_for_backward(results[1])


def _relu_derivative(ctx: Any, dy: Tensor, _: None) -> tuple[Any, ...]:
    return (DOORS["relu_backward"].every(dy, *ctx.saved_tensors),)


DOORS = register(
    (
        Operator(
            "gelu(Tensor input, Tensor? bias=None, str approximate='none') -> Tensor",
            _gelu,
            _keep_gelu,
            _gelu_derivative,
            direct=Shortcuts(_gelu),
        ),
        Operator(
            "gelu_backward(Tensor grad, Tensor input, Tensor? bias=None, "
            "str approximate='none') -> Tensor",
            _gelu_backward,
            direct=Shortcuts(_gelu_backward),
        ),
        Operator(
            "quick_gelu(Tensor input, float alpha=1.702) -> Tensor",
            _quick_gelu,
            _keep_quick_gelu,
            _quick_gelu_derivative,
            direct=Shortcuts(_quick_gelu),
        ),
        Operator(
            "quick_gelu_backward(Tensor grad, Tensor input, float alpha=1.702) -> Tensor",
            _quick_gelu_backward,
            direct=Shortcuts(_quick_gelu_backward),
        ),
        Operator(
            "relu(Tensor input) -> (Tensor output, Tensor bits)",
            _relu,
            _keep_relu,
            _relu_derivative,
            direct=Shortcuts(_relu),
        ),
        Operator(
            "relu_backward(Tensor grad, Tensor bits) -> Tensor",
            _relu_backward,
            direct=Shortcuts(_relu_backward),
        ),
    )
)
