# SPDX-License-Identifier: MIT
"""One array through one codec and back: what it saved, kept and cost, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..call.backends import to_host
from ..codecs import CODECS
from ..codecs.fidelity import Fidelity, Measurement
from ..codecs.parts import Advance, parts
from ..codecs.table import Codec
from ..dtypes import dtype_name, dtype_names
from .recommend import Quality
from .timing import timed


@dataclass(frozen=True)
class Subject:
    """A NumPy array under the name the report gives it."""

    name: str
    array: Any


@dataclass(frozen=True)
class Settings:
    """What holds for every codec that is tried."""

    keep_nonfinite: bool
    quality: Quality

    def options(self, codec: Codec) -> dict[str, object]:
        """What of it a codec knows."""
        known = {attribute.name for attribute in codec.encoder.attributes}
        return {"keep_nonfinite": self.keep_nonfinite} if "keep_nonfinite" in known else {}


@dataclass(frozen=True)
class Refusal:
    """A codec that does not take the array's dtype, and why."""

    codec: Codec
    note: str
    verdict = "unsupported"

    @property
    def name(self) -> str:
        """The codec's."""
        return self.codec.name


@dataclass(frozen=True)
class Trial:
    """A codec that was tried; notes say what was outside its bound, and what was asked for."""

    codec: Codec
    nbytes: int
    ratio: float
    encode_s: float
    decode_s: float
    fidelity: Fidelity
    broken: str | None
    missed: str | None = None

    @property
    def name(self) -> str:
        """The codec's."""
        return self.codec.name

    @property
    def verdict(self) -> str:
        """Whether every value is within the codec's bound, and what was asked for is met."""
        return "FAIL" if self.broken else "MISSED" if self.missed else "ok"

    @property
    def note(self) -> str | None:
        """What is behind a verdict that is not "ok"."""
        return self.broken or self.missed


def run(
    subject: Subject, name: str, settings: Settings, xp: Any, advance: Advance
) -> Trial | Refusal:
    """Encode and decode on the provider of `xp`, timed; compare on the host.

    On the host this is done part by part; the whole array is on the GPU at once.
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
    return replace(trial, missed=settings.quality.missed(trial.fidelity))


@dataclass
class _Tally:
    """What the parts of an array have shown so far."""

    codec: Codec
    measurement: Measurement
    nbytes: int = 0
    encode_s: float = 0.0
    decode_s: float = 0.0
    violating: Any = None  # the first value outside the bound, decoded

    def add(self, original: Any, options: dict[str, object], xp: Any, whole: bool) -> None:
        """The next part there and back; `whole` where it is the only one."""
        x = xp.asarray(original)
        encode = self.codec.encoding(**options)
        decode = self.codec.decoder.shared(to=original.dtype, shape=original.shape, **options)
        code, encode_s = timed(encode, x, xp, whole)
        decoded, decode_s = timed(decode, code, xp, whole)
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
        """The result of all parts."""
        fidelity = self.measurement.fidelity()
        ratio = subject.array.nbytes / self.nbytes if self.nbytes else 1.0
        first = fidelity.first_violation
        note = None if first is None else self._note(subject.array, first, fidelity.violations)
        return Trial(self.codec, self.nbytes, ratio, self.encode_s, self.decode_s, fidelity, note)

    def _note(self, original: Any, first: int, violations: int) -> str:
        """The first value outside the bound, in words."""
        place = tuple(map(int, np.unravel_index(first, original.shape)))
        return (
            f"{violations} of {original.size} values outside the bound "
            f"({self.codec.bound}), the first at {place}: {original[place]} became {self.violating}"
        )
