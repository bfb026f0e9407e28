# SPDX-License-Identifier: MIT
"""Liger-Kernel's functions as peers, where it is importable: what its autograd functions call."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .peers import as_torch

Call = Callable[[], Any]


def _ops(name: str) -> Any:
    """A module of Liger-Kernel's operations."""
    try:
        return importlib.import_module(f"liger_kernel.ops.{name}")
    except ImportError as error:
        raise NotImplementedError(f"Liger-Kernel is not importable: {error}") from error


def softmax(x: Any) -> Call:
    """Softmax of rows."""
    ops, tensor = _ops("softmax"), as_torch(x)
    return lambda: ops._softmax_forward(tensor)[0]


def softmax_grad(dy: Any, y: Any) -> Call:
    """Its gradient, with the settings that its forward hands on."""
    ops, slope, forward = _ops("softmax"), as_torch(dy), as_torch(y)
    _, *settings = ops._softmax_forward(forward)
    return lambda: ops._softmax_backward(slope, forward, *settings)


def layer_norm(x: Any, scale: Any, bias: Any, epsilon: float) -> Call:
    """Layer normalisation of rows, with statistics."""
    ops, arguments = _ops("layer_norm"), [as_torch(array) for array in (x, scale, bias)]
    return lambda: ops.layer_norm_forward(*arguments, epsilon)


def layer_norm_grad(dy: Any, x: Any, scale: Any, mean: Any, inv_std: Any) -> Call:
    """Its gradients."""
    ops = _ops("layer_norm")
    dy_, x_, weight, mean_, inv_std_ = map(as_torch, (dy, x, scale, mean, inv_std))
    bias, mean_, inv_std_ = weight.clone().zero_(), mean_.flatten(), inv_std_.flatten()
    return lambda: ops.layer_norm_backward(dy_, x_, weight, bias, mean_, inv_std_)


def rms_norm(x: Any, scale: Any, epsilon: float) -> Call:
    """RMS normalisation of rows, with statistics."""
    ops, source, weight = _ops("rms_norm"), as_torch(x), as_torch(scale)
    return lambda: ops.rms_norm_forward(source, weight, epsilon, 0.0, "llama", None)


def rms_norm_grad(dy: Any, x: Any, scale: Any, inv_std: Any) -> Call:
    """Its gradients, where that of x is not written over dy."""
    ops, slope, source, weight = _ops("rms_norm"), as_torch(dy), as_torch(x), as_torch(scale)
    _, _, root, *settings = ops.rms_norm_forward(source, weight, 1e-5, 0.0, "llama", None)
    size, warps, mode = settings
    root.copy_(as_torch(inv_std).flatten())
    return lambda: ops.rms_norm_backward(
        slope, source, weight, root, 0.0, mode, size, warps, False, None
    )


def cross_entropy(scores: Any, labels: Any) -> Call:
    """Loss and gradient over the scores: the kernel and the sum behind it.

    Its function counts labels on the host first, for which it waits and cannot be captured.
    """
    ops, x, y = _ops("cross_entropy"), as_torch(scores), as_torch(labels)
    n_rows, n_classes = x.shape
    losses = x.new_zeros(n_rows)
    options = {
        "n_cols": n_classes,
        "n_non_ignore": n_rows,
        "sum_non_ignore_weight": n_rows,
        "weight_sum": 0.0,
        "ignore_index": -100,
        "lse_square_scale": 0.0,
        "label_smoothing": 0.0,
        "reduction": "mean",
        "softcap": None,
        "RETURN_Z_LOSS": False,
        "RETURN_TOKEN_ACCURACY": False,
        "RETURN_PREDICTED_TOKENS": False,
        "BLOCK_SIZE": min(ops.MAX_FUSED_SIZE, 1 << (n_classes - 1).bit_length()),
        "HAS_WEIGHT": False,
        "HAS_SOFTCAPPING": False,
        "HAS_GRADIENTS": True,
        "num_warps": 32,
    }

    def both() -> Any:
        ops.liger_cross_entropy_kernel[(n_rows,)](
            X_ptr=x,
            X_stride=x.stride(0),
            Y_ptr=y,
            Y_stride=y.stride(0),
            weight_ptr=None,
            loss_ptr=losses,
            z_loss_ptr=None,
            loss_stride=losses.stride(0),
            token_accuracy_ptr=None,
            token_accuracy_stride=0,
            predicted_tokens_ptr=None,
            predicted_tokens_stride=0,
            **options,
        )
        return losses.sum()

    return both
