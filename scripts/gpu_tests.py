# SPDX-License-Identifier: MIT
"""A pytest plugin: run what a GPU can show, of some families or of all.

    PYTHONPATH=scripts python3 -m pytest -p gpu_tests --family gist tests

What needs no GPU is left out, beside the quick tests of the CPU provider: emulated kernels,
compilation for other architectures, ONNX Runtime on the CPU.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Collection
from pathlib import Path

import pytest
from families import operators

from cupy_training_ops import CODECS
from cupy_training_ops.registry import FAMILIES

TESTS = Path(__file__).resolve().parent.parent / "tests"
LEFT_OUT = [TESTS / name for name in ("emulator", "upstream", "test_compile.py")]
LEFT_OUT += [TESTS / "gpu" / "test_memory_checker.py"]  # gpu_check.sh runs the checker itself


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--family`."""
    parser.addoption(
        "--family", action="append", default=[], choices=list(FAMILIES), help="only this family"
    )


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files before they are imported: some take seconds to list their tests."""
    return collection_path in LEFT_OUT or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out emulated runs, and where families are named what is of none of them."""
    families = config.getoption("--family")
    selected = [i for i in items if not emulated(i) and (not families or concerns(i, families))]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(selected)])
    items[:] = selected


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name what fails at once: a machine's time may end before the summary."""
    if report.failed:
        print(f"\nFAILED {report.nodeid}", flush=True)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Let a run of large tests pass if there are none, as a family may have none."""
    none = exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
    if none and session.config.getoption("-m") == "large":
        session.exitstatus = pytest.ExitCode.OK


def emulated(item: pytest.Item) -> bool:
    """Return True if a test runs its kernels on the emulator."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = any(isinstance(value, str) and value.startswith("emulated") for value in values)
    return named or "in_every_order" in getattr(item, "fixturenames", ())


def concerns(item: pytest.Item, families: Collection[str]) -> bool:
    """Return True if file, parameters or text of a test name one of the families."""
    names = {*families, *operators(families), *(CODECS if "gist" in families else ())}
    parameters = item.callspec.id if hasattr(item, "callspec") else ""
    words = {*item.path.stem.split("_"), item.path.parent.name, *re.findall(r"\w+", parameters)}
    return not names.isdisjoint(words | quoted(getattr(item, "function", None)))


@functools.cache
def quoted(function: object) -> frozenset[str]:
    """Return the words in quotes in a test's source, such as Scale of get_op("Scale")."""
    text = inspect.getsource(function) if inspect.isfunction(function) else ""
    return frozenset(re.findall(r'"(\w+)"', text))
