# SPDX-License-Identifier: MIT
"""Declarations of operators: inputs, outputs, attributes, as plain data.

`help` prints a declaration: `shape` and `doc` are its prose, in which a shape is a phrase such as
"any shape" or "shape of X". The first line of a converter's docstring says what it takes, its
annotation what it gives.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast, get_type_hints

import numpy as np
from numpy.typing import ArrayLike

from .. import limits
from ..dtypes import BFLOAT16, Dtype, HostArray, to_dtype
from ..errors import MAX_BITS, ArgumentError, raise_if_from_handler, shown

T = TypeVar("T")
Shape = tuple[int, ...]
Memory = Literal["device", "host", "either"]
# Array to elements of it that a NumPy function computes apart from all others, 1 where it is not
# named; None where the function needs whole arrays.
Tiles = Mapping[str, int] | None
Convert = Callable[[object], object]
Function = Callable[..., object]  # of one or several numbers
_REAL = (int, float, np.integer, np.floating, BFLOAT16.type)
REQUIRED: object = type("REQUIRED", (), {"__repr__": lambda _: "REQUIRED"})()


@dataclass(frozen=True)
class Input:
    """One declared input. `type` names a type variable of the operator, or a dtype.

    memory: "device" is an array; "host" a Python number, a tuple or a NumPy array; "either" a
    number (or `count` of them), or an array of as many elements where the other arrays are.
    `convert` checks a host value and gives it its frozen form; it takes its own results too.

    static: a plan may depend on the host value, and each value has a plan of its own. If False, or
    memory is "either", planning sees a Changing instead, and all values share a plan.

    An `optional` input may be left out. A variadic input is one list of arrays; with `holes` some
    may be None, with `mixed` they may differ in dtype. `not_accessed`: the operator does not read
    the elements, so that any strides and shared memory do. `updated`: the array is written in
    place. `supplied`: if the caller leaves it out, each call takes the result of the operator's
    `supply`.

    `upstream` is its name in ONNX Runtime if that differs, `formerly` are names of earlier
    releases: a call may pass it by each.
    """

    name: str
    type: str
    memory: Memory = "device"
    optional: bool = False
    variadic: bool = False
    not_accessed: bool = False
    convert: Convert | None = None
    static: bool = True
    count: int = 1
    updated: bool = False
    supplied: bool = False
    holes: bool = False
    mixed: bool = False
    upstream: str = ""
    formerly: tuple[str, ...] = ()
    shape: str = ""
    doc: str = ""

    @property
    def changes(self) -> bool:
        """Return True if a call's key has no host value of it: a new one needs no new plan."""
        return self.memory == "either" or (self.memory == "host" and not self.static)


@dataclass(frozen=True)
class Output:
    """One declared output.

    `aliases` names the input whose array it is written into if there is no `out=`; `may_alias`
    those whose array `out=` may be. An aliased array is updated even if `outputs=` does not name
    the output, unless that is `on_request`. A host output is a NumPy array that follows from
    shapes or from a Changing. An "either" output is an array or a number as the input that it
    aliases. An `optional` one is None with some attributes; any is None if it is not asked for, or
    aliases an input that is None. `upstream` is its name in ONNX Runtime if another, `formerly`
    are names of earlier releases.
    """

    name: str
    type: str
    memory: Memory = "device"
    optional: bool = False
    variadic: bool = False
    aliases: str | None = None
    may_alias: tuple[str, ...] = ()
    on_request: bool = False
    upstream: str = ""
    formerly: tuple[str, ...] = ()
    shape: str = ""
    doc: str = ""


@dataclass(frozen=True)
class Attribute:
    """One declared attribute: `convert` checks a value and returns its immutable form.

    A class body writes one as `axis = attribute(integer, 0)`.

    `type` is the type variable that the attribute, a dtype, binds; "" for others. `upstream` is its
    name in ONNX Runtime if another, `formerly` are names of earlier releases.
    """

    name: str
    convert: Convert
    default: object = REQUIRED
    type: str = ""
    upstream: str = ""
    formerly: tuple[str, ...] = ()
    doc: str = ""


