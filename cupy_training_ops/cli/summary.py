# SPDX-License-Identifier: MIT
"""All arrays together: what each codec saved, and which one each array is best kept in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..codecs.fidelity import SIGN_CODECS
from .recommend import ENOUGH_DB, Quality, Recommendation, keeps_values, recommend, snr_db
from .trial import Subject, Trial

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
    """Arrays one after the other; recommends for the quality asked, or for a stated one."""

    def __init__(self, asked: Quality) -> None:
        self.quality = Quality(min_snr=ENOUGH_DB) if asked == Quality() else asked
        self.arrays: list[OneArray] = []

    def add(self, subject: Subject, trials: Sequence[Trial]) -> OneArray:
        """One more array."""
        array, advice = subject.array, recommend(trials, self.quality)
        added = OneArray(subject.name, array.size, array.nbytes, trials, advice)
        self.arrays.append(added)
        return added

    def codecs(self) -> list[Total]:
        """What each codec did, in the order in which they were tried."""
        names = dict.fromkeys(trial.name for array in self.arrays for trial in array.trials)
        return [self._total(name) for name in names]

    def recommended_nbytes(self) -> tuple[int, int]:
        """Bytes before, and after every array's own recommendation."""
        arrays = self.arrays
        return sum(a.nbytes for a in arrays), sum(a.recommended_nbytes() for a in arrays)

    def ratio(self) -> float:
        """The one over the other."""
        return _ratio(*self.recommended_nbytes())

    def sign_codec(self) -> Total | None:
        """The smallest that keeps the sign alone."""
        signs = [t for t in self.codecs() if t.codec in SIGN_CODECS and t.ratio > 1]
        return max(signs, key=lambda total: total.ratio, default=None)

    def failed(self) -> bool:
        """Whether a codec missed its bound, or what was asked for."""
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
