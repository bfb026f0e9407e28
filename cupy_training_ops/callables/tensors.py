# SPDX-License-Identifier: MIT
"""PyTorch's autograd functions on arrays of NumPy's and CuPy's, over the same memory.

PyTorch is not imported here: who has such a function has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..call.foreign import as_tensor


class Graph(NamedTuple):
    """What PyTorch keeps of a forward."""

    arguments: tuple[Any, ...]  # tensors in the places of arrays
    outputs: tuple[Any, ...]


class TorchFunction:
    """A subclass of torch.autograd.Function."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def forward(
        self,
        arguments: Sequence[object],
        tensors: Sequence[bool],
        grads: Sequence[bool],
        keeps: bool,
    ) -> tuple[object, Graph | None]:
        """What `apply` returns, and its graph if there is one."""
        torch = sys.modules["torch"]
        rows = zip(arguments, tensors, grads, strict=True)
        with torch.set_grad_enabled(keeps):
            given = tuple(
                as_tensor(value).requires_grad_(keeps and grad) if is_tensor else value
                for value, is_tensor, grad in rows
            )
            returned = self._function.apply(*given)
        outputs = returned if isinstance(returned, tuple) else (returned,)
        has_graph = any(getattr(output, "requires_grad", False) for output in outputs)
        return returned, Graph(given, outputs) if has_graph else None

    def backward(self, kept: Graph, gradients: Sequence[object]) -> object:
        """The gradient of each argument; None where there is none."""
        torch = sys.modules["torch"]
        pairs = zip(kept.outputs, gradients, strict=True)
        asked = [(output, g) for output, g in pairs if g is not None and output.requires_grad]
        wanted = [
            (i, tensor)
            for i, tensor in enumerate(kept.arguments)
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad
        ]
        found: list[object] = [None] * len(kept.arguments)
        if asked and wanted:
            results = torch.autograd.grad(
                [output for output, _ in asked],
                [tensor for _, tensor in wanted],
                [as_tensor(gradient) for _, gradient in asked],
                allow_unused=True,
            )
            for (i, _), result in zip(wanted, results, strict=True):
                found[i] = result
        return tuple(found)
