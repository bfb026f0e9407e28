# SPDX-License-Identifier: MIT
"""The README's tables, written between their marks from the registry and the codecs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import click

from cupy_training_ops import CODECS, get_op
from cupy_training_ops.dtypes import FIXED_SIZE, dtype_names
from cupy_training_ops.registry import names
from cupy_training_ops.schema import TypeRows

README = ROOT / "README.md"
PLACES = {"device": "", "host": " CPU", "either": " or CPU"}


@click.command()
@click.option("--check", is_flag=True, help="Only say whether the README is up to date.")
def main(check: bool) -> None:
    """Rewrite the generated tables of README.md."""
    before = README.read_text(encoding="utf-8")
    after = updated(before)
    if check and before != after:
        raise click.ClickException("README.md is stale: run scripts/generate_tables.py")
    if not check:
        README.write_text(after, encoding="utf-8")


def updated(text: str) -> str:
    """The text with every generated part made anew."""
    tables = {"codecs": codec_table(), "operators": operator_table()}

    def part(match: re.Match[str]) -> str:
        return f"{match[1]}\n" + "\n".join(tables[match[2]]) + "\n<!-- end -->"

    return re.sub(r"(<!-- generated: (\w+) -->).*?<!-- end -->", part, text, flags=re.DOTALL)


def codec_table() -> list[str]:
    """One row a codec: formula, bits a value, error bound."""
    rows = [
        f"| `{codec.name}` | {cell(codec.formula)} | {codec.bits} | {cell(codec.bound)} |"
        for codec in CODECS.values()
    ]
    return ["| codec | formula | bits | error at most |", "|---|---|---|---|", *rows]


def operator_table() -> list[str]:
    """One row an operator: inputs, outputs, attributes, types."""
    head = ["| operator | inputs | outputs | attributes | types |", "|---|---|---|---|---|"]
    return [*head, *(operator_row(get_op(name)) for name in names())]


def operator_row(cls) -> str:
    """One operator's declaration in a line."""
    attributes = ", ".join(
        a.name if repr(a.default) == "REQUIRED" else f"{a.name}={a.default}" for a in cls.attributes
    )
    types = [f"{variable}: {type_names(ts)}" for variable, ts in cls.types.items()]
    if isinstance(cls.types, TypeRows):
        types.append(f"{len(cls.types.rows)} combinations")
    columns = (declared(cls.inputs), declared(cls.outputs), attributes or "-", "; ".join(types))
    return f"| {cls.name} | " + " | ".join(map(cell, columns)) + " |"


def type_names(dtypes) -> str:
    """Dtypes by name, or in a word where they are all there are."""
    return "any fixed-size type" if set(dtypes) == set(FIXED_SIZE) else dtype_names(dtypes)


def declared(items) -> str:
    """Inputs or outputs: name, type, and what is special."""
    return ", ".join(
        f"{item.name}{'...' if item.variadic else ''}{'?' * getattr(item, 'optional', False)}: "
        f"{item.type}{PLACES[item.memory]}"
        for item in items
    )


def cell(text: str) -> str:
    """Text inside a table: a bar would end the cell."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
