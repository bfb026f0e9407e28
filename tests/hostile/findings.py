# SPDX-License-Identifier: MIT
"""What cases found, each kind once, with the line that repeats it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from cupy_training_ops.registry import names

MOST_SHOWN = 40
_OPERATOR = re.compile(rf"\b({'|'.join(names())})\b")


class Findings:
    """Collects what is wrong with many cases, and fails at the end."""

    def __init__(self, file: str, seed: int) -> None:
        self._repeat = f"CTO_SEED={seed} pytest tests/hostile/{Path(file).name}"
        self._first: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def add(self, case: int, what: str, complaints: list[str]) -> None:
        """What is wrong with one case."""
        for wrong in complaints:
            kind = re.sub(r"\d+", "#", _OPERATOR.sub("Op", wrong))[:90]
            self._counts[kind] += 1
            line = f"{what}\n    {wrong[:600]}\n    {self._repeat} --hostile-case {case}"
            self._first.setdefault(kind, line)

    def assert_none(self) -> None:
        """Fail with what was found."""
        lines = [f"{self._counts[kind]} times, first: {line}" for kind, line in self._first.items()]
        assert not lines, f"{len(lines)} kinds of faults\n" + "\n".join(lines[:MOST_SHOWN])
