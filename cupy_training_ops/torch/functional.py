# SPDX-License-Identifier: MIT
"""PyTorch's functions by their names and arguments, computed by this package's kernels.

Without gradients a function calls its launches, with them one autograd.Function, and PyTorch's
dispatcher if torch.compile, a mode, a subclass or a transform needs to see the call. Results have
the dtype of weights, if these differ from the input's.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor

from ..errors import DtypeError, pass_on, refuse, shown
from .ops import DOORS
from .ops.dispatch import needs_dispatcher
from .ops.losses import refuse_overwriting, scale_gradients

__all__ = [
    "cross_entropy",
    "dropout",
    "embedding",
    "gelu",
    "layer_norm",
    "linear_cross_entropy",
    "log_softmax",
    "relu",
    "rms_norm",
    "softmax",
]


def __dir__() -> list[str]:
    return sorted(__all__)


_HALVES = (torch.float16, torch.bfloat16)
_CLASSES = (torch.int64, torch.int32)
_EPS: dict[object, float] = dict.fromkeys((*_HALVES, torch.float32), torch.finfo(torch.float32).eps)
_NONE: Mapping[str, Any] = {}
_EPS_OF_DOUBLE = torch.finfo(torch.float64).eps
_MOST_SEED = 1 << 62
# Looked up once, as every call uses it.
_is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)

# Looked up once.
_layer_norm, _rms_norm = DOORS["layer_norm"].first, DOORS["rms_norm"].first
_gelu, _relu = DOORS["gelu"].every, DOORS["relu"].first
_softmax, _log_softmax = DOORS["softmax"].every, DOORS["log_softmax"].every
_dropout, _embedding = DOORS["bitmask_dropout"], DOORS["embedding"].every
_loss, _loss_and_gradient = DOORS["cross_entropy_loss"].every, DOORS["cross_entropy"].first
_loss_beside_gradient = DOORS["cross_entropy"].every
_loss_in_place, _check_overwriting = DOORS["cross_entropy_"].every, DOORS["overwritten"].every
_linear_loss = DOORS["linear_cross_entropy"].every


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """As torch.nn.functional.layer_norm; computed in float32 and rounded once."""
    return _layer_norm(input, normalized_shape, weight, bias, eps)


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """As torch.nn.functional.rms_norm; computed in float32 and rounded once."""
    if eps is None:
        eps = _EPS.get(getattr(input, "dtype", None), _EPS_OF_DOUBLE)
    return _rms_norm(input, normalized_shape, weight, eps)


def gelu(
    input: Tensor, approximate: Literal["none", "tanh"] = "none", *, bias: Tensor | None = None
) -> Tensor:
    """As torch.nn.functional.gelu, of input + bias, a row, in one pass."""
    return _gelu(input, bias, approximate)


def relu(input: Tensor) -> Tensor:
    """As torch.nn.functional.relu; saves a bit an element for the gradient."""
    try:
        return _relu(input) if _records(input) else torch.relu(input)
    except (AttributeError, TypeError) as error:
        pass_on(error)
        _refuse_others("relu", input=input)
        raise


def softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """As torch.nn.functional.softmax; computed in float32 and rounded once."""
    return _softmax(input if dtype is None else _cast("softmax", input, dtype), dim)


def log_softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """As torch.nn.functional.log_softmax; computed in float32 and rounded once."""
    return _log_softmax(input if dtype is None else _cast("log_softmax", input, dtype), dim)


def _cast(function: str, input: Tensor, dtype: torch.dtype) -> Tensor:
    _refuse_others(function, input=input)
    return input.to(dtype)


def _refuse_others(function: str, others: Mapping[str, Any] = _NONE, **tensors: Any) -> None:
    """Refuse arguments that are no tensors, before a function uses them; `others` may be None."""
    for argument, value in (*tensors.items(), *others.items()):
        if not isinstance(value, Tensor) and not (value is None and argument in others):
            refuse(function, argument, "a tensor", shown(value))


def dropout(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """As torch.nn.functional.dropout, of input + bias, plus a residual, with a mask of bits.

    The seed is drawn from PyTorch's generator, so torch.manual_seed repeats it; masks are not those
    that PyTorch draws. Each run of compiled regions and captured graphs draws on the device.
    """
    try:
        is_drawn, is_share = training and 0 < p < 1, 0 <= p <= 1
    except TypeError:
        is_drawn = is_share = False
    if is_drawn:
        return _drop(input, bias, residual, float(p))
    if not is_share:
        refuse("dropout", "p", "a number from 0 to 1", shown(p))
    _refuse_others("dropout", {"bias": bias, "residual": residual}, input=input)
    total = input if bias is None else input + bias
    total = total * 0.0 if training and p == 1 else total
    return total if residual is None else total + residual


def _drop_fallback(*arguments: Any) -> Any:
    """Run a dropout that matches no recent call; draws (seed, offset), or a tensor of both.

    A tensor is drawn on the device, again in each run of a compiled region or captured graph.
    """
    input, bias, residual, _ = arguments
    _refuse_others("dropout", {"bias": bias, "residual": residual}, input=input)
    device = input.device
    if needs_dispatcher(arguments):
        return _dropout.registered(*arguments, _draw_on(device))[0]
    return _dropout.first_direct(*arguments, _draw(input) or _draw_on(device))


class _Memory(threading.local):
    """A thread's tensor for seeds, allocated once."""

    def __init__(self) -> None:
        with torch.inference_mode(False):
            self.seed = torch.empty((), dtype=torch.int64, device="cpu")


_memory = _Memory()


