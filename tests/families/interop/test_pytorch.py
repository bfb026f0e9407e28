# SPDX-License-Identifier: MIT
"""PythonOp over PyTorch's tensors."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, ProviderError, PythonOp, PythonOpGrad
from cupy_training_ops.callables import contexts
from cupy_training_ops.dtypes import BFLOAT16, FLOAT64
from cupy_training_ops.testing.compare import assert_matches

from .registered_functions import X, backward, forward, watched

with_torch = pytest.mark.usefixtures("torch")


@pytest.fixture(scope="module")
def torch():
    """PyTorch, with autograd functions under names."""
    result = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    result.Mixed = mixed_function(result)
    cto.register_python_op("mixed", result.Mixed)
    cto.register_python_op("doubled", doubled_function(result))
    return result


def mixed_function(torch):
    class Mixed(torch.autograd.Function):
        """x y k and x + y."""

        @staticmethod
        def forward(ctx, x, k, y):
            ctx.save_for_backward(x, y)
            ctx.k = k
            torch.Mixed_saw = (x.data_ptr(), y.data_ptr())
            return x * y * k, x + y

        @staticmethod
        def backward(ctx, dp, ds):
            x, y = ctx.saved_tensors
            return dp * y * ctx.k + ds, None, dp * x * ctx.k + ds

    return Mixed


def doubled_function(torch):
    class Doubled(torch.autograd.Function):
        """2 x, by the newer form, in place where it may be."""

        @staticmethod
        def forward(x):
            return x.add_(x) if not x.requires_grad else 2 * x

        @staticmethod
        def setup_context(ctx, *_):
            ctx.factor = 2

        @staticmethod
        def backward(ctx, dy):
            return ctx.factor * dy

    return Doubled


def mixed(grads=(1, 0, 1), **attributes) -> PythonOp:
    return forward(
        "mixed",
        input_convention="dcd",
        input_requires_grads=grads,
        input_float_scalars=[3.0],
        input_float_scalar_positions=[1],
        output_tensor_types=["float64"] * 2,
        training_mode=1,
        **attributes,
    )


def mixed_grad(grads=(1, 1)) -> PythonOpGrad:
    return backward(
        "mixed",
        output_convention="dcd",
        output_tensor_types=["float64"] * 2,
        output_tensor_requires_grads=grads,
    )


def pytorchs_own(torch, x, y, gradients):
    tensors = [torch.tensor(a, requires_grad=True) for a in (x, y)]
    outputs = torch.Mixed.apply(tensors[0], 3.0, tensors[1])
    pairs = [(o, torch.tensor(g)) for o, g in zip(outputs, gradients, strict=True) if g is not None]
    grads = torch.autograd.grad(*map(list, (dict(pairs), tensors)), list(dict(pairs).values()))
    return [o.detach().numpy() for o in outputs], [g.numpy() for g in grads]


@pytest.mark.parametrize("missing", [None, 0, 1])
def test_pytorch_function_and_gradient_are_pytorchs_own(torch, rng, missing) -> None:
    x, y, dp, ds = rng.standard_normal((4, 3, 5)).astype(FLOAT64)
    gradients = [None if i == missing else g for i, g in enumerate((dp, ds))]
    outputs, expected = pytorchs_own(torch, x, y, gradients)
    op, grad = mixed(), mixed_grad()
    context, actual = op([x, y])
    assert torch.Mixed_saw == (x.ctypes.data, y.ctypes.data)
    assert all(isinstance(array, np.ndarray) for array in actual)
    for array, wanted in zip(
        (*actual, *grad(context, gradients)), (*outputs, *expected), strict=True
    ):
        assert_matches(array, wanted, 0)
    assert not len(op.contexts)


def test_pytorch_tensors_come_back_as_tensors(torch, rng) -> None:
    tensors = [torch.tensor(a, requires_grad=True) for a in rng.standard_normal((2, 3, 5))]
    op = mixed()
    context, result = op(tensors)
    assert torch.Mixed_saw == tuple(t.data_ptr() for t in tensors)
    assert all(isinstance(t, torch.Tensor) and not t.requires_grad for t in (context, *result))
    gradients = mixed_grad()(context, [torch.ones_like(t) for t in result])
    total = sum(o.sum() for o in torch.Mixed.apply(tensors[0], 3.0, tensors[1]))
    wanted = torch.autograd.grad(total, tensors)
    assert all(torch.equal(a, b) for a, b in zip(gradients, wanted, strict=True))


@with_torch
def test_pytorch_gives_no_gradient_where_none_is_wanted(rng) -> None:
    x, y, g = rng.standard_normal((3, 3, 5))
    op, second = mixed(), mixed(grads=(0, 0, 1))
    context, _ = second([x, y])
    dx, dy = mixed_grad()(context, [g, g])
    assert dx is None
    assert_matches(dy, 3 * g * x + g)
    context, _ = mixed(grads=(0, 0, 0))([x, y])
    assert context.tolist() == [0]
    context, _ = op([x, y])
    assert mixed_grad(grads=(0, 1))(context, [g, g])[0] is None


@with_torch
def test_pytorch_functions_in_place() -> None:
    """Without gradients the memory is the input's; a map says so."""
    x = X.copy()
    op = forward("doubled", tensor_reuse_map=[-1, 0])
    _, (y,) = op([x])
    assert y.ctypes.data == x.ctypes.data
    assert_matches(x, 2 * X)
    trained = forward("doubled", input_requires_grads=[1], training_mode=1)
    context, (y,) = trained([x])
    assert_matches(y, 4 * X)
    assert_matches(backward("doubled")(context, [X])[0], 2 * X)


