# SPDX-License-Identifier: MIT
"""What tests of consumers share: gradients under a policy, and what its report says."""

from __future__ import annotations

import torch

import cupy_training_ops as cto

SHAPE = (256, 128)
NBYTES = 4 * 256 * 128


def run(policy, function, *inputs):
    """Gradients and report."""
    kept = cto.torch.compressed_activations(policy)
    with kept:
        total = function(*inputs).sum()
    return torch.autograd.grad(total, inputs, allow_unused=True), kept.report()


def codecs(report) -> dict[str, int]:
    return {name: row["tensors"] for name, row in report["consumers"].items()}


def rule(consumer, codec):
    return {f"{consumer} {codec}": 1}
