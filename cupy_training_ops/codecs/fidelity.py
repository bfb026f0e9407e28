# SPDX-License-Identifier: MIT
"""How faithful a codec was to an array: largest errors, counts, and the bound it states.

Everything is computed on the host in float64, in which every value of the four floating-point types
is exact. A bound is held without slack: what an encoder keeps of an array is exact in the array's
own type, so that the decoder's rounding to it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Float64s = NDArray[np.float64]
Mask = NDArray[np.bool_]

SIGN_CODECS = ("binarize", "pack1")  # they keep x > 0, not x: an error of theirs says nothing
TILE = 8
# Non-finite and huge values, and differences of them, are part of the measurement.
_quiet = np.errstate(all="ignore")


class Rounding(NamedTuple):
    """The bound of a codec that rounds to a small format whose normal range starts at 2^-14."""

    relative: float  # of |x|, in the normal range
    absolute: float  # below it
    infinite_from: float


E5M2 = Rounding(2.0**-3, 2.0**-17, 61_440.0)
HALF = Rounding(2.0**-11, 2.0**-25, 65_520.0)
SMALLEST_NORMAL = 2.0**-14


@dataclass(frozen=True)
class Fidelity:
    """What was measured; None where a number does not exist (no zero, no error to speak of)."""

    max_abs_error: float | None
    max_rel_error: float | None
    snr_db: float | None  # infinite where nothing was lost
    zeros_kept: float | None  # share of the zeros that came back as zeros
    nonfinite: int  # in the original
    overflowed: int  # finite before, infinite after
    dropped: int  # finite before, given up with a non-finite value in their MSFP15 tile
    violations: int
    first_violation: int | None  # its place in row-major order


@_quiet
def measure(
    codec: str,
    original: NDArray[np.generic],
    decoded: NDArray[np.generic],
    keep_nonfinite: bool = False,
) -> Fidelity:
    """Compare a decoded array with its original, in any two floating-point dtypes."""
    x = original.ravel().astype(np.float64)
    y = decoded.ravel().astype(np.float64)
    wrong = ~within_bound(codec, x, y, keep_nonfinite)
    zeros, finite = x == 0, np.isfinite(x)
    absolute, relative, snr = (None, None, None) if codec in SIGN_CODECS else _errors(x, y)
    return Fidelity(
        max_abs_error=absolute,
        max_rel_error=relative,
        snr_db=snr,
        zeros_kept=float(np.mean(y[zeros] == 0)) if zeros.any() else None,
        nonfinite=int(np.count_nonzero(~finite)),
        overflowed=int(np.count_nonzero(finite & np.isinf(y))),
        dropped=int(np.count_nonzero(finite & _in_lost_tile(x))) if codec == "msfp15" else 0,
        violations=int(np.count_nonzero(wrong)),
        first_violation=int(np.argmax(wrong)) if wrong.any() else None,
    )


@_quiet
def within_bound(codec: str, x: Float64s, y: Float64s, keep_nonfinite: bool = False) -> Mask:
    """Where the decoded y is what the codec promises for x, element by element, both flat."""
    if codec == "msfp15":
        return _shared_exponent(x, y, keep_nonfinite)
    return _BOUNDS[codec](x, y)


def _sign_test(x: Float64s, y: Float64s) -> Mask:
    right: Mask = y == (x > 0)
    return right


def _rounded(x: Float64s, y: Float64s, rounding: Rounding) -> Mask:
    size = np.abs(x)
    normal = size >= SMALLEST_NORMAL
    allowed = np.where(normal, rounding.relative * size, rounding.absolute)
    infinite = y == np.copysign(np.inf, x)
    right = np.where(size >= rounding.infinite_from, infinite, np.abs(y - x) <= allowed)
    return np.asarray(np.where(np.isnan(x), np.isnan(y), right))


_BOUNDS: dict[str, Callable[[Float64s, Float64s], Mask]] = {
    "binarize": _sign_test,
    "pack1": _sign_test,
    "pack8": partial(_rounded, rounding=E5M2),
    "pack16": partial(_rounded, rounding=HALF),
}


def _shared_exponent(x: Float64s, y: Float64s, keep_nonfinite: bool) -> Mask:
    """MSFP15: half a step of the tile, a whole one where the mantissa saturates at 63."""
    size = _tiles(np.abs(x))
    _, exponent = np.frexp(size.max(axis=1, keepdims=True))
    step = np.ldexp(1.0, exponent - 1 - 5)
    allowed = np.where(size >= 63.5 * step, step, step / 2)
    decoded = _tiles(y)
    near = np.where(size < 2.0**-126, decoded == 0, np.abs(decoded - _tiles(x)) <= allowed)
    given_up = np.isnan(decoded) if keep_nonfinite else decoded == 0
    return np.where(_lost(size), given_up, near).ravel()[: x.size]


def _lost(tiles: Float64s) -> Mask:
    """Tiles without a shared exponent: one of their values is not below 2^128."""
    below: Mask = np.all(tiles < 2.0**128, axis=1, keepdims=True)
    return ~below


def _in_lost_tile(x: Float64s) -> Mask:
    return np.repeat(_lost(_tiles(np.abs(x))), TILE)[: x.size]


def _tiles(flat: Float64s) -> Float64s:
    return np.pad(flat, (0, -flat.size % TILE)).reshape(-1, TILE)


def _errors(x: Float64s, y: Float64s) -> tuple[float | None, float | None, float | None]:
    """Largest absolute and relative error and signal-to-noise, of values finite on both sides."""
    both = np.isfinite(x) & np.isfinite(y)
    x, error = x[both], np.abs(y - x)[both]
    if not x.size:
        return None, None, None
    relative = (error / np.abs(x))[x != 0]
    return float(error.max()), float(relative.max()) if relative.size else None, _snr_db(x, error)


def _snr_db(x: Float64s, error: Float64s) -> float | None:
    signal, noise = _norm(x), _norm(error)
    if noise == 0:
        return float("inf") if signal else None
    return float(20 * np.log10(signal / noise)) if signal else None


def _norm(values: Float64s) -> float:
    """The Euclidean norm, scaled so that no square overflows or vanishes."""
    largest = np.abs(values).max()
    return float(largest * np.sqrt(np.sum((values / largest) ** 2))) if largest else 0.0
