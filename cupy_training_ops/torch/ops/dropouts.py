# SPDX-License-Identifier: MIT
"""Dropout of a sum with a bias, plus a residual; masks are bytes or bits.

Which elements are kept follows from `state` alone, seed and offset: two integers, of which the
dispatcher is given a tensor. One on a GPU is read there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...call.op import Op
from ...families.dropout.operators import (
    BiasDropout,
    BitmaskBiasDropout,
    BitmaskDropout,
    BitmaskDropoutGrad,
    Dropout,
    DropoutGrad,
)
from .launching import Run, infer, instance
from .nodes import Operator
from .registration import register
from .shortcuts import Shortcuts
from .sums import over_rows


def _state(state: Any) -> Any:
    """As the operator takes it; what goes on by one on a GPU is a copy."""
    if not isinstance(state, Tensor):
        return state
    if state.device.type == "cpu":
        return tuple(state.tolist())
    return state.clone().view(torch.uint64)


def _triple(
    name: str, plain: type[Op], biased: type[Op], gradient: type[Op], mask: torch.dtype
) -> tuple[Operator, Operator]:
    """A dropout and its gradient, whose masks the dispatcher sees in this dtype."""

    def drawn(run: Run, *arguments: Any) -> Any:
        x, bias, residual, p, state = arguments
        if bias is None and residual is None:
            return run(instance(plain), x, p, True, state)
        bias = x.new_zeros(x.shape[-1:]) if bias is None else bias
        return run(instance(biased), x, bias, residual, p, True, state)

    def body(run: Run, *arguments: Any) -> Any:
        *others, state = arguments
        found = drawn(run, *others, _state(state))
        return found if isinstance(found, Tensor) else (found[0], found[1].view(mask))

    def direct(run: Run, *arguments: Any) -> Any:
        """With the mask as it is: nobody else sees it."""
        *others, state = arguments
        return drawn(run, *others, _state(state))

    def fake(*arguments: Any) -> tuple[Tensor, Tensor]:
        y, found = drawn(infer, *arguments)
        return y, found.view(mask)

    def backward(run: Run, dy: Tensor, found: Tensor, p: float) -> Tensor:
        is_bits = found.dtype == torch.int32
        kept = found.view(torch.uint32) if is_bits else found
        return run(instance(gradient), dy, kept, p, True)

    def keep(ctx: Any, arguments: Sequence[Any], results: Any) -> None:
        _, bias, _, ctx.p, _ = arguments
        ctx.save_for_backward(results[1], bias)

    def derivative(ctx: Any, dy: Tensor, _: None) -> tuple[Any, ...]:
        found, bias = ctx.saved_tensors
        _, of_bias, of_residual, *_ = ctx.needs_input_grad
        dx = DOORS[f"{name}_backward"].every(dy, found, ctx.p)
        dbias = over_rows(dx, bias) if of_bias else None
        return dx, dbias, dy if of_residual else None, None, None

    schema = (
        f"{name}(Tensor input, Tensor? bias, Tensor? residual, float p, Tensor state) "
        "-> (Tensor output, Tensor mask)"
    )
    return (
        Operator(schema, body, keep, derivative, fake, direct=Shortcuts(direct, changing=4)),
        Operator(
            f"{name}_backward(Tensor grad, Tensor mask, float p) -> Tensor",
            backward,
            direct=Shortcuts(backward),
        ),
    )


DOORS = register(
    (
        *_triple("dropout", Dropout, BiasDropout, DropoutGrad, torch.bool),
        *_triple(
            "bitmask_dropout",
            BitmaskDropout,
            BitmaskBiasDropout,
            BitmaskDropoutGrad,
            torch.int32,  # uint32 has few operators in PyTorch
        ),
    )
)
