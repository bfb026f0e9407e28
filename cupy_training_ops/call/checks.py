# SPDX-License-Identifier: MIT
"""Checks of arguments, their messages, and conversion of values to frozen form.

In all functions `op` is the operator's name, for messages, or its declaration; `argument` or `name`
the argument's there, such as "X[1]" in a list; `declared` the declaration of an input.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import ml_dtypes
import numpy as np

from .. import limits
from ..declare.declaration import Declaration
from ..declare.schema import REQUIRED, Attribute, Input, Shape, Spec, n_required
from ..declare.type_rows import TypeRows
from ..dtypes import BOOL, FLOAT64, Dtype, dtype_name, dtype_names, to_dtype
from ..errors import ArgumentError, DtypeError, OpError, cut, raise_if_from_handler, refuse, shown
from .keys import NUMBERS

Bindings = dict[str, Dtype]  # by type variable, such as "T"


def unknown(op: Declaration, name: str) -> NoReturn:
    """Refuse an argument's name that is not declared, or belongs to the constructor or the call."""
    inputs, attributes = ([item.name for item in items] for items in (op.inputs, op.attributes))
    expected = f"an attribute among {attributes} or an input among {inputs}"
    got = "an unknown one"
    if name in attributes:
        got = "an attribute, which the constructor takes"
    elif name in inputs:
        got = "an input, which the call takes"
    refuse(op.name, name, expected, got)


def count(op: str, declared: Sequence[Input], n: int) -> None:
    """Refuse more inputs than declared, or fewer; trailing optional ones may be left out."""
    if not n_required(declared) <= n <= len(declared):
        expected = ", ".join(item.name + ("?" if item.optional else "") for item in declared)
        refuse(op, "inputs", f"({expected})", f"{n} arguments")


def within(op: str, argument: str, excess: limits.Excess | None) -> None:
    """Refuse what exceeds a limit; excess: (expected, got) in words, or None if it does not."""
    if excess is not None:
        refuse(op, argument, *excess)


def entries(op: str, argument: str, values: Sequence[Any]) -> Sequence[Any]:
    """Return the entries of a list or tuple, or of the caller's subclass of one, as a tuple."""
    if type(values) in (list, tuple):
        return values
    try:
        within(op, argument, limits.of_list(len(values)))
        return tuple(values)
    except OpError:
        raise
    except Exception as error:  # of the caller's class, also MemoryError: there are few entries
        raise_if_from_handler(error)
        cause = f"{type(error).__name__}: {error}"
        raise ArgumentError(f"{op}: {argument}: cannot be read: {cut(cause)}") from None


def exists(op: str, argument: str, spec: Spec) -> None:
    """Refuse a shape beyond limits.py."""
    within(op, argument, limits.of_shape(spec.shape))


def bind(op: Declaration, declared: Input, name: str, dtype: Dtype, bound: Bindings) -> None:
    """Bind an input's type variable to the dtype of its array; refuse one that does not fit.

    bound: {type variable: dtype} so far, to which this one is added.
    """
    allowed = op.types.get(declared.type) or (to_dtype(declared.type),)
    if dtype not in allowed:
        expected = dtype_names(allowed)
        raise DtypeError(f"{op.name}: {name}: expected dtype {expected}, got {dtype_name(dtype)}")
    earlier = dtype if declared.mixed else bound.setdefault(declared.type, dtype)
    if earlier != dtype:
        first = _arguments(op)[declared.type]
        other = f"{first}[0]" if first == declared.name else first  # of a list
        expected = f"{dtype_name(earlier)} like {other}"
        raise DtypeError(f"{op.name}: {name}: expected dtype {expected}, got {dtype_name(dtype)}")


def row(op: Declaration, bound: Bindings) -> None:
    """Refuse a combination of bound types that is in no declared row, if there are rows."""
    types = op.types
    if isinstance(types, TypeRows) and not types.fitting(bound):
        nearest = types.nearest(bound)[:3]
        expected = "; ".join(_dtypes(op, row, bound) for row in nearest)
        got = _dtypes(op, {v: bound[v] for v in bound if v in nearest[0]}, bound)
        raise DtypeError(f"{op.name}: types: expected such as {expected}, got {got}")


def _dtypes(op: Declaration, row: Mapping[str, Dtype], bound: Bindings) -> str:
    """Return a row of dtypes by variable in words, those that are bound: "X=float32, Y=int8"."""
    arguments = _arguments(op)
    return ", ".join(f"{arguments.get(v, v)}={dtype_name(row[v])}" for v in bound if v in row)


def _arguments(op: Declaration) -> dict[str, str]:
    """Return {type variable: name of its first input, preferably a required one, or attribute}."""
    inputs = sorted(op.inputs, key=lambda item: item.optional)
    names = {attribute.type: attribute.name for attribute in reversed(op.attributes)}
    return names | {item.type: item.name for item in reversed(inputs)}


def elements(op: str, declared: Input, name: str, shape: Shape) -> None:
    """Refuse an array in place of `declared.count` numbers that has another size."""
    if declared.memory == "either" and math.prod(shape) != declared.count:
        many = f"{declared.count} element{'s' if declared.count > 1 else ''}"
        refuse(op, name, f"a number or an array of {many}", f"shape {shape}")


def contiguous(op: str, argument: str, fits: bool, expected: str = "a C-contiguous array") -> None:
    """Refuse a strided array unless it `fits`; arrays are never copied."""
    if not fits:
        refuse(op, argument, expected, "a strided one (make a contiguous copy first)")


def host(op: str, argument: str, value: object) -> None:
    """Refuse a device array as a host input: reading it would stall the GPU."""
    if hasattr(type(value), "__cuda_array_interface__"):
        expected = "host data: a Python number, a tuple or a NumPy array"
        refuse(op, argument, expected, f"a device array ({type(value).__name__})")


