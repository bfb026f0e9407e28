# SPDX-License-Identifier: MIT
"""PyTorch's functions by their names and arguments, computed by this package's kernels.

Without gradients a function calls its launches, with them one autograd.Function, and PyTorch's
dispatcher if torch.compile, a mode, a subclass or a transform needs to see the call. Results have
the dtype of weights, if these differ from the input's.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor
from torch.nn import _reduction
from torch.nn import functional as theirs

from ..errors import pass_on, refuse, shown
from .ops import DOORS
from .ops.dispatch import needs_dispatcher
from .ops.losses import refuse_overwriting, scale_gradients
from .to_pytorch import (
    Unserved,
    call_pytorch,
    differentiates,
    or_pytorch,
    with_deprecated_form,
)

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
_FLOATS = frozenset((*_HALVES, torch.float32, torch.float64))
_CLASSES = (torch.int64, torch.int32)
_EPS: dict[object, float] = dict.fromkeys((*_HALVES, torch.float32), torch.finfo(torch.float32).eps)
_NONE: Mapping[str, Any] = {}
_EPS_OF_DOUBLE = torch.finfo(torch.float64).eps
_MOST_SEED = 1 << 62
# Looked up once, as every call uses it.
_is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)
_DERIVATIVE = Unserved("derivative", "reverse mode outside of torch.func", "another")


def _door(
    function: str,
    theirs: Callable[..., Any],
    *,
    is_first: bool = False,
    name: str = "",
    find_unserved: Callable[..., Unserved | None] = lambda *_: None,
) -> Callable[..., Any]:
    """Return an operator's door that goes to PyTorch's function where kernels refuse a call.

    theirs: takes the door's arguments. find_unserved: returns an argument that kernels refuse, for
    calls in compiled regions, where errors cannot be caught.
    """

    def call(ours: Callable[..., Any], *arguments: Any) -> Any:
        if torch.compiler.is_compiling():
            reason = _unserved_tensor(*arguments) or find_unserved(*arguments)
            if reason is None:
                return ours(*arguments)
            return call_pytorch(function, reason, theirs, *arguments)
        if differentiates():
            return call_pytorch(function, _DERIVATIVE, theirs, *arguments)
        return or_pytorch(function, ours, theirs, *arguments)

    return DOORS[name or function].falling_back(call, is_first=is_first)


def _unserved_tensor(*arguments: Any) -> Unserved | None:
    """Return an argument whose layout or dtype no kernel takes."""
    for value in arguments:
        if isinstance(value, Tensor):
            if value.layout is not torch.strided:
                return Unserved("layout", "dense tensors", str(value.layout))
            if (value.is_floating_point() or value.is_complex()) and value.dtype not in _FLOATS:
                return Unserved(
                    "dtype", "floating-point numbers of 16 to 64 bits", str(value.dtype)
                )
    return None


def _unserved_dim(input: Tensor, _: int) -> Unserved | None:
    return None if input.dim() else Unserved("input", "a dimension or more", "a scalar")


def _unserved_eps(*arguments: Any) -> Unserved | None:
    eps = arguments[-1]
    return Unserved("eps", "0 or more", eps) if eps < 0 else None


def _their_gelu(input: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
    return theirs.gelu(input if bias is None else input + bias, approximate=approximate)


def _their_dropout(input: Tensor, bias: Tensor | None, residual: Tensor | None, p: float) -> Tensor:
    dropped = theirs.dropout(input if bias is None else input + bias, p)
    return dropped if residual is None else dropped + residual


def _their_embedding(weight: Tensor, input: Tensor, padding_idx: int) -> Tensor:
    return theirs.embedding(input, weight, None if padding_idx < 0 else padding_idx)


def _their_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    _: torch.dtype | None,
) -> Tensor:
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
    """Compute the loss by PyTorch's functions; z-loss and caps are not among its arguments."""
    if softcap:
        capped = softcap * torch.tanh(input / softcap)
        input = torch.where(input == -torch.inf, input, capped)
    named: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    if not lse_square_scale:
        return theirs.cross_entropy(input, target, weight, reduction=reduction, **named)
    losses = theirs.cross_entropy(input, target, weight, reduction="none", **named)
    weights = torch.ones_like(losses)
    if not target.is_floating_point():
        if weight is not None:
            weights = weight[target.clamp(0, input.shape[input.dim() > 1] - 1)]
        weights = torch.where(target == ignore_index, 0, weights)
    lse = torch.logsumexp(input, int(input.dim() > 1), keepdim=False).to(losses.dtype)
    losses = losses + torch.where(weights == 0, 0, weights * lse_square_scale * lse.square())
    if reduction == "none":
        return losses
    return losses.sum() / weights.sum() if reduction == "mean" else losses.sum()


