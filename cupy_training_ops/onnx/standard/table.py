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
from ..graph import check_attributes

Array = Any
Module = Any
Function = Callable[..., Any]
HALVES = (FLOAT16, BFLOAT16)
NEWEST = 10**6  # an opset that no version is above

# By the attributes, and the types of the inputs, None of those that are not known.
RefuseTypes = Callable[[Mapping[str, Any], Sequence[Dtype | None]], None]
TABLE: dict[str, list[Standard]] = {}


class Standard(NamedTuple):
    """How an operator is computed from opset `since` to `until`, and what is known of it.

    `host` has the inputs that are read on the host, `shapes_only` says that nothing of an array is
    read. A result of one that `grows` may be larger than its inputs; that of a `view` may be the
    first input's memory. `overwrites` names the inputs that `out=` may be.
    """

    function: Function
    since: int = 1
    until: int = NEWEST
    host: tuple[int, ...] = ()
    shapes_only: bool = False
    grows: bool = False
    view: bool = False
    keeps: bool = False  # a result may be the memory of any input
    overwrites: tuple[int, ...] = ()
    takes_count: bool = False  # of outputs, as `n_outputs`
    updates: tuple[int, ...] = ()  # inputs that are written
    noted: bool = False  # a recording has all of its work on a device, or says that it has not
    only: Mapping[str, tuple[object, ...]] = {}  # the values that an attribute may have here
    refuse: Callable[[Mapping[str, Any]], None] | None = None  # attributes that do not fit another
    refuse_types: RefuseTypes | None = None  # that ONNX allows

    def check(
        self, present: Sequence[bool], attributes: Mapping[str, object]
    ) -> Mapping[str, object]:
        """The attributes as the function takes them; refuses those that do not fit, and inputs, of
        which each is there or left out."""
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
    """Attributes and inputs by the signature of a function."""

    kinds: Mapping[str, Any]  # of attributes, their annotations
    needed: tuple[str, ...]  # attributes
    inputs: tuple[tuple[str, bool], ...]  # the name, and whether it is needed
    is_open: bool  # to any number of inputs


@functools.cache
def _signature(function: Function) -> _Signature:
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
    inputs = declared.inputs
    if len(present) > len(inputs) and not declared.is_open:
        raise ArgumentError(f"expected at most {len(inputs)} inputs, got {len(present)}")
    if declared.is_open and not (present and all(present)):
        raise ArgumentError("an input is missing")
    for i, (name, is_needed) in enumerate(inputs):
        if is_needed and not (i < len(present) and present[i]):
            raise ArgumentError(f"its input {name} is missing")


def standard(*names: str, **known: Any) -> Callable[[Function], Function]:
    """Put a function into the table, under these operators' names.

    One of another domain has the domain and a dot before its name.
    """

    def register(function: Function) -> Function:
        for name in names:
            TABLE.setdefault(name, []).append(Standard(function, **known))
        return function

    return register


def find(name: str, version: int) -> Standard | None:
    """The function of an operator in an opset."""
    serving = (item for item in TABLE.get(name, ()) if item.since <= version <= item.until)
    return max(serving, key=lambda item: item.since, default=None)


# ---- what the functions share --------------------------------------------------------------------


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front."""
    if not -rank <= axis < rank:
        raise ArgumentError(f"axis: expected from {-rank} to {rank - 1}, got {axis}")
    return axis % rank


def wide(x: Array) -> Array:
    """An array of a half type in float32; anything else as it is."""
    return x.astype(FLOAT32) if getattr(x, "dtype", None) in HALVES else x


def in_float32(function: Callable[..., Array]) -> Callable[..., Array]:
    """The function of an array of a half type and others, in float32."""

    @functools.wraps(function)
    def run(xp: Module, *arrays: Array, **attributes: Any) -> Array:
        if arrays[0].dtype not in HALVES:
            return function(xp, *arrays, **attributes)
        y = function(xp, *map(wide, arrays), **attributes)
        return y.astype(arrays[0].dtype)

    return run
