# SPDX-License-Identifier: MIT
"""Declarations against upstream's, field by field; and what docs/differences.md shows, run."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import upstream_schemas
from upstream_schemas import NOT_HERE, REASONS, SCHEMAS, Difference, differences

from cupy_training_ops import get_op
from cupy_training_ops.call.checks import convert_value
from cupy_training_ops.dtypes import FLOAT32
from cupy_training_ops.registry import FAMILIES, classes

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "differences.md").read_text(encoding="utf-8")


def test_every_operator_of_upstreams_is_compared_or_known_not_to_be_here() -> None:
    actual = json.loads(SCHEMAS.read_text("utf-8"))["schemas"]
    known = upstream_schemas.classes()
    assert actual.keys() - known.keys() == NOT_HERE
    assert len(actual.keys() & known.keys()) == 89


def test_no_field_differs_without_a_reason() -> None:
    assert [actual for actual in differences() if actual.reason is None] == []


def test_every_reason_is_one_of_a_field_that_differs() -> None:
    fields = {(op, field) for op, field, *_ in differences()}
    general = {("*", field) for _, field in fields}
    assert set(REASONS) <= fields | general


# ---- a change is seen ----------------------------------------------------------------------------


def change_at(items, place, **changes):
    """The declared items, one of them changed."""
    return (*items[:place], replace(items[place], **changes), *items[place + 1 :])


def first(items, **changes):
    return change_at(items, 0, **changes)


# Operator, the part of its declaration that is changed, how, and the field that then differs.
CHANGES: dict[str, tuple[str, str, Callable, str]] = {
    "a name": ("ReluGrad", "inputs", lambda x: first(x, name="dy"), "inputs"),
    "an output's name": ("ReluGrad", "outputs", lambda x: first(x, name="dx"), "outputs"),
    "an order": ("GatherGrad", "inputs", lambda x: x[::-1], "inputs"),
    "one more": ("DivGrad", "outputs", lambda x: (*x, replace(x[0], name="dC")), "outputs"),
    "optional": ("DivGrad", "inputs", lambda x: first(x, optional=True), "input dY optional"),
    "a group": ("LambOptimizer", "inputs", lambda x: change_at(x, 7, variadic=False),
                "input moment1 list"),
    "a group's alias": ("LambOptimizer", "outputs", lambda x: change_at(x, 3, aliases="moment2"),
                        "output new_moment_1 alias"),
    "a list": ("AdamWOptimizer", "inputs", lambda x: change_at(x, 2, variadic=False),
               "input weights list"),
    "a default": ("QuickGeluGrad", "attributes", lambda x: first(x, default=1.7),
                  "attribute alpha"),
    "required": ("ConcatTraining", "attributes", lambda x: first(x, default=0), "attribute axis"),
    "no attribute": ("LeakyReluGrad", "attributes", lambda _: (), "attribute alpha"),
    "a text": ("SoftmaxCrossEntropy", "attributes", lambda x: first(x, default="sum"),
               "attribute reduction"),
    "types": ("GeluGrad", "types", lambda _: {"T": (FLOAT32,)}, "types"),
    "host memory": ("GatherGrad", "inputs", lambda x: first(x, memory="device"),
                    "input shape memory"),
    "a device output": ("Group", "outputs", lambda x: first(x, memory="device"),
                        "output done memory"),
    "no alias": ("ZeroGradient", "outputs", lambda x: first(x, aliases=None),
                 "output zero_gradient alias"),
    "an alias": ("DivGrad", "outputs", lambda x: first(x, aliases="dY"), "output dA alias"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "part", "change", "field"), CHANGES.values(), ids=CHANGES)
def test_a_changed_field_is_a_difference_without_a_reason(
    monkeypatch, name, part, change, field
) -> None:
    monkeypatch.setattr(get_op(name), part, change(getattr(get_op(name), part)))
    actual = [d for d in differences() if d.reason is None]
    assert field in {d.field for d in actual}
    assert {d.op for d in actual} == {name}


def test_a_reason_counts_for_its_field_alone() -> None:
    assert Difference("BatchNormInternal", "attribute unbiased", "absent", "1").reason
    assert Difference("ReluGrad", "attribute unbiased", "absent", "1").reason is None


# ---- what the document shows ---------------------------------------------------------------------


def rows(family) -> Iterator[tuple[str, str]]:
    """What a family's rows of the document say of which operators, and of what is here."""
    for section in re.findall(r"^## (.*)\n([^#]*)", DOCUMENT, re.MULTILINE):
        if family in section[0].split(", "):
            for row in section[1].splitlines():
                if row.startswith("| ") and not row.startswith("| operator"):
                    operators, _, here = [cell.strip() for cell in row.strip("|").split(" | ")][:3]
                    yield operators, here


def shown() -> list:
    """Arguments that rows show: names of operators, and what is shown."""
    actual = []
    for family, table in FAMILIES.items():
        for operators, here in rows(family):
            named = [name for name in table if re.search(rf"\b{name}\b", operators)]
            for argument in re.findall(r"`(\w+=[^`]+)`", here):
                label = f"{family}-{operators}-{argument}"
                actual.append(pytest.param(named or list(table), argument, id=label))
    return actual


def test_the_document_shows_arguments() -> None:
    """Rows are found; of outputs, of attributes."""
    assert {"outputs", "check"} <= {row.values[1].partition("=")[0] for row in shown()}


@pytest.mark.parametrize(("names", "argument"), shown())
def test_arguments_that_the_document_shows_are_taken(names, argument) -> None:
    name, _, text = argument.partition("=")
    value, actual = ast.literal_eval(text), [get_op(n) for n in names]
    if name == "outputs":
        assert any(set(value) <= {o.name for o in cls.outputs} for cls in actual)
        return
    having = [(cls, a) for cls in actual for a in cls.attributes if a.name == name]
    assert having, f"none of {names} has {name}"
    for cls, attribute in having:
        convert_value(cls.name, attribute, value)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_is_of_operators_that_are_there(family) -> None:
    known = {name for table in FAMILIES.values() for name, _ in classes(table)}
    for operators, _ in rows(family):
        endings = "Grad|Encoder|Decoder|Optimizer|V2|List|Loss|Norm|Reduce|Gather|Scatter"
        for word in re.findall(rf"\b[A-Z]\w*(?:{endings})\b", operators):
            assert word in known, f"{family}: {word}"
