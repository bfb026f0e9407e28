# SPDX-License-Identifier: MIT
"""Times of PyTorch's front door on a GPU beside PyTorch, compiled PyTorch and Liger-Kernel.

    python3 scripts/front_door_times.py
    python3 scripts/front_door_times.py --only AdamW

First host microseconds of small calls: without gradients, with them, backward; ours and PyTorch's
in turns, of each the least median of a hundred calls, since a host that others use, too, is slower
for seconds. Then milliseconds of forward and backward over large arrays, by events: as Python calls
them, and replayed from a CUDA graph, where the host takes no part; and memory at most beside what
was there before, and beside the gradients, too. Backward passes run in the thread that calls. What
cannot be captured is said in its place, and so is a way that fails: a new process goes on.

Last steps of optimizers beside PyTorch's fused AdamW: of a transformer's 292 parameters, made
small, so that the device never holds the host up, with gradients that are new tensors in each step;
the ratio is that of the medians of turns. Then the same at their size, float32, by events, and the
moments' bytes for each parameter.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
import multiprocessing
import statistics
import sys
import timeit
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import click
import torch
from cases.parameters import SHAPES
from markdown_table import head_of, row_of
from torch.nn import functional as theirs

import cupy_training_ops as cto
from cupy_training_ops.torch import functional as ours

Call = Callable[..., Any]
Way = tuple[Call, list[torch.Tensor]]  # a function, and what it is called with
Cells = list[float | str]  # milliseconds called and captured, and gigabytes; or words
GROUP = 100  # calls between two waits
SIZE = 16  # of each dimension of small parameters
STEPS = 20  # of a turn, which the device's queue holds
MAX_NORM = 1.0
Parameters = list[torch.nn.Parameter]
Step = Callable[[], Any]
Optimizers = Callable[..., torch.optim.Optimizer]


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--only", default="", help="Only cases whose name contains one of these: a,b.")
@click.option("--calls", default=3000, show_default=True, help="Small calls of each case; or 0.")
@click.option("--repeats", default=20, show_default=True, help="Large calls of each case; or 0.")
@click.option("--limit", default=60.0, show_default=True, help="Seconds of a way of a large case.")
@click.option("--turns", default=50, show_default=True, help="Of small optimizers' steps; or 0.")
def main(only: str, calls: int, repeats: int, limit: float, turns: int) -> None:
    """Print four tables."""
    liger = "with" if _liger("liger_rms_norm") else "without"
    torch.autograd.set_multithreading_enabled(False)
    about = f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {liger} Liger-Kernel"
    x, y = torch.randn(2, 64, 64, device="cuda")
    click.echo(f"{about}; torch.add {least([lambda: torch.add(x, y)], 3000)[0]:.1f} us")

    def chosen(names: Iterable[str]) -> list[str]:
        return [name for name in names if any(part in name for part in only.split(","))]

    if calls:
        print_small(chosen(small()), calls)
    if repeats:
        print_large(chosen(large()), repeats, limit)
    if turns:
        print_small_steps(chosen(PAIRS), turns)
    if repeats:
        print_large_steps(chosen(LARGE), repeats)


def print_small(names: Sequence[str], calls: int) -> None:
    """Print a table of host microseconds, a row for each function."""
    columns = ("host us", "without", "forward", "backward", "PyTorch's: the same")
    click.echo(f"\n{head_of(columns)}")
    for name in names:
        ours_and_theirs = zip(*host(small()[name], calls), strict=True)
        mine, other = ([f"{us:.1f}" for us in each] for each in ours_and_theirs)
        click.echo(row_of([name, *mine, ", ".join(other)]))


def print_large(names: Sequence[str], repeats: int, limit: float) -> None:
    """Print a table of large calls: a row for each way of a case, one of our best over others'.

    limit: seconds of a way.
    """
    columns = ("forward and backward", "way", "ms", "captured, ms", "GB beside", "and gradients")
    click.echo(f"\n{head_of(columns)}")
    with Workers() as workers:
        for name in names:
            results: dict[str, Cells] = {}
            for way in workers.ask(names_of, name):
                try:
                    results[way] = workers.ask(cells_of, name, way, repeats, limit=limit)
                except TimeoutError:
                    results[way] = [f"longer than {limit:.0f} s", "", "", ""]
                except BrokenProcessPool:
                    results[way] = ["the process ended", "", "", ""]
                click.echo(row_of([name, way, *map(cell_text, results[way])]))
                if any(isinstance(cell, str) for cell in results[way]):
                    workers.renew()
            ratios = (ratio(results, place) for place in range(2))
            click.echo(row_of([name, "our best over the others'", *ratios, "", ""]))


def print_small_steps(names: Sequence[str], turns: int) -> None:
    """Print a table of steps over small parameters, a row for each pair of PAIRS."""
    columns = ("step", "us", "PyTorch's fused, us", "ratio")
    click.echo(f"\n{head_of(columns)}")
    for name in names:
        both = [SmallSteps(make) for make in PAIRS[name]]
        result = [[steps.microseconds() for steps in both] for _ in range(turns + 2)][2:]
        us, fused = (statistics.median(each) for each in zip(*result, strict=True))
        ratio = statistics.median(one / other for one, other in result)
        click.echo(row_of([name, f"{us:.0f}", f"{fused:.0f}", f"{ratio:.2f}"]))


def print_large_steps(names: Sequence[str], repeats: int) -> None:
    """Print a table of steps over large parameters, a row for each optimizer of LARGE."""
    n = sum(math.prod(shape) for shape in SHAPES)
    click.echo(f"\n{head_of((f'{n / 1e6:.0f} million parameters', 'ms', 'bytes of moments'))}")
    for name in names:
        parameters = [torch.nn.Parameter(torch.randn(s, device="cuda")) for s in SHAPES]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer = LARGE[name](parameters)
        between_events(optimizer.step, 3)
        ms = between_events(optimizer.step, repeats)
        states = optimizer.state.values()
        nbytes = sum(state[key].nbytes for state in states for key in ("exp_avg", "exp_avg_sq"))
        click.echo(row_of([name, f"{ms:.3f}", f"{nbytes / n:.3f}"]))


def small() -> dict[str, tuple[Call, Call]]:
    """Return {name: (ours, PyTorch's)}: functions of a tensor of 64 x 64."""
    row, shift = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    target = torch.randint(64, (64,), device="cuda")
    calls: dict[str, Callable[[Any, torch.Tensor], Any]] = {
        "layer_norm": lambda module, x: module.layer_norm(x, (64,), row, shift),
        "rms_norm": lambda module, x: module.rms_norm(x, (64,), row),
        "softmax": lambda module, x: module.softmax(x, -1),
        "embedding": lambda module, x: module.embedding(target, x),
        "cross_entropy": lambda module, x: module.cross_entropy(x, target),
    }
    results = {name: (partial(call, ours), partial(call, theirs)) for name, call in calls.items()}
    results |= {name: both(name) for name in ("gelu", "relu", "dropout")}
    return results | {"a node of Python around nothing": (Alias.apply, lambda x: x.view(64, 64))}


def both(name: str) -> tuple[Call, Call]:
    """Return (our function of this name, PyTorch's)."""
    return getattr(ours, name), getattr(theirs, name)


def host(functions: Sequence[Call], calls: int) -> list[list[float]]:
    """Return host microseconds of each function: [without gradients, forward, backward]."""
    x = torch.randn(64, 64, device="cuda")
    leaves = [torch.randn(64, 64, device="cuda", requires_grad=True) for _ in functions]
    results = [function(leaf) for function, leaf in zip(functions, leaves, strict=True)]
    ways = list(zip(functions, leaves, results, map(torch.ones_like, results), strict=True))
    return [
        least([lambda f=f: f(x) for f in functions], calls),
        least([lambda f=f, leaf=leaf: f(leaf) for f, leaf, _, _ in ways], calls),
        least([lambda arguments=arguments: _backward(*arguments) for _, *arguments in ways], calls),
    ]


def _backward(leaf: torch.Tensor, y: torch.Tensor, dy: torch.Tensor) -> None:
    torch.autograd.grad(y, leaf, dy, retain_graph=True)


def least(some: Sequence[Step], calls: int) -> list[float]:
    """Return the least microseconds of a call of each function, measured in turns."""
    result: list[float] = [math.inf] * len(some)
    for call in some * 20:
        call()
    for _ in range(max(calls // GROUP, 1)):
        for i, call in enumerate(some):
            result[i] = min(result[i], median(call))
    return result


def median(call: Step, n: int = GROUP, before: Step = lambda: None) -> float:
    """Return the median microseconds of n calls, with the device idle before the first.

    before: is called ahead of each, uncounted.
    """
    torch.cuda.synchronize()
    return statistics.median(timeit.repeat(call, before, number=1, repeat=n)) * 1e6


def leaf(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype).requires_grad_()


def large() -> dict[str, Callable[[], dict[str, Way]]]:
    """Return for each case a function that makes the ways to compute it."""
    results: dict[str, Callable[[], dict[str, Way]]] = {}
    for n, classes in ((8192, 32000), (8192, 131072)):
        results[f"cross_entropy {n} x {classes} bf16"] = partial(_loss, n, classes)
    results["linear_cross_entropy 16384 x 4096, 131072 classes"] = _linear_loss
    results["embedding 65536 of 50257 x 1024 bf16"] = _embedding
    for dtype, kind in ((torch.bfloat16, "bf16"), (torch.float32, "f32")):
        for n, columns in ((65536, 1024), (16384, 4096), (8192, 8192)):
            for name in ("layer_norm", "rms_norm"):
                results[f"{name} {n} x {columns} {kind}"] = partial(_norm, name, n, columns, dtype)
        for name in ("softmax", "gelu", "relu", "dropout"):
            results[f"{name} 65536 x 1024 {kind}"] = partial(_pointwise, name, dtype)
    return results


def _ways(
    mine: Call, other: Call, leaves: list[torch.Tensor], liger: Call | None = None
) -> dict[str, Way]:
    """Return the ways by name, ours and PyTorch's also compiled; leaves: arguments of each."""
    ways = {"ours": mine, "ours compiled": torch.compile(mine), "PyTorch": other}
    ways["PyTorch compiled"] = torch.compile(other)
    if liger is not None:
        ways["Liger"] = liger
    return {name: (function, leaves) for name, function in ways.items()}


def _norm(name: str, n: int, columns: int, dtype: torch.dtype) -> dict[str, Way]:
    """Return the ways to compute a normalisation of n rows, and its gradient."""
    leaves = [leaf(n, columns, dtype=dtype)]
    leaves += [leaf(columns, dtype=dtype) for _ in range(1 + (name == "layer_norm"))]
    mine, other = (lambda x, *rest, f=f: f(x, (columns,), *rest) for f in both(name))
    liger = _liger(f"liger_{name}")
    return _ways(mine, other, leaves, liger and (lambda *arguments: liger(*arguments, 1e-6)))


def _pointwise(name: str, dtype: torch.dtype) -> dict[str, Way]:
    """Return the ways to compute a function of one array, such as "gelu", and its gradient."""
    keywords = {"dim": -1} if name == "softmax" else {}
    mine, other = (lambda x, f=f: f(x, **keywords) for f in both(name))
    liger = _liger("liger_softmax") if name == "softmax" else None
    return _ways(mine, other, [leaf(65536, 1024, dtype=dtype)], liger)


def _loss(n: int, classes: int) -> dict[str, Way]:
    """Return the ways to compute cross entropy of (n, classes) scores and its gradient."""
    target = torch.randint(classes, (n,), device="cuda")
    leaves = [leaf(n, classes)]  # the result of an operation would bring its stream into a graph
    liger = _liger("liger_cross_entropy")
    result = _ways(
        lambda x: ours.cross_entropy(x, target),
        lambda x: theirs.cross_entropy(x, target),
        leaves,
        liger and (lambda x: liger(x, target)),
    )
    in_place = lambda x: ours.cross_entropy(Alias.apply(x), target, inplace=True)  # noqa: E731
    return result | {"ours in place": (in_place, leaves)}


class Alias(torch.autograd.Function):
    """The same memory, as the result of an operation: a leaf cannot be overwritten."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(0).set_(x)

    @staticmethod
    def backward(_: Any, dy: torch.Tensor) -> torch.Tensor:
        return dy


def _linear_loss() -> dict[str, Way]:
    """Return the ways to compute a linear layer and cross entropy: 16384 rows, 131072 classes."""
    target = torch.randint(131072, (16384,), device="cuda")
    with torch.no_grad():
        leaves = [leaf(16384, 4096), (leaf(131072, 4096) * 0.02).detach().requires_grad_()]
    ways = {"ours": lambda h, w: ours.linear_cross_entropy(h, w, target)}
    if liger := _liger("liger_fused_linear_cross_entropy"):
        ways["Liger"] = lambda h, w: liger(h, w, target)
    ways["PyTorch"] = lambda h, w: theirs.cross_entropy(theirs.linear(h, w), target)
    return {name: (function, leaves) for name, function in ways.items()}


def _embedding() -> dict[str, Way]:
    indices = torch.randint(50257, (65536,), device="cuda")
    mine, other = (lambda w, f=f: f(indices, w) for f in both("embedding"))
    return _ways(mine, other, [leaf(50257, 1024)])


def _liger(name: str) -> Any:
    """Return Liger-Kernel's function of this name, None if it is not installed."""
    try:
        return getattr(importlib.import_module("liger_kernel.transformers.functional"), name)
    except ImportError:
        return None


# ---- another process, so that a way that fails leaves the rest -----------------------------------


class Workers:
    """A process that calls functions; `renew` replaces it after a failure, which spoils CUDA."""

    def __enter__(self) -> Workers:
        self.renew()
        return self

    def __exit__(self, *error: object) -> None:
        self.pool.shutdown()

    def renew(self) -> None:
        """Kill the process and begin another."""
        for process in multiprocessing.active_children():
            process.kill()
        self.pool = ProcessPoolExecutor(
            1,
            multiprocessing.get_context("spawn"),
            torch.autograd.set_multithreading_enabled,
            (False,),
        )

    def ask(self, function: Call, *arguments: Any, limit: float | None = None) -> Any:
        """Return function(*arguments) of that process; TimeoutError after `limit` seconds."""
        return self.pool.submit(function, *arguments).result(limit)


@functools.lru_cache(maxsize=1)
def ways_of(name: str) -> dict[str, Way]:
    """Return the ways to compute a case, made in this process, after freeing what others left."""
    torch.cuda.empty_cache()
    torch.compiler.reset()
    return large()[name]()


def names_of(name: str) -> list[str]:
    """Return the names of a case's ways; the previous case is freed first."""
    ways_of.cache_clear()
    return list(ways_of(name))


def cells_of(name: str, way: str, repeats: int) -> Cells:
    """Return the figures of one way of a case."""
    return figures(*ways_of(name)[way], repeats)


def ratio(result: dict[str, Cells], place: int) -> str:
    """Return our best over the others' as text, "" if one is missing; place: index of the cell."""
    bests = [_best(result, place, is_ours=is_ours) for is_ours in (True, False)]
    return f"{bests[0] / bests[1]:.2f}" if all(bests) else ""


def _best(result: dict[str, Cells], place: int, *, is_ours: bool) -> float:
    some = [cells[place] for way, cells in result.items() if way.startswith("ours") == is_ours]
    return min((cell for cell in some if isinstance(cell, float)), default=0.0)


def cell_text(cell: float | str) -> str:
    """Return a cell's text: a number with three decimals, or words."""
    return cell if isinstance(cell, str) else f"{cell:.3f}"


def figures(function: Call, leaves: list[torch.Tensor], repeats: int) -> Cells:
    """Return cells of a forward and backward pass: milliseconds called, captured in a graph, peak
    gigabytes with and without gradients; an error's words in place of what cannot be measured."""

    def step() -> None:
        y = function(*leaves)
        torch.autograd.grad(y, leaves, torch.ones_like(y))

    try:
        ms, gb = time_called(step, repeats)
        gbs = [gb, gb - sum(leaf.nbytes for leaf in leaves) / 1e9]
    except Exception as error:  # the other ways are measured all the same
        return [_words(error), "", "", ""]
    try:
        return [ms, time_captured(step, repeats), *gbs]
    except Exception as error:
        return [ms, _words(error), *gbs]


def _words(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    return text.replace("|", "/")[:80]


def time_called(step: Step, repeats: int) -> tuple[float, float]:
    """Return (median milliseconds of a step, peak gigabytes beside what was allocated before)."""
    between_events(step, 3)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    ms = between_events(step, repeats)
    return ms, (torch.cuda.max_memory_allocated() - before) / 1e9


def time_captured(step: Step, repeats: int) -> float:
    """Return the median milliseconds of a step replayed from a CUDA graph."""
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


def between_events(call: Step, repeats: int) -> float:
    """Return the median milliseconds between events before and after a call."""
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for start, end in marks:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in marks)


# ---- optimizers ----------------------------------------------------------------------------------


class SmallSteps:
    """An optimizer over small parameters, whose gradients are four sets of tensors in turn."""

    def __init__(self, make: Callable[[Parameters], Step]) -> None:
        shapes = [(SIZE,) * len(shape) for shape in SHAPES]
        self.parameters = [torch.nn.Parameter(torch.randn(s, device="cuda")) for s in shapes]
        sets = [[torch.randn(s, device="cuda") for s in shapes] for _ in range(4)]
        self.turns = itertools.cycle(sets)
        self.step = make(self.parameters)

    def microseconds(self) -> float:
        """Return the median microseconds of STEPS steps."""
        return median(self.step, STEPS, self.renew)

    def renew(self) -> None:
        """Set the next gradients, at other addresses than those of the step before."""
        for parameter, gradient in zip(self.parameters, next(self.turns), strict=True):
            parameter.grad = gradient.detach()


def plain(parameters: Parameters, **keywords: Any) -> Step:
    """Return a step of cto.AdamW over tensors; keywords: of the step."""
    optimizer = cto.AdamW(parameters)
    return lambda: optimizer.step([p.grad for p in parameters], **keywords)


def plain_clipped(parameters: Parameters) -> Step:
    """Return a step of cto.AdamW with a loss scale and clipping."""
    return plain(parameters, loss_scale=torch.ones((), device="cuda"), max_norm=MAX_NORM)


def fused_clipped(parameters: Parameters) -> Step:
    """Return PyTorch's clipping and fused step."""
    optimizer = fused(parameters)

    def both() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM)
        optimizer.step()

    return both


def step_of(make: Optimizers) -> Callable[[Parameters], Step]:
    """Return a function from parameters to a step of an optimizer of PyTorch's protocol."""
    return lambda parameters: make(parameters).step


def with_scaler(make: Optimizers) -> Callable[[Parameters], Step]:
    """Return a function from parameters to a step as GradScaler makes it, which unscales."""

    def begin(parameters: Parameters) -> Step:
        optimizer: Any = make(parameters)
        optimizer.grad_scale = torch.ones((), device="cuda")
        optimizer.found_inf = torch.zeros((), device="cuda")
        return optimizer.step

    return begin


def in_groups(make: Optimizers) -> Callable[[Parameters], Step]:
    """Return a function from parameters to a step with two groups: vectors have no decay."""

    def begin(parameters: Parameters) -> Step:
        matrices = [p for p in parameters if p.dim() > 1]
        vectors = [p for p in parameters if p.dim() == 1]
        return make([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]).step

    return begin


adamw, fused = cto.torch.AdamW, partial(torch.optim.AdamW, fused=True)
PAIRS: dict[str, tuple[Callable[[Parameters], Step], Callable[[Parameters], Step]]] = {
    "cto.AdamW, norm and step": (plain, step_of(fused)),
    "cto.AdamW, unscaling, clipping": (plain_clipped, fused_clipped),
    "cto.torch.AdamW": (step_of(adamw), step_of(fused)),
    "cto.torch.AdamW, two groups": (in_groups(adamw), in_groups(fused)),
    "cto.torch.AdamW, GradScaler": (with_scaler(adamw), with_scaler(fused)),
    "cto.torch.AdamW, max_norm": (step_of(partial(adamw, max_norm=MAX_NORM)), fused_clipped),
}
LARGE: dict[str, Optimizers] = {
    "PyTorch's fused AdamW": fused,
    "cto.torch.AdamW": adamw,
    "cto.torch.AdamW, 8 bits": partial(adamw, state="8bit"),
}


if __name__ == "__main__":
    main()
