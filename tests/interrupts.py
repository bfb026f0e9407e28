# SPDX-License-Identifier: MIT
"""Calls that are interrupted: once at each distinct line of the package that they run, or by
signals at random moments.

    prepare() -> subject      begins anew, or goes back to the state before
    call(subject)             what is interrupted
    check(subject, place)     compares the state afterwards; place is a line, or a moment
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar

import numpy as np

import cupy_training_ops

T = TypeVar("T")
PACKAGE = str(Path(cupy_training_ops.__file__).parent)


class Line(NamedTuple):
    """A line of a file."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{Path(self.file).relative_to(Path(PACKAGE).parent)}:{self.number}"


def apart(call: Callable[[], T]) -> T:
    """Call, and end what the call leaves under way.

    Python leaves an exception under way where an `except` block is interrupted as it ends: later
    tests would have it as the context of theirs. A generator has a state of exceptions of its own.
    """

    def running() -> Iterator[T]:
        yield call()

    return next(running())


@contextlib.contextmanager
def traced(trace: Any) -> Iterator[None]:
    """This thread's new frames are traced inside."""
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def lines_of(call: Callable[[], object], folder: str = PACKAGE) -> Counter[Line]:
    """How often a call comes to each line below a folder, in the order of the first times."""
    results: Counter[Line] = Counter()

    def at_call(frame: FrameType, *_: object) -> Any:
        return at_line if frame.f_code.co_filename.startswith(folder) else None

    def at_line(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            results[Line(frame.f_code.co_filename, frame.f_lineno)] += 1
        return at_line

    with traced(at_call):
        call()
    return results


@contextlib.contextmanager
def interrupted(
    line: Line, error: type[BaseException] = KeyboardInterrupt, nth: int = 1
) -> Iterator[list[Line]]:
    """The nth time that a line is come to inside, an error is raised there: then it is listed."""
    with_line: dict[CodeType, bool] = {}
    raised: list[Line] = []
    times = itertools.count(1)

    def at_call(frame: FrameType, *_: object) -> Any:
        code = frame.f_code
        if code.co_filename != line.file:
            return None
        if code not in with_line:
            with_line[code] = any(number == line.number for *_, number in code.co_lines())
        return at_line if with_line[code] else None

    def at_line(frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and frame.f_lineno == line.number and next(times) == nth:
            sys.settrace(None)
            raised.append(line)
            raise error(f"at {line}")
        return at_line

    with traced(at_call):
        yield raised


def at_each_line(
    prepare: Callable[[], Any],
    call: Callable[[Any], object],
    check: Callable[[Any, Line], None],
    *,
    folder: str = PACKAGE,
    error: type[BaseException] = KeyboardInterrupt,
) -> list[Line]:
    """Interrupt a call at each distinct line of a folder's files, the first time and the last time
    that it comes there; all these lines.

    Where it does not come there again, since what the line looks for was made before, it goes on to
    its end, and is checked as well.
    """
    call(prepare())  # what is made once is there
    subject = prepare()
    lines = lines_of(lambda: call(subject), folder)
    for line, times in lines.items():
        for nth in {1, times}:
            subject = prepare()
            with as_before(), contextlib.suppress(error), interrupted(line, error, nth):
                apart(partial(call, subject))
            check(subject, line)
    return list(lines)


@contextlib.contextmanager
def as_before() -> Iterator[None]:
    """Put back modes of other libraries: an interrupt as a context of theirs is left leaves it."""
    torch, errors = sys.modules.get("torch"), np.geterr()
    records = torch is not None and torch.is_grad_enabled()
    try:
        yield
    finally:
        np.seterr(**errors)
        if torch is not None:
            torch.set_grad_enabled(records)


def at_random(
    prepare: Callable[[], Any],
    call: Callable[[Any], object],
    check: Callable[[Any, float], None],
    rng: np.random.Generator,
    n: int,
    error: type[BaseException] = KeyboardInterrupt,
) -> int:
    """Interrupt a call n times by a signal at a random moment; how many came before its end.

    A moment is drawn from the seconds of the quickest call so far: a busy machine has slower ones.
    """
    call(prepare())
    subject = prepare()
    start = time.perf_counter()
    call(subject)
    seconds = time.perf_counter() - start
    hits, is_armed = 0, False

    def handler(*_: object) -> None:
        """Another thread may have been told of a signal, and handle it when the call is over."""
        if is_armed:
            raise error("a signal")

    before, report = signal.signal(signal.SIGALRM, handler), sys.unraisablehook

    def reported(about: Any) -> None:
        """Python swallows what a handler raises in a finalizer: the call goes on to its end."""
        if not isinstance(about.exc_value, error):
            report(about)

    sys.unraisablehook = reported
    try:
        for _ in range(n):
            subject, moment = prepare(), max(rng.uniform(0, seconds), 1e-6)
            is_over = False
            with as_before():
                try:
                    is_armed, start = True, time.perf_counter()
                    signal.setitimer(signal.ITIMER_REAL, moment)
                    apart(partial(call, subject))
                    is_over, is_armed = True, False
                    seconds = min(seconds, time.perf_counter() - start)
                except error:
                    hits += not is_over
                is_armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
            check(subject, moment)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = report
    return hits
