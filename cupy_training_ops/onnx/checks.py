# SPDX-License-Identifier: MIT
"""Checks: of types before a graph runs; of extents, labels and gradients as it runs.

Labels: an operator makes NaN of those out of range, and looks for them only with check=1. NumPy's
arrays are checked by the operator; those that a GPU reads, before they are copied there.

Gradients: ONNX Runtime's gradient of Where is not summed over the axes along which a parameter was
broadcast, so that its shape is larger; its own kernels add only a part of it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ..call import checks as call_checks
from ..call.op import Op
from ..declare.schema import Input
from ..dtypes import FLOAT32, Dtype, HostArray
from ..errors import ArgumentError, DtypeError, OpError, cut, raise_if_from_handler, refuse
from .graph import EMPTY, Extent, Graph, Node, Problems, Value, may_repeat_to, subgraphs
from .models import dtype_or_none, onnx_package
from .passes import ACCUMULATORS, STATE
from .runner import Run, Runner, declared_places
from .standard.elementwise import refuse_zeros
from .stored import BY_DTYPE, graph_dtype, type_name

LOSSES = ("SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossInternal", "SparseSoftmaxCrossEntropy")
CLASSES_LAST = LOSSES[2:]  # whose classes are the scores' last axis, not axis 1
BY_LABELS = LOSSES[::2]  # whose label to be ignored is an attribute
BUFFER = "_grad.accumulation.buffer"  # ends the names of gradients' buffers
REPEATING = ("Add", "Div", "Mul", "Sub", "Where")  # operators that broadcast their inputs


# ---- extents -------------------------------------------------------------------------------------


class Extents:
    """The extents that a graph declares for its inputs, to check what is fed.

    Left out are labels whose declared shape contradicts their loss: ONNX Runtime declares labels of
    pixels as the scores' shape without its last dimension. Extents of one name have to be equal
    only if names_hold, in training: ONNX Runtime does not compare them, and some models use one
    name for several, but labels of another batch size would be broadcast.
    """

    def __init__(self, graph: Graph) -> None:
        self.names_hold = False  # True in training: extents of one name have to be equal
        loose = set(_contradictions(graph))
        self._declared = {
            item.name: item.shape
            for item in graph.inputs
            if item.shape and not item.is_sequence and item.name not in loose
        }

    def check(self, arrays: Mapping[str, Any], caller: str) -> None:
        """Refuse arrays (by name) of other extents; their ranks have been checked. EMPTY has none.

        caller: begins the message.
        """
        by_name: dict[str, int] = {}  # the first value of each named extent
        for name, array in arrays.items():
            declared = () if array is EMPTY else self._declared.get(name, ())
            for place, expected in enumerate(declared):
                extent = array.shape[place]
                wanted = expected
                if type(expected) is str:
                    wanted = by_name.setdefault(expected, extent) if self.names_hold else None
                if wanted is not None and wanted != extent:
                    origin = "" if wanted == expected else f" ({cut(str(expected))})"
                    words = f"{wanted}{origin} as extent {place}"
                    refuse(caller, cut(name), words, f"shape {array.shape}")


def _contradictions(graph: Graph) -> Iterator[str]:
    """Yield the names of labels whose declared shape does not follow from that of their scores."""
    declared = {item.name: item.shape for item in graph.inputs}
    for node in graph.nodes:
        labels = declared.get(node.inputs[1]) if node.op_type in LOSSES else None
        if labels is not None and labels != _shape_of_labels(graph, node):
            yield node.inputs[1]


def _shape_of_labels(graph: Graph, node: Node) -> tuple[Extent, ...] | None:
    """Return the shape of a loss's labels, the scores' without classes; None if not known.

    It follows from the scores, or from the loss's second output, their log-probabilities.
    """
    for name in (node.inputs[0], *node.outputs[1:2]):
        scores = graph.shapes.get(name)
        if scores is not None:
            return scores[:-1] if node.op_type in CLASSES_LAST else (scores[:1] + scores[2:])
    return None


# ---- labels --------------------------------------------------------------------------------------


class Labels:
    """Checks that labels fed from the host are classes of their loss.

    It notes the least and the largest label as they are fed, since a GPU's array is not looked at.
    """

    def __init__(self, graph: Graph) -> None:
        names = {item.name for item in graph.inputs}
        origins = _origins(graph)
        feeds = {
            node.outputs[0]: origins.get(node.inputs[1], node.inputs[1])
            for node in graph.nodes
            if node.op_type in BY_LABELS
        }
        # By the name of a loss's output, that of the input that feeds its labels.
        self._feeds = {loss: feed for loss, feed in feeds.items() if feed in names}
        self._losses = [node for node in graph.nodes if self._feeds.keys() & node.outputs[:1]]
        self._ranges: dict[str, tuple[int, int] | None] = {}  # (least, largest) by loss's output
        self.classes: dict[str, int] = {}  # how many the last run had, by the loss's output

    def runners(self, graph: Graph, runners: Mapping[int, Runner]) -> dict[int, Runner]:
        """Return the runners by a node's index; those of losses check the labels' range first."""
        losses = {id(node) for node in self._losses}
        return {
            i: self._with_check(graph.nodes[i], runner) if id(graph.nodes[i]) in losses else runner
            for i, runner in runners.items()
        }

    def _with_check(self, node: Node, runner: Runner) -> Runner:
        return replace(runner, make=lambda xp: partial(self._run, node, runner.make(xp)))

    def _run(self, node: Node, run: Run, values: list[Any], **out: Any) -> Any:
        """Check the labels noted for a loss, and run it; values[0] are its scores."""
        n = values[0].shape[-1 if node.op_type in CLASSES_LAST else 1]
        self.classes[node.outputs[0]] = n
        self._check(node, n)
        return run(values, **out)

    def note_range(self, name: str, value: Any) -> None:
        """Note the least and largest element of `value`, fed to input `name`, if it is labels.

        Of an array of a GPU nothing is noted, so that its labels are not checked.
        """
        for node in self._losses:
            if self._feeds[node.outputs[0]] != name:
                continue
            self._ranges[node.outputs[0]] = None
            if not hasattr(value, "__cuda_array_interface__"):
                try:
                    ignored = node.attributes.get("ignore_index")
                    self._ranges[node.outputs[0]] = _range(np.asarray(value), ignored)
                except ValueError as error:  # it is refused where it is fed
                    raise_if_from_handler(error)

    def check(self, classes: Mapping[str, int]) -> None:
        """Refuse the noted labels of a loss that are none of its classes.

        classes: how many a loss has, by the name of its output: {"loss": 10} allows 0 to 9.
        """
        for node in self._losses:
            if node.outputs[0] in classes:
                self._check(node, classes[node.outputs[0]])

    def _check(self, node: Node, classes: int) -> None:
        """Refuse the noted labels of one loss that are not from 0 to classes - 1."""
        labels = self._ranges.get(node.outputs[0])
        if labels is not None and not (labels[0] >= 0 and labels[1] < classes):
            wrong = labels[0] if labels[0] < 0 else labels[1]
            expected = f"labels from 0 to {classes - 1}"
            feed = self._feeds[node.outputs[0]]
            raise ArgumentError(f"{cut(feed)}: expected {expected}, got {wrong}")


def _origins(graph: Graph) -> dict[str, str]:
    """Return {name of a reshaped value: name of the value that it is reshaped from}."""
    origins: dict[str, str] = {}
    for node in graph.nodes:
        if node.op_type in ("Flatten", "Reshape", "Squeeze", "Unsqueeze") and node.is_standard:
            origins[node.outputs[0]] = origins.get(node.inputs[0], node.inputs[0])
    return origins


def _range(labels: HostArray, ignored: int | None) -> tuple[int, int] | None:
    """Return the least and the largest label that is not `ignored`.

    None if there is none, or labels are no integers.
    """
    counted = labels if ignored is None else labels[labels != ignored]
    if labels.dtype.kind not in "iu" or not counted.size:
        return None
    return int(counted.min()), int(counted.max())


# ---- gradients -----------------------------------------------------------------------------------


def refuse_unsummed(graph: Graph, parameters: Mapping[str, Any]) -> None:
    """Refuse a graph by whose shapes a gradient is larger than its parameter.

    It has not been summed over the axes along which the parameter was broadcast, as ONNX Runtime's
    of Where. parameters: arrays by name.
    """
    makers = _makers(graph)
    shapes = {**graph.shapes, **{name: array.shape for name, array in graph.constants.items()}}
    for node in (node for node in graph.nodes if node.op_type in ACCUMULATORS):
        maker = makers.get(node.inputs[1])
        parameter = parameters.get(node.inputs[0].removesuffix(BUFFER))
        if parameter is None or maker is None or maker.op_type not in REPEATING:
            continue
        for shape in filter(None, map(shapes.get, maker.inputs)):
            if not may_repeat_to(shape, parameter.shape):
                extents = ", ".join("?" if n is None else str(n) for n in shape)
                expected = f"expected shape {parameter.shape}, got more than {cut(f'({extents})')}"
                raise ArgumentError(f"TrainingSession: {_title(node, maker)}: {expected}")


def with_gradient_checks(graph: Graph, runners: Mapping[int, Runner]) -> dict[int, Runner]:
    """Return the runners by a node's index, those of accumulators with a check.

    They refuse a gradient of another shape than its buffer's, naming the node that makes it.
    """
    makers = _makers(graph)
    result = dict(runners)
    for i, runner in runners.items():
        node = graph.nodes[i]
        if node.op_type in ACCUMULATORS:
            result[i] = _with_shape_check(runner, _title(node, makers.get(node.inputs[1])))
    return result


def _with_shape_check(runner: Runner, title: str) -> Runner:
    return replace(runner, make=lambda xp: partial(_run_checked, title, runner.make(xp)))


def _run_checked(title: str, run: Run, values: list[Any], **out: Any) -> Any:
    """Run an accumulator if its gradient has the buffer's shape; title: begins the message."""
    buffer, value = values[:2]
    if buffer.shape != value.shape:
        raise ArgumentError(f"{title}: expected shape {buffer.shape}, got {value.shape}")
    return run(values, **out)


