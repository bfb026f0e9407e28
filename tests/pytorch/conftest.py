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


@pytest.fixture(autouse=True)
def every_kind_is_noted(monkeypatch):
    """The second call of a kind goes straight to the launches of the first, not the ninth."""
    pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    from cupy_training_ops.torch.ops import recent

    monkeypatch.setattr(recent, "_OFTEN", 1)
    recent.forget()
