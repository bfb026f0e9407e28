# SPDX-License-Identifier: MIT
"""Follows types through a graph before it runs, so that a node with wrong ones is refused."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..call import checks
from ..call.op import Op
from ..declare.schema import Input
from ..dtypes import FLOAT32, Dtype, element_type, to_dtype
from ..errors import ArgumentError, DtypeError, OpError, cut
from .graph import Graph, Node, Problems
from .reading import onnx_package
from .runner import Runner, declared_places
from .standard.elementwise import refuse_zeros

_NAMES = {"float32": "float", "float64": "double"}  # that ONNX calls otherwise
_OURS = {f"tensor({other})": name for name, other in _NAMES.items()}
Known = Mapping[str, Dtype]


def check_types(graph: Graph, runners: Mapping[int, Runner], problems: Problems) -> None:
    """Follow types from inputs and constants on; values of unknown type are not refused."""
    known: dict[str, Dtype] = {item.name: item.dtype for item in graph.inputs if item.dtype}
    known |= {name: array.dtype for name, array in graph.constants.items()}
    for i, node in enumerate(graph.nodes):
        dtypes: Sequence[Dtype | None] = ()
        try:
            _check_outputs(node)
            op = runners[i].op if i in runners else None
            dtypes = _by_declaration(op, node, known) if op is not None else _by_schema(node, known)
        except OpError as error:
            problems.add(node.title, error)
        for k, name in enumerate(node.outputs):
            dtype = dtypes[k] if k < len(dtypes) else None
            dtype = dtype or graph.types.get(name)
            if dtype is not None and name:
                known[name] = dtype
    for item in graph.outputs:
        dtype = known.get(item.name)
        if item.dtype and dtype and item.dtype != dtype:
            names = element_type(item.dtype).name, element_type(dtype).name
            problems.add(f"output {cut(item.name)!r}", f"expected {names[0]}, got {names[1]}")


def check_divisors(graph: Graph, problems: Problems) -> None:
    """Refuse a constant 0 that integers are divided by."""
    for node in graph.nodes:
        if node.op_type in ("Div", "Mod") and node.is_standard and len(node.inputs) == 2:
            divisor = graph.constants.get(node.inputs[1])
            try:
                refuse_zeros(divisor)
            except ArgumentError as error:
                problems.add(node.title, error)


def _check_outputs(node: Node) -> None:
    schema = _schema(node.op_type, node.version) if node.is_standard else None
    if schema is not None and len(node.outputs) > schema.most_outputs:
        raise ArgumentError(f"expected at most {schema.most_outputs} outputs")


def _by_declaration(op: Op, node: Node, known: Known) -> list[Dtype | None]:
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
    fixed = {item.type: _type(item.type) for item in op.outputs if item.type not in op.types}
    return [bound.get(item.type) or fixed.get(item.type) for item in op.outputs]


def _type(name: str) -> Dtype | None:
    try:
        return to_dtype(name)
    except DtypeError:
        return None


class _Schema(NamedTuple):
    """ONNX's schema of an operator: of inputs names, types, and if all share one type."""

    inputs: tuple[tuple[str, str, bool], ...]
    outputs: tuple[str, ...]
    most_outputs: int
    allowed: Mapping[str, frozenset[str]]  # by type variable

    def input(self, k: int) -> tuple[str, str, bool]:
        """The k-th input; the last one is whatever is behind it."""
        return self.inputs[min(k, len(self.inputs) - 1)]


def _by_schema(node: Node, known: Known) -> list[Dtype | None]:
    """The types of the outputs of a standard operator, by ONNX's own schema."""
    schema = _schema(node.op_type, node.version) if node.is_standard else None
    if schema is None:
        return []
    bound: dict[str, Dtype | None] = {}
    for k, name in enumerate(node.inputs if schema.inputs else ()):
        if name in known:
            _bind(node, schema, k, known[name], bound)
    only = {name: _dtype_of(*kinds) for name, kinds in schema.allowed.items() if len(kinds) == 1}
    return [_output_type(node, schema, k, {**only, **bound}) for k in range(len(node.outputs))]


def _bind(
    node: Node, schema: _Schema, k: int, dtype: Dtype, bound: dict[str, Dtype | None]
) -> None:
    name, variable, is_one = schema.input(k)
    kinds = schema.allowed.get(variable, {variable})
    if _type_string(dtype) not in kinds and f"seq({_type_string(dtype)})" not in kinds:
        got = element_type(dtype).name
        raise DtypeError(f"{name}: {got} is not among what {node.op_type} takes")
    if variable in schema.allowed and is_one:
        earlier = bound.setdefault(variable, dtype) or dtype
        if earlier != dtype:
            names = element_type(earlier).name, element_type(dtype).name
            raise DtypeError(f"{name}: expected {names[0]} as the others, got {names[1]}")


def _output_type(
    node: Node, schema: _Schema, k: int, bound: Mapping[str, Dtype | None]
) -> Dtype | None:
    if "to" in node.attributes and node.op_type == "Cast":
        return to_dtype(node.attributes["to"])
    if node.op_type == "ConstantOfShape":
        return getattr(node.attributes.get("value"), "dtype", FLOAT32)
    if not schema.outputs:
        return None
    kind = schema.outputs[min(k, len(schema.outputs) - 1)]
    return bound.get(kind) or _dtype_of(kind)


@functools.cache
def _schema(op_type: str, version: int) -> _Schema | None:
    try:
        known = onnx_package().defs.get_schema(op_type, version, "")
    except Exception:  # of ONNX's, which has no schema of upstream's operators
        return None
    return _Schema(
        tuple(
            (item.name, item.type_str, item.option.name != "Variadic" or item.is_homogeneous)
            for item in known.inputs
        ),
        tuple(item.type_str for item in known.outputs),
        known.max_output,
        {c.type_param_str: frozenset(c.allowed_type_strs) for c in known.type_constraints},
    )


def _type_string(dtype: Dtype) -> str:
    name = element_type(dtype).name
    return f"tensor({_NAMES.get(name, name)})"


def _dtype_of(kind: str) -> Dtype | None:
    return _type(_OURS.get(kind, kind.removeprefix("tensor(").removesuffix(")")))
