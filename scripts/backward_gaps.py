# SPDX-License-Identifier: MIT
"""Where the host's time goes in a backward pass: between the beginnings of its nodes.

    python scripts/backward_gaps.py --model gpt --method plain --method ours
    python scripts/backward_gaps.py --model gpt --tiny        (on a CPU, too)

A node that waits for the device, or for anything else, has a long gap behind it. Trains as
`front_door_training.py` does; of some steps the quickest backward pass is shown, the longest gaps
of a kind of node first. Looking at a node takes a few microseconds.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import click
import front_door_training as training
import torch
from front_door_models import TASKS

Stamp = tuple[float, str]  # when a node began, and its name
SHOWN = 12


def nodes(root: Any) -> Iterator[Any]:
    """All of a graph, each once."""
    known, left = {root}, [root]
    while left:
        yield (node := left.pop())
        found = {before for before, _ in node.next_functions if before is not None}
        left += found - known
        known |= found


def stamps(made: training.Training) -> list[Stamp]:
    """Of one step's backward pass, with its end as the last."""
    found: list[Stamp] = []

    def watch(node: Any) -> Any:
        name = node.name()
        return node.register_prehook(lambda _: found.append((time.perf_counter(), name)))

    with made.kept, torch.autocast(made.device.type, torch.bfloat16):
        loss = made.loss()
    hooks = [watch(node) for node in nodes(loss.grad_fn)]
    found.append((time.perf_counter(), "before the first"))
    loss.backward()
    found.append((time.perf_counter(), "the end"))
    for hook in hooks:
        hook.remove()
    made.optimizer.step()
    made.optimizer.zero_grad(set_to_none=True)
    return found


def rows(found: list[Stamp]) -> list[tuple[str, int, float, float]]:
    """Name, how many, milliseconds in all, of the longest; longest sums first."""
    gaps = defaultdict[str, list[float]](list)
    for (start, name), (end, _) in itertools.pairwise(found):
        gaps[name].append((end - start) * 1e3)
    each = [(name, len(some), sum(some), max(some)) for name, some in gaps.items()]
    return sorted(each, key=lambda row: -row[2])


def quickest(made: training.Training, steps: int) -> list[Stamp]:
    """Of some steps, each of which begins when the device is done."""
    every = []
    for _ in range(steps):
        if made.device.type == "cuda":
            torch.cuda.synchronize()
        every.append(stamps(made))
    return min(every, key=lambda found: found[-1][0] - found[0][0])


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--model", type=click.Choice(list(TASKS)), default="gpt", show_default=True)
@click.option("--method", "methods", multiple=True, default=["plain", "ours"], show_default=True)
@click.option("--steps", default=10, show_default=True, type=click.IntRange(1))
@click.option("--tiny", is_flag=True, help="Small sizes, for a CPU.")
def main(model: str, methods: tuple[str, ...], steps: int, tiny: bool) -> None:
    """Print a table for each method."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for method in methods:
        task = TASKS[model](tiny)
        made = training.Training(task, training.METHODS[method], device, 0, 0)
        found = quickest(made, steps)
        whole = (found[-1][0] - found[0][0]) * 1e3
        click.echo(f"{task.label}, {method}: {whole:.2f} ms, {len(found)} nodes\n")
        click.echo("| node | how many | ms in all | the longest |\n|---|---|---|---|")
        for name, n, total, most in rows(found)[:SHOWN]:
            click.echo(f"| {name} | {n} | {total:.3f} | {most:.3f} |")
        click.echo()


if __name__ == "__main__":
    main()
