# SPDX-License-Identifier: MIT
"""NumPy functions called alone: attributes that are left out are those of the operator."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from cupy_training_ops import registry
from cupy_training_ops.call.op import Op


def computed(op: Op, *inputs: Any) -> Any:
    """What an operator's NumPy function gives."""
    return op.cpu_function()(*inputs, **op.attribute_values)


class References:
    """A family's NumPy functions, by their names."""

    def __init__(self, family: str) -> None:
        self._module = importlib.import_module(f"cupy_training_ops.families.{family}.reference")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._module, name)
        cls = registry.OPERATORS.get(name)

        def with_attributes(*inputs: Any, **attributes: Any) -> Any:
            return function(*inputs, **cls(**attributes).attribute_values)

        return with_attributes if cls else function
