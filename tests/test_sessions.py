# SPDX-License-Identifier: MIT
"""What a session of tests does by itself: chooses tests, skips without a GPU, ends what hangs."""

from __future__ import annotations

import functools
import gc
import os
import re
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path

import counts
import pytest
import tiers
from patches import Patches
from pytest_runs import Ran, pytest_runs
from runs import EMULATED_RUNS, drawn_run, drawn_samples, gpu_reason, types_and_ids

TESTS = Path(__file__).resolve().parent
NO_GPU = gpu_reason()


def run_pytest(
    path: Path | str, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A session of these tests under this checkout's configuration, on one core."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        str(TESTS.parent / "pyproject.toml"),
        str(path),
    ]
    return subprocess.run(
        [*command, *options], env=os.environ | environment, capture_output=True, text=True
    )


# ---- signals -------------------------------------------------------------------------------------

INTERRUPTS = """
import subprocess, sys

def test_it_is_not_ignored_there():
    code = "import signal; print(signal.getsignal(signal.SIGINT).__name__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert found == "default_int_handler\\n"
"""
KEPT = "[most]\nbuilds = 0\n[least]\npassed = 1\n"


@functools.cache
def in_the_background(workers: str) -> subprocess.CompletedProcess[str]:
    """A session that ignores interrupts, as under nohup, and keeps to its budget."""
    path = TESTS / f"test_interrupts_{os.getpid()}.py"  # where conftest.py counts
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        path.write_text(INTERRUPTS)
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as budget:
            print(KEPT, file=budget, flush=True)
            return run_pytest(path, "-n", workers, CTO_BUDGET=budget.name)
    finally:
        signal.signal(signal.SIGINT, before)
        path.unlink()


@pytest.mark.parametrize("workers", ["0", "1"])
def test_what_tests_start_can_be_interrupted_where_the_session_ignores_it(workers) -> None:
    result = in_the_background(workers)
    assert result.returncode == 0, result.stdout


def test_what_tests_start_may_keep_what_it_compiles() -> None:
    """Else each of some hundred processes compiles the package."""
    code = "import sys; print(sys.dont_write_bytecode)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout == "False\n"


# ---- tiers ---------------------------------------------------------------------------------------


@functools.cache
def asked() -> dict[str, Ran]:
    """What a file's tests are in each tier; it has some on emulated kernels and some elsewhere."""
    listing = [str(TESTS / "families" / "resize" / "test_kernels.py"), "--collect-only", "-q"]
    on_gpu = str(TESTS / "gpu" / "test_memory_checker.py")
    without, required = {"CTO_REQUIRE_GPU": "0"}, {"CTO_REQUIRE_GPU": "1"}
    questions = {
        "default": (listing, without),
        "thorough": ([*listing, "-m", "thorough"], without),
        "all": ([*listing, "-m", ""], without),
        "required": (listing, required),
        "without a GPU": ([on_gpu], without),
        "requires a GPU": ([on_gpu, "--maxfail=1"], required),
    }
    return dict(zip(questions, pytest_runs(*questions.values(), CTO_SEED="3"), strict=True))


def chosen(tier: str) -> list[str]:
    """The tests of a tier."""
    assert asked()[tier].returncode == 0, asked()[tier].stdout
    return asked()[tier].tests


def test_one_order_of_threads_is_the_default_and_the_others_are_thorough() -> None:
    default, thorough = chosen("default"), chosen("thorough")
    assert set(default).isdisjoint(thorough)
    orders = [
        Counter(re.sub("emulated-[a-z]*", "", test) for test in tests if "emulated-" in test)
        for tests in (default, thorough)
    ]
    assert set(orders[0].values()) == {1}
    assert orders[1] == {test: 3 - orders[0][test] for test in orders[1]}
    assert orders[0].keys() < orders[1].keys()  # of a test's types one combination
    assert {order for test in default for order in EMULATED_RUNS if order in test} == {
        *EMULATED_RUNS
    }


def test_the_seed_draws_the_order() -> None:
    assert drawn_run("test", 7) == drawn_run("test", 7)
    assert {drawn_run("test", seed) for seed in range(30)} == {*EMULATED_RUNS}
    assert {drawn_run(f"test[{i}]", 7) for i in range(30)} == {*EMULATED_RUNS}


def types_drawn(seed: int) -> dict[str, set[tuple[str, ...]]]:
    """The combinations of types that a session emulates, by operator."""
    ids = drawn_samples(seed)
    return {
        name: {types for types, sample in samples if sample in ids}
        for name, samples in types_and_ids().items()
    }


