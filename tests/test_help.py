# SPDX-License-Identifier: MIT
"""Help: the docstring says what no declaration can; the declaration is printed once and is true."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops.call import help
from cupy_training_ops.call.op import Op
from cupy_training_ops.declare import schema
from cupy_training_ops.declare.type_rows import TypeRows
from cupy_training_ops.dtypes import FLOAT32, FLOAT64
from cupy_training_ops.registry import get_op, names
from cupy_training_ops.testing.samples import all_samples

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("cuda_src", "cupy_training_ops", "docs", "scripts", "tests")
ENDINGS = (".py", ".md", ".cu", ".cuh", ".h")
TEXTS = [
    ROOT / "README.md",
    *(p for f in FOLDERS for p in sorted((ROOT / f).rglob("*")) if p.suffix in ENDINGS),
]
SAMPLES = all_samples()
# What the declaration says is not said again in prose.
PRINTED = {
    "types": r"float32, float16|int64 or int32|\bT(_\w+)?: |: T\b|the four floats",
    "places": r"\bdevice\.|\bhost\b",
    "determinism": r"\b[Dd]eterministic\b(?!=)",
    "errors": r"\bRaises\b|Error\b",
    "captured graphs": r"captured graph",
}


def written(cls: type[Op]) -> str:
    """The docstring as it stands in the source."""
    return vars(cls)["__doc__"].written


def blocks(cls: type[Op]) -> dict[str, list[str]]:
    """The generated part: title to lines."""
    text = cls.__doc__.removeprefix(written(cls))
    result = re.findall(r"^(\w.*)\n((?:  .*\n?)+)", text, flags=re.MULTILINE)
    return {title: body.splitlines() for title, body in result}


def firsts(lines: list[str]) -> list[str]:
    """The first words of a block's rows, without the lines that go on."""
    return [line.split()[0] for line in lines if re.match(r"  \S", line)]


@pytest.mark.parametrize("name", names())
def test_the_docstring_has_a_formula_and_a_public_source(name) -> None:
    title, *paragraphs = written(get_op(name)).split("\n\n")
    assert "\n" not in title
    assert re.search(r": .*=", title), title
    assert paragraphs[-1].startswith("Source: ")
    assert paragraphs[-1].endswith(".")
    assert not any("Source:" in paragraph for paragraph in paragraphs[:-1])


@pytest.mark.parametrize("name", names())
def test_the_docstring_does_not_say_what_the_declaration_says(name) -> None:
    for what, pattern in PRINTED.items():
        assert not re.search(pattern, written(get_op(name))), f"{name}: {what}"


@pytest.mark.parametrize("name", names())
def test_everything_declared_is_printed_once(name) -> None:
    cls = get_op(name)
    result = blocks(cls)
    for title, declared in (
        ("inputs", cls.inputs),
        ("outputs", cls.outputs),
        ("attributes", cls.attributes),
    ):
        assert firsts(result.get(title, [])) == [item.name for item in declared]
    if isinstance(cls.types, TypeRows):
        assert result["types"][0].split() == list(cls.types.rows[0])
        assert firsts(result.get("types beside any of these", [])) == list(cls.types.free)
    else:
        assert firsts(result["types"]) == list(cls.types)
    assert list(result)[-2:] == ["every call", f"family {cls.family}"]


@pytest.mark.parametrize("name", names())
def test_every_array_has_a_shape_and_every_value_a_kind(name) -> None:
    cls = get_op(name)
    for item in (*cls.inputs, *cls.outputs):
        assert item.shape or (item.memory == "host" and item in cls.inputs), item
    for item in (*cls.attributes, *(i for i in cls.inputs if i.memory == "host")):
        assert item.convert.__doc__, item
    for item in (*cls.inputs, *cls.outputs, *cls.attributes):
        phrases = (getattr(item, "shape", ""), item.doc)
        assert not any(phrase.endswith(".") for phrase in phrases), item


CHECKED = (
    r"shapes? (?:of|given by) `?(\w+)`?",  # that of another array, or the value of a host input
    r"shape \(([^*]*)\)",  # numbers, names that mean the same in all arrays, "..." at the end
    r"rank (\d) or more",
)


