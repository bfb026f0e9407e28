# SPDX-License-Identifier: MIT
"""What a session of tests does by itself: chooses tests, skips without a GPU, ends what hangs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from runs import EMULATED_RUNS, drawn_run, drawn_samples, gpu_reason

from cupy_training_ops.testing.samples import all_samples, sampled

TESTS = Path(__file__).resolve().parent
NO_GPU = gpu_reason()


def run_pytest(path: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
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


@pytest.mark.parametrize("workers", ["0", "1"])
def test_what_tests_start_can_be_interrupted_where_the_session_ignores_it(workers) -> None:
    """As under nohup, or in the background of a script."""
    path = TESTS / f"test_interrupts_{workers}.py"  # where conftest.py counts
    path.write_text(INTERRUPTS)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        result = run_pytest(path, "-n", workers)
    finally:
        signal.signal(signal.SIGINT, before)
        path.unlink()
    assert result.returncode == 0, result.stdout


# ---- tiers ---------------------------------------------------------------------------------------


def chosen(seed: int, *options: str) -> list[str]:
    """The tests of a file that are chosen; it has some on emulated kernels and some elsewhere."""
    path = TESTS / "ops" / "test_resize.py"
    result = run_pytest(path, "--collect-only", "-q", *options, CTO_SEED=str(seed))
    assert result.returncode == 0, result.stdout
    return [line for line in result.stdout.splitlines() if "::" in line]


def test_one_order_of_threads_is_the_default_and_the_others_are_thorough() -> None:
    default, thorough = chosen(3), chosen(3, "-m", "thorough")
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
        name: {sample.types for sample in samples if sample.id in ids}
        for name, samples in all_samples().items()
        if samples
    }


def test_the_seed_draws_one_combination_of_types_of_each_operator() -> None:
    found = [types_drawn(seed) for seed in range(40)]
    assert all(len(types) == 1 for drawn in found for types in drawn.values())
    for name in sampled():
        samples = all_samples()[name]
        several = len({sample.types for sample in samples}) > 1
        assert (len(set.union(*(drawn[name] for drawn in found))) > 1) == several


# ---- no GPU --------------------------------------------------------------------------------------


@pytest.mark.skipif(NO_GPU is None, reason="there is a GPU")
def test_without_a_gpu_one_line_says_what_is_skipped_and_why() -> None:
    path = TESTS / "gpu" / "test_memory_checker.py"
    skipping = run_pytest(path, CTO_REQUIRE_GPU="0")
    assert skipping.returncode == 0
    (line,) = re.findall(r"^SKIPPED.*", skipping.stdout, flags=re.MULTILINE)
    assert line.endswith(f": {NO_GPU}")
    failing = run_pytest(path, "--maxfail=1", CTO_REQUIRE_GPU="1")
    assert failing.returncode == 1
    assert f"CTO_REQUIRE_GPU=1, but {NO_GPU}" in failing.stdout


# ---- time limits ---------------------------------------------------------------------------------

# Waits where Python's signal handlers do not run, as an emulated kernel may.
HANGING = """
import ctypes

def test_hangs():
    ctypes.CDLL(None).sleep(100)
"""


def test_a_hang_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING)
    result = run_pytest(tmp_path, "--timeout=1")
    assert result.returncode == 1
    assert "test_hangs" in result.stdout
    assert "Timeout" in result.stdout


def test_every_test_has_a_time_limit(pytestconfig: pytest.Config) -> None:
    assert 0 < float(pytestconfig.getini("timeout")) <= 300
    assert pytestconfig.getini("timeout_method") == "thread"
