# SPDX-License-Identifier: MIT
"""Trials as a table for people and as objects for JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..dtypes import dtype_name
from .printable import printable
from .table import aligned
from .trial import Refusal, Subject, Trial

HEADINGS = (
    ("", "bytes", "", "bits/", "max abs", "max rel", "SNR", "zeros", "over", "drop",
     "encode", "", "decode", "", ""),
    ("codec", "after", "ratio", "value", "error", "error", "dB", "kept", "flow", "ped",
     "ms", "GB/s", "ms", "GB/s", "verdict"),
)  # fmt: skip


def as_text(subject: Subject, tried: Sequence[Trial | Refusal], provider: str) -> list[str]:
    """A line about the array, a row for each codec, a line for each refusal or violation."""
    rows = [_row(subject, trial) for trial in tried if isinstance(trial, Trial)]
    table = aligned([*HEADINGS, *rows], gap=" ") if rows else []
    notes = [f"{trial.codec.name}: {trial.note}" for trial in tried if trial.note]
    return [_title(subject, tried, provider), *(f"  {line}" for line in [*table, *notes])]


def as_objects(
    subject: Subject, tried: Sequence[Trial | Refusal], provider: str
) -> list[dict[str, Any]]:
    """An object for each codec; null where a number does not exist or is infinite."""
    return [_object(subject, trial, provider) for trial in tried]


def _title(subject: Subject, tried: Sequence[Trial | Refusal], provider: str) -> str:
    array = subject.array
    counts = {trial.fidelity.nonfinite for trial in tried if isinstance(trial, Trial)}
    nonfinite = "".join(f", {count} non-finite" for count in counts)
    about = f"{dtype_name(array.dtype)} {array.shape}  {array.nbytes} bytes{nonfinite}"
    return f"{printable(subject.name)}  {about}  provider {provider}"


def _row(subject: Subject, trial: Trial) -> tuple[str, ...]:
    f, nbytes = trial.fidelity, subject.array.nbytes
    return (
        trial.codec.name,
        str(trial.nbytes),
        f"{trial.ratio:.1f}",
        f"{_bits(subject, trial):.2f}",
        _number(f.max_abs_error, ".1e"),
        _number(f.max_rel_error, ".1e"),
        _number(f.snr_db, ".1f"),
        _number(f.zeros_kept, ".0%"),
        str(f.overflowed),
        str(f.dropped),
        f"{1e3 * trial.encode_s:.3f}",
        f"{_rate(nbytes, trial, trial.encode_s):.1f}",
        f"{1e3 * trial.decode_s:.3f}",
        f"{_rate(nbytes, trial, trial.decode_s):.1f}",
        trial.verdict,
    )


def _object(subject: Subject, trial: Trial | Refusal, provider: str) -> dict[str, Any]:
    about = {
        "array": subject.name,
        "dtype": dtype_name(subject.array.dtype),
        "shape": subject.array.shape,
        "codec": trial.codec.name,
        "provider": provider,
        "verdict": trial.verdict,
        "note": trial.note,
    }
    numbers = _numbers(subject, trial) if isinstance(trial, Trial) else {}
    return about | {name: _finite(value) for name, value in numbers.items()}


def _numbers(subject: Subject, trial: Trial) -> dict[str, Any]:
    nbytes = subject.array.nbytes
    return {
        "nbytes_before": nbytes,
        "nbytes_after": trial.nbytes,
        "ratio": trial.ratio,
        "bits_per_value": _bits(subject, trial),
        **asdict(trial.fidelity),
        "encode_s": trial.encode_s,
        "encode_gb_per_s": _rate(nbytes, trial, trial.encode_s),
        "decode_s": trial.decode_s,
        "decode_gb_per_s": _rate(nbytes, trial, trial.decode_s),
    }


def _bits(subject: Subject, trial: Trial) -> float:
    size = subject.array.size
    return 8 * trial.nbytes / size if size else float(trial.codec.bits)


def _rate(nbytes: int, trial: Trial, duration: float) -> float:
    """GB/s of the bytes read and written."""
    return (nbytes + trial.nbytes) / duration / 1e9


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _finite(value: Any) -> Any:
    """JSON has no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