def test_pytorch_errors_have_the_functions_name(torch, rng) -> None:
    x = rng.standard_normal((3, 5))
    with pytest.raises(ProviderError, match="PythonOp: 'mixed' raised RuntimeError"):
        mixed()([x, x[:2]])
    with pytest.raises(ProviderError, match="PythonOp: 'mixed' raised RuntimeError"):
        mixed()([np.arange(3), np.arange(3)])  # integers have no gradient
    with pytest.raises(ArgumentError, match="backward: expected None: the class has its own"):
        cto.register_python_op("mixed", torch.Mixed, watched)


def test_pytorch_contexts_end(torch, rng) -> None:
    """A graph that sees no backward goes with the operator."""
    before, x = contexts.count(), rng.standard_normal((3, 5))
    op = mixed()
    graphs = []
    for _ in range(10):
        op([x, x])
    for context in op.contexts._by_handle.values():
        graphs.append(weakref.ref(context.saved.outputs[0]))
    del context, op
    gc.collect()
    assert contexts.count() == before
    assert all(ref() is None for ref in graphs)
    assert torch.is_grad_enabled()


def test_pytorch_mode_of_the_caller_does_not_count(torch, rng) -> None:
    x, op = rng.standard_normal((3, 5)), mixed()
    with torch.no_grad():
        context, result = op([x, x])
        assert all(g is not None for g in mixed_grad()(context, list(result)))
        assert not torch.is_grad_enabled()


@with_torch
def test_pytorch_gets_bfloat16_and_strides(rng) -> None:
    x = rng.standard_normal((4, 6)).astype(BFLOAT16)[:, ::2]
    attributes = {"output_tensor_types": ["bfloat16"]}
    op = forward("doubled", input_requires_grads=[1], training_mode=1, **attributes)
    context, (y,) = op([x])
    assert_matches(y, x + x)
    assert_matches(backward("doubled", **attributes)(context, [y])[0], y + y)


def test_pytorch_output_without_a_gradient(torch) -> None:
    """A gradient that is sent for it goes nowhere, as in PyTorch."""

    class Signs(torch.autograd.Function):
        """2 x, and where x is positive."""

        @staticmethod
        def forward(ctx, x):
            positive = (x > 0).to(x.dtype)
            ctx.mark_non_differentiable(positive)
            return 2 * x, positive

        @staticmethod
        def backward(ctx, dy, _):  # noqa: ARG004
            return 2 * dy

    cto.register_python_op("signs", Signs)
    op = forward("signs", output_tensor_types=[1, 1], input_requires_grads=[1], training_mode=True)
    context, _ = op([X])
    (dx,) = backward("signs")(context, [X, X])
    assert_matches(dx, 2 * X)
