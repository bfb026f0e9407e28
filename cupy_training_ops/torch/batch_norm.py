# SPDX-License-Identifier: MIT
"""Batch norm in training, a residual's addition and relu in one pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as theirs

from .ops import DOORS
from .ops.dispatch import needs_dispatcher
from .to_pytorch import Unserved, call_pytorch, differentiates, or_pytorch

_FUNCTION = "batch_norm_relu"
_HALVES = (torch.float16, torch.bfloat16)
_FLOATS = (*_HALVES, torch.float32, torch.float64)


def batch_norm_relu(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    residual: Tensor | None = None,
) -> Tensor:
    """Compute relu(torch.nn.functional.batch_norm(...) + residual) in one pass, rounded once.

    Arguments are those of that function, and the residual. input: of any rank from 2, channels
    second, C-contiguous or with the channels last in memory, as the result; others are copied.
    residual: of the input's shape and dtype, or None. Running statistics are updated in place. The
    backward pass reads the result in place of a mask: where it is 0 or less, no gradient passes;
    where it is NaN, it does, as in PyTorch. Gradients and results are the same in every run. Of
    other arguments, and without `training`, PyTorch's functions compute it, or raise its error as
    an ArgumentError too.
    """
    arguments = input, weight, bias, residual, running_mean, running_var, momentum, eps
    reason = _unserved(training, *arguments)
    if reason is not None:
        return call_pytorch(_FUNCTION, reason, _theirs, *arguments, training=training)
    result: Tensor = _door(*arguments)
    return result


def _theirs(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    training: bool = True,
) -> Tensor:
    """Compute batch_norm_relu by PyTorch's functions; arguments as those of its batch_norm."""
    y = theirs.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    return theirs.relu(y if residual is None else y + residual)


def _unserved(training: bool, input: Tensor, *others: Any) -> Unserved | None:
    """Return an argument that only PyTorch computes, or refuses, or None.

    others: weight, bias, residual, running_mean, running_var, momentum, eps.
    """
    running_mean, running_var, momentum, _ = others[3:]
    if not training:
        return Unserved("training", "True", training)
    if not isinstance(input, Tensor):
        return Unserved("input", "a tensor", input)
    if not isinstance(momentum, int | float):
        return Unserved("momentum", "a number", momentum)
    if input.dim() < 2 or input.numel() <= input.shape[1]:
        return Unserved("input", "several values for each channel", f"shape {tuple(input.shape)}")
    if (running_mean is None) != (running_var is None):
        return Unserved("running_mean", "both running statistics, or none", "one")
    return None


def _unserved_kinds(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> Unserved | None:
    """Return an argument of the operator batch_norm_relu that kernels refuse, or None: a check for
    compiled regions, where no error of a kernel can be caught."""
    if input.dtype not in _FLOATS or input.layout is not torch.strided:
        return Unserved("input", "dense floating-point numbers of 16 to 64 bits", "others")
    if residual is not None and (residual.shape != input.shape or residual.dtype != input.dtype):
        return Unserved("residual", "the input's shape and dtype", "another")
    of_sums = torch.float32 if input.dtype in _HALVES else input.dtype
    kinds = [  # dtypes of weight and bias, and of the running statistics
        [each.dtype for each in pair if each is not None]
        for pair in ((weight, bias), (running_mean, running_var))
    ]
    for name, pair in zip(("weight", "running_mean"), kinds, strict=True):
        if len(set(pair)) > 1 or not {input.dtype, of_sums}.issuperset(pair):
            return Unserved(name, "the input's dtype, or float32 for 16 bits", "another")
    of_weight, of_statistics = kinds
    if of_sums in of_weight and of_sums not in (of_statistics or [of_sums]):
        return Unserved("running_mean", "float32, as weight", "another")
    if not 0 <= momentum <= 1 or eps < 0:
        return Unserved("momentum", "a number from 0 to 1, and eps 0 or more", "others")
    return None


def _call(ours: Any, *arguments: Any) -> Tensor:
    """Run a call that matches no recent one: by ours(*arguments), which launches kernels, by the
    dispatcher, or by PyTorch. arguments: those of `_unserved_kinds`.

    In compiled regions the operator returns new running statistics, which are copied here.
    """
    if not torch.compiler.is_compiling():
        if differentiates():
            other = Unserved("derivative", "reverse mode outside of torch.func", "another")
            return call_pytorch(_FUNCTION, other, _theirs, *arguments)
        if not needs_dispatcher(arguments):
            return or_pytorch(_FUNCTION, ours, _theirs, *arguments)
    reason = _unserved_kinds(*arguments)
    if reason is not None:
        return call_pytorch(_FUNCTION, reason, _theirs, *arguments)
    y, _, _, *statistics = _registered(*arguments)
    with torch.no_grad():
        for running, new in zip(arguments[4:6], statistics, strict=True):
            if running is not None:
                running.copy_(new)
    return y


_door = DOORS[_FUNCTION].falling_back(_call, is_first=True)
_registered = DOORS[_FUNCTION].registered
