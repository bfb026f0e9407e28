# SPDX-License-Identifier: MIT
"""Which memory can exist: one rule for inputs, outputs and scratch memory, on every provider."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from .errors import ArgumentError, shown

MAX_RANK = 64  # NumPy's and CuPy's
MAX_NBYTES = 2**63 - 1  # sizes, offsets and strides fit int64
MAX_ELEMENTS = MAX_NBYTES // 16  # so that an array may be computed in any type, the widest too
MAX_ARRAYS = 2**16  # of a list


class Excess(NamedTuple):
    """Words for a message, "expected ..., got ...", about a limit that is exceeded."""

    expected: str
    got: str


def refuse(excess: Excess | None) -> None:
    """Raise ArgumentError if a limit is exceeded; None: it is not."""
    if excess is not None:
        raise ArgumentError(f"expected {excess.expected}, got {excess.got}")


def of_lengths(lengths: Sequence[int]) -> Excess | None:
    """Return the Excess of lengths along an axis; None if an array can have each."""
    if min(lengths, default=0) < 0 or max(lengths, default=0) > MAX_NBYTES:
        return Excess("extents of at least 0 and below 2^63", shown(tuple(lengths)))
    return None


def of_shape(shape: Sequence[int]) -> Excess | None:
    """Return the Excess of an array of this shape; None if it can exist.

    Extents of 0 do not count, as in NumPy: the strides of the others must fit too.
    """
    if len(shape) > MAX_RANK:
        return Excess(f"at most {MAX_RANK} dimensions", str(len(shape)))
    excess = of_lengths(shape)
    if excess is None and math.prod(filter(None, shape)) > MAX_ELEMENTS:
        return Excess("fewer than 2^59 elements", str(tuple(shape)))
    return excess


def of_scratch(nbytes: int) -> Excess | None:
    """Return the Excess of scratch memory of so many bytes; None if it can exist."""
    return Excess("fewer than 2^63 bytes", str(nbytes)) if nbytes > MAX_NBYTES else None


def of_list(n: int) -> Excess | None:
    """Return the Excess of a list of n arrays; None if it is short enough."""
    return Excess(f"at most {MAX_ARRAYS} entries", str(n)) if n > MAX_ARRAYS else None
