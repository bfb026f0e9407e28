# SPDX-License-Identifier: MIT
"""Cross-entropy against classes with the gradient of the scores made in the same pass.

The gradient is a result beside the loss, for the loss as it is: the derivative multiplies it, in
place, with that of the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import refuse
from ...families.cross_entropy.operators import CrossEntropyLossAndGrad
from ...families.elementwise.operators import ScaleInPlace
from .doors import is_watched
from .launching import Run, infer, instance
from .nodes import Operator
from .registration import register
from .shortcuts import Shortcuts

_ARGUMENTS = (
    "Tensor target, Tensor? weight=None, int ignore_index=-100, str reduction='mean', "
    "ScalarType? dtype=None"
)


def operator(reduction: str, dtype: torch.dtype | None) -> Any:
    output_type = None if dtype is None else str(dtype).removeprefix("torch.")
    return instance(CrossEntropyLossAndGrad, reduction=reduction, output_type=output_type)


def _both(
    run: Run,
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    dtype: torch.dtype | None,
) -> Any:
    return run(operator(reduction, dtype), scores, target, weight, ignore_index, None)


def _loss(
    run: Run,
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    dtype: torch.dtype | None,
) -> Tensor:
    inputs = (scores, target, weight, ignore_index, None)
    return run(operator(reduction, dtype), *inputs, outputs=("output",))


def _in_place(
    _: Run,
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    dtype: torch.dtype | None,
) -> Tensor:
    whole = scores.resolve_neg().contiguous()
    weight = None if weight is None else weight.contiguous()
    inputs = (whole, target.contiguous(), weight, ignore_index, None)
    loss, _ = operator(reduction, dtype)(*inputs, out=(None, whole))
    if whole is not scores:
        scores.copy_(whole)
    torch.autograd.graph.increment_version(scores)
    return loss


def _fake_in_place(*arguments: Any) -> Tensor:
    return _loss(infer, *arguments)


def _keep(ctx: Any, _: Sequence[Any], results: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(results[1])


def _derivative(ctx: Any, dloss: Tensor, _: None) -> tuple[Any, ...]:
    if ctx.needs_input_grad[2]:
        refuse(
            "cto::cross_entropy", "weight", "a tensor that requires no gradient", "one that does"
        )
    return scaled("cross_entropy", dloss, ctx.saved_tensors)[0], *[None] * 5


def scaled(name: str, dloss: Tensor, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
    """Gradients times that of the loss, or of each row's; in place where nobody asks again."""
    if torch.is_grad_enabled():
        refuse(f"cto::{name}", "create_graph", "False", "True: its gradient has no derivative")
    slope = dloss.unsqueeze(1) if dloss.dim() else dloss
    if is_watched((dloss, *gradients)) or _keeps_graph():
        return [gradient * slope.to(gradient.dtype) for gradient in gradients]
    if dloss.dim() or dloss.dtype == torch.float64:
        return [gradient.mul_(slope) for gradient in gradients]
    # Mostly by 1, the gradient of a loss that is the last: then nothing is written.
    factor = dloss.float()
    return [_by(gradient, factor) for gradient in gradients]


def refuse_overwriting(x: Tensor) -> None:
    """Refuse to overwrite the memory of a leaf, or of a tensor that is to have a gradient, and
    each element has its own."""
    if any(n > 1 and stride == 0 for n, stride in zip(x.shape, x.stride(), strict=True)):
        expected = "scores that are no expanded ones, as they are overwritten"
        refuse("cross_entropy", "input", expected, f"strides {tuple(x.stride())}")
    base = x if x._base is None else x._base
    if x.is_leaf or (base.is_leaf and base.requires_grad):
        expected = "the result of an operation, as it is overwritten"
        refuse("cross_entropy", "input", expected, "a leaf, or its view")
    if x.retains_grad or base.retains_grad:
        expected = "scores that do not retain their gradient, as it takes their place"
        refuse("cross_entropy", "input", expected, "some that do (retain_grad())")


def _overwritten(_: Run, x: Tensor) -> Tensor:
    """Nothing; it is torch.compile's own tensors, without data, that are looked at."""
    return x.new_empty(0)


def _fake_overwritten(x: Tensor) -> Tensor:
    if x.requires_grad:
        refuse_overwriting(x)
    return x.new_empty(0)


def _by(gradient: Tensor, factor: Tensor) -> Tensor:
    instance(ScaleInPlace)(gradient, factor.resolve_neg())
    torch.autograd.graph.increment_version(gradient)
    return gradient


_keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)


DOORS = register(
    (
        Operator(
            f"cross_entropy(Tensor input, {_ARGUMENTS}) -> (Tensor loss, Tensor gradient)",
            _both,
            _keep,
            _derivative,
            direct=Shortcuts(_both),
        ),
        Operator(
            f"cross_entropy_loss(Tensor input, {_ARGUMENTS}) -> Tensor",
            _loss,
            direct=Shortcuts(_loss),
        ),
        Operator(
            f"cross_entropy_(Tensor(a!) input, {_ARGUMENTS}) -> Tensor",
            _in_place,
            fake=_fake_in_place,
            writes=0,
        ),
        Operator("overwritten(Tensor input) -> Tensor", _overwritten, fake=_fake_overwritten),
    )
)
