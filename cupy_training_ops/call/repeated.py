# SPDX-License-Identifier: MIT
"""The call before, known again by its arrays: their memory is neither compared nor looked up anew.

Over lists of hundreds of arrays this is most of a call's host time. Arrays are held weakly, and
compared by identity as long as all of them live.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..backend import Array, Backend
from ..declare.schema import Input
from ..errors import pass_on
from .backends import is_array
from .keys import Reader
from .prepared import Arguments
from .run import Call, Placed

Keys = tuple[object, ...]  # parts of a call's key


@dataclass(frozen=True)
class Known:
    """The arrays that a call had, and what tells whether another has the same."""

    backend: Backend
    declared: Sequence[Input]
    readers: Sequence[Reader]
    keys: Keys  # of host values
    identities: tuple[int, ...]
    held: tuple[weakref.ref[Array], ...]
    gone: Sequence[object]  # arrays that are no more: another may have the identity of one
    states: list[object] | None  # what of the arrays may change while they live

    @classmethod
    def of(
        cls,
        backend: Backend,
        declared: Sequence[Input],
        readers: Sequence[Reader],
        inputs: Arguments,
        out: Arguments = (),
        by_memory: bool = False,
    ) -> Known | None:
        """What is known of these arguments; None where it cannot be known again.

        by_memory: arrays are the same ones also where they were given another shape.
        """
        gone = list[object]()
        try:
            found = _arrays(declared, inputs, out)
            if not backend.runs_kernels or all(array is None for array in found):
                return None
            held = tuple([weakref.ref(a, gone.append) for a in found if a is not None])
            keys = _keys(declared, readers, inputs, out)
        except (KeyError, TypeError) as error:
            pass_on(error)
            return None
        states = None if by_memory else backend.states(found)
        identities = tuple(map(id, found))
        return cls(backend, declared, readers, keys, identities, held, gone, states)

    def has(self, inputs: Arguments, out: Arguments = ()) -> bool:
        """Whether these arguments are the same."""
        try:
            found = _arrays(self.declared, inputs, out)
            if self.gone or tuple(map(id, found)) != self.identities:
                return False
            if _keys(self.declared, self.readers, inputs, out) != self.keys:
                return False
            return self.states is None or self.backend.states(found) == self.states
        except (KeyError, TypeError) as error:  # an argument that has to be adopted first
            pass_on(error)
            return False


@dataclass(frozen=True)
class Repeated:
    """A call that was made, and what tells whether the next one has the same arrays."""

    call: Call
    known: Known
    outputs: Sequence[str] | None
    placed: Placed | None

    def has(self, inputs: Arguments, out: Arguments, outputs: Sequence[str] | None) -> bool:
        """Whether a call with these arguments is the same."""
        missing = len(self.known.declared) - len(inputs)
        try:
            if missing < 0 or outputs != self.outputs:
                return False
        except (TypeError, ValueError):  # an array, which has to be refused
            return False
        return self.known.has(inputs + (None,) * missing, out)

    def again(self, inputs: Arguments, out: Arguments) -> object:
        """The call, without a comparison of memory."""
        inputs, out, arrays = self.call.split(inputs, out)
        return self.call.finish(inputs, arrays, out, None, self.placed)


def remembered(
    call: Call,
    readers: tuple[Reader, ...],
    inputs: Arguments,
    out: Arguments,
    outputs: Sequence[str] | None,
    placed: Placed | None,
) -> list[Repeated]:
    """The call with these arguments in a list, which is empty where it cannot be known again."""
    known = Known.of(call.backend, call.prepared.inputs, readers, inputs, out)
    names = None if outputs is None else tuple(outputs)  # a list might change
    return [] if known is None else [Repeated(call, known, names, placed)]


def _arrays(declared: Sequence[Input], inputs: Arguments, out: Arguments) -> list[Array | None]:
    """All arrays that are given, one by one; TypeError where a list is none."""
    found: list[Array | None] = []
    for item, value in zip(declared, inputs, strict=True):
        if item.memory == "device":
            found += _listed(value) if item.variadic and value is not None else (value,)
        elif item.memory == "either":
            found.append(value if is_array(value) else None)
    for given in out:
        found += given if isinstance(given, tuple) else (given,)
    return found


def _listed(value: Any) -> Sequence[Any]:
    """A list as it is; an array would take itself apart, and another class may have no end."""
    if type(value) not in (list, tuple):
        raise TypeError
    values: Sequence[Any] = value
    return values


def _keys(
    declared: Sequence[Input], readers: Sequence[Reader], inputs: Arguments, out: Arguments
) -> Keys:
    """What tells calls with the same arrays apart: the lengths of lists, and host values."""
    lengths = tuple([len(given) if isinstance(given, tuple) else None for given in out])
    return lengths, tuple(map(_key, declared, readers, inputs))


def _key(item: Input, read: Reader, value: object) -> object:
    """Of one input; KeyError or TypeError where it is not in a form that tells."""
    if item.memory == "device" and isinstance(value, list | tuple):
        return len(value)
    if value is None or (item.memory != "host" and is_array(value)):
        return None
    return read(value)
