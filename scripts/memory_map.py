# SPDX-License-Identifier: MIT
"""Memory against time of one training step: PyTorch's ways beside those of this package.

    python scripts/memory_map.py measure --models gpt --models llama --out FILE      (one GPU)
    python scripts/memory_map.py measure --tiny --models gpt --out FILE      (on the CPU too)

Every way is measured alike: the loss inside what is compiled, PyTorch's fused AdamW, bfloat16 by
autocast over float32 parameters or bfloat16 throughout. A row is a process; several compile at
once, and all but one are stopped (SIGSTOP) while that one is timed. FILE gets a line of JSON as
soon as a row is measured: first where and with what, then rows, how far gradients are from those of
the model compiled without codes, and what no time was left for; `memory_map_report.py` shows them.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from machine import command, commit, machine

GIGABYTES = 125.0  # of a card, for all rows at once
MODELS = {  # by name, gigabytes of a row that compiles or waits
    "gpt": 9.0,
    "llama": 22.0,
    "llama-long": 32.0,
    "llama-bf16": 20.0,
    "llama-bf16-long": 34.0,
    "vit-b": 6.0,
    "vit-h": 22.0,
    "resnet50": 6.0,
    "convnext": 12.0,
    "unet": 12.0,
    "bert": 12.0,
}
Line = dict[str, Any]


class Way(NamedTuple):
    """How a model is trained."""

    is_compiled: bool = False
    is_converted: bool = False  # with this package's loss in place
    is_checkpointed: bool = False  # every block
    budget: float | None = None  # PyTorch's
    is_fp8: bool = False  # PyTorch's pass
    codes: dict[str, Any] | None = None  # arguments of activation_codes
    policy: str | None = None  # of compressed_activations
    is_offloaded: bool = False


WAYS = {  # the first are measured first
    "compiled": Way(True),
    "checkpointed": Way(True, is_checkpointed=True),
    "codes": Way(True, codes={}),
    "codes, budget 0.5": Way(True, codes={"budget": 0.5}),
    "budget 0.5": Way(True, budget=0.5),
    "budget 0.2": Way(True, budget=0.2),
    "codes wide": Way(True, codes={"policy": "wide"}),
    "codes small": Way(True, codes={"policy": "small"}),
    "codes, budget 0.3": Way(True, codes={"budget": 0.3}),
    "codes, checkpointed": Way(True, is_checkpointed=True, codes={}),
    "eager": Way(),
    "eager, checkpointed": Way(is_checkpointed=True),
    "eager, compressed": Way(policy="default"),
    "eager, converted": Way(False, True),
    "eager, converted, compressed": Way(False, True, policy="default"),
    "eager, converted, checkpointed": Way(False, True, True),
    "eager, converted, checkpointed, compressed": Way(False, True, True, policy="default"),
    "budget 0.999": Way(True, budget=0.999),
    "budget 0.8": Way(True, budget=0.8),
    "budget 0.3": Way(True, budget=0.3),
    "budget 0": Way(True, budget=0.0),
    "codes, budget 0.8": Way(True, codes={"budget": 0.8}),
    "codes, budget 0.15": Way(True, codes={"budget": 0.15}),
    "codes small, budget 0.3": Way(True, codes={"policy": "small", "budget": 0.3}),
    "fp8 pass": Way(True, is_fp8=True),
    "converted": Way(True, True),
    "converted, codes": Way(True, True, codes={}),
    "converted, checkpointed": Way(True, True, True),
    "offloaded": Way(is_offloaded=True),
}
CONTROL = "compiled"


def way_of(name: str) -> Way:
    """Return a way of WAYS, or for 'codes {"budget": 0.5}' one with these arguments."""
    return WAYS[name] if name in WAYS else Way(True, codes=json.loads(name.partition(" ")[2]))


class Row:
    """A process that measures one row, a model trained one way."""

    def __init__(self, model: str, way: str, folder: Path, words: Sequence[str]) -> None:
        """folder: of its log and its gradients. words: further arguments of its command."""
        self.model, self.way = model, way
        self.samples = folder / f"{model}.{way}.npz"
        self.log = folder / f"{model}.{way}.log"
        self.words = [sys.executable, __file__, "row", model, way, str(self.samples), *words]
        self.process: subprocess.Popen[str] | None = None
        self.gigabytes = MODELS[model]
        self.start, self.stopped_at = 0.0, 0.0
        self.stops: list[tuple[float, float]] = []  # (from, until), by time.monotonic()
        self.ended = ""  # why it was killed

    def begin(self, environment: dict[str, str]) -> None:
        """Start the process."""
        self.start, self.stops = time.monotonic(), []
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                self.words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,
            )

    def heard(self) -> Line:
        """Wait for the process' next JSON line; an "error" if it has ended."""
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        code = self.process.wait()
        last = self.log.read_text().strip().rpartition("\n")[2]
        return {"error": self.ended or f"ended with {code}: {last[:200]}"}

    def signalled(self, number: signal.Signals) -> None:
        """Send a signal to the process and those that it started."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def stop(self) -> None:
        """Suspend the process."""
        self.stopped_at = time.monotonic()
        self.signalled(signal.SIGSTOP)

    def go_on(self) -> None:
        """Resume the process."""
        self.signalled(signal.SIGCONT)
        self.stops.append((self.stopped_at, time.monotonic()))

    def stopped(self, start: float, end: float = math.inf) -> float:
        """Return the seconds between two times in which the process was suspended."""
        return sum(max(0.0, min(b, end) - max(a, start)) for a, b in self.stops)

    def kill(self, why: str) -> None:
        """Kill the process; why: its row's error."""
        self.ended = why
        self.signalled(signal.SIGKILL)


