# SPDX-License-Identifier: MIT
"""Calls that may never return, made by a thread: nothing ends one, but nobody need wait for it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

MOST = 1e6  # seconds


class Caller:
    """A thread that makes one call after the other; it ends by `end()` and with this."""

    def __init__(self, name: str) -> None:
        self._asked: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=_answer, args=(self._asked,), name=name, daemon=True).start()
        self.end = weakref.finalize(self, self._asked.put, None)

    def __call__(self, seconds: float, function: Callable[..., Any], *given: Any) -> Any:
        """Return or raise as the function does; TimeoutError where it takes longer."""
        answer: SimpleQueue[Any] = SimpleQueue()
        self._asked.put((answer, function, given))
        try:
            result, error = answer.get(timeout=min(seconds, MOST))
        except Empty:
            raise TimeoutError from None
        if error is not None:
            raise error
        return result


def _answer(asked: SimpleQueue[Any]) -> None:
    for answer, function, given in iter(asked.get, None):
        try:
            answer.put((function(*given), None))
        except BaseException as error:
            answer.put((None, error))
