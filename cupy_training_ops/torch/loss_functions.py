# SPDX-License-Identifier: MIT
"""Losses by PyTorch's names and arguments, with what kernels compute beside them.

A loss makes the gradients of its inputs in the same pass; of a linear layer it never has all scores
in memory. `_their_...` compute by PyTorch's functions what an operator of the same arguments does.
terms: (label_smoothing, lse_square_scale, softcap), the last 0.0 for None. wanted: which of
(z-loss, accuracy, predictions) are returned. weight: of the classes, as PyTorch's.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, NoReturn, overload

import torch
from torch import Tensor
from torch.nn import _reduction
from torch.nn import functional as theirs

from ..errors import refuse, shown
from .ops import DOORS
from .ops.losses import gradient_scale, refuse_overwriting, scale_gradients
from .to_pytorch import (
    DERIVATIVE,
    FLOATS,
    HALVES,
    Unserved,
    call_pytorch,
    differentiates,
    door,
    records,
    refuse_others,
    unserved_tensor,
    with_deprecated_form,
)

_CLASSES = (torch.int64, torch.int32)
_MOST = torch.finfo(torch.float64).max
# PyTorch 2.13 is the first that has them.
_OPTIONS = getattr(torch.nn, "LinearCrossEntropyOptions", ())
_WEIGHT = Unserved("weight", "a tensor that requires no gradient", "one that does")


def _their_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    _: torch.dtype | None,
) -> Tensor:
    """Compute the loss against classes, in the dtype that PyTorch chooses."""
    return theirs.cross_entropy(
        input, target, weight, ignore_index=ignore_index, reduction=reduction
    )


def _their_regularized(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    _: torch.dtype | None,
    label_smoothing: float,
    lse_square_scale: float,
    softcap: float,
) -> Tensor:
    """Compute the loss by PyTorch's functions; its cross_entropy has neither z-loss nor cap."""
    if softcap:
        capped = softcap * torch.tanh(input / softcap)
        input = torch.where(input == -torch.inf, input, capped)
    named: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    if not lse_square_scale:
        return theirs.cross_entropy(input, target, weight, reduction=reduction, **named)
    losses = theirs.cross_entropy(input, target, weight, reduction="none", **named)
    weights = torch.ones_like(losses)  # of rows, 0 where the target is ignored
    if not target.is_floating_point():
        if weight is not None:
            weights = weight[target.clamp(0, input.shape[input.dim() > 1] - 1)]  # dim 0 or 1
        weights = torch.where(target == ignore_index, 0, weights)
    lse = torch.logsumexp(input, int(input.dim() > 1), keepdim=False).to(losses.dtype)
    losses = losses + torch.where(weights == 0, 0, weights * lse_square_scale * lse.square())
    if reduction == "none":
        return losses
    return losses.sum() / weights.sum() if reduction == "mean" else losses.sum()


def _their_dense(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: str,
    _: torch.dtype | None,
    *terms: float,
) -> Tensor:
    """Compute the loss against probabilities, with PyTorch's default of ignore_index."""
    return _their_regularized(input, target, weight, -100, reduction, None, *terms)


def _their_measured(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    dtype: torch.dtype | None,
    *terms: float,
) -> tuple[Tensor, ...]:
    """Return (loss, loss, z-loss, predicted classes) by PyTorch's functions, the second in place of
    the gradient that the operator returns."""
    smoothing, square, cap = terms
    with torch.no_grad():
        scores = input.detach()
        if cap:
            capped = cap * torch.tanh(scores / cap)
            scores = torch.where(scores == -torch.inf, scores, capped)
        losses = [
            _their_regularized(
                scores, target, weight, ignore_index, reduction, dtype, smoothing, scale, 0.0
            )
            for scale in (square, 0.0)  # with z-loss, and without
        ]
        dim = int(scores.dim() > 1)
        is_left = (target == ignore_index) | ~scores.amax(dim).isfinite()
        predicted = scores.argmax(dim).masked_fill(is_left, -1)
    loss = _their_regularized(input, target, weight, ignore_index, reduction, dtype, *terms)
    return loss, loss, losses[0] - losses[1], predicted


