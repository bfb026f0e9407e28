# SPDX-License-Identifier: MIT
"""The arguments of a call: put in declared order, and adopted as arrays or frozen values.

In all functions `op` is the operator's name, for messages, and `foreign` notes which NumPy or CuPy
array is a view of which array of another library (interop.py).
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

import numpy as np

from .. import limits
from ..declare.declaration import Declaration, Others
from ..declare.schema import REQUIRED, Input, n_required
from ..errors import (
    ArgumentError,
    ProviderError,
    cut,
    raise_if_from_handler,
    refuse,
    warn_deprecated,
)
from . import checks, interop
from .backends import BACKENDS, are_known, cuda_backend
from .checks import convert_value, is_number
from .interop import ForeignArrays
from .prepared import Arguments


def adopt_input(op: str, item: Input, value: Any, foreign: ForeignArrays) -> object:
    """Return an input as NumPy or CuPy arrays over its memory, or as an immutable host value.

    item: the input's declaration. value: as passed, a list if it is variadic. foreign: gets notes
    of views made here; if it `is_native`, arrays are tensors and are returned as they are.
    """
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
            tuple([_frozen(op, item, v, foreign) for v in value])
            if item.variadic
            else _frozen(op, item, value, foreign)
        )
    if item.variadic:
        if foreign.is_native or are_known(value):
            return tuple(value)
        names = [f"{item.name}[{i}]" for i in range(len(value))]
        return tuple(
            [_adopt_and_note(op, n, v, foreign) for n, v in zip(names, value, strict=True)]
        )
    number = "a number or " if item.memory == "either" else ""
    return value if foreign.is_native else _adopt_and_note(op, item.name, value, foreign, number)


def adopt_out(op: str, value: object, foreign: ForeignArrays) -> object:
    """Return one item of `out` as `adopt_input` does an array, or a tuple of such."""
    if isinstance(value, tuple):  # the arrays of a list, as b and c in out=(a, (b, c))
        return tuple([adopt_out(op, item, foreign) for item in checks.entries(op, "out", value)])
    if isinstance(value, np.generic):  # only its copy would be written
        refuse(op, "out", "an array", f"a scalar ({type(value).__name__})")
    return value if foreign.is_native else _adopt_and_note(op, "out", value, foreign)


def _adopt_and_note(
    op: str, name: str, value: object, foreign: ForeignArrays, or_else: str = ""
) -> object:
    """Return adopt(op, name, value, or_else), and note in `foreign` that it is a view of value."""
    array = adopt(op, name, value, or_else)
    if array is not value and not foreign.detaches:
        interop.refuse_gradients(op, [name], [value])
    return foreign.note(value, array)


def _frozen(op: str, item: Input, value: Any, foreign: ForeignArrays) -> object:
    """Return the value of a host input as an immutable object, which a bound call stores."""
    is_on_host = interop.is_tensor(value) and value.device.type == "cpu"
    if is_on_host or isinstance(value, np.ma.MaskedArray):
        if not foreign.detaches:
            interop.refuse_gradients(op, [item.name], [value])
        value = adopt(op, item.name, value)  # refuses a mask
    checks.host(op, item.name, value)
    return convert_value(op, item, value)


def adopt(op: str, argument: str, value: Any, or_else: str = "") -> Any:
    """Return a NumPy or CuPy array over the memory of an array of any library, never a copy.

    argument: its name for messages. or_else: for them, what else it may be: "a number or ".
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
        raise_if_from_handler(error)
        raise ArgumentError(f"{op}: {argument}: cannot share its memory: {_cause(error)}") from None
    if array is None:
        expected = f"{or_else}a NumPy or CuPy array"
        raise ArgumentError(f"{op}: {argument}: expected {expected}, got {_kind(value)}")
    return array


def _cause(error: Exception) -> str:
    """Return the text of another library's error, with its type."""
    plain = isinstance(error, BufferError) and str(error)
    return cut(plain or f"{type(error).__name__}: {error}")


def _kind(value: object) -> str:
    """Describe a value that is no array, for messages."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


CALL = ("out", "outputs", "workspace")  # keywords of every call
_EMPTY = inspect.Parameter.empty


def in_order(declared: Declaration, inputs: Arguments, named: Mapping[str, object]) -> Arguments:
    """Return inputs by position and by name in the declared order, up to the last that was passed.

    named: {name: value}. Inputs in between that were left out are None.
    """
    if declared.other_inputs:
        named = by_declared_names(declared.name, declared.other_inputs, named)
    pick = _picker(declared, len(inputs), *named)
    return pick((*inputs, *named.values(), None))


@functools.lru_cache(maxsize=1024)
def _picker(declared: Declaration, n: int, *names: str) -> Callable[[Arguments], Arguments]:
    """Return a function from (*positional, *named, None) to the inputs in the declared order.

    n: how many are positional. names: of the others, in the order passed.
    """
    places = _places(declared, n, names)
    return itemgetter(*places) if len(places) > 1 else lambda row: (row[places[0]],)


def _places(declared: Declaration, n: int, names: tuple[str, ...]) -> tuple[int, ...]:
    """Return the index of each declared input in (*positional, *named, None); -1: left out.

    n: how many are positional. names: of the named ones.
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
    """A descriptor: the `__signature__` of an operator class lists its attributes, that of an
    instance its inputs and `CALL`."""

    def __get__(self, instance: object, cls: Any) -> inspect.Signature:
        declared = cls.declaration
        if instance is None:
            return inspect.Signature([*_attributes(declared), *_more(declared)])
        return inspect.Signature([*_inputs(declared), *_call()])


def function_signature(declared: Declaration) -> inspect.Signature:
    """Return the signature of an operator's function: inputs, attributes, CALL."""
    own = [*_inputs(declared), *_attributes(declared)]
    return inspect.Signature([*own, *_call(), *_more(declared)])


def _inputs(declared: Declaration) -> list[inspect.Parameter]:
    """Return inputs as parameters; an optional one before a required one has no default."""
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
    """Return **keywords, if the operator takes undeclared ones."""
    kind = inspect.Parameter.VAR_KEYWORD
    return [inspect.Parameter("keywords", kind)] if declared.takes_keywords else []


def _call() -> list[inspect.Parameter]:
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, kind, default=None) for name in CALL]


def declared_name(op: str, known: Others, name: str) -> str:
    """Return the declared name for one that may be ONNX Runtime's or of an earlier release.

    known: {other name: Other}. An earlier release's warns, at the caller's line.
    """
    other = known.get(name)
    if other is None:
        return name
    if other.is_old:
        warn_deprecated(f"{op}: {name} is called {other.name} now")
    return other.name


def by_declared_names(op: str, known: Others, named: Mapping[str, object]) -> dict[str, object]:
    """Return `named`, {name: value}, by declared names; refuse two names of one argument.

    known: {other name: Other}.
    """
    by_name: dict[str, object] = {}
    for name, value in named.items():
        declared = declared_name(op, known, name)
        if declared in by_name:
            refuse(op, declared, "one value", f"one by another name, {name}")
        by_name[declared] = value
    return by_name
