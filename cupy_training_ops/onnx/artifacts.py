# SPDX-License-Identifier: MIT
"""Training artifacts of an inference model: with its loss, gradients and optimizer.

    scores = model(x)           the model
    loss = f(scores, labels)    what is added, and its gradients by the parameters

What is made are ONNX models as `generate_artifacts` of ONNX Runtime writes them, so that one
session trains both.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..codecs.atomic_file import atomic_write
from ..codecs.numpy_file import StrPath
from ..declare.schema import finite
from ..dtypes import FLOAT32, FLOATS, Dtype
from ..errors import cut, refuse, shown
from .checkpoint import FILES, Checkpoint, checkpoint_bytes
from .checks import BUFFER
from .folding import fold
from .gradients import add_gradients, in_evaluation, in_training
from .gradients.rules import INT64, MICROSOFT
from .graph import Graph, Node, Value
from .losses import with_loss
from .models import Proto, Source, read_inferred
from .writing import model_of

OPSET = 17  # what older models are converted to
RESET = "lazy_reset_grad"
OUT = "_grad.accumulation.out"
BOOL = np.dtype(bool)
FIXED = {  # inputs that are not trained, by operator
    "BatchNormalization": slice(3, 5),
    "NegativeLogLikelihoodLoss": slice(2, 3),
    "Resize": slice(1, 3),
    "SoftmaxCrossEntropyLoss": slice(2, 3),
}
NO_INPUTS = slice(0)
FLAG = "onnx::update_completed::0"  # the optimizer's output
OPTIMIZERS: dict[str, tuple[str, dict[str, float], tuple[str, ...]]] = {
    "AdamW": (
        "AdamWOptimizer",
        {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-8, "weight_decay": 0.01},
        ("first_order_moments", "second_order_moments"),
    ),
    "SGD": ("SGDOptimizerV2", {}, ()),
}


class Artifacts(NamedTuple):
    """What a training session needs: three models and a checkpoint."""

    training: Proto
    evaluation: Proto
    optimizer: Proto
    checkpoint: Checkpoint


def make_artifacts(
    model: Source,
    folder: StrPath,
    *,
    loss: Any,
    trainable: Collection[str] | None = None,
    frozen: Collection[str] | None = None,
    optimizer: str = "AdamW",
    clip_norm: float | None = None,
    prefix: str = "",
    **numbers: float,
) -> None:
    """Write what trains an inference model, as `generate_artifacts` of ONNX Runtime does.

    folder: is made; gets training_model.onnx, eval_model.onnx, optimizer_model.onnx and checkpoint,
    with `prefix` before each name. Files that are there are replaced. Other arguments as of
    `TrainingSession.from_model`. onnxruntime-training 1.19.2 trains the files as well where it has
    the operators; it reads models up to opset 21, and Adam's step there is of float32 alone.
    """
    made = make(
        model,
        loss=loss,
        trainable=trainable,
        frozen=frozen,
        optimizer=optimizer,
        clip_norm=clip_norm,
        **numbers,
    )
    if not isinstance(folder, str | os.PathLike):
        refuse("make_artifacts", "folder", "the path of a folder", shown(folder))
    data = [proto.SerializeToString() for proto in made[:3]]
    data.append(checkpoint_bytes(made.checkpoint))
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, content in zip(FILES, data, strict=True):
        with atomic_write(Path(folder) / f"{prefix}{name}") as stream:
            stream.write(content)


def make(
    model: Source,
    *,
    loss: Any,
    trainable: Collection[str] | None = None,
    frozen: Collection[str] | None = None,
    optimizer: str = "AdamW",
    clip_norm: float | None = None,
    **numbers: float,
) -> Artifacts:
    """The artifacts of an inference model; arguments as of `TrainingSession.from_model`."""
    graph, initializers = _untied(*read_inferred(model, OPSET))
    real = {name for name in initializers if graph.constants[name].dtype.kind not in "biu"}
    graph = with_loss(fold(graph, real), loss)
    parameters = _parameters(graph, initializers, trainable)
    names = _trained(parameters, trainable, frozen)
    value = graph.outputs[0].name
    training, gradients = add_gradients(in_training(graph), value, names, parameters)
    names = [name for name in names if name in gradients]
    if not names:
        refuse("make_artifacts", "trainable", "a parameter that the loss depends on", "none")
    training = _with_parameters(_with_sums(training, names, gradients), parameters)
    evaluation = _with_parameters(in_evaluation(graph), parameters)
    checkpoint = Checkpoint(
        {name: graph.constants[name] for name in names},
        {name: graph.constants[name] for name in parameters if name not in names},
    )
    dtype = graph.constants[names[0]].dtype
    return Artifacts(
        model_of(training, "training"),
        model_of(evaluation, "evaluation"),
        model_of(_optimizer(optimizer, dtype, clip_norm, numbers), "optimizer"),
        checkpoint,
    )


def _untied(graph: Graph, initializers: Collection[str]) -> tuple[Graph, set[str]]:
    """The graph in which initializers of equal elements are not shared, and the names of all.

    Exporters write one initializer for all that are equal, and Identity for the others: so are new
    biases and running means, all 0, and scales, all 1. Weights of a model that shares them differ
    from element to element.
    """
    nodes, constants = [], dict(graph.constants)
    for node in graph.nodes:
        array = graph.constants.get(node.inputs[0]) if node.op_type == "Identity" else None
        is_new = array is not None and array.size and (array == array.flat[0]).all()
        if array is not None and is_new and node.inputs[0] in initializers:
            constants[node.outputs[0]] = array.copy()
        else:
            nodes.append(node)
    names = {*initializers, *(constants.keys() - graph.constants.keys())}
    return replace(graph, nodes=tuple(nodes), constants=constants), names


def _parameters(
    graph: Graph, initializers: Collection[str], named: Collection[str] | None
) -> list[str]:
    """The initializers that can be trained: real ones, single numbers if they are named, but no
    running statistics, weights of classes or scales of pictures."""
    fixed = {
        name for node in graph.nodes for name in node.inputs[FIXED.get(node.op_type, NO_INPUTS)]
    }
    return [
        name
        for name, array in graph.constants.items()
        if name in initializers
        and (array.ndim or name in (named or ()))
        and array.size
        and array.dtype in FLOATS
        and name not in fixed
    ]


def _trained(
    parameters: Sequence[str], trainable: Collection[str] | None, frozen: Collection[str] | None
) -> list[str]:
    for which, names in (("trainable", trainable), ("frozen", frozen)):
        unknown = sorted(set(names or ()) - set(parameters))
        if unknown:
            refuse("make_artifacts", which, "names of parameters of the model", cut(str(unknown)))
    wanted = parameters if trainable is None else trainable
    return [name for name in parameters if name in wanted and name not in (frozen or ())]


def _with_parameters(graph: Graph, names: Sequence[str]) -> Graph:
    """The graph with parameters as inputs in place of constants."""
    read = {name for node in graph.nodes for name in node.inputs}
    own = [name for name in names if name in read]
    values = tuple(Value(n, graph.constants[n].dtype, graph.constants[n].shape) for n in own)
    constants = {n: a for n, a in graph.constants.items() if n not in names and n in read}
    n_user = sum(not item.name.endswith(BUFFER) and item.name != RESET for item in graph.inputs)
    inputs = (*graph.inputs[:n_user], *values, *graph.inputs[n_user:])
    return replace(graph, inputs=inputs, constants=constants)


def _with_sums(graph: Graph, names: Sequence[str], gradients: dict[str, str]) -> Graph:
    """The graph with each gradient added to its buffer."""
    nodes, inputs, outputs = [], [], []
    for name in names:
        dtype, shape = graph.constants[name].dtype, graph.constants[name].shape
        buffer, out = name + BUFFER, name + OUT
        values = (buffer, gradients[name], RESET)
        nodes.append(Node("InPlaceAccumulatorV2", MICROSOFT, 1, values, (out,), name=out))
        inputs.append(Value(buffer, dtype, shape))
        outputs.append(Value(out, BOOL, (1,)))
    inputs.append(Value(RESET, BOOL, (1,)))
    return replace(
        graph,
        nodes=(*graph.nodes, *nodes),
        inputs=(*graph.inputs, *inputs),
        outputs=(*graph.outputs, *outputs),
    )


def _optimizer(
    name: str, dtype: Dtype, clip_norm: float | None, numbers: Mapping[str, float]
) -> Graph:
    """The graph of an optimizer's step over lists."""
    if name not in OPTIMIZERS:
        refuse("make_artifacts", "optimizer", " or ".join(map(repr, OPTIMIZERS)), shown(name))
    op_type, known, moments = OPTIMIZERS[name]
    unknown = sorted(numbers.keys() - known.keys())
    if unknown:
        expected = f"numbers among {', '.join(known)}" if known else f"no numbers of {name}"
        refuse("make_artifacts", unknown[0], expected, shown(numbers[unknown[0]]))
    attributes = {**known, **{key: finite(value) for key, value in numbers.items()}}
    lists = ("params", "gradients", *moments)
    inputs = [Value("learning_rate", FLOAT32, (1,)), Value("step", INT64, (1,))]
    inputs += [Value(each, dtype, None, is_sequence=True) for each in lists]
    nodes, gradients = [], "gradients"
    if clip_norm is not None:
        gradients = "onnx::clip_grad_norm_output::0"
        limit = {"max_norm": finite(clip_norm)}
        nodes.append(
            Node(
                "InplaceClipGradNorm", MICROSOFT, 1, ("gradients",), (gradients,), limit, gradients
            )
        )
    numbers_read = ("learning_rate", *(["step"] if moments else []))
    names = (*numbers_read, "params", gradients, *moments)
    nodes.append(Node(op_type, MICROSOFT, 1, names, (FLAG,), attributes, op_type))
    return Graph(tuple(nodes), tuple(inputs), (Value(FLAG, BOOL, (1,)),), {})