def _their_measured_loss(*arguments: Any) -> tuple[Tensor, ...]:
    loss, _, *measures = _their_measured(*arguments)
    return loss, *measures


# Looked up once.
_loss = door("cross_entropy", _their_loss, name="cross_entropy_loss")
_loss_and_gradient = door("cross_entropy", _their_loss, is_first=True)
_regularized_loss = door("cross_entropy", _their_regularized, name="regularized_cross_entropy_loss")
_regularized = door(
    "cross_entropy", _their_regularized, name="regularized_cross_entropy", is_first=True
)
_measured_loss = door("cross_entropy", _their_measured_loss, name="measured_cross_entropy_loss")
_measured = door("cross_entropy", _their_measured, name="measured_cross_entropy")
_dense_loss = door("cross_entropy", _their_dense, name="dense_cross_entropy_loss")
_dense, _dense_of_targets = [
    door("cross_entropy", _their_dense, name=name, is_first=True)
    for name in ("dense_cross_entropy", "dense_cross_entropy_of_targets")
]
_check_overwriting = DOORS["overwritten"].every
_linear_loss = DOORS["linear_cross_entropy"].every
_linear_row_losses = DOORS["linear_cross_entropy_rows"].every
_measured_linear_loss = DOORS["measured_linear_cross_entropy"].every
_measured_row_losses = DOORS["measured_linear_cross_entropy_rows"].every


class CrossEntropyOutput(NamedTuple):
    """A loss, and measures of the same pass, without gradients; None if they are not asked for."""

    loss: Tensor
    z_loss: Tensor | None = None
    token_accuracy: Tensor | None = None
    predicted_tokens: Tensor | None = None


@overload
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: Literal["none", "mean", "sum"] = "mean",
    label_smoothing: float = 0.0,
    *,
    inplace: bool = False,
    lse_square_scale: float = 0.0,
    softcap: float | None = None,
    return_z_loss: Literal[False] = False,
    return_token_accuracy: Literal[False] = False,
    return_predicted_tokens: Literal[False] = False,
) -> Tensor: ...


@overload
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: Literal["none", "mean", "sum"] = "mean",
    label_smoothing: float = 0.0,
    *,
    inplace: bool = False,
    lse_square_scale: float = 0.0,
    softcap: float | None = None,
    return_z_loss: bool = False,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
) -> Tensor | CrossEntropyOutput: ...


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: Literal["none", "mean", "sum"] = "mean",
    label_smoothing: float = 0.0,
    *,
    inplace: bool = False,
    lse_square_scale: float = 0.0,
    softcap: float | None = None,
    return_z_loss: bool = False,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
) -> Tensor | CrossEntropyOutput:
    """As torch.nn.functional.cross_entropy; computes the gradients with the loss.

    lse_square_scale: of a z-loss, the square of logsumexp(input), which is added to each row's.
    softcap: the input is softcap tanh(input / softcap), but -infinity stays. inplace: the gradient
    overwrites the input, which no other operation may then use; not without gradients, against
    probabilities, nor for a part of a tensor in compiled code. A target out of range makes the loss
    NaN, a mean of no rows is 0 (of no probabilities, or inside of torch.func's derivatives, NaN as
    PyTorch's), and a probability of 0 has no part in the loss, whatever its class scores. Under
    autocast the loss is float32, of float64 float64.

    return_z_loss, return_token_accuracy, return_predicted_tokens: return a CrossEntropyOutput,
    against classes. The z-loss is reduced as the loss, of which it is a part. A token's prediction
    is the first class with the largest score, -1 where the target is ignored or softmax is NaN; the
    accuracy is the share of counted targets that are predicted, for reduction='none' 1.0 or 0.0
    each.
    """
    if not isinstance(input, Tensor) or not isinstance(target, Tensor):
        refuse_others("cross_entropy", input=input, target=target)
    if ignore_index is None:
        refuse("cross_entropy", "ignore_index", "an integer", "None")
    if size_average is not None or reduce is not None:
        reduction = _reduction.legacy_get_string(size_average, reduce)
    terms: tuple[float, ...] = ()
    are_numbers = type(label_smoothing) is type(lse_square_scale) is float
    has_terms = not are_numbers or label_smoothing or lse_square_scale or softcap is not None
    is_measured = return_z_loss or return_token_accuracy or return_predicted_tokens
    if has_terms or is_measured or weight is not None or target.dtype not in _CLASSES:
        refuse_others("cross_entropy", {"weight": weight})
        terms = _terms("cross_entropy", label_smoothing, lse_square_scale, softcap)
        has_terms = any(terms)
        if target.dtype not in _CLASSES:
            if is_measured:
                expected = "classes, where z-loss, accuracy or predictions are returned"
                refuse("cross_entropy", "target", expected, str(target.dtype))
            return _against_probabilities(input, target, weight, ignore_index, reduction, terms)
        if getattr(weight, "requires_grad", False) and not is_measured:
            arguments = (input, target, weight, ignore_index, reduction, None, *terms)
            return call_pytorch("cross_entropy", _WEIGHT, _their_regularized, *arguments)
        terms = terms if has_terms or is_measured else ()
    reduced: str = reduction
    whole_target = target
    if input.dim() == 1:
        input, target = input.unsqueeze(0), target.unsqueeze(0)
        reduced = "sum" if reduction == "none" else reduction
    dtype = torch.float32 if input.dtype in HALVES and _are_cast(input) else None
    arguments = (input, target, weight, ignore_index, reduced, dtype)
    if is_measured:
        if inplace:
            refuse("cross_entropy", "inplace", "False where measures are returned", "True")
        measures = _measure(*arguments, *terms)
        wanted = return_z_loss, return_token_accuracy, return_predicted_tokens
        return _output(*measures, whole_target, ignore_index, reduction, wanted)
    if not records(input):
        return _regularized_loss(*arguments, *terms) if terms else _loss(*arguments)
    if inplace:
        return _in_place(*arguments, *terms)
    return _regularized(*arguments, *terms) if terms else _loss_and_gradient(*arguments)


