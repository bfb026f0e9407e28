# SPDX-License-Identifier: MIT
"""Fixtures of all tests: seeds, and the runs that kernel tests go through.

Tests are in tiers, by marker: what has none runs by default, `-m thorough` runs the rest, and
`-m large` what needs a large GPU: see tiers.py.
"""

from __future__ import annotations

import gc
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

from xla_flags import FLAGS

# JAX is an oracle on the CPU; left to itself it takes most of a GPU's memory. With float64 in every
# test, or which types it computes in would depend on which tests ran before.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_ENABLE_X64"] = "1"
os.environ["XLA_FLAGS"] = FLAGS
# There is a worker for each core; threads of OpenBLAS would wait for each other, at full speed.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hypothesis
import numpy as np
import pytest
from counts import Counts
from emulator.toolchain import cache_folder
from messages import Messages
from patches import Patches
from runs import EMULATED_RUNS, RUNS, Run, reason_not_to_run
from tiers import Tiers, missing, skip_unless_available, workers
from watchdog import Watchdog

from cupy_training_ops.device import compiler

ROOT = Path(__file__).resolve().parent.parent

# Timings never decide a test: a busy machine is no failure.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hostile", "attacks on calls, files and commands (tests/hostile)")
    cases = "draw N calls and a quarter as many damaged files, instead of 2,000"
    group.addoption("--hostile-cases", type=int, metavar="N", help=cases)
    group.addoption("--hostile-case", type=int, metavar="NUMBER", help="only this case")


def pytest_configure(config: pytest.Config) -> None:
    # Set before xdist starts its workers, so that all of them draw the same samples.
    os.environ.setdefault("CTO_SEED", str(secrets.randbelow(2**31)))
    lend_interrupts()
    lend_checkout()
    lend_folder(config, "CUPY_CACHE_DIR", compiler.cache_folder())
    lend_folder(config, "CTO_EMULATOR_CACHE", str(cache_folder()))
    lend_folder(config, "HYPOTHESIS_STORAGE_DIRECTORY", ".hypothesis")
    counts = Counts()
    counts.watch()
    config.pluginmanager.register(counts, "counts")
    config.pluginmanager.register(Tiers(), "tiers")
    config.pluginmanager.register(Watchdog(), "watchdog")
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Messages(), "messages")


def lend_interrupts() -> None:
    """What tests start can be interrupted, also where this session cannot.

    In the background of a script, or in some CI systems, it starts with SIGINT and SIGQUIT ignored,
    and what it starts would ignore them too. A signal that is handled, by whatever, is not ignored
    in those.
    """
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def lend_checkout() -> None:
    """What tests start finds what they find, in whatever folder: the package may not be installed.

    Here it then comes from the folder that pytest was started in, or from PYTHONPATH. Compiled by
    the first of hundreds of processes, and not by each: that took more than what most then do.
    """
    paths = [ROOT, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(map(os.path.abspath, paths)))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def lend_folder(config: pytest.Config, variable: str, folder: str) -> None:
    """A folder for this session where the one it has cannot be written, as in a container.

    What happens without one has tests of its own, in processes of their own.
    """
    folder = os.environ.get(variable, folder)
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError:
        lent = tempfile.TemporaryDirectory(prefix="cto-")
    config.add_cleanup(lent.cleanup)
    os.environ[variable] = lent.name


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """At most four on a machine with a GPU, unless a number is asked for."""
    return workers((yield))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected lives as long as the session: no look for garbage goes through it.

    With as many objects as tests, and JAX, have, these took a tenth of a session's processor time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000)
        gc.enable()


def pytest_report_header() -> str:
    return f"CTO_SEED={os.environ['CTO_SEED']} repeats this run's random inputs and thread orders"


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Nor through what a file's tests have left: those that collect garbage took half a second.

    What a test compiled is forgotten: Dynamo compiles one code object for eight cases at most, and
    the forward passes of converted modules are few.
    """
    dynamo = sys.modules.get("torch._dynamo")
    if hasattr(dynamo, "reset"):
        dynamo.reset()
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    skip_unless_available(missing(item))  # not in the fixture: this counts as one place


@pytest.fixture
def monkeypatch() -> Iterator[pytest.MonkeyPatch]:
    """Patch attributes, items and variables until the test's end."""
    with Patches.context() as patches:
        yield patches


@pytest.fixture
def seed() -> int:
    """The session's seed; the report header says how to repeat it."""
    return int(os.environ["CTO_SEED"])


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """Fresh random numbers, the same for every test of a session."""
    return np.random.default_rng(seed)


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest, seed: int):
    """Where a kernel test runs: on emulated kernels, in one or all thread orders, or on the GPU."""
    with Run(request.param, seed) as active:
        yield active


@pytest.fixture(params=("cpu", *RUNS))
def anywhere(request: pytest.FixtureRequest, seed: int):
    """As `run`, and on the CPU provider."""
    with Run(request.param, seed) as active:
        yield active


@pytest.fixture
def in_every_order(seed: int):
    """Calls a function with a run in each order of emulated threads; the list of its results."""
    skip_unless_available(reason_not_to_run(EMULATED_RUNS[0]))

    def results(function):
        actual = []
        for name in EMULATED_RUNS:
            with Run(name, seed) as run:
                actual.append(function(run))
        return actual

    return results
