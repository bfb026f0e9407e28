# SPDX-License-Identifier: MIT
"""Declarations here beside ONNX Runtime's: where a field differs, and the reason for each.

`tests/data/upstream_schemas.json` has the facts: names, order, types, defaults, memory and aliases
of upstream's operators, read out of its sources by a script; `what` in it says of which version.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markdown_table import table

from cupy_training_ops.call.op import Op
from cupy_training_ops.declare.schema import REQUIRED, Input, Output
from cupy_training_ops.dtypes import ELEMENT_TYPES, dtype_name, to_dtype
from cupy_training_ops.registry import REGISTRY

SCHEMAS = Path(__file__).resolve().parent.parent / "tests" / "data" / "upstream_schemas.json"

# Declared, but without a CUDA kernel that is registered for training.
NOT_HERE = {
    "GatherND", "BroadcastGradientArgs", "SummaryScalar",
    "SummaryHistogram", "SummaryMerge", "SummaryText", "NegativeLogLikelihoodLossInternal",
    "NegativeLogLikelihoodLossInternal2", "LSTMTraining", "LSTMGrad", "GRUTraining", "GRUGrad",
}  # fmt: skip


# LambOptimizer has 1,024 groups of five, which upstream declares and aliases in loops, so that no
# script reads them out: these are the facts of one group, whose members are lists here.
def _items(text: str, *options: str) -> list[dict[str, Any]]:
    """Inputs or outputs, each a name and its type."""
    pairs = (each.split() for each in text.split(", "))
    arguments = [f"OpSchema::{option}" for option in options]
    return [{"name": name, "type": kind, "options": arguments} for name, kind in pairs]


_NUMBERS = "update_signal bool, loss_scale T2, gradient_norm T_GRAD_NORM, R T1, step TSTEP"
_LISTS = "weights T2, gradients T3, moment1 T4, moment2 T4"
_REPLACED = "new_step TSTEP, new_weights T2, new_gradients T3, new_moment_1 T4, new_moment_2 T4"
_COPIES = "mixed_precision_weights T_MIXED"
_ALL = "float16, float, double, bfloat16"
LAMB: Mapping[str, Any] = {
    "inputs": [
        *_items(_NUMBERS, "Optional"),
        *_items(_LISTS, "Variadic"),
        *_items(_COPIES, "Variadic", "Optional"),
    ],
    "outputs": _items(f"{_REPLACED}, new_{_COPIES}"),
    "attributes": {
        "alpha": ["", "0.9f"], "beta": ["", "0.999f"], "lambda": ["", "0.0f"],
        "epsilon": ["", "1e-6f"], "max_norm_clip": ["", "1.0f"], "ratio_min": ["", "-infinity"],
        "ratio_max": ["", "infinity"], "do_bias_correction": ["", "1"],
    },
    "types": {
        "T1": _ALL, "T2": "float, double", "T3": _ALL, "T4": _ALL, "T_GRAD_NORM": _ALL,
        "T_MIXED": "float16, bfloat16", "TSTEP": "int64",
    },
    "alias": [[place + 4, place] for place in range(6)],
}  # fmt: skip
CALL = "the call says it: a graph's node has it in its edges"
NUMBERS = "one number, read where it is: an array of any float type, or a number"
ON_HOST = "known as a kernel is planned"
CHECKED = "every call is checked as it is; where given, also against this"
SIGNAL = "a signal that is an array is updated where it is"
SHAPE_OF_X = "`shape`: upstream has it from the graph around the node"
AS_FORWARD = "as the forward operator has it, whose windows are gathered from"
THEMSELVES = "the arrays themselves come back, none is made"
NUMBER_INPUTS = (
    ("SGDOptimizer", "ETA"), ("AdamOptimizer", "R"), ("AdamOptimizer", "loss_scale"),
    ("AdamOptimizer", "global_gradient_norm"), ("LambOptimizer", "R"),
    ("LambOptimizer", "loss_scale"), ("LambOptimizer", "gradient_norm"),
)  # fmt: skip
POOLS = {
    "AveragePoolGrad": ("ceil_mode", "dilations"),
    "MaxPoolGrad": (
        "auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "storage_order", "strides"
    ),
}  # fmt: skip
REASONS: Mapping[tuple[str, str], str] = {
    ("*", "attribute check"): "refuses labels and indices out of range; upstream reads there",
    ("*", "attribute deterministic"): "False allows atomic additions, which upstream always makes",
    ("*", "attribute group"): "a ProcessGroup; upstream has one for the process",
    ("*", "attribute num_outputs"): CALL,
    ("*", "attribute output_type"): CALL,
    ("*", "attribute shape"): "a code alone has lost it",
    ("*", "attribute keep_nonfinite"): "upstream's tiles with such a value become 0",
    ("*", "attribute keep_sign"): "upstream rounds small values of a tile to 0, whose sign is lost",
    ("BatchNormInternal", "attribute unbiased"): "False is ONNX's rule, as on upstream's CPU",
    ("WaitEvent", "attribute timeout"): "upstream waits for ever",
    ("Recv", "attribute shapes"): "where they are known, nothing waits for them",
    ("Recv", "attribute arrays"): "whose arrays arrive, which a graph's device says",
    ("MegatronF", "attribute group_type"): "as MegatronG has it, whose gradient it is",
    ("BiasSoftmaxDropout", "inputs"): "`state`: a generator on the device, which graphs replay",
    ("SplitTraining", "input split optional"): "left out where `num_outputs` says it",
    ("PythonOp", "attribute input_tensor_types"): CHECKED,
    ("PythonOp", "attribute input_tensor_ranks"): CHECKED,
    ("PythonOp", "attribute output_tensor_ranks"): CHECKED,
    ("PythonOpGrad", "attribute output_tensor_types"): "says how many gradients there are",
    **{(op, f"input {name} memory"): NUMBERS for op, name in NUMBER_INPUTS},
    ("LambOptimizer", "input R optional"): "upstream reads it in any case",
    ("BiasSoftmaxDropout", "input state memory"): "two numbers, or an array of them",
    ("DropoutGrad", "input training_mode memory"): ON_HOST,
    ("View", "input shapes memory"): ON_HOST,
    ("ConcatTraining", "output per_input_length memory"): "it follows from shapes alone",
    ("SGDOptimizerV2", "output update_completed alias"): SIGNAL,
    ("AdamWOptimizer", "output updated_flag alias"): SIGNAL,
    ("AveragePoolGrad", "inputs"): SHAPE_OF_X,
    ("MaxPoolGrad", "inputs"): SHAPE_OF_X,
    **{(op, f"attribute {each}"): AS_FORWARD for op, names in POOLS.items() for each in names},
    ("PassThrough", "output outputs alias"): THEMSELVES,
    ("RecordEvent", "output OutputData alias"): THEMSELVES,
    ("WaitEvent", "output OutputData alias"): THEMSELVES,
    ("AdamOptimizer", "types"): "a kernel registered upstream has no float64; the list here has",
    ("MixedPrecisionScale", "types"): "no kernel is registered for other scales than float32",
}  # fmt: skip


class Difference(NamedTuple):
    """A field of an operator that ONNX Runtime ("upstream") declares otherwise."""

    op: str
    field: str
    upstream: str
    here: str

    @property
    def reason(self) -> str | None:
        """The reason of REASONS, None if it has none."""
        own = REASONS.get((self.op, self.field))
        return REASONS.get(("*", self.field)) if own is None else own


def classes() -> dict[str, type[Op]]:
    """Return {name: newest version} of every operator that upstream has."""
    newest: dict[str, type[Op]] = {}
    for (domain, name, since), cls in REGISTRY.items():
        if domain != "cupy_training_ops" and since >= getattr(newest.get(name), "since", 0):
            newest[name] = cls
    return newest


def differences() -> list[Difference]:
    """Return every field of every operator that differs from upstream's declaration."""
    upstream_data = json.loads(SCHEMAS.read_text("utf-8"))
    known = classes()
    return [
        Difference(name, field, upstream, here)
        for name, schema in {**upstream_data["schemas"], "LambOptimizer": LAMB}.items()
        if name in known
        for field, upstream, here in fields(known[name], schema, upstream_data["kernels"].get(name))
        if upstream != here
    ]


