# SPDX-License-Identifier: MIT
"""Times of optimizers' steps on a GPU, beside PyTorch's fused AdamW: the host's, the device's.

    python3 scripts/optimizer_times.py [--turns 50] [--device-steps 20]

First a transformer's 292 parameters, made small, so that the device never holds the host up, with
gradients that are new tensors in each step: microseconds are medians, the ratio is that of the
medians of turns. Then the same at their size, float32, by events: milliseconds, and the moments'
bytes for each parameter.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import click
import torch
from cases.parameters import SHAPES

import cupy_training_ops as cto

SIZE = 16  # of each dimension
STEPS = 20  # of a turn, which the device's queue holds
MAX_NORM = 1.0
Parameters = list[torch.nn.Parameter]
Step = Callable[[], Any]
Optimizers = Callable[..., torch.optim.Optimizer]


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--turns", default=50, show_default=True, help="Of the host; 0 for none.")
@click.option("--device-steps", default=20, show_default=True, help="0 for none.")
def main(turns: int, device_steps: int) -> None:
    """Print two tables."""
    click.echo(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    if turns:
        on_host(turns)
    if device_steps:
        on_device(device_steps)


def on_host(turns: int) -> None:
    """A row for each pair of steps."""
    x, y = torch.randn(2, 64, 64, device="cuda")
    click.echo("| step | us | PyTorch's fused, us | ratio |\n|---|---|---|---|")
    for name, pair in PAIRS.items():
        both = [Steps(make) for make in pair]
        found = [[steps.microseconds() for steps in both] for _ in range(turns + 2)][2:]
        us, fused = (statistics.median(each) for each in zip(*found, strict=True))
        ratio = statistics.median(one / other for one, other in found)
        click.echo(f"| {name} | {us:.0f} | {fused:.0f} | {ratio:.2f} |")
    click.echo(f"| torch.add | {median(lambda: torch.add(x, y), 1000):.1f} | | |")


def on_device(steps: int) -> None:
    """A row for each optimizer."""
    n = sum(math.prod(shape) for shape in SHAPES)
    click.echo(f"\n| {n / 1e6:.0f} million parameters | ms | bytes of moments |\n|---|---|---|")
    for name, make in LARGE.items():
        parameters = [torch.nn.Parameter(torch.randn(s, device="cuda")) for s in SHAPES]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer = make(parameters)
        marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(steps + 3)]
        for start, end in marks:
            start.record()
            optimizer.step()
            end.record()
        torch.cuda.synchronize()
        ms = statistics.median(start.elapsed_time(end) for start, end in marks[3:])
        states = optimizer.state.values()
        nbytes = sum(state[key].nbytes for state in states for key in ("exp_avg", "exp_avg_sq"))
        click.echo(f"| {name} | {ms:.3f} | {nbytes / n:.3f} |")


class Steps:
    """An optimizer over parameters of its own, and gradients that it is given in turns."""

    def __init__(self, make: Callable[[Parameters], Step]) -> None:
        shapes = [(SIZE,) * len(shape) for shape in SHAPES]
        self.parameters = [torch.nn.Parameter(torch.randn(s, device="cuda")) for s in shapes]
        sets = [[torch.randn(s, device="cuda") for s in shapes] for _ in range(4)]
        self.turns = itertools.cycle(sets)
        self.step = make(self.parameters)

    def microseconds(self) -> float:
        """The median of a turn."""
        return median(self.step, STEPS, self.renew)

    def renew(self) -> None:
        """New tensors, at other addresses than those of the step before."""
        for parameter, gradient in zip(self.parameters, next(self.turns), strict=True):
            parameter.grad = gradient.detach()


def median(call: Step, n: int, before: Callable[[], None] = lambda: None) -> float:
    """Microseconds of a call, with the device idle before the first."""
    torch.cuda.synchronize()
    seconds = []
    for _ in range(n):
        before()
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e6


def plain(parameters: Parameters, **given: Any) -> Step:
    """The operator behind ours, over tensors."""
    optimizer = cto.AdamW(parameters)
    return lambda: optimizer.step([p.grad for p in parameters], **given)


def clipped(parameters: Parameters) -> Step:
    """The same with a loss scale and clipping."""
    return plain(parameters, loss_scale=torch.ones((), device="cuda"), max_norm=MAX_NORM)


def fused_clipped(parameters: Parameters) -> Step:
    """PyTorch's way to clip, before its step."""
    optimizer = fused(parameters)

    def both() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM)
        optimizer.step()

    return both


def step_of(make: Optimizers) -> Callable[[Parameters], Step]:
    """Maker of a step of PyTorch's protocol."""
    return lambda parameters: make(parameters).step


def scaled(make: Optimizers) -> Callable[[Parameters], Step]:
    """An optimizer as GradScaler steps it where nothing is to be unscaled before."""

    def made(parameters: Parameters) -> Step:
        optimizer: Any = make(parameters)
        optimizer.grad_scale = torch.ones((), device="cuda")
        optimizer.found_inf = torch.zeros((), device="cuda")
        return optimizer.step

    return made


def in_groups(make: Optimizers) -> Callable[[Parameters], Step]:
    """Vectors without decay, as is usual."""

    def made(parameters: Parameters) -> Step:
        matrices = [p for p in parameters if p.dim() > 1]
        vectors = [p for p in parameters if p.dim() == 1]
        return make([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]).step

    return made


ours, fused = cto.torch.AdamW, partial(torch.optim.AdamW, fused=True)
PAIRS: dict[str, tuple[Callable[[Parameters], Step], Callable[[Parameters], Step]]] = {
    "cto.AdamW, norm and step": (plain, step_of(fused)),
    "cto.AdamW, unscaling, clipping": (clipped, fused_clipped),
    "cto.torch.AdamW": (step_of(ours), step_of(fused)),
    "cto.torch.AdamW, two groups": (in_groups(ours), in_groups(fused)),
    "cto.torch.AdamW, GradScaler": (scaled(ours), scaled(fused)),
    "cto.torch.AdamW, max_norm": (step_of(partial(ours, max_norm=MAX_NORM)), fused_clipped),
}
LARGE: dict[str, Optimizers] = {
    "PyTorch's fused": fused,
    "cto.torch.AdamW": ours,
    "cto.torch.AdamW, 8 bits": partial(ours, state="8bit"),
}


if __name__ == "__main__":
    main()
