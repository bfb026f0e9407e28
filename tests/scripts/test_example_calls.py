# SPDX-License-Identifier: MIT
"""Calls as the operators' examples write them: those that are made again run little of the package.

Seconds stand in no test: functions are counted. Examples are run with NumPy, and their calls noted;
each is made again over CuPy arrays of no memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import cupy_training_ops as cto

pytest.importorskip("cupy", reason="CuPy is in the extras")

from operator_pages import EXAMPLES, FAMILIES, examples_of

from cupy_training_ops.declare.schema import Input
from cupy_training_ops.registry import OPERATORS
from cupy_training_ops.testing.hollow import hollow, hollow_launches

Action = Callable[[], Any]
PACKAGE = Path(cto.__file__).parent
WAITS = "WaitEvent"  # for an event that is recorded once
MOST = 51
OF_STEPS = 84  # whose numbers change: rates, steps, scales
STEPS = {
    "AdamCodedList",
    "AdamLargestList",
    "AdamOptimizer",
    "AdamOptimizerList",
    "AdamWOptimizer",
    "LambOptimizer",
    "SGDMomentumList",
    "SGDOptimizerList",
    "SGDOptimizerV2",
}


class Noted(NamedTuple):
    """A call as an example makes it."""

    cls: Any
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    keywords: dict[str, Any]


def actions() -> Iterator[tuple[str, Action]]:
    """The first call of each operator in its example, over hollow arrays, by its name."""
    for family in FAMILIES:
        before, examples = examples_of(family)
        for name, code in examples.items():
            if name != WAITS:
                yield from ((name, again(call)) for call in noted(family, before, name, code))


def noted(family: str, before: str, name: str, code: str) -> list[Noted]:
    """An example's first call of its operator, if it makes one that needs no other rank."""
    notes = Notes()
    names: dict[str, Any] = {"print": lambda *_, **__: None}
    exec(compile(before, f"{EXAMPLES / family}.py", "exec"), names)
    names["cto"] = notes
    exec(compile(code, name, "exec"), names)
    alone = [call for call in notes.calls if "group" not in call.keywords]
    if any(call.cls.runs_functions for call in alone):  # of the caller's: they would read memory
        return []
    return [call for call in alone if call.cls.name == name][:1]


class Notes:
    """The package, with operators that note how they are called."""

    def __init__(self) -> None:
        self.calls: list[Noted] = []

    def __getattr__(self, name: str) -> Any:
        actual = getattr(cto, name)
        if name in OPERATORS:
            return self._noting(OPERATORS[name], actual)
        if actual in OPERATORS.values():
            return lambda **attributes: self._noting(actual, actual(**attributes))
        return actual

    def _noting(self, cls: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*inputs: Any, **keywords: Any) -> Any:
            self.calls.append(Noted(cls, function, inputs, keywords))
            return function(*inputs, **keywords)

        return call


def again(call: Noted) -> Action:
    """The same call over hollow arrays."""
    inputs = [
        on_device(item, value) for item, value in zip(call.cls.inputs, call.inputs, strict=False)
    ]
    by_name = {item.name: item for item in call.cls.inputs}
    keywords = {
        name: on_device(by_name[name], value) if name in by_name else value
        for name, value in call.keywords.items()
    }
    if "out" in keywords:
        keywords["out"] = hollow_like(keywords["out"])
    return lambda: call.function(*inputs, **keywords)


def on_device(item: Input, value: Any) -> Any:
    """An input where it lives."""
    return value if item.memory == "host" else hollow_like(value)


def hollow_like(value: Any) -> Any:
    """Hollow arrays like arrays; anything else as it is."""
    if isinstance(value, list | tuple):
        return type(value)(map(hollow_like, value))
    return hollow(value.shape, value.dtype) if isinstance(value, np.ndarray) else value


def functions_run(action) -> int:
    """How many of the package's functions an action runs; what replaces a GPU does not count."""
    actual = []

    def note(frame, event, _) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in file.parents and "testing" not in file.parts:
            actual.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return len(actual)


def test_a_call_like_one_before_runs_few_functions() -> None:
    n_made = 0
    for name, action in actions():
        with hollow_launches():
            try:
                action()
                action()
            except cto.OpError:  # an event is recorded once, say
                continue
            assert functions_run(action) <= (OF_STEPS if name in STEPS else MOST), name
            n_made += 1
    assert n_made > 100
