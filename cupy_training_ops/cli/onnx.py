# SPDX-License-Identifier: MIT
"""`onnx`: lists what runs the nodes of ONNX Runtime's training artifacts, and trains some steps.

In all functions `session` is a TrainingSession of artifacts, `graph` a model's, and `xp` NumPy or
CuPy, where it computes.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from ..onnx import TrainingSession
from ..onnx.artifacts import OPTIMIZERS, make_artifacts
from ..onnx.bodies import with_bodies
from ..onnx.checkpoint import FILES
from ..onnx.checks import check_sequences, check_types
from ..onnx.control import runner as control_runner
from ..onnx.graph import Graph, Node, Value
from ..onnx.losses import LOSSES
from ..onnx.models import read_model
from ..onnx.passes import prepare
from ..onnx.program import node_runners
from ..onnx.runner import Runner
from .errors import CHECK_FAILED, Failure, reading
from .inputs import file_type, open_arrays
from .machine import array_library, computing, provider_option
from .terminal import align, progress, say

MOST_SHOWN = 10  # losses in the table of steps
Batch = dict[str, Any]  # input's name to its array


class _WithDefault(click.Group):
    """A group whose first command runs if none is named: `onnx artifacts/`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the first command's name ahead of arguments that begin with no command."""
        if args and args[0] not in {*self.commands, "--help"}:
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


@click.group("onnx", cls=_WithDefault)
def onnx() -> None:
    """Training graphs: list what runs them, train some steps, make them of a model.

    `onnx ARTIFACTS` is `onnx run ARTIFACTS`.
    """


