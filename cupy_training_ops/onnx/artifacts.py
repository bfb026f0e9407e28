# SPDX-License-Identifier: MIT
"""Training artifacts of an inference model: with its loss, gradients and optimizer.

    scores = model(x)           the model
    loss = f(scores, labels)    what is added, and its gradients by the parameters

What is made are ONNX models as `generate_artifacts` of ONNX Runtime writes them, so that one
session trains both.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import FLOAT32, Dtype
from ..errors import cut, refuse, shown
from .checkpoint import Checkpoint
from .checks import BUFFER
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
FLAG = "onnx::update_completed::0"  # the optimizer's output
ADAM_W = {
    "adam_mode": 0,
    "alpha": 0.9,
    "beta": 0.999,
    "correct_bias": 1,
    "epsilon": 1e-8,
    "weight_decay": 0.01,
}
MOMENTS = ("first_order_moments", "second_order_moments")


class Artifacts(NamedTuple):
    """What a training session needs: three models and a checkpoint."""

    training: Proto
    evaluation: Proto
    optimizer: Proto
    checkpoint: Checkpoint


def make(
    model: Source,
    *,
    loss: Any,
    trainable: Collection[str] | None = None,
    frozen: Collection[str] | None = None,
    optimizer: str = "AdamW",
) -> Artifacts:
    """The artifacts of an inference model.

    loss: as of `with_loss`. trainable: names of initializers, by default all real ones of one
    dimension or more but those of `frozen`.
    """
    graph, initializers = read_inferred(model, OPSET)
    graph = with_loss(graph, loss)
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
        model_of(_optimizer(optimizer, dtype), "optimizer"),
        checkpoint,
    )


def _parameters(
    graph: Graph, initializers: Collection[str], named: Collection[str] | None
) -> list[str]:
    """The initializers that can be trained: real ones, single numbers if they are named, but no
    running statistics."""
    updated = {
        name
        for node in graph.nodes
        if node.op_type == "BatchNormalization"
        for name in node.inputs[3:5]
    }
    return [
        name
        for name, array in graph.constants.items()
        if name in initializers
        and (array.ndim or name in (named or ()))
        and array.size
        and array.dtype.kind not in "biu"
        and name not in updated
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


def _optimizer(name: str, dtype: Dtype) -> Graph:
    """The graph of an optimizer's step over lists."""
    kinds = {"AdamW": ("AdamWOptimizer", ADAM_W), "SGD": ("SGDOptimizerV2", {})}
    if name not in kinds:
        refuse("make_artifacts", "optimizer", " or ".join(map(repr, kinds)), shown(name))
    op_type, attributes = kinds[name]
    moments = MOMENTS if name == "AdamW" else ()
    step = ("step",) if name == "AdamW" else ()
    lists = ("params", "gradients", *moments)
    inputs = [Value("learning_rate", FLOAT32, (1,)), Value("step", INT64, (1,))]
    inputs += [Value(each, dtype, None, is_sequence=True) for each in lists]
    node = Node(
        op_type, MICROSOFT, 1, ("learning_rate", *step, *lists), (FLAG,), attributes, op_type
    )
    return Graph((node,), tuple(inputs), (Value(FLAG, BOOL, (1,)),), {})