class Measuring:
    """Rows that run at once, one of them timed."""

    def __init__(
        self, out: Path, folder: Path, threads: int, limit: float, cold: bool = False
    ) -> None:
        """out: file of JSON lines. folder: of logs and gradients. threads: of each process."""
        self.out, self.folder, self.limit, self.cold = out, folder, limit, cold
        self.end = math.inf
        self.running: list[Row] = []
        self.alone = threading.Lock()  # who has it may time, or start
        self.writing = threading.Lock()
        self.measured: list[Row] = []  # whose gradients can be compared
        self.environment = {
            **os.environ,
            "TORCHINDUCTOR_COMPILE_THREADS": str(threads),
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
            "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
            "OMP_NUM_THREADS": str(threads),
        }

    def write(self, line: Line) -> None:
        """Add a line to the file."""
        with self.writing, self.out.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def all(self, rows: list[Row], jobs: int, seconds: float) -> None:
        """Measure rows, as many at once as there are jobs and memory for."""
        self.end, waiting, again = time.monotonic() + seconds, rows[:], []
        threads: dict[Row, threading.Thread] = {}
        while (waiting or threads or again) and time.monotonic() < self.end:
            for row in [row for row, thread in threads.items() if not thread.is_alive()]:
                del threads[row]
                if row.ended == "memory":
                    row.ended, row.gigabytes = "", GIGABYTES
                    again.append(row)
            if not waiting and not threads:
                waiting, again = again, []
            used = sum(row.gigabytes for row in threads)
            if waiting and len(threads) < jobs and used + waiting[0].gigabytes <= GIGABYTES:
                row = waiting.pop(0)
                threads[row] = threading.Thread(target=self.one, args=(row,))
                threads[row].start()
                continue
            for row in list(self.running):
                if time.monotonic() - row.start - row.stopped(row.start) > self.limit:
                    row.kill(f"longer than {self.limit:.0f} s")
            time.sleep(0.1)
        for row in list(self.running):
            row.kill("no time was left")
        for thread in threads.values():
            thread.join()
        for row in waiting + again:
            self._skip(row)

    def one(self, row: Row) -> None:
        """Start a row's process, time it alone, and write its line; skip it without time left."""
        with self.alone:
            if time.monotonic() > self.end:
                self._skip(row)
                return
            cache = row.samples.with_suffix(".cache") if self.cold else self.folder / "cache"
            row.begin(self.environment | {"TORCHINDUCTOR_CACHE_DIR": str(cache)})
            self.running.append(row)
        line = row.heard()
        if "ready" in line:
            with self._timed(row):
                line = row.heard()
            if "first_s" in line:
                began = line.pop("first_began")
                line["first_s"] -= row.stopped(began, began + line["first_s"])
        assert row.process is not None
        row.process.communicate()  # ends, its pipes are closed
        self.running.remove(row)
        seconds = time.monotonic() - row.start
        line["seconds"] = round(seconds, 1)
        said = line.get("error", line.get("warned", ""))
        click.echo(f"{row.model} {row.way}: {seconds:.0f} s {said}", err=True)
        if "OutOfMemory" in line.get("error", "") and row.gigabytes < GIGABYTES:
            row.ended = "memory"
            return
        self.write({"kind": "row", "model": row.model, "way": row.way, **line})
        if "error" not in line:
            self._compare(row)

    def _skip(self, row: Row) -> None:
        self.write({"kind": "skipped", "model": row.model, "way": row.way})

    @contextlib.contextmanager
    def _timed(self, row: Row) -> Iterator[None]:
        """Suspend all other processes inside, and let this one measure."""
        with self.alone:
            others = [each for each in self.running if each is not row]
            for other in others:
                other.stop()
            try:
                time.sleep(0.3)  # until what they launched has ended
                assert row.process is not None
                assert row.process.stdin is not None
                with contextlib.suppress(BrokenPipeError):
                    row.process.stdin.write("go\n")
                    row.process.stdin.flush()
                yield
            finally:
                for other in others:
                    other.go_on()

    def _compare(self, row: Row) -> None:
        """Write how far a row's gradients are from those of CONTROL, once both are measured."""
        with self.alone:
            self.measured.append(row)
            same = [each for each in self.measured if each.model == row.model]
        control = next((each for each in same if each.way == CONTROL), None)
        if control is None:
            return
        for each in same if row is control else [row]:
            line = {"kind": "gradients", "model": row.model, "way": each.way}
            self.write(line | differences(each.samples, control.samples))


