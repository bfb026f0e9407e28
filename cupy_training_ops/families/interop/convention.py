# SPDX-License-Identifier: MIT
"""Attributes of PythonOp: which arguments are arrays, and the constants between them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...declare.schema import boolean, integer, single
from ...dtypes import Dtype, to_dtype
from ...errors import ArgumentError, refuse, shown

TENSOR, CONSTANT = "d", "c"
KINDS = ("bool", "int", "float")  # of constants that attributes hold


def convention(value: object) -> str:
    """A text with a letter for each argument or result: d of an array, c of anything else."""
    if not isinstance(value, str) or not set(value) <= {TENSOR, CONSTANT}:
        raise ArgumentError(f"expected a text of the letters d and c, got {shown(value)}")
    return value


def no_graph(value: object) -> str:
    """An empty text: graphs are not compiled here."""
    if value not in ("", b""):
        raise ArgumentError(
            "expected nothing, got an ONNX graph, which is not compiled here: write its Triton "
            "kernel, and register a function that launches it (func_name)"
        )
    return ""


def text(value: object) -> str:
    """A text."""
    if not isinstance(value, str):
        raise ArgumentError(f"expected a text, got {shown(value)}")
    return value


def dtypes(value: object) -> tuple[Dtype, ...]:
    """Dtypes, their names or their ONNX type numbers."""
    if not isinstance(value, list | tuple | np.ndarray):
        raise ArgumentError(f"expected a list of dtypes, got {shown(value)}")
    return tuple(map(to_dtype, value))


def booleans(value: object) -> tuple[bool, ...]:
    """Bools (0 or 1 in ONNX)."""
    if not isinstance(value, list | tuple | np.ndarray):
        raise ArgumentError(f"expected a list of bools, got {shown(value)}")
    return tuple(map(boolean, value.tolist() if isinstance(value, np.ndarray) else value))


def nothing(value: object) -> tuple[int, ...]:
    """Nothing: an empty list."""
    if not isinstance(value, list | tuple) or value:
        raise ArgumentError(
            f"expected none, got {shown(value)}: addresses of Python objects mean nothing in "
            f"another process, and keep nothing alive (register a function that has the object)"
        )
    return ()


def handle(value: object) -> int:
    """A context: the integer that a PythonOp gave."""
    return integer(single(value))


def constants(op: str, letters: str, attributes: Mapping[str, object]) -> dict[int, object]:
    """The constant arguments by their places; refuses attributes that do not fit each other."""
    by_place: dict[int, object] = {}
    for name, place, value in _with_places(op, attributes):
        if not 0 <= place < len(letters) or letters[place] != CONSTANT:
            refuse(op, name, f"places of the letter c in {letters!r}", str(place))
        if place in by_place:
            refuse(op, name, "each place once", f"{place} once more")
        by_place[place] = value
    if len(by_place) != letters.count(CONSTANT):
        expected = f"a letter c for each of {len(by_place)} constants"
        refuse(op, "input_convention", expected, repr(letters))
    return by_place


def _with_places(op: str, attributes: Mapping[str, Any]) -> Iterator[tuple[str, int, object]]:
    """Every constant with its place and the attribute that has it."""
    for kind in KINDS:
        name = f"input_{kind}_scalar_positions"
        places = _of_each(op, name, attributes[name], attributes[f"input_{kind}_scalars"])
        yield from zip(
            [name] * len(places), places, attributes[f"input_{kind}_scalars"], strict=True
        )
        name = f"input_{kind}_tuple_positions"
        tuples = _tuples(op, kind, attributes)
        places = _of_each(op, name, attributes[name], tuples)
        yield from zip([name] * len(places), places, tuples, strict=True)


def _of_each(op: str, name: str, places: Sequence[int], values: Sequence[object]) -> Sequence[int]:
    if len(places) != len(values):
        refuse(op, name, f"{len(values)} places, one for each value", str(len(places)))
    return places


def _tuples(op: str, kind: str, attributes: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """The tuples of one kind: tuple i is from where it begins to where the next one does."""
    name, values = f"input_{kind}_tuple_begins", attributes[f"input_{kind}_tuples"]
    begins: tuple[int, ...] = attributes[name]
    if not begins and not values:
        return []
    if begins[:1] != (0,) or list(begins) != sorted(begins) or begins[-1] > len(values):
        refuse(op, name, f"numbers that rise from 0 to at most {len(values)}", shown(begins))
    return [values[a:b] for a, b in itertools.pairwise((*begins, len(values)))]


def require_places(op: str, reused: tuple[int, ...] | None, n: int) -> None:
    """Refuse a map of the outputs that share memory with one of n arrays."""
    if reused is not None and (reused[0] != -1 or not set(reused) <= set(range(-1, n))):
        expected = f"-1 for the context, and -1 or a place below {n} for each output"
        refuse(op, "tensor_reuse_map", expected, shown(reused))
