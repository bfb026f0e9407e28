# SPDX-License-Identifier: MIT
"""Two broadcast shapes as few dimensions: neighbours that the same operands have become one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, zip_longest
from typing import NamedTuple

Shape = tuple[int, ...]


class Dimension(NamedTuple):
    """A dimension of the result; an operand that lacks it is repeated along it."""

    extent: int
    in_a: bool
    in_b: bool


def broadcast(a: Shape, b: Shape) -> Shape | None:
    """The shape that a and b broadcast to, of any rank; None where they do not fit together."""
    pairs = list(zip_longest(reversed(a), reversed(b), fillvalue=1))
    if any(p != q and 1 not in (p, q) for p, q in pairs):
        return None
    return tuple(p if q == 1 else q for p, q in reversed(pairs))


def dimensions(a: Shape, b: Shape) -> list[Dimension]:
    """The dimensions of a and b broadcast together, outermost first; none has extent 1."""
    extents = reversed(list(zip_longest(reversed(a), reversed(b), fillvalue=1)))
    kept = [(p if q == 1 else q, p != 1, q != 1) for p, q in extents if (p, q) != (1, 1)]
    return [
        Dimension(math.prod(extent for extent, *_ in group), *key)
        for key, group in groupby(kept, key=lambda dimension: dimension[1:])
    ]


def outer_kept_inner(dims: Sequence[Dimension], part: str) -> tuple[int, int, int] | None:
    """The result as [outer, kept, inner] where operand `part` has only the middle one.

    None where the other operand lacks a dimension or the part has two that are apart.
    """
    if not all(d.in_a if part == "B" else d.in_b for d in dims):
        return None
    has = [d.in_b if part == "B" else d.in_a for d in dims]
    if has.count(True) > 1:
        return None
    middle = has.index(True) if True in has else 0
    kept = dims[middle].extent if True in has else 1
    inner = dims[middle + (True in has) :]
    return math.prod(d.extent for d in dims[:middle]), kept, math.prod(d.extent for d in inner)


def strides(dims: Sequence[Dimension], has: Sequence[bool]) -> list[int]:
    """Elements from one index to the next in an operand, 0 along what it lacks."""
    strides_from_last, step = [], 1
    for dimension, there in zip(reversed(dims), reversed(has), strict=True):
        strides_from_last.append(step if there else 0)
        step *= dimension.extent if there else 1
    return strides_from_last[::-1]
