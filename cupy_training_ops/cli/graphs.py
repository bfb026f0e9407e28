# SPDX-License-Identifier: MIT
"""`onnx`: what runs the graphs of ONNX Runtime's training artifacts, and some steps of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np

from ..onnx import TrainingSession, listing
from ..onnx.training import FILES
from . import trainee
from .errors import CHECK_FAILED, Failure, reading
from .inputs import file_type
from .machine import computing
from .printable import say
from .progress import progress
from .provider import array_library, provider_option
from .table import aligned

MOST_SHOWN = 10  # losses


@click.command("onnx")
@click.argument("artifacts", type=click.Path())
@click.option("--steps", type=click.IntRange(1), help="Train so many steps.")
@click.option("--data", type=file_type, metavar="FILE", help="An array of examples for each input.")
@click.option("--batch", type=click.IntRange(1), default=8, show_default=True, help="Examples.")
@click.option("--lr", type=float, default=1e-3, show_default=True, help="The learning rate.")
@click.option("--prefix", default="", help="Of the artifacts' file names.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of made data.")
@click.option("--graph", is_flag=True, help="Capture steps in CUDA graphs, and replay them.")
@provider_option
def onnx(
    artifacts: str,
    steps: int | None,
    data: str | None,
    batch: int,
    lr: float,
    prefix: str,
    seed: int,
    graph: bool,
    provider: str,
) -> None:
    """List what runs the nodes of training artifacts, and train a few steps.

    ARTIFACTS is the folder that ONNX Runtime's generate_artifacts wrote, or one model. Without
    --data a batch is made, of random numbers and labels. Exit code 1 if nothing runs a node.
    """
    models = _models(Path(artifacts), prefix)
    if not all([_list(model, with_table=steps is None) for model in models]):
        raise click.exceptions.Exit(CHECK_FAILED)
    if steps is None:
        return
    xp = array_library(provider)
    session = TrainingSession(artifacts, xp, prefix=prefix, seed=seed, graph=graph)
    session.lr = lr
    made = trainee.made(session, batch, seed) if data is None else None
    _train(session, made or trainee.given(session, str(data), batch), steps)


def _models(path: Path, prefix: str) -> list[Path]:
    """The models of a folder that are there, or the one."""
    with reading(str(path)):
        path.stat()
    if not path.is_dir():
        return [path]
    there = [path / f"{prefix}{name}" for name in FILES if name.endswith(".onnx")]
    found = [file for file in there if file.exists()]
    if not found:
        raise Failure(f"{path}: expected {', '.join(file.name for file in there)}")
    return found


def _list(model: Path, with_table: bool) -> bool:
    """Print what runs a model's nodes, the table where something does not; whether all are run."""
    with reading(str(model)):
        found = listing.listed(model)
    say(f"{model}: {found.n_nodes} node{'s' * (found.n_nodes != 1)}")
    rows = [(kind.op_type, kind.domain, kind.by, str(kind.n_nodes)) for kind in found.kinds]
    if with_table or found.problems:
        for line in aligned([("operator", "domain", "run by", "nodes"), *rows], left=3):
            say(f"  {line}")
    for problem in found.problems:
        say(f"  cannot be run: {problem}")
    return not found.problems


def _train(session: TrainingSession, batches: Iterator[trainee.Batch], steps: int) -> None:
    losses, times, numbers = [], [], range(1, steps + 1)
    with progress(numbers, "steps", str, steps) as shown:
        for _ in shown:
            start = time.perf_counter()
            losses.append(float(session.step(**next(batches))))  # waits for the device
            times.append(time.perf_counter() - start)
    every = -(-steps // MOST_SHOWN)
    rows = [(str(i), f"{losses[i - 1]:.6g}") for i in numbers if i % every == 0 or i in (1, steps)]
    for line in aligned([("step", "loss"), *rows], left=0):
        click.echo(line)
    median = 1e3 * statistics.median(times)
    click.echo(f"{steps} steps on {computing(session.xp)}, {median:.3g} ms each (median)")
    if not np.isfinite(losses[-1]):
        raise Failure("the loss is no finite number: try another --lr")
