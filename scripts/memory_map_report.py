# SPDX-License-Identifier: MIT
r"""Table and picture of what `memory_map.py` measured.

    python scripts/memory_map_report.py FILE...
    python scripts/memory_map_report.py docs/memory_map.jsonl \
        --picture docs/memory_map.png --page docs/stash.md

The picture shows peaks; a second, whose name ends in `_held`, what waits for the backward pass. A
page gets the tables; without one they are printed, and which of ours come closest to PyTorch's.
Times are divided by those of the control, which each command measures; later rows replace earlier.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from markdown_table import table
from memory_map import CONTROL, MODELS, Line, way_of

GB = 1e9
WIDEST = 2.4  # times the control's time: what is slower is named, not drawn
SLOWER = 1.08  # from here on a way of PyTorch's is one that pays time for memory
PYTORCH, OURS, CONVERTED = "tab:blue", "tab:orange", "tab:purple"
Panels = dict[str, dict[str, Line]]  # rows by model and way


def read(files: Sequence[Path]) -> tuple[list[Line], Panels]:
    """Return (lines about machines, {model: {way: row}}) of result files.

    A row gets "gradients", (median, worst) error, and "ratio", its time over that of CONTROL.
    """
    abouts: list[Line] = []
    commands: list[Panels] = []
    for line in (json.loads(each) for file in files for each in file.read_text().splitlines()):
        if line["kind"] == "about":
            abouts.append(line)
            commands.append({})
        elif line["kind"] == "row" and "error" not in line:
            commands[-1].setdefault(line["model"], {})[line["way"]] = line
        elif line["kind"] == "gradients":
            row = commands[-1][line["model"]][line["way"]]
            row["gradients"] = (line["median"], line["worst"])
    panels: Panels = {}
    for model, rows in (each for command in commands for each in command.items()):
        for row in rows.values() if CONTROL in rows else ():
            row["ratio"] = row["least_ms"] / rows[CONTROL]["least_ms"]
            panels.setdefault(model, {})[row["way"]] = row
    return abouts, {model: panels[model] for model in MODELS if model in panels}


def ordered(rows: dict[str, Line]) -> list[Line]:
    """Sort rows by what is done: compiled ones first, plain ones first, large budgets first."""

    def place(row: Line) -> tuple[float, ...]:
        """Return a row's sort key; False comes first."""
        way = way_of(row["way"])
        codes = way.codes or {}
        budget = way.budget if way.budget is not None else codes.get("budget", 2)
        return (
            not way.is_compiled,
            way.is_offloaded,
            way.is_converted,
            way.codes is not None or way.policy is not None,
            way.is_fp8,
            way.is_checkpointed,
            -budget if isinstance(budget, (int, float)) else 0,
        )

    return sorted(rows.values(), key=place)


def panel_table(rows: dict[str, Line]) -> str:
    """Return a model's label and a table of its rows."""
    columns = ("way", "peak GB", "held GB", "ms, least (median)", "of compiled", "coded GB")
    columns += ("first call s", "gradients off, median, worst")
    label = next(iter(rows.values()))["label"]
    return f"{label}:\n\n{table(columns, map(_cells, ordered(rows)))}"


def _cells(row: Line) -> Sequence[str]:
    """Return the cells below the columns of `panel_table`."""
    coded = coded_bytes(row)
    return (
        row["way"],
        f"{row['peak_bytes'] / GB:.2f}",
        f"{row['held_bytes'] / GB:.2f}",
        f"{row['least_ms']:.1f} ({row['median_ms']:.1f})",
        f"{row['ratio']:.2f}",
        "" if coded is None else f"{coded / GB:.2f}",
        f"{row['first_s']:.0f}" if row["graphs"] else "",
        ", ".join(f"{error:.2%}" for error in row.get("gradients", ())),
    )


def coded_bytes(row: Line) -> int | None:
    """Return the bytes, before encoding, of activations that wait as codes; None without codes."""
    said = row.get("coded")
    if said is None:
        return None
    return sum(each["before"] for name, each in said["coded"].items() if name != "made again")


def comparison(panels: Panels) -> str:
    """Return a table: for each compiled way of PyTorch's that costs time, the closest way of ours.

    Closest in peak and time. Ways of ours that encode less than a quarter of what the control holds
    do not count.
    """
    lines = []
    for rows in panels.values():
        least = rows[CONTROL]["held_bytes"] / 4
        ours = [row for row in rows.values() if (coded_bytes(row) or 0) >= least]
        for row in ordered(rows):
            if row["ratio"] < SLOWER or not _is_pytorchs(row):
                continue
            best = min(ours, key=lambda each: max(_against(each, row)), default=None)
            figures = ["none", "", ""]
            if best:
                figures = [best["way"], *(f"{each:.3f}" for each in _against(best, row))]
            lines.append([row["label"], row["way"], f"{row['ratio']:.2f}", *figures])
    columns = ("model", "PyTorch's way", "its time of compiled", "ours", "its peak", "its time")
    return table(columns, lines)


def shares(panels: Panels) -> str:
    """Return a table: the quickest way with codes, and PyTorch's quickest compiled way.

    Of those that hold at most a half, then a third, of the control's bytes.
    """
    lines = []
    for rows in panels.values():
        for share in (2, 3):
            most = rows[CONTROL]["held_bytes"] / share
            few = [row for row in rows.values() if row["held_bytes"] <= most]
            lines.append([rows[CONTROL]["label"], f"1/{share}"])
            for some in (
                [row for row in few if way_of(row["way"]).codes is not None],
                [row for row in few if _is_pytorchs(row)],
            ):
                best = min(some, key=lambda row: row["ratio"], default=None)
                lines[-1] += [best["way"], f"{best['ratio']:.3f}"] if best else ["none", ""]
    timed = "time of compiled"
    return table(("model", "of what waits", "codes", timed, "PyTorch's", timed), lines)