def agrees(phrase: str, shape: Any, values: dict[str, Any], extents: dict[str, int]) -> bool:
    """Whether a shape is what a phrase says; `extents` are those that names have met so far."""
    other, listed, rank = (re.fullmatch(pattern, phrase) for pattern in CHECKED)
    if other:
        return same_shapes(shape, shapes(values[other[1]]))
    if listed:
        *words, last = re.findall(r"[^, ][^,]*", listed[1]) or [""]
        words += [last] if last not in ("", "...") else []
        if words[:1] == ["..."]:  # the last extents
            words, last, shape = words[:0:-1], "...", shape[::-1]
        long_enough = len(shape) >= len(words) if last == "..." else len(shape) == len(words)
        pairs = zip(words, shape, strict=False)
        return long_enough and all(
            extents.setdefault(word, extent) == extent for word, extent in pairs
        )
    return rank is None or len(shape) >= int(rank[1])


def shapes(value):
    """The shape of an array, the shapes of a list of them."""
    if isinstance(value, list | tuple):
        return tuple(map(shapes, value))
    return getattr(value, "shape", value)


def same_shapes(shape: Any, expected: Any) -> bool:
    """Whether shapes are those of another list, but for what is missing in the first."""
    if isinstance(shape, tuple) and None in shape:
        pairs = zip(shape, expected, strict=True)
        return all(actual in (None, wanted) for actual, wanted in pairs)
    return shape == expected


def planned(place: int, declared: schema.Input, value: Any) -> Any:
    """An input as `infer` takes it."""
    if value is None:
        return None
    if declared.memory == "either" and not isinstance(value, np.ndarray):
        return schema.Changing(place)
    is_array = declared.memory in ("device", "either")
    one = spec_of if is_array else declared.convert
    return tuple(map(one, value)) if declared.variadic else one(value)


def spec_of(array: Any) -> schema.Spec | None:
    return None if array is None else schema.Spec(array.shape, array.dtype)


def call_of(sample) -> Iterator[tuple[schema.Input | schema.Output, Any]]:
    """Every input and output of a sample with its value as planning sees it."""
    op = get_op(sample.op)(**sample.attributes)
    arguments = list(sample.make(np.random.default_rng(0)))
    arguments += [None] * (len(op.inputs) - len(arguments))
    inputs = [planned(i, *pair) for i, pair in enumerate(zip(op.inputs, arguments, strict=True))]
    yield from zip(op.inputs, inputs, strict=True)
    yield from zip(op.outputs, op.infer(*inputs), strict=True)


def contradictions(sample) -> Iterator[str]:
    """Declared shapes that an array of the sample does not have."""
    call = list(call_of(sample))
    values = {item.name: value for item, value in call}
    arrays = {
        name: shapes(value) for name, value in values.items() if isinstance(value, schema.Spec)
    }
    extents = {str(n): n for n in range(10)}
    extents |= {f"last extent of {name}": shape[-1] for name, shape in arrays.items() if shape}
    for item, value in call:
        if value is not None and not agrees(item.shape, shapes(value), values, extents):
            yield f"{sample.id}: {item.name}: {shapes(value)} is not {item.shape}"


@pytest.mark.parametrize("name", names())
def test_declared_shapes_are_those_of_the_samples(name) -> None:
    for sample in SAMPLES[name]:
        if {"ordinary", "odd", "empty", "one"} & set(sample.label.split("-")):
            assert not list(contradictions(sample))


@pytest.mark.parametrize(
    "phrase",
    [
        *("shape of A", "shape given by `n`", "shape (1,)", "shape (M, N)", "shape (..., N)"),
        *("shape (..., N, M, 1)", "rank 3 or more"),
    ],
)
def test_a_wrong_shape_contradicts(phrase) -> None:
    values = {"A": schema.Spec((2, 4), FLOAT32), "n": (2, 4)}
    extents = {"1": 1, "M": 3, "N": 4}
    assert not agrees(phrase, (2, 3), values, extents)


def test_help_shows_the_text_of_class_and_function() -> None:
    for thing in (cto.GeluGrad, cto.gelu_grad):
        text = pydoc.plain(pydoc.render_doc(thing))
        for line in inspect.getdoc(cto.GeluGrad).splitlines():
            assert line in text
    assert cto.gelu_grad is cto.gelu_grad
    assert cto.GeluGrad().__doc__ == cto.GeluGrad.__doc__


def test_the_text_is_made_when_it_is_read_first(monkeypatch) -> None:
    class Read(Op):
        """Y = X."""

        outputs = (schema.Output("Y", "float32"),)

    calls = []
    monkeypatch.setattr(help, "generate", lambda declared: calls.append(declared) or ["more"])
    assert Read.__doc__ == Read.__doc__ == "Y = X.\nmore"
    assert calls == [Read.declaration]


