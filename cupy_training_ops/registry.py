# SPDX-License-Identifier: MIT
"""The registry of all operators by name and version, and every operator as a function.

`gist_pack1_encoder(x)` is `GistPack1Encoder()(x)`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .call.arguments import CALL, by_declared_names, function_signature
from .call.checks import Bindings, convert_value
from .call.op import Op
from .declare.schema import Attribute, Input, Output
from .declare.type_rows import TypeRows, combinations
from .dtypes import ELEMENT_TYPES, Dtype, dtype_name, dtype_names, to_dtype
from .errors import ArgumentError, DtypeError, OpError, refuse, shown, unknown

Versions = type[Op] | tuple[type[Op], ...]
Table = Mapping[str, Versions]  # of a family: class by name, or a class for each version

_FAMILIES = (
    "activation adam attention batch_norm collective control conv cross_entropy dropout "
    "elementwise gather gist gist_guard gist_narrow gist_sparse gradient interop lamb layer_norm "
    "optimizer padding pooling reduction resize softmax tensor"
)
FAMILIES: Mapping[str, Table] = {
    name: importlib.import_module(f"{__package__}.families.{name}.operators").OPS
    for name in _FAMILIES.split()
}

Key = tuple[str, str, int]  # domain, operator, first version


class Match(NamedTuple):
    """The operator that runs for a combination of types, and its providers."""

    op: type[Op]
    types: dict[str, Dtype]
    providers: tuple[str, ...]


def classes(table: Table) -> tuple[tuple[str, type[Op]], ...]:
    """Return (name, class) for each operator and version of a family."""
    return tuple(
        (name, cls)
        for name, entry in table.items()
        for cls in (entry if isinstance(entry, tuple) else (entry,))
    )


def merge_tables(families: Mapping[str, Table]) -> dict[Key, type[Op]]:
    """Merge the tables of all families; refuse an operator that is in two."""
    registry: dict[Key, type[Op]] = {}
    for family, table in families.items():
        for name, cls in classes(table):
            key = (cls.domain, name, cls.since)
            if key in registry:
                raise ArgumentError(f"{family}: {key} is registered twice")
            registry[key] = cls
    return registry


REGISTRY = merge_tables(FAMILIES)


def names() -> tuple[str, ...]:
    """Return all operator names, sorted."""
    return tuple(sorted({name for _, name, _ in REGISTRY}))


def get_op(name: str, version: int | None = None) -> type[Op]:
    """Return the class of an operator: the newest, or the one for an opset version."""
    wanted = name if isinstance(name, str) else ""
    versions = [cls for (_, known, _), cls in REGISTRY.items() if known == wanted]
    if not versions:
        listed = f"`cupy-training-ops ops` lists the {len(names())} there are"
        raise ArgumentError(unknown("operator", name, names(), listed))
    if not isinstance(version, int | None):
        refuse(name, "version", "an integer", shown(version))
    serving = [c for c in versions if version is None or _serves(c, version)]
    if not serving:
        ranges = ", ".join(f"{c.since} to {c.until or 'newest'}" for c in versions)
        raise ArgumentError(f"{name}: no version {version}; there are: {ranges}")
    return max(serving, key=lambda cls: cls.since)


def lookup(name: str, version: int | None = None, /, **dtypes: object) -> Match:
    """Find the operator for dtypes by name of an input, output, attribute or type variable.

    Raises DtypeError with the existing type combinations if there is none.
    """
    cls = get_op(name, version)
    bound = _bindings(cls, dtypes)
    rows = combinations(cls.types)
    matches = [row for row in rows if all(row[v] == dtype for v, dtype in bound.items())]
    if not matches:
        known_rows = cls.types.rows if isinstance(cls.types, TypeRows) else rows
        known = "; ".join(map(_in_words, known_rows))
        raise DtypeError(f"{name}: no kernel for {_in_words(dtypes)}; there are: {known}")
    return Match(cls, matches[0] | bound, ("cuda", "cpu"))


def _serves(cls: type[Op], version: int) -> bool:
    return cls.since <= version and (cls.until is None or version <= cls.until)


def _in_words(dtypes: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={dtype_name(to_dtype(d))}" for name, d in dtypes.items())


def _bindings(cls: type[Op], dtypes: Mapping[str, object]) -> dict[str, Dtype]:
    """Return the dtype of each type variable; refuse unknown names and conflicts."""
    declared: Iterable[Input | Output | Attribute] = (*cls.inputs, *cls.outputs, *cls.attributes)
    variable = {item.name: item.type for item in declared if item.type} | {v: v for v in cls.types}
    said = cls.declaration
    for known in (said.other_inputs, said.other_outputs, said.other_attributes):
        dtypes = by_declared_names(cls.name, known, dtypes)
    on_host = {i.name: i for i in cls.inputs if i.memory == "host" and i.convert is not None}
    bound: Bindings = {}
    for name, value in dtypes.items():
        if name not in variable:
            refuse(cls.name, name, f"a name among {sorted(variable)}", "an unknown one")
        dtype = to_dtype(value)
        if name in on_host:
            _check_value(cls, on_host[name], dtype)
            continue
        if variable[name] not in cls.types:
            _check_dtype(cls, name, [to_dtype(variable[name])], dtype)
            continue
        if bound.setdefault(variable[name], dtype) != dtype:
            raise DtypeError(f"{cls.name}: {_in_words(dtypes)} do not agree on {variable[name]}")
    return bound


def _check_value(cls: type[Op], item: Input, dtype: Dtype) -> None:
    """Check the dtype of a host value, which may be any that its converter accepts."""
    dtypes = [element.dtype for element in ELEMENT_TYPES if _converts(item, element.dtype)]
    _check_dtype(cls, item.name, dtypes, dtype)


def _check_dtype(cls: type[Op], name: str, allowed: Sequence[Dtype], dtype: Dtype) -> None:
    if dtype not in allowed:
        expected, got = dtype_names(allowed), dtype_name(dtype)
        raise DtypeError(f"{cls.name}: {name}: expected dtype {expected}, got {got}")


def _converts(item: Input, dtype: Dtype) -> bool:
    """Return True if an input accepts ones or zeros of this dtype, as an array or a scalar."""
    ones, zeros = np.ones(item.count, dtype), np.zeros(item.count, dtype)
    for value in (ones, ones[0], zeros, zeros[0]):
        with contextlib.suppress(OpError):
            convert_value(item.name, item, value)
            return True
    return False


# ---- functions -----------------------------------------------------------------------------------

# By name of the function.
OPERATORS = {get_op(name).function_name: get_op(name) for name in names()}


@functools.cache
def function(name: str) -> Callable[..., Any]:
    """Return the function of an operator, with the operator's signature and help text."""
    cls = OPERATORS[name]
    declaration = cls.declaration
    others = declaration.other_attributes
    declared = frozenset((*(item.name for item in cls.attributes), *others))
    is_plain = not others and not cls.takes_keywords
    of_call = frozenset((*CALL, *(item.name for item in cls.inputs), *declaration.other_inputs))

    def call_operator(*inputs: object, **keywords: Any) -> Any:
        if is_plain and declared.issuperset(keywords):  # all keywords are attributes
            return cls.shared(**keywords)(*inputs)
        attributes = {}
        names = keywords.keys() - of_call if cls.takes_keywords else declared.intersection(keywords)
        for name in names:  # a comprehension would be a call
            attributes[name] = keywords.pop(name)
        if others:
            attributes = by_declared_names(cls.name, others, attributes)
        return cls.shared(**attributes)(*inputs, **keywords)

    call_operator.__name__ = call_operator.__qualname__ = name
    call_operator.__module__ = __package__  # where pickle finds it
    call_operator.__doc__ = cls.__doc__
    call_operator.__signature__ = function_signature(declaration)  # type: ignore[attr-defined]
    return call_operator
