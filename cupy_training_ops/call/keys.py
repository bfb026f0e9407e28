# SPDX-License-Identifier: MIT
"""Keys of calls: an array by dtype, shape, alignment and device, a host value exactly.

Arrays of a call before are known again without them: most of the host time of a call over hundreds
of arrays is reading and comparing what they are.
"""

from __future__ import annotations

import itertools
import marshal
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from ..backend import Array, Backend
from ..declare.schema import Input
from ..errors import pass_on
from .backends import BACKENDS, TENSORS, info, infos, is_array

Reader = Callable[[Any], object]

_INTEGERS = frozenset((int,))
_TUPLES = frozenset((tuple,))
_PLAIN = frozenset((float, bool, str))
_ITEMS = frozenset((int, float, bool, str, np.int32, np.int64, np.float32, np.float64))
_FORMS = frozenset((float, tuple, list, np.ndarray))
_HASHED = (int, str, type(None), type, np.dtype)
_SCALARS = frozenset((np.bool_, np.int32, np.int64, np.float16, np.float32, np.float64))
NUMBERS = _SCALARS | {int, float, bool}
_CHANGING = NUMBERS | {tuple}
_ATOMS = frozenset((int, float, bool, str, type(None)))
EXACT = 2  # marshal's version that has floats in binary, and no references
_MOST = 1024  # elements of an array that is read for a key

CHANGES: Final = "a value that changes from call to call"  # the key of each


class Marked(NamedTuple):
    """A host value as part of a key, with what tells it from its equals, as 0.0 from -0.0."""

    value: object
    mark: object


def host_key(value: Any) -> object:
    """A host input as part of a key: integers as they are; KeyError for what has to be frozen."""
    kind = type(value)
    if kind is int or (kind is tuple and _INTEGERS.issuperset(map(type, value))):
        return value
    if kind in _PLAIN or (kind is tuple and _ITEMS.issuperset(map(type, value))):
        return Marked(value, repr(value))
    if kind is list:
        return Marked(host_key(tuple(value)), list)
    if kind is np.ndarray and value.size <= _MOST and not value.dtype.hasobject:
        numbers = tuple(value.tolist()) if value.ndim == 1 else None  # as converters make of it
        return Marked(numbers, (value.shape, value.dtype, value.tobytes()))
    if kind in _SCALARS:
        return Marked(value.item(), (kind, value.tobytes()))
    raise KeyError(kind)


def host_keys(values: Any) -> tuple[object, ...]:
    """The `host_key` of each value of a list or tuple; TypeError for any other class."""
    if type(values) is not list and type(values) is not tuple:
        raise TypeError  # an array would take itself apart, another class may do anything
    is_nested = _TUPLES.issuperset(map(type, values))  # such as View's shapes: in one go
    if is_nested and _INTEGERS.issuperset(map(type, itertools.chain.from_iterable(values))):
        return tuple(values)
    return tuple([None if v is None else host_key(v) for v in values])


def changing_key(value: object) -> object:
    """A host value that changes: that there is one. KeyError for what has to be frozen first."""
    if type(value) in _CHANGING:
        return CHANGES
    raise KeyError(type(value))


def either_key(value: Any) -> object:
    """Key of an array, or of there being a number."""
    return CHANGES if type(value) in _CHANGING else info(value)


def array_keys(values: object) -> tuple[object, ...]:
    """Keys of a list of arrays; TypeError where there is no list of Python's own."""
    if type(values) is not list and type(values) is not tuple:
        raise TypeError
    return infos(values)


def reader(item: Input) -> Reader:
    """How one declared input enters the key of a call."""
    if item.memory == "either":
        return either_key
    if item.memory == "host":
        if item.changes:
            return changing_key
        return host_keys if item.variadic else host_key
    return array_keys if item.variadic else info


def out_key(out: Sequence[Any]) -> tuple[object, ...]:
    """Keys of the caller's outputs, those of a variadic one in a tuple of their own."""
    keys: list[object] = []
    for array in out:
        if array is None or type(array) is tuple:
            keys.append(None if array is None else out_key(array))
        else:
            kind = type(array)
            keys.append((BACKENDS.get(kind) or TENSORS[kind]).info(array))
    return tuple(keys)


