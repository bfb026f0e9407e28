# SPDX-License-Identifier: MIT
"""Measure operators side by side with their peers on this machine's GPU.

One JSON line for the machine, one for each case; scripts/benchmark_report.py makes tables of them.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import click
import cupy
import numpy as np
from cases import Case, all_cases
from timing import Timing, copy_rate, host_microseconds, rotations, time_cupy, time_torch

import cupy_training_ops as cto
from cupy_training_ops.frame.op import ViewOp

SEED = 20_26


@click.command()
@click.option("--family", help="Only this family (a family such as gist).")
@click.option("--op", help="Only operators whose name contains this.")
@click.option("--dtype", help="Only cases whose label contains this (f4, f2, f8, bf2, bool).")
@click.option("--peers/--no-peers", default=True, help="Time the peers too.")
@click.option("--out", type=click.File("w"), default="-", help="Where the JSON lines go.")
def main(family: str | None, op: str | None, dtype: str | None, peers: bool, out: IO[str]) -> None:
    """Time the cases of the registry's operators; JSON lines on stdout, progress on stderr."""
    rate = copy_rate()
    write(out, {"kind": "machine", **machine(), "copy_gb_per_s": rate / 1e6})
    for case in all_cases():
        family = cto.get_op(case.op).family
        if (family or family) == family and (op or "") in case.op and (dtype or "") in case.label:
            write(out, {"kind": "case", **measured(case, rate, peers)})
    for record in host_times():
        write(out, {"kind": "host", **record})


def write(out: IO[str], record: dict[str, Any]) -> None:
    """One JSON line, and a short one on stderr."""
    out.write(json.dumps(record) + "\n")
    out.flush()
    if record["kind"] == "case":
        click.echo(
            f"{record['case']:42} {record['ms']['median']:.4f} ms  {record['share']:.0%} of copy  "
            f"{'within' if record['ms']['median'] <= record['aim_ms'] else 'BEYOND'} aim "
            f"{record['aim_ms']:.4f}  x{record['of_best_peer'] or float('nan'):.2f} of best peer",
            err=True,
        )


def machine() -> dict[str, Any]:
    """What the figures were measured with."""
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    return {
        "gpu": properties["name"].decode(),
        "driver": driver_version(),
        "cuda": cupy.cuda.runtime.runtimeGetVersion(),
        "cupy": cupy.__version__,
        "torch": torch_version(),
        "numpy": np.__version__,
        "commit": command("git", "rev-parse", "--short", "HEAD"),
        "date": command("date", "-u", "+%Y-%m-%d"),
    }


def driver_version() -> str:
    """The NVIDIA driver's version."""
    return command("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def torch_version() -> str | None:
    """PyTorch's version, or None where it is not installed and its peers are left out."""
    try:
        import torch
    except ImportError:
        return None
    return str(torch.__version__)


def command(*words: str) -> str:
    """The first line a command prints, or a dash."""
    try:
        result = subprocess.run(words, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "-"
    return (result.stdout.splitlines() or ["-"])[0]


def measured(case: Case, rate: float, with_peers: bool) -> dict[str, Any]:
    """One case: our time, the byte floor at this run's copy rate, and the peers."""
    rng = cupy.random.default_rng(SEED)
    op = cto.get_op(case.op)(**case.attributes)
    sets = [case.make(rng)]
    results = as_tuple(op(*sets[0]))
    nbytes = case.nbytes(*sets[0]) if case.nbytes else moved_nbytes(sets[0], results)
    sets += [case.make(rng) for _ in range(rotations(nbytes) - 1)]
    ours = time_cupy([call(op, inputs) for inputs in sets])
    peers = dict(peer_times(case, sets)) if with_peers else {}
    floor = nbytes / rate
    best = min((t.median for t in peers.values()), default=None)
    return {
        "case": case.id,
        "family": op.family,
        "nbytes": nbytes,
        "floor_ms": floor,
        "aim_ms": floor / 0.9 + 0.002,
        "ms": dataclasses.asdict(ours),
        "gb_per_s": nbytes / ours.median / 1e6,
        "share": floor / ours.median,
        "peers": {name: dataclasses.asdict(timing) for name, timing in peers.items()},
        "of_best_peer": best and ours.median / best,
    }


def as_tuple(result: Any) -> tuple[Any, ...]:
    """One output or several, as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def moved_nbytes(inputs: Any, results: tuple[Any, ...]) -> int:
    """Every array read or written once."""
    return sum(array.nbytes for array in flat([*inputs, *results]))


def flat(values: Any) -> Iterator[Any]:
    """The CuPy arrays among values, lists taken apart."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from flat(value)
        elif isinstance(value, cupy.ndarray):
            yield value


def call(op: Any, inputs: Any) -> Any:
    """A call into outputs of its own; views and host outputs are new each time."""
    results = as_tuple(op(*inputs))
    views = isinstance(op, ViewOp)
    out = tuple(r if isinstance(r, cupy.ndarray) and not views else None for r in results)
    return lambda: op(*inputs, out=out)


def peer_times(case: Case, sets: list[Any]) -> Iterator[tuple[str, Timing]]:
    """The peers that can run here, by name."""
    for name, peer in case.peers.items():
        if name.startswith("torch") and torch_version() is None:
            continue
        timer = time_torch if name.startswith("torch") else time_cupy
        try:
            yield name, timer([peer(*inputs) for inputs in sets])
        except NotImplementedError as error:
            click.echo(f"{case.id}: {name} is left out: {error}", err=True)


def host_times() -> Iterator[dict[str, Any]]:
    """Host time of a call at 1,024 elements, beside a CuPy ufunc and a PyTorch operator."""
    x = cupy.random.default_rng(SEED).standard_normal(1024, dtype=cupy.float32)
    out, sign = cupy.empty_like(x), cupy.empty(1024, cupy.bool_)
    op = cto.get_op("GistBinarizeEncoder")()
    yield {"call": "GistBinarizeEncoder, out=", "us": host_microseconds(lambda: op(x, out=sign))}
    yield {"call": "GistBinarizeEncoder", "us": host_microseconds(lambda: op(x))}
    view, shapes = cto.get_op("View")(), [(2, 64)] * 8
    yield {"call": "View of 8 shapes", "us": host_microseconds(lambda: view(x, shapes))}
    yield {"call": "cupy.add, out=", "us": host_microseconds(lambda: cupy.add(x, x, out=out))}
    if torch_version() is not None:
        import torch

        t, s = torch.from_dlpack(x), torch.from_dlpack(out)
        yield {"call": "torch.add, out=", "us": host_microseconds(lambda: torch.add(t, t, out=s))}


if __name__ == "__main__":
    main()
