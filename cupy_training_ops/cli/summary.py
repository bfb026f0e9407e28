# SPDX-License-Identifier: MIT
"""All arrays together: the bytes that each codec saved, and a recommendation for each array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..codecs.fidelity import SIGN_CODECS
from .trial import Quality, Subject, Trial, in_words, keeps_values, snr_db

ENOUGH_DB = 30.0  # noise of a thousandth of the signal's power
RIVALS = 2  # that are named beside the codec recommended
WORST_FIRST = ("FAIL", "MISSED", "ok")


@dataclass(frozen=True)
class Total:
    """A codec on all the arrays that it takes."""

    codec: str
    arrays: int
    nbytes_before: int
    nbytes_after: int
    lowest_snr_db: float | None  # None for a codec that keeps the sign alone
    verdict: str  # the worst

    @property
    def ratio(self) -> float:
        """Bytes before over bytes after; 1 where there are none."""
        return _ratio(self.nbytes_before, self.nbytes_after)


@dataclass(frozen=True)
class OneArray:
    """An array that was tried."""

    name: str
    size: int
    nbytes: int
    trials: Sequence[Trial]
    recommendation: Recommendation

    def recommended_nbytes(self) -> int:
        """Its bytes in the codec that is recommended, or as it is."""
        chosen = (t.nbytes for t in self.trials if t.name == self.recommendation.codec)
        return next(chosen, self.nbytes)


class Summary:
    """Sums over arrays; recommends codecs for the quality asked, or for 30 dB."""

    def __init__(self, asked: Quality) -> None:
        self.quality = Quality(min_snr=ENOUGH_DB) if asked == Quality() else asked
        self.arrays: list[OneArray] = []

    def add(self, subject: Subject, trials: Sequence[Trial]) -> OneArray:
        """Add an array."""
        array, advice = subject.array, recommend(trials, self.quality)
        added = OneArray(subject.name, array.size, array.nbytes, trials, advice)
        self.arrays.append(added)
        return added

    def codecs(self) -> list[Total]:
        """The total of each codec, in the order in which they were tried."""
        names = dict.fromkeys(trial.name for array in self.arrays for trial in array.trials)
        return [self._total(name) for name in names]

    def recommended_nbytes(self) -> tuple[int, int]:
        """Bytes before, and after every array's own recommendation."""
        arrays = self.arrays
        return sum(a.nbytes for a in arrays), sum(a.recommended_nbytes() for a in arrays)

    def ratio(self) -> float:
        """Bytes before over bytes after."""
        return _ratio(*self.recommended_nbytes())

    def sign_codec(self) -> Total | None:
        """The smallest that keeps the sign alone."""
        signs = [t for t in self.codecs() if t.codec in SIGN_CODECS and t.ratio > 1]
        return max(signs, key=lambda total: total.ratio, default=None)

    def has_failed(self) -> bool:
        """Return True if a codec missed its bound, or the quality asked for."""
        return any(total.verdict != "ok" for total in self.codecs())

    def _total(self, name: str) -> Total:
        of_codec = [(a, t) for a in self.arrays for t in a.trials if t.name == name]
        trials = [trial for _, trial in of_codec]
        measured = [t.fidelity for t in trials if keeps_values(t.fidelity) or t.fidelity.lost]
        return Total(
            name,
            len(trials),
            sum(array.nbytes for array, _ in of_codec),
            sum(trial.nbytes for trial in trials),
            min(map(snr_db, measured), default=None),
            min((trial.verdict for trial in trials), key=WORST_FIRST.index),
        )


def _ratio(before: int, after: int) -> float:
    return before / after if after else 1.0


# ---- which codec for an array --------------------------------------------------------------------


@dataclass(frozen=True)
class Recommendation:
    """A codec's name, or None where none is worth it."""

    codec: str | None
    reason: str


def recommend(trials: Sequence[Trial], quality: Quality) -> Recommendation:
    """The codec that keeps values at this quality in the fewest bytes; of equals the most faithful.

    Codecs of the sign alone are never recommended: no figure says if that is enough.
    """
    values = [t for t in trials if keeps_values(t.fidelity) or t.fidelity.lost]
    smaller = [m for m in values if m.ratio > 1]
    good = [m for m in smaller if not m.fidelity.violations and not quality.shortfall(m.fidelity)]
    if not good:
        return Recommendation(None, _why_none(smaller, quality))
    best = max(good, key=lambda m: (m.ratio, snr_db(m.fidelity)))
    rivals = [m for m in smaller if m is not best and m.ratio >= best.ratio]
    return Recommendation(best.name, f"{_figures(best)}; {_why_not(rivals)}")


def _figures(trial: Trial) -> str:
    return f"ratio {trial.ratio:.1f}, {in_words(trial.fidelity)}"


def _why_not(rivals: Sequence[Trial]) -> str:
    """Codecs that are as small or smaller, the most faithful first."""
    if not rivals:
        return "the smallest"
    named = sorted(rivals, key=lambda m: snr_db(m.fidelity), reverse=True)[:RIVALS]
    return "no larger: " + ", ".join(f"{m.name} ({in_words(m.fidelity)})" for m in named)


def _why_none(smaller: Sequence[Trial], quality: Quality) -> str:
    if not smaller:
        return "nothing tried that keeps values makes it smaller"
    closest = max(smaller, key=lambda m: (snr_db(m.fidelity), m.ratio))
    short = quality.shortfall(closest.fidelity) or "outside its bound"
    return f"closest: {closest.name}, ratio {closest.ratio:.1f}, {short}"
