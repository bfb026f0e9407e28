# SPDX-License-Identifier: MIT
"""All that several GPUs of one host are needed for: tests, collectives, divided steps, faults.

    python scripts/ranks_check.py FOLDER --ranks 4
    python scripts/ranks_check.py FOLDER --ranks 4 --provider cpu --launcher mpiexec

A line a step on stdout; each step's output in FOLDER/<step>.log, figures in FOLDER/<step>.json, and
all steps in FOLDER/ranks_check.json: status, seconds and, where rank 1 is killed after its first
lines, the seconds until the last process ended. With CTO_TIMEOUT at 10 that should take 11.

On the CPU sizes are small; gloo, MPI or the embedded engine connect the ranks, by the launcher.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import click

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"
TIMEOUT = 10  # seconds that a rank waits for the others
LAUNCHERS = ("launch", "torchrun", "mpiexec")
MARK = "CTO_RANKS_CHECK"  # in the environment of all processes of a step
RANK_NAMES = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")


class Step(NamedTuple):
    """A command to run."""

    command: list[str]
    limit: float  # seconds
    lines: int | None = None  # after so many printed lines rank 1 is killed; None: never


def launched(launcher: str, ranks: int) -> list[str]:
    """Return the command that starts a script in so many processes, without the script."""
    return {
        "launch": [sys.executable, "-m", "cupy_training_ops", "launch", "--ranks", str(ranks)],
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)],
        "mpiexec": ["mpiexec", "-n", str(ranks), sys.executable],
    }[launcher]


def steps_of(folder: Path, ranks: int, provider: str, launcher: str) -> dict[str, Step]:
    """Return the steps by name, in the order in which they run."""
    start, torchrun = launched(launcher, ranks), launched("torchrun", ranks)
    place = ["--provider", provider]
    benchmark = [*start, str(SCRIPTS / "collective_benchmark.py")]
    train = [*start, str(SCRIPTS / "train_data_parallel.py"), *place, "--dtype", "float64"]
    model = [*torchrun, str(SCRIPTS / "fully_shard_training.py")]
    if provider == "cpu":
        place, model = [*place, "--quick"], [*model, "--tiny"]

    def measured(name: str, rounds: int) -> list[str]:
        out = ["--out", str(folder / f"{name}_rows.json")]
        return [*benchmark, name, *place, "--rounds", str(rounds), *out]

    steps = {}
    if provider == "cuda":
        tests = [sys.executable, "-m", "pytest", "-q", "-m", "multi_gpu"]
        steps["tests"] = Step([*tests, str(ROOT / "tests" / "gpu")], 300)
        steps["calls"] = Step(measured("calls", 20), 60)
        steps["killed_calls"] = Step(measured("calls", 2000), 60, 1)
    steps |= {
        "steps": Step(measured("steps", 10), 60),
        "buckets": Step(measured("buckets", 10), 60),
        "train": Step(train, 60),
        "train_divided": Step([*train, "--sharded"], 60),
        "fully_shard": Step(model, 60),
        "ddp": Step([*model, "--whole"], 60),
        "killed_steps": Step(measured("steps", 100_000), 60, 1),
        "killed_buckets": Step(measured("buckets", 100_000), 60, 1),
        "killed_train": Step([*train, "--sharded", "--steps", "10000000"], 60, 1),
        "killed_fully_shard": Step([*model, "--steps", "100000"], 60, 1),
        "killed_ddp": Step([*model, "--whole", "--steps", "100000"], 60, 1),
    }
    return steps


def run(name: str, step: Step, folder: Path, variables: dict[str, str]) -> dict[str, Any]:
    """Run a step; return its name, status, seconds, processes left at the limit and, if a rank is
    killed, the seconds after that.

    variables: of its environment, beside this one's.
    """
    mark = f"{os.getpid()}:{name}"
    path, began, killed = folder / f"{name}.log", time.monotonic(), 0.0
    row: dict[str, Any] = {"step": name}
    with path.open("w") as log:
        process = subprocess.Popen(
            step.command,
            cwd=ROOT,
            env={**os.environ, **variables, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    while (living := processes_of(mark)) and time.monotonic() - began < step.limit:
        time.sleep(0.05)
        process.poll()  # else what has ended would stay
        if step.lines is None or killed or path.read_bytes().count(b"\n") < step.lines:
            continue
        time.sleep(2.0)  # in the middle of what follows
        victims = processes_of(mark, rank=1)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        killed = time.monotonic() if victims else 0.0
    ended = time.monotonic()
    for pid in living:
        os.kill(pid, signal.SIGKILL)
    row |= {"status": process.wait(), "seconds": ended - began, "left at the limit": len(living)}
    if step.lines is not None:
        row["seconds after"] = ended - killed if killed else math.inf
    return row


def processes_of(mark: str, rank: int | None = None) -> list[int]:
    """Return ids of living processes with MARK=mark in their environment; of one rank, or all."""
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            variables = (path / "environ").read_text(errors="replace").split("\0")
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # it ended meanwhile, or is another user's
            continue
        is_rank = rank is None or any(f"{name}={rank}" in variables for name in RANK_NAMES)
        if f"{MARK}={mark}" in variables and is_rank and state != "Z":
            pids.append(int(path.name))
    return pids


def is_right(row: dict[str, Any]) -> bool:
    """Return True if a step passed, or ended in time with an error since a rank was killed."""
    if "seconds after" not in row:
        return row["status"] == 0
    return row["status"] != 0 and row["seconds after"] <= TIMEOUT + 1


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--ranks", default=4, show_default=True, type=click.IntRange(2))
@click.option("--provider", type=click.Choice(["cpu", "cuda"]), default="cuda", show_default=True)
@click.option("--launcher", type=click.Choice(LAUNCHERS), default="launch", show_default=True)
@click.option("--step", "chosen", multiple=True, help="Only this one; may be repeated.")
def main(folder: Path, ranks: int, provider: str, launcher: str, chosen: tuple[str, ...]) -> None:
    """Run the steps one after another, and print a line for each."""
    folder.mkdir(parents=True, exist_ok=True)
    variables = {"CTO_RANKS": str(ranks), "CTO_TIMEOUT": str(TIMEOUT), "PYTHONUNBUFFERED": "1"}
    variables["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(SCRIPTS)])
    rows = []
    for name, step in steps_of(folder.resolve(), ranks, provider, launcher).items():
        if chosen and name not in chosen:
            continue
        rows.append(run(name, step, folder, variables))
        (folder / "ranks_check.json").write_text(json.dumps(rows, indent=1))
        figures = (f"{value:8.1f} {key}" for key, value in rows[-1].items() if key != "step")
        click.echo(f"{name:20} {' '.join(figures)}")
    raise SystemExit(not all(map(is_right, rows)))


if __name__ == "__main__":
    main()
