# SPDX-License-Identifier: MIT
"""Cross-entropy of scores; the forward pass also computes the gradient of the scores.

d loss / d scores is a second result, which the derivative multiplies in place by the loss's
gradient; of float16 scores it is that times `gradient_scale`, as elements of a softmax divided by
many rows are less than float16 has. run(operator, *inputs): `launch`, or `infer` for results
without data. scores: (rows, classes, ...). target: classes, (rows, ...), or probabilities, of the
scores' shape. weight: of the classes, (classes,), or None. ignore_index: class whose rows do not
count. reduction: "mean", "sum" or "none". dtype: of the loss; None: that of the scores. terms:
label_smoothing, lse_square_scale, softcap, or none of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import refuse
from ...families.cross_entropy.operators import (
    CrossEntropyLossAndGrad,
    DenseCrossEntropyLossAndGrad,
    MeasuredCrossEntropyLossAndGrad,
)
from ...families.elementwise.operators import ScaleInPlace
from .autograd import KEEPS_RESULTS, CustomOp
from .dispatch import needs_dispatcher, register
from .launching import Run, infer, instance

_ARGUMENTS = (
    "Tensor target, Tensor? weight=None, int ignore_index=-100, str reduction='mean', "
    "ScalarType? dtype=None"
)
MOST = 2.0**15  # bound of gradients that float16 represents
TERMS = "float label_smoothing=0.0, float lse_square_scale=0.0, float softcap=0.0"
# Returns whether the running backward pass retains its graph, which may then run once more.
_keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)


def loss_operator(
    reduction: str,
    dtype: torch.dtype | None,
    *terms: float,
    kind: Any = CrossEntropyLossAndGrad,
) -> Any:
    """Return the operator of a loss; kind: its class."""
    output_type = None if dtype is None else str(dtype).removeprefix("torch.")
    named = dict(zip(("label_smoothing", "lse_square_scale", "softcap"), terms, strict=False))
    return instance(kind, reduction=reduction, output_type=output_type, **named)


def _loss_and_gradient(
    run: Run,
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    dtype: torch.dtype | None,
    *terms: float,
    outputs: Sequence[str] | None = None,
    kind: Any = CrossEntropyLossAndGrad,
) -> Any:
    """Return the loss against classes and d loss / d scores, or the results that `outputs` names.

    kind: the operator's class.
    """
    scale = gradient_scale(scores, weight, reduction, *terms)
    inputs = (scores, target, weight, ignore_index, None if scale == 1 else scale)
    return run(loss_operator(reduction, dtype, *terms, kind=kind), *inputs, outputs=outputs)


def gradient_scale(
    scores: Tensor, weight: Tensor | None, reduction: str, *terms: float, is_dense: bool = False
) -> float:
    """Return a number that gradients of scores are multiplied by in the forward pass.

    It is 1 but for float16, which should neither lose small gradients nor overflow: a power of two,
    MOST over the largest, 1 + 2 lse_square_scale |lse|, or 1. Class weights of a mean may have any
    sign: 32 times that has room. Other weights, and those of a smoothed loss, have any size: 1.
    Probabilities have any sum: a mean's gradients are multiplied by the rows that divide them.

    is_dense: the loss is against probabilities.
    """
    if scores.dtype != torch.float16:
        return 1
    smoothing, square, cap = terms or (0.0, 0.0, 0.0)
    # |lse|: float16 ends before 2^16, and the logarithm of the number of classes is below 32.
    largest = 1 + 2 * square * (min(cap, 2.0**16) + 32 if cap else 2.0**16 + 32)
    if is_dense:
        is_bounded = weight is None and reduction == "mean" and largest <= MOST
        return math.prod((*scores.shape[:1], *scores.shape[2:])) if is_bounded else 1
    if weight is not None:
        if reduction != "mean" or smoothing:
            return 1
        largest *= 32
    return max(1.0, MOST / 2.0 ** math.ceil(math.log2(largest)))


_loss = functools.partial(_loss_and_gradient, outputs=("output",))
_measures = functools.partial(_loss_and_gradient, kind=MeasuredCrossEntropyLossAndGrad)


def _dense_loss(
    run: Run,
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: str,
    dtype: torch.dtype | None,
    *terms: float,
    outputs: Sequence[str] | None = None,
) -> Any:
    """Return the loss against probabilities and the gradients of scores and target, or the results
    that `outputs` names."""
    op, scale = loss_operator(reduction, dtype, *terms, kind=DenseCrossEntropyLossAndGrad), None
    if outputs is not None:  # a gradient of the target has no bound
        scale = gradient_scale(scores, weight, reduction, *terms, is_dense=True)
    return run(op, scores, target, weight, None, scale, outputs=outputs)


def _in_place(
    _: Run,
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    dtype: torch.dtype | None,
    *terms: float,
) -> Tensor:
    """Return the loss against classes; the gradient, times `gradient_scale`, overwrites scores."""
    whole = scores.resolve_neg().contiguous()
    weight = None if weight is None else weight.contiguous()
    scale = gradient_scale(scores, weight, reduction, *terms)
    inputs = (whole, target.contiguous(), weight, ignore_index, scale)
    loss, _ = loss_operator(reduction, dtype, *terms)(*inputs, out=(None, whole))
    if whole is not scores:
        scores.copy_(whole)
    torch.autograd.graph.increment_version(scores)
    return loss


def _save(ctx: Any, arguments: Sequence[Any], results: tuple[Tensor, ...]) -> None:
    scores, _, weight, _, reduction, _, *terms = arguments
    ctx.scale = gradient_scale(scores, weight, reduction, *terms)
    ctx.save_for_backward(results[1])


def _save_dense(ctx: Any, arguments: Sequence[Any], results: tuple[Tensor, ...]) -> None:
    scores, _, weight, reduction, _, *terms = arguments
    ctx.scale = gradient_scale(scores, weight, reduction, *terms, is_dense=True)
    ctx.save_for_backward(results[1])


def _derivative(ctx: Any, dloss: Tensor, *_: None) -> tuple[Any, ...]:
    """Return gradients of all arguments: None for all but the scores."""
    if ctx.needs_input_grad[2]:
        refuse(
            "cto::cross_entropy", "weight", "a tensor that requires no gradient", "one that does"
        )
    (dscores,) = scale_gradients(ctx, "cross_entropy", dloss, ctx.saved_tensors, ctx.scale)
    return dscores, *[None] * (len(ctx.needs_input_grad) - 1)


def _save_both(ctx: Any, _: Sequence[Any], results: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*results[1:])  # two gradients, or one tensor of both


def _derivative_of_both(ctx: Any, dloss: Tensor, *_: None) -> tuple[Any, ...]:
    """Return gradients of all arguments: None for all but scores and target."""
    if ctx.needs_input_grad[2]:
        expected = "a tensor that requires no gradient"
        refuse("cto::dense_cross_entropy", "weight", expected, "one that does")
    gradients = scale_gradients(ctx, "dense_cross_entropy", dloss, ctx.saved_tensors)
    # Two tensors, or one of both.
    dscores, dtarget = gradients if len(gradients) == 2 else gradients[0].unbind(0)
    return dscores, dtarget, *[None] * (len(ctx.needs_input_grad) - 2)


def scale_gradients(
    ctx: Any, name: str, dloss: Tensor, gradients: Sequence[Tensor], scale: float | Tensor = 1.0
) -> Sequence[Tensor]:
    """Return gradients times dloss / scale, rounded once; in place unless the graph is retained, or
    the caller of `torch.ops.cto` has them.

    name: the operator's, for errors. dloss: gradient of the loss, () or (rows, ...). gradients: of
    the loss or of the rows' losses, (rows, classes, ...). scale: a number, or tensor of shape ().
    """
    if torch.is_grad_enabled():
        refuse(f"cto::{name}", "create_graph", "False", "True: its gradient has no derivative")
    if isinstance(scale, Tensor) or scale != 1:
        dloss = dloss.to(torch.promote_types(dloss.dtype, torch.float32)) / scale
    # With a dimension, it is not rounded to the gradients' type, in which a scale may overflow.
    slope = dloss.unsqueeze(1 if dloss.dim() else 0)
    if needs_dispatcher((dloss, *gradients)):
        return [(gradient * slope).to(gradient.dtype) for gradient in gradients]
    if _keeps_graph() or getattr(ctx, KEEPS_RESULTS, False):
        gradients = [gradient.clone() for gradient in gradients]
    if dloss.dim():
        return [gradient.mul_(slope) for gradient in gradients]
    return [scale_in_place(gradient, dloss) for gradient in gradients]


def refuse_overwriting(x: Tensor) -> None:
    """Refuse scores that cannot be overwritten: leaves, expanded ones, or with retain_grad()."""
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


def _check_overwriting(_: Run, x: Tensor) -> Tensor:
    """Do nothing: the check is `_fake_check`, on the tensors that torch.compile traces with."""
    return x.new_empty(0)


def _fake_check(x: Tensor) -> Tensor:
    """Refuse scores that cannot be overwritten; the result, an empty tensor, has no meaning."""
    if x.requires_grad:
        refuse_overwriting(x)
    return x.new_empty(0)


def scale_in_place(gradient: Tensor, factor: Tensor) -> Tensor:
    """Multiply a gradient by a tensor of shape (), and return it: unwritten where that is 1, as the
    gradient of a loss is in loss.backward()."""
    if factor.dtype == torch.float64:
        return gradient.mul_(factor.unsqueeze(0))  # with a dimension it is not rounded first
    instance(ScaleInPlace)(gradient, factor.float().resolve_neg())
    torch.autograd.graph.increment_version(gradient)
    return gradient


def _losses(prefix: str, terms: str) -> tuple[CustomOp, ...]:
    """Return three operators of a loss against classes: with the gradient of the scores, without
    it, and with it in place of the scores.

    prefix: of their names. terms: text of further arguments in their schemas.
    """
    arguments = f"{_ARGUMENTS}{terms}"
    return (
        CustomOp(
            f"{prefix}cross_entropy(Tensor input, {arguments}) -> (Tensor loss, Tensor gradient)",
            _loss_and_gradient,
            _save,
            _derivative,
        ),
        CustomOp(f"{prefix}cross_entropy_loss(Tensor input, {arguments}) -> Tensor", _loss),
        CustomOp(
            f"{prefix}cross_entropy_(Tensor(a!) input, {arguments}) -> Tensor",
            _in_place,
            fake=functools.partial(_loss, infer),
            writes=0,
        ),
    )


_DENSE = (
    "Tensor input, Tensor target, Tensor? weight=None, str reduction='mean', "
    f"ScalarType? dtype=None, {TERMS}"
)
DOORS = register(
    (
        *_losses("", ""),
        *_losses("regularized_", f", {TERMS}"),
        CustomOp(
            f"measured_cross_entropy(Tensor input, {_ARGUMENTS}, {TERMS}) "
            "-> (Tensor loss, Tensor gradient, Tensor z_loss, Tensor predicted)",
            _measures,
            _save,
            _derivative,
        ),
        CustomOp(
            f"measured_cross_entropy_loss(Tensor input, {_ARGUMENTS}, {TERMS}) "
            "-> (Tensor loss, Tensor z_loss, Tensor predicted)",
            functools.partial(_measures, outputs=("output", "z_loss", "predicted")),
        ),
        CustomOp(
            f"dense_cross_entropy({_DENSE}) -> (Tensor loss, Tensor gradient)",
            functools.partial(_dense_loss, outputs=("output", "d_scores")),
            _save_dense,
            _derivative,
        ),
        CustomOp(
            f"dense_cross_entropy_of_targets({_DENSE}) "
            "-> (Tensor loss, Tensor gradient, Tensor target_gradient)",
            _dense_loss,
            _save_both,
            _derivative_of_both,
        ),
        CustomOp(
            f"dense_cross_entropy_loss({_DENSE}) -> Tensor",
            functools.partial(_dense_loss, outputs=("output",)),
        ),
        CustomOp("overwritten(Tensor input) -> Tensor", _check_overwriting, fake=_fake_check),
    )
)
