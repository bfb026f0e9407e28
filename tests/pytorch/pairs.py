# SPDX-License-Identifier: MIT
"""Calls of functions beside PyTorch's own: ours, theirs, and the leaves that both are given."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn import functional as theirs

from cupy_training_ops.torch import functional as ours

PYTORCHS = [name for name in ours.__all__ if name != "batch_norm_relu"]  # names of PyTorch's too


def pairs(leaf, labels) -> dict[str, tuple[Any, Any, tuple[Any, ...]]]:
    """By the names of the cases; fresh tensors."""
    x, row, shift, table, bias = leaf(8, 16), leaf(16), leaf(16), leaf(32, 16), leaf(32)
    labels16, labels32, spots = labels(16, 8), labels(32, 8), labels(32, 3, 5)
    labels16[2], labels32[3] = -100, -100
    weight, weights32 = leaf(16, gradients=False).abs(), leaf(32, gradients=False).abs()
    pixels = labels(16, 8, 2)
    pixels[0, 1] = -100
    shares = leaf(8, 16)
    return {
        "layer_norm": (_named(ours, "layer_norm"), _named(theirs, "layer_norm"), (x, row, shift)),
        "layer_norm plain": (
            lambda x: ours.layer_norm(x, (8, 16)),
            lambda x: theirs.layer_norm(x, (8, 16)),
            (x,),
        ),
        "rms_norm": (_named(ours, "rms_norm"), _named(theirs, "rms_norm"), (x, row)),
        "batch_norm_relu": (
            lambda x, w, b, y: ours.batch_norm_relu(x, None, None, w, b, True, residual=y * y),
            lambda x, w, b, y: theirs.relu(theirs.batch_norm(x, None, None, w, b, True) + y * y),
            (x, row, shift, leaf(8, 16)),
        ),
        "gelu": (ours.gelu, theirs.gelu, (x,)),
        "gelu tanh": (
            lambda x, b: ours.gelu(x, "tanh", bias=b),
            lambda x, b: theirs.gelu(x + b, approximate="tanh"),
            (x, row),
        ),
        "gelu tanh alone": (
            lambda x: ours.gelu(x, "tanh"),
            lambda x: theirs.gelu(x, approximate="tanh"),
            (x,),
        ),
        "relu": (ours.relu, theirs.relu, (x,)),
        "softmax": (partial(ours.softmax, dim=0), partial(theirs.softmax, dim=0), (x,)),
        "log_softmax": (
            partial(ours.log_softmax, dim=-1),
            partial(theirs.log_softmax, dim=-1),
            (x,),
        ),
        "embedding": (
            lambda w: ours.embedding(spots, w, -2),
            lambda w: theirs.embedding(spots, w, -2),
            (table,),
        ),
        "cross_entropy": (
            lambda x: ours.cross_entropy(x, labels16, weight),
            lambda x: theirs.cross_entropy(x, labels16, weight),
            (x,),
        ),
        "cross_entropy rows": (
            lambda x: ours.cross_entropy(x, labels16, reduction="none"),
            lambda x: theirs.cross_entropy(x, labels16, reduction="none"),
            (x,),
        ),
        "cross_entropy of one": (
            lambda x: ours.cross_entropy(x[0], labels16[0], reduction="sum"),
            lambda x: theirs.cross_entropy(x[0], labels16[0], reduction="sum"),
            (x,),
        ),
        "cross_entropy in place": (
            lambda x: ours.cross_entropy(
                (x * 2).view(2, 4, 16).flatten(0, 1), labels16, inplace=True
            ),
            lambda x: theirs.cross_entropy(x * 2, labels16),
            (x,),
        ),
        "cross_entropy smoothed": (
            lambda x: ours.cross_entropy(x, labels16, label_smoothing=0.1),
            lambda x: theirs.cross_entropy(x, labels16, label_smoothing=0.1),
            (x,),
        ),
        "cross_entropy against probabilities": (
            lambda x, t: ours.cross_entropy(x, t.softmax(1), weight, label_smoothing=0.1),
            lambda x, t: theirs.cross_entropy(x, t.softmax(1), weight, label_smoothing=0.1),
            (x, shares),
        ),
        "cross_entropy measured": (
            lambda x: ours.cross_entropy(x, labels16, weight, return_token_accuracy=True).loss,
            lambda x: theirs.cross_entropy(x, labels16, weight),
            (x,),
        ),
        "cross_entropy capped": (
            lambda x: ours.cross_entropy(x, labels16, weight, lse_square_scale=0.01, softcap=2.0),
            lambda x: capped_loss(x, labels16, weight),
            (x,),
        ),
        "cross_entropy smoothed in place": (
            lambda x: ours.cross_entropy(
                x * 2, labels16, reduction="sum", label_smoothing=0.1, inplace=True
            ),
            lambda x: theirs.cross_entropy(x * 2, labels16, reduction="sum", label_smoothing=0.1),
            (x,),
        ),
        "linear_cross_entropy rows": (
            lambda x, w, b: ours.linear_cross_entropy(
                x, w, labels32, linear_bias=b, weight=weights32, reduction="none"
            ),
            lambda x, w, b: theirs.cross_entropy(
                theirs.linear(x, w, b), labels32, weights32, reduction="none"
            ),
            (x, table, bias),
        ),
        "linear_cross_entropy of pixels": (
            lambda x, w: ours.linear_cross_entropy(
                x, w.view(16, 2, 16), pixels, weight=weight, lse_square_scale=0.01, softcap=2.0
            ),
            lambda x, w: capped_loss(theirs.linear(x, w).view(8, 16, 2), pixels, weight),
            (x, table),
        ),
        "linear_cross_entropy": (
            lambda x, w, b: ours.linear_cross_entropy(x, w, labels32, linear_bias=b),
            lambda x, w, b: theirs.cross_entropy(theirs.linear(x, w, b), labels32),
            (x, table, bias),
        ),
        "linear_cross_entropy sum": (
            lambda x, w: ours.linear_cross_entropy(
                x.view(2, 4, 16), w, labels32.view(2, 4), reduction="sum"
            ),
            lambda x, w: theirs.cross_entropy(theirs.linear(x, w), labels32, reduction="sum"),
            (x, table),
        ),
    }


def capped_loss(x, target, weight):
    """Cross-entropy of capped scores with a z-loss, by PyTorch's parts."""
    x = 2 * torch.tanh(x / 2)
    losses = theirs.cross_entropy(x, target, weight, reduction="none")
    weights = torch.where(target == -100, 0, weight[target.clamp(min=0)])
    return (losses + 0.01 * weights * x.logsumexp(1).square()).sum() / weights.sum()


def _named(module: Any, name: str) -> Any:
    """A norm over the last dimension, and its parameters."""
    function = getattr(module, name)
    return lambda x, *parameters: function(x, x.shape[-1:], *parameters)


def with_gradients(function, leaves, scale=1.0) -> list[torch.Tensor]:
    """The result, and the gradients of all leaves for one of it that is not all ones."""
    y = function(*leaves)
    dy = (
        torch.linspace(-1, 2, y.numel(), dtype=y.dtype, device=y.device).view(y.shape)
        if y.dim()
        else y.detach()
    )
    return [y.detach(), *torch.autograd.grad(y, leaves, dy * scale)]
