# SPDX-License-Identifier: MIT
"""Encode and decode arrays: bytes, errors, times, verdicts; the sums, and recommendations.

In all functions `subject` is an array with its name, a `trial` the result of one codec on it,
`fidelity` its measured errors, `xp` NumPy or CuPy, where codecs run.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from ..call.backends import to_host
from ..codecs import CODECS
from ..codecs.fidelity import SIGN_CODECS, Fidelity, Measurement
from ..codecs.packed import Advance, parts
from ..codecs.table import Codec
from ..dtypes import dtype_name, dtype_names
from ..families.gist.samples import SPECIALS

DISTRIBUTIONS = ("normal", "relu", "uniform", "denormal", "special")
RUNS = 5  # whose median is taken
LAUNCHES = 20  # in a run, between two CUDA events, so that the events' own time does not show
BUDGET_S = 1.0  # seconds for all runs on the CPU, without the warm-up


@dataclass(frozen=True)
class Quality:
    """The quality asked of every codec that keeps values."""

    min_snr: float | None = None  # dB
    max_abs: float | None = None  # largest |decoded - x|

    def shortfall(self, fidelity: Fidelity) -> str | None:
        """Describe how measured errors fall short of this quality; None if they do not."""
        if self == Quality():
            return None
        if fidelity.lost:
            return f"{fidelity.lost} finite values became infinite or NaN"
        if not is_measured(fidelity):
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


def is_measured(fidelity: Fidelity) -> bool:
    """Return True if errors were measured, or values were lost, which is a failure.

    Codes of signs, and empty arrays, have no errors.
    """
    return fidelity.max_abs_error is not None or fidelity.lost > 0


def snr_db(fidelity: Fidelity) -> float:
    """Return the signal-to-noise ratio in dB; -inf if values were lost.

    Without a signal it is infinite if all values are right, else -inf.
    """
    if fidelity.lost:
        return -math.inf
    if fidelity.snr_db is not None:
        return fidelity.snr_db
    return -math.inf if fidelity.max_abs_error else math.inf


def in_words(fidelity: Fidelity) -> str:
    """Return the signal-to-noise ratio for people: "41.2 dB", "nothing lost", "3 values lost"."""
    if fidelity.lost:
        return f"{fidelity.lost} values lost"
    snr = snr_db(fidelity)
    return "nothing lost" if snr == math.inf else f"{snr:.1f} dB"


@dataclass(frozen=True)
class Subject:
    """A NumPy array under the name the report gives it."""

    name: str
    array: Any


@dataclass(frozen=True)
class Settings:
    """Options of `roundtrip` for every codec that is tried."""

    keep_nonfinite: bool
    quality: Quality

    def options(self, codec: Codec) -> dict[str, object]:
        """Return the encoder's options, without those that this codec lacks."""
        known = {attribute.name for attribute in codec.encoder.attributes}
        return {"keep_nonfinite": self.keep_nonfinite} if "keep_nonfinite" in known else {}


class Named(Protocol):
    """A way to compress: a codec, or another library's."""

    @property
    def name(self) -> str: ...
    @property
    def bits(self) -> float: ...


@dataclass(frozen=True)
class Refusal:
    """Result of a codec that does not take the array's dtype; note: why."""

    codec: Named
    note: str
    verdict = "unsupported"

    @property
    def name(self) -> str:
        """The codec's name."""
        return self.codec.name


@dataclass(frozen=True)
class Trial:
    """Result of a codec on an array."""

    codec: Named
    nbytes: int  # of codes
    ratio: float  # bytes before over bytes after
    encode_s: float  # seconds
    decode_s: float
    fidelity: Fidelity
    broken: str | None  # how errors are outside the codec's own bound; None if they are not
    missed: str | None = None  # how they fall short of the quality asked for

    @property
    def name(self) -> str:
        """The codec's name."""
        return self.codec.name

    @property
    def verdict(self) -> str:
        """FAIL outside the codec's bound, MISSED below the quality asked for, else ok."""
        return "FAIL" if self.broken else "MISSED" if self.missed else "ok"

    @property
    def note(self) -> str | None:
        """The reason of a verdict that is not "ok", else None."""
        return self.broken or self.missed


def run(
    subject: Subject, name: str, settings: Settings, xp: Any, advance: Advance
) -> Trial | Refusal:
    """Encode an array by the codec `name` and decode it, timed, and measure the errors.

    xp: NumPy, to do so part by part on the CPU, or CuPy, to have the whole array on the GPU at
    once. advance(n): called after each part of n elements.
    """
    codec, original = CODECS[name], subject.array.reshape(-1)
    if original.dtype not in codec.dtypes:
        expected, got = dtype_names(codec.dtypes), dtype_name(original.dtype)
        return Refusal(codec, f"takes {expected}, not {got}")
    options = settings.options(codec)
    tally = _Tally(codec, Measurement(name, settings.keep_nonfinite))
    for part in parts(codec, original.size, whole=xp is not np):
        piece = original[part.elements]
        tally.add(piece, options, xp, whole=piece.size == original.size)
        advance(piece.size)
    trial = tally.trial(subject)
    return replace(trial, missed=settings.quality.shortfall(trial.fidelity))


