# SPDX-License-Identifier: MIT
"""Trainings through PyTorch's front door beside plain PyTorch: memory, time of a step, losses.

    python scripts/front_door_training.py --out FOLDER              (one GPU; six minutes at most)
    python scripts/front_door_training.py --model gpt --method plain --method ours --out FOLDER
    python scripts/front_door_training.py --tiny --out FOLDER       (small sizes, on the CPU too)

All are bfloat16 by autocast, with parameters of float32 and AdamW. `ours` is `convert`, the loss
in place and `cto.torch.AdamW`; to it come compressed activations, moments of 8 bits, and in `small`
both with a chunked loss; `-captured` replays whole steps from a CUDA graph, `ours-compiled` goes
through torch.compile. Methods that end in `-equal` keep as many blocks plain as fit in the peak
of `ours-compressed`. What is over its time, or missing, is said in its row. FOLDER gets
front_door_training.json, written after each row, and front_door_training.md.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import math
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import click
import torch
from front_door_models import TASKS, Task
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from train_losses import last
from train_torch import about, timed_steps

import cupy_training_ops as cto

GB = 1e9
LEARNING_RATE = 3e-4
SKIPPED: tuple[str, ...] = ()  # modules that stay PyTorch's
WARM_UP, TIMED = 5, 20
SLOW = (2, 5)  # the same where a step takes a second
PEERS = ("torchvision", "transformers")
Row = dict[str, Any]
Around = Callable[[nn.Module], None]  # changes how a block is run


def checkpointed(block: nn.Module) -> None:
    """Run a block once more in the backward pass."""
    forward = block.forward

    def again(*given: Any, **named: Any) -> Any:
        return checkpoint(forward, *given, use_reentrant=False, **named)

    block.forward = again


def offloaded(block: nn.Module) -> None:
    """Keep what a block saves on the host."""
    forward = block.forward

    def on_cpu(*given: Any, **named: Any) -> Any:
        with torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available()):
            return forward(*given, **named)

    block.forward = on_cpu


class Method(NamedTuple):
    """A way to train."""

    is_ours: bool = False
    is_compiled: bool = False
    is_compressed: bool = False
    is_chunked: bool = False  # the loss of a language model
    state: str | None = None  # of the optimizer
    around: Around | None = None  # all blocks, or as many as a peak asks for
    is_equal: bool = False
    is_captured: bool = False  # the whole step, replayed from a CUDA graph
    has_losses: bool = False  # of several seeds
    steps: tuple[int, int] = (WARM_UP, TIMED)


METHODS = {  # compiling takes longest, and comes last
    "plain": Method(has_losses=True),
    "checkpointing": Method(around=checkpointed),
    "save_on_cpu": Method(around=offloaded, steps=SLOW),
    "ours": Method(is_ours=True),
    "ours-compressed": Method(is_ours=True, is_compressed=True, has_losses=True),
    "ours-8bit": Method(is_ours=True, state="8bit"),
    "small": Method(True, is_compressed=True, is_chunked=True, state="8bit", has_losses=True),
    "checkpointing-equal": Method(around=checkpointed, is_equal=True),
    "save_on_cpu-equal": Method(around=offloaded, is_equal=True, steps=SLOW),
    "plain-captured": Method(is_captured=True),
    "ours-captured": Method(is_ours=True, is_captured=True),
    "ours-compressed-captured": Method(is_ours=True, is_compressed=True, is_captured=True),
    "compiled": Method(is_compiled=True),
    "ours-compiled": Method(is_ours=True, is_compiled=True),
}
ALL_OF = {"checkpointing-equal": "checkpointing", "save_on_cpu-equal": "save_on_cpu"}


class Training:
    """One model, trained one way."""

    def __init__(
        self, task: Task, method: Method, device: torch.device, seed: int, n_around: int
    ) -> None:
        torch.manual_seed(seed)
        self.task, self.method, self.device = task, method, device
        with device:
            self.model = task.make()
        self.x, self.target = (each.to(device) for each in task.data(seed))
        self.said = str(cto.torch.convert(self.model, skip=SKIPPED)) if method.is_ours else ""
        for block in list(task.blocks(self.model))[:n_around]:
            method.around(block)  # type: ignore[misc]
        self.optimizer = self._optimizer()
        self.loss = torch.compile(self._loss) if method.is_compiled else self._loss
        # One for all steps: a captured one compresses what those before it found good enough.
        is_kept = method.is_compressed
        self.kept: contextlib.AbstractContextManager[Any] = (
            cto.torch.compressed_activations() if is_kept else contextlib.nullcontext()
        )
        self.graph: torch.cuda.CUDAGraph | None = None

    def _optimizer(self) -> torch.optim.Optimizer:
        parameters = self.model.parameters()
        if self.method.is_ours:
            return cto.torch.AdamW(parameters, lr=LEARNING_RATE, state=self.method.state)
        is_captured = self.method.is_captured
        return torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True, capturable=is_captured)

    def step(self) -> Tensor:
        """Forward, backward and update; the loss before it."""
        if not self.method.is_captured:
            return self._step()
        if self.graph is None:
            self.graph, self.captured = captured(self._step)
        self.graph.replay()
        return self.captured.clone()

    def _step(self) -> Tensor:
        with self.kept, torch.autocast(self.device.type, torch.bfloat16):
            loss = self.loss()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def _loss(self) -> Tensor:
        if self.method.is_chunked and self.task.head is not None:
            features, weight = self.task.head(self.model, self.x)
            target = self.target.view(features.shape[:-1])
            return cto.torch.functional.linear_cross_entropy(features, weight, target)
        scores = self.task.scores(self.model, self.x)
        if self.method.is_ours:
            return cto.torch.functional.cross_entropy(scores, self.target, inplace=True)
        return functional.cross_entropy(scores, self.target)


def captured(step: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A graph of a step, behind some that were called, and what it writes its result to."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    return graph, result


class Settings(NamedTuple):
    """What all rows share."""

    device: torch.device
    steps: int  # of which losses are compared
    seeds: int
    is_tiny: bool


def measured(task: Task, method: Method, settings: Settings, n_around: int) -> Row:
    """A row: memory and time of a first training, and losses, where they are asked for, of more."""
    training = Training(task, method, settings.device, 0, n_around)
    warm_up, timed = (1, 2) if settings.is_tiny else method.steps
    losses = [training.step() for _ in range(warm_up)]
    if not method.is_captured:  # whose memory is that of the capture
        _reset_peak(settings.device)
    more, times = timed_steps(training, timed)
    peak = torch.cuda.max_memory_allocated() if settings.device.type == "cuda" else 0
    row = {"step_ms": statistics.median(times), "peak_bytes": peak, "said": training.said}
    losses += more
    if method.has_losses:
        losses += [training.step() for _ in range(settings.steps - len(losses))]
    found = [_numbers(losses[: settings.steps])]
    del training
    for seed in range(1, settings.seeds if method.has_losses else 1):
        training = Training(task, method, settings.device, seed, n_around)
        found.append(_numbers([training.step() for _ in range(settings.steps)]))
    return {**row, "blocks": n_around, "losses": found}


def _numbers(losses: Sequence[Tensor]) -> list[float]:
    return torch.stack(list(losses)).tolist()


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()


def n_around(task: Task, name: str, rows: Sequence[Row]) -> int:
    """How many blocks a method changes: so many that its peak is that of ours, or all."""
    method = METHODS[name]
    with torch.device("meta"):
        n = len(task.blocks(task.make()))
    if method.around is None or not method.is_equal:
        return n if method.around else 0
    peaks = {row["method"]: row["peak_bytes"] for row in rows if row.get("peak_bytes")}
    try:
        plain, ours, whole = (peaks[each] for each in ("plain", "ours-compressed", ALL_OF[name]))
    except KeyError as error:
        raise LookupError(f"no peak of {error.args[0]} in this run") from None
    return min(max(math.ceil(n * (plain - ours) / max(plain - whole, 1)), 0), n)


# ---- one row after another -----------------------------------------------------------------------


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError where it takes longer."""

    def late(_: int, __: FrameType | None) -> None:
        raise TimeoutError(f"longer than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def row_of(model: str, name: str, settings: Settings, before: Sequence[Row], limit: float) -> Row:
    """What was measured, or why not; the others are measured all the same."""
    row: Row = {"model": model, "method": name}
    start = time.perf_counter()
    try:
        if limit < 1:
            raise TimeoutError("not begun: no time is left")
        with limited(limit):
            task = TASKS[model](settings.is_tiny)
            row["label"] = task.label
            same = [each for each in before if each["model"] == model]
            around = n_around(task, name, same)
            row |= measured(task, METHODS[name], settings, around)
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
    row["seconds"] = time.perf_counter() - start
    _clean(settings.device)
    click.echo(f"{model} {name}: {row['seconds']:.1f} s {row.get('error', '')}", err=True)
    return row


def _clean(device: torch.device) -> None:
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def table(rows: Sequence[Row]) -> str:
    """Rows of Markdown, those of a model together."""
    lines = [
        "| model | method | peak GB | step ms | of plain | last losses | off plain | its range |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model in dict.fromkeys(row["model"] for row in rows):
        some = [row for row in rows if row["model"] == model]
        plain = next((r for r in some if r["method"] == "plain" and "error" not in r), None)
        lines += [_line(row, plain) for row in some]
    return "\n".join(lines)


def _line(row: Row, plain: Row | None) -> str:
    name = f"| {row.get('label', row['model'])} | {row['method']}"
    if "error" in row:
        return f"{name} | {row['error']} | | | | | |"
    ratio = f"{row['step_ms'] / plain['step_ms']:.2f}" if plain else ""
    numbers = f"{row['peak_bytes'] / GB:.2f} | {row['step_ms']:.1f} | {ratio}"
    return f"{name} | {numbers} | {' | '.join(_compared(row['losses'], plain))} |"


def _compared(losses: list[list[float]], plain: Row | None) -> tuple[str, str, str]:
    """Ends of each seed, their largest distance from plain, and the plain ones' range."""
    if len(losses) < 2 or plain is None:
        return "", "", ""
    ends, expected = ([last(each) for each in found] for found in (losses, plain["losses"]))
    off = max(abs(a - b) for a, b in zip(ends, expected, strict=True))
    each = ", ".join(f"{end:.4f}" for end in ends)
    return each, f"{off:.4f}", f"{max(expected) - min(expected):.4f}"


def surroundings(device: torch.device) -> dict[str, Any]:
    """Where and with what this was measured, and what was missing."""
    found: dict[str, Any] = about(device)
    for name in PEERS:
        try:
            found[name] = importlib.import_module(name).__version__
        except ImportError:
            found[name] = "missing"
    return found


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--tiny", is_flag=True, help="Small sizes, for a CPU.")
@click.option("--model", "models", multiple=True, type=click.Choice(list(TASKS)))
@click.option("--method", "methods", multiple=True, type=click.Choice(list(METHODS)))
@click.option("--steps", default=100, show_default=True, type=click.IntRange(3))
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--limit", default=60.0, show_default=True, help="Seconds of one row at most.")
@click.option("--whole", default=340.0, show_default=True, help="Seconds of all rows at most.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path())
def main(
    tiny: bool,
    models: tuple[str, ...],
    methods: tuple[str, ...],
    steps: int,
    seeds: int,
    limit: float,
    whole: float,
    out: Path,
) -> None:
    """Measure method by method, so that what time is short for is the last of all models."""
    if not tiny and not torch.cuda.is_available():
        raise click.UsageError("expected a GPU; without one there is --tiny")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    settings, end = Settings(device, steps, seeds, tiny), time.perf_counter() + whole
    chosen = [name for name in METHODS if name in (methods or METHODS)]
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"about": surroundings(device), "rows": []}
    for name in chosen:
        for model in models or TASKS:
            left = min(limit, end - time.perf_counter())
            found["rows"].append(row_of(model, name, settings, found["rows"], left))
            (out / "front_door_training.json").write_text(json.dumps(found) + "\n")
    text = f"{found['about']}\n\n{table(found['rows'])}\n"
    (out / "front_door_training.md").write_text(text)
    click.echo(text, nl=False)


if __name__ == "__main__":
    main()
