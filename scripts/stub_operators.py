# SPDX-License-Identifier: MIT
"""The stub's text of operators: each as a function and as a class, from its declaration.

Results in device memory are Any: arrays of the library that the inputs are of. Overloads for
NumPy's would name its type, but a checker that finds an error then only says that none matches, and
pyright takes CuPy's arrays, which have no types, for NumPy's.
"""

from __future__ import annotations

import ast
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from cupy_training_ops.call.op import Op
from cupy_training_ops.declare.schema import Attribute, Input, Output, gives, n_required
from cupy_training_ops.dtypes import to_dtype
from cupy_training_ops.errors import ArgumentError
from cupy_training_ops.process_group import ProcessGroup

WIDTH = 100
# What a converter takes, by the type that it gives.
TAKEN = {
    bool: "_Boolean",
    int: "_Integer",
    float: "_Real",
    str: "str",
    bytes: "bytes",
    object: "object",
    Any: "Any",
    type(None): "None",
    ProcessGroup: "ProcessGroup",
    np.dtype: "_Dtype",
    Callable: "Callable[..., Any]",
}
# A host input of one value may also be an array of one.
ARRAY_OF = {"_Boolean": "_Booleans", "_Integer": "_Integers", "_Real": "_Reals"}

Versions = Mapping[str, Sequence[type[Op]]]  # the classes of each operator, the newest first


def functions(versions: Versions) -> Iterator[str]:
    """Every operator as a function: that of the newest version."""
    for _, (cls, *_older) in sorted(versions.items(), key=lambda row: row[1][0].function_name):
        attributes = [keyword(cls, a) for a in cls.attributes]
        yield call(cls, cls.function_name, "", attributes, summary(cls))


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
    starred = ["*", *keywords, *more(cls)] if keywords else []
    yield definition("    ", "__init__", ["self", *starred], "None")
    yield call(cls, "__call__", "    ", ())
    bound = ["self", *inputs(cls, " | EllipsisType"), "*", *call_keywords(cls)]
    yield definition("    ", "bound", bound, "BoundCall | OpenCall")
    asked = ["self", *inputs(cls), "*", wanted(cls)]
    yield definition("    ", "workspace_nbytes", asked, "int")


def call(cls: type[Op], name: str, indent: str, attributes: Sequence[str], doc: str = "") -> str:
    """The call, as a method or as a function, which takes the attributes too."""
    own = ["self"] if indent else []
    parameters = [*own, *inputs(cls), "*", *attributes, *call_keywords(cls)]
    if attributes:
        parameters += more(cls)
    return definition(indent, name, parameters, result(cls), doc)


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


def inputs(cls: type[Op], union: str = "") -> list[str]:
    """The inputs; one that may be left out has to be given as None where a later one may not be."""
    n = n_required(cls.inputs)
    return [
        f"{item.name}: {taken(cls, item)}{union}{'' if i < n else ' = None'}"
        for i, item in enumerate(cls.inputs)
    ]


def taken(cls: type[Op], item: Input) -> str:
    """Type of an input."""
    one = "_Array"
    if item.memory != "device":
        value = accepted(cls, item)
        one = ARRAY_OF.get(value, value) + (" | _Array" if item.memory == "either" else "")
    if item.variadic:
        one = f"Sequence[{one}{' | None' if item.holes else ''}]"
    return f"{one} | None" if item.optional else one


def keyword(cls: type[Op], item: Attribute) -> str:
    """An attribute as a keyword."""
    text = f"{item.name}: {accepted(cls, item)}"
    return text if repr(item.default) == "REQUIRED" else f"{text} = {written(item.default)}"


def more(cls: type[Op]) -> list[str]:
    """Keywords that an operator takes beside its declared attributes."""
    return ["**keywords: object"] if cls.takes_keywords else []


def call_keywords(cls: type[Op]) -> list[str]:
    """Keywords that every call takes beside its inputs."""
    kinds = ["tuple[_Memory | None, ...]" if o.variadic else "_Memory" for o in cls.outputs]
    out = kinds[0] if len(kinds) == 1 else f"tuple[{', '.join(f'{k} | None' for k in kinds)}]"
    return [f"out: {out} | None = None", wanted(cls), "workspace: _Memory | None = None"]


def wanted(cls: type[Op]) -> str:
    """`outputs=`, by the names that there are."""
    names = ", ".join(f'"{output.name}"' for output in cls.outputs)
    return f"outputs: Sequence[Literal[{names}]] | None = None"


def result(cls: type[Op]) -> str:
    """Type of a result: a tuple where there are several outputs, and for a list."""
    ones = [made(output) for output in cls.outputs]
    return ones[0] if len(ones) == 1 else f"tuple[{', '.join(ones)}]"


def made(output: Output) -> str:
    """One output; in host memory it is NumPy's, else of the library that the inputs are of."""
    if output.memory != "host":
        return "tuple[Any, ...]" if output.variadic else "Any"
    kind = to_dtype(output.type).type
    return f"NDArray[np.{kind.__name__}]"


# ---- types ---------------------------------------------------------------------------------------


def accepted(cls: type[Op], item: Input | Attribute) -> str:
    """Type of a host input or an attribute, by what its converter gives."""
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
    return text.replace(f"{ProcessGroup.__module__}.", "").replace("'", '"')


def written(default: object) -> str:
    """A default value, where Python can read it."""
    try:
        ast.literal_eval(repr(default))
    except (SyntaxError, ValueError):
        return "..."
    return repr(default).replace("'", '"')
