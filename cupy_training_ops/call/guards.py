# SPDX-License-Identifier: MIT
"""Guards of calls that are made again: arrays that are the same, tensors of the same kind.

Most of the host time of a call over hundreds of arrays is reading and comparing what they are.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn

from ..backend import Array, Backend
from ..declare.schema import Input
from ..device.tensor_guards import Watched, like, state
from ..dtypes import dtype_name
from ..errors import pass_on, refuse
from .backends import is_array
from .interop import Lent, is_tensor, refuse_gradients
from .keys import Reader, reader
from .operator import Operator
from .prepared import Arguments, Arrays
from .run import Call, Placed


class Unchanged:
    """The dtypes and shapes of bound arrays of NumPy's, which can be set, and all of tensors.

    The memory of a CuPy array stays what it was, and no kernel looks at shapes. Of an array that
    stands for a tensor, the tensor is looked at.
    """

    def __init__(self, call: Call, arrays: Arrays, lent: Lent) -> None:
        """arrays: the call's, the caller's outputs behind the others; None is not looked at."""
        named = zip(call.prepared.names, arrays, strict=False)
        given = {name: array for name, array in named if array is not None}
        owners = {name: lent.owner(array) for name, array in given.items()}
        tensors = {name: owner for name, owner in owners.items() if is_tensor(owner)}
        own = () if call.backend.runs_kernels else given
        others = {name: given[name] for name in own if given[name] is owners[name]}
        self._op, self._names = call.prepared.op, (*others, *tensors)
        self._arrays, self._tensors = tuple(others.values()), Watched(tuple(tensors.values()))
        self._before = _forms(self._arrays)

    def are_same(self) -> bool:
        """Return True if all are what they were."""
        if self._arrays and _forms(self._arrays) != self._before:
            return False
        return self._tensors.are_same()

    def refuse_others(self) -> None:
        """Refuse arrays whose dtype or shape is another now."""
        if not self.are_same():
            self._refuse()

    def refuse_gradients(self) -> None:
        """Refuse tensors whose gradients a result would silently not have."""
        tensors = self._tensors.tensors
        refuse_gradients(self._op, self._names[len(self._arrays) :], tensors)

    def _refuse(self) -> NoReturn:
        now = [*_forms(self._arrays), *map(state, self._tensors.tensors)]
        every = zip(self._names, now, [*self._before, *self._tensors.before], strict=True)
        place, (name, current, bound) = next(
            (i, each) for i, each in enumerate(every) if each[1] != each[2]
        )
        if place >= len(self._arrays):
            refuse(self._op, name, "the tensor as it was bound", "one of other memory or form")
        refuse(self._op, name, f"{_describe(bound)}, as it was bound", _describe(current))


class AtAddresses:
    """Base of what knows arrays by their addresses, which a copy's arrays would not have."""

    _op: Operator

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self._op.name}: a bound call holds its arrays where they are and cannot be pickled "
            f"or copied; bind again"
        )


_form = attrgetter("dtype", "shape")


def _forms(arrays: Arrays) -> list[object]:
    return list(map(_form, arrays))


def _describe(form: Any) -> str:
    return f"{dtype_name(form[0])} of shape {form[1]}"


Addresses = list[int]

_ALIGNMENT = 16  # in bytes; whether an address has it is part of a key


class TensorGuard:
    """Guard of open inputs: tensors of the same kind and the same values pass."""

    def __init__(
        self, declared: Sequence[Input], call: Call, inputs: Arguments, places: Sequence[int]
    ) -> None:
        self._backend = call.backend
        self._readers = [reader(declared[place]) for place in places]
        given = [inputs[place] for place in places]
        pairs = zip(self._readers, places, strict=True)
        arrays = {place for place, _ in call.array_places}
        self._keys = [_tensor_key(read, inputs[p], p in arrays) for read, p in pairs]
        tensors = self._tensors(given) or []
        has_holes = any(tensor is None for tensor in tensors)
        self._are_alike = None if has_holes or not tensors else like(tensors)
        self._aligned = _alignment(call.backend.pointers(tensors))

    def match(self, values: Sequence[Any]) -> Addresses | None:
        """Addresses of these, if they are such ones."""
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
        """Tensors of all values; None where one of them is of another kind."""
        tensors: list[Any] = []
        for value, key, read in zip(values, self._keys, self._readers, strict=True):
            if type(key) is _Tensors:
                items = as_list(value)
                if len(items) != key.n or isinstance(value, list | tuple) != key.are_listed:
                    return None
                tensors += items
            elif (None if value is None else read(value)) != key:
                return None
        return tensors


def _alignment(addresses: Addresses) -> object:
    """True for each aligned address, which plans depend on; None for 0, which has no memory."""
    return [address % _ALIGNMENT == 0 if address else None for address in addresses]


class _Tensors(NamedTuple):
    """An input that was given as tensors."""

    n: int
    are_listed: bool


def _tensor_key(read: Reader, value: Any, is_array: bool) -> object:
    if value is None or not is_array:
        return None if value is None else read(value)
    return _Tensors(len(as_list(value)), isinstance(value, tuple))


def as_list(value: Any) -> Sequence[Array | None]:
    return value if isinstance(value, list | tuple) else (value,)


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
    dead: Sequence[object]  # weak references of arrays that died: another may have the identity
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

    def has(self, inputs: Arguments, out: Arguments = ()) -> bool:
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


@dataclass(frozen=True)
class LastCall:
    """A call that was made, and what tells whether the next one has the same arrays."""

    call: Call
    known: Known
    outputs: Sequence[str] | None
    placed: Placed | None

    def has(self, inputs: Arguments, out: Arguments, outputs: Sequence[str] | None) -> bool:
        """Return True if a call with these arguments is the same."""
        missing = len(self.known.declared) - len(inputs)
        try:
            if missing < 0 or outputs != self.outputs:
                return False
        except (TypeError, ValueError):  # an array, which has to be refused
            return False
        return self.known.has(inputs + (None,) * missing, out)

    def again(self, inputs: Arguments, out: Arguments) -> object:
        """The call, without a comparison of memory."""
        inputs, out, arrays = self.call.unpack(inputs, out)
        return self.call.finish(inputs, arrays, out, None, self.placed)


def remember(
    call: Call,
    readers: tuple[Reader, ...],
    inputs: Arguments,
    out: Arguments,
    outputs: Sequence[str] | None,
    placed: Placed | None,
) -> list[LastCall]:
    """The call with these arguments in a list, which is empty where it cannot be known again."""
    known = Known.of(call.backend, call.prepared.inputs, readers, inputs, out)
    names = None if outputs is None else tuple(outputs)  # a list might change
    return [] if known is None else [LastCall(call, known, names, placed)]


def _arrays(declared: Sequence[Input], inputs: Arguments, out: Arguments) -> list[Array | None]:
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
    """A list as it is; an array would take itself apart, and another class may have no end."""
    if type(value) not in (list, tuple):
        raise TypeError
    values: Sequence[Any] = value
    return values


def _keys(
    declared: Sequence[Input], readers: Sequence[Reader], inputs: Arguments, out: Arguments
) -> Keys:
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
