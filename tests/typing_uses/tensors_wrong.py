# SPDX-License-Identifier: MIT
# ruff: noqa: T201
"""Wrong uses of PyTorch's tensors: one error for each line marked so, where PyTorch is there."""

from __future__ import annotations

import numpy as np
import torch

import cupy_training_ops as cto


def operators(x: torch.Tensor, a: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
    """Tensors in, tensors out."""
    print(cto.relu_grad(x, a))  # wrong: PyTorch's and NumPy's
    print(cto.relu_grad(a, x))  # wrong: the other way
    print(cto.relu_grad(x, x, out=a))  # wrong: also in out=
    print(cto.concat_training([x, a], axis=0))  # wrong: also in a list
    print(cto.relu_grad(x, x).nbytes_of)  # wrong: no attribute of a tensor
    print(cto.compress(x, "pack8").decompress().flags)  # wrong: nor of one that comes back
    print(cto.AdamW([x, a]))  # wrong: nor in an optimizer


def training(model: torch.nn.Module, x: torch.Tensor) -> None:
    """Names and values."""
    print(cto.torch.AdamW(model.parameters(), lr="0.1"))  # wrong: a text for a rate
    print(cto.torch.AdamW(model.parameters(), state="2bit"))  # wrong: no such state
    print(cto.torch.SGD(model.parameters(), max_norm="1"))  # wrong: a text for a norm
    print(cto.torch.convert(x))  # wrong: a tensor for a module
    print(cto.torch.convert(model, skip="Dropout"))  # wrong: a text for a list of them
    print(cto.torch.convert(model).swaped)  # wrong: a misspelt name
    print(cto.torch.compressed_activations("defualt"))  # wrong: no policy
    print(cto.torch.activation_codes("lossless"))  # wrong: not of compiled graphs
    print(cto.torch.functional.softmax(x, dim="1"))  # wrong: a text for a number
    print(cto.torch.functional.geluu(x))  # wrong: a misspelt function
    print(cto.torch.functional.gelu(x, approximate="tan"))  # wrong: a misspelt mode
    print(cto.torch.functional.cross_entropy(x, x, reduction="avg"))  # wrong: no reduction
