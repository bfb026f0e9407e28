# SPDX-License-Identifier: MIT
"""Graphs written as ONNX models. `helper` is the module onnx.helper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..dtypes import Dtype
from ..errors import raise_if_from_handler
from .graph import Graph, Node, Value, parts_around, subgraphs
from .inferred_shapes import infer_shapes
from .models import MOST_ELEMENTS, onnx_package, tensor_of, value_of

IR_VERSION = 9  # that onnxruntime-training 1.19.2 reads
OTHER_OPSET = 1  # of domains beside ONNX's own


def model_of(graph: Graph, name: str) -> Any:
    """Return a ModelProto of a graph; name: of its GraphProto."""
    onnx = onnx_package()
    helper = onnx.helper
    versions = dict.fromkeys(_domains(graph), OTHER_OPSET)
    versions[""] = max((node.version for node in graph.nodes if node.is_standard), default=17)
    proto = helper.make_graph(
        [_node(helper, node) for node in graph.nodes],
        name,
        [_value(helper, item) for item in graph.inputs],
        [_value(helper, item) for item in graph.outputs],
        [tensor_of(key, array) for key, array in graph.constants.items()],
        value_info=_known_values(helper, graph),
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return helper.make_model(
        proto, opset_imports=opsets, ir_version=IR_VERSION, producer_name="cupy-training-ops"
    )


def with_inferred(graph: Graph) -> Graph:
    """Return the graph with the types and shapes that ONNX infers for its values, where it can.

    Large constants are inputs meanwhile, so that they are not serialized.
    """
    large = {n: a for n, a in graph.constants.items() if a.size > MOST_ELEMENTS}
    inputs = (*graph.inputs, *(Value(n, a.dtype, a.shape) for n, a in large.items()))
    small = {n: a for n, a in graph.constants.items() if n not in large}
    proto = model_of(replace(graph, inputs=inputs, constants=small), "inferred")
    try:
        proto = infer_shapes(proto)
    except Exception as error:  # of ONNX's C++ code; rules refuse what they have to know
        raise_if_from_handler(error)
        return graph
    values = [value_of(item) for item in proto.graph.value_info]
    types = {v.name: v.dtype for v in values if v.dtype and v.is_array}
    shapes = {v.name: v.shape for v in values if v.shape is not None}
    return replace(graph, types={**types, **graph.types}, shapes={**shapes, **graph.shapes})


def _domains(graph: Graph) -> set[str]:
    """Return the domains of nodes beside ONNX's own, of those in subgraphs as well."""
    domains = {node.domain for node in graph.nodes if not node.is_standard}
    parts = (part for node in graph.nodes for part in subgraphs(node).values())
    return domains.union(*map(_domains, parts))


def _node(helper: Any, node: Node) -> Any:
    """Return a NodeProto; captured values, our nodes' last inputs, are no inputs of it."""
    n = len(node.inputs) - max((g.n_captured for g in subgraphs(node).values()), default=0)
    ends = node.inputs[:n], node.outputs
    proto = helper.make_node(node.op_type, *ends, name=node.name, domain=node.domain)
    for key, value in sorted({**node.attributes, **parts_around(node)}.items()):
        is_empty = isinstance(value, tuple) and not value  # its elements' type is not known
        kind = onnx_package().AttributeProto.INTS if is_empty else None
        made = _attribute_value(helper, value, key)
        proto.attribute.append(helper.make_attribute(key, made, attr_type=kind))
    return proto


def _attribute_value(helper: Any, value: Any, name: str) -> Any:
    """Return an attribute's value as ONNX writes it: arrays and subgraphs as protobufs."""
    if isinstance(value, np.ndarray):
        return tensor_of("", value)
    return _subgraph(helper, value, name) if isinstance(value, Graph) else value


def _subgraph(helper: Any, graph: Graph, name: str) -> Any:
    """Return the GraphProto of a subgraph; captured values are no inputs of it."""
    own = graph.inputs[: len(graph.inputs) - graph.n_captured]
    return helper.make_graph(
        [_node(helper, node) for node in graph.nodes],
        name,
        [_value(helper, item) for item in own],
        [_value(helper, item) for item in graph.outputs],
        [tensor_of(key, array) for key, array in graph.constants.items()],
        value_info=_known_values(helper, graph),
    )


def _value(helper: Any, item: Value) -> Any:
    """Return the ValueInfoProto of a declaration."""
    kind = helper.make_tensor_type_proto(_number(helper, item.dtype), item.shape)
    kind = helper.make_sequence_type_proto(kind) if item.is_sequence else kind
    kind = helper.make_optional_type_proto(kind) if item.is_optional else kind
    return helper.make_value_info(item.name, kind)


def _known_values(helper: Any, graph: Graph) -> list[Any]:
    """Return ValueInfoProtos of values inside the graph whose type is known."""
    ends = {item.name for item in (*graph.inputs, *graph.outputs)} | graph.constants.keys()
    made = {name for node in graph.nodes for name in node.outputs if name} - ends
    return [
        helper.make_tensor_value_info(name, _number(helper, dtype), graph.shapes.get(name))
        for name, dtype in graph.types.items()
        if name in made
    ]


def _number(helper: Any, dtype: Dtype | None) -> int:
    return 0 if dtype is None else helper.np_dtype_to_tensor_dtype(dtype)
