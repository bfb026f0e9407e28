# SPDX-License-Identifier: MIT
"""Which faults are planted to see whether tests notice them."""

from __future__ import annotations

import ast
import random
import subprocess
from pathlib import Path

import mutants
import pytest

from cupy_training_ops.registry import FAMILIES

CUDA = """// a < b
#define N 3 + 4
template <int n = 2 + 1>
__device__ int f(int a, int b) {
  if (a < b && b != 7) return a + 2;
  return a * b;
}
"""
PYTHON = '''"""a + b"""
def f(a: int | None, b) -> 3 | 4:
    zip(a, strict=True)
    if a < b and b != 7:
        return a + 2
    return a is None
'''


def changes(make, text: str) -> set[str]:
    return {mutant.label(text).partition(":")[2] for mutant in make("x", text)}


def test_faults_of_cuda_leave_comments_macros_and_templates_alone() -> None:
    assert changes(mutants.in_cuda, CUDA) == {
        "5:9: < -> <=",
        "5:13: && -> ||",
        "5:18: != -> ==",
        "5:33: + -> -",
        "5:21: 7 -> 8",
        "5:35: 2 -> 3",
        "5:6: ( -> (!",
        "6:12: * -> +",
    }


def test_faults_of_python() -> None:
    assert changes(mutants.in_python, PYTHON) == {
        "4:10: < -> <=",
        "4:14: and -> or",
        "4:20: != -> ==",
        "4:23: 7 -> 8",
        "4:8:  -> not",
        "5:18: + -> -",
        "5:20: 2 -> 3",
        "6:14: is -> is not",
    }


def test_each_fault_changes_the_text_in_its_place_alone() -> None:
    for mutant in mutants.in_python("x", PYTHON):
        planted = mutant.planted(PYTHON)
        ast.parse(planted)
        assert planted != PYTHON
        assert len(planted) - len(PYTHON) == len(mutant.new) - len(mutant.old)


@pytest.mark.parametrize("family", ["conv", "softmax"])
def test_a_family_has_faults_in_both_languages_and_tests_of_them(family) -> None:
    assert family in FAMILIES
    found = list(mutants.mutants(mutants.ROOT, family, random.Random(0)))[:12]
    assert {Path(mutant.path).suffix == ".py" for mutant in found} == {True, False}
    folder = mutants.ROOT / "tests" / "families" / family
    own = {str(path.relative_to(mutants.ROOT)) for path in folder.glob("test_*.py")}
    for of_reference in (False, True):
        runs = mutants.tests(mutants.ROOT, family, of_reference=of_reference)
        assert any(set(run) == own for run in runs[:2])  # all of them, whatever they are called
        assert any(run[:2] == ["tests/test_kernels.py", "-k"] for run in runs[:2])


FAILED = "FAILED tests/test_a.py::test_b[float32] - assert 1 == 2"


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ([(0, ""), (5, ""), (0, "")], "survived"),
        ([(0, ""), (1, FAILED), (0, "")], "noticed by tests/test_a.py::test_b"),
        ([(2, "ERROR tests/test_a.py - ValueError")], "noticed by tests/test_a.py"),
        ([(-11, "")], "noticed by no test: pytest ended with -11"),
        ([(1, f"g++ failed: x\n{FAILED}")], "not built"),
        ([(0, ""), None], "no time"),
    ],
)
def test_what_runs_of_tests_say(results, said, monkeypatch) -> None:
    left = iter(results)

    def run(*_: object) -> subprocess.CompletedProcess[str]:
        result = next(left)
        if result is None:
            raise subprocess.TimeoutExpired("pytest", 1)
        return subprocess.CompletedProcess("pytest", result[0], result[1], "")

    monkeypatch.setattr(mutants, "pytest_run", run)
    assert mutants.outcome(Path(), [["tests"]] * len(results), 60) == said


def test_faults_of_one_size_are_not_mistaken_for_each_other(tmp_path, monkeypatch) -> None:
    """Nor for the file without them: Python keeps what it compiled."""
    (tmp_path / "it.py").write_text("a, b = 1, 2\n")
    (tmp_path / "test_it.py").write_text(
        "import it\ndef test_a(): assert it.a == 1\ndef test_b(): assert it.b == 2\n"
    )
    monkeypatch.setattr(mutants, "tests", lambda *_, **__: [["test_it.py"]])
    faults = [mutants.Mutant("it.py", 7, "1", "3"), mutants.Mutant("it.py", 10, "2", "3")]
    found = [mutants.verdict(tmp_path, "", fault, 60) for fault in faults]
    assert found == ["noticed by test_it.py::test_a", "noticed by test_it.py::test_b"]
    assert mutants.outcome(tmp_path, [["test_it.py"]], 60) == "survived"


def test_it_is_said_which_tier_noticed(monkeypatch) -> None:
    failed = subprocess.CompletedProcess("pytest", 1, FAILED, "")
    monkeypatch.setattr(mutants, "pytest_run", lambda *_: failed)
    said = mutants.outcome(Path(), [["tests", "-m", "thorough"]], 60)
    assert said == "noticed by tests/test_a.py::test_b, thorough"


def test_a_run_is_told_by_what_pytest_exits_with(tmp_path) -> None:
    (tmp_path / "test_it.py").write_text("def test_a(): pass\ndef test_b(): assert 0\n")
    codes = [mutants.pytest_run(tmp_path, ["-k", name], 60).returncode for name in ("a", "b", "c")]
    assert codes == [mutants.PASSED, 1, mutants.NO_TESTS]
