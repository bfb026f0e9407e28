# SPDX-License-Identifier: MIT
"""Beside other machinery of PyTorch, and policies."""

from __future__ import annotations

import contextlib
import functools

import pytest
from ranks import gathered, results

import cupy_training_ops as cto

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from cupy_training_ops.torch import modes  # noqa: E402

from .calls import SHAPE, codecs, run  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.* bytes were compressed")  # where all is small


class Writes(torch.autograd.Function):
    """Its gradient writes into what was saved."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 1

    @staticmethod
    def backward(ctx, slope):
        (x,) = ctx.saved_tensors
        x.zero_()
        return slope


def test_who_writes_into_a_saved_tensor_changes_no_other_gradient(tensor) -> None:
    """Codes are decoded anew; what passed is an error, as plainly."""
    x = tensor()

    def function(x):
        y = torch.relu(x * 1)
        return (y * y).sum() + Writes.apply(y).sum()

    expected = torch.autograd.grad((torch.relu(x) ** 2 + torch.relu(x)).sum(), x)[0]
    (actual,), report = run("lossless", function, x)
    assert report["shared"]
    assert torch.allclose(actual, expected)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        run("default", function, x)


def test_jagged_nested_tensors_are_of_another_class(tensor) -> None:
    parts = [tensor(200, 128).detach(), tensor(300, 128).detach()]
    kept = cto.torch.compressed_activations()
    x = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    with kept:
        y = torch.relu(x * 1)
    assert kept.report()["passed"] == {"subclass": 0}
    assert y.requires_grad


def test_strided_nested_tensors_pass(tensor) -> None:
    parts = [tensor(200, 128).detach(), tensor(300, 128).detach()]
    kept = cto.torch.compressed_activations()
    with pytest.warns(UserWarning, match="nested tensors"):
        x = torch.nested.nested_tensor(parts, requires_grad=True)
    with kept:
        y = torch.relu(x * 1)
    y.backward(y.detach())
    assert kept.report()["passed"]["layout"] >= 0
    assert x.grad is not None


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # in PyTorch itself
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_models_are_not_compiled_anew(tensor, backend) -> None:
    count = []
    chosen = torch._dynamo.lookup_backend(backend)

    def counted(graph, inputs):
        count.append(graph)
        return chosen(graph, inputs)

    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(128, 128), nn.ReLU())
    compiled, x = torch.compile(model, backend=counted), tensor()
    compiled(x)
    for _ in range(2):
        run("default", compiled, x)
        compiled(x)
    assert len(count) == 1
    torch._dynamo.reset()
    run("default", compiled, x)
    compiled(x)
    assert len(count) == 2


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # in PyTorch itself
def test_symbolic_sizes_behind_a_context(tensor) -> None:
    graphs = []

    def graph_of(graph, inputs):
        graphs.append(inputs)
        return graph

    x = tensor()
    with cto.torch.compressed_activations():
        torch.relu(x)
    torch._dynamo.reset()
    torch.compile(lambda x: x * 2, backend=graph_of, dynamic=True)(x)
    (inputs,) = graphs
    assert any(isinstance(one, torch.SymInt) for one in inputs)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # in PyTorch itself
def test_eager_layers_beside_a_compiled_one_are_compressed(tensor, weight) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(nn.Sequential(nn.Linear(128, 128), nn.ReLU()), backend="aot_eager")
    with cto.torch.compressed_activations() as kept:
        total = (torch.relu(compiled(tensor()) * 1) @ weight).sum()
        assert isinstance(torch.overrides._get_current_function_mode(), modes.Consumers)
    assert torch.overrides._get_current_function_mode() is None
    assert kept.report()["consumers"].keys() == {"relu msfp15_signed"}
    total.backward()


def test_contexts_within_contexts_and_threads(tensor, weight) -> None:
    outer, inner = (cto.torch.compressed_activations() for _ in range(2))
    inputs = [tensor() for _ in range(4)]
    expected = [torch.autograd.grad(torch.relu(x).sum(), x)[0] for x in inputs]
    actual = [None] * 4

    def work(i):
        for _ in range(10):
            with outer:
                first = torch.relu(inputs[i] * 1).sum()
                with inner, outer:
                    total = first + torch.relu((inputs[i] * 1) @ weight).sum() * 0
            actual[i] = torch.autograd.grad(total, inputs[i])[0]

    results(gathered([functools.partial(work, i) for i in range(4)], 60))
    assert all(map(torch.equal, actual, expected))
    assert outer.report()["tensors"] == 4 * 10 * 3
    assert inner.report()["tensors"] == 0
    assert outer.report()["held"] == 0


def test_gradients_of_gradients(tensor, weight) -> None:
    x = tensor()

    def second(context):
        with context:
            total = (functional.softplus(torch.relu(x @ weight) @ weight) ** 2).mean()
            (slope,) = torch.autograd.grad(total, x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), (x, weight))

    expected = second(contextlib.nullcontext())
    for one, other in zip(second(cto.torch.compressed_activations()), expected, strict=True):
        assert (one - other).norm() <= 0.02 * other.norm()


def test_several_backwards_of_one_graph_are_the_same(tensor, weight) -> None:
    with cto.torch.compressed_activations():
        total = (functional.gelu(torch.relu(tensor() @ weight) @ weight)).sum()
    first, second = (torch.autograd.grad(total, weight, retain_graph=True) for _ in range(2))
    assert torch.equal(first[0], second[0])


def test_masks_are_bits(tensor) -> None:
    x = tensor(256, 512)
    (actual,), report = run("default", lambda x: torch.where(x > 0, x * 2, x * 3), x)
    assert torch.equal(actual, torch.where(x > 0, 2.0, 3.0))
    assert report["names"] == {
        "NoneType pack1": {"tensors": 1, "shared": 0, "before": 256 * 512, "after": 256 * 64}
    }


# ---- policies ------------------------------------------------------------------------------------


def test_a_function_may_be_told_the_consumer(tensor) -> None:
    seen = []

    def policy(name, dtype, shape, need, *, consumer):
        seen.append((name, dtype, shape, need, consumer))
        return "pack16" if consumer == "gelu" else None

    _, report = run(policy, lambda x: functional.gelu(x * 1).exp(), tensor())
    assert set(seen) == {
        ("MulBackward0", "float32", SHAPE, "value", "gelu"),
        ("ExpBackward0", "float32", SHAPE, "value", "exp"),
    }
    assert codecs(report) == {"gelu pack16": 1}


def test_what_was_default_has_a_name(tensor) -> None:
    x = tensor()
    (actual,), report = run("plain_msfp15", lambda x: torch.relu(x * 1), x)
    assert report["names"].keys() == {"ReluBackward0 msfp15"}
    assert not torch.equal(actual, (x > 0).float())  # small results became 0


def test_a_warning_says_that_little_was_compressed(tensor) -> None:
    kept = cto.torch.compressed_activations()
    x = tensor(4096, 128)
    said = r"0 bytes were compressed, \d+ were not \(\d+ as 'exact'"
    with pytest.warns(UserWarning, match=said), kept:
        (x * 1).exp().log()
    with kept:  # once
        (x * 1).exp().log()