def _is_pytorchs(row: Line) -> bool:
    way = way_of(row["way"])
    return way.is_compiled and not way.is_converted and way.codes is None


def _against(ours: Line, theirs: Line) -> tuple[float, float]:
    """Return (peak over theirs, time over theirs)."""
    peak = ours["peak_bytes"] / max(theirs["peak_bytes"], 1)
    return peak, ours["ratio"] / theirs["ratio"]


def draw(panels: Panels, path: Path, memory: str = "peak") -> None:
    """Draw memory against time, a panel for each model, into a PNG; memory: "peak" or "held"."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    columns = min(len(panels), 3)
    n = -(-len(panels) // columns)
    figure = Figure(figsize=(5.2 * columns, 4.2 * n + 0.6), layout="constrained")
    axes = figure.subplots(n, columns, squeeze=False).flatten()
    for axis, rows in zip(axes, panels.values(), strict=False):
        _panel(axis, rows, memory)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    entries = [
        ("PyTorch", PYTORCH, "o", True),
        ("converted", CONVERTED, "o", True),
        ("codes", OURS, "o", True),
        ("every block checkpointed", "black", "^", True),
        ("eager", "black", "o", False),
    ]
    handles = [
        Line2D([], [], color=color, marker=mark, ls="", mfc=color if full else "none", label=label)
        for label, color, mark, full in entries
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2 * columns, frameon=False)
    figure.savefig(path, format="png", dpi=110)


def _panel(axis: Any, rows: dict[str, Line], memory: str) -> None:
    """Draw a model's rows: time over memory, with a line through PyTorch's budgets.

    memory: "peak" or "held". Rows slower than WIDEST are listed as text.
    """
    slow = []
    budgets: list[tuple[float, float]] = []
    for row in ordered(rows):
        way, at = way_of(row["way"]), (row["ratio"], row[f"{memory}_bytes"] / GB)
        if row["ratio"] > WIDEST:
            slow.append(f"{row['way']} {row['ratio']:.1f}, {at[1]:.1f} GB")
            continue
        if row["way"] == CONTROL or way.budget is not None:
            budgets.append(at)
        is_ours = way.codes is not None or way.policy is not None
        color = OURS if is_ours else CONVERTED if way.is_converted else PYTORCH
        axis.plot(
            *at,
            marker="^" if way.is_checkpointed else "o",
            color=color,
            markerfacecolor=color if way.is_compiled else "none",
            linestyle="",
        )
        place = {"textcoords": "offset points", "fontsize": 7, "color": color}
        below = is_ours and len(axis.texts) % 2  # so that labels of neighbours lie apart
        axis.annotate(short(row["way"]), at, (4, -9 if below else 3), **place)
    axis.plot(*zip(*sorted(budgets), strict=True), color=PYTORCH, linewidth=0.8, zorder=0)
    label = next(iter(rows.values()))["label"]
    axis.set(title=label, xlabel="time of a step, compiled = 1", ylabel=f"{memory} GB")
    axis.margins(x=0.12)
    axis.set_ylim(0, 1.12 * max(row[f"{memory}_bytes"] for row in rows.values()) / GB)
    if slow:
        axis.text(0.98, 0.02, "slower: " + "; ".join(slow), fontsize=7, ha="right",
                  transform=axis.transAxes)  # fmt: skip


def short(way: str) -> str:
    """Return a way's name without words that marker and colour express."""
    said = "eager|converted|checkpointed|compressed|codes|budget|policy"
    text = re.sub(rf"{said}|[{{}}\":]", "", way).replace("0.3333", "1/3")
    return re.sub(r",?\s+", " ", text).strip(" ,")


def tables(abouts: Sequence[Line], panels: Panels) -> str:
    """Return a line about the machines, and a table for each model."""
    where = dict.fromkeys(
        f"{about['gpu']}, PyTorch {about.get('torch')}, {about['date']}, commit {about['commit']}"
        for about in abouts
    )
    return "\n\n".join(["; ".join(where) + ".", *map(panel_table, panels.values())])


def filled(page: str, text: str) -> str:
    """Return a page with `text` between its marks; ValueError if it has not exactly one pair."""
    place = "(<!-- measured: memory_map -->\n).*?(<!-- end -->)"
    page, n = re.subn(
        place, lambda result: f"{result[1]}{text}\n{result[2]}", page, flags=re.DOTALL
    )
    if n != 1:
        raise ValueError(f"expected one '<!-- measured: memory_map -->' with an end, not {n}")
    return page


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--models", multiple=True, type=click.Choice(list(MODELS)))
@click.option("--picture", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--page", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(
    files: tuple[Path, ...], models: tuple[str, ...], picture: Path | None, page: Path | None
) -> None:
    """Write the tables and the picture."""
    abouts, panels = read(files)
    panels = {model: panels[model] for model in panels if model in (models or panels)}
    if picture:
        draw(panels, picture)
        draw(panels, picture.with_stem(f"{picture.stem}_held"), "held")
    text = tables(abouts, panels)
    if page is None:
        click.echo("\n\n".join((text, comparison(panels), shares(panels))))
    else:
        page.write_text(filled(page.read_text("utf-8"), text), "utf-8")


if __name__ == "__main__":
    main()
