# SPDX-License-Identifier: MIT
"""Fidelity of decoded arrays: errors, counts, and violations of the codec's bound.

Everything is computed on the host in float64, in which the values of all four floating-point types
are exact. Bounds have no tolerance, as decoded values are exact in the array's type; only those of
scaled integers include a rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..dtypes import BFLOAT16, FLOAT32, FLOAT64, Dtype, HostArray
from ..families.gist.facts import BOX as TILE
from ..families.gist_narrow.facts import BLOCK, INT8_BLOCK, INT8_LEAST_SCALE
from ..families.gist_sparse import facts as gist_sparse
from .table import CODECS

Float64s = NDArray[np.float64]
Mask = NDArray[np.bool_]

# Codecs that encode x > 0, not x: their errors are meaningless.
SIGN_CODECS = tuple(
    name for name, codec in CODECS.items() if "sign" in codec.kinds and "value" not in codec.kinds
)
PIECE = 32_768  # elements compared at a time
# Non-finite and huge values, and differences of them, are part of the measurement.
_quiet = np.errstate(all="ignore")


class Rounding(NamedTuple):
    """The bound of a codec that rounds x to a small format: |y - x| <= max(relative |x|, absolute),
    infinite from `infinite_from` on."""

    relative: float  # error over |x|, in the normal range of the format
    absolute: float  # error below that range; both agree where it starts
    infinite_from: float  # least |x| that rounds to infinity


# FP8 without a scale, float16, and 10 bits: fraction bits 2, 10, 4, each with 5 exponent bits.
E5M2 = Rounding(2.0**-3, 2.0**-17, 61_440.0)
HALF = Rounding(2.0**-11, 2.0**-25, 65_520.0)
FP10 = Rounding(2.0**-5, 2.0**-19, 64_512.0)


class Scaled(NamedTuple):
    """The bound of a format with a scale, 2^s, for each block: |y - x| <= max(relative |x|,
    absolute 2^s)."""

    relative: float  # error over |x|
    absolute: float  # error over 2^s, for small x
    largest: float  # largest x / 2^s that does not overflow
    beside_infinity: int = 0  # added to s in a block with an infinity


E4M3_SCALED = Scaled(2.0**-4, 2.0**-10, 464.0, beside_infinity=1)
E5M2_SCALED = Scaled(2.0**-3, 2.0**-17, math.nextafter(61_440.0, 0))


@dataclass(frozen=True)
class Fidelity:
    """Measured numbers; None if one is undefined, as `zeros_kept` without zeros."""

    max_abs_error: float | None  # of values that are finite on both sides, as the next three
    rmse: float | None
    cosine: float | None  # of the angle between original and decoded
    snr_db: float | None  # infinite without errors
    zeros_kept: float | None  # share of zeros that were decoded as zeros
    nonfinite: int  # in the original
    overflowed: int  # finite before, infinite after
    lost: int  # finite before, infinite or NaN after; in no error
    dropped: int  # finite, but zeros with a non-finite value in their MSFP15 tile
    violations: int  # elements outside the codec's bound
    first_violation: int | None  # row-major index


def measure(
    codec: str,
    original: NDArray[np.generic],
    decoded: NDArray[np.generic],
    keep_nonfinite: bool = True,
) -> Fidelity:
    """Compare a decoded array with its original, each of any floating-point dtype.

    keep_nonfinite: the option of the codecs "msfp15" and "msfp15_signed".
    """
    measurement = Measurement(codec, keep_nonfinite)
    measurement.add(original, decoded)
    return measurement.fidelity()


class Norm:
    """A Euclidean norm, accumulated in parts, without overflow or underflow of squares."""

    def __init__(self) -> None:
        self.largest = 0.0  # of the magnitudes so far
        self.squares = 0.0  # the sum of (value / largest)^2

    def add(self, sizes: Float64s) -> None:
        """Add magnitudes, a flat array of finite numbers of at least 0."""
        largest = max(self.largest, float(sizes.max(initial=0)))
        if largest:
            self.squares *= (self.largest / largest) ** 2  # relative to the new largest
            if 2.0**-400 < largest < 2.0**400:  # squares neither overflow nor vanish
                self.squares += float(np.einsum("i,i->", sizes, sizes)) / largest**2
            else:
                self.squares += float(np.sum(np.square(sizes / largest)))
            self.largest = largest

    def value(self) -> float:
        """Return the norm."""
        return self.largest * math.sqrt(self.squares)

    def root_mean_square(self, n: int) -> float:
        """Return the root mean square of n values: norm / sqrt(n)."""
        return self.largest * math.sqrt(self.squares / n)

    def over(self, other: Norm) -> float:
        """Return the quotient of two norms."""
        return self.largest / other.largest * math.sqrt(self.squares / other.squares)


class Measurement:
    """A comparison of arrays in parts: `add` each, then `fidelity()`.

    Every part but the last is of whole tiles, groups of elements that the codec encodes together.
    codec: its name. keep_nonfinite: the option of the MSFP15 codecs. Other attributes are sums over
    the parts so far, as fields of Fidelity; besides, size: elements; compared: values that are
    finite on both sides; signal, decoded, noise: norms of x, y, y - x.
    """

    def __init__(self, codec: str, keep_nonfinite: bool = True) -> None:
        self.codec = codec
        self.keep_nonfinite = keep_nonfinite
        self.size = self.zeros = self.zeros_kept = self.nonfinite = self.compared = 0
        self.overflowed = self.lost = self.dropped = self.violations = 0
        self.first_violation: int | None = None
        self.max_abs_error: float | None = None
        self.signal, self.decoded, self.noise = Norm(), Norm(), Norm()

    @_quiet
    def add(self, original: NDArray[np.generic], decoded: NDArray[np.generic]) -> None:
        """Compare the next part of the original with its decoded part, of any dtype; add it up.

        In pieces of PIECE elements, which fit into the cache.
        """
        x, y = original.reshape(-1), decoded.reshape(-1)
        for start in range(0, x.size, PIECE):
            piece = slice(start, start + PIECE)
            pair = x[piece].astype(np.float64), y[piece].astype(np.float64)
            self._add(*pair, original.dtype)

    def _add(self, x: Float64s, y: Float64s, dtype: Dtype) -> None:
        """Add originals x and decoded y; dtype: the original one of x."""
        self._add_bound(~within_bound(self.codec, x, y, self.keep_nonfinite, dtype))
        both = self._add_counts(x, y)
        if self.codec not in SIGN_CODECS:
            self._add_errors(x, y, both)
        self.size += x.size

    def _add_bound(self, wrong: Mask) -> None:
        """Count violations, the True in `wrong`, and note the first one of all parts."""
        count = int(np.count_nonzero(wrong))
        if count and self.first_violation is None:
            self.first_violation = self.size + int(np.argmax(wrong))
        self.violations += count

    def _add_counts(self, x: Float64s, y: Float64s) -> Mask:
        """Add the counts of a part; return a mask: x and y are both finite."""
        zeros, finite = x == 0, np.isfinite(x)
        n_zeros = int(np.count_nonzero(zeros))
        self.zeros += n_zeros
        if n_zeros:
            self.zeros_kept += int(np.count_nonzero(zeros & (y == 0)))
        self.nonfinite += x.size - int(np.count_nonzero(finite))
        both = finite & np.isfinite(y)
        gone = finite & ~both
        if gone.any():
            self.lost += int(np.count_nonzero(gone))
            self.overflowed += int(np.count_nonzero(gone & np.isinf(y)))
        if self.codec in ("msfp15", "msfp15_signed") and not self.keep_nonfinite:
            lost = _is_lost(_largest_of_tile(np.abs(x)))
            if lost.any():
                self.dropped += int(np.count_nonzero(finite & _of_elements(lost, x.size)))
        return both

    def _add_errors(self, x: Float64s, y: Float64s, both: Mask) -> None:
        """Add errors and norms of the values for which `both` is True."""
        if not both.all():
            x, y = x[both], y[both]
        error = np.abs(y - x)
        self.compared += error.size
        self.max_abs_error = _larger(self.max_abs_error, error)
        self.signal.add(np.abs(x))
        self.decoded.add(np.abs(y))
        self.noise.add(error)

    def fidelity(self) -> Fidelity:
        """Return the numbers of all parts."""
        return Fidelity(
            max_abs_error=self.max_abs_error,
            rmse=self.noise.root_mean_square(self.compared) if self.compared else None,
            cosine=_cosine(self.signal, self.decoded, self.noise),
            snr_db=_snr_db(self.signal.value(), self.noise.value()),
            zeros_kept=self.zeros_kept / self.zeros if self.zeros else None,
            nonfinite=self.nonfinite,
            overflowed=self.overflowed,
            lost=self.lost,
            dropped=self.dropped,
            violations=self.violations,
            first_violation=self.first_violation,
        )


@_quiet
def within_bound(
    codec: str, x: Float64s, y: Float64s, keep_nonfinite: bool = True, dtype: Dtype = FLOAT64
) -> Mask:
    """Return a mask of elements: the decoded y is within the codec's bound for x, both flat.

    dtype: the original one of x. keep_nonfinite: the codec's option. The functions below return
    such masks, too.
    """
    if codec == "msfp15":
        return _shared_exponent(x, y, keep_nonfinite)
    if codec == "msfp15_signed":
        return _within_signed_tile(x, y, keep_nonfinite)
    if codec == "sparse_msfp15":
        return _is_same(x, y) | _sparse_exponent(x, y, gist_sparse.TILE_NBYTES // dtype.itemsize)
    if codec in _SCALED:
        return _within_scale(x, y, _SCALED[codec], float(ml_dtypes.finfo(dtype).max))
    if codec in _INTEGERS:
        return _integers(x, y, _INTEGERS[codec], ml_dtypes.finfo(dtype))
    return _BOUNDS[codec](x, y)


def _sign_test(x: Float64s, y: Float64s) -> Mask:
    """Return where y = 1 for x > 0, and y = 0 for others."""
    right: Mask = y == (x > 0)
    return right


def _within_rounding(x: Float64s, y: Float64s, rounding: Rounding) -> Mask:
    """Return where |y - x| <= max(relative * |x|, absolute), or y = sign(x) infinity for
    |x| >= infinite_from, or both are NaN."""
    size = np.abs(x)
    allowed = np.maximum(rounding.relative * size, rounding.absolute)
    right: Mask = np.abs(y - x) <= allowed
    beyond = ~(size < rounding.infinite_from)  # NaN too
    if beyond.any():
        x, y = x[beyond], y[beyond]
        right[beyond] = _is_kept(x, y)
    return right


def _is_same(x: Float64s, y: Float64s) -> Mask:
    """Return where x and y are equal, also in the sign of zero, or both NaN."""
    same: Mask = ((x == y) & (np.signbit(x) == np.signbit(y))) | (np.isnan(x) & np.isnan(y))
    return same


def _within_scale(x: Float64s, y: Float64s, bound: Scaled, largest: float) -> Mask:
    """Return where |y - x| <= max(relative * |x|, absolute * 2^s), s shared by BLOCK numbers.

    s: the least integer with largest finite |x| of the block / 2^s <= bound.largest. largest: of
    the decoded type, beyond which a number may be rounded to infinity.
    """
    size, finite = np.abs(x), np.isfinite(x)
    blocks = np.pad(np.where(finite, size, 0), (0, -x.size % BLOCK)).reshape(-1, BLOCK)
    fraction, exponent = np.frexp(blocks.max(axis=1, initial=0))
    of_bound, least = np.frexp(bound.largest)
    scale = np.where(fraction == 0, 0, exponent - least + (fraction > of_bound))
    # `scale` is s, an exponent: fraction * 2^exponent / 2^s <= of_bound * 2^least.
    scale += bound.beside_infinity * np.pad(np.isinf(x), (0, -x.size % BLOCK)).reshape(
        -1, BLOCK
    ).any(1)
    allowed = np.repeat(np.ldexp(bound.absolute, scale), BLOCK)[: x.size]
    right: Mask = np.abs(y - x) <= np.maximum(bound.relative * size, allowed)
    right |= (size * (1 + bound.relative) > largest) & (y == np.copysign(np.inf, x))
    return np.where(finite, right, _is_same(x, y))


def _integers(x: Float64s, y: Float64s, signed: bool, of_type: ml_dtypes.finfo) -> Mask:
    """Return where |y - x| <= 0.51 * scale, but for the rounding of y to its type.

    scale: largest |x| of a block of INT8_BLOCK numbers / 127, or / 126 beside infinity and NaN, as
    bfloat16. signed: y has the sign of x, so it may be off by a whole scale where |x| < scale / 2.
    of_type: finfo of the decoded type.
    """
    blocks = np.pad(np.abs(x), (0, -x.size % INT8_BLOCK)).reshape(-1, INT8_BLOCK).astype(FLOAT32)
    finite = np.isfinite(blocks)
    largest = np.max(blocks, 1, where=finite, initial=0)
    largest *= np.where(finite.all(1), FLOAT32.type(1 / 127), FLOAT32.type(1 / 126))
    scales = np.maximum(largest, FLOAT32.type(INT8_LEAST_SCALE)).astype(BFLOAT16)
    scale = np.repeat(scales.astype(FLOAT64), INT8_BLOCK)[: x.size]
    allowed = scale * np.where(signed & (np.abs(x) < 0.5 * scale), 1, 0.51)
    rounding = np.maximum(float(of_type.eps) * np.abs(y), float(of_type.smallest_subnormal)) / 2
    right: Mask = np.abs(y - x) <= allowed + rounding
    if signed:
        right &= np.sign(y) == np.sign(x)
    right |= (127.5 * scale > float(of_type.max)) & (y == np.copysign(np.inf, x))
    return np.where(finite.ravel()[: x.size], right, _is_kept(x, y))


def _sparse_exponent(x: Float64s, y: Float64s, tile: int) -> Mask:
    """Return where y = 0 for x = +0, and within MSFP15's bound for boxes of the other numbers.

    Boxes are of 8 numbers other than +0. tile: numbers, +0 included, after which a new box begins.
    """
    right: Mask = y == 0
    for start in range(0, x.size, tile):
        place = start + np.flatnonzero((x[start:][:tile] != 0) | np.signbit(x[start:][:tile]))
        right[place] = _shared_exponent(x[place], y[place], keep_nonfinite=True)
    return right


# By codec, from (x, y) to the mask of elements within the bound; others: see within_bound.
_BOUNDS: dict[str, Callable[[Float64s, Float64s], Mask]] = {
    "binarize": _sign_test,
    "pack1": _sign_test,
    "pack8": partial(_within_rounding, rounding=E5M2),
    "pack16": partial(_within_rounding, rounding=HALF),
    "fp10": partial(_within_rounding, rounding=FP10),
    "sparse": _is_same,
    # Elements are uncompressed if that takes no more bytes.
    "sparse_fp10": lambda x, y: _within_rounding(x, y, FP10) | _is_same(x, y),
    "index4": _is_same,
}
_INTEGERS = {"int8": False, "int8_signed": True}  # `signed` of _integers
_SCALED = {"block_e4m3": E4M3_SCALED, "block_e5m2": E5M2_SCALED}


def _shared_exponent(x: Float64s, y: Float64s, keep_nonfinite: bool) -> Mask:
    """Return where |y - x| <= step / 2, or a step where MSFP15's mantissa saturates at 63.

    step = 2^(e - 5) for a tile of eight whose largest |x| is in [2^e, 2^(e + 1)). |x| < 2^-126 may
    be 0. A tile with a number beyond 2^128 or NaN is lost: all of it becomes 0, but with
    keep_nonfinite `_beside_nonfinite` holds for it.
    """
    size = np.abs(x)
    largest = _largest_of_tile(size)
    _, exponent = np.frexp(largest)
    step = _of_elements(np.ldexp(1.0, exponent - 1 - 5), x.size)
    allowed = np.where(size >= 63.5 * step, step, step / 2)
    flushed = size < 2.0**-126
    right: Mask = (flushed & (y == 0)) | (~flushed & (np.abs(y - x) <= allowed))
    lost = _is_lost(largest)
    if lost.any():
        beside = _beside_nonfinite(x, y, 4) | (flushed & (y == 0)) if keep_nonfinite else y == 0
        right = np.where(_of_elements(lost, x.size), beside, right)
    return right


def _beside_nonfinite(x: Float64s, y: Float64s, bits: int) -> Mask:
    """Return where |y - x| <= 2^(e - bits), or 2^(e - 3) near 2^(e + 1); |x| >= 2^128 or NaN: where
    y is infinity with x's sign, or NaN.

    e: the exponent of the tile's largest number that float32 holds, -127 at least.
    """
    below = np.abs(x) < 2.0**128
    largest = _largest_of_tile(np.where(below, np.abs(x), 0))
    power = _of_elements(np.ldexp(1.0, np.maximum(np.frexp(largest)[1] - 1, -127)), x.size)
    allowed = power * np.where(np.abs(x) >= 1.9375 * power, 2.0**-3, 2.0**-bits)
    return np.where(below, np.abs(y - x) <= allowed, _is_kept(x, y))


def _is_kept(x: Float64s, y: Float64s) -> Mask:
    """Return where y is NaN for NaN, else infinite with the sign of x."""
    return np.where(np.isnan(x), np.isnan(y), y == np.copysign(np.inf, x))


def _within_signed_tile(x: Float64s, y: Float64s, keep_nonfinite: bool) -> Mask:
    """Return where |y - x| <= step, and y has the sign of x: MSFP15 with signs.

    step = 2^(max(e, -127) - 5) for a tile of eight whose largest |x| is in [2^e, 2^(e + 1)). A tile
    with a number beyond 2^128 or NaN is lost: 0, but with keep_nonfinite `_beside_nonfinite` holds.
    """
    largest = _largest_of_tile(np.abs(x))
    _, exponent = np.frexp(largest)
    step = np.ldexp(1.0, np.maximum(exponent - 1, -127) - 5)
    signs_kept = (np.sign(y) == np.sign(x)) | np.isnan(x)
    right: Mask = (np.abs(y - x) <= _of_elements(step, x.size)) & signs_kept
    lost = _is_lost(largest)
    if lost.any():
        beside = _beside_nonfinite(x, y, 3) & signs_kept if keep_nonfinite else y == 0
        right = np.where(_of_elements(lost, x.size), beside, right)
    return right


def _largest_of_tile(size: Float64s) -> Float64s:
    """Return the maximum of each tile of 8 of `size`, flat magnitudes; zeros fill up the last.

    Three halvings are faster than `max` along a short axis.
    """
    missing = -size.size % TILE
    largest = np.pad(size, (0, missing)) if missing else size
    for _ in range(3):
        largest = np.maximum(largest[::2], largest[1::2])
    return largest


def _is_lost(largest: Float64s) -> Mask:
    """Return a mask of tiles without a shared exponent: their largest is not below 2^128."""
    below: Mask = largest < 2.0**128
    return ~below


def _of_elements(of_tiles: HostArray, n: int) -> HostArray:
    """Repeat the values of tiles for n elements."""
    return np.repeat(of_tiles, TILE)[:n]


def _larger(before: float | None, values: Float64s) -> float | None:
    """Return the maximum of `before` and values."""
    if not values.size:
        return before
    largest = float(values.max())
    return largest if before is None else max(before, largest)


def _snr_db(signal: float, noise: float) -> float | None:
    """Return the signal-to-noise ratio of two norms in decibels; None without a signal."""
    if not signal:
        return None
    return 20 * math.log10(signal / noise) if noise else math.inf


def _cosine(signal: Norm, decoded: Norm, noise: Norm) -> float | None:
    """Return the cosine of the angle between original and decoded, None if one of them is 0.

    By the law of cosines from the norms of original (signal), decoded and their difference (noise),
    the sides of a triangle.
    """
    if not signal.largest or not decoded.largest:
        return None
    side, opposite = decoded.over(signal), noise.over(signal)  # |y| / |x|, |y - x| / |x|
    cosine = (1 + side * side - opposite * opposite) / (2 * side) if side else math.nan
    return max(-1.0, min(1.0, cosine)) if math.isfinite(cosine) else None
