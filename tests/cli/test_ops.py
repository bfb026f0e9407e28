# SPDX-License-Identifier: MIT
"""`ops`: the list is the registry, one operator is its help text."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from cupy_training_ops import get_op
from cupy_training_ops.call.op import Op
from cupy_training_ops.cli import main
from cupy_training_ops.declare.schema import Input, Output, attribute, integer
from cupy_training_ops.declare.type_rows import TypeRows
from cupy_training_ops.dtypes import dtype_name
from cupy_training_ops.registry import REGISTRY, names


def call(*arguments):
    return CliRunner().invoke(main, ["ops", *arguments])


def words(line):
    return line.split()


def opset(cls):
    return f"{cls.since}+" if cls.until is None else f"{cls.since}-{cls.until}"


def test_the_list_is_the_registry():
    heading, *lines = call().stdout.splitlines()
    assert words(heading)[:2] == ["operator", "family"]
    classes = sorted(REGISTRY.values(), key=lambda cls: (cls.name, cls.since))
    assert {cls.name for cls in classes} == set(names())
    for line, cls in zip(lines, classes, strict=True):
        assert words(line)[:4] == [cls.name, cls.family, cls.domain, opset(cls)]
        assert line.endswith(cls.__doc__.splitlines()[0])


@pytest.mark.parametrize("name", names())
def test_an_operator_is_shown_with_all_that_is_declared(name):
    result = call(name)
    assert result.exit_code == 0
    lines = [words(line) for line in result.stdout.splitlines()]
    text = " ".join(words(result.stdout))
    cls = get_op(name)
    for item in (*cls.inputs, *cls.outputs):
        assert any(line[:2] == [item.name, item.type] and item.memory in line[2] for line in lines)
    for item in cls.attributes:
        assert any(line[:1] == [item.name] for line in lines)
    rows = cls.types.rows if isinstance(cls.types, TypeRows) else ()
    for row in rows:
        assert [dtype_name(dtype) for dtype in row.values()] in lines
    for variable, dtypes in (cls.types.free if rows else cls.types).items():
        assert f" {variable} {', '.join(map(dtype_name, dtypes))} " in text
    heading = f"{name}  {cls.domain}, opset {opset(cls)}, family {cls.family}"
    assert result.stdout.splitlines()[0] == heading
    assert result.stdout.partition("\n\n")[2] == f"{cls.__doc__}\n"


def test_what_is_special_is_said(monkeypatch):
    class Odd(Op):
        """Y = X."""

        inputs = (Input("X", "T", not_accessed=True), Input("N", "int64", "host", optional=True))
        outputs = (
            Output("Y", "T", aliases="X"),
            Output("Z", "T", may_alias=("X",)),
            Output("W", "T", may_alias=("X", "Y")),
        )
        axis = attribute(integer)
        to = attribute(integer, 3, type="T")

    monkeypatch.setattr("cupy_training_ops.cli.operators.operator", lambda *_: Odd)
    text = " ".join(call("Odd").stdout.split())
    for expected in (
        "X T device, any strides N int64 host, optional",
        "Y T device, written into X where there is no out=",
        "Z T device, out= may be X's array",
        "W T device, out= may be X's or Y's array",
        "axis required an integer to default 3 an integer, binds T",
    ):
        assert expected in text


def test_an_unknown_operator_gets_the_known_ones():
    result = call("Pack8")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert "GistPack8Encoder" in result.stderr
    assert call("GistPack8Encoder", "--opset", "0").exit_code == 2


def test_an_opset_without_a_name_is_refused():
    result = call("--opset", "1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "Error: --opset goes with the NAME of an operator\n"


@pytest.mark.parametrize(
    "arguments", [["--frobnicate"], ["--frobnicate", "ops"], ["--op=1", "ops"]]
)
def test_an_unknown_option_before_the_command_gets_one_line(arguments):
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: No such option")
    assert result.stderr.count("\n") == 1


def test_no_arguments_get_the_help():
    result = CliRunner().invoke(main, [])
    assert result.output == CliRunner().invoke(main, ["--help"]).output
