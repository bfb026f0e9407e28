# SPDX-License-Identifier: MIT
"""Rows of a table; their gradients are added in an order that follows from the indices alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...families.gather.operators import GatherGrad
from .launching import Run, infer, instance
from .nodes import Operator
from .registration import register
from .shortcuts import Shortcuts


def _embedding(_: Run, weight: Tensor, indices: Tensor, padding_idx: int) -> Tensor:
    return torch.embedding(weight, indices, padding_idx)


def _embedding_backward(
    run: Run, dy: Tensor, indices: Tensor, num_weights: int, padding_idx: int
) -> Tensor:
    op, shape = instance(GatherGrad), (num_weights, dy.shape[-1])
    found: Tensor = run(op, shape, indices, dy)
    if padding_idx < 0:
        return found
    found[padding_idx].zero_()
    return found.detach()  # which no launch has made: `Shortcuts` go past no zeros


def _keep(ctx: Any, arguments: Sequence[Any], _: Tensor) -> None:
    weight, indices, ctx.padding_idx = arguments
    ctx.num_weights = weight.shape[0]
    ctx.save_for_backward(indices)


def _derivative(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    (indices,) = ctx.saved_tensors
    door = DOORS["embedding_backward"]
    return door.every(dy, indices, ctx.num_weights, ctx.padding_idx), None, None


def _fake_backward(dy: Tensor, indices: Tensor, num_weights: int, _: int) -> Tensor:
    return _embedding_backward(infer, dy, indices, num_weights, -1)


DOORS = register(
    (
        Operator(
            "embedding(Tensor weight, Tensor indices, int padding_idx=-1) -> Tensor",
            _embedding,
            _keep,
            _derivative,
        ),
        Operator(
            "embedding_backward(Tensor grad, Tensor indices, SymInt num_weights, "
            "int padding_idx=-1) -> Tensor",
            _embedding_backward,
            fake=_fake_backward,
            direct=Shortcuts(_embedding_backward),
        ),
    )
)