def test_the_seed_draws_one_combination_of_types_of_each_operator() -> None:
    results = [types_drawn(seed) for seed in range(40)]
    assert all(len(types) == 1 for drawn in results for types in drawn.values())
    for name, samples in types_and_ids().items():
        several = len({types for types, _ in samples}) > 1
        assert (len(set.union(*(drawn[name] for drawn in results))) > 1) == several


# ---- no GPU --------------------------------------------------------------------------------------


@pytest.mark.skipif(NO_GPU is None, reason="there is a GPU")
def test_without_a_gpu_one_line_says_what_is_left_out_and_why() -> None:
    without, failing = asked()["without a GPU"], asked()["requires a GPU"]
    assert without.returncode == 0
    (line,) = re.findall(r"^LEFT OUT.*", without.stdout, flags=re.MULTILINE)
    assert re.fullmatch(r"LEFT OUT \[[1-9]\d*\]: " + NO_GPU, line)
    assert failing.returncode == 1
    assert f"CTO_REQUIRE_GPU=1, but {NO_GPU}" in failing.stdout


@pytest.mark.skipif(NO_GPU is None, reason="there is a GPU")
def test_runs_on_a_gpu_are_left_out_alone_and_counted() -> None:
    without, required = asked()["default"], asked()["required"]
    left, all_tests = set(without.tests), set(required.tests)
    assert left == {test for test in all_tests if "cuda" not in test} != all_tests
    assert f"LEFT OUT [{len(all_tests - left)}]: {NO_GPU}" in without.stdout
    assert "LEFT OUT" not in required.stdout


def test_every_tier_together_is_all_tests() -> None:
    # the file has no large ones
    assert sorted([*chosen("default"), *chosen("thorough")]) == sorted(chosen("all"))


ABSENT = """
import tiers
tiers.is_installed = lambda name: name != "jax"
"""


@functools.cache
def without_an_oracle() -> dict[str, Ran]:
    """What is collected outside and inside of CI."""
    paths = [
        TESTS / "families" / name / "test_reference.py"
        for name in ("tensor", "gather", "resize", "lamb")
    ]
    listing = ["--collect-only", "-q", *map(str, paths)]
    questions = {ci: (listing, {"CI": ci}) for ci in ("", "true")}
    result = pytest_runs(*questions.values(), before=ABSENT, PYTHONPATH=str(TESTS))
    return dict(zip(questions, result, strict=True))


@pytest.mark.parametrize(("ci", "left"), [("", "jax (3 files)"), ("true", None)])
def test_files_whose_oracle_is_not_installed_are_left_out_and_named(ci, left) -> None:
    """But in CI: there they fail to import it."""
    result = without_an_oracle()[ci]
    assert result.returncode == 0, result.stdout
    assert "lamb/test_reference.py::" in result.stdout
    assert ("gather/test_reference.py::" in result.stdout) == (left is None)
    lines = [line for line in result.stdout.splitlines() if line.startswith("LEFT OUT for")]
    assert [line.split(":")[0] for line in lines] == ([f"LEFT OUT for lack of {left}"] * bool(left))


EXCEEDED = "[most]\ncore_seconds = 0\n[least]\nlaunches = 1\npassed = 2\n"
EXCESS = ["over budget: core_seconds", "under budget: launches 0", "under budget: passed 1"]


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_run_within_its_budget_passes(workers) -> None:
    result = in_the_background(workers)
    assert (result.returncode, " budget: " in result.stdout) == (0, False), result.stdout


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_run_outside_its_budget_fails(tmp_path, workers) -> None:
    file = tmp_path / "budget.toml"
    file.write_text(EXCEEDED)
    test = f"{TESTS / 'test_values.py'}::test_attributes_cannot_be_deleted"
    result = run_pytest(test, "-n", workers, CTO_BUDGET=str(file))
    assert result.returncode == 1, result.stdout
    results = [line for line in result.stdout.splitlines() if " budget: " in line]
    pairs = zip(results, EXCESS, strict=True)
    assert all(line.startswith(text) for line, text in pairs), results


def test_the_budget_names_what_is_counted() -> None:
    budget = tomllib.loads((TESTS / "budget.toml").read_text())
    huge = dict.fromkeys(budget["most"], 1e12)
    assert len(counts.outside(huge, budget)) == len(budget["most"]) + len(budget["least"])
    assert counts.outside(dict.fromkeys(budget["least"], 1e12), budget) == []