def attribute(
    convert: Callable[[object], T],
    default: object = REQUIRED,
    *,
    type: str = "",
    upstream: str = "",
    formerly: tuple[str, ...] = (),
    doc: str = "",
) -> T:
    """Declare an attribute in the body of an operator class: `axis = attribute(integer, 0)`.

    convert: checks a value and returns its immutable form. default: REQUIRED if there is none.
    type: the type variable that it binds, if it is a dtype. upstream, formerly: its names in ONNX
    Runtime, if another, and in earlier releases. doc: for help. Returns an Attribute, which type
    checkers take for an instance's value, the result of `convert`.
    """
    declared = Attribute("", convert, default, type, upstream, formerly, doc)
    return cast(T, declared)


@dataclass(frozen=True)
class Spec:
    """An array as planning knows it: shape, dtype and 16-byte alignment; never its values.

    in_place: an output that will be written into the input it aliases. place: index among the
    call's arrays, by which a step's argument refers to the array; -1: none. channels_last: layout
    in memory (n, h, w, c), for operators that take such arrays (`lies_as`). size: elements.
    """

    shape: Shape
    dtype: Dtype
    aligned: bool = True
    in_place: bool = False
    place: int = -1
    channels_last: bool = False
    size: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", math.prod(self.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.dtype.itemsize


@dataclass(frozen=True)
class LiesAs:
    """Arrays that may have their channels last in memory.

    inputs: by the name of each such array an input, whose layout it gets if it is a new output.
    alike: all of a call have to have one layout.
    """

    inputs: Mapping[str, str] = field(default_factory=dict)
    alike: bool = False


@dataclass(frozen=True)
class Changing:
    """A host value that each call passes anew: planning knows that it exists, not its value.

    It is an argument of a step, or with `then` a function of it is: `step.then(lambda t: b**t)`.
    struct: dtype of the last function's result if that is a struct; None for a number.
    """

    place: int  # index of its input among the declared ones
    # Applied in turn: (f, others) makes value to f(value, *others).
    functions: tuple[tuple[Function, tuple[Changing, ...]], ...] = ()
    struct: Dtype | None = None

    @property
    def places(self) -> frozenset[int]:
        """Indices of all inputs on which the value depends."""
        others = (other.places for _, group in self.functions for other in group)
        return frozenset((self.place,)).union(*others)

    def then(self, function: Function, *others: Changing) -> Changing:
        """Return the Changing whose value is function(this value, *others' values)."""
        return Changing(self.place, (*self.functions, (function, others)))

    def of(self, values: Mapping[int, object]) -> object:
        """Return its value in a call; values: of changing inputs, by index."""
        value = values[self.place]
        for function, others in self.functions:
            value = function(value, *(other.of(values) for other in others))
        return value


@dataclass(frozen=True)
class Open:
    """An output that a function of the caller's returns, of any shape; None: not known before.

    optional: the function may return None for it.
    """

    dtype: Dtype | None = None
    rank: int | None = None
    optional: bool = False

    def has(self, array: Spec) -> bool:
        """Return True if an array has the dtype and rank, as far as they are known."""
        return self.dtype in (None, array.dtype) and self.rank in (None, len(array.shape))


# What `infer` says of one output: of a host output its value, or a Changing that gives it.
Single = Spec | Changing | Open | HostArray | None
Inferred = Single | tuple[Spec | Open | None, ...]  # of a variadic one each of its arrays


def integer(value: Any) -> int:
    """An integer.

    Return it as an int; ArgumentError for other values, and for more than MAX_BITS bits.
    """
    if isinstance(value, bool | np.bool_):
        raise ArgumentError(f"expected an integer, got {shown(value)}")
    try:
        whole = operator.index(value)
    except TypeError as error:
        raise_if_from_handler(error)
        raise ArgumentError(f"expected an integer, got {shown(value)}") from None
    if whole.bit_length() > MAX_BITS:
        raise ArgumentError(f"expected at most {MAX_BITS} bits, got {shown(whole)}")
    return whole


def real(value: object) -> float:
    """A real number.

    Return it as a float; ArgumentError for other values. NaN and infinities are accepted.
    """
    if isinstance(value, _REAL) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise_if_from_handler(error)
            raise ArgumentError(f"expected a number, got {shown(int(value))}") from None
    raise ArgumentError(f"expected a number, got {shown(value)}")


def boolean(value: object) -> bool:
    """A bool (0 or 1 in ONNX).

    Return it as a bool; ArgumentError for other values.
    """
    if isinstance(value, bool | np.bool_) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise ArgumentError(f"expected a bool, got {shown(value)}")


def single(value: object) -> object:
    """Return the one element of an array or a sequence as a Python value; others as they are."""
    while isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    return value.item() if isinstance(value, np.ndarray | np.generic) and value.size == 1 else value


