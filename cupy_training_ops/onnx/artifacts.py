# SPDX-License-Identifier: MIT
"""Training artifacts of an inference model: with its loss, gradients and optimizer.

    scores = model(x)           the model
    loss = f(scores, labels)    what is added, and its gradients by the parameters

What is made are ONNX models as `generate_artifacts` of ONNX Runtime writes them, so that one
session trains both.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ..codecs.atomic_file import write_together
from ..codecs.numpy_file import StrPath
from ..declare.schema import finite
from ..dtypes import FLOAT32, FLOATS, Dtype, dtype_name
from ..errors import ArgumentError, cut, raise_if_from_handler, refuse, shown
from ..registry import get_op
from .checkpoint import FILES, Checkpoint, checkpoint_files
from .checks import BUFFER
from .folding import fold
from .formulas import fuse_formulas
from .gradients import add_gradients, in_evaluation, in_training, with_gradients
from .gradients.builder import with_rules
from .gradients.rules import INT64, MICROSOFT
from .gradients.writer import names_of
from .graph import Graph, Node, Problems, Value
from .losses import with_loss
from .models import Proto, Source, read_inferred
from .writing import model_of

OPSET = 17  # what older models are converted to
RESET = "lazy_reset_grad"  # the input that lets gradients begin anew
OUT = "_grad.accumulation.out"  # ends the names of accumulators' outputs
BOOL = np.dtype(bool)
FIXED = {  # indices of inputs that are not trained, by operator
    "BatchNormalization": slice(3, 5),
    "NegativeLogLikelihoodLoss": slice(2, 3),
    "Resize": slice(1, 3),
    "SoftmaxCrossEntropyLoss": slice(2, 3),
}
NO_INPUTS = slice(0)
FLAG = "onnx::update_completed::0"  # the optimizer's output
CLIPPED = "onnx::clip_grad_norm_output::0"
MOMENTS = ("first_order_moments", "second_order_moments")
# By name: the operator, its attributes and their defaults, its inputs.
OPTIMIZERS: dict[str, tuple[str, dict[str, float], tuple[str, ...]]] = {
    "AdamW": (
        "AdamWOptimizer",
        {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-8, "weight_decay": 0.01},
        ("learning_rate", "step", "params", "gradients", *MOMENTS),
    ),
    "SGD": ("SGDOptimizerV2", {}, ("learning_rate", "params", "gradients")),
}


class Artifacts(NamedTuple):
    """Three ModelProtos and a Checkpoint, from which a training session is opened."""

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
    tied: Collection[str] | None = None,
    optimizer: Literal["AdamW", "SGD"] = "AdamW",
    clip_norm: float | None = None,
    prefix: str = "",
    **numbers: float,
) -> None:
    """Write what trains an inference model, as `generate_artifacts` of ONNX Runtime does.

    folder: is made; gets training_model.onnx, eval_model.onnx, optimizer_model.onnx and checkpoint,
    with `prefix` before each name. Files that are there are replaced. trainable, frozen: names of
    initializers that are trained, or not. tied: of those that are one parameter under several
    names. clip_norm: the largest norm of all gradients together. numbers: the optimizer's, such as
    alpha. `TrainingSession.from_model` says more of these. onnxruntime-training 1.19.2 trains the
    files as well where it has the operators; it reads models up to opset 21, and Adam's step there
    is of float32 alone.
    """
    if not isinstance(folder, str | os.PathLike):
        refuse("make_artifacts", "folder", "the path of a folder", shown(folder))
    if not isinstance(prefix, str) or Path(prefix + FILES[0]).name != prefix + FILES[0]:
        refuse("make_artifacts", "prefix", "the beginning of a file's name", shown(prefix))
    made = make(
        model,
        loss=loss,
        trainable=trainable,
        frozen=frozen,
        tied=tied,
        optimizer=optimizer,
        clip_norm=clip_norm,
        fuses=False,
        **numbers,
    )
    paths = [Path(folder) / f"{prefix}{name}" for name in FILES]
    files: dict[Path, Iterable[Any]] = {
        path: [_serialized(proto, path)] for path, proto in zip(paths, made[:3], strict=False)
    }
    files |= checkpoint_files(made.checkpoint, paths[-1])
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_together(files)


def _serialized(proto: Proto, path: Path) -> bytes:
    """Return a model's bytes; protobuf refuses more than 2 GiB, which names `path`."""
    try:
        data: bytes = proto.SerializeToString()
    except Exception as error:  # of protobuf, whose classes are no part of its interface
        raise_if_from_handler(error)
        words = "2 GiB of constants at most, which are no parameters"
        refuse("artifacts", "model", words, f"more in {path.name} ({error})")
    return data


