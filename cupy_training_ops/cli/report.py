# SPDX-License-Identifier: MIT
"""Trials as tables of 80 columns for people, and as fields for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ..dtypes import dtype_name
from ..errors import printable
from .recommend import snr_db
from .summary import Summary
from .table import aligned, wrapped
from .trial import Refusal, Subject, Trial

Tried = Sequence[Trial | Refusal]
HEADINGS = (
    ("", "", "max abs", "", "", "SNR", "zeros", "encode", "decode", ""),
    ("codec", "ratio", "error", "RMSE", "cosine", "dB", "kept", "ms", "ms", "verdict"),
)
OF_CODECS = ("codec", "arrays", "bytes before", "bytes after", "ratio", "lowest dB", "verdict")


def of_array(subject: Subject, tried: Tried) -> Iterator[str]:
    """A line about the array, a row for each codec, a line for each that did not do well."""
    trials = trials_of(tried)
    yield from wrapped(_title(subject, trials))
    if trials:
        yield from aligned([*HEADINGS, *map(_row, trials)], gap=" ")
    for trial in trials:
        if trial.note:
            yield from wrapped(f"{trial.name}: {trial.note}")
    refusing = [one.name for one in tried if isinstance(one, Refusal)]
    if refusing:
        yield from wrapped(f"not for {dtype_name(subject.array.dtype)}: {', '.join(refusing)}")


def of_all(summary: Summary, provider: str) -> Iterator[str]:
    """What each codec saved in all, and which one each array is best kept in."""
    count = len(summary.arrays)
    yield f"{count} array{'s' * (count != 1)}, provider {provider}"
    rows = [
        (t.codec, str(t.arrays), str(t.nbytes_before), str(t.nbytes_after), f"{t.ratio:.1f}",
         _number(t.lowest_snr_db, ".1f"), t.verdict)
        for t in summary.codecs()
    ]  # fmt: skip
    if rows:
        yield from aligned([OF_CODECS, *rows])
    yield ""
    yield f"recommended for {summary.quality} (--min-snr and --max-abs ask for more or less):"
    best = [(array.name, array.recommendation) for array in summary.arrays]
    cells = [(printable(name), r.codec or "as it is", r.reason) for name, r in best]
    for line in aligned(cells, left=3):
        yield from wrapped(line)
    before, after = summary.recommended_nbytes()
    yield from wrapped(f"together {before} to {after} bytes, {summary.ratio():.1f} times smaller")
    sign = summary.sign_codec()
    if sign:
        yield from wrapped(
            f"where the backward pass needs x > 0 alone, as ReLU's: {sign.codec}, "
            f"{sign.ratio:.1f} times smaller"
        )


def fields(subject: Subject, trial: Trial | Refusal, provider: str) -> dict[str, Any]:
    """What JSON says of a codec on an array."""
    about = {
        "array": subject.name,
        "dtype": dtype_name(subject.array.dtype),
        "shape": subject.array.shape,
        "codec": trial.name,
        "provider": provider,
        "verdict": trial.verdict,
        "note": trial.note,
    }
    return about | (_numbers(subject, trial) if isinstance(trial, Trial) else {})


def trials_of(tried: Tried) -> list[Trial]:
    """Those that were not refused."""
    return [one for one in tried if isinstance(one, Trial)]


def _title(subject: Subject, trials: Iterable[Trial]) -> str:
    array = subject.array
    counts = {trial.fidelity.nonfinite for trial in trials} - {0}
    nonfinite = "".join(f", {count} non-finite" for count in counts)
    about = f"{dtype_name(array.dtype)} {array.shape}  {array.nbytes} bytes{nonfinite}"
    return f"{printable(subject.name)}  {about}"


def _row(trial: Trial) -> tuple[str, ...]:
    f = trial.fidelity
    return (
        trial.name,
        f"{trial.ratio:.1f}",
        _number(f.max_abs_error, ".1e"),
        _number(f.rmse, ".1e"),
        _number(f.cosine, ".5f"),
        _number(None if f.snr_db is None else snr_db(f), ".1f"),
        _number(f.zeros_kept, ".0%"),
        _duration(trial.encode_s),
        _duration(trial.decode_s),
        trial.verdict,
    )


def _numbers(subject: Subject, trial: Trial) -> dict[str, Any]:
    nbytes = subject.array.nbytes
    return {
        "nbytes_before": nbytes,
        "nbytes_after": trial.nbytes,
        "ratio": trial.ratio,
        "bits_per_value": bits_per_value(subject, trial),
        **asdict(trial.fidelity),
        "encode_s": trial.encode_s,
        "encode_gb_per_s": _rate(nbytes, trial, trial.encode_s),
        "decode_s": trial.decode_s,
        "decode_gb_per_s": _rate(nbytes, trial, trial.decode_s),
    }


def bits_per_value(subject: Subject, trial: Trial) -> float:
    """Bits stored for each value, padding included."""
    size = subject.array.size
    return 8 * trial.nbytes / size if size else float(trial.codec.bits)


def _rate(nbytes: int, trial: Trial, duration: float) -> float:
    """GB/s of the bytes read and written."""
    return (nbytes + trial.nbytes) / duration / 1e9


def _duration(seconds: float) -> str:
    """Milliseconds in at most six characters."""
    ms = 1e3 * seconds
    return f"{ms:.3f}" if ms < 10 else f"{ms:.1f}" if ms < 1000 else f"{ms:.0f}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
