# SPDX-License-Identifier: MIT
"""Attention of 4 sequences of 2,048 with 16 heads; PyTorch's as peer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cupy

from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32
from cupy_training_ops.registry import get_op

from . import Case, over
from .parameters import normals
from .peers import on_tensors, ready, torch

BATCH, HEADS, ROWS = 4, 16, 2048


def _inputs(dtype: Any, width: int) -> Any:
    return normals(dtype, *[(BATCH, HEADS, ROWS, width)] * 3)


def _gradient_inputs(dtype: Any, width: int, is_causal: bool) -> Any:
    """dY, Q, K, V and what FlashAttention makes of these."""
    make = normals(dtype, *[(BATCH, HEADS, ROWS, width)] * 4)

    def inputs(rng: Any) -> tuple[Any, ...]:
        dy, *qkv = make(rng)
        results = get_op("FlashAttention")(is_causal=is_causal)(*qkv)
        cupy.cuda.Device().synchronize()
        return (dy, *qkv, *results)

    return inputs


def _torch(q: Any, k: Any, v: Any, is_causal: bool) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


def _torch_gradient(
    dy: Any, q: Any, k: Any, v: Any, _y: Any, _lse: Any, is_causal: bool
) -> Callable[[], Any]:
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    y = _torch(*leaves, is_causal)
    return lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True)


def _cases(width: int, is_causal: bool) -> list[Case]:
    types = (BFLOAT16, FLOAT16, FLOAT32) if width == 64 else (BFLOAT16,)
    label, attributes = f",{width}{',causal' * is_causal}", {"is_causal": is_causal}
    forward = {"torch": on_tensors(partial(_torch, is_causal=is_causal))}
    backward = {"torch": ready(partial(_torch_gradient, is_causal=is_causal))}
    inputs = partial(_inputs, width=width)
    gradient = partial(_gradient_inputs, width=width, is_causal=is_causal)
    return [
        *over(types, "FlashAttention", inputs, label, attributes, forward),
        *over(types, "FlashAttentionGrad", gradient, label, attributes, backward),
    ]


CASES = [case for width in (64, 128) for causal in (False, True) for case in _cases(width, causal)]
