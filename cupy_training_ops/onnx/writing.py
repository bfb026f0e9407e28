# SPDX-License-Identifier: MIT
"""Graphs written as ONNX models."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import Dtype, HostArray
from .graph import Graph, Node, Value
from .models import onnx_package

IR_VERSION = 9  # that onnxruntime-training 1.19.2 reads
OTHER_OPSET = 1  # of domains beside ONNX's own


def model_of(graph: Graph, name: str) -> Any:
    """The ModelProto of a graph."""
    onnx = onnx_package()
    helper = onnx.helper
    versions = {node.domain: OTHER_OPSET for node in graph.nodes if not node.is_standard}
    versions[""] = max((node.version for node in graph.nodes if node.is_standard), default=17)
    proto = helper.make_graph(
        [_node(helper, node) for node in graph.nodes],
        name,
        [_value(helper, item) for item in graph.inputs],
        [_value(helper, item) for item in graph.outputs],
        [_tensor(helper, key, array) for key, array in graph.constants.items()],
        value_info=_known_values(helper, graph),
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return helper.make_model(
        proto, opset_imports=opsets, ir_version=IR_VERSION, producer_name="cupy-training-ops"
    )


def _node(helper: Any, node: Node) -> Any:
    proto = helper.make_node(
        node.op_type, node.inputs, node.outputs, name=node.name, domain=node.domain
    )
    for key, value in sorted(node.attributes.items()):
        is_empty = isinstance(value, tuple) and not value  # and does not show of what it is
        kind = onnx_package().AttributeProto.INTS if is_empty else None
        made = _tensor(helper, "", value) if isinstance(value, np.ndarray) else value
        proto.attribute.append(helper.make_attribute(key, made, attr_type=kind))
    return proto


def _value(helper: Any, item: Value) -> Any:
    number = _number(helper, item.dtype)
    if item.is_sequence:
        return helper.make_tensor_sequence_value_info(item.name, number, None)
    return helper.make_tensor_value_info(item.name, number, item.shape)


def _known_values(helper: Any, graph: Graph) -> list[Any]:
    """Types and shapes of values inside the graph."""
    ends = {item.name for item in (*graph.inputs, *graph.outputs)} | graph.constants.keys()
    made = {name for node in graph.nodes for name in node.outputs if name} - ends
    return [
        helper.make_tensor_value_info(name, _number(helper, dtype), graph.shapes.get(name))
        for name, dtype in graph.types.items()
        if name in made
    ]


def _number(helper: Any, dtype: Dtype | None) -> int:
    return 0 if dtype is None else helper.np_dtype_to_tensor_dtype(dtype)


def _tensor(helper: Any, name: str, array: HostArray) -> Any:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor(name, kind, array.shape, array.tobytes(), raw=True)
