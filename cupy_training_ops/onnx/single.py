# SPDX-License-Identifier: MIT
"""One node by itself, and this package's operators for ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError, OpError, pass_on, refuse, shown
from ..registry import REGISTRY
from .graph import Node
from .reading import attribute_value, onnx_package
from .runner import runner
from .standard import NEWEST, TABLE


def call(node: Any, inputs: Sequence[Any], *, version: int = NEWEST) -> tuple[Any, ...]:
    """Run one node, an onnx.NodeProto, on arrays by position; its outputs come back.

    Inputs that a node leaves out are None. What an operator updates is updated. version: that of
    the opset of the node's domain; the newest without.
    """
    if not hasattr(node, "op_type"):
        refuse("call", "node", "an onnx.NodeProto", shown(node))
    if not isinstance(inputs, list | tuple):
        refuse("call", "inputs", "a list of arrays", shown(inputs))
    read = Node(
        node.op_type,
        "" if node.domain == "ai.onnx" else node.domain,
        version,
        tuple(node.input),
        tuple(node.output),
        {item.name: attribute_value(item) for item in node.attribute},
        node.name,
    )
    if len(inputs) != len(read.inputs):
        raise ArgumentError(f"{read.title}: expected {len(read.inputs)} inputs, got {len(inputs)}")
    run = runner(read).make(_module(inputs))
    try:
        with np.errstate(all="ignore"):
            results = run(list(inputs))
    except (OpError, MemoryError):
        raise
    except Exception as error:
        pass_on(error)
        raise ArgumentError(f"{read.title}: {error}") from error
    return tuple(results)[: len(read.outputs)]


def _module(arrays: Sequence[Any]) -> Any:
    """CuPy where an array is CuPy's."""
    flat = [a for item in arrays for a in (item if isinstance(item, list) else [item])]
    if any(type(array).__module__.partition(".")[0] == "cupy" for array in flat):
        import cupy

        return cupy
    return np


def _each(function: Callable[[Any], Any], value: Any) -> Any:
    """Of an array, of those of a sequence, or None of what is left out."""
    if isinstance(value, list):
        return [function(item) for item in value]
    return None if value is None else function(value)


def reference_ops() -> list[type]:
    """A class of each operator of upstream's domain, for ReferenceEvaluator(new_ops=...)."""
    has = onnx_package().defs.has
    names = {name for domain, name, _ in REGISTRY if domain == "com.microsoft"}
    names |= {name for name in TABLE if not has(name)}
    return [_reference(name) for name in sorted(names)]


def _reference(name: str) -> type:
    from onnx.reference.op_run import OpRun

    def run(self: Any, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        del attributes  # of the node, which has them
        results = call(self.onnx_node, [_each(np.copy, x) for x in inputs])
        return tuple(_each(np.asarray, result) for result in results)

    return type(name, (OpRun,), {"op_domain": "com.microsoft", "_run": run})
