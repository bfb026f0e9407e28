# SPDX-License-Identifier: MIT
"""Single nodes, run here and by ONNX's own reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

import cupy_training_ops as cto


def node_of(op: str, inputs: tuple[Any, ...], n_outputs: int, **attributes: Any) -> Any:
    """A node whose inputs are x0, x1 and so on; those that are None are left out."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    outputs = [f"y{i}" for i in range(n_outputs)]
    return helper.make_node(op, names, outputs, **attributes)


def results(op: str, *inputs: Any, version: int = 24, n: int = 1, **attributes: Any) -> Any:
    """The n outputs of a node."""
    return cto.onnx.call(node_of(op, inputs, n, **attributes), inputs, version=version)


def result(op: str, *inputs: Any, version: int = 24, **attributes: Any) -> np.ndarray:
    """The only output of a node."""
    (actual,) = results(op, *inputs, version=version, **attributes)
    return actual


def expected(op: str, *inputs: Any, version: int = 24, n: int = 1, **attributes: Any) -> list[Any]:
    """The n outputs of a node by ONNX's reference."""
    node = node_of(op, inputs, n, **attributes)
    feeds = {f"x{i}": x for i, x in enumerate(inputs) if x is not None}
    kinds = {name: helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in feeds.items()}
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, kinds[name], x.shape) for name, x in feeds.items()],
        [onnx.ValueInfoProto(name=name) for name in node.output],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
    return ReferenceEvaluator(model).run(None, feeds)
