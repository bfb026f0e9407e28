# SPDX-License-Identifier: MIT
"""Host time of each operator's call as its example writes it, on hollow arrays: launches left out.

    python3 scripts/example_times.py

Examples are run with NumPy, and their calls noted; each is made again and again over CuPy arrays of
no memory, in turns with one of relu_grad. Microseconds are the processor's: a twentieth of the
calls takes less.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import click
import numpy as np
from operator_pages import EXAMPLES, FAMILIES, examples_of

import cupy_training_ops as cto
from cupy_training_ops.declare.schema import Input
from cupy_training_ops.registry import OPERATORS
from cupy_training_ops.testing.hollow import HOLLOW, hollow, hollow_launches

Action = Callable[[], Any]
WAITS = "WaitEvent"  # for an event that is recorded once


@click.command()
@click.option("--calls", type=click.IntRange(100), default=1000, show_default=True)
@click.option("--only", default="", help="Only operators whose name contains this.")
def main(calls: int, only: str) -> None:
    """Print launches, microseconds and the ratio to relu_grad of each operator's call."""
    click.echo("| operator | launches | us | of relu_grad |\n|---|---|---|---|")
    for name, action in actions(only):
        try:
            n_launches, microseconds, ratio = measured(action, calls)
        except cto.OpError as error:  # an event is recorded once, say
            click.echo(f"| {name} | | cannot be made again: {error} | |")
        else:
            click.echo(f"| {name} | {n_launches} | {microseconds:.1f} | {ratio:.2f} |")


class Noted(NamedTuple):
    """A call as an example makes it."""

    cls: Any
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    keywords: dict[str, Any]


def actions(only: str = "") -> Iterator[tuple[str, Action]]:
    """The first call of each operator in its example, over hollow arrays, by its name."""
    for family in FAMILIES:
        before, examples = examples_of(family)
        for name, code in examples.items():
            if only in name and name != WAITS:
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
        found = getattr(cto, name)
        if name in OPERATORS:
            return self._noting(OPERATORS[name], found)
        if found in OPERATORS.values():
            return lambda **attributes: self._noting(found, found(**attributes))
        return found

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


def measured(action: Action, calls: int) -> tuple[int, float, float]:
    """Launches of a call, microseconds without them, and those of relu_grad's calls beside it."""
    with hollow_launches() as launches:
        action()
        launches.clear()
        action()
        n_launches = len(launches)
        x = hollow((64, 64), np.float32)
        with nothing_noted():
            pairs = [
                (duration(action), duration(lambda: cto.relu_grad(x, x))) for _ in range(calls)
            ]
        launches.clear()
    each, beside = (sorted(found)[calls // 20] * 1e6 for found in zip(*pairs, strict=True))
    return n_launches, each, each / beside


@contextlib.contextmanager
def nothing_noted() -> Iterator[None]:
    """Launches cost nothing in the context."""
    HOLLOW.driver.notes = False
    try:
        yield
    finally:
        HOLLOW.driver.notes = True


def duration(action: Action) -> float:
    """Seconds of the processor."""
    start = time.thread_time()
    action()
    return time.thread_time() - start


if __name__ == "__main__":
    main()
