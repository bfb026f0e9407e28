# SPDX-License-Identifier: MIT
"""Events of a device that is late: what is queued is done when a test says so, or waits for it."""

from __future__ import annotations


class Event:
    """Behind something that is queued."""

    def __init__(self) -> None:
        self.done, self.waits = False, 0

    def query(self) -> bool:
        """Whether it is done."""
        return self.done

    def synchronize(self) -> None:
        """Wait for it."""
        self.waits += not self.done
        self.done = True
