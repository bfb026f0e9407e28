# SPDX-License-Identifier: MIT
"""Events by number, one table for the whole process: one record satisfies one wait."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..forks import InChild

MAX_EVENTS = 4096
NO_EVENT = -1


class Events(InChild):
    """What was recorded and is not waited for yet; a mark says where in its stream that was."""

    def __init__(self) -> None:
        super().__init__()
        self.renew()

    def renew(self) -> None:
        """Forget what was recorded: marks are of the parent's streams in a forked child."""
        self._changed = threading.Condition()
        self._marks: dict[int, object] = {}

    def record(self, identifier: int, mark: Callable[[], object]) -> bool:
        """Put a mark under this number; False, and no mark is made, where there is one already."""
        with self._changed:
            if identifier in self._marks:
                return False
            self._marks[identifier] = mark()
            self._changed.notify_all()  # who waits for another number waits on
            return True

    def take(self, identifier: int, timeout: float) -> object:
        """The mark, as soon as there is one; TimeoutError after so many seconds without."""
        with self._changed:
            if not self._changed.wait_for(lambda: identifier in self._marks, timeout):
                raise TimeoutError
            return self._marks.pop(identifier)


EVENTS = Events()
