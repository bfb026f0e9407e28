# SPDX-License-Identifier: MIT
"""What hooks did with saved tensors, in numbers."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from .kinds import Kind


class Account:
    """Counts of tensors and bytes, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._encoded: Counter[Kind] = Counter()
        self._after: Counter[Kind] = Counter()  # bytes of their codes
        self._again: Counter[Kind] = Counter()  # saved once more while its codes were there
        self._passed: Counter[str] = Counter()
        self._held = self._peak = 0

    def encoded(self, kind: Kind) -> None:
        """A tensor became codes."""
        with self._lock:
            nbytes = kind.coding.code_nbytes
            self._encoded[kind] += 1
            self._after[kind] += nbytes
            self._held += nbytes
            self._peak = max(self._peak, self._held)

    def shortened(self, kind: Kind, nbytes: int) -> None:
        """Codes turned out to be so much shorter than the longest."""
        with self._lock:
            self._after[kind] -= nbytes

    def again(self, kind: Kind) -> None:
        """A tensor was saved whose codes are there."""
        with self._lock:
            self._again[kind] += 1

    def passed(self, reason: str, nbytes: int) -> None:
        """A tensor was left as it is."""
        with self._lock:
            self._passed[reason] += nbytes

    def released(self, nbytes: int) -> None:
        """Codes are gone. Called by a finalizer: nothing under the lock may free codes."""
        with self._lock:
            self._held -= nbytes

    @property
    def before(self) -> int:
        """Bytes of what was encoded."""
        return sum(kind.nbytes * n for kind, n in self._encoded.items())

    def passed_as(self, reason: str) -> int:
        """Bytes that passed for a reason."""
        return self._passed[reason]

    def report(self) -> dict[str, Any]:
        """The numbers, for people and for JSON."""
        with self._lock:
            encoded, after = dict(self._encoded), dict(self._after)
            again, passed = dict(self._again), dict(self._passed)
            peak, held = self._peak, self._held
        by_name: dict[str, dict[str, Any]] = {}
        for kind, n in encoded.items():
            row = by_name.setdefault(
                f"{kind.name} {kind.codec}", {"tensors": 0, "shared": 0, "before": 0, "after": 0}
            )
            row["tensors"] += n
            row["shared"] += again.get(kind, 0)
            row["before"] += n * kind.nbytes
            row["after"] += after[kind]
        total = {
            column: sum(row[column] for row in by_name.values())
            for column in ("tensors", "shared", "before", "after")
        }
        return {**total, "peak": peak, "held": held, "names": by_name, "passed": passed}