def make(
    model: Source,
    *,
    loss: Any,
    trainable: Collection[str] | None = None,
    frozen: Collection[str] | None = None,
    tied: Collection[str] | None = None,
    optimizer: Literal["AdamW", "SGD"] = "AdamW",
    clip_norm: float | None = None,
    fuses: bool = False,
    **numbers: float,
) -> Artifacts:
    """Return the artifacts of an inference model; see also `TrainingSession.from_model`.

    loss: a loss's name, an output's, or a FunctionProto. trainable, frozen: names of initializers
    that are trained, or not. tied: of those that are one parameter under several names. clip_norm:
    the largest norm of all gradients together. numbers: the optimizer's attributes by name. fuses:
    replace formulas of many nodes (GELU, attention) by operators of this package, which ONNX
    Runtime does not have.
    """
    graph, initializers = _untied(*read_inferred(model, OPSET), _names("tied", tied))
    problems = Problems("the model")
    graph = with_gradients(graph, problems)
    problems.refuse()
    _refuse_names(graph)
    real = {name for name in initializers if graph.constants[name].dtype in FLOATS}
    graph = with_loss(fold(graph, real), loss)
    wanted, unwanted = _names("trainable", trainable), _names("frozen", frozen)
    # parameters: inputs of the made models that are no data; names: those that are trained.
    parameters = _parameters(graph, initializers, wanted)
    names = _trained(parameters, wanted, unwanted)
    value = graph.outputs[0].name
    parameters += _statistics(graph, initializers)
    fused = fuse_formulas(graph, parameters) if fuses else graph
    training = in_training(with_rules(fused))
    training, gradients = add_gradients(training, value, names, parameters)
    _refuse_unmoved(names if wanted else [], gradients)
    names = [name for name in names if name in gradients]
    dtype = _dtype_of(names, graph)
    made = _optimizer(optimizer, dtype, clip_norm, numbers)
    training = _with_parameters(_with_sums(training, names, gradients), parameters)
    evaluation = _with_parameters(in_evaluation(graph), parameters)
    checkpoint = Checkpoint(
        {name: graph.constants[name] for name in names},
        {name: graph.constants[name] for name in parameters if name not in names},
    )
    return Artifacts(
        model_of(training, "training"),
        model_of(evaluation, "evaluation"),
        model_of(made, "optimizer"),
        checkpoint,
    )


def _names(argument: str, names: object) -> tuple[str, ...] | None:
    """Return an argument's names as a tuple, None if it is None; refuse other values."""
    if names is None:
        return None
    if isinstance(names, Iterable) and not isinstance(names, str | bytes):
        result = tuple(names)
        if all(isinstance(name, str) for name in result):
            return result
    refuse("artifacts", argument, "a list of names of parameters", shown(names))


def _refuse_names(graph: Graph) -> None:
    """Refuse a model with values of the names that training adds to it."""
    for name in sorted(names_of(graph)):
        if name == RESET or name.endswith((BUFFER, OUT)):
            expected = f"no value called {RESET!r}, and none that ends in {BUFFER!r} or {OUT!r}"
            refuse("artifacts", "model", f"{expected}, which training adds", cut(repr(name)))