def _measure(input: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return (loss, z-loss, predicted classes); others: arguments after the scores."""
    if not records(input):
        loss, z_loss, predicted = _measured_loss(input, *others)
    else:
        loss, _, z_loss, predicted = _measured(input, *others)
    return loss, z_loss, predicted


def _output(
    loss: Tensor,
    z_loss: Tensor,
    predicted: Tensor,
    target: Tensor,
    ignore_index: int,
    reduction: str,
    wanted: tuple[bool, bool, bool],
) -> CrossEntropyOutput:
    """Return the loss with the measures that are wanted; predicted: a class for each target."""
    accuracy, predicted = None, predicted.reshape(target.shape)
    if wanted[1]:
        counts = target.long() != ignore_index  # int32: with its lowest 32 bits
        right = ((predicted == target) & counts).to(torch.float32)
        accuracy = right if reduction == "none" else right.sum() / counts.sum().clamp(min=1)
        accuracy = accuracy.reshape(loss.shape)
    z_loss = z_loss.reshape(loss.shape)
    return CrossEntropyOutput(
        loss, z_loss if wanted[0] else None, accuracy, predicted if wanted[2] else None
    )


def _against_probabilities(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    terms: tuple[float, ...],
) -> Tensor:
    """Return the loss against probabilities; PyTorch computes it for arguments no kernel takes."""
    reason = _unserved_probabilities(input, target, weight, ignore_index)
    if reason is not None:
        arguments = (input, target, weight, ignore_index, reduction, None, *terms)
        return call_pytorch("cross_entropy", reason, _their_regularized, *arguments)
    if input.dim() == 1:
        input, target = input.unsqueeze(0), target.unsqueeze(0)
        reduction = "sum" if reduction == "none" else reduction
    others = torch.float32 if _are_cast(input) else input.dtype
    dtype = torch.promote_types(others, target.dtype)
    if weight is not None:
        dtype = torch.promote_types(dtype, weight.dtype)
        weight = weight if weight.dtype == input.dtype else weight.to(dtype)
    target = target if target.dtype == input.dtype else target.to(dtype)
    others = (target, weight, reduction, None if dtype == input.dtype else dtype, *terms)
    if records(target):
        return _dense_of_targets(input, *others)
    return _dense(input, *others) if records(input) else _dense_loss(input, *others)


def _unserved_probabilities(
    input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int
) -> Unserved | None:
    """Return an argument of a loss against probabilities that kernels refuse, or None."""
    if target.dtype not in FLOATS or target.shape != input.shape or not input.numel():
        shape = tuple(input.shape)
        expected = f"classes in int64 or int32, or probabilities of shape {shape}, not empty"
        return Unserved("target", expected, f"{target.dtype} of shape {tuple(target.shape)}")
    if getattr(weight, "requires_grad", False):
        return _WEIGHT
    widest = torch.promote_types(input.dtype, target.dtype)
    if weight is not None:
        widest = torch.promote_types(widest, weight.dtype)
    if input.dtype not in FLOATS:
        expected = "floating-point numbers of 16 to 64 bits"
        return Unserved("input", expected, str(input.dtype))
    if widest == torch.float64 != input.dtype:
        return Unserved("input", f"dtype {widest}", str(input.dtype))
    if not hasattr(type(ignore_index), "__index__") or ignore_index >= 0:
        return Unserved("ignore_index", "a negative number with probabilities", ignore_index)
    return None


def _terms(
    function: str, label_smoothing: float, lse_square_scale: float, softcap: float | None
) -> tuple[float, ...]:
    """Return `terms` of these arguments; refuse others than numbers in their ranges."""
    cap = 0.0 if softcap is None else softcap
    values = {"label_smoothing": label_smoothing, "lse_square_scale": lse_square_scale}
    for name, value in (*values.items(), ("softcap", cap)):
        is_number = isinstance(value, int | float)  # first: Dynamo follows it with any number
        is_number = is_number or (hasattr(value, "__float__") and not getattr(value, "shape", ()))
        if isinstance(value, Tensor):  # PyTorch reads a smoothing that requires no gradient
            is_number = is_number and name == "label_smoothing" and not value.requires_grad
        if not is_number:
            refuse(function, name, "a number", shown(value))
        is_float = not _MOST < value < math.inf  # an integer may be larger
        if name != "label_smoothing" and not (0 <= value < math.inf and is_float):
            refuse(function, name, "a finite number of at least 0", shown(value))
        if not (value >= 0 and is_float):  # PyTorch's functions ignore a negative smoothing
            refuse(function, name, "a number from 0 to 1", shown(value))
    return float(label_smoothing), float(lse_square_scale), float(cap)


def _are_cast(*tensors: Tensor) -> bool:
    """Return True under autocast, which leaves float64 as it is."""
    kind = tensors[0].device.type
    is_enabled = kind != "meta" and torch.is_autocast_enabled(kind)
    return is_enabled and all(x.dtype != torch.float64 for x in tensors)


def _in_place(input: Tensor, *others: Any) -> Tensor:
    """Return the loss, and overwrite the scores by their gradient; others: (target, weight,
    ignore_index, reduction, dtype), and `terms` where they are not all 0."""
    if not torch.compiler.is_compiling() and differentiates():
        return (_loss_and_gradient if len(others) == 5 else _regularized)(input, *others)
    if torch._C._are_functorch_transforms_active():
        refuse("cross_entropy", "inplace", "False inside torch.vmap", "True")
    is_whole = input.is_contiguous()
    if torch.compiler.is_compiling():
        _check_overwriting(input)
        # Inductor, which may pad the rows of a product, corrupts its other parts if one part is
        # written: such scores are not overwritten.
        is_part = input._base is not None and input._base.numel() != input.numel()
        return _InPlace.apply(input, is_whole and not is_part, *others)
    refuse_overwriting(input)
    loss = _InPlace.apply(input, is_whole and not input.is_neg(), *others)
    with torch.autograd._unsafe_preserve_version_counter(input):  # of what was saved
        _Spent.apply(input)
    return loss


class _InPlace(torch.autograd.Function):  # type: ignore[misc]
    """The loss of scores, whose gradient overwrites them and raises their version. is_whole: the
    operator writes to them; else the gradient is copied there, but not in compiled code."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, is_whole: bool, *others: Any) -> Tensor:
        data, prefix = input.detach(), "" if len(others) == 5 else "regularized_"
        if is_whole:
            loss, gradient = DOORS[f"{prefix}cross_entropy_"].every(data, *others), data
        else:
            loss, gradient = DOORS[f"{prefix}cross_entropy"].every(data, *others)
            if not torch.compiler.is_compiling():
                data.copy_(gradient)
        ctx.scale = gradient_scale(input, others[1], others[3], *others[5:])
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> Any:
        (dscores,) = scale_gradients(ctx, "cross_entropy_", dloss, ctx.saved_tensors, ctx.scale)
        return dscores, *[None] * (len(ctx.needs_input_grad) - 1)


class _Spent(torch.autograd.Function):  # type: ignore[misc]
    """Marks overwritten scores: refuses a gradient through them."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        ctx.mark_dirty(scores)
        return scores

    @staticmethod
    def backward(_: Any, __: Tensor) -> NoReturn:
        expected = "scores that nothing else is computed from after the loss in place"
        refuse("cross_entropy", "input", expected, "another use, of the gradient that they hold")


@with_deprecated_form
def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: Literal["none", "mean", "sum"] = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: Any = None,
    lse_square_scale: float = 0.0,
    softcap: float | None = None,
    return_z_loss: bool = False,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor | CrossEntropyOutput:
    """As torch.nn.functional.linear_cross_entropy, without all scores in memory.

    input: shape (..., features), target: shape (...); or (rows, features) and (rows, ...) for a
    linear_weight of shape (classes, ..., features) and a linear_bias of (classes, ...);
    probabilities have the classes as the dimension after the rows. Rows are processed in chunks,
    whose scores are overwritten by their gradient; gradients are computed with the loss, for
    reduction='none' from scores that are computed again. If probabilities require gradients, which
    are as large, all scores are computed at once. lse_square_scale: of a z-loss, the square of a
    row's logsumexp. softcap: scores become softcap tanh(scores / softcap). return_z_loss,
    return_token_accuracy, return_predicted_tokens: return a CrossEntropyOutput, reduced as by
    cross_entropy. dtype: of the loss, which is rounded once; None: the input's. options: of PyTorch
    2.13's LinearCrossEntropyOptions, batch_chunk_size bounds the rows of a chunk, whose scores are
    the memory that the loss needs (default: about 512 MiB); others are for PyTorch's own kernels.
    """
    tensors = {"input": input, "linear_weight": linear_weight, "target": target}
    refuse_others("linear_cross_entropy", {"linear_bias": linear_bias, "weight": weight}, **tensors)
    if ignore_index is not None and not hasattr(type(ignore_index), "__index__"):
        refuse("linear_cross_entropy", "ignore_index", "an integer or None", shown(ignore_index))
    if dtype is not None and dtype not in FLOATS:
        expected = "a floating-point dtype of 16 to 64 bits, or None"
        refuse("linear_cross_entropy", "dtype", expected, shown(dtype))
    if options is not None and not isinstance(options, _OPTIONS):
        expected = "None or torch.nn.LinearCrossEntropyOptions"
        refuse("linear_cross_entropy", "options", expected, shown(options))
    terms = _terms("linear_cross_entropy", label_smoothing, lse_square_scale, softcap)
    wanted = return_z_loss, return_token_accuracy, return_predicted_tokens
    is_dense = target.dtype not in _CLASSES
    if is_dense and any(wanted):
        expected = "classes, where z-loss, accuracy or predictions are returned"
        refuse("linear_cross_entropy", "target", expected, str(target.dtype))
    if not torch.compiler.is_compiling() and differentiates():
        reason: Unserved | None = DERIVATIVE
    else:
        reason = _unserved_linear(
            input, linear_weight, target, linear_bias, weight, reduction, ignore_index
        )
    if reason is not None:
        theirs_of_all = _their_linear_loss if not any(wanted) else _their_measured_linear_loss
        result = call_pytorch(
            "linear_cross_entropy",
            reason,
            theirs_of_all,
            input,
            linear_weight,
            target,
            linear_bias,
            weight,
            reduction,
            ignore_index,
            None if reason is DERIVATIVE else options,  # PyTorch's chunks have no such derivative
            terms,
            *((wanted,) if any(wanted) else ()),
        )
        return _cast(result, dtype)
    bias = linear_bias
    if _are_cast(input):
        cast, dtype = torch.get_autocast_dtype(input.device.type), dtype or torch.float32
        input, linear_weight = input.to(cast), linear_weight.to(cast)
        bias = None if bias is None else bias.to(cast)
    extents = linear_weight.shape[1:-1]
    shape = target.shape
    if is_dense:
        if records(target):
            rows, by_row, shape = _in_rows(input, linear_weight, target)
            scores = _scores_of(rows, linear_weight, bias)
            loss = _against_probabilities(scores, by_row, weight, -100, reduction, terms)
            return _cast(loss.reshape(shape) if reduction == "none" else loss, dtype)
        if dtype is None and target.dtype != input.dtype:
            dtype = torch.promote_types(input.dtype, target.dtype)
        by_row = target.reshape(-1, len(linear_weight), *extents)
        shape = (*input.shape[:-1], *extents)
        if by_row.dtype != input.dtype and input.dtype in HALVES:
            by_row = by_row.float()
        by_row = by_row.to(torch.promote_types(by_row.dtype, input.dtype))
    else:
        by_row = target.reshape(-1, *extents) if extents else target.reshape(-1)
    rows = input.reshape(by_row.shape[0], input.shape[-1])
    linear_weight = linear_weight.flatten(0, -2)
    bias = None if bias is None else bias.flatten()
    ignored = -100 if ignore_index is None else ignore_index
    chunk_rows = 0 if options is None else options.batch_chunk_size or 0
    if reduction == "none":
        others = (bias, ignored, dtype, weight, *terms, chunk_rows)
        if not any(wanted):
            return _linear_row_losses(rows, linear_weight, by_row, *others).reshape(shape)
        results = _measured_row_losses(rows, linear_weight, by_row, *others)
        loss, z_loss, predicted = [x.reshape(shape) for x in results]
    else:
        mask = tuple([x is not None and records(x) for x in (input, linear_weight, bias)])
        others = (bias, ignored, reduction, dtype, mask, weight, *terms, chunk_rows)
        if not any(wanted):
            return _linear_loss(rows, linear_weight, by_row, *others)[0]
        loss, *_, z_loss, predicted = _measured_linear_loss(rows, linear_weight, by_row, *others)
        predicted = predicted.reshape(shape)
    return _output(loss, z_loss, predicted, target, ignored, reduction, wanted)


def _cast(result: Any, dtype: torch.dtype | None) -> Any:
    """Return a loss, or a loss and z-loss beside others, in a dtype; None: as they are."""
    if dtype is None:
        return result
    if isinstance(result, Tensor):
        return result.to(dtype)
    z_loss = result.z_loss
    return result._replace(
        loss=result.loss.to(dtype), z_loss=None if z_loss is None else z_loss.to(dtype)
    )


def _in_rows(
    input: Tensor, linear_weight: Tensor, target: Tensor
) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Return input and target with one dimension of rows, as PyTorch's loss of scores, whose
    classes are the second dimension, takes them, and the shape of the rows' losses."""
    *shape, n_features = input.shape
    extents = linear_weight.shape[1:-1]
    if not extents and target.shape[: len(shape)] == (*shape,):
        n_rows = math.prod(shape)
        target = target.reshape(n_rows, *target.shape[len(shape) :])
        input = input.reshape(n_rows, n_features)
    return input, target, (*shape, *extents)


def _scores_of(input: Tensor, linear_weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the scores of a layer, with its classes after the rows."""
    bias = None if bias is None else bias.flatten()
    scores = theirs.linear(input, linear_weight.flatten(0, -2), bias)
    return scores.reshape(*input.shape[:-1], *linear_weight.shape[:-1])


def _unserved_linear(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None,
    weight: Tensor | None,
    reduction: str,
    ignore_index: int | None,
) -> Unserved | None:
    """Return an argument of a linear layer's loss that kernels refuse, or None."""
    others = {"linear_weight": linear_weight, "target": target, "linear_bias": linear_bias}
    for name, tensor in (*others.items(), ("weight", weight)):
        if tensor is not None and tensor.device != input.device:
            refuse("linear_cross_entropy", name, f"device {input.device}", str(tensor.device))
    if linear_weight.dim() < 2 or not input.dim() or linear_weight.shape[-1] != input.shape[-1]:
        features = input.shape[-1] if input.dim() else "features"
        expected = f"shape (classes, ..., {features}), as the input's features"
        return Unserved("linear_weight", expected, f"shape {tuple(linear_weight.shape)}")
    n_classes, *extents = linear_weight.shape[:-1]
    if extents and (input.dim() != 2 or 0 in extents):
        expected = "shape (rows, features) where the loss has dimensions"
        return Unserved("input", expected, f"shape {tuple(input.shape)}")
    classes = () if target.dtype in _CLASSES else (n_classes,)
    if target.shape != (*input.shape[:-1], *classes, *extents):
        expected = f"shape {(*input.shape[:-1], *classes, *extents)}, as the scores"
        expected += "" if classes else " without classes"
        return Unserved("target", expected, f"shape {tuple(target.shape)}")
    if classes and (ignore_index is not None or target.dtype not in FLOATS or not target.numel()):
        return Unserved(
            "target", "probabilities, not empty, without ignore_index", f"{target.dtype}"
        )
    if classes and target.dtype == torch.float64 != input.dtype:
        return Unserved("target", f"dtype {input.dtype}", str(target.dtype))
    shapes = {"linear_bias": (linear_bias, (n_classes, *extents)), "weight": (weight, (n_classes,))}
    for name, (tensor, shape) in shapes.items():
        if tensor is not None and tensor.shape != shape:
            expected = f"shape {shape}, as the classes"
            return Unserved(name, expected, f"shape {tuple(tensor.shape)}")
    if reduction not in ("mean", "sum", "none"):
        return Unserved("reduction", "'mean', 'sum' or 'none'", repr(reduction))
    layer = (input, linear_weight) if linear_bias is None else (input, linear_weight, linear_bias)
    if len({x.dtype for x in layer}) > 1 and not _are_cast(*layer):
        return Unserved("input", f"dtype {linear_weight.dtype}", str(input.dtype))
    if getattr(weight, "requires_grad", False):
        return _WEIGHT
    return unserved_tensor(*layer, target, weight)


def _their_linear_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None,
    weight: Tensor | None,
    reduction: str,
    ignore_index: int | None,
    options: Any,
    terms: tuple[float, ...],
) -> Tensor:
    """Call PyTorch's function (from 2.13), or compute all scores where it lacks an argument."""
    if hasattr(theirs, "linear_cross_entropy") and not any(terms[1:]):
        return theirs.linear_cross_entropy(
            input,
            linear_weight,
            target,
            linear_bias=linear_bias,
            weight=weight,
            reduction=reduction,
            ignore_index=ignore_index,
            label_smoothing=terms[0],
            options=options,
        )
    input, target, shape = _in_rows(input, linear_weight, target)
    scores = _scores_of(input, linear_weight, linear_bias)
    if target.shape == scores.shape and ignore_index is not None:
        refuse("linear_cross_entropy", "ignore_index", "None with probabilities", f"{ignore_index}")
    ignored = -100 if ignore_index is None else ignore_index
    loss = _their_regularized(scores, target, weight, ignored, reduction, None, *terms)
    return loss.reshape(shape) if reduction == "none" else loss


def _their_measured_linear_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None,
    weight: Tensor | None,
    reduction: str,
    ignore_index: int | None,
    _: Any,
    terms: tuple[float, ...],
    wanted: tuple[bool, bool, bool],
) -> CrossEntropyOutput:
    """Compute a linear layer's loss, and the measures that are wanted, by PyTorch's functions."""
    ignored = -100 if ignore_index is None else ignore_index
    rows, by_row, shape = _in_rows(input, linear_weight, target)
    scores = _scores_of(rows, linear_weight, linear_bias)
    loss, _, z_loss, predicted = _their_measured(
        scores, by_row, weight, ignored, reduction, None, *terms
    )
    loss = loss.reshape(shape) if reduction == "none" else loss
    return _output(loss, z_loss, predicted, target, ignored, reduction, wanted)
