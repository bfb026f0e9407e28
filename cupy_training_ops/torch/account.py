# SPDX-License-Identifier: MIT
"""What hooks did with saved tensors, in numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from ..codecs.kept import entry
from .kinds import Kind

COLUMNS = ("tensors", "shared", "before", "after")


class Account(entry.Account):
    """Counts of tensors and bytes, from any thread."""

    def __init__(self) -> None:
        super().__init__()
        # Tensors that are codes, that were saved while their codes were there; bytes by which codes
        # are shorter than the longest.
        self._kinds: defaultdict[Kind, list[int]] = defaultdict(lambda: [0, 0, 0])
        self._passed: defaultdict[str, int] = defaultdict(int)
        self._untouched: Counter[str] = Counter()  # bytes, by who saved them
        self._failed: Counter[str] = Counter()  # guards, by who saved the tensor

    def encoded(self, kind: Kind) -> None:
        """A tensor became codes."""
        with self.lock:
            self._kinds[kind][0] += 1
            self.add(kind.coding.code_nbytes)

    def undone(self, kind: Kind, nbytes: int) -> None:
        """Codes of so many bytes were given up for the tensor itself, or for longer ones."""
        with self.lock:
            self._kinds[kind][0] -= 1
            self._kinds[kind][2] -= kind.coding.code_nbytes - nbytes
            self.add(-nbytes)

    def shortened(self, kind: Kind, nbytes: int) -> None:
        """Codes turned out to have no more bytes than that."""
        with self.lock:
            self._kinds[kind][2] += kind.coding.code_nbytes - nbytes

    def again(self, kind: Kind) -> None:
        """A tensor was saved whose codes are there."""
        with self.lock:
            self._kinds[kind][1] += 1

    def passed(self, reason: str, nbytes: int, consumer: str | None = None) -> None:
        """A tensor was left as it is."""
        with self.lock:
            self._passed[reason] += nbytes
            if consumer is not None:
                self._untouched[consumer] += nbytes

    def failed(self, consumer: str, guard: str) -> None:
        """Codes were not good enough."""
        with self.lock:
            self._failed[f"{consumer} {guard}"] += 1

    def compressed_and_left(self) -> tuple[int, int]:
        """Bytes that were encoded, and those that were not though the policy would have them."""
        with self.lock:
            before = sum(kind.nbytes * n for kind, (n, _, _) in self._kinds.items())
            wanted = {**self._passed, "parameter": 0, "policy": 0}
        return before, sum(wanted.values())

    def most_left(self) -> str:
        """What most of what passed is, in words."""
        with self.lock:
            reasons = Counter(self._passed)
        del reasons["parameter"], reasons["policy"]
        return ", ".join(f"{nbytes} as {reason!r}" for reason, nbytes in reasons.most_common(2))

    def report(self) -> dict[str, object]:
        """The numbers, for people and for JSON."""
        with self.lock:
            kinds = [(kind, n, again, less) for kind, (n, again, less) in self._kinds.items()]
            passed, untouched = dict(self._passed), dict(self._untouched)
            failed, peak, held = dict(self._failed), self.peak, self.held
        names = _table(kinds, lambda kind: f"{kind.look.name} {kind.codec}")
        return {
            **{column: sum(row[column] for row in names.values()) for column in COLUMNS},
            "peak": peak,
            "held": held,
            "names": names,
            "consumers": _table(kinds, lambda kind: f"{kind.use.consumer} {kind.codec}".strip()),
            "passed": passed,
            "untouched": untouched,
            "failed": failed,
        }


def _table(
    kinds: Iterable[tuple[Kind, int, int, int]], name: Callable[[Kind], str]
) -> dict[str, dict[str, int]]:
    """Sums by a name of kinds."""
    rows: dict[str, dict[str, int]] = {}
    for kind, n, again, shorter in kinds:
        row = rows.setdefault(name(kind), dict.fromkeys(COLUMNS, 0))
        counts = n, again, n * kind.nbytes, n * kind.coding.code_nbytes - shorter
        for column, count in zip(COLUMNS, counts, strict=True):
            row[column] += count
    return {name: row for name, row in rows.items() if any(row.values())}
