# SPDX-License-Identifier: MIT
"""Normal tensors, and counts of codes made and read."""

from __future__ import annotations

import weakref
from collections import Counter

import pytest

from .cases import N


@pytest.fixture
def tensor(seed):
    """Makes normal tensors, float16's values, so that pack16 gives them back."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def made(*shape, gradients=True):
        x = torch.randn(shape or (N,), generator=generator).half().float()
        return x.requires_grad_(gradients)

    return made


@pytest.fixture
def moves(monkeypatch):
    """How often codes were made and read."""
    from cupy_training_ops.torch import saved

    actual = Counter()
    original = saved.coding

    def counted(name, move):
        def call(*given):
            actual[name] += 1
            move(*given)

        return call

    def coding(*given):
        ready = original(*given)
        names = ("encode", "encode_unaligned", "decode")
        return ready._replace(**{name: counted(name, getattr(ready, name)) for name in names})

    monkeypatch.setattr(saved, "coding", coding)
    monkeypatch.setattr(saved, "_forms", weakref.WeakKeyDictionary())
    return actual
