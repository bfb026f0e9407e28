# SPDX-License-Identifier: MIT
"""PyTorch's peers as torch.compile makes them: one graph, its default mode.

    python3 scripts/compiled_peers.py --jobs 8

compiles those of all cases in several processes and leaves them in the cache on disk: the
benchmark, whose timings nothing may disturb, would compile one after the other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import click
from cases import Case, all_cases, chosen_cases
from cases.parameters import SEED
from families import family_option
from machine import torch_version

from cupy_training_ops.cli.processes import workers
from cupy_training_ops.cli.terminal import progress

Action = Callable[[], Any]
LIMIT = 120  # seconds


class DoesNotCompileError(Exception):
    """A peer cannot be compiled to one graph; the message says why."""


@click.command()
@family_option
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes.")
def main(families: tuple[str, ...], jobs: int) -> None:
    """Compile the peers; print which do not compile, and how many do."""
    if torch_version() is None:
        click.echo("PyTorch is not installed: there is nothing to compile")
        return
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # of each of our processes
    ids = [case.id for case in chosen_cases(families) if torch_peers(case)]
    with workers(jobs) as attempts:
        outcomes = attempts(compile_peers, ids)
        with progress(outcomes, "peers", lambda outcome: outcome[0], len(ids)) as steps:
            failures = [f"{case}: {failure}" for case, failure in steps if failure]
    click.echo("\n".join([*failures, f"{len(ids)} cases, {len(failures)} with failures"]))


def torch_peers(case: Case) -> dict[str, Any]:
    """Return the peers of a case that are PyTorch's, by name."""
    return {name: peer for name, peer in case.peers.items() if name.startswith("torch")}


def compile_peers(identifier: str) -> str | None:
    """Compile a case's peers and run them once; return error messages, or None."""
    import cupy
    import torch

    (case,) = (case for case in all_cases() if case.id == identifier)
    inputs = case.make(cupy.random.default_rng(SEED))
    failures = []
    for name, peer in torch_peers(case).items():
        try:
            compiled([peer(*inputs)])
        except (DoesNotCompileError, NotImplementedError) as error:
            failures.append(f"{name}: {error}")
    del inputs
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    cupy.get_default_memory_pool().free_all_blocks()
    return "; ".join(failures) or None


def compiled(actions: Sequence[Action]) -> list[Action]:
    """Return the calls compiled; raise DoesNotCompileError if one is no single graph."""
    import torch

    torch._dynamo.reset()  # or sizes that change from case to case would become variables
    results = [torch.compile(action, fullgraph=True, dynamic=False) for action in actions]
    try:
        with time_limit(LIMIT):
            for result in results:
                result()
    except Exception as error:  # of many kinds, from several layers
        reason = str(error).strip().partition("\n")[0]
        raise DoesNotCompileError(f"{type(error).__name__}: {reason}") from error
    return results


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError inside the context after so many seconds."""

    def expired(_number: int, _frame: Any) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    main()
