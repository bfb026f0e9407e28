# SPDX-License-Identifier: MIT
"""Counts what a run samples and what it costs; the terminal summary prints both.

What is sampled: tests passed, kernels launched on the emulator, results compared, and the tests
that ask an independent implementation. What it costs: seconds of all processors, of this session's
processes and of those that they started. Where CTO_BUDGET names a file such as budget.toml, a run
that samples less, or costs more, than stands there has failed.
"""

from __future__ import annotations

import collections
import functools
import os
import resource
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import emulator
import numpy as np
import pytest
from emulator import toolchain
from numpy.testing._private import utils as numpy_testing

from cupy_training_ops.testing import compare

BUDGET = os.environ.pop("CTO_BUDGET", None)  # not of sessions that tests start
ORACLES = ("jax", "mpmath", "onnx", "onnxruntime", "optax", "sklearn", "torch")


class Counts:
    """A plugin of pytest: counts in each worker, and adds up where the summary is printed."""

    def __init__(self) -> None:
        self.found: collections.Counter[str] = collections.Counter()
        self._collected = 0.0
        self._has_workers = False

    def count(self, owner: Any, name: str, note: Callable[..., Mapping[str, float]]) -> None:
        """Replace a function by one that also adds what `note` makes of its arguments."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def counted(*args: Any, **options: Any) -> Any:
            self.found.update(note(*args, **options))
            return function(*args, **options)

        setattr(owner, name, counted)

    def watch(self) -> None:
        """Before a test module is imported: they take the functions by name."""
        self.count(emulator.EmulatedKernel, "__call__", lambda *_, **__: {"launches": 1})
        self.count(compare, "assert_matches", compared)
        self.count(numpy_testing, "assert_array_compare", lambda _, *a, **__: compared(*a))
        self._time(toolchain, "_compile")

    def _time(self, owner: Any, name: str) -> None:
        function = getattr(owner, name)

        @functools.wraps(function)
        def timed(*args: Any) -> Any:
            start, before = time.monotonic(), children()
            result = function(*args)
            seconds, core_seconds = time.monotonic() - start, children() - before
            self.found.update(
                {"builds": 1, "build_seconds": seconds, "build_core_seconds": core_seconds}
            )
            return result

        setattr(owner, name, timed)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        start = time.process_time()
        result = yield
        self._collected = time.process_time() - start
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        report = yield
        if report.when == "call" and report.passed:
            self.found.update(["passed", *map("asks_{}".format, oracles(item.module))])
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # A controller's children are the workers, which say themselves what they used.
        self.found["core_seconds"] += own() + (0 if self._has_workers else children())
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["counts"] = {**self.found, "collected": self._collected}
        if self.excess() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._has_workers = True
        theirs = dict(getattr(node, "workeroutput", {}).get("counts", {}))
        self._collected = max(self._collected, theirs.pop("collected", 0.0))
        self.found.update(theirs)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("what was sampled, and what it cost")
        for line in [*self.lines(), *self.excess()]:
            terminalreporter.line(line)

    def excess(self) -> list[str]:
        """Where the run is outside its budget."""
        if BUDGET is None:
            return []
        results = {**self.found, "collect_seconds": self._collected}
        return outside(results, tomllib.loads(Path(BUDGET).read_text(encoding="utf-8")))

    def lines(self) -> list[str]:
        """The summary."""
        result = self.found
        asks = ", ".join(f"{name} {result['asks_' + name]:,}" for name in ORACLES)
        return [
            f"{result['passed']:,} tests passed, {result['launches']:,} kernels launched, "
            f"{result['comparisons']:,} results compared with {result['elements']:,} elements",
            f"tests beside an oracle: {asks}",
            f"{result['builds']} builds with g++, {result['build_seconds']:.0f} s, "
            f"{result['build_core_seconds']:.0f} core-seconds",
            f"{result['core_seconds']:.0f} core-seconds in all, {self._collected:.1f} s to collect",
        ]


def outside(counts: Mapping[str, float], budget: Mapping[str, Mapping[str, float]]) -> list[str]:
    """What is more or less than its budget says."""
    over = [
        f"over budget: {name} {counts.get(name, 0):.0f}, at most {most}"
        for name, most in budget["most"].items()
        if counts.get(name, 0) > most
    ]
    return over + [
        f"under budget: {name} {counts.get(name, 0):.0f}, at least {least}"
        for name, least in budget["least"].items()
        if counts.get(name, 0) < least
    ]


def compared(actual: Any, *_: Any, **__: Any) -> dict[str, int]:
    """A comparison of arrays."""
    return {"comparisons": 1, "elements": np.size(actual)}


def oracles(module: Any) -> list[str]:
    """Those that a test's module has imported."""
    own = [value for value in vars(module).values() if isinstance(value, ModuleType)]
    roots = {value.__name__.partition(".")[0] for value in own}
    return [name for name in ORACLES if name in roots]


def own() -> float:
    """Processor seconds of this process."""
    return time.process_time()


def children() -> float:
    """Processor seconds of processes that it started and that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