Field = tuple[str, str, str]  # its name, and how it is upstream and here


def fields(cls: type[Op], schema: Any, kernel: Any) -> Iterator[Field]:
    """Yield the fields of an operator: of its schema, and of its kernel if that is not None.

    schema, kernel: upstream's, as JSON.
    """
    for kind, declared in (("inputs", cls.inputs), ("outputs", cls.outputs)):
        theirs = ", ".join(item["name"] for item in schema[kind])
        yield kind, theirs, ", ".join(item.upstream or item.name for item in declared)
    for item, here in zip(schema["inputs"], cls.inputs, strict=False):
        options = item.get("options", ())
        listed = "OpSchema::Variadic" in options or is_sequence(cls, item["type"])
        optional = "OpSchema::Optional" in options
        yield f"input {here.name} optional", str(optional), str(here.optional)
        yield f"input {here.name} list", str(listed), str(here.variadic)
    yield from _attributes(cls, schema["attributes"])
    missing = "; ".join(_missing_types(cls, schema))
    yield "types", missing, "without these" if missing else ""
    if kernel is not None:
        yield from _memory(cls, kernel)
        yield from _aliases(cls, [*kernel["alias"], *kernel["variadic_alias"]], schema)


def is_sequence(cls: type[Op], variable: str) -> bool:
    """Return True if upstream has a sequence of tensors, which is a list here."""
    return variable.startswith("S_") and cls.name != "SoftmaxCrossEntropyLoss"


