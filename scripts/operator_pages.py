# SPDX-License-Identifier: MIT
"""The pages of docs/operators: what registry and docstrings know, and an example of each."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
from markdown_table import table

from cupy_training_ops.call.help import Row, sections
from cupy_training_ops.call.op import Op
from cupy_training_ops.declare.type_rows import TypeRows
from cupy_training_ops.registry import FAMILIES, classes, get_op

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples" / "operators"
DIFFERENCES = ROOT / "docs" / "differences.md"
REGISTRATIONS = ROOT / "tests" / "data" / "registrations.json"
COLUMNS = 7  # of families in the README's table
HEADS = {
    "inputs": ("input", "type", "memory", "shape and meaning"),
    "outputs": ("output", "type", "memory", "shape and meaning"),
    "attributes": ("attribute", "default", "meaning"),
    "types": ("type", "may be"),
    "types beside any of these": ("type, beside any of these", "may be"),
}


def page(family: str) -> str:
    """A family's page."""
    shared = common(family)
    before, examples = examples_of(family)
    parts = [
        f"<!-- written by scripts/generate_tables.py; examples: examples/operators/{family}.py -->",
        f"# {family}",
        *map(escaped, about(family)),
        f"Every call: {' '.join(map(escaped, shared))} [More](../operators.md#every-call)",
        f"Each example begins with:\n\n```python\n{before}```",
    ]
    for name in sorted(FAMILIES[family]):
        parts += operator(get_op(name), examples.get(name, ""), shared)
    if differing := differences(family):
        parts += ["## Where ONNX Runtime differs", differing]
    return "\n\n".join(parts) + "\n"


def about(family: str) -> list[str]:
    """Paragraphs that describe a family."""
    return [text for (text,) in sections(newest(family)[0].declaration)[f"family {family}"]]


def newest(family: str) -> list[type[Op]]:
    """The newest version of each operator, by name."""
    return [get_op(name) for name in sorted(FAMILIES[family])]


def common(family: str) -> list[str]:
    """Sentences that hold for every call of every operator of a family."""
    found = (sections(cls.declaration)["every call"] for cls in newest(family))
    first, *others = ([text for (text,) in rows] for rows in found)
    return [text for text in first if all(text in other for other in others)]


def examples_of(family: str) -> tuple[str, dict[str, str]]:
    """Code before the examples of a family, and the example of each operator."""
    path = EXAMPLES / f"{family}.py"
    if not path.is_file():
        raise click.ClickException(f"examples/operators/{family}.py: there is no such file")
    before, *cells = re.split(r"^# %% (\w+)\n", path.read_text("utf-8"), flags=re.MULTILINE)
    found = {name: text.strip() + "\n" for name, text in zip(cells[::2], cells[1::2], strict=True)}
    if found.keys() != FAMILIES[family].keys():
        wrong = ", ".join(sorted(found.keys() ^ FAMILIES[family].keys()))
        raise click.ClickException(f"examples/operators/{family}.py: not one example of {wrong}")
    code = re.sub(r'\A#.*\n""".*?"""\n\n', "", before, flags=re.DOTALL)
    return code.rstrip() + "\n", found


def operator(cls: type[Op], example: str, shared: Sequence[str]) -> Iterator[str]:
    """The section of one operator."""
    title, *paragraphs = written(cls).split("\n\n")
    meaning, _, formula = title.partition(": ")
    found = sections(cls.declaration)
    yield f"## {cls.name}"
    yield f"{escaped(meaning)}: `{formula.removesuffix('.')}`"
    yield f"```python\n{example}```"
    yield from map(prose, paragraphs)
    yield f"Registered as {registered(cls.name)}. As a function:"
    yield "\n".join(f"    {line}" for line in call(found["call"][0][0]))
    yield from tables(cls, found)
    own = [text for (text,) in found["every call"] if text not in shared]
    if own:
        yield "\n".join(f"* {escaped(text)}" for text in own)


