# SPDX-License-Identifier: MIT
"""Host values as part of a call's key, exactly: 1.0 is not True, nor 0.0 -0.0."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

_INTEGERS = frozenset((int,))
_TUPLES = frozenset((tuple,))
_PLAIN = frozenset((tuple, float, bool, str))


class Marked(NamedTuple):
    """A host value as part of a key, with what tells it from its equals, as 0.0 from -0.0."""

    value: Any
    mark: Any


def host_key(value: Any) -> Any:
    """A host input as part of a key: integers as they are; KeyError for what has to be frozen."""
    kind = type(value)
    if kind is int or (kind is tuple and _INTEGERS.issuperset(map(type, value))):
        return value
    if kind in _PLAIN:
        return Marked(value, repr(value))
    if kind is np.ndarray and value.ndim == 1:
        return Marked(tuple(value.tolist()), (value.dtype, value.tobytes()))
    raise KeyError(kind)


def host_keys(values: Any) -> tuple[Any, ...]:
    """The same of a list; that of integer tuples, such as View's shapes, in one go."""
    tuples = isinstance(values, list | tuple) and _TUPLES.issuperset(map(type, values))
    if tuples and _INTEGERS.issuperset(map(type, itertools.chain.from_iterable(values))):
        return tuple(values)
    return read_list(host_key, values)


def read_list(read: Callable[[Any], Any], values: Any) -> tuple[Any, ...]:
    """What `read` says of each entry; TypeError where there is no list."""
    if not isinstance(values, list | tuple):
        raise TypeError  # an array would take itself apart
    return tuple([None if v is None else read(v) for v in values])


def unmarked(key: Any) -> Any:
    """The host value of which `host_key` made a key."""
    return key.value if type(key) is Marked else key
