# SPDX-License-Identifier: MIT
"""Tensors of the tests of consumers."""

from __future__ import annotations

import pytest


@pytest.fixture
def tensor(seed):
    torch = pytest.importorskip("torch")
    from .calls import SHAPE

    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape or SHAPE, generator=generator).requires_grad_()


@pytest.fixture
def weight(tensor):
    from torch import nn

    return nn.Parameter(tensor(128, 128).detach() / 11)
