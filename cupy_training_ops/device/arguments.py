# SPDX-License-Identifier: MIT
"""Launch arguments, checked against the kernel's signature and cast to its exact types.

In all functions `launch` is a step of a plan, and `parameter` one of its kernel's. launch.slots are
macros that the kernel is compiled with, such as {"T": "float"}: its type T is float.
"""

from __future__ import annotations

import contextlib
import functools
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from operator import is_, itemgetter
from typing import Any

import numpy as np

from ..declare.facts import struct_name
from ..declare.schema import Changing, Spec
from ..dtypes import ELEMENT_TYPES, Dtype, element_type
from ..errors import ArgumentError, CompileError, raise_if_from_handler, shown
from ..facts import Either
from ..plan import Launch, Pointers, Scratch
from .source import Parameter

Addresses = np.ndarray[Any, np.dtype[np.int64]]
Address = Callable[[Any], object]  # from the addresses of a call's arrays to an argument
Make = Callable[[object], object]  # from a number to an argument
# From numbers that change from call to call, by index of the input, to an argument.
MakeDynamic = Callable[[Mapping[int, object]], object]
NULL = np.uint64(0)
EITHER = "Either<"  # the struct of core/either.cuh: N numbers, or the address of an array of N
ZEROED = "Zeroed<"  # that of core/zeroed.cuh: memory that is zero before and after a launch
_REALS = (np.float32, np.float64)
_WHOLE = {  # numbers that an integer type holds
    kind: range(int(np.iinfo(kind).min), int(np.iinfo(kind).max) + 1)
    for kind in (np.int32, np.uint32, np.int64, np.uint64)
}
_LARGEST = float(np.finfo(np.float32).max)
# NumPy's scalar type by C type: "i64": np.int64.
_SCALARS = {row.c_type: row.dtype.type for row in ELEMENT_TYPES if row.dtype.kind != "c"}


def check_pointer(launch: Launch, parameter: Parameter, dtype: Dtype) -> None:
    """Refuse an array of `dtype` whose parameter is no pointer to its C type, nor `void*`.

    A parameter T* is compared with what the launch defines T as, in launch.slots.
    """
    expected = launch.slots.get(parameter.c_type, parameter.c_type)
    if not parameter.pointer or expected not in (element_type(dtype).c_type, "void"):
        is_known = expected in _SCALARS or expected == "void"
        slots = "" if is_known else f"; the launch's slots are {', '.join(launch.slots)}"
        raise CompileError(
            f"{launch.symbol}: parameter {parameter.name} is {expected}"
            f"{'*' if parameter.pointer else ''}, the plan gives an array of {dtype}{slots}"
        )


def cast(launch: Launch, parameter: Parameter, value: object) -> object:
    """Return `value` in exactly the parameter's C type: a NumPy scalar; for None NULL.

    Scratch, Pointers and structs (np.void) are checked and returned as they are.
    """
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
    """Return the dtype of a number parameter: float32 of `float`, or of T if its slot is float."""
    return np.dtype(_SCALARS[launch.slots.get(parameter.c_type, parameter.c_type)])


def _check_scratch(launch: Launch, parameter: Parameter, piece: Scratch) -> None:
    """Refuse a piece of zeros for a parameter that is not Zeroed<T>*, and another for one."""
    expects_zeros = parameter.c_type.rpartition("::")[2].startswith(ZEROED)
    if piece.zeros != expects_zeros:
        kind = "zeros" if piece.zeros else "memory that may hold anything"
        raise CompileError(
            f"{launch.symbol}: parameter {parameter.name} is {parameter.c_type}*, "
            f"the plan gives {kind}"
        )


def is_either(parameter: Parameter) -> bool:
    """Return True if a parameter is the struct Either<N>, which holds numbers or an address."""
    return not parameter.pointer and parameter.c_type.rpartition("::")[2].startswith(EITHER)


def either_layout(parameter: Parameter) -> Dtype:
    """Return the struct dtype of a parameter `Either<N>`, with N from its C type."""
    return Either.of(int(parameter.c_type.partition("<")[2].rstrip(">"))).dtype


def check_number(op: str, name: str, holder: str, make: Make, changing: Changing) -> MakeDynamic:
    """Return a function from all changing numbers to an argument, by `make` of a number.

    changing: which number, and functions of it. If `make` raises, the error says that input `name`
    of operator `op` is no number that `holder`, a C type, holds.
    """
    place, is_derived = changing.place, bool(changing.functions)

    def make_argument(values: Mapping[int, object]) -> object:
        """Return the argument for changing numbers, by index of the input."""
        try:
            return make(changing.of(values) if is_derived else values[place])
        except (CompileError, ArithmeticError, TypeError, ValueError) as error:
            raise_if_from_handler(error)
            expected, got = f"a number that {holder} holds", values[place]
            raise ArgumentError(f"{op}: {name}: expected {expected}, got {shown(got)}") from None

    return make_argument


def either(
    layout: Dtype, value: object = 0, *, address: int = 0, dtype: Dtype | None = None
) -> object:
    """Return the struct Either<N> of this dtype (`layout`).

    Without a dtype it holds `value`, a number or a tuple of N; else the address of an array of this
    dtype, zeros in place of numbers, and the dtype's ONNX number.
    """
    if dtype is None:
        return np.frombuffer(either_bytes(layout)(value), layout)[0]
    n, pack = _fields(layout)
    nothing = (0,) * (2 * n)
    return np.frombuffer(pack(address, *nothing, element_type(dtype).onnx), layout)[0]


