# SPDX-License-Identifier: MIT
"""`--json`: every object has the fields that docs/cli.md gives its type, and no others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from cupy_training_ops import __version__, compress
from cupy_training_ops.cli import main, operators, roundtrip
from cupy_training_ops.cli.terminal import SCHEMA

from .test_verify import StandIn

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
OF_ONE_COMMAND = {"asked": "roundtrip", "seed": "verify", "providers": "ops"}
OF_TRIALS = ("array", "dtype", "shape", "codec", "provider", "verdict", "note")


def documented() -> dict[str, list[str]]:
    """Type to fields, from the tables of the page; those of every object under ""."""
    _, _, section = PAGE.partition("\n## JSON\n")
    tables = re.findall(
        r"^(Every object|`\w+`)[^|]*\n\| field \|.*\n.*\n((?:\|.*\n)+)", section, re.M
    )
    fields = {name.strip("`"): re.findall(r"^\| `(\w+)` \|", rows, re.M) for name, rows in tables}
    return {"": fields.pop("Every object"), **fields}


FIELDS = documented()


@pytest.fixture
def files(tmp_path) -> dict[str, str]:
    np.savez(tmp_path / "x.npz", x=np.ones((2, 3), np.float32), labels=np.arange(3))
    compress(np.ones(3), "msfp15").save(tmp_path / "packed.npz")
    return {"arrays": str(tmp_path / "x.npz"), "packed": str(tmp_path / "packed.npz")}


def objects(*arguments: str) -> list[dict]:
    result = CliRunner().invoke(main, [*arguments, "--json"])
    assert isinstance(result.exception, SystemExit | None), result.exc_info
    return [json.loads(line) for line in result.stdout.splitlines()]


def expected(one: dict, command: str) -> list[str]:
    """The fields that the page gives an object."""
    of_type = FIELDS[one["type"]]
    if one.get("verdict") == "unsupported":
        of_type = list(OF_TRIALS)
    others = [name for name, only in OF_ONE_COMMAND.items() if only != command]
    return [*FIELDS[""], *(name for name in of_type if one["type"] != "run" or name not in others)]


@pytest.mark.parametrize("command", ["roundtrip", "info", "doctor", "verify", "ops"])
def test_an_object_is_what_the_page_says(command, files, monkeypatch) -> None:
    monkeypatch.setattr(operators, "require_gpu", lambda: StandIn)
    monkeypatch.setattr(operators, "computing", lambda _: "a GPU")
    arguments = {
        "roundtrip": [files["arrays"], "--provider", "cpu"],
        "info": [files["arrays"], files["packed"]],
        "doctor": [],
        "verify": ["--op", "ReluGrad"],
        "ops": [],
    }[command]
    actual = objects(command, *arguments)
    for one in actual:
        assert sorted(one) == sorted(expected(one, command)), one["type"]
        assert one["schema"] == SCHEMA
        assert one["machine"]
    (run,) = [one for one in actual if one["type"] == "run"]
    assert actual[0] is run
    assert run["command"] == command
    assert run["versions"]["cupy-training-ops"] == __version__
    assert run["versions"]["numpy"] == np.__version__
    named = re.findall(rf"^`(\w+)`,[^|]*\(`{command}`\)", PAGE, re.M)
    assert {one["type"] for one in actual} == {"run", *named}


def test_a_line_comes_as_soon_as_it_is_known(files, monkeypatch) -> None:
    """What a second array does wrong comes after the lines of the first."""
    right, tried = roundtrip.run, []

    def second_fails(*arguments):
        tried.append(arguments)
        if len(tried) == 2:
            raise MemoryError("enough")
        return right(*arguments)

    monkeypatch.setattr(roundtrip, "run", second_fails)
    arrays = [files["arrays"]] * 2
    options = ["--provider", "cpu", "--json", "--codec", "pack8"]
    result = CliRunner().invoke(main, ["roundtrip", *arrays, *options])
    assert result.exit_code == 2
    kinds = [json.loads(line)["type"] for line in result.stdout.splitlines()]
    assert kinds == ["run", "trial", "recommendation"]


def test_a_failed_check_is_one_in_json_too(files) -> None:
    actual = objects("roundtrip", files["arrays"], "--provider", "cpu", "--min-snr", "1000")
    trials = {one["codec"]: one["verdict"] for one in actual if one["type"] == "trial"}
    inexact = {"int8", "int8_signed"}  # their scale for ones is 1 / 127, rounded to bfloat16
    assert {trials[codec] for codec in inexact} == {"MISSED"}
    assert {trials[codec] for codec in trials.keys() - inexact} == {"ok"}  # ones are exact
    np.save(files["arrays"] + ".npy", np.full(9, 0.1))
    actual = objects(
        "roundtrip", files["arrays"] + ".npy", "--provider", "cpu", "--min-snr", "1000"
    )
    verdicts = {one["codec"]: one["verdict"] for one in actual if one["type"] == "trial"}
    assert (verdicts["pack8"], verdicts["pack1"]) == ("MISSED", "ok")
