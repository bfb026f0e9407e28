# SPDX-License-Identifier: MIT
"""Calls as their users write them, of small arrays, and PyTorch's nearest: what the host costs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import cupy_training_ops as cto

Action = Callable[[], Any]


class Arrays(NamedTuple):
    """What makes arrays of a shape and a dtype's name: CuPy's, and PyTorch's on the GPU."""

    array: Callable[[tuple[int, ...], str], Any]
    tensor: Callable[[tuple[int, ...], str], Any] | None = None  # None: there are none


class Case(NamedTuple):
    """A call, its nearest in PyTorch, and its launches."""

    make: Callable[[Arrays], Action]
    peer: Callable[[Arrays], Action] | None = None
    takes_tensors: bool = False


def relu_of_tensors(of: Arrays) -> Action:
    dy, x = tensors(of, 2)
    return lambda: cto.relu_grad(dy, x)


def relu(of: Arrays) -> Action:
    dy, x, _ = arrays(of)
    return lambda: cto.relu_grad(dy, x)


def relu_as_class(of: Arrays) -> Action:
    op, (dy, x, out) = cto.ReluGrad(), arrays(of)
    return lambda: op(dy, x, out=out)


def relu_bound(of: Arrays) -> Action:
    dy, x, out = arrays(of)
    return cto.ReluGrad().bound(dy, x, out=out)


def relu_of_numpy(_: Arrays) -> Action:
    dy, x = np.random.default_rng(1).standard_normal((2, 64, 64), np.float32)
    return lambda: cto.relu_grad(dy, x)


def numpy_itself(_: Arrays) -> Action:
    dy, x = np.random.default_rng(1).standard_normal((2, 64, 64), np.float32)
    return lambda: np.where(x > 0, dy, np.float32(0))


def threshold(of: Arrays) -> Action:
    import torch

    dy, x = tensors(of, 2)
    return lambda: torch.ops.aten.threshold_backward(dy, x, 0)


X, W = (2, 16, 8, 8), (16, 16, 3, 3)


def conv(of: Arrays) -> Action:
    dy, x, w = of.array(X, "f4"), of.array(X, "f4"), of.array(W, "f4")
    return lambda: cto.conv_grad(dy, x, w, pads=[1, 1, 1, 1])


def convolution_backward(of: Arrays) -> Action:
    import torch

    dy, x, w = some(of, X, "f4"), some(of, X, "f4"), some(of, W, "f4")
    rest = [16], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True] * 3
    return lambda: torch.ops.aten.convolution_backward(dy, x, w, *rest)


def dropout(of: Arrays) -> Action:
    x = of.array((64, 64), "f4")
    return lambda: cto.dropout(x, np.float32(0.1), np.bool_(True), seed=3)


def native_dropout(of: Arrays) -> Action:
    import torch

    (x,) = tensors(of, 1)
    return lambda: torch.native_dropout(x, 0.1, True)


def adam(of: Arrays) -> Action:
    given = arrays(of, 4)
    steps = itertools.count(1)
    return lambda: cto.adam_optimizer(0.001, next(steps), *given)


def adam_of_scalars(of: Arrays) -> Action:
    given = arrays(of, 4)
    steps = itertools.count(1)
    return lambda: cto.adam_optimizer(np.float32(0.001), np.int64(next(steps)), *given)


def fused_adam(of: Arrays) -> Action:
    import torch

    (weights,) = tensors(of, 1)
    weights.requires_grad_()
    weights.grad = torch.ones_like(weights)
    return torch.optim.Adam([weights], fused=True).step


def slice_grad(of: Arrays) -> Action:
    dy, shape = of.array((32, 64), "f4"), np.array([64, 64])
    starts, ends, axes, steps = (np.array([n]) for n in (0, 64, 0, 2))
    return lambda: cto.slice_grad(dy, shape, starts, ends, axes, steps)


def gather(of: Arrays) -> Action:
    op, shape = cto.GatherGrad(), (1000, 64)
    indices, dy, out = of.array((4096,), "i8"), of.array((4096, 64), "f4"), of.array(shape, "f4")
    return lambda: op(shape, indices, dy, out=out)


def embedding_backward(of: Arrays) -> Action:
    import torch

    indices, dy = some(of, (4096,), "i8"), some(of, (4096, 64), "f4")
    return lambda: torch.ops.aten.embedding_dense_backward(dy, indices, 1000, -1, False)


def unflatten(of: Arrays) -> Action:
    rows, indices = of.array((50, 64), "f4"), of.array((50,), "i8")
    dims = np.array([8, 16])
    return lambda: cto.pad_and_unflatten(rows, indices, dims)