def flag(value: object) -> bool:
    """A bool, also in an array or a sequence of one element.

    Return it as a bool; ArgumentError for other values.
    """
    return boolean(single(value))


def finite(value: object) -> float:
    """A number that is neither NaN nor infinite.

    Return it as a float; ArgumentError for other values.
    """
    number = real(value)
    if not math.isfinite(number):
        raise ArgumentError(f"expected a finite number, got {number}")
    return number


def positive_or_zero(value: object) -> float:
    """A finite number of at least 0.

    Return it as a float; ArgumentError for other values.
    """
    number = real(value)
    if not 0 <= number < math.inf:
        raise ArgumentError(f"expected a finite number of at least 0, got {number}")
    return number


def integers(value: Any) -> tuple[int, ...]:
    """Integers: a sequence, a NumPy array of rank 1, or one integer.

    Return a tuple of ints; ArgumentError for other values.
    """
    rank = _rank(value)
    if rank > 1:
        raise ArgumentError(f"expected integers in rank 1, got {shown(value)}")
    try:
        return (integer(value),) if rank == 0 else tuple(map(integer, value))
    except TypeError as error:
        raise_if_from_handler(error)
        raise ArgumentError(f"expected integers, got {shown(value)}") from None


def reals(value: Any) -> tuple[float, ...]:
    """Real numbers: a sequence or a NumPy array of rank 1.

    Return a tuple of floats; ArgumentError for other values.
    """
    if _rank(value) != 1:
        raise ArgumentError(f"expected numbers in rank 1, got {shown(value)}")
    return tuple(map(real, value))


def shape(value: object) -> tuple[int, ...]:
    """A shape: integers of at least 0.

    Return a tuple of ints; ArgumentError for a shape that no array can have.
    """
    extents = integers(value)
    limits.refuse(limits.of_shape(extents))
    return extents


def lengths(value: object) -> tuple[int, ...]:
    """Lengths: integers of at least 0.

    Return a tuple of ints; ArgumentError for other values, and for too many.
    """
    listed = integers(value)
    limits.refuse(limits.of_list(len(listed)) or limits.of_lengths(listed))
    return listed


def count(value: object) -> int:
    """A number of arrays: an integer of at least 1.

    Return it as an int; ArgumentError for other values, and for more than a list may have.
    """
    n = integer(value)
    if n < 1:
        raise ArgumentError(f"expected at least 1, got {n}")
    limits.refuse(limits.of_list(n))
    return n


def n_required(inputs: Sequence[Input]) -> int:
    """Return how many inputs a call by position passes at least: up to the last required one."""
    return max((i + 1 for i, item in enumerate(inputs) if not item.optional), default=0)


def one_of(*choices: T) -> Callable[[object], T]:
    """Return a converter that accepts a value equal to one of the choices and of its type, and
    returns that choice."""

    def convert(value: object) -> T:
        for choice in choices:
            if isinstance(value, type(choice)) and value == choice:
                return choice
        raise ArgumentError(f"expected one of {choices}, got {shown(value)}")

    convert.__doc__ = " or ".join(map(repr, choices))
    convert.__annotations__["return"] = Literal[choices]
    return convert


def optional(convert: Callable[[object], T]) -> Callable[[object], T | None]:
    """Return the converter `convert`, but for None, which is accepted and returned."""

    def convert_or_none(value: object) -> T | None:
        return None if value is None else convert(value)

    convert_or_none.__doc__ = f"{kind(convert)}, or None"
    convert_or_none.__annotations__["return"] = gives(convert) | None
    return convert_or_none


def kind(convert: Convert) -> str:
    """Return what a converter accepts, in words: the first line of its docstring."""
    return (convert.__doc__ or "").partition("\n")[0].removesuffix(".")


def gives(convert: Convert) -> Any:
    """Return the type of a converter's results, from its annotation."""
    return get_type_hints(convert)["return"]


dtype = to_dtype


def _rank(value: ArrayLike) -> int:
    """Return the rank of a host value: 0 for a number; 2 for nested sequences of any depth."""
    if isinstance(value, type):
        return 0
    if isinstance(value, Sequence):  # NumPy would copy a sequence first
        limits.refuse(limits.of_list(len(value)))
        if any(isinstance(each, list | tuple | range) for each in value):
            return 2
    try:
        return np.ndim(value)
    except ValueError as error:
        raise_if_from_handler(error)
        return 2