@dataclass
class _Tally:
    """Sums over the parts of an array so far."""

    codec: Codec
    measurement: Measurement
    nbytes: int = 0  # of codes
    encode_s: float = 0.0  # seconds
    decode_s: float = 0.0
    violating: Any = None  # the first value outside the bound, decoded

    def add(self, original: Any, options: dict[str, object], xp: Any, whole: bool) -> None:
        """Encode and decode the next part (original), a flat NumPy array, in `xp`; add the results.

        options: of the encoder. whole: it is the only part, so times are medians of several runs.
        """
        x = xp.asarray(original)
        encode = self.codec.encoding(**options)
        decode = self.codec.decoder.shared(to=original.dtype, shape=original.shape, **options)
        code, encode_s = measure(encode, x, xp, whole)
        decoded, decode_s = measure(decode, code, xp, whole)
        self.nbytes += (
            self.codec.length(to_host(code[:8])) if self.codec.leaves_room else code.nbytes
        )
        self.encode_s += encode_s
        self.decode_s += decode_s
        before, on_host = self.measurement.size, to_host(decoded)
        self.measurement.add(original, on_host)
        first = self.measurement.first_violation
        if first is not None and first >= before:
            self.violating = on_host[first - before]

    def trial(self, subject: Subject) -> Trial:
        """Return the result of all parts of the subject."""
        fidelity = self.measurement.fidelity()
        ratio = subject.array.nbytes / self.nbytes if self.nbytes else 1.0
        first = fidelity.first_violation
        note = None if first is None else self._note(subject.array, first, fidelity.violations)
        return Trial(self.codec, self.nbytes, ratio, self.encode_s, self.decode_s, fidelity, note)

    def _note(self, original: Any, first: int, violations: int) -> str:
        """Describe the first value outside the bound, and how many there are.

        original: the whole array. first: row-major index. violations: number of such values.
        """
        place = tuple(map(int, np.unravel_index(first, original.shape)))
        return (
            f"{violations} of {original.size} values outside the bound "
            f"({self.codec.bound}), the first at {place}: {original[place]} became {self.violating}"
        )


# ---- times ---------------------------------------------------------------------------------------


def measure(operator: Callable[..., Any], x: Any, xp: Any, whole: bool) -> tuple[Any, float]:
    """Return (operator(x), seconds): of that call, or if x is the whole array a median of more."""
    start = time.perf_counter()
    result = operator(x)
    duration = time.perf_counter() - start
    return result, seconds(lambda: operator(x, out=result), xp) if whole else duration


def seconds(call: Callable[[], Any], xp: Any) -> float:
    """Return the median seconds of a call after a warm-up, between CUDA events if xp is CuPy."""
    call()
    if xp is np:
        return _host_seconds(call)
    return statistics.median(_between_events(call, xp) for _ in range(RUNS))


def _host_seconds(call: Callable[[], Any]) -> float:
    """Return the median seconds of RUNS calls, fewer if they take BUDGET_S, by the host's clock."""
    times: list[float] = []
    while len(times) < RUNS and sum(times) < BUDGET_S:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _between_events(call: Callable[[], Any], cupy: Any) -> float:
    """Return the seconds of a call on the GPU: of LAUNCHES between two events of `cupy`, divided
    by LAUNCHES."""
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for _ in range(LAUNCHES):
        call()
    stop.record()
    stop.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, stop)) / 1e3 / LAUNCHES


# ---- arrays to try -------------------------------------------------------------------------------


