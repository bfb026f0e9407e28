# SPDX-License-Identifier: MIT
"""Measure operators side by side with their peers on this machine's GPU.

One JSON line for the machine, one for each case, one more for each that is also called eagerly;
scripts/benchmark_report.py makes tables of them.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import click
import cupy
from cases import Case, chosen_cases
from cases.parameters import SEED
from compiled_peers import DoesNotCompileError, compiled
from families import family_option
from machine import machine, torch_version
from timing import Action, Timing, copy_rate, rotations, time_cupy, time_torch

import cupy_training_ops as cto

Times = dict[str, Timing]
Reasons = dict[str, str]
ON_TENSORS = ("torch", "Liger")  # what peers on PyTorch's tensors are called


@click.command()
@family_option
@click.option("--op", default="", help="Only operators whose name contains this.")
@click.option("--dtype", default="", help="Only cases whose label contains this (f4, bf2, bool).")
@click.option("--peers/--no-peers", default=True, help="Time the peers too.")
@click.option("--out", type=click.File("w"), default="-", help="Where the JSON lines go.")
def main(families: tuple[str, ...], op: str, dtype: str, peers: bool, out: IO[str]) -> None:
    """Time the cases of the registry's operators; JSON lines on stdout, progress on stderr."""
    rate = copy_rate()
    write(out, {"kind": "machine", **machine(), "copy_gb_per_s": rate / 1e6})
    for case in chosen_cases(families, op, dtype):
        for record in measured(case, rate, peers):
            write(out, record)


def write(out: IO[str], record: dict[str, Any]) -> None:
    """Write a record as a JSON line, and a short line about it to stderr."""
    out.write(json.dumps(record) + "\n")
    out.flush()
    if record["kind"] == "case":
        click.echo(
            f"{record['case']:42} {record['ms']['median']:.4f} ms  {record['share']:.0%} of copy  "
            f"{'within' if record['ms']['median'] <= record['aim_ms'] else 'BEYOND'} aim "
            f"{record['aim_ms']:.4f}  x{record['of_best_peer'] or float('nan'):.2f} of best peer",
            err=True,
        )
    for name, reason in record.get("left_out", {}).items():
        click.echo(f"{record['case']}: {name} is left out: {reason}", err=True)


def measured(case: Case, rate: float, with_peers: bool) -> Iterator[dict[str, Any]]:
    """Yield the record of a case in a graph, and if it is `eager` one of eager calls.

    rate: of a copy, in bytes a millisecond.
    """
    op = cto.get_op(case.op)(**case.attributes)
    sets, nbytes = input_sets(case, op)
    calls = [call(case, op, inputs) for inputs in sets]
    named = {"case": case.id, "family": case.family}
    ours = time_cupy(calls)
    peers, left_out = peer_times(case, sets) if with_peers else ({}, {})
    of_copy = shares(ours, nbytes, rate)
    if case.read_again:
        of_copy["floor_again_ms"] = (nbytes + case.read_again(*sets[0])) / rate
    yield {"kind": "case", **named, **of_copy, **beside(ours, peers), "left_out": left_out}
    if case.eager:
        ours, peers = time_cupy(calls, eager=True), eager_times(case, sets, peers)
        yield {"kind": "eager", **named, **beside(ours, peers)}


def shares(ours: Timing, nbytes: int, rate: float) -> dict[str, Any]:
    """Return fields: bytes, the floor (their milliseconds at the copy's rate), the aim, GB/s, and
    the share of the copy's rate."""
    floor = nbytes / rate
    return {
        "nbytes": nbytes,
        "floor_ms": floor,
        "aim_ms": floor / 0.9 + 0.002,
        "gb_per_s": nbytes / ours.median / 1e6,
        "share": floor / ours.median,
    }


def beside(ours: Timing, peers: Mapping[str, Timing]) -> dict[str, Any]:
    """Return our times, the peers', and the ratio of our median to the best peer's (or None)."""
    best = min((t.median for t in peers.values()), default=None)
    return {
        "ms": dataclasses.asdict(ours),
        "peers": {name: dataclasses.asdict(timing) for name, timing in peers.items()},
        "of_best_peer": best and ours.median / best,
    }


def peer_times(case: Case, sets: list[Any]) -> tuple[Times, Reasons]:
    """Return ({peer: its times}, {peer left out: why}); PyTorch's peers also compiled.

    sets: inputs of calls in turn.
    """
    times: Times = {}
    left_out: Reasons = {}
    for name, peer, timer in peers_of(case):
        try:
            actions = [peer(*inputs) for inputs in sets]
            times[name] = timer(actions)
            if name.startswith("torch"):
                name = f"{name}, compiled"
                times[name] = timer(compiled(actions))
        except (NotImplementedError, DoesNotCompileError) as error:
            left_out[name] = str(error)
    return times, left_out


def eager_times(case: Case, sets: list[Any], peers: Collection[str]) -> Times:
    """Return the times of the peers in `peers` as they are called, the host's time included."""
    return {
        name: timer([peer(*inputs) for inputs in sets], eager=True)
        for name, peer, timer in peers_of(case)
        if name in peers
    }


def peers_of(case: Case) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, peer, function that times it); those on tensors only if PyTorch is installed."""
    for name, peer in case.peers.items():
        if not name.startswith(ON_TENSORS):
            yield name, peer, time_cupy
        elif torch_version() is not None:
            yield name, peer, time_torch


# ---- calls to time -------------------------------------------------------------------------------


def input_sets(case: Any, op: Any) -> tuple[list[Any], int]:
    """Return (inputs of calls in turn, bytes that one call must move).

    There are as many sets of inputs as keep a call from finding its own in the L2 cache.
    """
    rng = cupy.random.default_rng(SEED)
    first = case.make(rng)
    results = as_tuple(op(*first, outputs=case.outputs))
    each_once = sum(array.nbytes for array in flat([*first, *results]))
    nbytes = case.nbytes(*first) if case.nbytes else each_once
    return [first, *(case.make(rng) for _ in range(rotations(nbytes) - 1))], nbytes


def call(case: Any, op: Any, inputs: Any) -> Action:
    """Return a call with outputs of its own; views and host outputs are new each time."""
    if case.run is not None:
        return case.run(op, *inputs)
    arguments = {id(array.data.mem) for array in flat(inputs)}
    result = own(as_tuple(op(*inputs, outputs=case.outputs)), arguments)
    out = result if any(True for _ in flat(result)) else None
    return lambda: op(*inputs, out=out, outputs=case.outputs)


def own(result: Any, input_ids: set[int]) -> Any:
    """Return results as `out=` takes them, with None for those in an input's memory or on the host.

    input_ids: id() of the memory of each input.
    """
    if isinstance(result, tuple):
        return tuple(own(item, input_ids) for item in result)
    is_own = isinstance(result, cupy.ndarray) and id(result.data.mem) not in input_ids
    return result if is_own else None


def as_tuple(result: Any) -> tuple[Any, ...]:
    """Return one output or several as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def flat(values: Any) -> Iterator[Any]:
    """Yield the CuPy arrays among values, also those in lists and tuples."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from flat(value)
        elif isinstance(value, cupy.ndarray):
            yield value


if __name__ == "__main__":
    main()