def _title(node: Node, maker: Node | None) -> str:
    origin = f", which {maker.title} makes" if maker else ""
    return f"the gradient of parameter {cut(node.inputs[0].removesuffix(BUFFER))!r}{origin}"


def _makers(graph: Graph) -> dict[str, Node]:
    """Return {value's name: the node that makes it}, behind an Identity the one before that."""
    makers: dict[str, Node] = {}
    for node in graph.nodes:
        is_same = node.op_type == "Identity" and node.inputs[0] in makers
        origin = makers[node.inputs[0]] if is_same else node
        makers.update(dict.fromkeys(node.outputs, origin))
    return makers


# ---- types, before it runs -----------------------------------------------------------------------

_NAMES = {"float32": "float", "float64": "double"}  # that ONNX calls otherwise
_OURS = {f"tensor({other})": name for name, other in _NAMES.items()}
Known = Mapping[str, Dtype]  # types of values by name


def check_types(
    graph: Graph,
    runners: Mapping[int, Runner],
    problems: Problems,
    on_host: bool = True,
    around: Known = MappingProxyType({}),
) -> None:
    """Add to `problems` nodes and outputs whose types do not fit; unknown types do.

    Types are followed from inputs and constants on. runners: by a node's index, {} of a subgraph.
    on_host: False if a device computes, which has no arrays of some types. around: the types of a
    subgraph's inputs by name.
    """
    known: dict[str, Dtype] = {item.name: item.dtype for item in graph.inputs if item.dtype}
    known |= around
    known |= {name: array.dtype for name, array in graph.constants.items()}
    for i, node in enumerate(graph.nodes):
        dtypes: Sequence[Dtype | None] = ()
        try:
            _check_outputs(node)
            for part in subgraphs(node).values():
                check_types(part, {}, problems, on_host, part_types(node, part, known))
            dtypes = output_types(node, known, runners[i].op if i in runners else None)
            refuse_types = runners[i].refuse_types if i in runners else None
            if refuse_types is not None:
                refuse_types([known.get(name) for name in node.inputs])
        except OpError as error:
            problems.add(node.title, error)
        for k, name in enumerate(node.outputs):
            dtype = dtypes[k] if k < len(dtypes) else None
            dtype = dtype or graph.types.get(name)
            if dtype is not None and name:
                known[name] = dtype
    for name, dtype in () if on_host else known.items():
        if dtype in BY_DTYPE:
            problems.add(f"value {cut(name)!r}", f"elements of {type_name(dtype)} need NumPy")
    for item in graph.outputs:
        dtype = known.get(item.name)
        if item.dtype and dtype and item.dtype != dtype:
            names = type_name(item.dtype), type_name(dtype)
            problems.add(f"output {cut(item.name)!r}", f"expected {names[0]}, got {names[1]}")