def _attributes(cls: type[Op], theirs: Mapping[str, Sequence[str]]) -> Iterator[Field]:
    """Yield the defaults of attributes; theirs: by name, arguments of upstream's declaration."""
    ours = {item.upstream or item.name: item for item in cls.attributes}
    from_onnx = not theirs and cls.name in FROM_ONNX
    for name in theirs.keys() | (set() if from_onnx else ours.keys()):
        upstream = _default(theirs[name]) if name in theirs else "absent"
        here = _shown(ours[name].default) if name in ours else "absent"
        yield f"attribute {name}", upstream, here


# Their attributes are those of ONNX's forward operators, which upstream does not repeat.
FROM_ONNX = {"ConvGrad", "ConvTransposeGrad", "ResizeGrad"}


def _default(declared: Sequence[str]) -> str:
    """Convert upstream's C++ text of a default to the form that `_shown` has for ours."""
    if len(declared) < 2:
        return "required"
    text = re.sub(r"static_cast<int64_t>\((.*)\)|std::string\((.*)\)", r"\1\2", declared[1])
    if text in ("OPTIONAL_VALUE", "false") or text == '""':
        return "none"
    return text.strip('"') if '"' in text else _number(float(text.rstrip("f")))


def _shown(default: object) -> str:
    if default is REQUIRED:
        return "required"
    if default is None or default == () or default == "":
        return "none"
    return default if isinstance(default, str) else _number(float(default))  # type: ignore[arg-type]


def _number(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else str(value)


def _missing_types(cls: type[Op], schema: Any) -> Iterator[str]:
    """Yield words about types that upstream declares and that are not here."""
    for kind, declared in (("inputs", cls.inputs), ("outputs", cls.outputs)):
        for theirs, item in zip(schema[kind], declared, strict=False):
            lacking = _declared_types(schema, theirs["type"]) - _types_here(cls, item)
            if item.memory == "device" and lacking:
                yield f"{item.name}: {', '.join(sorted(lacking))}"


def _declared_types(schema: Any, variable: str) -> set[str]:
    """Return upstream's dtypes of a type variable; none for a list that ONNX has a name for."""
    text = schema["types"].get(variable, variable)
    words = re.findall(r"\b(?!seq\b|tensor\b)[a-z]+[0-9]*\b", "" if "OpSchema" in text else text)
    return {{"float": "float32", "double": "float64"}.get(word, word) for word in words}


def _types_here(cls: type[Op], item: Input | Output) -> set[str]:
    if item.type in cls.types:
        return {dtype_name(dtype) for dtype in cls.types[item.type]}
    fixed = {element.name for element in ELEMENT_TYPES}
    return {dtype_name(to_dtype(item.type))} if item.type in fixed else set()


def _memory(cls: type[Op], kernel: Any) -> Iterator[Field]:
    """Yield the memory, "host" or "device", of inputs and outputs; "either" equals "host"."""
    for kind, declared in (("input", cls.inputs), ("output", cls.outputs)):
        for place, item in enumerate(declared):
            upstream = "host" if place in kernel[f"host_{kind}s"] else "device"
            does = item.memory == "either" and upstream == "host"
            yield f"{kind} {item.name} memory", upstream, upstream if does else item.memory


def _aliases(cls: type[Op], pairs: Sequence[Any], schema: Any) -> Iterator[Field]:
    """Yield for each output the input that it replaces, or "none".

    pairs: upstream's (index of the input, index of the output).
    """
    of_output = {out: cls.inputs[place].name for place, out in [*pairs, *schema.get("alias", [])]}
    for place, item in enumerate(cls.outputs):
        yield f"output {item.name} alias", of_output.get(place, "none"), item.aliases or "none"


def declarations() -> str:
    """Return a table of differences, with a row for all operators that have the same."""
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for op, field, upstream, here in differences():
        reason = Difference(op, field, upstream, here).reason or ""
        rows.setdefault((field, upstream, here, reason), []).append(op)
    ordered = sorted(rows.items(), key=lambda row: (row[1], row[0]))
    columns = ("operator", "field", "upstream", "here", "why")
    return table(columns, ([", ".join(sorted(ops)), *cells] for cells, ops in ordered))
