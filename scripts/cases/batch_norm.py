# SPDX-License-Identifier: MIT
"""Batch normalisation of images in a ResNet's sizes, and of rows; PyTorch and cuDNN as peers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cupy

from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32

from . import SHORT, Case, Peer
from .parameters import images, normal
from .peers import on_tensors, ready, torch

EPSILON, MOMENTUM = 1e-5, 0.9
STEM = (64, 256, 56, 56)
# Channels that are walked in other ways: in one block, by columns.
OTHERS = ((256, 512, 16, 8), (256, 1024, 14, 14), (256, 2048, 7, 7), (65_536, 1024))
OPS = ("BatchNormalizationGrad", "BatchNormInternal")


def _forward(rng: Any, shape: tuple[int, ...], dtype: Any, last: bool) -> tuple[Any, ...]:
    """X, scale, bias and running statistics."""
    x = images(rng, shape, dtype, last)
    scale, bias = (normal(rng, shape[1:2], FLOAT32) for _ in range(2))
    return x, scale, bias, cupy.zeros_like(bias), cupy.ones_like(bias)


def _backward(rng: Any, shape: tuple[int, ...], dtype: Any, last: bool) -> tuple[Any, ...]:
    """dY, X, scale, and statistics that are those of X, nearly."""
    x, scale, _, mean, inv_std = _forward(rng, shape, dtype, last)
    return images(rng, shape, dtype, last), x, scale, mean, inv_std


def _nbytes(*inputs: Any) -> int:
    """Large arrays once each way: the second reading is from the cache."""
    return _large(*inputs) + inputs[0].nbytes


def _large(*inputs: Any) -> int:
    """Bytes that are read for the sums, and again for the results."""
    return sum(array.nbytes for array in inputs if array.ndim > 1)


def _forward_with_relu(*arguments: Any) -> tuple[Any, ...]:
    """Add a residual to the forward pass's arguments."""
    return *_forward(*arguments), images(*arguments)


def _backward_with_relu(*arguments: Any) -> tuple[Any, ...]:
    """Add a Y, half of it 0, after the X of the backward pass's arguments."""
    dy, x, *others = _backward(*arguments)
    return dy, x, cupy.maximum(images(*arguments), 0), *others


def _nbytes_of_gradients(*inputs: Any) -> int:
    """Large arrays once each way, and the residual's gradient."""
    return _nbytes(*inputs) + inputs[0].nbytes


# ---- peers: PyTorch's own kernels, and cuDNN, which its modules call -----------------------------


def _backward_of_torch(dy: Any, x: Any, scale: Any, mean: Any, inv_std: Any) -> Any:
    return torch.ops.aten.native_batch_norm_backward(
        dy, x, scale, None, None, mean, inv_std, True, EPSILON, [True] * 3
    )


def _of_cudnn(peer: Peer, *inputs: Any) -> Callable[[], Any]:
    """cuDNN has no such pass for some types."""
    try:
        call = peer(*inputs)
        call()
    except RuntimeError as error:
        raise NotImplementedError(str(error).partition("\n")[0]) from error
    return call


def _cudnn_forward(*arguments: Any) -> Callable[[], Any]:
    return lambda: torch.cudnn_batch_norm(*arguments, True, 1 - MOMENTUM, EPSILON)


def _cudnn_backward(dy: Any, x: Any, scale: Any, mean: Any, inv_std: Any) -> Callable[[], Any]:
    """The forward is called once, for what it leaves to the backward."""
    zeros = torch.zeros_like(scale)
    *_, reserve = torch.cudnn_batch_norm(x, scale, zeros, None, None, True, 0.0, EPSILON)
    backward = torch.ops.aten.cudnn_batch_norm_backward
    return lambda: backward(x, dy, scale, None, None, mean, inv_std, EPSILON, reserve)


FORWARD = {
    "torch": on_tensors(lambda *x: torch.native_batch_norm(*x, True, 1 - MOMENTUM, EPSILON)),
    "torch cudnn": partial(_of_cudnn, ready(_cudnn_forward)),
}
BACKWARD = {
    "torch": on_tensors(_backward_of_torch),
    "torch cudnn": partial(_of_cudnn, ready(_cudnn_backward)),
}


def _rectified(x: Any, scale: Any, bias: Any, mean: Any, var: Any, residual: Any) -> Any:
    y = torch.nn.functional.batch_norm(x, mean, var, scale, bias, True, 1 - MOMENTUM, EPSILON)
    y += residual
    return torch.relu_(y)


def _backward_of_rectified(dy: Any, x: Any, y: Any, *others: Any) -> Any:
    dz = torch.ops.aten.threshold_backward(dy, y, 0)
    return _backward_of_torch(dz, x, *others)


def _case_with_relu(op: str, shape: tuple[int, ...], dtype: Any, last: bool) -> Case:
    is_forward = op == "BatchNormRelu"
    words = ["channels last"] if last else []
    make = _forward_with_relu if is_forward else _backward_with_relu
    return Case(
        op,
        ",".join((SHORT[dtype], "x".join(map(str, shape)), *words)),
        lambda rng: make(rng, shape, dtype, last),
        {},
        {"torch": on_tensors(_rectified if is_forward else _backward_of_rectified)},
        _nbytes if is_forward else _nbytes_of_gradients,
        read_again=(lambda x, *_: int(x.nbytes)) if is_forward else _large,
    )


def _case(
    op: str, shape: tuple[int, ...], dtype: Any, last: bool = False, **attributes: Any
) -> Case:
    is_forward = op == "BatchNormInternal"
    make, peers = (_forward, FORWARD) if is_forward else (_backward, BACKWARD)
    words = ["channels last"] if last else []
    trains = attributes.get("training_mode", True)
    return Case(
        op,
        ",".join((SHORT[dtype], "x".join(map(str, shape)), *words, *attributes)),
        partial(make, shape=shape, dtype=dtype, last=last),
        attributes if is_forward else {"epsilon": EPSILON},
        peers if trains and len(shape) == 4 else {},
        _nbytes,
        read_again=_large if trains else None,
    )


HALVES = (FLOAT32, FLOAT16)
CASES = [
    *(_case(op, STEM, dtype) for op in OPS for dtype in (*HALVES, BFLOAT16)),
    *(_case(op, shape, dtype) for op in OPS for shape in OTHERS for dtype in HALVES),
    *(
        _case(op, shape, dtype, last=True)
        for op in OPS
        for shape in (STEM, OTHERS[1])
        for dtype in HALVES
    ),
    _case("BatchNormInternal", STEM, FLOAT32, training_mode=False),
    *(
        _case_with_relu(op, shape, dtype, last)
        for op in ("BatchNormRelu", "BatchNormReluGrad")
        for shape in (STEM, OTHERS[1])
        for dtype in HALVES
        for last in (False, True)
    ),
]
