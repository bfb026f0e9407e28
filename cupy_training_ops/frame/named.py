# SPDX-License-Identifier: MIT
"""Inputs given by their declared names: put in order, and shown so in signatures."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from ..declare.schema import REQUIRED, n_required
from ..errors import refuse
from . import checks, renamed
from .checks import Declared
from .prepared import Arguments

CALL = ("out", "outputs", "workspace")  # what every call takes beside its inputs
_EMPTY = inspect.Parameter.empty
_WORD = re.compile(r"(?<=[a-z0-9])(?<!_[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def home(module: str) -> tuple[str, str]:
    """The family of a class's module, and the module of its NumPy functions.

    A family is a folder with `operators.py` and `reference.py`, or one module with both.
    """
    package, _, name = module.rpartition(".")
    if name != "operators":
        return name, module
    return package.rpartition(".")[2], f"{package}.reference"


def snake_case(name: str) -> str:
    """GatherNDGrad is gather_nd_grad; BiasGeluGrad_dX is bias_gelu_grad_dx."""
    return _WORD.sub("_", name).lower()


def in_order(cls: Any, inputs: Arguments, named: Mapping[str, object]) -> Arguments:
    """All inputs in the declared order, up to the last that is given."""
    if cls.other_inputs:
        named = renamed.named(cls.name, cls.other_inputs, named)
    pick = _picker(cls, len(inputs), *named)
    return pick((*inputs, *named.values(), None))


@functools.lru_cache(maxsize=1024)  # most calls by names are made again
def _picker(cls: Any, n: int, *names: str) -> Callable[[Arguments], Arguments]:
    """What takes the inputs out of n positions, the values of these names and a None."""
    places = _places(cls, n, names)
    return itemgetter(*places) if len(places) > 1 else lambda row: (row[places[0]],)


def _places(cls: Any, n: int, names: tuple[str, ...]) -> tuple[int, ...]:
    """Where each input stands among those; -1, the None, for one that is left out."""
    declared = [item.name for item in cls.inputs]
    if n > len(declared):
        checks.count(cls.name, cls.inputs, n)
    for name in names:
        if name not in declared:
            checks.unknown(cls, name)
        if name in declared[:n]:
            refuse(cls.name, name, "one value", "one by position and one by name")
    for item in cls.inputs[n:]:
        if not item.optional and item.name not in names:
            refuse(cls.name, item.name, "an argument", "none")
    last = max([n, *(declared.index(name) + 1 for name in names)])
    by_name = [n + names.index(name) if name in names else -1 for name in declared[n:last]]
    return (*range(n), *by_name)


class Signatures:
    """The `__signature__` of an operator: of the class its attributes, of an instance the call."""

    def __get__(self, instance: object, cls: Declared) -> inspect.Signature:
        if instance is None:
            return inspect.Signature([*_attributes(cls), *_more(cls)])
        return inspect.Signature([*_inputs(cls), *_call()])


def function_signature(cls: Declared) -> inspect.Signature:
    """Of an operator as a function: inputs, attributes, and the arguments of every call."""
    return inspect.Signature([*_inputs(cls), *_attributes(cls), *_call(), *_more(cls)])


def _inputs(cls: Declared) -> list[inspect.Parameter]:
    """Python has no default before a parameter without one: such an input is given as None."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    n = n_required(cls.inputs)
    return [
        inspect.Parameter(item.name, kind, default=_EMPTY if i < n else None)
        for i, item in enumerate(cls.inputs)
    ]


def _attributes(cls: Declared) -> list[inspect.Parameter]:
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(a.name, kind, default=_EMPTY if a.default is REQUIRED else a.default)
        for a in cls.attributes
    ]


def _more(cls: Declared) -> list[inspect.Parameter]:
    """Keywords that are not declared, where an operator takes them."""
    kind = inspect.Parameter.VAR_KEYWORD
    return [inspect.Parameter("keywords", kind)] if cls.takes_keywords else []


def _call() -> list[inspect.Parameter]:
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, kind, default=None) for name in CALL]