def tables(cls: type[Op], found: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """Inputs, outputs, attributes and types."""
    for title, head in HEADS.items():
        rows = list(found.get(title, ()))
        if title in ("inputs", "outputs"):
            rows = [(name, kind, *memory_first(text)) for name, kind, text in rows]
        elif title == "attributes":
            rows = [(name, given.removeprefix("default "), text) for name, given, text in rows]
        elif title == "types" and isinstance(cls.types, TypeRows):
            head, *rows = rows
        if rows:
            yield table(head, ([f"`{first}`", *map(escaped, rest)] for first, *rest in rows))


def written(cls: type[Op]) -> str:
    """A docstring without what is generated."""
    return inspect.getdoc(cls).partition("\n\ncall\n")[0].strip()


def registered(name: str) -> str:
    """Domain and opset versions of an operator."""
    versions = versions_of(name)
    ranges = [f"{c.since}{f' to {c.until}' * (c.until not in (None, c.since))}" for c in versions]
    return f"`{versions[0].domain}` {name}, version {' and '.join(ranges)}"


def versions_of(name: str) -> list[type[Op]]:
    """The classes of an operator, the oldest first."""
    found = [c for family in FAMILIES.values() for known, c in classes(family) if known == name]
    return sorted(found, key=lambda cls: cls.since)


def call(text: str) -> list[str]:
    """A call in short lines, without what every call takes."""
    short = re.sub(r"out=None, outputs=None, workspace=None(, )?", "", text)
    short = short.replace(", )", ")").replace(", *)", ")")
    return textwrap.wrap(short, 92, subsequent_indent="    ")


def memory_first(text: str) -> tuple[str, str]:
    """The memory of an input or output, and the rest."""
    memory, *rest = re.split(r"[,;] ", text, maxsplit=1)
    return memory, "".join(rest)


def prose(paragraph: str) -> str:
    """A paragraph of a docstring; what is indented is code in either form."""
    return paragraph if paragraph.startswith("    ") else escaped(paragraph)


def escaped(text: str) -> str:
    """Text without what Markdown would read as its own, outside of backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"[*<]|(?<!\w)_", r"\\\g<0>", part)
        for part in parts
    )


def differences(family: str) -> str:
    """A family's rows of docs/differences.md."""
    for part in re.split(r"^## ", DIFFERENCES.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        heading, _, text = part.partition("\n")
        if family in heading.split(", "):
            return text.strip()
    return ""


def index() -> str:
    """All operators by family: formula, function, place."""
    parts = []
    for family in FAMILIES:
        rows = (index_row(family, cls) for cls in newest(family))
        parts += [f"### [{family}](operators/{family}.md)", about(family)[0]]
        parts.append(table(("operator", "function", "formula"), rows))
    return "\n\n".join(parts)


def index_row(family: str, cls: type[Op]) -> list[str]:
    formula = written(cls).partition("\n")[0].partition(": ")[2].removesuffix(".")
    return [link(family, cls.name), f"`{cls.function_name}`", f"`{formula}`"]


def link(family: str, name: str) -> str:
    """To an operator's section."""
    return f"[{name}](operators/{family}.md#{name.lower()})"


def upstream() -> set[str]:
    """The operators that ONNX Runtime's CUDA training provider registers."""
    return {row["op"] for row in json.loads(REGISTRATIONS.read_text("utf-8"))["registrations"]}


def coverage() -> str:
    """The families: how many operators of upstream's, and how many more."""
    theirs = upstream()
    cells = []
    for family, names in sorted(FAMILIES.items()):
        here = len(theirs & names.keys())
        cells.append(f"{family} | {here}{f' + {len(names) - here}' if len(names) > here else ''}")
    total = {name for names in FAMILIES.values() for name in names}
    cells.append(f"**all** | **{len(theirs & total)} of {len(theirs)}, + {len(total - theirs)}**")
    cells += [" | "] * (-len(cells) % COLUMNS)
    height = len(cells) // COLUMNS
    rows = [f"| {' | '.join(cells[i::height])} |" for i in range(height)]
    return "\n".join(["|" + " family | here |" * COLUMNS, "|" + "---|---|" * COLUMNS, *rows])


def names_upstream() -> str:
    """Upstream's operators: what each is called here, what it takes, what differs."""
    found = [(f, cls) for f in FAMILIES for cls in newest(f) if cls.name in upstream()]
    rows = [upstream_row(family, cls) for family, cls in sorted(found, key=lambda it: it[1].name)]
    head = ("operator", "version", "function", "inputs in order", "attributes", "differs")
    return table(head, rows)


def upstream_row(family: str, cls: type[Op]) -> list[str]:
    """Cells of an operator; the domain com.microsoft goes without saying."""
    versions = registered(cls.name).replace(f" {cls.name}, version", "")
    inputs = ", ".join(f"{item.name}{'?' * item.optional}" for item in cls.inputs)
    attributes = ", ".join(item.name for item in cls.attributes)
    place = (
        f"[see](operators/{family}.md#where-onnx-runtime-differs)" if differences(family) else ""
    )
    called = [versions.removeprefix("`com.microsoft` "), f"`{cls.function_name}`"]
    takes = [f"`{text}`" if text else "" for text in (inputs, attributes)]
    return [link(family, cls.name), *called, *takes, place]
