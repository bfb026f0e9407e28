# SPDX-License-Identifier: MIT
"""Fixtures of all tests: seeds, the GPU probe, and the runs that kernel tests go through."""

from __future__ import annotations

import os
import secrets

# JAX is an oracle on the CPU; left to itself it takes most of a GPU's memory. With float64 in every
# test, or which types it computes in would depend on which tests ran before.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_ENABLE_X64"] = "1"

import hypothesis
import numpy as np
import pytest
from runs import RUNS, Run, gpu_reason, reason_not_to_run

# Timings never decide a test: a busy machine is no failure.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_configure() -> None:
    # Set before xdist starts its workers, so that all of them draw the same samples.
    os.environ.setdefault("CTO_SEED", str(secrets.randbelow(2**31)))


def pytest_report_header() -> str:
    return f"CTO_SEED={os.environ['CTO_SEED']} repeats this run's random inputs"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") or item.get_closest_marker("multi_gpu"):
        skip_unless_available(gpu_reason(2 if item.get_closest_marker("multi_gpu") else 1))


def skip_unless_available(reason: str | None) -> None:
    """Skip with the reason, or fail where the machine is said to have what is missing."""
    if reason is None:
        return
    if os.environ.get("CTO_REQUIRE_GPU") == "1" and gpu_reason() is not None:
        pytest.fail(f"CTO_REQUIRE_GPU=1, but {gpu_reason()}")
    if os.environ.get("CI") == "true" and "emulator" in reason:
        pytest.fail(f"CI=true, but {reason}")
    pytest.skip(reason)


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
    """Where a kernel test runs: on emulated kernels in three thread orders, or on the GPU."""
    yield from _active_run(request.param, seed)


@pytest.fixture
def in_every_order(seed: int):
    """Calls a function with a run in each order of emulated threads; the list of its results."""
    names = [name for name in RUNS if name.startswith("emulated")]
    skip_unless_available(reason_not_to_run(names[0]))

    def results(function):
        found = []
        for name in names:
            with Run(name, seed) as run:
                found.append(function(run))
        return found

    return results


@pytest.fixture(params=("cpu", *RUNS))
def anywhere(request: pytest.FixtureRequest, seed: int):
    """As `run`, and on the CPU provider."""
    yield from _active_run(request.param, seed)


def _active_run(name: str, seed: int):
    skip_unless_available(reason_not_to_run(name))
    with Run(name, seed) as active:
        yield active
