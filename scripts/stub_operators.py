# SPDX-License-Identifier: MIT
"""The stub's text of operators: each as a function and as a class, from its declaration.

There are two overloads: of NumPy arrays, whose results are NumPy's with the dtype that is known,
and of any other arrays, whose results are Any. So are those of a call that wants some outputs only,
because the others are None.
"""

from __future__ import annotations

import ast
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from cupy_training_ops.dtypes import to_dtype
from cupy_training_ops.errors import ArgumentError
from cupy_training_ops.frame.op import Op
from cupy_training_ops.schema import Attribute, Input, Output, gives

WIDTH = 100
# What a converter takes, by the type that it gives; a host input of one value may be an array of one.
TAKEN = {
    bool: "_Boolean",
    int: "_Integer",
    float: "_Real",
    str: "str",
    bytes: "bytes",
    object: "object",
    Any: "Any",
    type(None): "None",
    np.dtype: "_Dtype",
    Callable: "Callable[..., Any]",
}
ARRAY_OF = {"_Boolean": "_Booleans", "_Integer": "_Integers", "_Real": "_Reals"}

Versions = Mapping[str, Sequence[type[Op]]]  # the classes of each operator, the newest first


def functions(versions: Versions) -> Iterator[str]:
    """Every operator as a function: that of the newest version."""
    for _, (cls, *_older) in sorted(versions.items(), key=lambda row: row[1][0].function_name):
        yield from calls(cls, cls.function_name, doc=summary(cls))


def classes(versions: Versions) -> Iterator[str]:
    """Every operator as a class; older versions are private, because `get_op` alone finds them."""
    for newest, *older in versions.values():
        for cls in (newest, *older):
            yield from operator_class(cls, class_name(cls, newest))


def class_name(cls: type[Op], newest: type[Op]) -> str:
    """The name in the stub."""
    return cls.name if cls is newest else f"_{cls.name}_{cls.since}"


def operator_class(cls: type[Op], name: str) -> Iterator[str]:
    """Attributes, constructor, call, and what else takes the inputs."""
    yield f'\nclass {name}(Op):\n    """{summary(cls)}"""'
    for a in cls.attributes:
        yield f"    {a.name}: Final[{shown(gives(a.convert))}]"
    keywords = [keyword(cls, a) for a in cls.attributes]
    starred = ["*", *keywords] if keywords else []
    yield definition("    ", "__init__", ["self", *starred], "None")
    yield from calls(cls, "__call__")
    bound = ["self", *inputs(cls, False, " | EllipsisType"), "*", *call_keywords(cls, False)]
    yield definition("    ", "bound", bound, "BoundCall | OpenCall")
    asked = ["self", *inputs(cls, False), "*", wanted(cls, False)]
    yield definition("    ", "workspace_nbytes", asked, "int")


def calls(cls: type[Op], name: str, doc: str = "") -> Iterator[str]:
    """The call, as a method or as a function with the attributes: on NumPy arrays, and on any."""
    method = name == "__call__"
    indent, first = ("    ", ["self"]) if method else ("", [])
    attributes = [] if method else [keyword(cls, a) for a in cls.attributes]
    views = (True, False) if any(item.memory != "host" for item in cls.inputs) else (False,)
    for numpy in views:
        if len(views) > 1:
            yield f"{indent}@overload"
        parameters = [*first, *inputs(cls, numpy), "*", *attributes, *call_keywords(cls, numpy)]
        yield definition(indent, name, parameters, result(cls, numpy), doc)
        doc = ""


def definition(
    indent: str, name: str, parameters: Sequence[str], returned: str, doc: str = ""
) -> str:
    """A function's text, in one line where it fits."""
    end = f':\n{indent}    """{doc}"""' if doc else ": ..."
    line = f"{indent}def {name}({', '.join(parameters)}) -> {returned}"
    if len(line) + len(": ...") > WIDTH:
        line = f"{indent}def {name}(\n{filled(indent + '    ', parameters)}{indent}) -> {returned}"
    return line + end


def filled(indent: str, parameters: Sequence[str]) -> str:
    """Lines with as many parameters as fit."""
    lines = [indent]
    for parameter in parameters:
        if lines[-1].strip() and len(lines[-1]) + len(parameter) >= WIDTH:
            lines.append(indent)
        lines[-1] += f"{parameter}, "
    return "".join(f"{line.rstrip()}\n" for line in lines)


def summary(cls: type[Op]) -> str:
    """The docstring's first line, and the outputs by name."""
    names = [f"*{output.name}" if output.variadic else output.name for output in cls.outputs]
    returned = names[0] if len(names) == 1 else f"({', '.join(names)})"
    return f"{(cls.__doc__ or '').partition(chr(10))[0]} Returns {returned}."


# ---- parameters ----------------------------------------------------------------------------------