def output_types(node: Node, known: Known, op: Op | None = None) -> Sequence[Dtype | None]:
    """Return the types of a node's outputs, None or left out if unknown; refuse its inputs' types.

    known: types of values by name. op: the operator of this package that runs the node, whose
    declaration decides; without one ONNX's schema, or what a subgraph declares.
    """
    if op is not None:
        return _by_declaration(op, node, known)
    parts = subgraphs(node)
    dtypes = _by_schema(node, known)
    if not parts:
        return dtypes
    first = next(iter(parts.values())).outputs[node.op_type == "Loop" :]  # behind a condition
    return [item.dtype for item in first]


def part_types(node: Node, part: Graph, types: Known) -> dict[str, Dtype]:
    """Return types of a subgraph's inputs by name: declared ones, and those of captured values.

    types: of values of the graph around.
    """
    known = {item.name: item.dtype for item in part.inputs if item.dtype}
    if part.n_captured:
        names = [item.name for item in part.inputs[-part.n_captured :]]
        around = node.inputs[-part.n_captured :]
        pairs = zip(names, around, strict=True)
        known |= {name: types[outer] for name, outer in pairs if outer in types}
    return known


# ---- sequences, before it runs -------------------------------------------------------------------

_ARRAY, _SEQUENCE = "an array", "a sequence"
_EITHER = frozenset({_ARRAY, _SEQUENCE})  # forms of a value: the words that messages have


