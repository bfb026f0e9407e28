# SPDX-License-Identifier: MIT
"""Softmax and its gradients over 64 Mi elements, in rows of many lengths; PyTorch and Liger-Kernel
as peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32

from . import Case, Peer, liger, over
from .parameters import normals, rows
from .peers import on_tensors, torch


def _torch_gradient(dy: Any, y: Any) -> Any:
    return torch._softmax_backward_data(dy, y, -1, y.dtype)


def _torch_log_gradient(dy: Any, y: Any) -> Any:
    return torch._log_softmax_backward_data(dy, y, -1, y.dtype)


def _cases(op: str, n_inputs: int, lengths: Sequence[int], peers: dict[str, Peer]) -> list[Case]:
    return [
        case
        for length in lengths
        for case in over(
            (FLOAT32, FLOAT16, BFLOAT16),
            op,
            lambda t, length=length: normals(t, *[rows(length)] * n_inputs),
            f",{length}",
            peers=peers,
        )
    ]


GRADIENT_LENGTHS, LENGTHS = (64, 256, 1024, 1025, 4096, 4097, 32_768), (1024, 32_768)
SOFTMAX = {"torch": on_tensors(lambda x: torch.softmax(x, -1)), "Liger": liger.softmax}
GRADIENT = {"torch": on_tensors(_torch_gradient), "Liger": liger.softmax_grad}
LOG_SOFTMAX = {"torch": on_tensors(lambda x: torch.log_softmax(x, -1))}
LOG_GRADIENT = {"torch": on_tensors(_torch_log_gradient)}
CASES = [
    *_cases("SoftmaxGrad_13", 2, GRADIENT_LENGTHS, GRADIENT),
    *_cases("LogSoftmaxGrad_13", 2, GRADIENT_LENGTHS, LOG_GRADIENT),
    *_cases("Softmax", 1, LENGTHS, SOFTMAX),
    *_cases("LogSoftmax", 1, LENGTHS, LOG_SOFTMAX),
]
