# SPDX-License-Identifier: MIT
"""Keys of calls: dtype, shape, alignment and device of arrays, host values exactly.

`SameArrays` recognises the arrays of an earlier call by identity: over hundreds of arrays, making
and comparing keys would take most of the host time.
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
from ..errors import raise_if_from_handler
from .backends import BACKENDS, TENSORS, info, infos, is_array

Reader = Callable[[Any], object]  # from the value of an input to its key

_INTEGERS = frozenset((int,))
_TUPLES = frozenset((tuple,))
_PLAIN = frozenset((float, bool, str))
_ITEMS = frozenset((int, float, bool, str, np.int32, np.int64, np.float32, np.float64))
_FORMS = frozenset((float, tuple, list, np.ndarray))
_HASHED = (int, str, type(None), type, np.dtype)
_SCALARS = frozenset((np.bool_, np.int32, np.int64, np.float16, np.float32, np.float64))
NUMBERS = _SCALARS | {int, float, bool}
CHANGING = NUMBERS | {tuple}  # types of values that may change from call to call
_ATOMS = frozenset((int, float, bool, str, type(None)))
EXACT = 2  # the version of marshal with binary floats and without references
_MOST = 1024  # elements of an array whose values are part of a key

CHANGES: Final = "a value that changes from call to call"  # the key of each


class Marked(NamedTuple):
    """A host value in a key, and a mark that differs for equal values such as 0.0 and -0.0."""

    value: object
    mark: object


def host_key(value: Any) -> object:
    """Return the key of a host input: the value, with a mark where equal values differ.

    1 and True, or 0.0 and -0.0, are equal in Python; their keys are not. KeyError for a value that
    has to be frozen first.
    """
    kind = type(value)
    if kind is int or (kind is tuple and _INTEGERS.issuperset(map(type, value))):
        return value
    if kind in _PLAIN or (kind is tuple and _ITEMS.issuperset(map(type, value))):
        return Marked(value, repr(value))
    if kind is list:
        return Marked(host_key(tuple(value)), list)
    if kind is np.ndarray and value.size <= _MOST and not value.dtype.hasobject:
        numbers = (
            tuple(value.tolist()) if value.ndim == 1 else None
        )  # converters flatten no other arrays
        return Marked(numbers, (value.shape, value.dtype, value.tobytes()))
    if kind in _SCALARS:
        return Marked(value.item(), (kind, value.tobytes()))
    raise KeyError(kind)


def host_keys(values: Any) -> tuple[object, ...]:
    """Return the `host_key` of each value of a list or tuple; TypeError for other classes."""
    if type(values) is not list and type(values) is not tuple:
        raise TypeError  # iterating over another class may do anything
    is_nested = _TUPLES.issuperset(map(type, values))  # such as View's shapes: checked at once
    if is_nested and _INTEGERS.issuperset(map(type, itertools.chain.from_iterable(values))):
        return tuple(values)
    return tuple([None if v is None else host_key(v) for v in values])


def changing_key(value: object) -> object:
    """Return CHANGES; KeyError for a value that has to be frozen first."""
    if type(value) in CHANGING:
        return CHANGES
    raise KeyError(type(value))


def either_key(value: Any) -> object:
    """Return the key of an array, or CHANGES for a number."""
    return CHANGES if type(value) in CHANGING else info(value)


def array_keys(values: object) -> tuple[object, ...]:
    """Return the keys of a list of arrays; TypeError for other classes than list and tuple."""
    if type(values) is not list and type(values) is not tuple:
        raise TypeError
    return infos(values)


def reader(item: Input) -> Reader:
    """Return the function that makes the key of a value of this declared input."""
    if item.memory == "either":
        return either_key
    if item.memory == "host":
        if item.changes:
            return changing_key
        return host_keys if item.variadic else host_key
    return array_keys if item.variadic else info


def out_key(out: Sequence[Any]) -> tuple[object, ...]:
    """Return the key of each item of `out`: Info of an array, None, a tuple of keys for a tuple."""
    keys: list[object] = []
    for array in out:
        if array is None or type(array) is tuple:
            keys.append(None if array is None else out_key(array))
        else:
            kind = type(array)
            keys.append((BACKENDS.get(kind) or TENSORS[kind]).info(array))
    return tuple(keys)


def attribute_key(value: object) -> object:
    """Return the key of an attribute, by which equal ones share an operator's instance; KeyError or
    TypeError for a value that is not hashable."""
    kind = type(value)
    if kind in _FORMS:
        return host_key(value)
    if isinstance(value, np.generic):
        return kind, value.tobytes()  # as 0.0 from -0.0
    if isinstance(value, _HASHED):
        return kind, value
    raise KeyError(kind)


def exact_key(values: Sequence[object]) -> bytes:
    """Make a key that differs for 1, 1.0 and True, and for 0.0 and -0.0.

    For plain values: int, float, bool, str, None, and tuples and lists of these, no subclasses.
    Others raise ValueError, or have a key that no plain value has.
    """
    return marshal.dumps(values, EXACT)  # type: ignore[arg-type]


def is_plain(value: object) -> bool:
    """Return True if a value is plain, so that its `exact_key` is that of no other value."""
    if type(value) in (tuple, list):
        return all(map(is_plain, value))  # type: ignore[call-overload]
    return type(value) in _ATOMS


def unmark(key: object) -> object:
    """Return the host value of a `host_key`."""
    return key.value if type(key) is Marked else key


# ---- arrays of an earlier call -----------------------------------------------------------------


@dataclass(frozen=True)
class SameArrays:
    """A guard: `has` is True for arguments with the arrays and host values of an earlier call.

    backend: of the arrays. declared: all inputs of the operator.
    """

    backend: Backend
    declared: Sequence[Input]
    readers: Sequence[Reader]  # for each declared input
    keys: tuple[object, ...]  # of host values, and lengths of lists
    identities: tuple[int, ...]  # `id` of each array
    references: tuple[weakref.ref[Array], ...]
    dead: Sequence[object]  # references of freed arrays, whose identity may be reused
    states: list[object] | None  # of each array, what may change of it; None: not compared

    @classmethod
    def of(
        cls,
        backend: Backend,
        declared: Sequence[Input],
        readers: Sequence[Reader],
        inputs: Sequence[Any],
        out: Sequence[Any] = (),
        by_memory: bool = False,
    ) -> SameArrays | None:
        """Make a guard of these arguments; None if they have no keys, or no array is on a GPU.

        inputs: for each declared input a value or None. out: a tuple in it stands for a list.
        by_memory: an array may change its shape.
        """
        dead = list[object]()
        try:
            arrays = _arrays(declared, inputs, out)
            if not backend.runs_kernels or all(array is None for array in arrays):
                return None
            references = tuple([weakref.ref(a, dead.append) for a in arrays if a is not None])
            keys = _keys(declared, readers, inputs, out)
        except (KeyError, TypeError) as error:
            raise_if_from_handler(error)
            return None
        states = None if by_memory else backend.states(arrays)
        identities = tuple(map(id, arrays))
        return cls(backend, declared, readers, keys, identities, references, dead, states)

    def has(self, inputs: Sequence[Any], out: Sequence[Any] = ()) -> bool:
        """Return True if these arguments have the same arrays and host values; inputs: for each
        declared input a value or None."""
        try:
            arrays = _arrays(self.declared, inputs, out)
            if self.dead or tuple(map(id, arrays)) != self.identities:
                return False
            if _keys(self.declared, self.readers, inputs, out) != self.keys:
                return False
            return self.states is None or self.backend.states(arrays) == self.states
        except (KeyError, TypeError) as error:  # an argument that has to be adopted
            raise_if_from_handler(error)
            return False


def _arrays(
    declared: Sequence[Input], inputs: Sequence[Any], out: Sequence[Any]
) -> list[Array | None]:
    """Return all arrays of `inputs` (one for each declared) and `out`, lists flattened; TypeError
    if a variadic input is no list."""
    arrays: list[Array | None] = []
    for item, value in zip(declared, inputs, strict=True):
        if item.memory == "device":
            arrays += _require_list(value) if item.variadic and value is not None else (value,)
        elif item.memory == "either":
            arrays.append(value if is_array(value) else None)
    for value in out:
        arrays += value if isinstance(value, tuple) else (value,)
    return arrays


def _require_list(value: Any) -> Sequence[Any]:
    """Return a list or tuple; TypeError for other classes, which may be endless."""
    if type(value) not in (list, tuple):
        raise TypeError
    values: Sequence[Any] = value
    return values


def _keys(
    declared: Sequence[Input], readers: Sequence[Reader], inputs: Sequence[Any], out: Sequence[Any]
) -> tuple[object, ...]:
    """Return what may differ between calls with the same arrays in the same order.

    (for each item of `out` the length of a tuple or None; for each input by its declaration and
    reader the length of a list, the key of a host value, or None for an array).
    """
    lengths = tuple([len(value) if isinstance(value, tuple) else None for value in out])
    return lengths, tuple(map(_key, declared, readers, inputs))


def _key(item: Input, read: Reader, value: object) -> object:
    """Return the length of a list of arrays, the key of a host value, or None for one array.

    item: the declared input. read: makes the key of its value. KeyError or TypeError for a value
    without a key.
    """
    if item.memory == "device" and isinstance(value, list | tuple):
        return len(value)
    if value is None or (item.memory != "host" and is_array(value)):
        return None
    return read(value)
