# SPDX-License-Identifier: MIT
"""Launch arguments, checked against the kernel's signature and cast to its exact types."""

from __future__ import annotations

import contextlib
import functools
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from ..declare.facts import struct_name
from ..declare.schema import Changing, Spec
from ..dtypes import ELEMENT_TYPES, Dtype, element_type
from ..errors import ArgumentError, CompileError, pass_on, shown
from ..facts import Either
from ..plan import Launch, Pointers, Scratch
from .source import Parameter

Addresses = np.ndarray[Any, np.dtype[np.int64]]
Address = Callable[[Any], object]  # from the addresses of a call's arrays to an argument
Make = Callable[[object], object]  # from a number to an argument
MakeDynamic = Callable[[Mapping[int, object]], object]  # from the values that change to an argument
NULL = np.uint64(0)
EITHER = "Either<"  # the struct of core/either.cuh
ZEROED = "Zeroed<"  # that of core/zeroed.cuh
_REALS = (np.float32, np.float64)
_WHOLE = {
    kind: range(int(np.iinfo(kind).min), int(np.iinfo(kind).max) + 1)
    for kind in (np.int32, np.uint32, np.int64, np.uint64)
}
_LARGEST = float(np.finfo(np.float32).max)
_SCALARS = {row.c_type: row.dtype.type for row in ELEMENT_TYPES if row.dtype.kind != "c"}


def check_pointer(launch: Launch, parameter: Parameter, dtype: Dtype) -> None:
    """Refuse an array whose parameter is no pointer to its element type, and no `void*`."""
    expected = launch.slots.get(parameter.c_type, parameter.c_type)
    if not parameter.pointer or expected not in (element_type(dtype).c_type, "void"):
        is_known = expected in _SCALARS or expected == "void"
        slots = "" if is_known else f"; the launch's slots are {', '.join(launch.slots)}"
        raise CompileError(
            f"{launch.symbol}: parameter {parameter.name} is {expected}"
            f"{'*' if parameter.pointer else ''}, the plan gives an array of {dtype}{slots}"
        )


def cast(launch: Launch, parameter: Parameter, value: object) -> object:
    """A by-value argument in exactly the declared C type; None is the null pointer."""
    if parameter.pointer:
        if value is None:
            return NULL
        if isinstance(value, Scratch):
            _check_scratch(launch, parameter, value)
            return value
    elif (c_type := launch.slots.get(parameter.c_type, parameter.c_type)) in _SCALARS:
        return _exact(launch, parameter, _SCALARS[c_type], value)
    elif isinstance(value, np.void | Pointers):
        _check_struct(launch, parameter, value.dtype)
        return value
    raise CompileError(
        f"{launch.symbol}: parameter {parameter.name} ({parameter.c_type}"
        f"{'*' if parameter.pointer else ''}) does not take {shown(value)}"
    )


def scalar_type(launch: Launch, parameter: Parameter) -> Dtype:
    """Dtype of a number that each call gives."""
    return np.dtype(_SCALARS[launch.slots.get(parameter.c_type, parameter.c_type)])


def _check_scratch(launch: Launch, parameter: Parameter, piece: Scratch) -> None:
    """Memory that a kernel expects to be zero is declared so, and no other is."""
    expects_zeros = parameter.c_type.rpartition("::")[2].startswith(ZEROED)
    if piece.zeros != expects_zeros:
        kind = "zeros" if piece.zeros else "memory that may hold anything"
        raise CompileError(
            f"{launch.symbol}: parameter {parameter.name} is {parameter.c_type}*, "
            f"the plan gives {kind}"
        )


def is_either(parameter: Parameter) -> bool:
    """Return True if a parameter takes a number or an array."""
    return not parameter.pointer and parameter.c_type.rpartition("::")[2].startswith(EITHER)


def either_layout(parameter: Parameter) -> Dtype:
    """Return the struct of a parameter that takes a number or an array."""
    return Either.of(int(parameter.c_type.partition("<")[2].rstrip(">"))).dtype


def check_number(op: str, name: str, holder: str, make: Make, changing: Changing) -> MakeDynamic:
    """Return a function that makes an argument of a caller's number, or refuses a number that
    the kernel's `holder` cannot have."""
    place, follows = changing.place, bool(changing.functions)

    def make_argument(values: Mapping[int, object]) -> object:
        try:
            return make(changing.of(values) if follows else values[place])
        except (CompileError, ArithmeticError, TypeError, ValueError) as error:
            pass_on(error)
            expected, got = f"a number that {holder} holds", values[place]
            raise ArgumentError(f"{op}: {name}: expected {expected}, got {shown(got)}") from None

    return make_argument


def either(
    layout: Dtype, value: object = 0, *, address: int = 0, dtype: Dtype | None = None
) -> object:
    """The struct of core/either.cuh: numbers beside a null pointer, or a pointer and its type."""
    if dtype is None:
        return np.frombuffer(either_bytes(layout)(value), layout)[0]
    n, pack = _fields(layout)
    nothing = (0,) * (2 * n)
    return np.frombuffer(pack(address, *nothing, element_type(dtype).onnx), layout)[0]


@functools.cache
def either_bytes(layout: Dtype) -> Callable[[object], bytes]:
    """Return a function that packs that struct with numbers, sooner than NumPy makes it."""
    n, pack = _fields(layout)

    def longer(numbers: Sequence[Any]) -> bytes:
        return pack(0, *map(_bits, numbers), *map(float, numbers), 0)

    def make(value: object) -> bytes:
        numbers = value if isinstance(value, tuple) else (value,) * n
        if type(numbers[0]) is not int:
            return longer(numbers)
        try:
            return pack(0, *numbers, *numbers, 0)
        except struct.error:  # they have no 63 bits, or not all are integers
            return longer(numbers)

    return make