def from_front(op: str, axis: int, rank: int) -> int:
    """Return a negative axis counted from the front; refuse one out of range."""
    if rank == 0:
        refuse(op, "axis", "arrays of at least one dimension", "a scalar")
    if not -rank <= axis < rank:
        refuse(op, "axis", f"an axis from {-rank} to {rank - 1}", str(axis))
    return axis % rank


def one_place(op: str, places: Mapping[str, str]) -> None:
    """Refuse arrays on different devices; places: device in words by name of array."""
    if len(set(places.values())) > 1:
        where = ", ".join(f"{name} is on {place}" for name, place in places.items())
        raise ArgumentError(f"{op}: expected all arrays in one place, got: {where}")


def output(op: str, argument: str, expected: Spec, got: Spec) -> None:
    """Refuse an output array (`got`) without the inferred shape and dtype (`expected`)."""
    if got.shape != expected.shape:
        refuse(op, argument, f"shape {expected.shape}", f"shape {got.shape}")
    if got.dtype != expected.dtype:
        raise DtypeError(
            f"{op}: {argument}: expected dtype {dtype_name(expected.dtype)}, "
            f"got {dtype_name(got.dtype)}"
        )


# ---- values --------------------------------------------------------------------------------------


def frozen_attributes(op: Declaration, named: Mapping[str, object]) -> dict[str, object]:
    """Return {name: converted value} of all attributes, defaults for those not in `named`."""
    known = {attribute.name for attribute in op.attributes}
    for name in named:
        if name not in known:
            unknown(op, name)
    values: dict[str, object] = {}
    for attribute in op.attributes:
        value = named.get(attribute.name, attribute.default)
        if value is REQUIRED:
            refuse(op.name, attribute.name, "a value: it is required", "none")
        frozen = convert_value(op.name, attribute, value)
        _check_dtype(op.name, attribute.name, frozen, op.types.get(attribute.type))
        values[attribute.name] = frozen
    return values


def convert_value(op: str, declared: Attribute | Input, value: object) -> object:
    """Return the immutable form of an attribute or a host value; errors name `op` and argument."""
    try:
        return declared.convert(value) if declared.convert else value
    except OpError as error:
        raise type(error)(f"{op}: {declared.name}: {error}") from None
    except MemoryError:
        raise
    except Exception as error:  # of the value's class
        raise_if_from_handler(error)
        cause = f"{type(error).__name__}: {error}"
        raise ArgumentError(f"{op}: {declared.name}: cannot be read: {cause}") from None


class Freezing:
    """Converts a host input that changes from call to call; refuses what its type cannot represent.

    A number equal to the previous one gives the same object, by which derived arguments are cached.
    """

    def __init__(self, op: str, declared: Input) -> None:
        """op: name for messages. declared: the input, with its converter and its type."""
        self._op, self._declared, self._holder = op, declared, _holder(declared.type)
        self._last: tuple[object, object] = (object(), None)

    def __call__(self, value: object) -> object:
        """Convert and check a host value; the value of the last call is not converted again."""
        known, frozen = self._last  # read once: another thread may replace it
        if value is known or (type(value) is type(known) and value and value == known):
            return frozen  # not for 0.0: it equals -0.0
        frozen = convert_value(self._op, self._declared, value)
        self._refuse_larger(frozen)
        if type(value) in NUMBERS:  # immutable
            self._last = value, frozen
        return frozen

    def _refuse_larger(self, frozen: object) -> None:
        """Refuse numbers that the input's type cannot represent, such as 300 in uint8."""
        if self._holder is None:
            return
        for number in frozen if isinstance(frozen, tuple) else (frozen,):
            if not self._holder.holds(number):
                refuse(self._op, self._declared.name, self._holder.words, shown(number))


class _Holder(NamedTuple):
    """The range of numbers of a type; real types include infinities and NaN."""

    words: str  # for messages
    dtype: Dtype
    least: float
    most: float

    def holds(self, number: Any) -> bool:
        """Return True for numbers in range. Floats may be rounded, but not to infinity as 1e39."""
        if self.least <= number <= self.most:
            return True
        if not isinstance(number, float) or self.dtype.kind in "iu":
            return False
        with np.errstate(over="ignore"):
            return not math.isfinite(number) or math.isfinite(self.dtype.type(number))


def _holder(declared: str) -> _Holder | None:
    """Return the range of a dtype by name, None if it holds all numbers; of a type variable, whose
    dtype is not known: 64-bit integers, signed or not, and reals."""
    try:
        dtype = to_dtype(declared)
    except DtypeError:
        return _Holder("a real number or an integer of 64 bits", FLOAT64, -(2**63), 2**64 - 1)
    if dtype.kind in "iu":
        whole = np.iinfo(dtype)
        return _Holder(f"a number that {declared} holds", dtype, whole.min, whole.max)
    if dtype in (BOOL, FLOAT64):
        return None
    most = float(ml_dtypes.finfo(dtype).max)
    return _Holder(f"a number that {declared} holds", dtype, -most, most)


def _check_dtype(op: str, name: str, frozen: Any, allowed: Sequence[Dtype] | None) -> None:
    """Refuse an attribute whose converted value, a dtype, is not among those allowed, if any."""
    if allowed and frozen is not None and frozen not in allowed:
        expected, got = dtype_names(allowed), dtype_names([frozen])
        raise DtypeError(f"{op}: {name}: expected {expected}, got {got}")


def is_number(value: object) -> bool:
    """Return True if a value of an "either" input is a number, or several, but no array."""
    return isinstance(value, int | float | np.generic | tuple | list)
