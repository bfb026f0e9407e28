# SPDX-License-Identifier: MIT
"""Fixtures of tests over PyTorch's tensors by their metadata; only such tests import it."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["guards", "forms"])
def known_by(request, monkeypatch) -> str:
    """With a private class of PyTorch's, and as where it is missing."""
    from cupy_training_ops.device import tensor_guards

    if request.param == "forms":
        monkeypatch.setattr(tensor_guards, "_guards", lambda _: None)
    return request.param


@pytest.fixture
def coded_from(monkeypatch):
    """Sets from how many elements on moments become codes: tests have small parameters."""

    def set_least(n: int) -> None:
        monkeypatch.setattr("cupy_training_ops.optimizers.state.MIN_CODED", n)

    return set_least


@pytest.fixture
def all_coded(coded_from) -> None:
    """Moments of all parameters become codes."""
    coded_from(1)


@pytest.fixture
def large_coded(coded_from) -> None:
    """Moments of parameters with 100 elements or more become codes, those of others do not."""
    coded_from(100)


@pytest.fixture
def backend(known_by):  # noqa: ARG001
    """Tensors of the host with kernels that are noted."""
    from tensor_backends import HollowTensors, tensors_on

    with tensors_on(HollowTensors()) as actual:
        yield actual


@pytest.fixture
def made(seed):
    """Makes normal tensors of these shapes."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return lambda *shapes: [torch.randn(shape, generator=generator) for shape in shapes]