def _fields(layout: Dtype) -> tuple[int, Callable[..., bytes]]:
    """How many numbers it holds, and what packs its fields, in their order, sooner than NumPy."""
    n: int = layout["real"].shape[0]
    fields = f"=Q{n}q{n}di"
    return n, struct.Struct(f"{fields}{layout.itemsize - struct.calcsize(fields)}x").pack


def _bits(number: Any) -> int:
    """An integer of 64 bits, signed or not, by its bits; 0 for a real number that is none."""
    if type(number) is int and -(2**63) <= number < 2**63:
        return number
    if not isinstance(number, int | np.integer):
        real = float(number)
        if not (real.is_integer() and -(2.0**63) <= real < 2.0**64):
            return 0
    whole = int(number)
    if not -(2**63) <= whole < 2**64:
        raise OverflowError(f"{whole} is no integer of 64 bits")
    return whole if whole < 2**63 else whole - 2**64


def _exact(
    launch: Launch, parameter: Parameter, scalar: type[np.generic], value: Any
) -> np.generic:
    """A scalar of the declared type: an integer as it is, a real number rounded, not infinite."""
    if type(value) is scalar:  # rounded already
        return value
    # The usual cases, as values that change take them at each call.
    if type(value) is float and scalar in _REALS and abs(value) <= _LARGEST:
        return scalar(value)
    if type(value) is int and scalar in _WHOLE and value in _WHOLE[scalar]:
        return scalar(value)
    with contextlib.suppress(OverflowError, TypeError, ValueError), np.errstate(over="ignore"):
        if np.dtype(scalar).kind in "iub":
            result, fits = scalar(value), scalar(value) == value
        else:
            result = scalar(float(value))
            fits = math.isfinite(result) or not math.isfinite(value)
        if fits:
            return result
    raise CompileError(
        f"{launch.symbol}: parameter {parameter.name} ({parameter.c_type}) "
        f"cannot hold {shown(value)}"
    )


def _check_struct(launch: Launch, parameter: Parameter, given: Dtype) -> None:
    """A struct by value is the one that the kernel takes."""
    if struct_name(given) != _bind_slot(parameter.c_type, launch.slots):
        raise CompileError(
            f"{launch.symbol}: parameter {parameter.name} ({parameter.c_type}): "
            f"the plan gives {struct_name(given)}"
        )


def _bind_slot(c_type: str, slots: Mapping[str, str]) -> str:
    """The name of a struct without its namespace; its template argument where that is a slot."""
    name, _, argument = c_type.rpartition("::")[2].rstrip(">").partition("<")
    return f"{name}<{slots.get(argument, argument)}>" if argument else name


def pointers(table: Pointers) -> Address:
    """Return a function that makes the struct of several arrays' addresses."""
    dtype = table.dtype
    absent = [i for i, spec in enumerate(table.specs) if spec is None]

    def make(picked: tuple[int, ...] | Addresses) -> object:
        addresses = np.zeros(table.capacity, np.uint64)
        addresses[: len(table.specs)] = picked
        if absent:
            addresses[absent] = 0
        return addresses.view(dtype)[0]

    return _at([0 if spec is None else spec.place for spec in table.specs], make)


def either_at(layout: Dtype, spec: Spec) -> Address:
    """Return a function that makes the struct of core/either.cuh with an array's address."""
    return _at([spec.place], lambda picked: either(layout, address=picked[0], dtype=spec.dtype))


def _at(places: Sequence[int], make: Callable[[Any], object]) -> Address:
    """Return a function of all addresses: `make` of those at these places.

    The struct that `make` returned is used again while these addresses are the same.
    """
    pick, index = getter(places), np.array(places, np.intp)
    last: list[tuple[tuple[int, ...] | None, object]] = [(None, None)]

    def fill(addresses: Sequence[int] | Addresses) -> object:
        if len(index) > 1 and isinstance(addresses, np.ndarray):  # in one go, not compared
            return make(addresses[index])
        picked = pick(addresses)
        before, struct = last[0]  # once: another thread may put its own there
        if picked != before:
            struct = make(picked)
            last[0] = picked, struct
        return struct

    return fill


def getter(indices: Sequence[int]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that takes the items at these places out of a row or dictionary."""
    if len(indices) > 1:
        return itemgetter(*indices)
    if not indices:
        return lambda _: ()
    (index,) = indices
    return lambda row: (row[index],)


Values = Mapping[int, object]  # of changing inputs, by their places


class DynamicArgument:
    """An argument that follows from values that change; for `Work` it may be anything.

    `of` makes it again only where a call has another number than the call before.
    """

    def __init__(self, dtype: Dtype | None, changing: Changing, make: MakeDynamic) -> None:
        self.dtype, self.anew, self.places = dtype, make, changing.places
        self._pick = itemgetter(*changing.places)
        self._last: tuple[object, object] = (self, None)

    def of(self, values: Values) -> object:
        """The argument in a call with these values."""
        picked = self._pick(values)
        known, made = self._last  # once: another thread may put its own there
        if picked is not known:  # the pick of several places is a new tuple in each call
            made = self.anew(values)
            self._last = picked, made
        return made


def renew(
    dynamic: Sequence[DynamicArgument], known: list[object], place: int
) -> Callable[[object], list[object]]:
    """Return a function of this place's value: the known arguments, but for those that
    follow from the value."""
    following = [(i, each.anew) for i, each in enumerate(dynamic) if place in each.places]

    def with_value(value: object) -> list[object]:
        arguments, given = known.copy(), {place: value}
        for i, anew in following:
            arguments[i] = anew(given)
        return arguments

    return with_value
