# SPDX-License-Identifier: MIT
"""Which tests a session makes: those of its tier that this machine can run.

Of a test on emulated kernels one thread order and one combination of types, drawn for the session,
are in the default tier, as of an operator's samples; the others are thorough. What is not chosen
is left out before pytest makes a test of it, which takes longer than to run some.
"""

from __future__ import annotations

import collections
import functools
import os
import random
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import (
    EMULATED_RUNS,
    built,
    drawn,
    drawn_run,
    drawn_samples,
    drawn_types,
    gpu_reason,
    reason_not_to_run,
)

# Where skipped tests and files are listed, each behind its reason, for a session that has what was
# missing. Sessions that tests start do not inherit it.
SKIPPED = os.environ.pop("CTO_SKIPPED", None)

DEFAULT = "not large and not thorough"  # pyproject.toml's -m
TIERS = ("large", "thorough")

ORACLES = (
    "jax",
    "mpmath",
    "onnx",
    "optax",
    "sklearn",
)  # what the extra `test` brings and `gputest` not
IMPORT = re.compile(r"^(?:import|from) (\w+)", re.MULTILINE)
LIMIT = 300  # seconds of other tests, as in pyproject.toml
MOST_SESSIONS = 0.8
GPU_WORKERS = 4  # each compiles and holds arrays on the one GPU


