# SPDX-License-Identifier: MIT
"""Keys of calls: an array by dtype, shape, alignment and device, a host value exactly."""

from __future__ import annotations

import itertools
import marshal
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ..declare.schema import Input
from ..dtypes import HostArray
from .backends import BACKENDS, TENSORS, info, infos

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
        return Marked(_flat(value), (value.shape, value.dtype, value.tobytes()))
    if kind in _SCALARS:
        return Marked(value.item(), (kind, value.tobytes()))
    raise KeyError(kind)


def _flat(value: HostArray) -> object:
    """The numbers of an array of rank 1, which is what converters make of it."""
    return tuple(value.tolist()) if value.ndim == 1 else None


def host_keys(values: Any) -> tuple[object, ...]:
    """The same of a list; TypeError where there is no list of Python's own."""
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


def array_keys(values: object) -> tuple[object, ...] | None:
    """Keys of a list of arrays, as `infos`; TypeError where there is no list of Python's own."""
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


def out_key(out: Sequence[Any]) -> tuple[object, ...] | None:
    """Keys of the caller's outputs, those of a variadic one in a tuple of their own; as `infos`."""
    keys: list[object] = []
    for array in out:
        if array is None:
            keys.append(None)
            continue
        kind = type(array)
        if kind is tuple:
            key: object = out_key(array)
        else:
            backend = BACKENDS.get(kind) or TENSORS.get(kind)
            key = None if backend is None else backend.info(array)
        if key is None:
            return None
        keys.append(key)
    return tuple(keys)


def attribute_key(value: object) -> object:
    """An attribute as part of a key; KeyError or TypeError where it cannot be one."""
    kind = type(value)
    if kind in _FORMS:
        return host_key(value)
    if isinstance(value, np.generic):
        return kind, value.tobytes()  # as 0.0 from -0.0
    if isinstance(value, _HASHED):
        return kind, value
    raise KeyError(kind)


def exact_key(values: Sequence[object]) -> bytes:
    """Plain values as a key that no others equal: 1, 1.0 and True have three, 0.0 and -0.0 two.

    ValueError for values that are not plain. What is no exact int, float, bool, str or None, alone
    or in tuples and lists, is written in another form than all of these, or not at all.
    """
    return marshal.dumps(values, EXACT)  # type: ignore[arg-type]


def is_plain(value: object) -> bool:
    """Return True if `exact_key` tells a value from all others."""
    if type(value) in (tuple, list):
        return all(map(is_plain, value))  # type: ignore[call-overload]
    return type(value) in _ATOMS


def unmark(key: object) -> object:
    """The host value of which `host_key` made a key."""
    return key.value if type(key) is Marked else key
