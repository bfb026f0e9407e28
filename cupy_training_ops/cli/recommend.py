# SPDX-License-Identifier: MIT
"""Which codec an array is best kept in, from what was measured, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..codecs.fidelity import Fidelity

ENOUGH_DB = 30.0  # noise of a thousandth of the signal's power
RIVALS = 2  # that are named beside the codec recommended


class Measured(Protocol):
    """A codec on an array, as it was measured."""

    @property
    def name(self) -> str: ...
    @property
    def ratio(self) -> float: ...
    @property
    def fidelity(self) -> Fidelity: ...


@dataclass(frozen=True)
class Quality:
    """What is asked of every codec that keeps values."""

    min_snr: float | None = None  # dB
    max_abs: float | None = None

    def missed(self, fidelity: Fidelity) -> str | None:
        """What falls short, in words, or None; an error that nobody measured does not."""
        if self == Quality():
            return None
        if fidelity.lost:
            return f"{fidelity.lost} finite values became infinite or NaN"
        if not keeps_values(fidelity):
            return None
        if self.min_snr is not None and snr_db(fidelity) < self.min_snr:
            return f"{in_words(fidelity)}, asked for at least {self.min_snr:g}"
        if self.max_abs is not None and not (fidelity.max_abs_error or 0.0) <= self.max_abs:
            return f"error {fidelity.max_abs_error:.2g}, asked for at most {self.max_abs:g}"
        return None

    def __str__(self) -> str:
        snr = None if self.min_snr is None else f"at least {self.min_snr:g} dB"
        error = None if self.max_abs is None else f"error at most {self.max_abs:g}"
        return " and ".join(part for part in (snr, error) if part)


@dataclass(frozen=True)
class Recommendation:
    """A codec's name, or None where none is worth it."""

    codec: str | None
    reason: str


def recommend(measured: Sequence[Measured], quality: Quality) -> Recommendation:
    """The codec that keeps values at this quality in the fewest bytes; of equals the most faithful.

    One that keeps the sign alone is never recommended: whether that is enough, no figure says.
    """
    values = [m for m in measured if keeps_values(m.fidelity) or m.fidelity.lost]
    smaller = [m for m in values if m.ratio > 1]
    good = [m for m in smaller if not m.fidelity.violations and not quality.missed(m.fidelity)]
    if not good:
        return Recommendation(None, _why_none(smaller, quality))
    best = max(good, key=lambda m: (m.ratio, snr_db(m.fidelity)))
    rivals = [m for m in smaller if m is not best and m.ratio >= best.ratio]
    return Recommendation(best.name, f"{_figures(best)}; {_why_not(rivals)}")


def keeps_values(fidelity: Fidelity) -> bool:
    """Whether there is an error to speak of: not of a sign, nor of an empty array."""
    return fidelity.max_abs_error is not None


def snr_db(fidelity: Fidelity) -> float:
    """The signal-to-noise ratio, also where there is no signal: then all is right or all wrong."""
    if fidelity.lost:
        return -math.inf
    if fidelity.snr_db is not None:
        return fidelity.snr_db
    return -math.inf if fidelity.max_abs_error else math.inf


def in_words(fidelity: Fidelity) -> str:
    """How faithful, for people."""
    if fidelity.lost:
        return f"{fidelity.lost} values lost"
    found = snr_db(fidelity)
    return "nothing lost" if found == math.inf else f"{found:.1f} dB"


def _figures(one: Measured) -> str:
    return f"ratio {one.ratio:.1f}, {in_words(one.fidelity)}"


def _why_not(rivals: Sequence[Measured]) -> str:
    """The most faithful of what is as small or smaller."""
    if not rivals:
        return "the smallest"
    named = sorted(rivals, key=lambda m: snr_db(m.fidelity), reverse=True)[:RIVALS]
    return "no larger: " + ", ".join(f"{m.name} ({in_words(m.fidelity)})" for m in named)


def _why_none(smaller: Sequence[Measured], quality: Quality) -> str:
    if not smaller:
        return "nothing tried that keeps values makes it smaller"
    closest = max(smaller, key=lambda m: (snr_db(m.fidelity), m.ratio))
    short = quality.missed(closest.fidelity) or "outside its bound"
    return f"closest: {closest.name}, ratio {closest.ratio:.1f}, {short}"
