# SPDX-License-Identifier: MIT
"""Which tests a GPU check runs."""

from __future__ import annotations

import functools
import re
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from families import operators
from gpu_tests import concerns, emulated, pytest_runtest_logreport
from pytest_runs import Ran, pytest_runs

from cupy_training_ops import get_op
from cupy_training_ops.registry import FAMILIES, names

ROOT = Path(__file__).resolve().parents[2]


def scaling() -> None:
    get_op("Scale")


def bare() -> None:
    """Names no operator; "Scale" stands in a comment's place, and elementwise in no quotes."""


def item(path: str, identifier: str = "", function=None, fixtures=(), **parameters):
    """What pytest knows of a test."""
    actual = SimpleNamespace(path=Path(path), function=function, fixturenames=fixtures)
    if identifier:
        actual.callspec = SimpleNamespace(id=identifier, params=parameters)
    return actual


@pytest.mark.parametrize(
    ("of", "family"),
    [
        (item("tests/families/gather/test_kernels.py"), "gather"),
        (item("tests/families/gather/test_plans.py"), "gather"),
        (item("tests/test_kernels.py", "GistPack1Encoder-float32-odd-cuda"), "gist"),
        (item("tests/gpu/test_large.py", "msfp15"), "gist"),
        (item("tests/gpu/test_capture.py", "BiasGeluGrad_dX"), "activation"),
        (item("tests/gpu/test_large_other.py", function=scaling), "elementwise"),
        (item("tests/test_in_step.py", "padding"), "padding"),
    ],
    ids=lambda value: value.path.name if isinstance(value, SimpleNamespace) else value,
)
def test_a_test_concerns_the_family_that_it_names(of, family) -> None:
    assert [f for f in FAMILIES if concerns(of, [f])] == [family]
    assert concerns(of, list(FAMILIES))


@pytest.mark.parametrize(
    "of",
    [item("tests/test_frame.py", "Scaled-1"), item("tests/gpu/test_streams.py", function=bare)],
    ids=["a longer name", "no name"],
)
def test_other_tests_concern_no_family(of) -> None:
    assert not concerns(of, ["gist", "gather"])
    assert not concerns(item("tests/test_frame.py"), list(FAMILIES))


def test_emulated_runs_are_known_by_parameter_and_fixture() -> None:
    assert emulated(item("x.py", "s-emulated-forward", run="emulated-forward"))
    assert emulated(item("x.py", fixtures=("in_every_order",)))
    assert not emulated(item("x.py", "s-cuda", run="cuda"))
    assert not emulated(item("x.py", "s-cpu", anywhere="cpu", columns=3))
    assert not emulated(item("x.py"))


CONCERNED = """
import gpu_tests

def pytest_collection_finish(session):
    for item in session.items:
        print("::", item.nodeid, gpu_tests.concerns(item, gpu_tests.FAMILIES))
"""
PATHS = (
    "tests/test_kernels.py",
    "tests/families/tensor/test_reference.py",
    "tests/families/padding/test_reference.py",
)
# Only these are collected: others have none.
LARGE = [
    str(path.relative_to(ROOT))
    for path in sorted(ROOT.glob("tests/**/test_*.py"))
    if "mark.large" in path.read_text(encoding="utf-8") and path != Path(__file__)
]
ASKED = {
    "of tensor": f"-p gpu_tests --family tensor {' '.join(PATHS)}",
    "no large": "-p gpu_tests --family tensor -m large tests/families/tensor/test_reference.py",
    "large": f"-p concerned -m large {' '.join(LARGE)}",
}


@functools.cache
def collected() -> dict[str, Ran]:
    """What each of them lists in a Python that finds the plugin, as in gpu_check.sh."""
    options = ["-q", "--collect-only", "-p", "no:cacheprovider"]
    asked = [([*options, *words.split()], {}) for words in ASKED.values()]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "concerned.py").write_text(CONCERNED)
        path = f"{ROOT / 'scripts'}:{folder}"
        actual = pytest_runs(*asked, PYTHONPATH=path, CTO_REQUIRE_GPU="1")
    return dict(zip(ASKED, actual, strict=True))


def test_every_large_test_concerns_some_family() -> None:
    lines = [line for line in collected()["large"].tests if line.startswith("::")]
    assert len(lines) > 20
    of_none = [line for line in lines if line.endswith("False")]
    assert [line for line in of_none if "tests/graphs/" not in line] == []  # models are of none


def test_a_familys_tests_are_its_files_and_its_operators() -> None:
    actual = collected()["of tensor"]
    assert actual.returncode == 0, actual.stdout
    kernels = [test for test in actual.tests if "test_kernels.py" in test]
    assert {re.search(r"\[cuda-(\w+)", test)[1] for test in kernels} == set(operators(["tensor"]))
    assert {test.partition("::")[0] for test in actual.tests} == {*PATHS[:2]}


def test_no_large_tests_are_no_failure() -> None:
    actual = collected()["no large"]
    assert (actual.returncode, actual.tests) == (0, []), actual.stdout


def test_a_failure_is_named_at_once(capsys) -> None:
    for failed in (False, True):
        pytest_runtest_logreport(SimpleNamespace(failed=failed, nodeid=f"a test, {failed}"))
    assert capsys.readouterr().out == "\nFAILED a test, True\n"


def test_operators_of_families() -> None:
    assert operators(["tensor"]) == ["ConcatTraining", "SplitTraining", "View"]
    assert operators([]) == operators(FAMILIES) == sorted(names())
