# SPDX-License-Identifier: MIT
"""Pages of the site for operators, and tables of them: registry, docstrings, an example of each."""

from __future__ import annotations

import inspect
import json
import re
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


def pages() -> dict[str, str]:
    """Return the pages of all families and operators, by their paths below the site."""
    return {
        path: "\n\n".join(parts) + "\n" for family in FAMILIES for path, parts in of_family(family)
    }


def of_family(family: str) -> Iterator[tuple[str, list[str]]]:
    """Yield a family's page and those of its operators, as path and paragraphs."""
    before, examples = examples_of(family)
    yield f"operators/{family}/index.md", [*family_page(family)]
    for cls in newest(family):
        path = path_of(family, cls.name)
        yield path, [*operator(cls, f"{before}\n{examples[cls.name]}")]


def path_of(family: str, name: str) -> str:
    """Return the path of an operator's page below the site."""
    return f"operators/{family}/{name}.md"


def family_page(family: str) -> Iterator[str]:
    """Yield the paragraphs of a family's page."""
    title = family.replace("_", " ").capitalize()
    yield f"# {title}\n\n{index_entries(family.replace('_', ' '))}"
    yield from map(escaped, about(family))
    shared = " ".join(map(escaped, common(family)))
    yield f"Every call: {shared} [More](../../docs/operators.md#every-call)"
    yield table(("operator", "function", "formula"), map(index_row, newest(family)))
    if rows := differences(family):
        yield f"## Where ONNX Runtime differs\n\n{rows}"
    names = "\n".join(sorted(FAMILIES[family]))
    yield f"```{{toctree}}\n:hidden:\n{names}\n```"


def index_entries(*words: str) -> str:
    """Return what a search for these words finds the page by."""
    return f"```{{index}} {', '.join(f'! {text}' for text in words)}\n```"


def about(family: str) -> list[str]:
    """Return the paragraphs that describe a family."""
    return [text for (text,) in sections(newest(family)[0].declaration)[f"family {family}"]]


def newest(family: str) -> list[type[Op]]:
    """Return the newest version of each operator of a family, sorted by name."""
    return [get_op(name) for name in sorted(FAMILIES[family])]


def common(family: str) -> list[str]:
    """Return the sentences that hold for every call of every operator of a family."""
    results = (sections(cls.declaration)["every call"] for cls in newest(family))
    first, *others = ([text for (text,) in rows] for rows in results)
    return [text for text in first if all(text in other for other in others)]


def examples_of(family: str) -> tuple[str, dict[str, str]]:
    """Return (code before the examples of a family, {operator: its example})."""
    path = EXAMPLES / f"{family}.py"
    if not path.is_file():
        raise click.ClickException(f"examples/operators/{family}.py: there is no such file")
    before, *cells = re.split(r"^# %% (\w+)\n", path.read_text("utf-8"), flags=re.MULTILINE)
    results = {
        name: text.strip() + "\n" for name, text in zip(cells[::2], cells[1::2], strict=True)
    }
    if results.keys() != FAMILIES[family].keys():
        wrong = ", ".join(sorted(results.keys() ^ FAMILIES[family].keys()))
        raise click.ClickException(f"examples/operators/{family}.py: not one example of {wrong}")
    code = re.sub(r'\A#.*\n""".*?"""\n\n', "", before, flags=re.DOTALL)
    return code.rstrip() + "\n", results


def operator(cls: type[Op], example: str) -> Iterator[str]:
    """Yield the paragraphs of an operator's page."""
    title, *paragraphs = written(cls).split("\n\n")
    meaning, _, formula = title.partition(": ")
    blocks = sections(cls.declaration)
    entries = index_entries(cls.function_name.replace("_", " "), cls.name, cls.function_name)
    yield f"# {cls.name}\n\n{entries}"
    yield f"{escaped(meaning)}: `{formula.removesuffix('.')}`"
    for directive, (text,) in zip(("function", "class"), blocks["call"], strict=True):
        yield f"```{{py:{directive}}} {declared(cls, text)}\n:module: cupy_training_ops\n```"
    yield f"```python\n{example}```"
    yield docstring("\n\n".join(paragraphs))
    yield f"Registered as {registered(cls.name)}."
    yield from tables(cls, blocks)
    yield "\n".join(f"* {escaped(text)}" for (text,) in blocks["every call"])
    yield "More of [every call](../../docs/operators.md#every-call), and [the family](index.md)."


def declared(cls: type[Op], call: str) -> str:
    """Return a function's call with its result, or the constructor of a class."""
    if not call.startswith(f"{cls.function_name}("):
        return f"{cls.name}{call[call.index('(') : call.index(')(') + 1]}"
    signature, _, result = call.rpartition(" -> ")
    names = re.sub(r"\((\w+)\[0\], \1\[1\], \.\.\.\)", r"\1", result)  # a list of outputs
    return f"{signature} -> {names.strip('()')}"


