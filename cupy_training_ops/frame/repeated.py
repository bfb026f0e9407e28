# SPDX-License-Identifier: MIT
"""The call before, known again by its arrays: their memory is neither compared nor looked up anew.

Over lists of hundreds of arrays this is most of a call's host time. Arrays are held weakly.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

from ..backend import Array
from ..schema import Input
from .backends import BACKENDS
from .call import Call, Tables
from .keys import Reader
from .prepared import Arguments

Keys = tuple[object, ...]  # parts of a call's key


@dataclass(frozen=True)
class Repeated:
    """A call that was made, and what tells whether the next one has the same arrays."""

    call: Call
    readers: tuple[Reader, ...]
    keys: Keys  # of host values
    arrays: tuple[weakref.ref[Array] | None, ...]
    states: list[object]  # what of the arrays may change while they live
    outputs: Sequence[str] | None
    tables: Tables | None

    def has(self, inputs: Arguments, out: Arguments, outputs: Sequence[str] | None) -> bool:
        """Whether a call with these arguments is the same."""
        declared = self.call.prepared.inputs
        if len(inputs) > len(declared):
            return False
        inputs += (None,) * (len(declared) - len(inputs))
        try:
            if outputs != self.outputs:
                return False
            found = _arrays(declared, inputs, out)
            alive = [None if held is None else held() for held in self.arrays]
            if len(found) != len(alive) or not all(map(is_, found, alive)):
                return False
            same_keys = _keys(declared, self.readers, inputs, out) == self.keys
            return same_keys and self.call.backend.states(found) == self.states
        except (KeyError, TypeError, ValueError):  # what has to be adopted or refused first
            return False

    def again(self, inputs: Arguments, out: Arguments) -> Any:
        """The call, without a comparison of memory."""
        inputs, out, arrays = self.call.taken_apart(inputs, out)
        return self.call.finish(inputs, arrays, out, None, self.tables)


def remembered(
    call: Call,
    readers: tuple[Reader, ...],
    inputs: Arguments,
    out: Arguments,
    outputs: Sequence[str] | None,
    tables: Tables | None,
) -> list[Repeated]:
    """The call with these arguments in a list, which is empty where it cannot be known again."""
    declared = call.prepared.inputs
    found = _arrays(declared, inputs, out)
    if not call.backend.runs_kernels or all(array is None for array in found):
        return []
    names = None if outputs is None else tuple(outputs)  # a list might change
    try:
        held = tuple([None if array is None else weakref.ref(array) for array in found])
        keys = _keys(declared, readers, inputs, out)
    except (KeyError, TypeError):
        return []
    return [Repeated(call, readers, keys, held, call.backend.states(found), names, tables)]


def _arrays(declared: Sequence[Input], inputs: Arguments, out: Arguments) -> list[Array | None]:
    """All arrays that are given, one by one; TypeError where a list is none."""
    found: list[Array | None] = []
    for item, value in zip(declared, inputs, strict=True):
        if item.memory == "device":
            found += _listed(value) if item.variadic and value is not None else (value,)
        elif item.memory == "either":
            found.append(value if type(value) in BACKENDS else None)
    for given in out:
        found += given if isinstance(given, tuple) else (given,)
    return found


def _listed(value: Any) -> Sequence[Any]:
    """A list as it is: an array would take itself apart."""
    if not isinstance(value, list | tuple):
        raise TypeError
    return value


def _keys(
    declared: Sequence[Input], readers: tuple[Reader, ...], inputs: Arguments, out: Arguments
) -> Keys:
    """What tells calls with the same arrays apart: the lengths of lists, and host values."""
    lengths = tuple([len(given) if isinstance(given, tuple) else None for given in out])
    return lengths, tuple(map(_key, declared, readers, inputs))


def _key(item: Input, read: Reader, value: object) -> object:
    """Of one input; KeyError or TypeError where it is not in a form that tells."""
    if value is None or (type(value) in BACKENDS and item.memory != "host"):
        return None
    if item.memory == "device" and isinstance(value, list | tuple):
        return len(value)
    return read(value)
