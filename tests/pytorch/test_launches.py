# SPDX-License-Identifier: MIT
"""The way to the launches of a GPU: tensors of the host stand for a GPU's, on emulated kernels."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
pytest.importorskip("cupy", reason="CuPy is in the extras")

from tensor_backends import HollowTensors, tensors_on  # noqa: E402

from cupy_training_ops import ArgumentError  # noqa: E402
from cupy_training_ops.call.op import Op  # noqa: E402
from cupy_training_ops.device.launch import ReadyPlan  # noqa: E402
from cupy_training_ops.torch import functional, ops  # noqa: E402
from cupy_training_ops.torch.ops import launching  # noqa: E402

from .pairs import pairs, with_gradients  # noqa: E402

KERNELS = [
    "layer_norm",
    "layer_norm plain",
    "rms_norm",
    "gelu tanh",
    "gelu tanh alone",
    "relu",
    "softmax",
    "embedding",
    "cross_entropy",
    "cross_entropy in place",
    "linear_cross_entropy",
]


def as_floats(leaf):
    return lambda *shape, **given: leaf(*shape, dtype=torch.float32, **given)


@pytest.mark.parametrize("case", KERNELS)
def test_kernels_give_what_the_host_gives(leaf, labels, emulation, case) -> None:
    """Twice: the second call is one like the first."""
    ours, _, leaves = pairs(as_floats(leaf), labels)[case]
    expected = with_gradients(ours, leaves)
    with emulation():
        for _ in range(2):
            actual = with_gradients(ours, leaves)
            for a, b in zip(actual, expected, strict=True):
                torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("is_biased", [False, True])
def test_a_dropout_is_that_of_the_host(leaf, emulation, gradients, is_biased) -> None:
    """Seeds that are new in each call are no part of what is looked up."""
    x, bias, residual = (leaf(*s, dtype=torch.float32).detach() for s in ((8, 40), (40,), (8, 40)))
    given = {"bias": bias, "residual": residual} if is_biased else {}
    x.requires_grad_(gradients)

    def both():
        torch.manual_seed(3)
        results = [functional.dropout(x, 0.3, **given) for _ in range(3)]
        return [*results, *(torch.autograd.grad(y, x, residual)[0] for y in results if gradients)]

    expected = both()
    with emulation():
        actual = both()
    assert not any(torch.equal(*two) for two in itertools.combinations(actual[:3], 2))
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5)


@pytest.fixture
def backend():
    """Launches are noted; memory is never looked at."""
    with tensors_on(HollowTensors()) as actual:
        yield actual


def test_nothing_is_exchanged(backend, leaf, labels, monkeypatch) -> None:
    """No array of CuPy's or NumPy's is made, and no stream object, on the way of any function."""
    import cupy

    from cupy_training_ops.call import interop

    for name in ("share_memory", "as_tensor", "_stream"):
        monkeypatch.setattr(interop, name, None)
    for name in ("__dlpack__", "__array__", "numpy"):
        monkeypatch.setattr(torch.Tensor, name, None)
    monkeypatch.setattr(cupy, "ndarray", None)
    actual = pairs(as_floats(leaf), labels)
    for ours, _, leaves in actual.values():
        before = len(backend.launches)
        with_gradients(ours, leaves)
        with torch.no_grad():
            ours(*leaves)
        assert len(backend.launches) > before
    functional.dropout(leaf(4, 6, dtype=torch.float32)).sum().backward()


def test_a_dropout_like_one_before_is_not_prepared_again(backend, leaf, monkeypatch) -> None:
    """Its numbers are those of each call."""
    x = leaf(4, 64, dtype=torch.float32)
    functional.dropout(x, 0.5).sum().backward()
    functional.dropout(x.detach(), 0.5)
    n_launches, kinds = len(backend.launches), len(launching._ready)
    monkeypatch.setattr(launching, "_prepare", None)
    monkeypatch.setattr(Op, "__call__", None)
    functional.dropout(x, 0.25).sum().backward()
    functional.dropout(x.detach(), 0.75)
    assert len(backend.launches) == n_launches + 3
    assert len(launching._ready) == kinds


def test_a_call_like_one_before_is_not_prepared_again(backend, leaf, monkeypatch) -> None:
    x = leaf(4, 64, dtype=torch.float32, gradients=False)
    first = functional.softmax(x, -1)
    n_launches = len(backend.launches)
    monkeypatch.setattr(launching, "_prepare", None)
    again = functional.softmax(x + 1, -1)
    assert len(backend.launches) == n_launches + 1
    assert again.data_ptr() != first.data_ptr()


@pytest.mark.parametrize("change", ["shape", "dtype", "alignment", "dim"])
def test_another_kind_of_call_is_prepared_anew(backend, leaf, monkeypatch, change) -> None:
    x = leaf(4, 64, dtype=torch.float32, gradients=False)
    functional.softmax(x, -1)
    others = {
        "shape": (x[:3], -1),
        "dtype": (x.half(), -1),
        "alignment": (torch.zeros(257)[1:].view(4, 64), -1),
        "dim": (x, 0),
    }
    monkeypatch.setattr(launching, "_prepare", None)
    with pytest.raises(TypeError):
        functional.softmax(*others[change])
    assert backend.launches


def test_unusual_tensors_are_taken_as_before(leaf, emulation) -> None:
    """Negative ones and empty ones are no launch's; others are made dense first."""
    x = leaf(4, 6, dtype=torch.float32, gradients=False)
    negative = torch.complex(x, -x).conj().imag
    unusual = (x.t(), x[:, ::2], negative, torch.zeros(0, 6), torch.zeros(4, 6).neg())
    with emulation():
        for tensor in unusual:
            expected = torch.softmax(tensor, -1)
            torch.testing.assert_close(functional.softmax(tensor, -1), expected)