def _statistics(graph: Graph, initializers: Collection[str]) -> list[str]:
    """Return the names of initializers that are running means and variances of batch norms.

    Steps update them in place, so that it is refused if another input reads one.
    """
    norms = (node for node in graph.nodes if node.op_type == "BatchNormalization")
    names = dict.fromkeys(name for node in norms for name in node.inputs[FIXED[node.op_type]])
    for node in graph.nodes:
        statistics = FIXED[node.op_type] if node.op_type == "BatchNormalization" else NO_INPUTS
        others = {name for i, name in enumerate(node.inputs) if i not in range(5)[statistics]}
        for name in others & names.keys():
            expected = "running statistics that batch norms alone read"
            refuse("artifacts", "model", expected, f"{cut(name)!r}, which {node.title} reads")
    return [name for name in names if name in initializers]


def _untied(
    graph: Graph, initializers: Collection[str], tied: Collection[str] | None
) -> tuple[Graph, set[str]]:
    """Return the graph with a copy of a shared initializer for each parameter, and all their names.

    Exporters write equal initializers once, and Identity nodes for the others: so it is with new
    biases (all 0) and scales (all 1). A model does not say which of them are one parameter. tied:
    names of those that are; by default those whose elements are not all equal.
    """
    readers = Counter(name for node in graph.nodes for name in node.inputs)
    shared = {
        node.inputs[0]
        for node in graph.nodes
        if node.op_type == "Identity" and node.inputs[0] in initializers
    }
    shared = {name for name in shared if readers[name] > 1 and graph.constants[name].size}
    if tied is None:
        separate = {n for n in shared if (graph.constants[n] == graph.constants[n].flat[0]).all()}
    elif unknown := sorted(set(tied) - shared):
        expected = f"names among those that Identity gives other names: {', '.join(sorted(shared))}"
        refuse("artifacts", "tied", expected, cut(str(unknown)))
    else:
        separate = shared.difference(tied)
    nodes, constants = [], dict(graph.constants)
    for node in graph.nodes:
        if node.op_type == "Identity" and node.inputs[0] in separate:
            constants[node.outputs[0]] = constants[node.inputs[0]].copy()
        else:
            nodes.append(node)
    names = {*initializers, *(constants.keys() - graph.constants.keys())}
    return replace(graph, nodes=tuple(nodes), constants=constants), names


def _parameters(
    graph: Graph, initializers: Collection[str], named: Collection[str] | None
) -> list[str]:
    """Return the names of initializers that can be trained: floating, of one dimension or more.

    Scalars can be if they are in `named`. Left out are inputs of FIXED: running statistics, weights
    of classes, Resize's scales.
    """
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
    """Return the parameters that are trainable (all if None) and not frozen; refuse other names."""
    for which, names in (("trainable", trainable), ("frozen", frozen)):
        unknown = sorted(set(names or ()) - set(parameters))
        if unknown:
            expected = f"names of the model's parameters: {', '.join(parameters)}"
            refuse("artifacts", which, expected, cut(str(unknown)))
    wanted = parameters if trainable is None else trainable
    return [name for name in parameters if name in wanted and name not in (frozen or ())]


def _refuse_unmoved(named: Collection[str], gradients: Mapping[str, str]) -> None:
    """Refuse parameters that the user named and that have no gradient: the loss does not move."""
    unmoved = [name for name in named if name not in gradients]
    if unmoved:
        expected = "parameters that the loss depends on"
        refuse("artifacts", "trainable", expected, cut(str(unmoved)))


def _dtype_of(names: Sequence[str], graph: Graph) -> Dtype:
    """Return the type of all trained parameters; refuse several, which an optimizer cannot take."""
    dtypes = {graph.constants[name].dtype: name for name in names}
    if len(dtypes) != 1:
        got = [f"{dtype_name(dtype)} ({name!r})" for dtype, name in dtypes.items()]
        expected = "parameters of one type that the loss depends on"
        refuse("artifacts", "trainable", expected, cut(", ".join(got) or "none"))
    return next(iter(dtypes))


