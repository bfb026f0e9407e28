# SPDX-License-Identifier: MIT
"""Operators on sequences, which are lists of arrays, and on optional values, which may be EMPTY.

xp: numpy or cupy. Other parameters: the operator's inputs in ONNX's order; attributes by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import ArgumentError
from ..graph import EMPTY, Value
from .table import Array, Module, axis_of, concatenate, stack, standard


@standard("SequenceConstruct", keeps=True)
def sequence_construct(xp: Module, *arrays: Array) -> list[Array]:
    return list(arrays)


@standard("SequenceEmpty", keeps=True)
def sequence_empty(xp: Module, *, dtype: int = 1) -> list[Array]:
    return []


@standard("SequenceAt", host=(1,), view=True)
def sequence_at(xp: Module, arrays: list[Array], place: Any) -> Array:
    return arrays[_place(place, len(arrays))]


@standard("SequenceLength", shapes_only=True)
def sequence_length(xp: Module, arrays: list[Array]) -> Array:
    return np.array(len(arrays), np.int64)


@standard("SequenceInsert", host=(2,), keeps=True)
def sequence_insert(
    xp: Module, arrays: list[Array], array: Array, place: Any = None
) -> list[Array]:
    """Return the list with an array inserted at a position, by default, or at n, at the end."""
    n = len(arrays)
    at = n if place is None else _place(place, n, beyond=1)
    return [*arrays[:at], array, *arrays[at:]]


@standard("SequenceErase", host=(1,), keeps=True)
def sequence_erase(xp: Module, arrays: list[Array], place: Any = None) -> list[Array]:
    at = _place(np.array(-1) if place is None else place, len(arrays))
    return [*arrays[:at], *arrays[at + 1 :]]


def _place(place: Any, n: int, beyond: int = 0) -> int:
    """Return a position in a list of n, counted from the front; refuse one outside of the list.

    place: an array of one number, negative from the end. beyond: 1 if n is allowed, too.
    """
    if place.size != 1:
        raise ArgumentError(f"position: expected one integer, got shape {place.shape}")
    i = int(place.reshape(-1)[0])
    if not -n <= i < n + beyond:
        raise ArgumentError(f"position: expected from {-n} to {n - 1 + beyond}, got {i}")
    return i + n if i < 0 else i


@standard("SplitToSequence", host=(1,), keeps=True)
def split_to_sequence(
    xp: Module, x: Array, split: Any = None, *, axis: int = 0, keepdims: bool = True
) -> list[Array]:
    """Return a list of parts of x along an axis.

    split: a vector of their extents, or a scalar, of which the last part may have less. None: parts
    of extent 1, without that axis if not keepdims.
    """
    axis = axis_of(axis, x.ndim)
    n = x.shape[axis]
    if split is None:
        parts = _parts(x, axis, [1] * n)
        return parts if keepdims else [part.squeeze(axis) for part in parts]
    if split.ndim:
        extents = [int(extent) for extent in split]
        if sum(extents) != n or min(extents, default=0) < 0:
            raise ArgumentError(f"split: expected extents of sum {n}, got {extents}")
        return _parts(x, axis, extents)
    each = int(split)
    if each < 1:
        raise ArgumentError(f"split: expected at least 1, got {each}")
    return _parts(x, axis, [min(each, n - start) for start in range(0, n, each)])


def _parts(x: Array, axis: int, extents: Sequence[int]) -> list[Array]:
    """Return views of x of these extents along an axis."""
    parts, start = [], 0
    for extent in extents:
        parts.append(x[(slice(None),) * axis + (slice(start, start + extent),)])
        start += extent
    return parts


@standard("ConcatFromSequence")
def concat_from_sequence(
    xp: Module, arrays: list[Array], *, axis: int, new_axis: bool = False
) -> Array:
    """Return the arrays concatenated along an axis, or stacked along a new one."""
    if not arrays:
        raise ArgumentError("input_sequence: expected at least one array, got none")
    if new_axis:
        return stack(xp, arrays, axis_of(axis, arrays[0].ndim + 1))
    return concatenate(xp, arrays, axis_of(axis, arrays[0].ndim))


# ---- optional values -----------------------------------------------------------------------------


@standard("Optional", keeps=True)
def optional(xp: Module, x: Any = None, *, type: Value | None = None) -> Any:
    return EMPTY if x is None else x


@standard("OptionalHasElement", shapes_only=True)
def optional_has_element(xp: Module, x: Any = None) -> Array:
    return np.array(x is not None and x is not EMPTY)


@standard("OptionalGetElement", keeps=True)
def optional_get_element(xp: Module, x: Any) -> Any:
    if x is EMPTY:
        raise ArgumentError("input: expected a value, got an empty optional")
    return x