class Everything(Op):
    """Y = X."""

    inputs = (
        schema.Input("X", "T", shape="any shape", doc="what is read"),
        schema.Input("S", "T", not_accessed=True, optional=True),
        schema.Input("Xs", "float32", variadic=True, shape="any shapes"),
        schema.Input("Ms", "T", variadic=True, holes=True, mixed=True, updated=True),
        schema.Input("lr", "float32", memory="either", convert=schema.real),
        schema.Input("n", "int64", memory="host", convert=schema.integer, static=False),
        schema.Input("shapes", "int64", memory="host", variadic=True, convert=schema.shape),
    )
    outputs = (
        schema.Output("Y", "T", aliases="X", may_alias=("S",), shape="shape of X"),
        schema.Output("Z", "bool", memory="host", shape="shape (1,)", doc="always True"),
        schema.Output("Ys", "float32", variadic=True, may_alias=("X", "S")),
    )
    to = schema.attribute(schema.one_of("up", "down"), type="T")
    deterministic = schema.attribute(schema.optional(schema.integer), None, doc="how")
    types = {"T": (FLOAT32,)}  # noqa: RUF012
    bitwise_exact = True


def test_all_that_can_be_declared_is_printed() -> None:
    text = " ".join(Everything.__doc__.split())
    for expected in (
        "Y = X. call everything(X, S=None, Xs, Ms, lr, n, shapes, *, to, deterministic=None,",
        "workspace=None) -> (Y, Z, (Ys[0], Ys[1], ...))",
        "Everything(*, to, deterministic=None)(X, S=None, Xs, Ms, lr, n, shapes, *, out=None,",
        "inputs X T device, any shape; what is read S T device, optional, any strides Xs float32 "
        "device, a list of arrays, any shapes Ms T device, a list of arrays or None in several "
        "types, written in place lr float32 either, a real number, or an array of 1 beside the "
        "other arrays n int64 host, an integer, may change from call to call shapes int64 host, "
        "a shape: integers of at least 0, a list of them",
        "outputs Y T device, shape of X, written into X where there is no out=, out= may be S's "
        "array Z bool host, a new NumPy array, shape (1,); always True Ys float32 device, a tuple "
        "of arrays, out= may be X's or S's array",
        "attributes to required 'up' or 'down', binds T deterministic default None an integer, or "
        "None; how",
        "types T float32",
        "A captured graph keeps their values.",
        "A captured graph keeps a number; where an array is given, each replay reads it.",
        "same bits, run after run unless deterministic=False.",
        "exactly the same values",
        "CuPy arrays by CUDA kernels on their device.",
        "ArgumentError, DtypeError and ProviderError are raised before",
        f"family {Everything.family} Help: the docstring says",
    ):
        assert expected in text


def test_type_combinations_that_are_rows_are_printed_as_rows() -> None:
    class Rows(Op):
        """Y = X."""

        outputs = (schema.Output("Y", "T"),)
        types = TypeRows("T U", "float32 float16", "float64 H", H=(FLOAT32, FLOAT64))

    assert blocks(Rows)["types"] == [
        "  T        U",
        "  float32  float16",
        "  float64  float32",
        "  float64  float64",
    ]


def test_only_what_is_so_is_said() -> None:
    text = cto.GeluGrad.__doc__
    for absent in ("attributes", "Host inputs", "unless", "exactly", "optional", "a list"):
        assert absent not in text
    assert "nothing is computed or launched" in cto.View.__doc__
    assert "CUDA kernels" not in cto.View.__doc__
    assert "A call needs" not in text
    assert "A call needs a generator function that SplitStep runs." in cto.YieldOp.__doc__
    assert "run after run" not in cto.PythonOp.__doc__
    assert "are raised before the function runs." in cto.PythonOp.__doc__
    assert "num_outputs=1, **keywords)(inputs" in " ".join(cto.TritonOp.__doc__.split())
    assert "**keywords" not in cto.PythonOp.__doc__


def test_no_text_cites_what_a_reader_cannot_open() -> None:
    """Sections of a specification that is not part of the package."""
    cited = re.compile(r"contract[, ]+\d", re.IGNORECASE)
    assert [path for path in TEXTS if cited.search(path.read_text(encoding="utf-8"))] == []
