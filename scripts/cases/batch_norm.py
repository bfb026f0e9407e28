# SPDX-License-Identifier: MIT
"""Batch normalisation of images in a ResNet's sizes, and of rows; PyTorch and cuDNN as peers."""

from __future__ import annotations

from functools import partial
from typing import Any

import cupy

from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32

from . import Case, as_torch
from .parameters import normal

SHORT = {FLOAT32: "f4", FLOAT16: "f2", BFLOAT16: "bf2"}
EPSILON, MOMENTUM = 1e-5, 0.9
STEM = (64, 256, 56, 56)
# Channels that are walked in other ways: in one block, by columns.
OTHERS = ((256, 512, 16, 8), (256, 1024, 14, 14), (256, 2048, 7, 7), (65_536, 1024))

Inputs = tuple[Any, ...]


def _images(rng: Any, shape: tuple[int, ...], dtype: Any, last: bool) -> Any:
    """Normal numbers; `last`: with the channels last in memory."""
    if not last:
        return normal(rng, shape, dtype)
    return cupy.moveaxis(normal(rng, (shape[0], *shape[2:], shape[1]), dtype), -1, 1)


def _forward(rng: Any, shape: tuple[int, ...], dtype: Any, last: bool = False) -> Inputs:
    """X, scale, bias and running statistics."""
    x = _images(rng, shape, dtype, last)
    scale, bias = (normal(rng, shape[1:2], FLOAT32) for _ in range(2))
    return x, scale, bias, cupy.zeros_like(bias), cupy.ones_like(bias)


def _backward(rng: Any, shape: tuple[int, ...], dtype: Any, last: bool = False) -> Inputs:
    """dY, X, scale, and statistics that are those of X, nearly."""
    x, scale, _, mean, inv_std = _forward(rng, shape, dtype, last)
    return _images(rng, shape, dtype, last), x, scale, mean, inv_std


def _nbytes(*inputs: Any) -> int:
    """Large arrays once each way: the second reading is from the cache."""
    large = _large(*inputs)
    return large + inputs[0].nbytes


def _large(*inputs: Any) -> int:
    """Bytes that are read for the sums, and again for the results."""
    return sum(array.nbytes for array in inputs if array.ndim > 1)


# ---- peers: PyTorch's own kernels, and cuDNN, which its modules call -----------------------------


def _torch_forward(*inputs: Any) -> Any:
    import torch

    tensors = [as_torch(array) for array in inputs]
    return lambda: torch.native_batch_norm(*tensors, True, 1 - MOMENTUM, EPSILON)


def _cudnn_forward(*inputs: Any) -> Any:
    import torch

    tensors = [as_torch(array) for array in inputs]
    forward = partial(torch.cudnn_batch_norm, *tensors, True, 1 - MOMENTUM, EPSILON)
    try:  # cuDNN has no such pass for some types
        forward()
    except RuntimeError as error:
        raise NotImplementedError(str(error).partition("\n")[0]) from error
    return forward


def _torch_backward(*inputs: Any) -> Any:
    import torch

    *tensors, mean, inv_std = [as_torch(array) for array in inputs]
    backward, every = torch.ops.aten.native_batch_norm_backward, [True] * 3
    return lambda: backward(*tensors, None, None, mean, inv_std, True, EPSILON, every)


def _cudnn_backward(*inputs: Any) -> Any:
    """The forward is called once, for what it leaves to the backward."""
    import torch

    dy, x, scale, mean, inv_std = [as_torch(array) for array in inputs]
    zeros = torch.zeros_like(scale)
    backward = torch.ops.aten.cudnn_batch_norm_backward
    try:  # cuDNN has no such pass for some types
        *_, reserve = torch.cudnn_batch_norm(x, scale, zeros, None, None, True, 0.0, EPSILON)
        backward(x, dy, scale, None, None, mean, inv_std, EPSILON, reserve)
    except RuntimeError as error:
        raise NotImplementedError(str(error).partition("\n")[0]) from error
    return lambda: backward(x, dy, scale, None, None, mean, inv_std, EPSILON, reserve)


FORWARD = {"torch": _torch_forward, "torch cudnn": _cudnn_forward}
BACKWARD = {"torch": _torch_backward, "torch cudnn": _cudnn_backward}


def _case(
    op: str, shape: tuple[int, ...], dtype: Any, last: bool = False, **attributes: Any
) -> Case:
    is_forward = op == "BatchNormInternal"
    make, peers = (_forward, FORWARD) if is_forward else (_backward, BACKWARD)
    words = ["channels last"] if last else []
    label = ",".join((SHORT[dtype], "x".join(map(str, shape)), *words, *attributes))
    given = attributes if is_forward else {"epsilon": EPSILON}
    trains = attributes.get("training_mode", True)
    return Case(
        op,
        label,
        partial(make, shape=shape, dtype=dtype, last=last),
        given,
        peers if trains and len(shape) == 4 else {},
        _nbytes,
        read_again=_large if trains else None,
    )


CASES = [
    *(
        _case(op, STEM, dtype)
        for op in ("BatchNormalizationGrad", "BatchNormInternal")
        for dtype in SHORT
    ),
    *(
        _case(op, shape, dtype)
        for op in ("BatchNormalizationGrad", "BatchNormInternal")
        for shape in OTHERS
        for dtype in (FLOAT32, FLOAT16)
    ),
    *(
        _case(op, shape, dtype, last=True)
        for op in ("BatchNormalizationGrad", "BatchNormInternal")
        for shape in (STEM, OTHERS[1])
        for dtype in (FLOAT32, FLOAT16)
    ),
    _case("BatchNormInternal", STEM, FLOAT32, training_mode=False),
]
