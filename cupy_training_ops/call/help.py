# SPDX-License-Identifier: MIT
"""The help text of an operator: its docstring, then what its declaration says.

A docstring has what no declaration can: formula, special values, memory, source. Everything else is
generated here from the declaration (`declared`), of which an `item` is an input, output or
attribute.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator, Sequence

from ..declare.declaration import Declaration
from ..declare.schema import REQUIRED, Attribute, Input, Output, kind
from ..declare.type_rows import TypeRows, Types
from ..dtypes import dtype_name, dtype_names
from .arguments import CALL
from .operator import Operator

WIDTH = 96  # of a line, which pydoc indents by four

Row = tuple[str, ...]  # cells of a line, of which the last is wrapped


class Help:
    """The `__doc__` of an operator class, generated when first read, as all take long.

    written: the docstring in the source, which the generated lines follow.
    """

    def __init__(self, written: str | None) -> None:
        self.written = inspect.cleandoc(written or "")
        self._text = ""

    def __get__(self, instance: object, cls: type[Operator]) -> str:
        self._text = self._text or "\n".join([self.written, *generate(cls.declaration)]).strip()
        return self._text


def generate(declared: Declaration) -> Iterator[str]:
    """Yield the lines that follow the docstring."""
    for title, rows in sections(declared).items():
        yield from _section(title, rows)


def sections(declared: Declaration) -> dict[str, list[Row]]:
    """Return {title: rows of cells}, such as "inputs" with a row (name, type, text) for each."""
    blocks: dict[str, list[Row]] = {
        "call": [(line,) for line in _calls(declared)],
        "inputs": [_input(item) for item in declared.inputs],
        "outputs": [_output(item) for item in declared.outputs],
        "attributes": [_attribute(item) for item in declared.attributes],
    }
    if isinstance(declared.types, TypeRows):
        blocks["types"] = _rows(declared.types)
        blocks["types beside any of these"] = _types(declared.types.free)
    else:
        blocks["types"] = _types(declared.types)
    blocks["every call"] = [(line,) for line in _every_call(declared)]
    blocks[f"family {declared.family}"] = [(text,) for text in _family(declared)]
    return blocks


def _section(title: str, rows: Sequence[Row]) -> Iterator[str]:
    """Yield a title and aligned columns, the last one wrapped; nothing without rows."""
    if not rows:
        return
    yield from ("", title)
    *widths, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    for *cells, text in rows:
        padded = (f"{cell:{width}}  " for cell, width in zip(cells, widths, strict=True))
        start = "  " + "".join(padded)
        rest = " " * len(start) if cells else "    "
        wrapped = textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=rest)
        yield from wrapped or [start.rstrip()]


def _calls(declared: Declaration) -> Iterator[str]:
    """Yield the signatures of the operator's function and class, with results."""
    inputs = [f"{item.name}=None" if item.optional else item.name for item in declared.inputs]
    keywords = [_keyword(item) for item in declared.attributes]
    more = ["**keywords"] if declared.takes_keywords else []
    result = _result(declared.outputs)
    call = [f"{name}=None" for name in CALL]
    function = f"{declared.function_name}({', '.join([*inputs, '*', *keywords, *call, *more])})"
    yield f"{function} -> {result}"
    instance = f"{declared.class_name}({', '.join(['*', *keywords, *more] if keywords else [])})"
    yield f"{instance}({', '.join([*inputs, '*', *call])}) -> {result}"


def _keyword(item: Attribute) -> str:
    """Return an attribute as in a signature: "axis=-1", or "axis" if it is required."""
    return item.name if item.default is REQUIRED else f"{item.name}={item.default!r}"


