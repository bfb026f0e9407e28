# SPDX-License-Identifier: MIT
"""The arguments of a call: their names, what is put in order, which arrays are taken."""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

import numpy as np

from .. import limits
from ..declare.declaration import Declaration, Others
from ..declare.schema import REQUIRED, Input, n_required
from ..errors import ArgumentError, ProviderError, cut, pass_on, refuse
from . import checks, interop
from .backends import BACKENDS, are_known, cuda_backend
from .checks import convert_value, is_number
from .interop import Lent
from .prepared import Arguments


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
        return tuple([_borrow(op, n, v, lent) for n, v in zip(names, value, strict=True)])
    number = "a number or " if item.memory == "either" else ""
    return value if lent.is_native else _borrow(op, item.name, value, lent, number)


def adopt_out(op: str, value: object, lent: Lent) -> object:
    """One of the caller's outputs in a form that keys read."""
    if isinstance(value, tuple):  # the arrays of a list, as b and c in out=(a, (b, c))
        return tuple([adopt_out(op, item, lent) for item in checks.entries(op, "out", value)])
    if isinstance(value, np.generic):  # it would be a copy that is written
        refuse(op, "out", "an array", f"a scalar ({type(value).__name__})")
    return value if lent.is_native else _borrow(op, "out", value, lent)


def _borrow(op: str, name: str, value: object, lent: Lent, or_else: str = "") -> object:
    """Adopt an array; `or_else` names what else may be given."""
    array = adopt(op, name, value, or_else)
    if array is not value and not lent.detaches:
        interop.refuse_gradients(op, [name], [value])
    return lent.note(value, array)


def _frozen(op: str, item: Input, value: Any, lent: Lent) -> object:
    is_on_host = interop.is_tensor(value) and value.device.type == "cpu"
    if is_on_host or isinstance(value, np.ma.MaskedArray):
        if not lent.detaches:
            interop.refuse_gradients(op, [item.name], [value])
        value = adopt(op, item.name, value)  # which refuses one with a mask
    checks.host(op, item.name, value)
    return convert_value(op, item, value)


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
        return value if type(value) is cupy.ndarray else cupy.ndarray.view(value, cupy.ndarray)
    if isinstance(value, np.ndarray | np.generic):  # a subclass, or a scalar of NumPy's
        return np.asarray(value)
    try:
        array = None if isinstance(value, type) else interop.share_memory(value)
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
    """Text of another library's error, behind the name of its type unless that is clear."""
    plain = isinstance(error, BufferError) and str(error)
    return cut(plain or f"{type(error).__name__}: {error}")


def _kind(value: object) -> str:
    """Name a value that is no array."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


CALL = ("out", "outputs", "workspace")  # what every call takes beside its inputs
_EMPTY = inspect.Parameter.empty


def in_order(declared: Declaration, inputs: Arguments, named: Mapping[str, object]) -> Arguments:
    """All inputs in the declared order, up to the last that is given."""
    if declared.other_inputs:
        named = by_declared_names(declared.name, declared.other_inputs, named)
    pick = _picker(declared, len(inputs), *named)
    return pick((*inputs, *named.values(), None))


@functools.lru_cache(maxsize=1024)  # most calls by names are made again
def _picker(declared: Declaration, n: int, *names: str) -> Callable[[Arguments], Arguments]:
    """Make a function that takes the inputs out of (*n_positions, *values_by_name, None)."""
    places = _places(declared, n, names)
    return itemgetter(*places) if len(places) > 1 else lambda row: (row[places[0]],)


def _places(declared: Declaration, n: int, names: tuple[str, ...]) -> tuple[int, ...]:
    """The index of each declared input in the row (*positional, *named, None).

    An input that is left out has index -1, that of the None.
    """
    known = [item.name for item in declared.inputs]
    if n > len(known):
        checks.count(declared.name, declared.inputs, n)
    for name in names:
        if name not in known:
            checks.unknown(declared, name)
        if name in known[:n]:
            refuse(declared.name, name, "one value", "one by position and one by name")
    for item in declared.inputs[n:]:
        if not item.optional and item.name not in names:
            refuse(declared.name, item.name, "an argument", "none")
    last = max([n, *(known.index(name) + 1 for name in names)])
    by_name = [n + names.index(name) if name in names else -1 for name in known[n:last]]
    return (*range(n), *by_name)


class Signatures:
    """The `__signature__` of an operator: of the class its attributes, of an instance the call."""

    def __get__(self, instance: object, cls: Any) -> inspect.Signature:
        declared = cls.declaration
        if instance is None:
            return inspect.Signature([*_attributes(declared), *_more(declared)])
        return inspect.Signature([*_inputs(declared), *_call()])


def function_signature(declared: Declaration) -> inspect.Signature:
    """Signature of an operator as a function: inputs, attributes, arguments of every call."""
    own = [*_inputs(declared), *_attributes(declared)]
    return inspect.Signature([*own, *_call(), *_more(declared)])


def _inputs(declared: Declaration) -> list[inspect.Parameter]:
    """Python has no default before a parameter without one: such an input is given as None."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    n = n_required(declared.inputs)
    return [
        inspect.Parameter(item.name, kind, default=_EMPTY if i < n else None)
        for i, item in enumerate(declared.inputs)
    ]


def _attributes(declared: Declaration) -> list[inspect.Parameter]:
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(a.name, kind, default=_EMPTY if a.default is REQUIRED else a.default)
        for a in declared.attributes
    ]


def _more(declared: Declaration) -> list[inspect.Parameter]:
    """Keywords that are not declared, where an operator takes them."""
    kind = inspect.Parameter.VAR_KEYWORD
    return [inspect.Parameter("keywords", kind)] if declared.takes_keywords else []


def _call() -> list[inspect.Parameter]:
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, kind, default=None) for name in CALL]


_PACKAGE = __name__.partition(".")[0]


def declared_name(op: str, known: Others, name: str) -> str:
    """The declared name; DeprecationWarning, at the caller's line, for one of a release before."""
    other = known.get(name)
    if other is None:
        return name
    if other.is_old:
        text = f"{op}: {name} is called {other.name} now"
        warnings.warn(text, DeprecationWarning, stacklevel=_depth())
    return other.name


def by_declared_names(op: str, known: Others, given: Mapping[str, object]) -> dict[str, object]:
    """Arguments by their declared names, each given once."""
    by_name: dict[str, object] = {}
    for name, value in given.items():
        declared = declared_name(op, known, name)
        if declared in by_name:
            refuse(op, declared, "one value", f"one by another name, {name}")
        by_name[declared] = value
    return by_name


def _depth() -> int:
    """Frames from `declared_name` up to the first that is not the package's."""
    depth, frame = 0, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        depth, frame = depth + 1, frame.f_back
    return depth + 1