@onnx.command("run")
@click.argument("artifacts", type=click.Path())
@click.option("--steps", type=click.IntRange(1), help="Train so many steps.")
@click.option("--data", type=file_type, metavar="FILE", help="An array of examples for each input.")
@click.option("--batch", type=click.IntRange(1), default=8, show_default=True, help="Examples.")
@click.option("--lr", type=float, default=1e-3, show_default=True, help="The learning rate.")
@click.option("--prefix", default="", help="Of the artifacts' file names.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of made data.")
@click.option("--graph", is_flag=True, help="Capture steps in CUDA graphs, and replay them.")
@provider_option
def run(
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
    if data is None:
        batches = _random_batches(session, batch, seed)
    else:
        batches = _batches_of_file(session, data, batch)
    _train(session, batches, steps)


@onnx.command("make")
@click.argument("model", type=click.Path(exists=True, dir_okay=False))
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--loss", required=True, help=f"{', '.join(LOSSES)}, or the name of an output.")
@click.option("--trainable", multiple=True, help="A parameter that is trained; all without this.")
@click.option("--frozen", multiple=True, help="A parameter that is not trained.")
@click.option("--tied", multiple=True, help="One parameter that has several names by Identity.")
@click.option(
    "--optimizer", type=click.Choice(list(OPTIMIZERS)), default="AdamW", show_default=True
)
@click.option("--weight-decay", type=float, help="Of AdamW; 0.01 without this.")
@click.option("--clip-norm", type=float, help="The largest norm of all gradients together.")
@click.option("--prefix", default="", help="Of the artifacts' file names.")
def make(
    model: str,
    folder: str,
    loss: str,
    trainable: tuple[str, ...],
    frozen: tuple[str, ...],
    tied: tuple[str, ...],
    optimizer: Any,
    weight_decay: float | None,
    clip_norm: float | None,
    prefix: str,
) -> None:
    """Make training artifacts of an inference model.

    FOLDER gets the files that ONNX Runtime's generate_artifacts writes: `onnx FOLDER` lists and
    trains them.
    """
    numbers = {} if weight_decay is None else {"weight_decay": weight_decay}
    with reading(model):
        make_artifacts(
            model,
            folder,
            loss=loss,
            trainable=trainable or None,
            frozen=frozen,
            tied=tied or None,
            optimizer=optimizer,
            clip_norm=clip_norm,
            prefix=prefix,
            **numbers,
        )
    say(f"{folder}: {', '.join(prefix + name for name in FILES)}")


def _models(path: Path, prefix: str) -> list[Path]:
    """Return [path] for a file; of a folder the models of training artifacts that it has.

    prefix: of the artifacts' file names.
    """
    with reading(str(path)):
        path.stat()
    if not path.is_dir():
        return [path]
    files = [path / f"{prefix}{name}" for name in FILES if name.endswith(".onnx")]
    models = [file for file in files if file.exists()]
    if not models:
        raise Failure(f"{path}: expected {', '.join(file.name for file in files)}")
    return models


# ---- what runs the nodes -------------------------------------------------------------------------


def _list(model: Path, with_table: bool) -> bool:
    """Print a model's number of nodes and those that cannot be run; return True if all can.

    A table of operators is printed with_table, and where a node cannot be run.
    """
    with reading(str(model)):
        graph, _, problems = read_model(model)
    graph = prepare(with_bodies(graph, problems), problems, None)
    runners = node_runners(graph, problems, own=control_runner)
    check_types(graph, runners, problems)
    check_sequences(graph, problems)
    n_nodes = len(graph.nodes)
    say(f"{model}: {n_nodes} node{'s' * (n_nodes != 1)}")
    if with_table or problems.lines:
        counts = Counter(_kind(node, runners.get(i)) for i, node in enumerate(graph.nodes))
        rows = [(*kind, str(n)) for kind, n in sorted(counts.items())]
        for line in align([("operator", "domain", "run by", "nodes"), *rows], left=3):
            say(f"  {line}")
    for problem in problems.lines:
        say(f"  cannot be run: {problem}")
    return not problems.lines


def _kind(node: Node, runner: Runner | None) -> tuple[str, str, str]:
    """Return (operator, domain, what runs it) of a node.

    The latter is "cto.NAME", "NumPy or CuPy", or "-" for no runner.
    """
    by = "-" if runner is None else "NumPy or CuPy"
    if runner is not None and runner.op is not None:
        by = f"cto.{runner.op.function_name}"
    return node.op_type, node.domain or "ai.onnx", by


# ---- steps ---------------------------------------------------------------------------------------


def _train(session: TrainingSession, batches: Iterator[Batch], steps: int) -> None:
    """Train so many steps of a session, one a batch; print losses and the median time of a step."""
    losses, times, numbers = [], [], range(1, steps + 1)
    with progress(numbers, "steps", str, steps) as shown:
        for _ in shown:
            start = time.perf_counter()
            losses.append(float(session.step(**next(batches))))  # waits for the device
            times.append(time.perf_counter() - start)
    every = -(-steps // MOST_SHOWN)
    rows = [(str(i), f"{losses[i - 1]:.6g}") for i in numbers if i % every == 0 or i in (1, steps)]
    for line in align([("step", "loss"), *rows], left=0):
        click.echo(line)
    median = 1e3 * statistics.median(times)
    click.echo(f"{steps} steps on {computing(session.xp)}, {median:.3g} ms each (median)")
    if not np.isfinite(losses[-1]):
        raise Failure("the loss is no finite number: try another --lr")


# ---- batches -------------------------------------------------------------------------------------


def _random_batches(session: TrainingSession, size: int, seed: int) -> Iterator[Batch]:
    """Yield one batch of `size` examples for ever, so that a loss can fall.

    Floats are normal numbers, integers indices of rows of an embedding. The second of two inputs is
    labels, if there is an eval model: they fit its scores.
    """
    rng = np.random.default_rng(seed)
    graph = session.graph
    items = {item.name: item for item in graph.inputs}
    labels = session.inputs[1:] if session.evaluates and len(session.inputs) == 2 else ()
    batch = {
        n: _random_input(rng, graph, items[n], size) for n in session.inputs if n not in labels
    }
    for name in labels:
        scores = session.eval(**batch)
        batch[name] = _labels(rng, items[name], scores[0] if isinstance(scores, tuple) else scores)
    return itertools.repeat({name: session.xp.asarray(array) for name, array in batch.items()})


def _random_input(rng: Any, graph: Graph, item: Value, size: int) -> Any:
    """Return random numbers for the input `item` of a graph; its unknown extents are `size`."""
    shape = tuple(extent if isinstance(extent, int) else size for extent in item.shape or ())
    if item.dtype is not None and item.dtype.kind in "iu":
        return rng.integers(0, _rows(graph, item.name), shape).astype(item.dtype)
    return rng.standard_normal(shape).astype(item.dtype or np.float32)


def _rows(graph: Graph, name: str) -> int:
    """Return the number of rows that an input, indices of a Gather, selects from; 2 if unknown."""
    shapes = {item.name: item.shape for item in graph.inputs}
    for node in graph.nodes:
        if node.op_type == "Gather" and node.inputs[1] == name:
            shape, axis = shapes.get(node.inputs[0]) or (), int(node.attributes.get("axis", 0))
            extent = shape[axis] if -len(shape) <= axis < len(shape) else None
            return extent if isinstance(extent, int) and extent else 2
    return 2


def _labels(rng: Any, item: Value, scores: Any) -> Any:
    """Return random labels for an input `item`: classes for integers, else numbers in [0, 1).

    Classes for scores of shape (N, C, ...) are below C, of shape (N, ...); others have the scores'.
    """
    if item.dtype is not None and item.dtype.kind in "iu" and scores.ndim > 1:
        shape = (scores.shape[0], *scores.shape[2:])
        return rng.integers(0, scores.shape[1], shape).astype(item.dtype)
    return rng.random(scores.shape).astype(item.dtype or np.float32)


def _batches_of_file(session: TrainingSession, file: str, size: int) -> Iterator[Batch]:
    """Yield batches of `size` examples of a file's arrays, in order, from the first on again.

    Each input of the training model needs an array of its name; the first axis is examples.
    """
    with open_arrays(file) as members:
        arrays = {m.name: m.read(raw=False) for m in members if m.name in session.inputs}
    missing = [name for name in session.inputs if name not in arrays]
    if missing:
        raise Failure(f"{file}: no array {missing[0]!r}, which the training model takes")
    lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    n = min(lengths.values())
    if not n or any(length % n for length in lengths.values()):
        got = ", ".join(f"{length} of {name}" for name, length in lengths.items())
        raise Failure(f"{file}: expected as many examples of each input, got {got}")
    return _slices(session.xp, arrays, n, min(size, n))


def _slices(xp: Any, arrays: Mapping[str, Any], n: int, size: int) -> Iterator[Batch]:
    """Yield batches of `size` of the n examples for ever; the last, smaller one is left out.

    An array may have several rows for each example, such as tokens: len(array) is a multiple of n.
    """
    for first in itertools.cycle(range(0, n - size + 1, size)):
        yield {
            name: xp.asarray(array[len(array) // n * first : len(array) // n * (first + size)])
            for name, array in arrays.items()
        }