# Looked up once.
_layer_norm = _door("layer_norm", theirs.layer_norm, is_first=True, find_unserved=_unserved_eps)
_rms_norm = _door("rms_norm", theirs.rms_norm, is_first=True, find_unserved=_unserved_eps)
_gelu, _relu = _door("gelu", _their_gelu), _door("relu", theirs.relu, is_first=True)
_softmax = _door("softmax", theirs.softmax, find_unserved=_unserved_dim)
_log_softmax = _door("log_softmax", theirs.log_softmax, find_unserved=_unserved_dim)
_dropout, _embedding = DOORS["bitmask_dropout"], _door("embedding", _their_embedding)
_loss = _door("cross_entropy", _their_loss, name="cross_entropy_loss")
_loss_and_gradient = _door("cross_entropy", _their_loss, is_first=True)
_regularized_loss = _door(
    "cross_entropy", _their_regularized, name="regularized_cross_entropy_loss"
)
_regularized = _door(
    "cross_entropy", _their_regularized, name="regularized_cross_entropy", is_first=True
)
_check_overwriting = DOORS["overwritten"].every
_linear_loss = DOORS["linear_cross_entropy"].every
_linear_row_losses = DOORS["linear_cross_entropy_rows"].every


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


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """As torch.nn.functional.relu; saves a bit an element for the gradient.

    PyTorch's own computes it in place, and without gradients.
    """
    try:
        if inplace:
            reason = Unserved("inplace", "False", "True")
            return call_pytorch("relu", reason, theirs.relu, input, True)
        return _relu(input) if _records(input) else torch.relu(input)
    except (AttributeError, TypeError) as error:
        pass_on(error)
        _refuse_others("relu", input=input)
        raise