def check_sequences(
    graph: Graph, problems: Problems, around: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Add to `problems` nodes that read a sequence where they need an array, or the reverse.

    around: the forms (_ARRAY or _SEQUENCE) of values that a subgraph captures, by name.
    """
    forms = {item.name: _form(item) for item in graph.inputs if item.dtype} | dict(around)
    forms |= dict.fromkeys(graph.constants, _ARRAY)
    for node in graph.nodes:
        parts = subgraphs(node)
        for part in parts.values():
            inner = [item.name for item in part.inputs[len(part.inputs) - part.n_captured :]]
            outer = node.inputs[len(node.inputs) - part.n_captured :]
            pairs = zip(inner, outer, strict=True)
            check_sequences(part, problems, {k: forms[n] for k, n in pairs if n in forms})
        schema = _schema(node.op_type, node.version) if node.is_standard else None
        if parts and node.op_type != "SequenceMap":  # the parts' outputs say what they are
            outputs = next(iter(parts.values())).outputs[node.op_type == "Loop" :]
            for name, item in zip(node.outputs, outputs, strict=False):
                forms |= {name: _form(item)} if item.dtype else {}
        elif schema is not None:
            _follow_forms(node, schema, forms, problems)


def _form(item: Value) -> str:
    return _SEQUENCE if item.is_sequence else _ARRAY


def _follow_forms(node: Node, schema: _Schema, forms: dict[str, str], problems: Problems) -> None:
    """Add a node's outputs to `forms`, by its schema; inputs of another form are problems.

    forms: {value's name: _ARRAY or _SEQUENCE}.
    """
    mixed: set[str] = set()  # forms of inputs that may be either: outputs of that kind are the same
    for k, name in enumerate(node.inputs if schema.inputs else ()):
        title, variable, _ = schema.input(k)
        allowed = _allowed_forms(schema, variable)
        form = forms.get(name)
        if form is not None and form not in allowed:
            problems.add(node.title, f"{title}: expected {min(allowed)}, got {form}")
        if form is not None and allowed == _EITHER:
            mixed.add(form)
    for k, name in enumerate(node.outputs if schema.outputs else ()):
        own = _allowed_forms(schema, schema.outputs[min(k, len(schema.outputs) - 1)])
        possible = own if len(own) == 1 else mixed
        if name and len(possible) == 1:
            forms[name] = min(possible)


def _allowed_forms(schema: _Schema, variable: str) -> frozenset[str]:
    """Return the forms that a type variable ("T") or a type ("seq(tensor(float))") allows."""
    kinds = schema.allowed.get(variable, (variable,))
    return frozenset(_SEQUENCE if "seq(" in kind else _ARRAY for kind in kinds)


def check_divisors(graph: Graph, problems: Problems) -> None:
    """Add to `problems` divisions of integers by a constant 0."""
    for node in graph.nodes:
        for part in subgraphs(node).values():
            check_divisors(part, problems)
        if node.op_type in ("Div", "Mod") and node.is_standard and len(node.inputs) == 2:
            divisor = graph.constants.get(node.inputs[1])
            try:
                refuse_zeros(divisor)
            except ArgumentError as error:
                problems.add(node.title, error)


def _check_outputs(node: Node) -> None:
    """Refuse a number of outputs that ONNX's schema does not allow."""
    schema = _schema(node.op_type, node.version) if node.is_standard else None
    if schema is None:
        return
    if len(node.outputs) > schema.most_outputs:
        raise ArgumentError(f"expected at most {schema.most_outputs} outputs")
    if len(node.outputs) < schema.least_outputs:
        raise ArgumentError(f"expected at least {schema.least_outputs} outputs")


def _by_declaration(op: Op, node: Node, known: Known) -> list[Dtype | None]:
    """Return the types of the outputs of an operator of this package, None of unknown ones.

    known: types of values by name. Refuse types of inputs that its declaration does not allow.
    """
    bound: call_checks.Bindings = {}  # type variable: the type that inputs have bound it to
    places = declared_places(op.inputs, len(node.inputs))
    for name, place in zip(node.inputs, places, strict=True):
        item: Input = op.inputs[place]
        if name in known and item.memory == "device" and item.type:
            call_checks.bind(op.declaration, item, item.name, known[name], bound)
    for attribute in op.attributes:
        value = getattr(op, attribute.name)
        if attribute.type and isinstance(value, np.dtype):
            bound.setdefault(attribute.type, value)
    call_checks.row(op.declaration, bound)  # refuses types that stand together in no row
    fixed = {
        item.type: dtype_or_none(item.type) for item in op.outputs if item.type not in op.types
    }
    return [bound.get(item.type) or fixed.get(item.type) for item in op.outputs]


class _Schema(NamedTuple):
    """ONNX's schema of an operator.

    Each input has its name, its type ("T" or "tensor(int64)"), and False if it is a list whose
    arrays may differ in type. Outputs have their types alone.
    """

    inputs: tuple[tuple[str, str, bool], ...]
    outputs: tuple[str, ...]
    least_outputs: int
    most_outputs: int
    allowed: Mapping[str, frozenset[str]]  # by type variable

    def input(self, k: int) -> tuple[str, str, bool]:
        """Return input k: (name, type, False if arrays of a list may differ in type).

        The last one, if it is a list, stands for all inputs behind it, too.
        """
        return self.inputs[min(k, len(self.inputs) - 1)]


def _by_schema(node: Node, known: Known) -> list[Dtype | None]:
    """Return the types of the outputs of a standard operator by ONNX's schema; [] without one.

    known: types of values by name; inputs of types that the schema does not allow are refused.
    """
    schema = _schema(node.op_type, node.version) if node.is_standard else None
    if schema is None:
        return []
    bound: dict[str, Dtype | None] = {}
    n_captured = max((part.n_captured for part in subgraphs(node).values()), default=0)
    own = node.inputs[: len(node.inputs) - n_captured]
    for k, name in enumerate(own if schema.inputs else ()):
        if name in known and not name.endswith(STATE):
            _bind(node, schema, k, known[name], bound)
    only = {name: _dtype_of(*kinds) for name, kinds in schema.allowed.items() if len(kinds) == 1}
    return [_output_type(node, schema, k, {**only, **bound}) for k in range(len(node.outputs))]


def _bind(
    node: Node, schema: _Schema, k: int, dtype: Dtype, bound: dict[str, Dtype | None]
) -> None:
    """Bind the type variable of input k to `dtype`; refuse a type that the schema does not allow.

    bound: {type variable: its type, by the inputs before}; updated.
    """
    name, variable, is_one = schema.input(k)
    kinds = schema.allowed.get(variable, frozenset({variable}))
    form = _type_string(dtype)
    if kinds.isdisjoint((form, f"seq({form})", f"optional({form})", f"optional(seq({form}))")):
        got = type_name(dtype)
        raise DtypeError(f"{name}: {got} is not among what {node.op_type} takes")
    if variable in schema.allowed and is_one:
        earlier = bound.setdefault(variable, dtype) or dtype
        if earlier != dtype:
            names = type_name(earlier), type_name(dtype)
            raise DtypeError(f"{name}: expected {names[0]} as the others, got {names[1]}")


def _output_type(
    node: Node, schema: _Schema, k: int, bound: Mapping[str, Dtype | None]
) -> Dtype | None:
    """Return the type of output k: an attribute's, its type variable's, or the only one allowed.

    bound: {type variable: its type, by the inputs}. None if it is not known.
    """
    if "to" in node.attributes and node.op_type in ("Cast", "BitCast"):
        return graph_dtype(node.attributes["to"])
    if node.op_type == "ConstantOfShape":
        return getattr(node.attributes.get("value"), "dtype", FLOAT32)
    if not schema.outputs:
        return None
    kind = schema.outputs[min(k, len(schema.outputs) - 1)]
    return bound.get(kind) or _dtype_of(kind)


@functools.cache
def _schema(op_type: str, version: int) -> _Schema | None:
    """Return ONNX's schema of its own operator in an opset; None without one."""
    try:
        known = onnx_package().defs.get_schema(op_type, version, "")
    except Exception:  # of ONNX's, which has no schema of com.microsoft's
        return None
    return _Schema(
        tuple(
            (item.name, item.type_str, item.option.name != "Variadic" or item.is_homogeneous)
            for item in known.inputs
        ),
        tuple(item.type_str for item in known.outputs),
        known.min_output,
        known.max_output,
        {c.type_param_str: frozenset(c.allowed_type_strs) for c in known.type_constraints},
    )


def _type_string(dtype: Dtype) -> str:
    """Return a type as schemas write it: "tensor(float)" of float32."""
    name = type_name(dtype)
    return f"tensor({_NAMES.get(name, name)})"


def _dtype_of(kind: str) -> Dtype | None:
    """Return the dtype of "tensor(float)"; None of a type variable, or of other kinds."""
    return dtype_or_none(_OURS.get(kind, kind.removeprefix("tensor(").removesuffix(")")))