@pytest.mark.parametrize(
    ("cores", "reason", "workers"), [(64, None, 4), (2, None, 2), (64, "no GPU", 65)]
)
def test_a_gpu_has_at_most_four_workers(monkeypatch, cores, reason, workers) -> None:
    monkeypatch.setattr(tiers, "gpu_reason", lambda: reason)
    assert tiers.workers(cores) == workers


SKIPPING = """
import pytest
if "part" in __name__:
    pytest.skip("no PyTorch", allow_module_level=True)
def test_runs(): pass
@pytest.mark.parametrize("x", ["a b"])
def test_skips(x): pytest.importorskip("absent", reason="no absent")
"""


class Limited:
    """A test whose limit is so many seconds, or that of all."""

    def __init__(self, seconds: int | None) -> None:
        self.mark = None if seconds is None else pytest.mark.timeout(seconds).mark

    def get_closest_marker(self, name: str):
        return self.mark if name == "timeout" else None


def test_what_may_take_longest_begins_first(pytestconfig) -> None:
    tests = first, second, longer, _, longest = [Limited(n) for n in (None, 20, 600, None, 900)]
    tiers.Tiers().pytest_collection_modifyitems(pytestconfig, tests)
    assert tests[:4] == [longest, longer, first, second]


@pytest.mark.parametrize("workers", ["0", "1"])
def test_what_is_skipped_is_listed_for_another_session(tmp_path, workers) -> None:
    tests, listed = TESTS / "codecs", tmp_path / "skipped"
    (tmp_path / "conftest.py").write_text(
        f"import sys; sys.path.insert(0, {str(tests.parent)!r}); import tiers\n"
        "def pytest_configure(config): config.pluginmanager.register(tiers.Tiers())\n"
    )
    (tmp_path / "test_some.py").write_text(SKIPPING)
    (tmp_path / "test_part.py").write_text(SKIPPING)
    run_pytest(tmp_path, "-n", workers, CTO_SKIPPED=str(listed))
    results = [line.split("\t") for line in sorted(listed.read_text().splitlines())]
    assert [reason.removeprefix("Skipped: ") for reason, _ in results] == [
        "no PyTorch",
        "no absent",
    ]
    assert [test.rpartition("/")[2] for _, test in results] == [
        "test_part.py",
        "test_some.py::test_skips[a b]",
    ]


# ---- patches -------------------------------------------------------------------------------------


def test_a_patched_method_of_an_instance_hides_no_later_patch_of_its_class() -> None:
    class Answer:
        def number(self) -> int:
            return 0

    answer = Answer()
    with Patches.context() as patches:
        patches.setattr(answer, "number", lambda: 1)
        assert answer.number() == 1
    with Patches.context() as patches:
        patches.setattr(Answer, "number", lambda _: 2)
        assert answer.number() == 2


def test_all_tests_have_that_patch(monkeypatch) -> None:
    assert type(monkeypatch) is Patches


# ---- garbage -------------------------------------------------------------------------------------


def test_no_look_for_garbage_goes_through_what_was_collected(request) -> None:
    assert gc.isenabled()
    assert request.node in request.session.items
    assert all(result is not request.node for result in gc.get_objects())


# ---- time limits ---------------------------------------------------------------------------------

# Waits where Python's signal handlers do not run, as an emulated kernel may.
HANGING = """
import ctypes

def test_hangs():
    ctypes.CDLL(None).sleep(100)
"""


WATCHED = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
import watchdog

def pytest_configure(config):
    config.pluginmanager.register(watchdog.Watchdog())
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_hang_is_a_failure(tmp_path: Path, workers: str) -> None:
    (tmp_path / "conftest.py").write_text(WATCHED)
    (tmp_path / "test_hanging.py").write_text(HANGING)
    result = run_pytest(tmp_path, "--timeout=1", "-n", workers)
    assert result.returncode == 1
    assert "test_hangs" in result.stdout
    assert 'test_hanging.py", line 5 in test_hangs' in result.stderr
    assert ("Timeout" in result.stdout) == (workers == "0")


SHORT = """
import time, pytest

@pytest.mark.parametrize("_", range(3))
def test_takes_less(_):
    time.sleep(0.7)

@pytest.mark.timeout(30)
def test_may_take_more():
    time.sleep(1.8)
"""


def test_a_time_limit_is_that_of_one_test(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(WATCHED)
    (tmp_path / "test_short.py").write_text(SHORT)
    result = run_pytest(tmp_path, "--timeout=1.5")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Timeout" not in result.stderr


def test_every_test_has_a_time_limit(pytestconfig: pytest.Config) -> None:
    assert 0 < float(pytestconfig.getini("timeout")) <= 300
    assert pytestconfig.getini("timeout_method") == "thread"
