# SPDX-License-Identifier: MIT
"""Sizes, a policy, and gradients with codes and without."""

from __future__ import annotations

import cupy_training_ops as cto

N = 16_384  # float32 elements that are just not small


def pack16(*_):
    return "pack16"


def gradients(inputs, loss, policy=pack16):
    """Those of a function's sum, and the report."""
    import torch

    kept = cto.torch.compressed_activations(policy)
    with kept:
        total = loss(*inputs).sum()
    actual = torch.autograd.grad(total, inputs)
    return actual, kept.report()


def assert_equal(actual, expected) -> None:
    import torch

    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one, other)


def assert_as_without(inputs, loss, policy="lossless"):
    """Bit for bit; the report."""
    import torch

    actual, report = gradients(inputs, loss, policy)
    assert_equal(actual, torch.autograd.grad(loss(*inputs).sum(), inputs))
    return report
