# SPDX-License-Identifier: MIT
"""What compressed activations save a training in PyTorch, and what they cost, on made data.

    python scripts/train_torch.py --all --out FOLDER      (a GPU with 48 GB; under four minutes)
    python scripts/train_torch.py --quick --out FOLDER    (small sizes, on the CPU too)
    python scripts/train_torch.py --replot --out FOLDER   (from the JSON that is there)

Each model is trained plainly, with each policy, with activation checkpointing of every block and
with PyTorch's save_on_cpu, from the same start on the same data. FOLDER gets train_torch.json,
train_torch.md with the table and train_torch.png with the memory over a step and the losses.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import itertools
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import click
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch_models import Model, models, plainly

import cupy_training_ops as cto
from cupy_training_ops.torch.coding import stream_of

POLICIES = ("default", "wide", "plain_msfp15", "small", "lossless")
CHECKPOINTING, ON_CPU, PLAIN = "checkpointing", "save_on_cpu", "plain"
METHODS = (PLAIN, *POLICIES, CHECKPOINTING, ON_CPU)
WARM_UP, TIMED = 10, 20  # steps
SLOW = {ON_CPU: (2, 5)}  # the same where a step takes a second
CURVES = ("plain", "default", "wide")
WORDS = {  # what the picture says of a method beside its name
    "default": "8 or 16 bits, guarded",
    "wide": "more of it in 8 bits, guarded",
    "plain_msfp15": "8 bits, not guarded",
    "small": "fewest bits, not guarded",
    "lossless": "zeros left out",
    CHECKPOINTING: "every block",
}
GB = 1e9


class Training:
    """One model with one way to keep its activations."""

    def __init__(self, model: Model, method: str, device: torch.device, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.method, self.device, self.autocast = method, device, model.autocast
        self.x, self.target = model.data(device)
        with device:
            self.model = model.make()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)
        self.run = checkpointed if method == CHECKPOINTING else plainly
        self.activations = None
        if method in POLICIES:
            self.activations = cto.torch.compressed_activations(method)
        self.held = 0

    def step(self) -> Tensor:
        """Forward, backward and update; the loss before it."""
        with self._keeping(), torch.autocast(self.device.type, torch.bfloat16, self.autocast):
            scores = self.model(self.x, self.run)
            loss = functional.cross_entropy(scores, self.target)
        self.held = allocated(self.device)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def counted(self) -> dict[str, Any] | None:
        """What one step keeps, by the hooks' own report."""
        if self.activations is None:
            return None
        usual, self.activations = self.activations, cto.torch.compressed_activations(self.method)
        self.step()
        report, self.activations = self.activations.report(), usual
        return report

    def _keeping(self) -> contextlib.AbstractContextManager[Any]:
        if self.activations is not None:
            return self.activations
        if self.method == ON_CPU:
            return torch.autograd.graph.save_on_cpu(pin_memory=self.device.type == "cuda")
        return contextlib.nullcontext()


def checkpointed(block: nn.Module, x: Tensor) -> Tensor:
    """Run a block that is run once more in the backward pass."""
    return checkpoint(block, x, use_reentrant=False)