def _draw(x: Tensor) -> tuple[int, ...] | None:
    """Draw (seed, 0) from PyTorch's CPU generator; None under graph capture, as replays have to
    draw again."""
    if x.is_cuda and _is_capturing():
        return None
    return _memory.seed.random_().item(), 0


_drop = _dropout.drawing(_draw, _drop_fallback)


def _draw_on(device: torch.device) -> Tensor:
    return torch.randint(_MOST_SEED, (2,), device=device)


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """As torch.nn.functional.embedding; the gradient is the same in every run."""
    if padding_idx is None:
        return _embedding(weight, input, -1)
    _refuse_others("embedding", weight=weight)
    n = weight.shape[0]
    if not -n <= padding_idx < n:
        refuse("embedding", "padding_idx", f"an index from {-n} to {n - 1}", shown(padding_idx))
    return _embedding(weight, input, padding_idx % n)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Literal["none", "mean", "sum"] = "mean",
    *,
    inplace: bool = False,
) -> Tensor:
    """As torch.nn.functional.cross_entropy against classes; computes the gradient with the loss.

    inplace: the gradient overwrites the input, which no other operation may then use; not without
    gradients, nor for a part of a tensor in compiled code. A target out of range makes the loss
    NaN, a mean of no rows is 0. Under autocast the loss is float32.
    """
    if not isinstance(input, Tensor) or not isinstance(target, Tensor):
        _refuse_others("cross_entropy", input=input, target=target)
    if target.dtype not in _CLASSES:
        _refuse_classes("cross_entropy", target)
    if input.dim() == 1:
        input, target = input.unsqueeze(0), target.unsqueeze(0)
        reduction = "sum" if reduction == "none" else reduction
    arguments = (input, target, weight, ignore_index, reduction, _loss_dtype(input))
    if not _records(input):
        return _loss(*arguments)
    return _in_place(*arguments) if inplace else _loss_and_gradient(*arguments)


def _refuse_classes(function: str, target: Tensor) -> NoReturn:
    """Refuse a target whose dtype is not that of class indices."""
    dtype = str(target.dtype).removeprefix("torch.")
    what = f"{dtype}, as probabilities are" if target.is_floating_point() else dtype
    raise DtypeError(f"{function}: target: expected classes in int64 or int32, got {what}")


def _records(x: Tensor) -> bool:
    """Return True if autograd records a call; vmap hides requires_grad."""
    if not torch.is_grad_enabled():
        return False
    is_in_vmap = torch._C._are_functorch_transforms_active
    return bool(x.requires_grad or (is_in_vmap() and torch._C._functorch.is_batchedtensor(x)))


def _loss_dtype(x: Tensor) -> torch.dtype | None:
    """Return the dtype of the loss under autocast; None: that of the scores."""
    if x.dtype in _HALVES and not x.is_meta and torch.is_autocast_enabled(x.device.type):
        return torch.float32
    return None


def _in_place(input: Tensor, *others: Any) -> Tensor:
    """Compute the loss, and overwrite the scores by their gradient."""
    if torch._C._are_functorch_transforms_active():
        refuse("cross_entropy", "inplace", "False inside a transformation of torch.func", "True")
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
    """The loss of scores, whose gradient overwrites them and raises their version.

    is_whole: the operator can write to the scores; else the gradient is copied there, but not in
    compiled code.
    """

    @staticmethod
    def forward(ctx: Any, input: Tensor, is_whole: bool, *others: Any) -> Tensor:
        data = input.detach()
        if is_whole:
            loss, gradient = _loss_in_place(data, *others), data
        else:
            loss, gradient = _loss_beside_gradient(data, *others)
            if not torch.compiler.is_compiling():
                data.copy_(gradient)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> Any:
        return scale_gradients("cross_entropy_", dloss, ctx.saved_tensors)[0], *[None] * 6


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


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum"] = "mean",
) -> Tensor:
    """cross_entropy(linear(hidden, weight, bias), target), without all scores in memory.

    hidden: shape (..., features), target: shape (...). Rows are processed in chunks, whose scores
    are overwritten by their gradient; gradients are computed with the loss. reduction: 'mean' or
    'sum'.
    """
    tensors = {"hidden": hidden, "weight": weight, "target": target}
    _refuse_others("linear_cross_entropy", {"bias": bias}, **tensors)
    if target.dtype not in _CLASSES:
        _refuse_classes("linear_cross_entropy", target)
    dtype = None
    kind = hidden.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):
        cast, dtype = torch.get_autocast_dtype(kind), torch.float32
        hidden, weight = hidden.to(cast), weight.to(cast)
        bias = None if bias is None else bias.to(cast)
    if target.shape != hidden.shape[:-1]:
        expected = f"shape {tuple(hidden.shape[:-1])}, as hidden without features"
        refuse("linear_cross_entropy", "target", expected, f"shape {tuple(target.shape)}")
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:
        expected = f"shape (classes, {hidden.shape[-1]}), as hidden's features"
        refuse("linear_cross_entropy", "weight", expected, f"shape {tuple(weight.shape)}")
    if bias is not None and bias.shape != weight.shape[:1]:
        expected = f"shape ({weight.shape[0]},), as the classes"
        refuse("linear_cross_entropy", "bias", expected, f"shape {tuple(bias.shape)}")
    mask = tuple([x is not None and _records(x) for x in (hidden, weight, bias)])
    rows = hidden.reshape(target.numel(), hidden.shape[-1])
    others = (bias, ignore_index, reduction, dtype, mask)
    return _linear_loss(rows, weight, target.reshape(-1), *others)[0]
