# SPDX-License-Identifier: MIT
"""Parts of models: the nodes that compute some values, and a model written for inference.

A model of evaluation has a loss behind the scores, labels among its inputs, and parameters as
inputs. For inference, loss and labels are removed, and parameters become initializers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..codecs.atomic_file import atomic_write
from ..dtypes import HostArray
from ..errors import ArgumentError, cut, raise_if_from_handler
from .graph import Graph, Node, places_of
from .models import Proto, keep_if, onnx_package, tensor_of
from .passes import STATE

_OF_LOSS = re.compile(r"onnx::.*::\d+")  # what generate_artifacts calls what it adds


def model_outputs(graph: Graph, known: Iterable[str] | None = None) -> tuple[str, ...]:
    """Return the names of a model's outputs without its loss.

    If there are none, those of the values that the loss is computed of. known: names of inputs that
    are fed; outputs that need others are left out.
    """
    if known is not None:
        computed = _computable(graph, set(known))
        names = [item.name for item in graph.outputs if item.name in computed]
    else:
        names = [item.name for item in graph.outputs if not _OF_LOSS.fullmatch(item.name)]
    return tuple(names) or _under_loss(graph)


def _computable(graph: Graph, known: set[str]) -> set[str]:
    """Return the names of all values that follow from `known` and constants."""
    known |= {"", *graph.constants}
    for node in graph.nodes:
        if known.issuperset(node.inputs):
            known.update(node.outputs)
    return known


def _under_loss(graph: Graph) -> tuple[str, ...]:
    """Return the names of computed values that the loss's nodes read: the model's scores."""
    loss = [node for node in graph.nodes if all(map(_OF_LOSS.fullmatch, node.outputs))]
    inside = {name for node in loss for name in node.outputs}
    outside = {name for node in graph.nodes for name in node.outputs} - inside
    scores = dict.fromkeys(name for node in loss for name in node.inputs if name in outside)
    if not scores:
        raise ArgumentError("the eval model does not show what its loss is computed of: name it")
    return tuple(scores)


def part_of(graph: Graph, names: Sequence[str]) -> Graph:
    """Return the part of a graph that computes the values `names`, which are its outputs."""
    nodes = makers_of(graph.nodes, names, {item.name for item in graph.inputs}, graph.constants)
    wanted = {name for node in nodes for name in node.inputs} | {*names}
    inputs = tuple(item for item in graph.inputs if item.name in wanted)
    constants = {n: a for n, a in graph.constants.items() if n in wanted}
    values = {item.name: item for item in graph.outputs}
    template = graph.outputs[0]
    outputs = tuple(
        values.get(n, template._replace(name=n, dtype=graph.types.get(n), shape=None))
        for n in names
    )
    return replace(graph, nodes=nodes, inputs=inputs, outputs=outputs, constants=constants)


def makers_of(
    nodes: Sequence[Node], names: Iterable[str], *sources: Iterable[str]
) -> tuple[Node, ...]:
    """Return the nodes that these values are computed by, in their order; refuse unknown names.

    sources: names of inputs, and of constants, which no node computes.
    """
    makers = tuple(nodes[i] for i in places_of(nodes, names))
    missing = sorted(set(names).difference(*sources, *(node.outputs for node in makers)))
    if missing:
        raise ArgumentError(f"export: outputs: nothing makes {cut(', '.join(missing))}")
    return makers


def write_part(
    graph: Graph,
    model: Any,
    arrays: Mapping[str, HostArray],
    outputs: Sequence[str] | None,
    path: Path,
    sync: bool,
) -> None:
    """Write a model whose outputs are `outputs` (None: the model's own without its loss).

    model: the ModelProto of `graph`. arrays: by name, of inputs and initializers, which become
    initializers. sync: wait until the file is on the disk.
    """
    names = tuple(outputs) if outputs is not None else model_outputs(graph)
    nodes = [Node(n.op_type, n.domain, 1, _reads(n), (*n.output,)) for n in model.graph.node]
    sources = [item.name for item in (*model.graph.input, *model.graph.initializer)]
    makers = makers_of(nodes, names, sources)
    inside = {name for node in makers for name in node.outputs if name}
    try:
        data = _part(model, names, inside, arrays).SerializeToString()
    except Exception as error:  # of ONNX's C++ code, or of protobuf
        raise_if_from_handler(error)
        raise ArgumentError(f"export: a model of at most 2 GiB is written: {error}") from None
    with atomic_write(path, sync) as stream:
        stream.write(data)


def _part(
    model: Any, names: Sequence[str], inside: set[str], arrays: Mapping[str, HostArray]
) -> Proto:
    """Return a copy of the model with the nodes that make the values `inside`, and outputs `names`.

    arrays: by name, which become initializers.
    """
    onnx = onnx_package()
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    keep_if(copy.graph.node, lambda node: inside.intersection(node.output))
    _cut_statistics(copy.graph.node)
    wanted = {name for node in copy.graph.node for name in _reads(node)} | {*names}
    declared = model.graph.input, model.graph.value_info, model.graph.output
    known = {item.name: item for items in declared for item in items}
    del copy.graph.output[:]
    unknown = onnx.helper.make_empty_tensor_value_info  # whose type is inferred
    copy.graph.output.extend(known.get(n) or unknown(n) for n in names)
    keep_if(copy.graph.input, lambda item: item.name in wanted and item.name not in arrays)
    keep_if(copy.graph.value_info, lambda item: item.name in inside - set(names))
    keep_if(copy.graph.initializer, lambda item: item.name in wanted and item.name not in arrays)
    for name, array in arrays.items():
        if name in wanted and not name.endswith(STATE):
            copy.graph.initializer.append(tensor_of(name, array))
    return onnx.shape_inference.infer_shapes(copy, data_prop=True)


def _reads(node: Any) -> tuple[str, ...]:
    """Return the names that a NodeProto and its subgraphs read, also those made in a subgraph."""
    parts = [item.g for item in node.attribute if item.HasField("g")]
    inner = [name for part in parts for each in part.node for name in _reads(each)]
    return (*node.input, *inner, *(item.name for part in parts for item in part.output))


def _cut_statistics(nodes: Iterable[Any]) -> None:
    """Remove the outputs but the first of BatchNormalizations that are not in training mode.

    ONNX Runtime's eval models name running statistics there, which runtimes refuse.
    """
    for node in nodes:
        is_training = any(item.name == "training_mode" and item.i for item in node.attribute)
        if node.op_type == "BatchNormalization" and not is_training:
            del node.output[1:]
