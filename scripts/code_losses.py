# SPDX-License-Identifier: MIT
"""Losses of compiled trainings whose activations wait as codes, beside the same without codes.

    python scripts/code_losses.py --out FOLDER            (one GPU; three minutes)
    python scripts/code_losses.py --tiny --out FOLDER     (small sizes, on the CPU too)

A seed draws weights and data, of which every step has new ones: tokens, each drawn from the few
that may follow the one before it, and classes of images under noise. FOLDER gets code_losses.json
with all losses, and code_losses.md: means of the last sixth of the steps, seed by seed, how far
codes are from plain at most, and how far the plain ones are from each other.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import click
import numpy as np
import torch
from markdown_table import row_of, table
from memory_map import about
from memory_map_report import coded_bytes
from torch import Tensor, nn
from torch.nn import functional
from training_models import GPT, Llama, ResNet

import cupy_training_ops as cto

LEARNING_RATE = 5e-4
WRONG_LABELS = 0.2  # of all
WAYS = ("plain", "codes")
Batch = tuple[Tensor, Tensor]


class Course(NamedTuple):
    """A model, and a batch for each step of a seed."""

    make: Callable[[], nn.Module]
    batches: Callable[[int, int, torch.device], list[Batch]]  # (seed, number of steps, device)


def chains(n: int, length: int, classes: int) -> Callable[[int, int, torch.device], list[Batch]]:
    """Return a function that draws batches of texts: drawn(seed, steps, device).

    Each token is followed by one of four that are its own, with probabilities 0.6, 0.2, 0.1, 0.1.
    n: texts in a batch, of `length` tokens from 0 to classes - 1; targets are the next tokens.
    """
    after = np.random.default_rng(0).integers(classes, size=(classes, 4))

    def drawn(seed: int, steps: int, device: torch.device) -> list[Batch]:
        rng = np.random.default_rng(seed)
        tokens = np.empty((steps, n, length + 1), np.int64)
        tokens[..., 0] = rng.integers(classes, size=(steps, n))
        for i in range(length):
            which = rng.choice(4, (steps, n), p=(0.6, 0.2, 0.1, 0.1))
            tokens[..., i + 1] = after[tokens[..., i], which]
        result = torch.from_numpy(tokens).to(device)
        return [(each[:, :-1].contiguous(), each[:, 1:].flatten()) for each in result]

    return drawn


def noisy(n: int, side: int, classes: int) -> Callable[[int, int, torch.device], list[Batch]]:
    """Return a function that draws batches of images: drawn(seed, steps, device).

    An image, (3, side, side), repeats its class's pattern of 8 x 8 under twice as much noise. One
    of five labels is drawn anew, so that the loss has a floor and no spikes. n: images in a batch.
    """
    pattern = torch.randn(classes, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    pattern = pattern.repeat(1, 1, side // 8, side // 8)

    def drawn(seed: int, steps: int, device: torch.device) -> list[Batch]:
        generator = torch.Generator(device).manual_seed(seed)
        patterns, results = pattern.to(device), []
        for _ in range(steps):
            target = torch.randint(classes, (n,), generator=generator, device=device)
            noise = torch.randn(n, 3, side, side, generator=generator, device=device)
            other = torch.randint(classes, (n,), generator=generator, device=device)
            is_other = torch.rand(n, generator=generator, device=device) < WRONG_LABELS
            results.append((patterns[target] + 2 * noise, torch.where(is_other, other, target)))
        return results

    return drawn


def courses(tiny: bool) -> dict[str, Course]:
    """Return three models with their data, by name; tiny: small ones."""
    depth, width, n_heads, hidden, classes, n, length = (
        (1, 32, 2, 64, 16, 2, 32) if tiny else (4, 512, 8, 1408, 256, 16, 512)
    )
    stages, channels, images, side = ((1,), 8, 4, 16) if tiny else ((2, 2, 2, 2), 64, 64, 64)
    return {
        "gpt": Course(
            lambda: GPT(depth, width, n_heads, classes, length),
            chains(n, length, classes),
        ),
        "llama": Course(
            lambda: Llama(depth, width, n_heads, hidden, classes, length),
            chains(n, length, classes),
        ),
        "resnet": Course(
            lambda: ResNet(stages, channels, 10),
            noisy(images, side, 10),
        ),
    }


class Trained:
    """One model, compiled once and trained from several starts; options: of torch.compile."""

    def __init__(self, course: Course, options: Any, device: torch.device) -> None:
        self.course, self.options, self.device = course, options, device
        with device:
            self.model = course.make()
        self.loss = torch.compile(self._loss, options=options)

    def losses(self, seed: int, steps: int) -> list[float]:
        """Train from the weights and data of a seed; return the loss of each step."""
        torch.manual_seed(seed)
        with self.device:
            start = self.course.make()
        self.model.load_state_dict(start.state_dict())
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, fused=True)
        results = []
        for x, target in self.course.batches(seed, steps, self.device):
            with torch.autocast(self.device.type, torch.bfloat16):
                loss = self.loss(x, target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            results.append(loss.detach())
        return torch.stack(results).tolist()

    def coded(self) -> int:
        """Return the bytes, before encoding, of the activations that a step encodes."""
        return coded_bytes({"coded": self.options.report()}) or 0

    def _loss(self, x: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(self.model(x).float(), target)


def row(model: str, losses: dict[str, list[list[float]]], coded: int) -> list[str]:
    """Return cells: final losses of both ways by seed, their largest distance, that of the seeds,
    and MB of encoded activations.

    losses: by way, then seed, those of each step. coded: bytes.
    """
    plain, codes = ([end(each) for each in losses[name]] for name in WAYS)
    off = max(abs(a - b) for a, b in zip(plain, codes, strict=True))
    ends = (", ".join(f"{each:.4f}" for each in results) for results in (plain, codes))
    return [model, *ends, f"{off:.4f}", f"{max(plain) - min(plain):.4f}", f"{coded / 1e6:,.1f}"]


def end(losses: list[float]) -> float:
    """Return the mean of the last sixth of losses."""
    return statistics.fmean(losses[-max(len(losses) // 6, 1) :])


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--tiny", is_flag=True, help="Small sizes.")
@click.option("--models", multiple=True, type=click.Choice(list(courses(tiny=True))))
@click.option("--steps", default=300, show_default=True, type=click.IntRange(2))
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(2))
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True)
def main(tiny: bool, models: tuple[str, ...], steps: int, seeds: int, out: Path) -> None:
    """Train, and write JSON and a table."""
    if not tiny and not torch.cuda.is_available():
        raise click.UsageError("expected a GPU; without one there is --tiny")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    least = {"least": 0} if tiny else {}
    results: dict[str, dict[str, list[list[float]]]] = {}
    for model, course in courses(tiny).items():
        if models and model not in models:
            continue
        results[model] = {}
        for name in WAYS:
            torch.compiler.reset()
            codes = cto.torch.activation_codes(**least) if name == "codes" else None
            trained = Trained(course, codes, device)
            results[model][name] = [trained.losses(seed, steps) for seed in range(seeds)]
        rows.append(row(model, results[model], trained.coded()))
        click.echo(row_of(rows[-1]))
        text = json.dumps({"about": about(tiny), "losses": results})
        (out / "code_losses.json").write_text(text + "\n")
        columns = ("model", "plain", "codes", "apart", "seeds apart", "coded MB")
        (out / "code_losses.md").write_text(table(columns, rows) + "\n")


if __name__ == "__main__":
    main()
