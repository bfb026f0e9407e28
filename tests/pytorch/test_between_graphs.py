# SPDX-License-Identifier: MIT
"""Calls that torch.compile does not trace: they are made between graphs, or refused at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

import cupy_training_ops as cto  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.compile warns of itself

OPTIMIZERS = {
    "AdamW": lambda parameters: cto.torch.AdamW(parameters, lr=0.01),
    "AdamW of 8 bits": lambda parameters: cto.torch.AdamW(parameters, lr=0.01, state="8bit"),
    "SGD": lambda parameters: cto.torch.SGD(parameters, lr=0.01),
    "Lamb": lambda parameters: cto.torch.Lamb(parameters, lr=0.01),
}


def compressed(x):
    return cto.compress(x.detach(), "pack8").decompress() + x


def stashed(x):
    with cto.ActivationStash() as stash:
        stash.put("x", x.detach())
        return stash.get("x") + x


def gradient(x):
    return cto.relu_grad(x, x) + 1


def bucketed(x):
    return cto.torch.GradientBuckets([x], group=None)


def activations(x):
    with cto.torch.compressed_activations("default"):
        return x.sum()


def steps(make, x, compiled):
    """Parameters behind three training steps, zeroing of gradients and backward pass included."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 8)
    optimizer = make(layer.parameters())

    def step():
        optimizer.zero_grad()
        loss = layer(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    run = torch.compile(step, backend="eager") if compiled else step
    losses = [run().detach() for _ in range(3)]
    return [*losses, *layer.parameters()]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_compiled_training_step_is_an_eager_one(made, name) -> None:
    torch._dynamo.reset()
    x = made(4, 8)
    actual, expected = (steps(OPTIMIZERS[name], x, compiled) for compiled in (True, False))
    torch.testing.assert_close(actual, expected, atol=0, rtol=0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_compiled_step_alone(made, name) -> None:
    torch._dynamo.reset()
    parameters = [made(8, 8).requires_grad_() for _ in range(2)]
    before = [p.detach().clone() for p in parameters]
    optimizer = OPTIMIZERS[name](parameters)
    for p in parameters:
        p.grad = made(8, 8)
    torch.compile(lambda: optimizer.step(), backend="eager")()
    assert not any(map(torch.equal, parameters, before))


@pytest.mark.parametrize("function", [compressed, stashed, gradient])
def test_calls_of_tensors_are_eager_ones(made, function) -> None:
    torch._dynamo.reset()
    x = made(4, 8)
    actual = torch.compile(function, backend="eager")(x)
    torch.testing.assert_close(actual, function(x), atol=0, rtol=0)


@pytest.mark.parametrize("function", [compressed, stashed, gradient, bucketed, activations])
def test_what_is_to_be_one_graph_is_refused_at_once(made, function) -> None:
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="marked as skipped"):
        torch.compile(function, backend="eager", fullgraph=True)(made(4, 8))


def test_activations_are_refused_in_words(made) -> None:
    torch._dynamo.reset()
    with pytest.raises(cto.ProviderError, match=r"outside of what torch\.compile compiles"):
        torch.compile(activations, backend="eager")(made(4, 8))


@pytest.mark.parametrize("first", ["cupy_training_ops", "torch._dynamo"])
def test_whichever_is_imported_first(first) -> None:
    """Nothing of the package was called before, and its front door is not imported."""
    code = (
        f"import {first}, torch, cupy_training_ops as cto\n"
        "def function(x):\n"
        "    return cto.compress(x, 'pack8').decompress() + 1\n"
        "found = torch.compile(function, backend='eager')(torch.ones(8))\n"
        "assert found.tolist() == [2] * 8\n"
        "import sys\n"
        "assert not [f for f in sys.meta_path if 'cupy' in type(f).__module__]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
