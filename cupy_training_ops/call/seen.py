# SPDX-License-Identifier: MIT
"""What tensors and values a call was given for open inputs, to know others of their kind by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..backend import Array
from ..declare.schema import Input
from ..device.alike import like
from ..errors import pass_on
from .keys import Reader, reader
from .prepared import Arguments
from .run import Call

Addresses = list[int]

_ALIGNMENT = 16  # in bytes; whether an address has it is part of a key


class Seen:
    """What tensors and values were given for open inputs, to know others of their kind by."""

    def __init__(
        self, declared: Sequence[Input], call: Call, inputs: Arguments, places: Sequence[int]
    ) -> None:
        self._backend = call.backend
        self._readers = [reader(declared[place]) for place in places]
        given = [inputs[place] for place in places]
        pairs = zip(self._readers, places, strict=True)
        arrays = {place for place, _ in call.array_places}
        self._keys = [_key(read, inputs[p], p in arrays) for read, p in pairs]
        tensors = self._tensors(given) or []
        has_holes = any(tensor is None for tensor in tensors)
        self._are_alike = None if has_holes or not tensors else like(tensors)
        self._aligned = _alignment(call.backend.pointers(tensors))

    def found(self, values: Sequence[Any]) -> Addresses | None:
        """Where these are, if they are such ones."""
        try:
            tensors = self._tensors(values)
        except (KeyError, TypeError) as error:  # a value to be frozen, or an array to be adopted
            pass_on(error)
            return None
        if tensors is None or self._are_alike is None or not self._are_alike(tensors):
            return None
        addresses = self._backend.pointers(tensors)
        return addresses if _alignment(addresses) == self._aligned else None

    def _tensors(self, values: Sequence[Any]) -> list[Any] | None:
        """Those of all values; None where one of them is of another kind."""
        tensors: list[Any] = []
        for value, key, read in zip(values, self._keys, self._readers, strict=True):
            if type(key) is _Tensors:
                found = as_list(value)
                if len(found) != key.n or isinstance(value, list | tuple) != key.are_listed:
                    return None
                tensors += found
            elif (None if value is None else read(value)) != key:
                return None
        return tensors


def _alignment(addresses: Addresses) -> object:
    """What of addresses a plan may depend on; None where one of the arrays has no memory."""
    return None if 0 in addresses else [address % _ALIGNMENT == 0 for address in addresses]


class _Tensors(NamedTuple):
    """An input that was given as tensors."""

    n: int
    are_listed: bool


def _key(read: Reader, value: Any, is_array: bool) -> object:
    if value is None or not is_array:
        return None if value is None else read(value)
    return _Tensors(len(as_list(value)), isinstance(value, tuple))


def as_list(value: Any) -> Sequence[Array | None]:
    return value if isinstance(value, list | tuple) else (value,)