def allocated(device: torch.device) -> int:
    """Bytes of tensors on the GPU; 0 on the host, where nobody counts."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def measured(model: Model, method: str, device: torch.device, quick: bool) -> dict[str, Any]:
    """Memory, time and losses of a training."""
    training = Training(model, method, device)
    warm_up, timed = (1, 2) if quick else SLOW.get(method, (WARM_UP, TIMED))
    losses = [training.step() for _ in range(warm_up)]
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = allocated(device)
    more, times = timed_steps(training, timed)
    losses += more
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    return {
        "method": method,
        "steps": timed,
        "step_ms": statistics.median(times),
        "step_ms_p20": percentile(times, 0.2),
        "step_ms_p80": percentile(times, 0.8),
        "held_bytes": training.held - before,
        "peak_bytes": peak,
        "losses": [loss.item() for loss in losses],
        "report": training.counted(),
        "memory": traced(training) if device.type == "cuda" else [],
    }


def timed_steps(training: Training, n: int) -> tuple[list[Tensor], list[float]]:
    """Losses, and milliseconds from the end of a step to the end of the next."""
    if training.device.type != "cuda":
        ends, losses = [time.perf_counter()], []
        for _ in range(n):
            losses.append(training.step())
            ends.append(time.perf_counter())
        return losses, [(b - a) * 1e3 for a, b in itertools.pairwise(ends)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(n + 1)]
    events[0].record()
    losses = []
    for event in events[1:]:
        losses.append(training.step())
        event.record()
    torch.cuda.synchronize()
    return losses, [a.elapsed_time(b) for a, b in itertools.pairwise(events)]


def percentile(values: list[float], share: float) -> float:
    """The value that so many are not above."""
    return sorted(values)[int(share * (len(values) - 1))]


def traced(training: Training) -> list[int]:
    """Allocated bytes after each module's forward and each parameter's gradient of one step."""
    found: list[int] = []

    def note(*_: object) -> None:
        found.append(allocated(training.device))

    with contextlib.ExitStack() as stack:
        for module in training.model.modules():
            stack.callback(module.register_forward_hook(note).remove)
        for parameter in training.model.parameters():
            stack.callback(parameter.register_post_accumulate_grad_hook(note).remove)
        training.step()
    return found


# ---- the host's time of a hook ------------------------------------------------------------------


def host_time(device: torch.device, n: int) -> dict[str, float]:
    """Microseconds of a pack and an unpack, of two launches alone, and of PyTorch's add.

    Tensors are just large enough to be compressed, so that the device never is what is waited for.
    """
    activations = cto.torch.compressed_activations("plain_msfp15")
    source = torch.randn(1 << 16, device=device, requires_grad=True)
    launch = empty_launch(source)
    rows = [of_one_tensor(activations, source * 2, launch) for _ in range(n)][n // 10 :]
    pack, unpack, launches, add = (statistics.median(column) for column in zip(*rows, strict=True))
    both = statistics.median(row[0] + row[1] for row in rows)
    without = statistics.median(row[0] + row[1] - row[2] for row in rows)
    return {
        "pack_us": pack,
        "unpack_us": unpack,
        "pack_and_unpack_us": both,
        "launches_us": launches,
        "without_launches_us": without,
        "add_us": add,
    }


def empty_launch(x: Tensor) -> Callable[[], None]:
    """The bare launch of a kernel that does nothing, with a codec's arguments."""
    if not x.is_cuda:
        return lambda: None
    import cupy
    import numpy as np

    code = 'extern "C" __global__ void nothing(char*, char*, long long, long long, bool, bool) {}'
    kernel = cupy.RawModule(code=code).get_function("nothing").kernel
    address, stream = np.uint64(x.data_ptr()), stream_of(torch.cuda.current_stream().cuda_stream)
    sizes = (np.int64(1), np.int64(1), np.bool_(True), np.bool_(True))
    return lambda: kernel((1,), (1,), (address, address, *sizes), 0, stream)


def of_one_tensor(
    activations: Any, x: Tensor, launch: Callable[[], None]
) -> tuple[float, float, float, float]:
    """Pack, unpack, two launches, add."""
    start = time.perf_counter_ns()
    saved = activations.pack(x)
    packed = time.perf_counter_ns()
    y = activations.unpack(saved)
    unpacked = time.perf_counter_ns()
    launch()
    launch()
    launched = time.perf_counter_ns()
    torch.add(y, 1)
    added = time.perf_counter_ns()
    if x.is_cuda:
        torch.cuda.synchronize()
    found = (packed - start, unpacked - packed, launched - unpacked, added - launched)
    return tuple(ns / 1e3 for ns in found)


# ---- what is written -----------------------------------------------------------------------------


def all_measured(
    chosen: dict[str, Model], methods: tuple[str, ...], device: torch.device, quick: bool
) -> Iterator[dict[str, Any]]:
    """A row for each model and method, said on stderr as it comes."""
    for name, model in chosen.items():
        for method in methods:
            start = time.perf_counter()
            try:
                row = measured(model, method, device, quick)
            except Exception as error:  # the others are measured all the same
                traceback.print_exc()
                row = {"method": method, "error": f"{type(error).__name__}: {error}"[:200]}
            seconds = time.perf_counter() - start
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
            click.echo(f"{name} {method}: {seconds:.1f} s", err=True)
            yield {"model": name, "label": model.label, **row}


def saved_bytes(report: dict[str, Any]) -> tuple[int, int]:
    """Bytes that autograd keeps without and with compression; parameters are there anyway."""
    passed = sum(n for reason, n in report["passed"].items() if reason != "parameter")
    return report["before"] + passed, report["after"] + passed


