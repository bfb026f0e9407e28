# SPDX-License-Identifier: MIT
"""A graph as it is trained and as it is evaluated: batch norm's statistics, dropout."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from ..graph import Graph, Node, subgraphs
from .rules import MICROSOFT


def in_training(graph: Graph, around: Collection[str] = ()) -> Graph:
    """Return the graph as it is trained: batch norms by the batch's statistics, Dropout drops.

    A Dropout whose `training_mode` is computed, or an input of the model, is left as it is. around:
    names of constants of the graph around, if `graph` is a subgraph.
    """
    known = {*graph.constants, *around}
    flag, nodes, constants = "training_mode::true", [], dict(graph.constants)
    for node in graph.nodes:
        parts = {name: in_training(part, known) for name, part in subgraphs(node).items()}
        node = replace(node, attributes={**node.attributes, **parts}) if parts else node
        if node.op_type == "BatchNormalization" and node.is_standard:
            node = _batch_norm(node)
        elif (
            node.op_type == "Dropout"
            and node.is_standard
            and not _mode_is_decided_at_run_time(node, known)
        ):
            constants[flag] = np.array(True)
            ratio = node.inputs[1] if len(node.inputs) > 1 else ""
            node = replace(node, inputs=(node.inputs[0], ratio, flag))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _mode_is_decided_at_run_time(node: Node, constants: Collection[str]) -> bool:
    """Return True of a Dropout whose `training_mode` is computed, or an input of the model."""
    is_dropout = node.op_type == "Dropout" and node.is_standard
    flag = node.inputs[2] if is_dropout and len(node.inputs) > 2 else ""
    return bool(flag) and flag not in constants


def _batch_norm(node: Node) -> Node:
    """Return BatchNormInternal in place of a BatchNormalization node.

    It is ONNX Runtime's form for training: its outputs are also the new running mean and variance,
    and the batch's mean and inv_std, which its gradient reads.
    """
    y, *running = node.outputs
    running = running or [f"{y}::mean", f"{y}::var"]
    names = (*running, f"{y}::saved_mean", f"{y}::saved_inv_std")
    attributes = {k: v for k, v in node.attributes.items() if k in ("epsilon", "momentum")}
    attributes["training_mode"] = 1
    outputs = (y, *names)
    return Node("BatchNormInternal", MICROSOFT, 1, node.inputs, outputs, attributes, node.name)


def in_evaluation(graph: Graph) -> Graph:
    """Return the graph as it is evaluated: with running statistics, unchanged; without dropout.

    A Dropout whose `training_mode` is computed, or an input of the model, is left as it is.
    """
    read = {name for node in graph.nodes for name in node.inputs}
    read.update(item.name for item in graph.outputs)
    nodes = []
    for node in graph.nodes:
        decided_later = _mode_is_decided_at_run_time(node, graph.constants)
        nodes.append(node if decided_later else _evaluated(node))
        if node.op_type == "BatchNormalization" and node.is_standard:  # statistics as they are
            pairs = zip(node.inputs[3:5], node.outputs[1:3], strict=False)
            nodes += [
                Node("Identity", "", node.version, (old,), (new,))
                for old, new in pairs
                if new in read
            ]
    return graph.with_nodes(nodes)


def _evaluated(node: Node) -> Node:
    """Return a BatchNormalization or Dropout node in its form of inference; others as they are."""
    if not node.is_standard:
        return node
    if node.op_type == "BatchNormalization":
        attributes = {k: v for k, v in node.attributes.items() if k != "training_mode"}
        return replace(node, outputs=node.outputs[:1], attributes=attributes)
    if node.op_type == "Dropout":
        return replace(node, inputs=node.inputs[:2])
    return node
