# SPDX-License-Identifier: MIT
"""The table of ONNX's standard operators, each a function over an array module; what they share.

A function takes the module, the inputs by position (None for one that is left out) and the
attributes by keyword, with ONNX's defaults; it returns an array, or a tuple of them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_type_hints

from ...dtypes import BFLOAT16, FLOAT16, FLOAT32, Dtype
from ...errors import ArgumentError, cut, shown
from ...registry import get_op
from ..graph import check_attributes
from ..vectors import dense

Array = Any
Module = Any
Function = Callable[..., Any]
HALVES = (FLOAT16, BFLOAT16)
NEWEST = 10**6  # an opset that no version is above

# Raises an error by a node's attributes and its inputs' types, None of those that are not known.
RefuseTypes = Callable[[Mapping[str, Any], Sequence[Dtype | None]], None]
TABLE: dict[str, list[Standard]] = {}  # by operator: a function for each range of opsets


class Standard(NamedTuple):
    """The function of an operator from opset `since` to `until`, and facts of it for a session.

    Inputs are indices.
    """

    function: Function
    since: int = 1
    until: int = NEWEST
    host: tuple[int, ...] = ()  # inputs that are read on the host
    shapes_only: bool = False  # it reads shapes of inputs, no elements
    grows: bool = False  # a result may be much larger than its inputs
    view: bool = False  # a result may be the first input's memory
    keeps: bool = False  # a result may be the memory of any input
    overwrites: tuple[int, ...] = ()  # inputs that `out=` may be
    takes_count: bool = False  # the number of outputs is its attribute `n_outputs`
    updates: tuple[int, ...] = ()  # inputs that are written in place
    noted: bool = False  # its launches may be recorded: a recording that lacks work of it says so
    only: Mapping[str, tuple[object, ...]] = {}  # values an attribute may have; the default first
    refuse: Callable[[Mapping[str, Any]], None] | None = None  # raises for attributes that clash
    refuse_types: RefuseTypes | None = None  # raises for types that ONNX allows, but not this

    def check(
        self, present: Sequence[bool], attributes: Mapping[str, object]
    ) -> Mapping[str, object]:
        """Return the attributes as the function takes them; refuse those that do not fit.

        present: for each input of the node, False if it is left out; refused where it is needed.
        """
        declared = _signature(self.function)
        extra = sorted(attributes.keys() - declared.kinds.keys())
        if extra:
            raise ArgumentError(f"unknown attributes {cut(', '.join(extra))}")
        result = check_attributes(attributes, declared.kinds)
        for name, values in self.only.items():
            if result.get(name, values[0]) not in values:
                raise ArgumentError(f"{name}={shown(attributes[name])} is not computed here")
        for name in declared.needed:
            if name not in attributes:
                raise ArgumentError(f"its attribute {name} is missing")
        _check_inputs(declared, present)
        if self.refuse is not None:
            self.refuse(result)
        return result


class _Signature(NamedTuple):
    """An operator's attributes and inputs, as the signature of its function says them."""

    kinds: Mapping[str, Any]  # annotations by an attribute's name
    needed: tuple[str, ...]  # attributes without a default
    inputs: tuple[tuple[str, bool], ...]  # name, and True if it is needed
    is_open: bool  # takes any number of inputs (*arrays)


@functools.cache
def _signature(function: Function) -> _Signature:
    """Return what a function f(xp, x, y=None, *, attribute=0) says of its operator."""
    parameters = list(inspect.signature(function).parameters.values())
    hints = get_type_hints(function)
    attributes = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    inputs = [p for p in parameters[1:] if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "out"]
    return _Signature(
        {p.name: hints[p.name] for p in attributes},
        tuple(p.name for p in attributes if p.default is p.empty),
        tuple((p.name, p.default is p.empty) for p in inputs),
        any(p.kind is p.VAR_POSITIONAL for p in parameters),
    )


def _check_inputs(declared: _Signature, present: Sequence[bool]) -> None:
    """Refuse too many inputs, and needed ones that are left out (False in `present`)."""
    inputs = declared.inputs
    if len(present) > len(inputs) and not declared.is_open:
        raise ArgumentError(f"expected at most {len(inputs)} inputs, got {len(present)}")
    if declared.is_open and not (present and all(present)):
        raise ArgumentError("an input is missing")
    for i, (name, is_needed) in enumerate(inputs):
        if is_needed and not (i < len(present) and present[i]):
            raise ArgumentError(f"its input {name} is missing")


def standard(*names: str, **known: Any) -> Callable[[Function], Function]:
    """Return a decorator that puts a function into TABLE under these operators' names.

    An operator of another domain than ONNX's has the domain and a dot before its name. known:
    further fields of Standard.
    """

    def register(function: Function) -> Function:
        for name in names:
            TABLE.setdefault(name, []).append(Standard(function, **known))
        return function

    return register


def find(name: str, version: int) -> Standard | None:
    """Return the Standard of an operator in an opset; None if there is none."""
    serving = (item for item in TABLE.get(name, ()) if item.since <= version <= item.until)
    return max(serving, key=lambda item: item.since, default=None)


# ---- what the functions share --------------------------------------------------------------------


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the front; refuse one that `rank` dimensions do not have."""
    if not -rank <= axis < rank:
        raise ArgumentError(f"axis: expected from {-rank} to {rank - 1}, got {axis}")
    return axis % rank


def wide(x: Array) -> Array:
    """Return an array of a half type in float32; anything else as it is."""
    return x.astype(FLOAT32) if getattr(x, "dtype", None) in HALVES else x


def concatenate(xp: Module, arrays: Sequence[Array], axis: int) -> Array:
    """Return the arrays joined along an axis.

    CuPy's function copies addresses of more than eight arrays to the device in each call, which a
    captured graph cannot follow.
    """
    if getattr(xp, "__name__", "") != "cupy":
        return xp.concatenate(arrays, axis)
    parts = [dense(xp, x) for x in arrays]
    return get_op("ConcatTraining").shared(axis=axis)(parts, outputs=("concat_result",))[0]


def stack(xp: Module, arrays: Sequence[Array], axis: int = 0) -> Array:
    """Return the arrays joined along a new axis."""
    if getattr(xp, "__name__", "") != "cupy":
        return xp.stack(arrays, axis)
    return concatenate(xp, [xp.expand_dims(x, axis) for x in arrays], axis)


def in_float32(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return the function, computed in float32 where the first array is of a half type.

    Its result is of that type again.
    """

    @functools.wraps(function)
    def run(xp: Module, *arrays: Array, **attributes: Any) -> Array:
        if arrays[0].dtype not in HALVES:
            return function(xp, *arrays, **attributes)
        y = function(xp, *map(wide, arrays), **attributes)
        return y.astype(arrays[0].dtype)

    return run
