# SPDX-License-Identifier: MIT
"""Softmax and its logarithm, along any dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...call.op import Op
from ...families.softmax.operators import (
    LogSoftmax,
    LogSoftmaxGrad_13,
    Softmax,
    SoftmaxGrad_13,
)
from .launching import Run, instance
from .nodes import Operator
from .registration import register
from .shortcuts import Shortcuts


def _pair(name: str, forward: type[Op], gradient: type[Op]) -> tuple[Operator, Operator]:
    """An operator whose derivative takes its result, and that derivative."""

    def body(run: Run, x: Tensor, dim: int) -> Tensor:
        return run(instance(forward, axis=dim), x)

    def backward(run: Run, dy: Tensor, y: Tensor, dim: int) -> Tensor:
        op = instance(gradient, axis=dim)
        return run(op, dy, y)

    def keep(ctx: Any, arguments: Sequence[Any], y: Tensor) -> None:
        ctx.dim = arguments[1]
        ctx.save_for_backward(y)

    def derivative(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        return DOORS[f"{name}_backward"].every(dy, *ctx.saved_tensors, ctx.dim), None

    schema = f"{name}_backward(Tensor grad, Tensor output, int dim) -> Tensor"
    return (
        Operator(
            f"{name}(Tensor input, int dim) -> Tensor",
            body,
            keep,
            derivative,
            direct=Shortcuts(body),
        ),
        Operator(schema, backward, direct=Shortcuts(backward)),
    )


DOORS = register(
    (
        *_pair("softmax", Softmax, SoftmaxGrad_13),
        *_pair("log_softmax", LogSoftmax, LogSoftmaxGrad_13),
    )
)
