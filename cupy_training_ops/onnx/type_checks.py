# SPDX-License-Identifier: MIT
"""Types through a graph before it runs: which node takes elements that it cannot compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..declare.schema import Input
from ..dtypes import FLOAT32, Dtype, element_type, to_dtype
from ..errors import DtypeError, OpError
from ..frame import checks
from ..frame.op import Op
from .graph import Graph, Node, Problems
from .kinds import Runner
from .ours import declared_places
from .reading import onnx_package

_NAMES = {"float32": "float", "float64": "double"}  # that ONNX calls otherwise
Known = Mapping[str, Dtype]


def check_types(graph: Graph, found: Mapping[int, Runner], problems: Problems) -> None:
    """Types from inputs and constants on; where nothing says one, nothing is refused."""
    known: dict[str, Dtype] = {item.name: item.dtype for item in graph.inputs if item.dtype}
    known |= {name: array.dtype for name, array in graph.constants.items()}
    for i, node in enumerate(graph.nodes):
        made: Sequence[Dtype | None] = ()
        try:
            op = found[i].op if i in found else None
            made = _of_operator(op, node, known) if op is not None else _of_schema(node, known)
        except OpError as error:
            problems.add(node.title, error)
        for k, name in enumerate(node.outputs):
            dtype = made[k] if k < len(made) else None
            dtype = dtype or graph.types.get(name)
            if dtype is not None:
                known[name] = dtype


def _of_operator(op: Op, node: Node, known: Known) -> list[Dtype | None]:
    """The types of the outputs of an operator of this package."""
    bound: checks.Bindings = {}
    places = declared_places(op.inputs, len(node.inputs))
    for name, place in zip(node.inputs, places, strict=True):
        item: Input = op.inputs[place]
        if name in known and item.memory == "device" and item.type:
            checks.bind(op.declaration, item, item.name, known[name], bound)
    for attribute in op.attributes:
        value = getattr(op, attribute.name)
        if attribute.type and isinstance(value, np.dtype):
            bound.setdefault(attribute.type, value)
    checks.row(op.declaration, bound)
    fixed = {item.type: _fixed(item.type) for item in op.outputs if item.type not in op.types}
    return [bound.get(item.type) or fixed.get(item.type) for item in op.outputs]


def _fixed(name: str) -> Dtype | None:
    try:
        return to_dtype(name)
    except DtypeError:
        return None


def _of_schema(node: Node, known: Known) -> list[Dtype | None]:
    """The types of the outputs of a standard operator, by ONNX's own schema."""
    schema = _schema(node)
    if schema is None:
        return []
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    bound: dict[str, Dtype] = {}
    for k, name in enumerate(node.inputs):
        if name not in known or not schema.inputs:
            continue
        item = schema.inputs[min(k, len(schema.inputs) - 1)]
        _bind(node, item, known[name], allowed, bound)
    return [_made(node, schema, k, bound) for k in range(len(node.outputs))]


def _bind(
    node: Node, item: Any, dtype: Dtype, allowed: Mapping[str, set[str]], bound: dict[str, Dtype]
) -> None:
    kinds = allowed.get(item.type_str, {item.type_str})
    if _type_string(dtype) not in kinds and f"seq({_type_string(dtype)})" not in kinds:
        got = element_type(dtype).name
        raise DtypeError(f"{item.name}: {got} is not among what {node.op_type} takes")
    is_one = item.option.name != "Variadic" or item.is_homogeneous
    if item.type_str in allowed and is_one:
        earlier = bound.setdefault(item.type_str, dtype)
        if earlier != dtype:
            names = element_type(earlier).name, element_type(dtype).name
            raise DtypeError(f"{item.name}: expected {names[0]} as the others, got {names[1]}")


def _made(node: Node, schema: Any, k: int, bound: Mapping[str, Dtype]) -> Dtype | None:
    if "to" in node.attributes and node.op_type == "Cast":
        return to_dtype(node.attributes["to"])
    if node.op_type == "ConstantOfShape":
        return getattr(node.attributes.get("value"), "dtype", FLOAT32)
    if not schema.outputs:
        return None
    kind = schema.outputs[min(k, len(schema.outputs) - 1)].type_str
    return bound.get(kind) or _of_string(kind)


def _schema(node: Node) -> Any:
    if not node.is_standard:
        return None
    onnx = onnx_package()
    try:
        return onnx.defs.get_schema(node.op_type, node.version, "")
    except Exception:  # of ONNX's, which has no schema of upstream's operators
        return None


def _type_string(dtype: Dtype) -> str:
    name = element_type(dtype).name
    return f"tensor({_NAMES.get(name, name)})"


def _of_string(kind: str) -> Dtype | None:
    names = {f"tensor({_NAMES.get(n, n)})": n for n in ("bool", "int64", "float32", "int32")}
    return to_dtype(names[kind]) if kind in names else None
