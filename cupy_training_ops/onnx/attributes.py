# SPDX-License-Identifier: MIT
"""Checks attributes of nodes by annotations, those of functions and of classes."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np

from ..dtypes import HostArray
from ..errors import ArgumentError, shown

_WORDS = {int: "an integer", bool: "an integer", float: "a float", str: "text"}
_LISTS = {int: "a list of integers", float: "a list of floats"}


def fitting(attributes: Mapping[str, object], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes, each of its kind, which is an annotation; flags, integers in a file, as
    bools."""
    return {name: _fitting(name, value, kinds[name]) for name, value in attributes.items()}


def _fitting(name: str, value: object, kind: Any) -> Any:
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if bool in kinds and isinstance(value, int):
        return bool(value)
    if any(_is(value, each) for each in kinds):
        return value
    raise ArgumentError(f"{name}: expected {_words(kinds[0])}, got {shown(value)}")


def _is(value: object, kind: Any) -> bool:
    """Return True if a value is of a kind; ONNX converts no number to another type."""
    if get_origin(kind) is Literal:
        return type(value) is type(get_args(kind)[0])
    item = _item(kind)
    if item is not None:
        return isinstance(value, tuple) and all(isinstance(each, item) for each in value)
    if kind == HostArray:
        return isinstance(value, np.ndarray)
    return isinstance(value, kind) if kind in _WORDS else kind is not type(None)


def _item(kind: Any) -> type | None:
    """The type of the numbers in a list; None of other kinds."""
    item = get_args(kind)[0] if get_args(kind) else None
    return item if item in _LISTS else None


def _words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return _WORDS[type(get_args(kind)[0])]
    item = _item(kind)
    return _WORDS.get(kind, "an array") if item is None else _LISTS[item]