@functools.cache
def either_bytes(layout: Dtype) -> Callable[[object], bytes]:
    """Return a function from a number, or a tuple of N, to the bytes of a struct Either<N>.

    layout: its dtype. The bytes are a null address, N int64, N doubles of the same numbers, and
    type 0; faster than NumPy.
    """
    n, pack = _fields(layout)

    def pack_each(numbers: Sequence[Any]) -> bytes:
        return pack(0, *map(_bits, numbers), *map(float, numbers), 0)

    def make(value: object) -> bytes:
        numbers = value if isinstance(value, tuple) else (value,) * n
        if type(numbers[0]) is not int:
            return pack_each(numbers)
        try:
            return pack(0, *numbers, *numbers, 0)
        except struct.error:  # not int64, or not all are integers
            return pack_each(numbers)

    return make


def _fields(layout: Dtype) -> tuple[int, Callable[..., bytes]]:
    """Return (N, a function from the fields of a struct Either<N> to its bytes)."""
    n: int = layout["real"].shape[0]
    fields = f"=Q{n}q{n}di"  # address, whole[N], real[N], type; padding follows
    return n, struct.Struct(f"{fields}{layout.itemsize - struct.calcsize(fields)}x").pack


def _bits(number: Any) -> int:
    """Return a number as the int64 of an Either: from 2^63 on with the bits of uint64 (2^64 - 1 is
    -1); 0 for a fraction, NaN, or a float beyond 64 bits."""
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
    """Return a value as `scalar`, the parameter's type: integers exactly, reals rounded.

    CompileError for an integer that does not fit, and a finite real that rounds to infinity.
    """
    if type(value) is scalar:  # rounded already
        return value
    # The usual cases first: changing values are cast at each call.
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


def _check_struct(launch: Launch, parameter: Parameter, dtype: Dtype) -> None:
    """Refuse a struct whose name, such as "Pointers<8>", is not the parameter's type."""
    if struct_name(dtype) != _bind_slot(parameter.c_type, launch.slots):
        raise CompileError(
            f"{launch.symbol}: parameter {parameter.name} ({parameter.c_type}): "
            f"the plan gives {struct_name(dtype)}"
        )


def _bind_slot(c_type: str, slots: Mapping[str, str]) -> str:
    """Return a struct's name without namespace, slots replaced: a::V<T> is V<float>, T a float."""
    name, _, argument = c_type.rpartition("::")[2].rstrip(">").partition("<")
    return f"{name}<{slots.get(argument, argument)}>" if argument else name


def pointers(table: Pointers) -> Address:
    """Return a function from the addresses of a call's arrays to the struct that `table` describes.

    Entry i of the struct is the address of table.specs[i]; null where that is None or missing.
    """
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
    """Return a function from the addresses of a call's arrays to an Either with that of `spec`."""
    return _at([spec.place], lambda picked: either(layout, address=picked[0], dtype=spec.dtype))


def _at(places: Sequence[int], make: Callable[[Any], object]) -> Address:
    """Return a function from the addresses of a call's arrays to `make` of those at `places`.

    places: indices of arrays. The last result is cached.
    """
    pick, index = getter(places), np.array(places, np.intp)
    last: list[tuple[tuple[int, ...] | None, object]] = [(None, None)]

    def fill(addresses: Sequence[int] | Addresses) -> object:
        """Return `make` of those at `places`, from the last call if they are the same."""
        if len(index) > 1 and isinstance(addresses, np.ndarray):  # vectorised, not cached
            return make(addresses[index])
        picked = pick(addresses)
        before, struct = last[0]  # read once: another thread may replace it
        if picked != before:
            struct = make(picked)
            last[0] = picked, struct
        return struct

    return fill


def getter(indices: Sequence[int]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function from a sequence or mapping to the tuple of its items at these indices."""
    if len(indices) > 1:
        return itemgetter(*indices)
    if not indices:
        return lambda _: ()
    (index,) = indices
    return lambda row: (row[index],)


Values = Mapping[int, object]  # of changing inputs, by index


class DynamicArgument:
    """A kernel argument that depends on changing values; `of` caches it for the last one."""

    def __init__(self, dtype: Dtype | None, changing: Changing, make: MakeDynamic) -> None:
        """dtype: of the argument; None if it is of a `Work`, any object. changing: says on which
        inputs it depends. make: from {index of input: value} to the argument."""
        self.dtype, self.make, self.places = dtype, make, changing.places
        self._pick = itemgetter(*changing.places)
        self._is_one = len(changing.places) == 1
        self._last: tuple[Any, object] = ((self,) * len(changing.places), None)

    def of(self, values: Values) -> object:
        """Return the argument for these values."""
        picked = self._pick(values)
        known, argument = self._last  # read once: another thread may replace it
        if picked is not known and (self._is_one or not all(map(is_, picked, known))):
            argument = self.make(values)
            self._last = picked, argument
        return argument


def renew(
    dynamic: Sequence[DynamicArgument], known: list[object], place: int
) -> Callable[[object], list[object]]:
    """Return a function from the value of the input with index `place` to a list of arguments.

    dynamic: the arguments, none of which depends on this and another input. known: their values,
    returned for those that do not depend on it.
    """
    dependent = [(i, each.make) for i, each in enumerate(dynamic) if place in each.places]

    def with_value(value: object) -> list[object]:
        arguments, values = known.copy(), {place: value}
        for i, make in dependent:
            arguments[i] = make(values)
        return arguments

    return with_value