class Tiers:
    """A plugin of pytest: leaves tests out while they are collected, and says how many and why."""

    def __init__(self) -> None:
        self._left_out: collections.Counter[str] = collections.Counter()
        self._without: collections.Counter[str] = collections.Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Any:
        """Leave out the tests of a file that imports an oracle which is not installed."""
        if not isinstance(collector, pytest.Module) or os.environ.get("CI") == "true":
            return None
        absent = [name for name in oracles_of(collector.path) if not is_installed(name)]
        self._without.update(absent)
        return pytest.CollectReport(collector.nodeid, "passed", None, []) if absent else None

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around the fixtures' own parameters
    def pytest_generate_tests(self, metafunc: Any) -> Iterator[None]:
        """Mark what is thorough; drop what would not run."""
        yield
        calls = metafunc._calls
        mark_thorough(metafunc, calls)
        tier = metafunc.config.option.markexpr
        own = {mark.name for mark in metafunc.definition.iter_markers()}
        remaining = [call for call in calls if of_tier(call, tier, own) and self._can_run(call)]
        calls[:] = remaining or calls[:1]  # without any, pytest makes a test without parameters

    def _can_run(self, call: Any) -> bool:
        name = run_of(call)
        return name is None or not self._leave_out(reason_not_to_run(name))

    def _leave_out(self, reason: str | None) -> bool:
        """Whether a reason is one to leave a test out, which is then counted."""
        if reason is None or must_run(reason):
            return False
        self._left_out[reason] += 1
        return True

    @pytest.hookimpl(trylast=True)  # of those that -m and -k chose
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave out the tests of what this machine has not."""
        out = {item for item in items if self._leave_out(missing(item))}
        config.hook.pytest_deselected(items=list(out))
        remaining = (item for item in items if item not in out)
        items[:] = sorted(remaining, key=most_seconds, reverse=True)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tests that all need a GPU are no failure without one."""
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self._left_out:
            session.exitstatus = pytest.ExitCode.OK
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["left_out"] = dict(self._left_out)
            session.config.workeroutput["without"] = dict(self._without)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """All workers of pytest-xdist collect the same."""
        output = getattr(node, "workeroutput", {})
        self._left_out |= collections.Counter(output.get("left_out"))
        self._without |= collections.Counter(output.get("without"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        note_skipped(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        note_skipped(report)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """One line for each reason."""
        for reason, count in self._left_out.items():
            terminalreporter.line(f"LEFT OUT [{count}]: {reason}")
        if self._without:
            files = ", ".join(f"{name} ({n} files)" for name, n in sorted(self._without.items()))
            terminalreporter.line(f"LEFT OUT for lack of {files}: the extra `test` brings them")


def oracles_of(path: Path) -> set[str]:
    """The oracles that a file imports at its head."""
    return set(IMPORT.findall(path.read_text(encoding="utf-8"))).intersection(ORACLES)


@functools.cache
def is_installed(name: str) -> bool:
    """Whether a package is found, which is quicker than to import it."""
    return find_spec(name) is not None


def workers(cores: int) -> int:
    """How many workers `-n auto` starts: without a GPU one more than there are cores, as some tests
    wait for processes most of their time."""
    return cores + 1 if gpu_reason() is not None else min(GPU_WORKERS, cores)


def note_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    """List what was skipped. Workers of pytest-xdist have no list: the controller hears of all."""
    if SKIPPED is None or not report.skipped:
        return
    reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
    with open(SKIPPED, "a", encoding="utf-8") as file:
        file.write(f"{reason}\t{report.nodeid}\n")


def mark_thorough(metafunc: Any, calls: list[Any]) -> None:
    """Of a function's calls on emulated kernels, all but those that this session draws."""
    seed = int(os.environ["CTO_SEED"])
    emulated = [call for call in calls if run_of(call) in EMULATED_RUNS]
    if not emulated:
        return
    path, results = metafunc.definition.path, {types_of(call) for call in emulated}
    share = random.Random(f"{seed} {path.name}").random()
    types = drawn(types_to_draw(results, path.parent.name, seed), share)
    for call in emulated:
        test = f"{metafunc.definition.nodeid}[{call.id}]"
        if not is_drawn(test, call, types, seed):
            call.marks.append(pytest.mark.thorough.mark)


def types_to_draw(types: set[tuple[str, ...]], family: str, seed: int) -> set[tuple[str, ...]]:
    """In most sessions those that the family's drawn samples are built for: g++ takes seconds for
    each. In others all: some are no sample's."""
    if random.Random(f"{seed} types of {family}").random() > MOST_SESSIONS:
        return types
    return built(types, drawn_types(seed).get(family, ())) or types


def is_drawn(test: str, call: Any, types: tuple[str, ...], seed: int) -> bool:
    """Whether a test of emulated kernels is one that this session draws."""
    sample, run = call.params.get("sample"), run_of(call)
    assert run is not None
    if types_of(call) != types or (sample is not None and sample.id not in drawn_samples(seed)):
        return False
    return run == drawn_run(test.replace(run, ""), seed)


def types_of(call: Any) -> tuple[str, ...]:
    """The names of dtypes among a test's parameters."""
    return tuple(x.name for x in call.params.values() if isinstance(x, np.dtype))


def of_tier(call: Any, tier: str, own: set[str]) -> bool:
    """Whether the marks of a call, and its function's own, are of the tier that `-m` asks for."""
    names = own | {mark.name for mark in call.marks}
    if tier == DEFAULT:
        return names.isdisjoint(TIERS)
    return tier not in TIERS or tier in names


def run_of(call: Any) -> str | None:
    """The run that a test is parametrized with, if it is."""
    name: str | None = call.params.get("run", call.params.get("anywhere"))
    return name


def most_seconds(item: pytest.Item) -> float:
    """The limit of a test that says how long it may take. It begins before others, which the
    workers then share while it runs: at the end the others would wait for it."""
    marker = item.get_closest_marker("timeout")
    return marker.args[0] if marker and marker.args[0] > LIMIT else 0


def missing(item: pytest.Item) -> str | None:
    """Which GPUs a test is marked to need that are not here, or None."""
    several = item.get_closest_marker("multi_gpu")
    if several or item.get_closest_marker("gpu"):
        return gpu_reason(2 if several else 1)
    return run_missing(item)


def run_missing(item: pytest.Item) -> str | None:
    """Why a test's run is not possible here, or None."""
    name = run_of(item.callspec) if hasattr(item, "callspec") else None
    return None if name is None else reason_not_to_run(name)


def must_run(reason: str) -> bool:
    """Whether the machine is said to have what is missing: then the test is made, and fails."""
    if "emulator" in reason:
        return os.environ.get("CI") == "true"
    return os.environ.get("CTO_REQUIRE_GPU") == "1" and gpu_reason() is not None


def skip_unless_available(reason: str | None) -> None:
    """Skip with the reason, or fail where the machine is said to have what is missing."""
    if reason is None:
        return
    if os.environ.get("CTO_REQUIRE_GPU") == "1" and gpu_reason() is not None:
        pytest.fail(f"CTO_REQUIRE_GPU=1, but {gpu_reason()}")
    if os.environ.get("CI") == "true" and "emulator" in reason:
        pytest.fail(f"CI=true, but {reason}")
    pytest.skip(reason)
