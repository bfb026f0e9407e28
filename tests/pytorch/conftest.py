# SPDX-License-Identifier: MIT
"""Tensors of the tests of PyTorch's front door."""

from __future__ import annotations

import pytest


@pytest.fixture
def leaf(seed):
    """Makes normal float64 tensors that require gradients, fresh in every session."""
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)

    def made(*shape, dtype=torch.float64, gradients=True):
        x = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        return x.requires_grad_(gradients)

    return made


@pytest.fixture
def labels(seed):
    """Makes labels of so many classes."""
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    generator = torch.Generator().manual_seed(seed)
    return lambda n_classes, *shape: torch.randint(n_classes, shape, generator=generator)


@pytest.fixture
def made(leaf):
    """Makes normal float32 tensors that require no gradients."""
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    return lambda *shape: leaf(*shape, dtype=torch.float32, gradients=False)


@pytest.fixture
def emulation(monkeypatch):
    """In its context the host's tensors run on emulated kernels, which watch the memory of all."""
    pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    pytest.importorskip("cupy", reason="CuPy is in the extras")
    from tensor_backends import EmulatedTensors, tensors_on

    from cupy_training_ops.torch.ops import launching

    backend = EmulatedTensors()
    monkeypatch.setattr(launching, "address", lambda tensor: backend.pointers([tensor])[0])
    return lambda: tensors_on(backend)


@pytest.fixture
def emulated(emulation):
    """The whole test is in that context."""
    with emulation() as backend:
        yield backend


@pytest.fixture(autouse=True)
def every_kind_is_noted(monkeypatch):
    """The second call of a kind goes straight to the launches of the first, not the ninth."""
    pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    from cupy_training_ops.torch.ops import dispatch

    monkeypatch.setattr(dispatch, "_TRACE_EVERY", 1)
    dispatch.forget()
