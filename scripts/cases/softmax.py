# SPDX-License-Identifier: MIT
"""Softmax and its gradients over 64 Mi elements, in rows of many lengths; PyTorch and Liger-Kernel
as peers."""

from __future__ import annotations

from functools import partial
from typing import Any

from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32

from . import liger, of_lengths, over
from .parameters import normals, rows
from .peers import on_tensors, torch


def _torch_gradient(dy: Any, y: Any) -> Any:
    return torch._softmax_backward_data(dy, y, -1, y.dtype)


def _torch_log_gradient(dy: Any, y: Any) -> Any:
    return torch._log_softmax_backward_data(dy, y, -1, y.dtype)


def _inputs(dtype: Any, length: int, n: int = 1) -> Any:
    return normals(dtype, *[rows(length)] * n)


TYPES, TWO = (FLOAT32, FLOAT16, BFLOAT16), partial(_inputs, n=2)
OF_GRADIENTS = of_lengths(64, 256, 1024, 1025, 4096, 4097, 32_768)
LENGTHS = of_lengths(1024, 32_768)
SOFTMAX = {"torch": on_tensors(lambda x: torch.softmax(x, -1)), "Liger": liger.softmax}
GRADIENT = {"torch": on_tensors(_torch_gradient), "Liger": liger.softmax_grad}
LOG_SOFTMAX = {"torch": on_tensors(lambda x: torch.log_softmax(x, -1))}
LOG_GRADIENT = {"torch": on_tensors(_torch_log_gradient)}
CASES = [
    *over(TYPES, "SoftmaxGrad_13", TWO, peers=GRADIENT, variants=OF_GRADIENTS),
    *over(TYPES, "LogSoftmaxGrad_13", TWO, peers=LOG_GRADIENT, variants=OF_GRADIENTS),
    *over(TYPES, "Softmax", _inputs, peers=SOFTMAX, variants=LENGTHS),
    *over(TYPES, "LogSoftmax", _inputs, peers=LOG_SOFTMAX, variants=LENGTHS),
]
