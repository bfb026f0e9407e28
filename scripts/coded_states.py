# SPDX-License-Identifier: MIT
"""Losses of a small language model by AdamW with moments of 8 bits beside float32 ones, on a CPU.

    python scripts/coded_states.py                      (three seeds; a few minutes)
    python scripts/coded_states.py --steps 20 --seeds 1

The model predicts characters of Python's own documentation. `8bit` is the optimizer itself, through
its steps. `table` stands for other 8-bit optimizers: float32 moments that become, after each step,
the nearest of 256 unevenly spaced numbers (dynamic quantization, Dettmers et al.) times the largest
of their block of 256. The error is that of a step's direction u = m / sqrt(v), |u - u32| / |u32|,
where u32 has float32 moments of the same gradients; from the eleventh step.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import click
import torch
from front_door_models import GPT
from torch import Tensor
from torch.nn import functional

from cupy_training_ops.torch import AdamW
from cupy_training_ops.torch.optim import codes

MOMENTS = {"exp_avg": 0.9, "exp_avg_sq": 0.999}
DEPTH, WIDTH, N_HEADS, ROWS, LENGTH = 2, 64, 4, 16, 64
FIRST = 10  # steps whose error is not counted
LAST = 50  # steps whose losses are averaged
BLOCK = 256
Rounds = Callable[[Any], None]  # changes an optimizer's states after a step


def text() -> Tensor:
    """Characters as numbers below 128."""
    joined = "".join(topics[name] for name in sorted(topics))
    return torch.tensor(list(joined.encode("ascii", "replace")), dtype=torch.int64)


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of the text, and what follows each character."""
    whole, generator = text(), torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(whole) - LENGTH - 1, (ROWS, 1), generator=generator)
        found = whole[starts + torch.arange(LENGTH + 1)]
        yield found[:, :-1], found[:, 1:].flatten()


def numbers(*, signed: bool) -> Tensor:
    """The table: of each power of ten the more numbers, the larger it is."""
    found = [0.0, 1.0]
    for power in range(7):
        ends = torch.linspace(0.1, 1, 2 ** (power + (not signed)) + 1, dtype=torch.float64)
        found += ((ends[:-1] + ends[1:]) / 2 * 10.0 ** (power - 6)).tolist()
    both = found + [-x for x in found[2:]] if signed else found
    return torch.tensor(sorted(both), dtype=torch.float32)


TABLES = {name: numbers(signed=signed) for name, signed in codes.SIGNED.items()}


def to_table(optimizer: Any) -> None:
    """Every moment the nearest number times the largest of its block."""
    for state in optimizer.state.values():
        for name, known in TABLES.items():
            flat = state[name].flatten()
            padded = functional.pad(flat, (0, -len(flat) % BLOCK)).view(-1, BLOCK)
            largest = padded.abs().amax(1, keepdim=True).clamp(min=1e-30)
            share = (padded / largest).contiguous()
            near = known[torch.bucketize(share, (known[:-1] + known[1:]) / 2)] * largest
            state[name].copy_(near.flatten()[: len(flat)].view_as(state[name]))


def as_they_are(_: Any) -> None:
    """What codes its moments itself, or has float32 ones."""


KINDS: dict[str, tuple[str | None, Rounds]] = {
    "float32": (None, as_they_are),
    "8bit": ("8bit", as_they_are),
    "table": (None, to_table),
}


class Exact:
    """Float32 moments of the gradients that an optimizer is given."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.parameters = parameters
        self.moments = {name: [torch.zeros_like(p) for p in parameters] for name in MOMENTS}

    def step(self) -> None:
        for name, beta in MOMENTS.items():
            for moment, parameter in zip(self.moments[name], self.parameters, strict=True):
                gradient: Any = parameter.grad
                moment.lerp_(gradient if name == "exp_avg" else gradient.square(), 1 - beta)

    def error(self, optimizer: AdamW) -> float:
        """Of the direction of its next step."""
        own = {name: [_moment(optimizer, p, name) for p in self.parameters] for name in MOMENTS}
        u, u32 = _direction(own), _direction(self.moments)
        return float((u - u32).norm() / u32.norm())


def _moment(optimizer: AdamW, parameter: Tensor, name: str) -> Tensor:
    found = optimizer.state[parameter][name]
    if found.dtype == torch.uint8:
        return codes.decode(found, parameter, signed=codes.SIGNED[name])
    return found


def _direction(moments: dict[str, list[Tensor]]) -> Tensor:
    pairs = zip(moments["exp_avg"], moments["exp_avg_sq"], strict=True)
    return torch.cat([(m / (v.sqrt() + 1e-8)).flatten() for m, v in pairs])


class Trained(NamedTuple):
    """Losses of a training, and errors of its directions."""

    losses: list[float]
    errors: list[float]


def trained(kind: str, seed: int, steps: int) -> Trained:
    """A model from its first step to the last."""
    torch.manual_seed(seed)
    model, (state, rounds) = GPT(DEPTH, WIDTH, N_HEADS, 128, LENGTH).eval(), KINDS[kind]
    parameters = list(model.parameters())
    optimizer, exact = AdamW(parameters, lr=1e-3, state=state), Exact(parameters)
    found = Trained([], [])
    for i, (x, target) in zip(range(steps), batches(seed), strict=False):
        loss = functional.cross_entropy(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        exact.step()
        optimizer.step()
        rounds(optimizer)
        found.losses.append(loss.item())
        if i >= FIRST:
            found.errors.append(exact.error(optimizer))
    return found


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--steps", default=300, show_default=True, type=click.IntRange(FIRST + 1))
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1))
def main(steps: int, seeds: int) -> None:
    """Print a row for each kind of moments."""
    click.echo(f"PyTorch {torch.__version__}, Python {sys.version.split()[0]}, {steps} steps\n")
    click.echo("| moments | loss of the last steps | error, mean | most |\n|---|---|---|---|")
    for kind in KINDS:
        found = [trained(kind, seed, steps) for seed in range(seeds)]
        ends = ", ".join(f"{statistics.fmean(each.losses[-LAST:]):.4f}" for each in found)
        means = ", ".join(f"{statistics.fmean(each.errors):.3f}" for each in found)
        most = ", ".join(f"{max(each.errors):.3f}" for each in found)
        click.echo(f"| {kind} | {ends} | {means} | {most} |")


if __name__ == "__main__":
    main()
