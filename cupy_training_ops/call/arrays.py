# SPDX-License-Identifier: MIT
"""Which arrays are taken: NumPy's, CuPy's, and what lends its memory as one of theirs."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .. import limits
from ..declare.schema import Input
from ..errors import ArgumentError, ProviderError, cut, pass_on, refuse
from . import checks, foreign
from .backends import BACKENDS, are_known, cuda_backend
from .convert import converted, is_number
from .foreign import Lent


def adopt_input(op: str, item: Input, value: Any, lent: Lent) -> object:
    """One input in a form that keys read: with a backend, or frozen."""
    if value is None:
        return None
    if item.variadic and not isinstance(value, list | tuple):
        kind = type(value).__name__
        one = hasattr(type(value), "shape")  # an array of any library
        refuse(op, item.name, "a list", f"one {kind}: write [x]" if one else kind)
    if item.variadic:
        value = checks.entries(op, item.name, value)
        checks.within(op, item.name, limits.of_list(len(value)))
    if item.memory == "host" or (item.memory == "either" and is_number(value)):
        return (
            tuple([_frozen(op, item, v, lent) for v in value])
            if item.variadic
            else _frozen(op, item, value, lent)
        )
    if item.variadic:
        if lent.is_native or are_known(value):
            return tuple(value)
        names = [f"{item.name}[{i}]" for i in range(len(value))]
        return tuple([_lent(op, n, v, lent) for n, v in zip(names, value, strict=True)])
    number = "a number or " if item.memory == "either" else ""
    return value if lent.is_native else _lent(op, item.name, value, lent, number)


def adopt_out(op: str, value: object, lent: Lent) -> object:
    """One of the caller's outputs in a form that keys read."""
    if isinstance(value, tuple):  # of a list beside other outputs
        return tuple([adopt_out(op, item, lent) for item in checks.entries(op, "out", value)])
    if isinstance(value, np.generic):  # it would be a copy that is written
        refuse(op, "out", "an array", f"a scalar ({type(value).__name__})")
    return value if lent.is_native else _lent(op, "out", value, lent)


def _lent(op: str, name: str, value: object, lent: Lent, or_else: str = "") -> object:
    """What stands for an array; `or_else` is what else may be given, in words."""
    array = adopt(op, name, value, or_else)
    if array is not value and not lent.detaches:
        foreign.refuse_gradients(op, [name], [value])
    return lent.note(value, array)


def _frozen(op: str, item: Input, value: object, lent: Lent) -> object:
    if foreign.is_host_tensor(value) or isinstance(value, np.ma.MaskedArray):
        if not lent.detaches:
            foreign.refuse_gradients(op, [item.name], [value])
        value = adopt(op, item.name, value)  # which refuses one with a mask
    checks.host(op, item.name, value)
    return converted(op, item, value)


def adopt(op: str, argument: str, value: Any, or_else: str = "") -> Any:
    """A NumPy or CuPy array over the same memory; a foreign array is never copied.

    or_else: what else may be given, in words.
    """
    if value is None or type(value) in BACKENDS:
        return value
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(f"{op}: {argument}: expected an array without a mask, got a masked one")
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(value, cupy.ndarray):
        cuda_backend()
        return value
    if isinstance(value, np.ndarray | np.generic):  # a subclass, or a scalar of NumPy's
        return np.asarray(value)
    try:
        array = None if isinstance(value, type) else foreign.shared(value)
    except ProviderError as error:
        raise ProviderError(f"{op}: {argument}: {error}") from None
    except MemoryError:
        raise
    except Exception as error:  # of the array's own library, which may raise anything
        pass_on(error)
        raise ArgumentError(f"{op}: {argument}: cannot share its memory: {_cause(error)}") from None
    if array is None:
        expected = f"{or_else}a NumPy or CuPy array"
        raise ArgumentError(f"{op}: {argument}: expected {expected}, got {_kind(value)}")
    return array


def _cause(error: Exception) -> str:
    """What an error of another library says; the name of its type where that may be all."""
    plain = isinstance(error, BufferError) and str(error)
    return cut(plain or f"{type(error).__name__}: {error}")


def _kind(value: object) -> str:
    """What a value is that is no array."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
