# SPDX-License-Identifier: MIT
"""One array through one codec and back: what it saved, kept and cost, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..codecs import CODECS, compress
from ..codecs.fidelity import Fidelity, measure
from ..codecs.table import Codec
from ..dtypes import dtype_name, dtype_names
from ..frame.backends import to_host
from .timing import seconds


@dataclass(frozen=True)
class Subject:
    """A NumPy array under the name the report gives it."""

    name: str
    array: Any


@dataclass(frozen=True)
class Refusal:
    """A codec that does not take the array's dtype, and why."""

    codec: Codec
    note: str
    verdict = "unsupported"


@dataclass(frozen=True)
class Trial:
    """A codec that was tried; `note` says what was outside its bound."""

    codec: Codec
    nbytes: int
    ratio: float
    encode_s: float
    decode_s: float
    fidelity: Fidelity
    note: str | None

    @property
    def verdict(self) -> str:
        """Whether every value is within the codec's bound."""
        return "FAIL" if self.fidelity.violations else "ok"


def run(subject: Subject, name: str, keep_nonfinite: bool, xp: Any) -> Trial | Refusal:
    """Encode and decode on the provider of `xp`, timed; compare on the host."""
    codec, original = CODECS[name], subject.array
    taken = codec.encoder.types["T"]
    if original.dtype not in taken:
        return Refusal(codec, f"takes {dtype_names(taken)}, not {dtype_name(original.dtype)}")
    options = {"keep_nonfinite": keep_nonfinite} if name == "msfp15" else {}
    x = xp.asarray(original)
    packed = compress(x, name, **options)
    decoded = packed.decompress()
    encode = codec.encoder(**options)
    decode = codec.decoder(to=packed.dtype, shape=packed.shape, **options)
    fidelity = measure(name, original, to_host(decoded), keep_nonfinite)
    return Trial(
        codec,
        packed.nbytes,
        packed.ratio,
        seconds(lambda: encode(x, out=packed.code), xp),
        seconds(lambda: decode(packed.code, out=decoded), xp),
        fidelity,
        _violation(codec, original, to_host(decoded), fidelity),
    )


def _violation(codec: Codec, original: Any, decoded: Any, fidelity: Fidelity) -> str | None:
    """The first value outside the bound, in words."""
    if fidelity.first_violation is None:
        return None
    place = np.unravel_index(fidelity.first_violation, original.shape)
    return (
        f"{fidelity.violations} of {original.size} values outside the bound ({codec.bound}), "
        f"the first at {tuple(map(int, place))}: {original[place]} became {decoded[place]}"
    )