def inputs(cls: type[Op], numpy: bool, more: str = "") -> list[str]:
    """The inputs; one that may be left out has to be given as None where a later one may not be."""
    last = max((i for i, item in enumerate(cls.inputs) if not item.optional), default=-1)
    return [
        f"{item.name}: {taken(cls, item, numpy)}{more}{' = None' if i > last else ''}"
        for i, item in enumerate(cls.inputs)
    ]


def taken(cls: type[Op], item: Input, numpy: bool) -> str:
    """What an input may be."""
    if item.memory == "device":
        one = array(cls, item, numpy)
    else:
        value = accepted(cls, item)
        one = ARRAY_OF.get(value, value)
        if item.memory == "either":
            one += " | " + ("NDArray[Any]" if numpy else "_Array")
    if item.variadic:
        one = f"Sequence[{one}{' | None' if item.holes else ''}]"
    return f"{one} | None" if item.optional else one


def keyword(cls: type[Op], item: Attribute) -> str:
    """An attribute as a keyword."""
    text = f"{item.name}: {accepted(cls, item)}"
    return text if repr(item.default) == "REQUIRED" else f"{text} = {written(item.default)}"


def call_keywords(cls: type[Op], numpy: bool) -> list[str]:
    """What every call takes beside its inputs."""
    return [
        f"out: {given(cls, numpy)} | None = None",
        wanted(cls, numpy),
        "workspace: _Memory | None = None",
    ]


def wanted(cls: type[Op], numpy: bool) -> str:
    """`outputs=`: where there are several, results are of a known kind only if all are wanted."""
    if numpy and len(cls.outputs) > 1:
        return "outputs: None = None"
    names = ", ".join(f'"{output.name}"' for output in cls.outputs)
    return f"outputs: Sequence[Literal[{names}]] | None = None"


def given(cls: type[Op], numpy: bool) -> str:
    """`out=`: an array, or a tuple with one or None for each output."""
    kinds = []
    for output in cls.outputs:
        one = array(cls, output, numpy, written=True)
        kinds.append(f"tuple[{one} | None, ...]" if output.variadic else one)
    return kinds[0] if len(kinds) == 1 else f"tuple[{', '.join(f'{k} | None' for k in kinds)}]"


def result(cls: type[Op], numpy: bool) -> str:
    """What comes back."""
    kinds = []
    for output in cls.outputs:
        known = numpy and output.memory != "either"
        one = array(cls, output, True) if known else "Any"
        one += " | Any" if known and output.optional else ""  # which a caller need not tell apart
        kinds.append(f"tuple[{one}, ...]" if output.variadic else one)
    return kinds[0] if len(kinds) == 1 else f"tuple[{', '.join(kinds)}]"


# ---- types ---------------------------------------------------------------------------------------


def array(cls: type[Op], item: Input | Output, numpy: bool, written: bool = False) -> str:
    """An array, of NumPy's or any; a scalar of NumPy's may be read but not written."""
    if not numpy:
        return "_Memory" if written else "_Array"
    if item.type in cls.types:
        return f"NDArray[{'_' + item.type if item.type in generic(cls) else 'Any'}]"
    kind = to_dtype(item.type).type
    return f"NDArray[{'np.' + kind.__name__ if kind.__module__ == 'numpy' else 'Any'}]"


def generic(cls: type[Op]) -> set[str]:
    """The type variables that an array always binds and a result has."""
    binding = (i for i in cls.inputs if i.memory == "device" and not i.optional and not i.mixed)
    made = {output.type for output in cls.outputs}
    return {item.type for item in binding} & made & set(cls.types)


def type_variables(versions: Versions) -> list[str]:
    """The definitions of all that are used."""
    names = sorted({name for ops in versions.values() for cls in ops for name in generic(cls)})
    return [f'_{name} = TypeVar("_{name}", bound=np.generic)' for name in names]


def accepted(cls: type[Op], item: Input | Attribute) -> str:
    """What a host input or an attribute may be, by what its converter gives."""
    if item.convert is None:
        return "object"
    try:
        return _accepted(gives(item.convert))
    except KeyError as error:
        raise ArgumentError(
            f"{cls.name}: {item.name}: scripts/stub_operators.py: TAKEN has no row for {error}, "
            f"which its converter says it gives"
        ) from None


def _accepted(kind: Any) -> str:
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(_accepted, members))
    if origin is Literal:
        return shown(kind)
    if origin is tuple:
        one = " | ".join(dict.fromkeys(_accepted(m) for m in members if m is not ...))
        return ARRAY_OF.get(one, f"Sequence[{one}]")
    return TAKEN[origin or kind]


def shown(kind: Any) -> str:
    """A type as the stub spells it."""
    text = inspect.formatannotation(kind).replace("numpy.", "np.").replace("typing.", "")
    return text.replace("'", '"')


def written(default: object) -> str:
    """A default value, where Python can read it."""
    try:
        ast.literal_eval(repr(default))
    except (SyntaxError, ValueError):
        return "..."
    return repr(default).replace("'", '"')