def attribute_key(value: object) -> object:
    """An attribute as part of a key; KeyError or TypeError for a value that cannot be hashed."""
    kind = type(value)
    if kind in _FORMS:
        return host_key(value)
    if isinstance(value, np.generic):
        return kind, value.tobytes()  # as 0.0 from -0.0
    if isinstance(value, _HASHED):
        return kind, value
    raise KeyError(kind)


def exact_key(values: Sequence[object]) -> bytes:
    """Make a key of plain values that tells 1 from 1.0 and True, and 0.0 from -0.0.

    Plain are int, float, bool, str and None, and tuples and lists of them, but no subclasses. Other
    values raise ValueError, or have a key that no plain values have.
    """
    return marshal.dumps(values, EXACT)  # type: ignore[arg-type]


def is_plain(value: object) -> bool:
    """Return True if a value is plain, so that its `exact_key` is that of no other value."""
    if type(value) in (tuple, list):
        return all(map(is_plain, value))  # type: ignore[call-overload]
    return type(value) in _ATOMS


def unmark(key: object) -> object:
    """The host value of which `host_key` made a key."""
    return key.value if type(key) is Marked else key


# ---- arrays that are known again -----------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """The arrays that a call had, and what tells whether another has the same."""

    backend: Backend
    declared: Sequence[Input]
    readers: Sequence[Reader]
    keys: tuple[object, ...]  # of host values
    identities: tuple[int, ...]
    held: tuple[weakref.ref[Array], ...]
    dead: Sequence[object]  # weak references of arrays that died: another may have the identity
    states: list[object] | None  # what of the arrays may change while they live

    @classmethod
    def of(
        cls,
        backend: Backend,
        declared: Sequence[Input],
        readers: Sequence[Reader],
        inputs: Sequence[Any],
        out: Sequence[Any] = (),
        by_memory: bool = False,
    ) -> Known | None:
        """Make the guard of these arguments; None where they cannot be known again.

        by_memory: arrays are the same ones also where they were given another shape.
        """
        dead = list[object]()
        try:
            arrays = _arrays(declared, inputs, out)
            if not backend.runs_kernels or all(array is None for array in arrays):
                return None
            held = tuple([weakref.ref(a, dead.append) for a in arrays if a is not None])
            keys = _keys(declared, readers, inputs, out)
        except (KeyError, TypeError) as error:
            pass_on(error)
            return None
        states = None if by_memory else backend.states(arrays)
        identities = tuple(map(id, arrays))
        return cls(backend, declared, readers, keys, identities, held, dead, states)

    def has(self, inputs: Sequence[Any], out: Sequence[Any] = ()) -> bool:
        """Return True if these arguments are the same."""
        try:
            arrays = _arrays(self.declared, inputs, out)
            if self.dead or tuple(map(id, arrays)) != self.identities:
                return False
            if _keys(self.declared, self.readers, inputs, out) != self.keys:
                return False
            return self.states is None or self.backend.states(arrays) == self.states
        except (KeyError, TypeError) as error:  # an argument that has to be adopted first
            pass_on(error)
            return False


def _arrays(
    declared: Sequence[Input], inputs: Sequence[Any], out: Sequence[Any]
) -> list[Array | None]:
    """All arrays that are given, one by one; TypeError where a list is none."""
    arrays: list[Array | None] = []
    for item, value in zip(declared, inputs, strict=True):
        if item.memory == "device":
            arrays += _require_list(value) if item.variadic and value is not None else (value,)
        elif item.memory == "either":
            arrays.append(value if is_array(value) else None)
    for given in out:
        arrays += given if isinstance(given, tuple) else (given,)
    return arrays


def _require_list(value: Any) -> Sequence[Any]:
    """Return a list or tuple; TypeError for an array, and for a class that may have no end."""
    if type(value) not in (list, tuple):
        raise TypeError
    values: Sequence[Any] = value
    return values


def _keys(
    declared: Sequence[Input], readers: Sequence[Reader], inputs: Sequence[Any], out: Sequence[Any]
) -> tuple[object, ...]:
    """Key that tells calls with the same arrays apart: lengths of lists, host values."""
    lengths = tuple([len(given) if isinstance(given, tuple) else None for given in out])
    return lengths, tuple(map(_key, declared, readers, inputs))


def _key(item: Input, read: Reader, value: object) -> object:
    """Key of one input; KeyError or TypeError where it has to be adopted first."""
    if item.memory == "device" and isinstance(value, list | tuple):
        return len(value)
    if value is None or (item.memory != "host" and is_array(value)):
        return None
    return read(value)