def layer_norm(of: Arrays) -> Action:
    x, scale, bias = of.array((64, 64), "f4"), of.array((64,), "f4"), of.array((64,), "f4")
    return lambda: cto.layer_normalization(x, scale, bias)


def native_layer_norm(of: Arrays) -> Action:
    import torch

    x, scale, bias = some(of, (64, 64), "f4"), some(of, (64,), "f4"), some(of, (64,), "f4")
    return lambda: torch.native_layer_norm(x, (64,), scale, bias, 1e-5)


def layer_norm_grad(of: Arrays) -> Action:
    dy, x, _ = arrays(of)
    scale, mean, inv_std = of.array((64,), "f4"), of.array((64, 1), "f4"), of.array((64, 1), "f4")
    return lambda: cto.layer_normalization_grad(dy, x, scale, mean, inv_std)


def native_layer_norm_backward(of: Arrays) -> Action:
    import torch

    dy, x = tensors(of, 2)
    scale, bias = some(of, (64,), "f4"), some(of, (64,), "f4")
    mean, inv_std = some(of, (64, 1), "f4"), some(of, (64, 1), "f4")
    rest = (64,), mean, inv_std, scale, bias, [True] * 3
    return lambda: torch.ops.aten.native_layer_norm_backward(dy, x, *rest)


def compress(of: Arrays) -> Action:
    x = of.array((64, 64), "f4")
    return lambda: cto.compress(x, "msfp15")


def decompress(of: Arrays) -> Action:
    packed = cto.compress(of.array((64, 64), "f4"), "msfp15")
    return lambda: packed.decompress()


def loss(of: Arrays) -> Action:
    scores, labels = of.array((64, 64), "f4"), of.array((64,), "i8")
    return lambda: cto.softmax_cross_entropy_loss(scores, labels)


def loss_and_grad(of: Arrays) -> Action:
    scores, labels = of.array((64, 64), "f4"), of.array((64,), "i8")
    return lambda: cto.cross_entropy_loss_and_grad(scores, labels)


def cross_entropy(of: Arrays) -> Action:
    import torch

    scores, labels = some(of, (64, 64), "f4"), some(of, (64,), "i8")
    return lambda: torch.nn.functional.cross_entropy(scores, labels)


def concat(of: Arrays) -> Action:
    op, xs = cto.ConcatTraining(axis=0), arrays(of, 8)
    return lambda: op(xs)


def cat(of: Arrays) -> Action:
    import torch

    xs = tensors(of, 8)
    return lambda: torch.cat(xs)


def sgd(of: Arrays) -> Action:
    rate, (weights, gradients) = of.array((1,), "f4"), arrays(of, 2)
    return lambda: cto.sgd_optimizer(rate, weights, gradients)


def arrays(of: Arrays, n: int = 3) -> tuple[Any, ...]:
    return tuple(of.array((64, 64), "f4") for _ in range(n))


def tensors(of: Arrays, n: int) -> tuple[Any, ...]:
    return tuple(some(of, (64, 64), "f4") for _ in range(n))


def some(of: Arrays, shape: tuple[int, ...], dtype: str) -> Any:
    assert of.tensor is not None
    return of.tensor(shape, dtype)


CASES: dict[str, Case] = {
    "relu_grad, tensors": Case(relu_of_tensors, threshold, takes_tensors=True),
    "conv_grad, pads=[...]": Case(conv, convolution_backward),
    "dropout, NumPy scalars": Case(dropout, native_dropout),
    "adam_optimizer, numbers": Case(adam, fused_adam),
    "adam_optimizer, NumPy scalars": Case(adam_of_scalars, fused_adam),
    "slice_grad, NumPy positions": Case(slice_grad),
    "GatherGrad, small, out=": Case(gather, embedding_backward),
    "pad_and_unflatten": Case(unflatten),
    "layer_normalization_grad": Case(layer_norm_grad, native_layer_norm_backward),
    "layer_normalization": Case(layer_norm, native_layer_norm),
    "compress, msfp15": Case(compress),
    "decompress, msfp15": Case(decompress),
    "softmax_cross_entropy_loss": Case(loss, cross_entropy),
    "cross_entropy_loss_and_grad": Case(loss_and_grad, cross_entropy),
    "ConcatTraining of 8": Case(concat, cat),
    "sgd_optimizer": Case(sgd),
    "relu_grad": Case(relu, threshold),
    "ReluGrad, out=": Case(relu_as_class, threshold),
    "ReluGrad, bound": Case(relu_bound, threshold),
    "relu_grad, NumPy arrays": Case(relu_of_numpy, numpy_itself),
}
