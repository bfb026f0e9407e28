# SPDX-License-Identifier: MIT
"""`benchmark`: the copy first, a row for each call, PyTorch's beside it where it is here."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from cupy_training_ops.cli import benchmark as command
from cupy_training_ops.cli import trial

from .test_files import assert_refused, call


def test_the_cpu_is_measured_beside_numpys_copies(monkeypatch) -> None:
    monkeypatch.setattr(trial, "BUDGET_S", 0.001)
    result = call("benchmark", "--provider", "cpu", "--rows", "8")
    assert result.exit_code == 0, result.output
    assert "the NumPy provider beside NumPy's copies" in result.stdout
    assert "8 x 1024 float32" in " ".join(result.stdout.split())
    rows = [line.split() for line in result.stdout.splitlines() if line.split()[1:2]]
    copy = next(row for row in rows if row[0] == "copy")
    assert copy[3] == "1.00"
    assert {"gelu", "softmax", "dropout", "AdamW.step", "compress"} <= {row[0] for row in rows}


def test_without_pytorch_its_column_is_empty(monkeypatch) -> None:
    monkeypatch.setattr(trial, "BUDGET_S", 0.001)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = call("benchmark", "--provider", "cpu", "--rows", "2")
    assert "PyTorch is not here" in " ".join(result.stdout.split())
    assert "softmax" in result.stdout
    measured = call("benchmark", "--provider", "cpu", "--rows", "2", "--json").stdout.splitlines()
    rows = [json.loads(line) for line in measured[1:]]
    assert all(row["torch_s"] is None for row in rows)
    (copy,) = [row for row in rows if row["operator"] == "copy"]
    assert copy["nbytes"] == 2 * 2 * 1024 * 4
    assert copy["of_copy"] == pytest.approx(1.0, abs=1e-12)


def test_rates_are_of_the_bytes_that_calls_move(monkeypatch) -> None:
    taken = iter(range(1, 100))
    monkeypatch.setattr(command, "seconds", lambda *_: next(taken) / 10)
    cases = [command.Case("copy", int, 80), command.Case("other", int, 40, int)]
    copy, other = command._measured(cases, np)
    assert (copy.seconds, copy.copy_s, copy.torch_s) == (0.1, 0.1, None)
    assert (other.seconds, other.copy_s, other.torch_s) == (0.2, 0.05, 0.3)
    assert other.fields()["of_copy"] == 0.25


def test_no_gpu_is_said(monkeypatch) -> None:
    monkeypatch.setattr("cupy_training_ops.cli.machine.why_no_gpu", lambda: "none")
    result = call("benchmark", "--provider", "cuda")
    assert result.exit_code == 3
    assert "no GPU: none" in result.stderr
    assert_refused(call("benchmark", "--rows", "0"), "--rows")