def test_refusals_are_those_of_the_host(backend, leaf, labels) -> None:
    x, weight = leaf(4, 6), leaf(7, gradients=False)
    with pytest.raises(ArgumentError, match="weights: expected shape"):
        functional.cross_entropy(x, labels(6, 4), weight)
    with pytest.raises(ArgumentError, match="axis: expected an axis from -2 to 1, got 2"):
        functional.softmax(x, 2)
    assert not backend.launches


def test_scratch_memory_is_kept_for_a_stream_and_clean(leaf, labels, emulation) -> None:
    """Kernels leave the zeros behind that the next call expects."""
    scores, target = leaf(4096, 16, dtype=torch.float32, gradients=False), labels(16, 4096)
    with emulation():
        losses = [functional.cross_entropy(scores, target) for _ in range(3)]
    assert losses[0] == losses[1] == losses[2]
    torch.testing.assert_close(losses[0], torch.nn.functional.cross_entropy(scores, target))


def test_scratch_memory_of_a_call_that_ended_by_an_error_is_no_others(
    leaf, labels, emulation, monkeypatch
) -> None:
    """What it left there is no zeros, and another thread has memory of its own."""
    scores, target = leaf(4096, 16, dtype=torch.float32, gradients=False), labels(16, 4096)
    for memory in ("_workspaces", "_ready", "_instances"):
        monkeypatch.setattr(launching, memory, {})

    def stopped(*_: object, **__: object) -> None:
        assert not any(launching._workspaces.values())
        raise KeyboardInterrupt

    with emulation():
        expected = functional.cross_entropy(scores, target)
        assert any(launching._workspaces.values())
        with monkeypatch.context() as patch:
            patch.setattr(ReadyPlan, "run_at", stopped)
            with pytest.raises(KeyboardInterrupt):
                functional.cross_entropy(scores, target)
        assert not any(launching._workspaces.values())
        assert functional.cross_entropy(scores, target) == expected


@pytest.mark.usefixtures("backend")
def test_wanted_gradients_alone_are_computed(leaf) -> None:
    x, row = leaf(4, 6, dtype=torch.float32, gradients=False), leaf(6, dtype=torch.float32)
    functional.layer_norm(x, (6,), row, row.detach()).sum().backward()
    (dy, *rest) = (x, x, (6,), row.detach(), x[:, :1].contiguous(), x[:, :1].contiguous())
    actual = ops.DOORS["layer_norm_backward"](dy, *rest, (False, True, False))
    assert [tuple(g.shape) for g in actual] == [(0,), (6,), (0,)]
