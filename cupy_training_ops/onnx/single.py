# SPDX-License-Identifier: MIT
"""Nodes by themselves: `call(node, [x, y])` gives the outputs of an onnx.NodeProto."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError, refuse, shown
from ..registry import REGISTRY
from .graph import EMPTY, Graph, Node, Problems, Value
from .models import onnx_package, read_node
from .runner import each, is_known, runner_of
from .session import Session
from .standard import NEWEST, TABLE
from .steps import raise_named


def call(node: Any, inputs: Sequence[Any], *, version: int = NEWEST) -> tuple[Any, ...]:
    """Run one node, an onnx.NodeProto, on arrays by position, and return a tuple of its outputs.

    An input that the node leaves out is None. Inputs that the operator updates are updated in
    place. version: of the opset of the node's domain, by default the newest.
    """
    if not hasattr(node, "op_type"):
        refuse("call", "node", "an onnx.NodeProto", shown(node))
    if not isinstance(inputs, list | tuple):
        refuse("call", "inputs", "a list of arrays", shown(inputs))
    problems = Problems("the node")
    read = read_node(node, 0, {"" if node.domain == "ai.onnx" else node.domain: version}, problems)
    problems.refuse()
    if len(inputs) != len(node.input):
        raise ArgumentError(f"{read.title}: expected {len(node.input)} inputs, got {len(inputs)}")
    if len(read.inputs) > len(node.input):
        around = ", ".join(read.inputs[len(node.input) :])
        raise ArgumentError(
            f"{read.title}: expected a node that reads its inputs alone, got one "
            f"that reads {around}"
        )
    if not is_known(read):
        return _run_as_graph(read, inputs)
    run = runner_of(read).make(_module(inputs))
    try:
        with np.errstate(all="ignore"):
            results = run(list(inputs))
    except Exception as error:
        raise_named(error, read)
    return tuple(results)[: len(read.outputs)]


def _run_as_graph(node: Node, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return a node's outputs by a Session, since other nodes compute it: of its body or graphs."""
    xp = _module(inputs)
    feeds = {f"input {k}": value for k, value in enumerate(inputs) if value is not None}
    values = tuple(_value(name, value) for name, value in feeds.items())
    names = tuple(f"input {k}" if f"input {k}" in feeds else "" for k in range(len(inputs)))
    outputs = tuple(Value(name, None, None) for name in node.outputs if name)
    single = Node(node.op_type, node.domain, node.version, names, node.outputs, node.attributes)
    results = Session(Graph((single,), values, outputs, {}), xp).run(feeds)
    return tuple(results.get(name) for name in node.outputs)


def _value(name: str, value: Any) -> Value:
    """Return the declaration of an input by its value: an array, a list of them, or another."""
    if isinstance(value, list):
        return Value(name, value[0].dtype if value else None, None, is_sequence=True)
    if value is EMPTY or not hasattr(value, "dtype"):
        return Value(name, None, None)
    return Value(name, value.dtype, tuple(value.shape))


def _module(arrays: Sequence[Any]) -> Any:
    """Return the module cupy if one of the arrays is CuPy's, else numpy."""
    flat = [a for item in arrays for a in (item if isinstance(item, list) else [item])]
    if any(type(array).__module__.partition(".")[0] == "cupy" for array in flat):
        import cupy

        return cupy
    return np


def reference_ops() -> list[type]:
    """Return classes of all operators of com.microsoft here, for ReferenceEvaluator(new_ops=...).

    They are subclasses of onnx's OpRun, and compute on NumPy arrays.
    """
    has = onnx_package().defs.has
    names = {name for domain, name, _ in REGISTRY if domain == "com.microsoft"}
    names |= {name for name in TABLE if "." not in name and not has(name)}
    return [_reference(name) for name in sorted(names)]


def _reference(name: str) -> type:
    """Return an OpRun class of one operator, which runs its node by `call`."""
    from onnx.reference.op_run import OpRun

    def run(self: Any, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        del attributes  # of the node, which has them
        results = call(self.onnx_node, [each(np.copy, x) for x in inputs])
        return tuple(each(np.asarray, result) for result in results)

    return type(name, (OpRun,), {"op_domain": "com.microsoft", "_run": run})
