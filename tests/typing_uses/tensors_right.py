# SPDX-License-Identifier: MIT
# ruff: noqa: T201
"""Right uses of PyTorch's tensors, where PyTorch is installed."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

import cupy_training_ops as cto


def operators(x: torch.Tensor, weight: torch.nn.Parameter, i: torch.Tensor) -> torch.Tensor:
    """Tensors in, tensors out: a parameter counts as a tensor."""
    dx: torch.Tensor = cto.gelu_grad(x, weight, out=x)
    joined, lengths = cto.concat_training([x, weight], axis=0)
    print(joined.detach(), lengths.detach(), cto.GatherGrad(axis=1)((4, 8), i, dx).detach())
    return cto.compress(x, "msfp15").decompress()


def training(model: torch.nn.Module, x: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    """Optimizers, functions, modules and saved activations."""
    conversion = cto.torch.convert(model, skip=("Dropout",))
    print(conversion.swapped, conversion.left)
    optimizer = cto.torch.AdamW(model.parameters(), lr=1e-3, max_norm=1.0, state="8bit")
    with cto.torch.compressed_activations("wide") as saved:
        scores = cto.torch.functional.gelu(model(x), approximate="tanh")
        loss = cto.torch.functional.cross_entropy(scores, labels)
    torch.autograd.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    print(saved.report(), cto.torch.activation_codes("products", budget="4GB"))
    cto.AdamW(list(model.parameters()), lr=torch.tensor(0.1)).step([x, None])
    with cto.ActivationStash() as stash:
        stash.put("x", x)
        return [stash.get("x", out=x), cto.torch.nn.GELU()(x)]


def exchanged(x: torch.Tensor) -> NDArray[np.float32]:
    """NumPy's array over a tensor's memory may be beside NumPy's."""
    return cto.relu_grad(x.numpy(), np.ones(3, np.float32))