def softmax(
    input: Tensor,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """As torch.nn.functional.softmax; computed in float32 and rounded once."""
    if dtype is not None or dim is None or _stacklevel != 3:
        input, dim = _cast("softmax", input, dim, _stacklevel, dtype)
    return _softmax(input, dim)


def log_softmax(
    input: Tensor,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """As torch.nn.functional.log_softmax; computed in float32 and rounded once."""
    if dtype is not None or dim is None or _stacklevel != 3:
        input, dim = _cast("log_softmax", input, dim, _stacklevel, dtype)
    return _log_softmax(input, dim)


def _cast(
    function: str, input: Tensor, dim: int | None, stacklevel: int, dtype: torch.dtype | None
) -> tuple[Tensor, int]:
    """Return the input in a dtype, and the dimension that PyTorch chooses, with its warning."""
    _refuse_others(function, input=input)
    if isinstance(stacklevel, torch.dtype):
        message = f"{function}(input, dim, dtype) is deprecated: name dtype, as PyTorch does"
        warnings.warn(message, DeprecationWarning, stacklevel=3)
        stacklevel, dtype = 3, stacklevel
    if dim is None:
        choose: Callable[..., int] = theirs._get_softmax_dim  # type: ignore[attr-defined,unused-ignore]
        dim = choose(function, input.dim(), stacklevel + 1)
    return input if dtype is None else input.to(dtype), dim


def _refuse_others(function: str, others: Mapping[str, Any] = _NONE, **tensors: Any) -> None:
    """Refuse arguments that are no tensors, before a function uses them; `others` may be None."""
    for argument, value in (*tensors.items(), *others.items()):
        if not isinstance(value, Tensor) and not (value is None and argument in others):
            refuse(function, argument, "a tensor", shown(value))


def dropout(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """As torch.nn.functional.dropout, of input + bias, plus a residual, with a mask of bits.

    The seed is drawn from PyTorch's generator, so torch.manual_seed repeats it; masks are not those
    that PyTorch draws. Each run of compiled regions and captured graphs draws on the device.
    PyTorch's own computes it in place, which has neither bias nor residual.
    """
    try:
        is_drawn, is_share = training and 0 < p < 1 and not inplace, 0 <= p <= 1
    except TypeError:
        is_drawn = is_share = False
    if is_drawn:
        return _drop(input, bias, residual, float(p))
    if not is_share:
        refuse("dropout", "p", "a number from 0 to 1", shown(p))
    _refuse_others("dropout", {"bias": bias, "residual": residual}, input=input)
    if inplace:
        if bias is not None or residual is not None:
            refuse("dropout", "inplace", "False with a bias or residual", "True")
        reason = Unserved("inplace", "False", "True")
        return call_pytorch("dropout", reason, theirs.dropout, input, p, training, True)
    total = input if bias is None else input + bias
    total = total * 0.0 if training and p == 1 else total
    return total if residual is None else total + residual


def _drop_fallback(*arguments: Any) -> Any:
    """Run a dropout that matches no recent call, by PyTorch if kernels refuse it."""
    input, bias, residual, _ = arguments
    _refuse_others("dropout", {"bias": bias, "residual": residual}, input=input)
    if torch.compiler.is_compiling():
        reason = _unserved_tensor(*arguments)
        if reason is not None:
            return call_pytorch("dropout", reason, _their_dropout, *arguments)
        return _draw_and_drop(*arguments)
    if differentiates():
        return call_pytorch("dropout", _DERIVATIVE, _their_dropout, *arguments)
    return or_pytorch("dropout", _draw_and_drop, _their_dropout, *arguments)


def _draw_and_drop(*arguments: Any) -> Any:
    """Draw (seed, offset), or a tensor of both, and drop.

    A tensor is drawn on the device, again in each run of a compiled region or captured graph.
    """
    input = arguments[0]
    if needs_dispatcher(arguments):
        return _dropout.registered(*arguments, _draw_on(input.device))[0]
    return _dropout.first_direct(*arguments, _draw(input) or _draw_on(input.device))


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


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """As torch.nn.functional.embedding; the gradient is the same in every run.

    PyTorch's own computes it with max_norm, scale_grad_by_freq or sparse.
    """
    if max_norm is not None or scale_grad_by_freq or sparse:
        options = (padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        reason = _unserved_embedding(*options)
        return call_pytorch("embedding", reason, theirs.embedding, input, weight, *options)
    if padding_idx is None:
        return _embedding(weight, input, -1)
    _refuse_others("embedding", weight=weight)
    n = weight.shape[0]
    if not -n <= padding_idx < n:
        refuse("embedding", "padding_idx", f"an index from {-n} to {n - 1}", shown(padding_idx))
    return _embedding(weight, input, padding_idx % n)


def _unserved_embedding(
    _: Any, max_norm: float | None, __: float, scale_grad_by_freq: bool, sparse: bool
) -> Unserved:
    if max_norm is not None:
        return Unserved("max_norm", "None", max_norm)
    name, value = ("sparse", sparse) if sparse else ("scale_grad_by_freq", scale_grad_by_freq)
    return Unserved(name, "False", value)


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
) -> Tensor:
    """As torch.nn.functional.cross_entropy; against classes, computes the gradient with the loss.

    lse_square_scale: of a z-loss, the square of logsumexp(input), which is added to each row's.
    softcap: the input is softcap tanh(input / softcap), but -infinity stays. inplace: the gradient
    overwrites the input, which no other operation may then use; not without gradients, nor for a
    part of a tensor in compiled code, nor where PyTorch computes the loss. A target out of range
    makes the loss NaN, a mean of no rows is 0. Under autocast the loss is float32. PyTorch's own
    computes it against probabilities, and with label smoothing and class weights together.
    """
    if not isinstance(input, Tensor) or not isinstance(target, Tensor):
        _refuse_others("cross_entropy", input=input, target=target)
    if size_average is not None or reduce is not None:
        reduction = _reduction.legacy_get_string(size_average, reduce)
    terms: tuple[float, ...] = ()
    has_terms = label_smoothing or lse_square_scale or softcap
    if has_terms or weight is not None or target.dtype not in _CLASSES:
        terms = _terms("cross_entropy", label_smoothing, lse_square_scale, softcap)
        reason = _unserved_loss(target, weight, label_smoothing)
        if reason is not None:
            given = (input, target, weight, ignore_index, reduction, None, *terms)
            return call_pytorch("cross_entropy", reason, _their_regularized, *given)
        terms = terms if has_terms else ()
    reduced: str = reduction
    if input.dim() == 1:
        input, target = input.unsqueeze(0), target.unsqueeze(0)
        reduced = "sum" if reduction == "none" else reduction
    dtype = _autocast_dtype(input) if input.dtype in _HALVES else None
    arguments = (input, target, weight, ignore_index, reduced, dtype)
    if not _records(input):
        return _regularized_loss(*arguments, *terms) if terms else _loss(*arguments)
    if inplace:
        return _in_place(*arguments, *terms)
    return _regularized(*arguments, *terms) if terms else _loss_and_gradient(*arguments)


def _terms(
    function: str, label_smoothing: float, lse_square_scale: float, softcap: float | None
) -> tuple[float, ...]:
    """Return label smoothing, z-loss and cap as numbers."""
    cap = 0.0 if softcap is None else softcap
    values = {"label_smoothing": label_smoothing, "lse_square_scale": lse_square_scale}
    for name, value in (*values.items(), ("softcap", cap)):
        if not isinstance(value, int | float) and not hasattr(value, "__float__"):
            refuse(function, name, "a number", shown(value))
        if name != "label_smoothing" and not 0 <= value < math.inf:
            refuse(function, name, "a finite number of at least 0", shown(value))
    return float(label_smoothing), float(lse_square_scale), float(cap)


def _unserved_loss(
    target: Tensor, weight: Tensor | None, label_smoothing: float
) -> Unserved | None:
    """Return the argument of a loss that kernels refuse."""
    if target.dtype not in _CLASSES:
        return Unserved("target", "classes in int64 or int32", str(target.dtype))
    if weight is not None and label_smoothing:
        return Unserved("label_smoothing", "0 with a weight", label_smoothing)
    if getattr(weight, "requires_grad", False):
        return Unserved("weight", "a tensor that requires no gradient", "one that does")
    return None


def _records(x: Tensor) -> bool:
    """Return True if autograd records a call; vmap hides requires_grad."""
    if not torch.is_grad_enabled():
        return False
    is_in_vmap = torch._C._are_functorch_transforms_active
    return bool(x.requires_grad or (is_in_vmap() and torch._C._functorch.is_batchedtensor(x)))


def _autocast_dtype(scores: Tensor) -> torch.dtype | None:
    """Return the dtype of the loss of 16-bit scores under autocast; None: that of the scores."""
    if not scores.is_meta and torch.is_autocast_enabled(scores.device.type):
        return torch.float32
    return None


def _in_place(input: Tensor, *others: Any) -> Tensor:
    """Compute the loss, and overwrite the scores by their gradient."""
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
    """The loss of scores, whose gradient overwrites them and raises their version.

    is_whole: the operator can write to the scores; else the gradient is copied there, but not in
    compiled code.
    """

    @staticmethod
    def forward(ctx: Any, input: Tensor, is_whole: bool, *others: Any) -> Tensor:
        data, prefix = input.detach(), "" if len(others) == 5 else "regularized_"
        if is_whole:
            loss, gradient = DOORS[f"{prefix}cross_entropy_"].every(data, *others), data
        else:
            loss, gradient = DOORS[f"{prefix}cross_entropy"].every(data, *others)
            if not torch.compiler.is_compiling():
                data.copy_(gradient)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> Any:
        (dscores,) = scale_gradients("cross_entropy_", dloss, ctx.saved_tensors)
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
) -> Tensor:
    """As torch.nn.functional.linear_cross_entropy, without all scores in memory.

    input: shape (..., features), target: shape (...); or (rows, features) and (rows, ...) for a
    linear_weight of shape (classes, ..., features). Rows are processed in chunks, whose scores
    are overwritten by their gradient; gradients are computed with the loss, for reduction='none'
    from scores that are computed again. lse_square_scale, softcap: as of cross_entropy. PyTorch's
    own computes it against probabilities, and with label smoothing and class weights together, as
    `options` say; kernels choose chunks themselves.
    """
    tensors = {"input": input, "linear_weight": linear_weight, "target": target}
    _refuse_others(
        "linear_cross_entropy", {"linear_bias": linear_bias, "weight": weight}, **tensors
    )
    if ignore_index is not None and not hasattr(type(ignore_index), "__index__"):
        refuse("linear_cross_entropy", "ignore_index", "an integer or None", shown(ignore_index))
    terms = _terms("linear_cross_entropy", label_smoothing, lse_square_scale, softcap)
    if not torch.compiler.is_compiling() and differentiates():
        reason: Unserved | None = _DERIVATIVE
    else:
        reason = _unserved_linear(input, linear_weight, target, linear_bias, weight, reduction)
        reason = reason or _unserved_loss(target, weight, label_smoothing)
    if reason is not None:
        return call_pytorch(
            "linear_cross_entropy",
            reason,
            _their_linear_loss,
            input,
            linear_weight,
            target,
            linear_bias,
            weight,
            reduction,
            ignore_index,
            options,
            terms,
        )
    dtype, bias = None, linear_bias
    kind = input.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):
        cast, dtype = torch.get_autocast_dtype(kind), torch.float32
        input, linear_weight = input.to(cast), linear_weight.to(cast)
        bias = None if bias is None else bias.to(cast)
    extents = linear_weight.shape[1:-1]
    classes = target.reshape(-1, *extents) if extents else target.reshape(-1)
    rows = input.reshape(classes.shape[0], input.shape[-1])
    linear_weight = linear_weight.flatten(0, -2)
    bias = None if bias is None else bias.flatten()
    ignored = -100 if ignore_index is None else ignore_index
    if reduction == "none":
        others = (bias, ignored, dtype, weight, *terms)
        return _linear_row_losses(rows, linear_weight, classes, *others).reshape(target.shape)
    mask = tuple([x is not None and _records(x) for x in (input, linear_weight, bias)])
    others = (bias, ignored, reduction, dtype, mask, weight, *terms)
    return _linear_loss(rows, linear_weight, classes, *others)[0]


def _unserved_linear(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None,
    weight: Tensor | None,
    reduction: str,
) -> Unserved | None:
    """Return the argument of a linear layer's loss that kernels refuse."""
    if linear_weight.dim() < 2 or not input.dim() or linear_weight.shape[-1] != input.shape[-1]:
        features = input.shape[-1] if input.dim() else "features"
        expected = f"shape (classes, ..., {features}), as the input's features"
        return Unserved("linear_weight", expected, f"shape {tuple(linear_weight.shape)}")
    n_classes, *extents = linear_weight.shape[:-1]
    if extents and (input.dim() != 2 or 0 in extents):
        expected = "shape (rows, features) where the loss has dimensions"
        return Unserved("input", expected, f"shape {tuple(input.shape)}")
    if target.shape != (*input.shape[:-1], *extents):
        expected = f"shape {(*input.shape[:-1], *extents)}, as the scores without classes"
        return Unserved("target", expected, f"shape {tuple(target.shape)}")
    shapes = {"linear_bias": (linear_bias, (n_classes, *extents)), "weight": (weight, (n_classes,))}
    for name, (tensor, shape) in shapes.items():
        if tensor is not None and tensor.shape != shape:
            expected = f"shape {shape}, as the classes"
            return Unserved(name, expected, f"shape {tuple(tensor.shape)}")
    if reduction not in ("mean", "sum", "none"):
        return Unserved("reduction", "'mean', 'sum' or 'none'", repr(reduction))
    layer = (input, linear_weight) if linear_bias is None else (input, linear_weight, linear_bias)
    if len({x.dtype for x in layer}) > 1 and not torch.is_autocast_enabled(input.device.type):
        return Unserved("input", f"dtype {linear_weight.dtype}", str(input.dtype))
    return _unserved_tensor(*layer)


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
    """Call PyTorch's function, or its parts where it lacks an argument; 2.13 is its first."""
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
    bias = None if linear_bias is None else linear_bias.flatten()
    scores = theirs.linear(input, linear_weight.flatten(0, -2), bias)
    scores = scores.reshape(*input.shape[:-1], *linear_weight.shape[:-1])
    if target.shape == scores.shape and ignore_index is not None:
        refuse("linear_cross_entropy", "ignore_index", "None with probabilities", f"{ignore_index}")
    ignored = -100 if ignore_index is None else ignore_index
    return _their_regularized(scores, target, weight, ignored, reduction, None, *terms)