def tables(cls: type[Op], result: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """Yield tables of inputs, outputs, attributes and types; result: rows by title."""
    for title, head in HEADS.items():
        rows = list(result.get(title, ()))
        if title in ("inputs", "outputs"):
            rows = [(name, kind, *memory_first(text)) for name, kind, text in rows]
        elif title == "attributes":
            rows = [
                (name, argument.removeprefix("default "), text) for name, argument, text in rows
            ]
        elif title == "types" and isinstance(cls.types, TypeRows):
            head, *rows = rows
        if rows:
            yield table(head, ([f"`{first}`", *map(escaped, rest)] for first, *rest in rows))


def written(cls: type[Op]) -> str:
    """Return an operator's docstring without its generated part."""
    return inspect.getdoc(cls).partition("\n\ncall\n")[0].strip()


def registered(name: str) -> str:
    """Return words with domain and opset versions of an operator."""
    versions = versions_of(name)
    ranges = [f"{c.since}{f' to {c.until}' * (c.until not in (None, c.since))}" for c in versions]
    return f"`{versions[0].domain}` {name}, version {' and '.join(ranges)}"


def versions_of(name: str) -> list[type[Op]]:
    """Return the classes of an operator, the oldest first."""
    results = [c for family in FAMILIES.values() for known, c in classes(family) if known == name]
    return sorted(results, key=lambda cls: cls.since)


def memory_first(text: str) -> tuple[str, str]:
    """Split the text about an input or output into (its memory, the rest)."""
    memory, *rest = re.split(r"[,;] ", text, maxsplit=1)
    return memory, "".join(rest)


def docstring(text: str) -> str:
    """Return a docstring as Markdown; what is indented is code in either form."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(p if p.startswith("    ") else escaped(p) for p in paragraphs)


def escaped(text: str) -> str:
    """Escape characters of Markdown, outside of backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"[*<]|(?<!\w)_", r"\\\g<0>", part)
        for part in parts
    )


def differences(family: str) -> str:
    """Return a family's rows of docs/differences.md."""
    return next((text for heading, text in differing() if family in heading.split(", ")), "")


def anchor(family: str) -> str:
    """Return where a family's rows stand on that page."""
    (heading,) = [each for each, _ in differing() if family in each.split(", ")]
    return heading.replace(",", "").replace(" ", "-")


def differing() -> Iterator[tuple[str, str]]:
    """Yield each heading of that page with its text."""
    for part in re.split(r"^## ", DIFFERENCES.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        heading, _, text = part.partition("\n")
        yield heading, text.strip()


def index() -> str:
    """Return all operators by family, without links: pages are made with the site alone."""
    parts = []
    for family in FAMILIES:
        parts += [f"### {family}", about(family)[0]]
        parts.append(table(("operator", "function", "formula"), map(index_row, newest(family))))
    return "\n\n".join(parts)


def index_row(cls: type[Op]) -> list[str]:
    formula = written(cls).partition("\n")[0].partition(": ")[2].removesuffix(".")
    return [f"`{cls.name}`", f"`{cls.function_name}`", f"`{formula}`"]


def upstream() -> set[str]:
    """Return the operators that ONNX Runtime's CUDA training provider registers."""
    return {row["op"] for row in json.loads(REGISTRATIONS.read_text("utf-8"))["registrations"]}


def coverage() -> str:
    """Return a table of families: how many operators of ONNX Runtime's, and how many more."""
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
    """Return a table of ONNX Runtime's operators: function, inputs, attributes, differences."""
    results = [(f, cls) for f in FAMILIES for cls in newest(f) if cls.name in upstream()]
    rows = [upstream_row(family, cls) for family, cls in sorted(results, key=lambda it: it[1].name)]
    head = ("operator", "version", "function", "inputs in order", "attributes", "differs")
    return table(head, rows)


def upstream_row(family: str, cls: type[Op]) -> list[str]:
    """Return an operator's cells of that table; the domain com.microsoft is left out."""
    versions = registered(cls.name).replace(f" {cls.name}, version", "")
    inputs = ", ".join(f"{item.name}{'?' * item.optional}" for item in cls.inputs)
    attributes = ", ".join(item.name for item in cls.attributes)
    place = f"[see](differences.md#{anchor(family)})" if differences(family) else ""
    called = [versions.removeprefix("`com.microsoft` "), f"`{cls.function_name}`"]
    takes = [f"`{text}`" if text else "" for text in (inputs, attributes)]
    return [f"`{cls.name}`", *called, *takes, place]