def generate(distribution: str, shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    """Return a NumPy array; the same seed gives the same values.

    distribution: one of DISTRIBUTIONS: normal, relu its positive part, uniform over [-1, 1),
    denormal below the dtype's smallest normal number, special one special value (NaN, infinite, at
    the edge of a rounding) among fifteen normal ones.
    """
    rng = np.random.default_rng(seed)
    values = rng.uniform(-1, 1, shape)
    if distribution == "denormal":
        values *= float(ml_dtypes.finfo(dtype).smallest_normal)
    if distribution in ("normal", "relu", "special"):
        values = rng.standard_normal(shape)
    if distribution == "relu":
        values = np.maximum(values, 0)
    if distribution == "special":
        values = np.where(rng.random(shape) < 1 / 16, rng.choice(SPECIALS, shape), values)
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(dtype)


# ---- all arrays together: the bytes that each codec saved, a recommendation for each array -------

ENOUGH_DB = 30.0  # noise of a thousandth of the signal's power
RIVALS = 2  # codecs that a recommendation compares with, at most
WORST_FIRST = ("FAIL", "MISSED", "ok")


@dataclass(frozen=True)
class Total:
    """Sums of a codec over all arrays that it takes."""

    codec: str
    arrays: int  # number of these
    nbytes_before: int
    nbytes_after: int
    lowest_snr_db: float | None  # None for a codec that keeps the sign alone
    verdict: str  # the worst of all trials

    @property
    def ratio(self) -> float:
        """Bytes before over bytes after; 1 where there are none."""
        return _ratio(self.nbytes_before, self.nbytes_after)


@dataclass(frozen=True)
class OneArray:
    """An array with its trials."""

    name: str
    size: int  # elements
    nbytes: int
    trials: Sequence[Trial]
    recommendation: Recommendation

    def recommended_nbytes(self) -> int:
        """Return the array's bytes in the recommended codec; its own if none is recommended."""
        chosen = (t.nbytes for t in self.trials if t.name == self.recommendation.codec)
        return next(chosen, self.nbytes)


class Summary:
    """Sums over arrays; recommends codecs for the quality asked, or for 30 dB."""

    def __init__(self, asked: Quality) -> None:
        self.quality = Quality(min_snr=ENOUGH_DB) if asked == Quality() else asked
        self.arrays: list[OneArray] = []

    def add(self, subject: Subject, trials: Sequence[Trial]) -> OneArray:
        """Add an array and its trials; other libraries' are never recommended."""
        array, own = subject.array, [trial for trial in trials if isinstance(trial.codec, Codec)]
        advice = recommend(own, self.quality)
        added = OneArray(subject.name, array.size, array.nbytes, trials, advice)
        self.arrays.append(added)
        return added

    def codecs(self) -> list[Total]:
        """Return the total of each codec, in the order in which they were tried."""
        names = dict.fromkeys(trial.name for array in self.arrays for trial in array.trials)
        return [self._total(name) for name in names]

    def recommended_nbytes(self) -> tuple[int, int]:
        """Return bytes of all arrays (as they are, each in the codec recommended for it)."""
        arrays = self.arrays
        return sum(a.nbytes for a in arrays), sum(a.recommended_nbytes() for a in arrays)

    def ratio(self) -> float:
        """Bytes before over bytes after."""
        return _ratio(*self.recommended_nbytes())

    def sign_codec(self) -> Total | None:
        """Return the total of the codec of signs with the fewest bytes; None if none saves any."""
        signs = [t for t in self.codecs() if t.codec in SIGN_CODECS and t.ratio > 1]
        return max(signs, key=lambda total: total.ratio, default=None)

    def has_failed(self) -> bool:
        """Return True if a codec missed its bound, or the quality asked for."""
        return any(total.verdict != "ok" for total in self.codecs())

    def _total(self, name: str) -> Total:
        """Return the sums of the codec `name`."""
        of_codec = [(a, t) for a in self.arrays for t in a.trials if t.name == name]
        trials = [trial for _, trial in of_codec]
        measured = [t.fidelity for t in trials if is_measured(t.fidelity)]
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
    """A codec's name, or None if none is worth it, and the reason for people."""

    codec: str | None
    reason: str


def recommend(trials: Sequence[Trial], quality: Quality) -> Recommendation:
    """Return the codec that reaches this quality in the fewest bytes; of equals the most faithful.

    Codecs of the sign alone are never recommended: no figure says if that is enough.
    """
    measured = [t for t in trials if is_measured(t.fidelity)]
    smaller = [t for t in measured if t.ratio > 1]
    good = [t for t in smaller if not t.fidelity.violations and not quality.shortfall(t.fidelity)]
    if not good:
        return Recommendation(None, _why_none(smaller, quality))
    best = max(good, key=lambda t: (t.ratio, snr_db(t.fidelity)))
    rivals = [t for t in smaller if t is not best and t.ratio >= best.ratio]
    return Recommendation(best.name, f"{_figures(best)}; {_why_not(rivals)}")


def _figures(trial: Trial) -> str:
    return f"ratio {trial.ratio:.1f}, {in_words(trial.fidelity)}"


def _why_not(rivals: Sequence[Trial]) -> str:
    """Return words with RIVALS of the trials that took no more bytes than the best (`rivals`),
    most faithful first."""
    if not rivals:
        return "the smallest"
    named = sorted(rivals, key=lambda t: snr_db(t.fidelity), reverse=True)[:RIVALS]
    return "no larger: " + ", ".join(f"{t.name} ({in_words(t.fidelity)})" for t in named)


def _why_none(smaller: Sequence[Trial], quality: Quality) -> str:
    """Return words about the codec closest to the quality; smaller: trials that save bytes."""
    if not smaller:
        return "nothing tried that keeps values makes it smaller"
    closest = max(smaller, key=lambda t: (snr_db(t.fidelity), t.ratio))
    short = quality.shortfall(closest.fidelity) or "outside its bound"
    return f"closest: {closest.name}, ratio {closest.ratio:.1f}, {short}"
