# SPDX-License-Identifier: MIT
"""Inputs given by their declared names: put in order, and shown so in signatures."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from operator import itemgetter

from ..declare.declaration import Declaration
from ..declare.schema import REQUIRED, n_required
from ..errors import refuse
from . import checks, renamed
from .operator import Operator
from .prepared import Arguments

CALL = ("out", "outputs", "workspace")  # what every call takes beside its inputs
_EMPTY = inspect.Parameter.empty


def in_order(declared: Declaration, inputs: Arguments, named: Mapping[str, object]) -> Arguments:
    """All inputs in the declared order, up to the last that is given."""
    if declared.other_inputs:
        named = renamed.named(declared.name, declared.other_inputs, named)
    pick = _picker(declared, len(inputs), *named)
    return pick((*inputs, *named.values(), None))


@functools.lru_cache(maxsize=1024)  # most calls by names are made again
def _picker(declared: Declaration, n: int, *names: str) -> Callable[[Arguments], Arguments]:
    """What takes the inputs out of n positions, the values of these names and a None."""
    places = _places(declared, n, names)
    return itemgetter(*places) if len(places) > 1 else lambda row: (row[places[0]],)


def _places(declared: Declaration, n: int, names: tuple[str, ...]) -> tuple[int, ...]:
    """Where each input stands among those; -1, the None, for one that is left out."""
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

    def __get__(self, instance: object, cls: type[Operator]) -> inspect.Signature:
        declared = cls.declaration
        if instance is None:
            return inspect.Signature([*_attributes(declared), *_more(declared)])
        return inspect.Signature([*_inputs(declared), *_call()])


def function_signature(declared: Declaration) -> inspect.Signature:
    """Of an operator as a function: inputs, attributes, and the arguments of every call."""
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
