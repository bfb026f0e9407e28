# SPDX-License-Identifier: MIT
"""The time limit of every test, watched by one thread.

pytest-timeout starts a thread for each test and waits for its end, pytest's faulthandler another:
for thousands of tests that took a tenth of the processor time, and longer where cores are shared.
"""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from typing import Any

import pytest

LOOK_SECONDS = 0.5  # a test may take this much longer than its limit
DUMP_SHARE = 0.97  # of the limit


class Watchdog:
    """A plugin of pytest, in the place of pytest-timeout's timers of the method `thread`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: tuple[float, pytest.Item, Any] | None = None
        self._dumps_for: object = None
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._stderr = os.dup(2)  # before it is captured

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_set_timer(self, item: Any, settings: Any) -> bool | None:
        if settings.method != "thread":
            return None
        item.cancel_timeout = self._cancel
        with self._lock:
            self._watched = (time.monotonic(), item, settings)
        if not self._thread.is_alive():
            self._thread.start()
        return True

    def _cancel(self) -> None:
        with self._lock:
            self._watched = None

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            with self._lock:  # a test that ends while its process is ended waits here
                self._dump_later()
                self._end_what_is_late()

    def _dump_later(self) -> None:
        """Says where a test hangs, which pytest-timeout does not in a worker of pytest-xdist.

        Nor can a thread of Python where a test keeps Python's lock.
        """
        if self._watched is self._dumps_for:
            return
        if self._watched is None:
            faulthandler.cancel_dump_traceback_later()
        else:
            since, _, settings = self._watched
            rest = since + DUMP_SHARE * settings.timeout - time.monotonic()
            faulthandler.dump_traceback_later(max(rest, 0.01), file=self._stderr)
        self._dumps_for = self._watched

    def _end_what_is_late(self) -> None:
        from pytest_timeout import timeout_timer

        if self._watched is not None:
            since, item, settings = self._watched
            if time.monotonic() - since > settings.timeout:
                timeout_timer(item, settings)  # it returns where someone debugs
                self._watched = None
