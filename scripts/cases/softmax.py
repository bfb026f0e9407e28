# SPDX-License-Identifier: MIT
"""Softmax and its gradients over 64 Mi elements, in rows of many lengths; PyTorch and Liger-Kernel
as peers."""

from __future__ import annotations

from functools import partial
from typing import Any

from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32

from . import Case, as_torch, liger
from .parameters import normal

ELEMENTS = 65_536 * 1024
SHORT = {FLOAT32: "f4", FLOAT16: "f2", BFLOAT16: "bf2"}
LENGTHS = (64, 256, 1024, 1025, 4096, 4097, 32_768)


def _shape(length: int) -> tuple[int, int]:
    """Whole multiples of 32 rows, so that odd lengths start at every alignment."""
    return ELEMENTS // length // 32 * 32, length


def _two(rng: Any, length: int, dtype: Any) -> tuple[Any, ...]:
    return normal(rng, _shape(length), dtype), normal(rng, _shape(length), dtype)


def _one(rng: Any, length: int, dtype: Any) -> tuple[Any, ...]:
    return (normal(rng, _shape(length), dtype),)


def _torch_gradient(dy: Any, y: Any, log: bool) -> Any:
    import torch

    function = torch._log_softmax_backward_data if log else torch._softmax_backward_data
    slope, forward = as_torch(dy), as_torch(y)
    return lambda: function(slope, forward, -1, forward.dtype)


def _torch_forward(x: Any, log: bool) -> Any:
    import torch

    function = torch.log_softmax if log else torch.softmax
    tensor = as_torch(x)
    return lambda: function(tensor, -1)


CASES = [
    *(
        Case(
            op,
            f"{t},{length}",
            partial(_two, length=length, dtype=dtype),
            peers={
                "torch": partial(_torch_gradient, log=op.startswith("Log")),
                **({"Liger": liger.softmax_grad} if op == "SoftmaxGrad_13" else {}),
            },
        )
        for op in ("SoftmaxGrad_13", "LogSoftmaxGrad_13")
        for dtype, t in SHORT.items()
        for length in LENGTHS
    ),
    *(
        Case(
            op,
            f"{t},{length}",
            partial(_one, length=length, dtype=dtype),
            peers={
                "torch": partial(_torch_forward, log=op.startswith("Log")),
                **({"Liger": liger.softmax} if op == "Softmax" else {}),
            },
        )
        for op in ("Softmax", "LogSoftmax")
        for dtype, t in SHORT.items()
        for length in (1024, 32_768)
    ),
]