def differences(ours: Path, expected: Path) -> Line:
    """Return number, median and worst of gradients' relative errors, |a - b| / |b|, and the worst's
    name; ours, expected: .npz files of gradients by name."""
    with np.load(ours) as a, np.load(expected) as b:
        norms = {name: float(np.linalg.norm(b[name])) for name in b.files}
        errors = {
            name: float(np.linalg.norm(a[name] - b[name])) / norm
            for name, norm in norms.items()
            if norm and name in a.files
        }
    worst = max(errors, key=lambda name: (np.isnan(errors[name]), errors[name]))
    return {
        "n": len(errors),
        "median": float(np.median(list(errors.values()))),
        "worst": errors[worst],
        "worst_name": worst,
    }


def about(tiny: bool) -> Line:
    """Return the first line of a file: machine, versions, commit and date."""
    try:
        results = machine()
    except Exception as error:
        if not tiny:
            raise click.UsageError("expected a GPU; without one there is --tiny") from error
        date = command("date", "-u", "+%Y-%m-%d")
        results = {"gpu": "no GPU", "commit": commit(), "date": date}
    return {"kind": "about", **results}


@click.group(help=(__doc__ or "").partition("\n")[0])
def main() -> None:
    """Measure."""


@main.command()
@click.option("--models", multiple=True, type=click.Choice(list(MODELS)))
@click.option("--ways", multiple=True, type=click.Choice(list(WAYS)))
@click.option("--codes", multiple=True, help="One more way: arguments of activation_codes, JSON.")
@click.option("--tiny", is_flag=True, help="Small sizes and two steps.")
@click.option("--seconds", default=540.0, show_default=True, help="Of all rows at most.")
@click.option("--limit", default=240.0, show_default=True, help="Seconds of one row at most.")
@click.option("--jobs", default=8, show_default=True, help="Rows at once.")
@click.option("--cold", is_flag=True, help="Rows share no kernels: what compiling takes.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
def measure(
    models: tuple[str, ...],
    ways: tuple[str, ...],
    codes: tuple[str, ...],
    tiny: bool,
    seconds: float,
    limit: float,
    jobs: int,
    cold: bool,
    out: Path,
) -> None:
    """Measure way by way, so that what time is short for is the last of all models."""
    start = time.monotonic()
    words = ["--tiny"] if tiny else []
    chosen = [way for way in WAYS if way in (CONTROL, *(ways or WAYS))]
    chosen += [f"codes {json.dumps(json.loads(each))}" for each in codes]
    out.parent.mkdir(parents=True, exist_ok=True)
    threads = max((os.cpu_count() or 1) // jobs, 1)
    with tempfile.TemporaryDirectory() as name:
        measuring = Measuring(out, Path(name), threads, limit, cold)
        measuring.write(about(tiny) | {"jobs": jobs, "cold": cold})
        rows = [
            Row(model, way, Path(name), words)
            for way in chosen
            for model in reversed(MODELS)  # those that compile longest
            if model in (models or MODELS)
        ]
        measuring.all(rows, jobs, seconds - (time.monotonic() - start))


@main.command(hidden=True)
@click.argument("model", type=click.Choice(list(MODELS)))
@click.argument("way")
@click.argument("samples", type=click.Path(path_type=Path))
@click.option("--tiny", is_flag=True)
def row(model: str, way: str, samples: Path, tiny: bool) -> None:
    """Measure one row, as the process of its own that `measure` starts."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no line of ours

    def turn() -> None:
        print(json.dumps({"ready": True}), file=lines, flush=True)
        sys.stdin.readline()

    from map_training import attempted

    line = attempted(model, way_of(way), tiny, samples, turn)
    print(json.dumps(line), file=lines, flush=True)


if __name__ == "__main__":
    main()