def _result(outputs: Sequence[Output]) -> str:
    """Return what a call returns: "Y", "(Y, mask)", with "(Y[0], Y[1], ...)" for a list."""
    names = [f"({o.name}[0], {o.name}[1], ...)" if o.variadic else o.name for o in outputs]
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def _input(item: Input) -> Row:
    """Return the row of an input: name, type, and what the call accepts there."""
    words = (
        item.memory,
        "optional" if item.optional else "",
        _takes(item),
        "may change from call to call" if item.memory == "host" and not item.static else "",
        f"or an array of {item.count} beside the other arrays" if item.memory == "either" else "",
        _list(item) if item.variadic else "",
        item.shape,
        *_other_names(item),
        "any strides" if item.not_accessed else "",
        "written in place" if item.updated else "",
        "supplied by the operator where it is left out" if item.supplied else "",
    )
    return item.name, item.type, _join(words, item.doc)


def _list(item: Input) -> str:
    holes = " or None" if item.holes else ""
    entries = f"arrays{holes}" if item.memory == "device" else f"them{holes}"
    return f"a list of {entries}{' in several types' if item.mixed else ''}"


def _output(item: Output) -> Row:
    """Return the row of an output: name, type, and what the call returns there."""
    shared = " or ".join(f"{name}'s" for name in item.may_alias)
    words = (
        item.memory,
        "a new NumPy array" if item.memory == "host" else "",
        "a tuple of arrays" if item.variadic else "",
        item.shape,
        *_other_names(item),
        f"written into {item.aliases} where there is no out=" if item.aliases else "",
        "if outputs= names it" if item.aliases and item.on_request else "",
        f"out= may be {shared} array" if shared else "",
    )
    return item.name, item.type, _join(words, item.doc)


def _attribute(item: Attribute) -> Row:
    default = "required" if item.default is REQUIRED else f"default {item.default!r}"
    words = (_takes(item), *_other_names(item), f"binds {item.type}" if item.type else "")
    return item.name, default, _join(words, item.doc)


def _other_names(item: Input | Output | Attribute) -> Iterator[str]:
    """Yield other names that it may be passed by."""
    if item.upstream:
        yield f"{item.upstream} in ONNX Runtime"
    if item.formerly:
        yield f"formerly {' or '.join(item.formerly)}"


def _types(types: Types) -> list[Row]:
    """Return a row (type variable, names of its dtypes) for each."""
    return [(variable, dtype_names(dtypes)) for variable, dtypes in types.items()]


def _rows(types: TypeRows) -> list[Row]:
    """Return the declared combinations of types, below the variables' names."""
    return [tuple(types.rows[0]), *(tuple(map(dtype_name, row.values())) for row in types.rows)]


def _join(words: Sequence[str], doc: str) -> str:
    """Join words that are not empty: "word, word; doc"."""
    return "; ".join(filter(None, [", ".join(filter(None, words)), doc]))


def _takes(item: Input | Attribute) -> str:
    """Describe the values of a host input or an attribute, beginning in lower case."""
    text = kind(item.convert) if item.convert else ""
    return text[:1].lower() + text[1:]


def _every_call(declared: Declaration) -> Iterator[str]:
    """Yield sentences that hold for every call of this operator, and that many operators share."""
    memories = {item.memory for item in declared.inputs}
    if "host" in memories:
        yield (
            "Host inputs are Python numbers, tuples or NumPy arrays, never device arrays. "
            "A captured graph keeps their values."
        )
    if "either" in memories:
        yield "A captured graph keeps a number; where an array is given, each replay reads it."
    if declared.needs:
        yield f"A call needs {declared.needs}."
    if declared.runs_functions:
        yield "Results that are refused, or an error of the function's, come after it has run."
    else:
        unless = " unless deterministic=False" if _has(declared, "deterministic") else ""
        yield f"The same inputs give the same bits, run after run{unless}."
    if declared.bitwise_exact:
        yield "The CPU provider and the GPU give exactly the same values."
    yield declared.provider
    before = "the function runs" if declared.runs_functions else "anything is launched or written"
    yield f"ArgumentError, DtypeError and ProviderError are raised before {before}."


def _has(declared: Declaration, attribute: str) -> bool:
    return any(item.name == attribute for item in declared.attributes)


def _family(declared: Declaration) -> Iterator[str]:
    """Yield the paragraphs of the family module's docstring."""
    text = inspect.getdoc(sys.modules[declared.module]) or ""
    return (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
