# SPDX-License-Identifier: MIT
"""Times of PyTorch's front door on a GPU beside PyTorch, compiled PyTorch and Liger-Kernel.

    python3 scripts/front_door_times.py

First host microseconds of small calls: without gradients, with them, backward; ours and PyTorch's
in turns, of each the least median of a hundred calls, since a host that others use, too, is slower
for seconds. Then milliseconds of forward and backward over large arrays, by events: as Python calls
them, and replayed from a CUDA graph, where the host takes no part; and memory at most beside what
was there before, and beside the gradients, too. Backward passes run in the thread that calls. What
cannot be captured is said in its place, and so is a way that fails: a new process goes on.
"""

from __future__ import annotations

import importlib
import itertools
import math
import multiprocessing
import statistics
import timeit
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import click
import torch
from torch.nn import functional as theirs

from cupy_training_ops.torch import functional as ours

Call = Callable[..., Any]
Way = tuple[Call, list[torch.Tensor]]  # a function, and what it is called with
Cells = list[float | str]  # milliseconds called and captured, and gigabytes; or words
GROUP = 100  # calls between two waits


class Row(NamedTuple):
    """Of the table of large calls."""

    case: str
    way: str
    cells: Cells


@click.command()
@click.option("--only", default="", help="Only cases whose name contains one of these: a,b.")
@click.option("--calls", default=3000, show_default=True, help="Small calls of each case; or 0.")
@click.option("--repeats", default=20, show_default=True, help="Large calls of each case; or 0.")
@click.option("--limit", default=60.0, show_default=True, help="Seconds of a way of a large case.")
def main(only: str, calls: int, repeats: int, limit: float) -> None:
    """Print two tables."""
    liger = "with" if _liger("liger_rms_norm") else "without"
    torch.autograd.set_multithreading_enabled(False)
    about = f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {liger} Liger-Kernel"
    click.echo(f"{about}\n")
    parts = only.split(",")
    if calls:
        print_small([name for name in small() if any(part in name for part in parts)], calls)
    if repeats:
        names = [name for name in large() if any(part in name for part in parts)]
        print_large(names, repeats, limit)


