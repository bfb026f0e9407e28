# SPDX-License-Identifier: MIT
"""PyTorch's functions by their names and arguments, computed by this package's kernels.

Without gradients a function calls its launches, with them one autograd.Function, and PyTorch's
dispatcher if torch.compile, a mode, a subclass or a transform needs to see the call. Results have
the dtype of weights, if these differ from the input's.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as theirs

from ..errors import raise_if_from_handler, refuse, shown
from .batch_norm import batch_norm_relu
from .loss_functions import CrossEntropyOutput as CrossEntropyOutput
from .loss_functions import cross_entropy, linear_cross_entropy
from .ops import DOORS
from .ops.dispatch import needs_dispatcher
from .to_pytorch import (
    DERIVATIVE,
    HALVES,
    Unserved,
    call_pytorch,
    differentiates,
    door,
    is_transformed,
    or_pytorch,
    records,
    refuse_others,
    unserved_tensor,
)

__all__ = [
    "batch_norm_relu",
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


_EPS: dict[object, float] = dict.fromkeys((*HALVES, torch.float32), torch.finfo(torch.float32).eps)
_EPS_OF_DOUBLE = torch.finfo(torch.float64).eps
_MOST_SEED = 1 << 62
# Looked up once, as every call uses it.
_is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)


# Each `_unserved...` returns an argument that kernels refuse, or None. Its arguments, and those of
# `_their...`, which compute by PyTorch's functions, are those of the operator.


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


def _their_swiglu_halves(input: Tensor) -> Tensor:
    gate, value = input.chunk(2, -1)
    return theirs.silu(gate) * value


def _their_rotary(input: Tensor, cos: Tensor, sin: Tensor, heads_last: bool = False) -> Tensor:
    half, dim = input.shape[-1] // 2, 2 if heads_last else 1
    turned = torch.cat((-input[..., half:], input[..., :half]), -1)
    result = input * cos.unsqueeze(dim) + turned * sin.unsqueeze(dim)
    return result.to(input.dtype)


# Looked up once.
_layer_norm = door("layer_norm", theirs.layer_norm, is_first=True, find_unserved=_unserved_eps)
_rms_norm = door("rms_norm", theirs.rms_norm, is_first=True, find_unserved=_unserved_eps)
_gelu, _relu = door("gelu", _their_gelu), door("relu", theirs.relu, is_first=True)
_softmax = door("softmax", theirs.softmax, find_unserved=_unserved_dim)
_log_softmax = door("log_softmax", theirs.log_softmax, find_unserved=_unserved_dim)
_dropout, _embedding = DOORS["bitmask_dropout"], door("embedding", _their_embedding)
# Not PyTorch's, but of models that `convert` takes: silu(gate) value and gelu(gate) value, by tanh.
swiglu = door("swiglu", lambda gate, value: theirs.silu(gate) * value)
swiglu_halves = door("swiglu_halves", _their_swiglu_halves)  # gates and values: halves of rows
geglu = door("geglu", lambda gate, value: theirs.gelu(gate, approximate="tanh") * value)
rotary = door("rotary", _their_rotary)  # of queries or keys: x cos + rotate_half(x) sin


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """As torch.nn.functional.layer_norm; computed in float32 or float64, rounded once."""
    return _layer_norm(input, normalized_shape, weight, bias, eps)


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """As torch.nn.functional.rms_norm; computed in float32 or float64, rounded once."""
    if eps is None:
        eps = _EPS.get(getattr(input, "dtype", None), _EPS_OF_DOUBLE)
    return _rms_norm(input, normalized_shape, weight, eps)


def gelu(
    input: Tensor, approximate: Literal["none", "tanh"] = "none", *, bias: Tensor | None = None
) -> Tensor:
    """As torch.nn.functional.gelu, of input + bias, a row, in one pass."""
    if bias is None:
        return _in_layout(_gelu, input, None, approximate)
    return _gelu(input, bias, approximate)


def _in_layout(function: Callable[..., Any], input: Any, *others: Any) -> Any:
    """Return function(input, *others), elementwise, with dimensions in memory as the input's are.

    PyTorch's elementwise functions keep such an order; kernels here make contiguous results.
    """
    if type(input) is not Tensor or input.layout != torch.strided or input.is_contiguous():
        return function(input, *others)
    if is_transformed() or torch.compiler.is_compiling():
        return function(input, *others)
    order = sorted(range(input.dim()), key=input.stride, reverse=True)
    dense = input.permute(order)
    if not dense.is_contiguous():
        return function(input, *others)
    back = sorted(range(len(order)), key=order.__getitem__)
    return function(dense, *others).permute(back)


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """As torch.nn.functional.relu; saves a bit an element for the gradient.

    PyTorch's own computes it in place, and without gradients.
    """
    try:
        if inplace:
            reason = Unserved("inplace", "False", "True")
            return call_pytorch("relu", reason, theirs.relu, input, True)
        if not records(input):
            return torch.relu(input)
        return _in_layout(_relu, input)
    except (AttributeError, TypeError) as error:
        raise_if_from_handler(error)
        refuse_others("relu", input=input)
        raise


def softmax(
    input: Tensor,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """As torch.nn.functional.softmax; computed in float32 or float64, rounded once."""
    if dtype is not None or dim is None or _stacklevel != 3:
        input, dim = _cast("softmax", input, dim, _stacklevel, dtype)
    return _softmax(input, dim)


def log_softmax(
    input: Tensor,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """As torch.nn.functional.log_softmax; computed in float32 or float64, rounded once."""
    if dtype is not None or dim is None or _stacklevel != 3:
        input, dim = _cast("log_softmax", input, dim, _stacklevel, dtype)
    return _log_softmax(input, dim)


def _cast(
    function: str, input: Tensor, dim: int | None, stacklevel: int, dtype: torch.dtype | None
) -> tuple[Tensor, int]:
    """Return (input in the dtype, dim); a dim of None becomes the one that PyTorch chooses, with
    its warning. stacklevel: of the warning; in a deprecated form, the dtype."""
    refuse_others(function, input=input)
    if isinstance(stacklevel, torch.dtype):
        message = f"{function}(input, dim, dtype) is deprecated: name dtype, as PyTorch does"
        warnings.warn(message, DeprecationWarning, stacklevel=3)
        stacklevel, dtype = 3, stacklevel
    if dim is None:
        choose: Callable[..., int] = theirs._get_softmax_dim  # type: ignore[attr-defined,unused-ignore]
        dim = choose(function, input.dim(), stacklevel + 1)
    return input if dtype is None else input.to(dtype), dim


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
        if bias is residual is None:
            return _in_layout(_drop, input, None, None, float(p))
        return _drop(input, bias, residual, float(p))
    if not is_share:
        refuse("dropout", "p", "a number from 0 to 1", shown(p))
    refuse_others("dropout", {"bias": bias, "residual": residual}, input=input)
    if inplace:
        if bias is not None or residual is not None:
            refuse("dropout", "inplace", "False with a bias or residual", "True")
        reason = Unserved("inplace", "False", "True")
        return call_pytorch("dropout", reason, theirs.dropout, input, p, training, True)
    total = input if bias is None else input + bias
    total = total * 0.0 if training and p == 1 else total
    return total if residual is None else total + residual


def _drop_fallback(*arguments: Any) -> Any:
    """Run a dropout of (input, bias, residual, p) that matches no recent call, by PyTorch if
    kernels refuse it."""
    input, bias, residual, _ = arguments
    refuse_others("dropout", {"bias": bias, "residual": residual}, input=input)
    if torch.compiler.is_compiling():
        reason = unserved_tensor(*arguments)
        if reason is not None:
            return call_pytorch("dropout", reason, _their_dropout, *arguments)
        return _draw_and_drop(*arguments)
    if differentiates():
        return call_pytorch("dropout", DERIVATIVE, _their_dropout, *arguments)
    return or_pytorch("dropout", _draw_and_drop, _their_dropout, *arguments)


def _draw_and_drop(*arguments: Any) -> Any:
    """Draw (seed, offset), or a tensor of both, and drop; arguments: input, bias, residual, p.

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
    """Draw a tensor of (seed, offset) on a device, from PyTorch's generator there."""
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
    refuse_others("embedding", weight=weight)
    n = weight.shape[0]
    if not -n <= padding_idx < n:
        refuse("embedding", "padding_idx", f"an index from {-n} to {n - 1}", shown(padding_idx))
    return _embedding(weight, input, padding_idx % n)


def _unserved_embedding(
    _: Any, max_norm: float | None, __: float, scale_grad_by_freq: bool, sparse: bool
) -> Unserved:
    """Return the option, one of which is set, that no kernel takes."""
    if max_norm is not None:
        return Unserved("max_norm", "None", max_norm)
    name, value = ("sparse", sparse) if sparse else ("scale_grad_by_freq", scale_grad_by_freq)
    return Unserved(name, "False", value)