def _with_parameters(graph: Graph, names: Sequence[str]) -> Graph:
    """Return the graph with the constants `names` as inputs, behind the user's own inputs."""
    read = {name for node in graph.nodes for name in node.inputs}
    read |= {item.name for item in graph.outputs}
    own = [name for name in names if name in read]
    values = tuple(Value(n, graph.constants[n].dtype, graph.constants[n].shape) for n in own)
    constants = {n: a for n, a in graph.constants.items() if n not in names and n in read}
    n_user = sum(not item.name.endswith(BUFFER) and item.name != RESET for item in graph.inputs)
    inputs = (*graph.inputs[:n_user], *values, *graph.inputs[n_user:])
    return replace(graph, inputs=inputs, constants=constants)


def _with_sums(graph: Graph, names: Sequence[str], gradients: dict[str, str]) -> Graph:
    """Return the graph with an accumulator for each parameter of `names`.

    InPlaceAccumulatorV2(buffer, gradient, lazy_reset_grad) has two inputs of the model, of which
    the last is one for all, and gives a bool, an output. gradients: their names by parameter.
    """
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
    """Return the graph of an optimizer's step over sequences of parameters, gradients and moments.

    dtype: of parameters; moments of 16-bit ones are float32. numbers: its attributes by name.
    """
    if not isinstance(name, str) or name not in OPTIMIZERS:
        refuse("artifacts", "optimizer", " or ".join(map(repr, OPTIMIZERS)), shown(name))
    op_type, known, names = OPTIMIZERS[name]
    unknown = sorted(numbers.keys() - known.keys())
    if unknown:
        expected = f"numbers among {', '.join(known)}" if known else f"no numbers of {name}"
        refuse("artifacts", unknown[0], expected, shown(numbers[unknown[0]]))
    attributes = _checked(op_type, {**known, **numbers})
    inputs = [Value("learning_rate", FLOAT32, (1,)), Value("step", INT64, (1,))]
    inputs += [Value(each, dtype, None, is_sequence=True) for each in ("params", "gradients")]
    wide = FLOAT32 if dtype.itemsize == 2 else dtype
    moments = MOMENTS if name == "AdamW" else MOMENTS[:1]  # ONNX Runtime wants it of SGD
    inputs += [Value(each, wide, None, is_sequence=True) for each in moments]
    nodes: list[Node] = []
    if clip_norm is not None:
        limit = _checked("InplaceClipGradNorm", {"max_norm": clip_norm}, "clip_norm")
        ends = ("gradients",), (CLIPPED,)
        nodes.append(Node("InplaceClipGradNorm", MICROSOFT, 1, *ends, limit, CLIPPED))
        names = tuple(CLIPPED if each == "gradients" else each for each in names)
    nodes.append(Node(op_type, MICROSOFT, 1, names, (FLAG,), attributes, op_type))
    return Graph(tuple(nodes), tuple(inputs), (Value(FLAG, BOOL, (1,)),), {})


def _checked(op_type: str, numbers: Mapping[str, Any], argument: str = "") -> dict[str, float]:
    """Return attributes by name, rounded to float32, as a file has them.

    Values that the operator `op_type` refuses are refused. argument: the name in messages, by
    default the attribute's.
    """
    checked = {}
    for name, value in numbers.items():
        try:
            with np.errstate(over="ignore"):
                checked[name] = float(np.float32(finite(value)))
            get_op(op_type)(**{name: checked[name]})
        except ArgumentError as error:
            words = str(error).removeprefix(f"{op_type}: {name}: ")
            raise ArgumentError(f"artifacts: {argument or name}: {words}") from None
    return checked
