# SPDX-License-Identifier: MIT
"""The examples, as their users run them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

torch.set_num_threads(1)  # threads that wait for a core cost more than they do here
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.fixture
def saved_activations():
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("example", EXAMPLES / "saved_activations.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_loop_as_a_script(saved_activations, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["saved_activations.py", "--steps", "2"])
    saved_activations.main()
    loss, size = capsys.readouterr().out.splitlines()
    assert loss.startswith("loss after 2 steps: ")
    assert size.endswith(": 4.0")


def test_the_loop_learns_as_it_does_without(saved_activations) -> None:
    plain, _ = saved_activations.train(None, 30)
    losses, _ = saved_activations.train("msfp15_signed", 30)
    assert losses[0] == plain[0]
    assert losses[-1] == pytest.approx(plain[-1], rel=0.02)


def test_an_activation_saved_twice_counts_once(saved_activations) -> None:
    """Both ReLUs save their outputs, and the layers behind them their inputs: the same memory."""
    _, saved = saved_activations.train("pack16", 1)
    activations = 2 * 32 * 8 * 8 * 8 * 4
    total_weight = 4  # of the loss
    assert saved.original_nbytes == activations + total_weight
    assert saved.nbytes == saved.original_nbytes // 2


def test_what_was_written_or_freed_since_is_another_activation(saved_activations) -> None:
    saved = saved_activations.SavedActivations("pack16", [])
    x = torch.ones(8)
    (first, _), (again, _) = saved.pack(x), saved.pack(x.detach().reshape(2, 4))
    assert first is again
    x.add_(1)
    assert saved.pack(x)[0] is not first
    addresses, packed = set(), []
    for n in range(50):  # PyTorch gives freed memory to the next tensor
        x = torch.full((1000,), float(n))
        addresses.add(x.data_ptr())
        packed.append(saved.pack(x))
        del x
    assert len(addresses) < 50
    assert [saved.unpack(codes)[0].item() for codes in packed] == list(range(50))


def test_codes_go_with_the_graph(saved_activations) -> None:
    saved = saved_activations.SavedActivations("pack16", [])
    x = torch.ones(8, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
        y = (x * x).sum()
    assert len(saved._encoded) == 1
    y.backward()
    assert not len(saved._encoded)
    assert (x.grad == 2).all()