def print_small(names: Sequence[str], calls: int) -> None:
    """A row for each function."""
    x = torch.randn(64, 64, device="cuda")
    click.echo(f"torch.add {least([lambda: torch.add(x, x)], calls)[0]:.1f} us\n")
    columns = ("host us", "without", "forward", "backward", "PyTorch's: the same")
    click.echo(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name in names:
        ours_and_theirs = zip(*host(small()[name], calls), strict=True)
        mine, other = ([f"{us:.1f}" for us in each] for each in ours_and_theirs)
        click.echo(f"| {name} | {' | '.join(mine)} | {', '.join(other)} |")


def print_large(names: Sequence[str], repeats: int, limit: float) -> None:
    """A row for each way of a case, and one for our best over the others'."""
    columns = ("forward and backward", "way", "ms", "captured, ms", "GB beside", "and gradients")
    click.echo(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name, in_case in itertools.groupby(rows(names, repeats, limit), lambda row: row.case):
        found: dict[str, Cells] = {}
        for _, way, cells in in_case:
            found[way] = cells
            click.echo(f"| {name} | {way} | {' | '.join(map(shown, cells))} |")
        ratios = " | ".join(ratio(found, place) for place in range(2))
        click.echo(f"| {name} | our best over the others' | {ratios} | | |")


def small() -> dict[str, tuple[Call, Call]]:
    """Functions of a square tensor."""
    row, shift = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    target = torch.randint(64, (64,), device="cuda")
    return {
        "layer_norm": (
            lambda x: ours.layer_norm(x, (64,), row, shift),
            lambda x: theirs.layer_norm(x, (64,), row, shift),
        ),
        "rms_norm": (
            lambda x: ours.rms_norm(x, (64,), row),
            lambda x: theirs.rms_norm(x, (64,), row),
        ),
        "softmax": (lambda x: ours.softmax(x, -1), lambda x: theirs.softmax(x, -1)),
        "gelu": (ours.gelu, theirs.gelu),
        "relu": (ours.relu, theirs.relu),
        "dropout": (ours.dropout, theirs.dropout),
        "embedding": (lambda x: ours.embedding(target, x), lambda x: theirs.embedding(target, x)),
        "cross_entropy": (
            lambda x: ours.cross_entropy(x, target),
            lambda x: theirs.cross_entropy(x, target),
        ),
        "a node of Python around nothing": (Alias.apply, lambda x: x.view(64, 64)),
    }


def host(functions: Sequence[Call], calls: int) -> list[list[float]]:
    """Microseconds without gradients, forward, and backward, of each function."""
    x = torch.randn(64, 64, device="cuda")
    leaves = [torch.randn(64, 64, device="cuda", requires_grad=True) for _ in functions]
    results = [function(leaf) for function, leaf in zip(functions, leaves, strict=True)]
    ways = list(zip(functions, leaves, results, map(torch.ones_like, results), strict=True))
    return [
        least([lambda f=f: f(x) for f in functions], calls),
        least([lambda f=f, leaf=leaf: f(leaf) for f, leaf, _, _ in ways], calls),
        least([lambda given=given: _backward(*given) for _, *given in ways], calls),
    ]


def _backward(leaf: torch.Tensor, y: torch.Tensor, dy: torch.Tensor) -> None:
    torch.autograd.grad(y, leaf, dy, retain_graph=True)


def least(some: Sequence[Callable[[], Any]], calls: int) -> list[float]:
    """Microseconds of one call of each, which have their turns."""
    found: list[float] = [math.inf] * len(some)
    for call in some * 20:
        call()
    for _ in range(max(calls // GROUP, 1)):
        for i, call in enumerate(some):
            found[i] = min(found[i], median(call))
    return found


def median(call: Callable[[], Any]) -> float:
    """Microseconds of one call of a group."""
    torch.cuda.synchronize()
    return statistics.median(timeit.repeat(call, number=1, repeat=GROUP)) * 1e6


def leaf(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype).requires_grad_()


def large() -> dict[str, Callable[[], dict[str, Way]]]:
    """Functions that make the ways to compute one case."""
    found: dict[str, Any] = {}
    for n, classes in ((8192, 32000), (8192, 131072)):
        found[f"cross_entropy {n} x {classes} bf16"] = _loss(n, classes)
    found["linear_cross_entropy 16384 x 4096, 131072 classes"] = _linear_loss
    found["embedding 65536 of 50257 x 1024 bf16"] = _embedding
    for dtype, kind in ((torch.bfloat16, "bf16"), (torch.float32, "f32")):
        for n, columns in ((65536, 1024), (16384, 4096), (8192, 8192)):
            found[f"layer_norm {n} x {columns} {kind}"] = _norm("layer_norm", n, columns, dtype)
            found[f"rms_norm {n} x {columns} {kind}"] = _norm("rms_norm", n, columns, dtype)
        for name in ("softmax", "gelu", "relu", "dropout"):
            options = {"dim": -1} if name == "softmax" else {}
            found[f"{name} 65536 x 1024 {kind}"] = _pointwise(name, options, dtype)
    return found


def _ways(mine: Call, other: Call, leaves: list[torch.Tensor], **more: Call) -> dict[str, Any]:
    ways = {"ours": mine, "ours compiled": torch.compile(mine), "PyTorch": other}
    ways |= {"PyTorch compiled": torch.compile(other), **more}
    return {name: (function, leaves) for name, function in ways.items()}


def _norm(name: str, n: int, columns: int, dtype: torch.dtype) -> Any:
    def make() -> dict[str, Any]:
        leaves = [leaf(n, columns, dtype=dtype), leaf(columns, dtype=dtype)]
        if name == "layer_norm":
            leaves.append(leaf(columns, dtype=dtype))
        mine, other = (getattr(module, name) for module in (ours, theirs))
        liger = _liger("liger_" + name)
        more = {} if liger is None else {"Liger": lambda *given: liger(*given, 1e-6)}
        return _ways(
            lambda x, *rest: mine(x, (columns,), *rest),
            lambda x, *rest: other(x, (columns,), *rest),
            leaves,
            **more,
        )

    return make


def _pointwise(name: str, given: dict[str, Any], dtype: torch.dtype) -> Any:
    def make() -> dict[str, Any]:
        mine, other = (getattr(module, name) for module in (ours, theirs))
        leaves = [leaf(65536, 1024, dtype=dtype)]
        liger = _liger("liger_softmax") if name == "softmax" else None
        more = {} if liger is None else {"Liger": liger}
        return _ways(lambda x: mine(x, **given), lambda x: other(x, **given), leaves, **more)

    return make


def _loss(n: int, classes: int) -> Any:
    def make() -> dict[str, Any]:
        target = torch.randint(classes, (n,), device="cuda")
        liger = _liger("liger_cross_entropy")
        more: dict[str, Call] = {} if liger is None else {"Liger": lambda x: liger(x, target)}
        more["ours in place"] = lambda x: ours.cross_entropy(Alias.apply(x), target, inplace=True)
        return _ways(
            lambda x: ours.cross_entropy(x, target),
            lambda x: theirs.cross_entropy(x, target),
            [leaf(n, classes)],  # the result of an operation would bring its stream into a graph
            **more,
        )

    return make


class Alias(torch.autograd.Function):
    """The same memory, as the result of an operation: a leaf cannot be overwritten."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(0).set_(x)

    @staticmethod
    def backward(_: Any, dy: torch.Tensor) -> torch.Tensor:
        return dy


def _linear_loss() -> dict[str, Any]:
    target = torch.randint(131072, (16384,), device="cuda")
    with torch.no_grad():
        leaves = [leaf(16384, 4096), (leaf(131072, 4096) * 0.02).detach().requires_grad_()]
    liger = _liger("liger_fused_linear_cross_entropy")
    ways = {"ours": lambda h, w: ours.linear_cross_entropy(h, w, target)}
    if liger is not None:
        ways["Liger"] = lambda h, w: liger(h, w, target)
    ways["PyTorch"] = lambda h, w: theirs.cross_entropy(theirs.linear(h, w), target)
    return {name: (function, leaves) for name, function in ways.items()}


def _embedding() -> dict[str, Any]:
    indices = torch.randint(50257, (65536,), device="cuda")
    mine, other = (lambda w, f=f: f(indices, w) for f in (ours.embedding, theirs.embedding))
    return _ways(mine, other, [leaf(50257, 1024)])


def _liger(name: str) -> Any:
    """Liger-Kernel's functional, where it is installed."""
    try:
        return getattr(importlib.import_module("liger_kernel.transformers.functional"), name)
    except ImportError:
        return None


# ---- a process for each case that does not break -------------------------------------------------


def rows(names: Sequence[str], repeats: int, limit: float) -> Iterator[Row]:
    """Measured in a process that is a new one after a way that fails: CUDA's state is lost then."""
    done: set[tuple[str, str]] = set()
    while (yield from rows_of_a_process(names, done, repeats, limit)):
        pass


def rows_of_a_process(
    names: Sequence[str], done: set[tuple[str, str]], repeats: int, limit: float
) -> Generator[Row, None, bool]:
    """Of what is not done; whether there may be more."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=worker, args=(there, names, done, repeats))
    process.start()
    there.close()
    begun: tuple[str, str] | None = None
    n_done, words = len(done), "the process ended"
    try:
        while begun != ("", ""):
            if not here.poll(limit):
                words = f"longer than {limit:.0f} s"
                break
            told = here.recv()
            begun = None if isinstance(told, Row) else told
            if isinstance(told, Row):
                yield told
            done.add(told[:2])
    except EOFError:
        pass
    finally:
        process.kill()
        process.join()
    if begun == ("", ""):
        return False
    if begun is not None:
        yield Row(*begun, [words, "", "", ""])
    return len(done) > n_done


def worker(
    told: Connection, names: Sequence[str], done: set[tuple[str, str]], repeats: int
) -> None:
    """Tell what begins and what was measured, and at the end that all is."""
    torch.autograd.set_multithreading_enabled(False)
    made = large()
    for name in names:
        for way, (function, leaves) in made[name]().items():
            if (name, way) in done:
                continue
            told.send((name, way))
            cells = measured(function, leaves, repeats)
            told.send(Row(name, way, cells))
            if any(isinstance(cell, str) for cell in cells):
                return
        torch.cuda.empty_cache()
        torch.compiler.reset()
    told.send(("", ""))


def ratio(found: dict[str, Cells], place: int) -> str:
    """Our best over the others', where there are both."""
    bests = [_best(found, place, is_ours=is_ours) for is_ours in (True, False)]
    return f"{bests[0] / bests[1]:.2f}" if all(bests) else ""


def _best(found: dict[str, Cells], place: int, *, is_ours: bool) -> float:
    some = [cells[place] for way, cells in found.items() if way.startswith("ours") == is_ours]
    return min((cell for cell in some if isinstance(cell, float)), default=0.0)


def shown(cell: float | str) -> str:
    """A number, or words."""
    return cell if isinstance(cell, str) else f"{cell:.3f}"


def measured(function: Call, leaves: list[torch.Tensor], repeats: int) -> Cells:
    """Milliseconds called and captured, gigabytes; or why they are not there."""

    def step() -> None:
        y = function(*leaves)
        torch.autograd.grad(y, leaves, torch.ones_like(y))

    try:
        ms, gb = called(step, repeats)
        gbs = [gb, gb - sum(leaf.nbytes for leaf in leaves) / 1e9]
    except Exception as error:  # the other ways are measured all the same
        return [_words(error), "", "", ""]
    try:
        return [ms, captured(step, repeats), *gbs]
    except Exception as error:
        return [ms, _words(error), *gbs]


def _words(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    return text.replace("|", "/")[:80]


def called(step: Callable[[], None], repeats: int) -> tuple[float, float]:
    """Milliseconds, the median, and gigabytes beside what is there."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    ms = between_events(step, repeats)
    return ms, (torch.cuda.max_memory_allocated() - before) / 1e9


def captured(step: Callable[[], None], repeats: int) -> float:
    """Milliseconds of a replay, the median."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    torch.cuda.synchronize()
    return between_events(graph.replay, repeats)


def between_events(call: Callable[[], None], repeats: int) -> float:
    """Milliseconds of the device from before a call to after it, the median."""
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for start, end in marks:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in marks)


if __name__ == "__main__":
    main()