def table(rows: list[dict[str, Any]]) -> str:
    """Rows of Markdown."""
    lines = [
        "| model | method | saved GB | held GB | peak GB | step ms | step | last loss |",
        "|---|---|---|---|---|---|---|---|",
    ]
    plain = {row["model"]: row for row in rows if row["method"] == PLAIN and "error" not in row}
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['label']} | {row['method']} | {row['error']} | | | | | |")
            continue
        base, saved = plain.get(row["model"]), ""
        if row["report"]:
            before, after = saved_bytes(row["report"])
            saved = f"{before / GB:.1f} -> {after / GB:.1f} ({before / max(after, 1):.2f}x)"
        change = f"{row['step_ms'] / base['step_ms'] - 1:+.1%}" if base else ""
        lines.append(
            f"| {row['label']} | {row['method']} | {saved} | {row['held_bytes'] / GB:.1f} | "
            f"{row['peak_bytes'] / GB:.1f} | {row['step_ms']:.1f} | {change} | "
            f"{row['losses'][-1]:.4f} |"
        )
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Above the memory over a step, below the losses; one column a model."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        click.echo(f"no plot: {error}: pip install -e '.[plot]', then --replot", err=True)
        return
    labels = list(dict.fromkeys(row["label"] for row in rows))
    figure = Figure(figsize=(5 * len(labels), 7), layout="constrained")
    axes = figure.subplots(2, len(labels), squeeze=False)
    for column, label in enumerate(labels):
        memory, losses = axes[0][column], axes[1][column]
        for row in rows:
            if row["label"] != label or "error" in row:
                continue
            n = max(len(row["memory"]) - 1, 1)
            if row["memory"]:
                at = [i / n for i in range(len(row["memory"]))]
                memory.plot(at, [used / GB for used in row["memory"]], label=row["method"])
            if row["method"] in CURVES:
                losses.plot(range(1, len(row["losses"]) + 1), row["losses"], label=row["method"])
        memory.set(title=label, xlabel="forward and backward of a step", ylabel="GB allocated")
        losses.set(xlabel="step", ylabel="cross-entropy")
    lines = {line.get_label(): line for axis in axes.flatten() for line in axis.lines}
    names = [f"{name}: {WORDS[name]}" if name in WORDS else name for name in lines]
    figure.legend(lines.values(), names, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, format="png", dpi=110)


def about(device: torch.device) -> dict[str, Any]:
    """Where and with what this was measured."""
    import cupy

    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
    return {
        "device": gpu,
        "torch": torch.__version__,
        "cupy": cupy.__version__,
        "package": cto.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": f"python scripts/{Path(sys.argv[0]).name} {' '.join(_words())}",
    }


def _words() -> Iterator[str]:
    """How this script was called; the folder is nobody's matter."""
    for before, word in itertools.pairwise(["", *sys.argv[1:]]):
        yield "FOLDER" if before == "--out" else word


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--all", "every", is_flag=True, help="All models and methods; needs a GPU.")
@click.option("--quick", is_flag=True, help="Small sizes and three steps.")
@click.option("--model", "names", multiple=True, type=click.Choice(list(models(quick=True))))
@click.option("--method", "methods", multiple=True, type=click.Choice(METHODS))
@click.option("--replot", is_flag=True, help="Only draw what was measured before.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path())
def main(
    every: bool,
    quick: bool,
    names: tuple[str, ...],
    methods: tuple[str, ...],
    replot: bool,
    out: Path,
) -> None:
    """Measure, and write JSON, a table and a plot."""
    if replot:
        write(json.loads((out / "train_torch.json").read_text()), out)
        return
    if not (every or quick or names):
        raise click.UsageError("expected --all, --quick or --model NAME")
    if not quick and not torch.cuda.is_available():
        raise click.UsageError("expected a GPU; without one there is --quick")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    found = models(quick)
    chosen = {name: found[name] for name in names or found}
    with torch.cuda.device(0) if device.type == "cuda" else contextlib.nullcontext():
        host = host_time(device, 100 if quick else 3000)
        rows = list(all_measured(chosen, methods or METHODS, device, quick))
    out.mkdir(parents=True, exist_ok=True)
    whole = {"about": about(device), "host_time": host, "rows": rows}
    (out / "train_torch.json").write_text(json.dumps(whole) + "\n")
    write(whole, out)


def write(whole: dict[str, Any], out: Path) -> None:
    """The table, also on stdout, and the plot."""
    times = ", ".join(f"{name} {us:.1f}" for name, us in whole["host_time"].items())
    text = f"{table(whole['rows'])}\n\nhost time of one tensor: {times}\n"
    (out / "train_torch.md").write_text(text)
    click.echo(text, nl=False)
    plot(whole["rows"], out / "train_torch.png")


if __name__ == "__main__":
    main()
