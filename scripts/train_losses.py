# SPDX-License-Identifier: MIT
"""Losses of trainings with compressed activations beside plain ones, from several starts.

    python scripts/train_losses.py --out FOLDER            (a GPU with 48 GB; three minutes)
    python scripts/train_losses.py --quick --out FOLDER    (small sizes, on the CPU too)

The models are those of scripts/train_torch.py; a seed draws weights and data. FOLDER gets
train_losses.json with all losses, and train_losses.md: for each model and method the mean loss of
the last tenth of the steps, seed by seed, and how far that is from plain training's at most.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import click
import torch
from torch_models import Model, models
from train_torch import CURVES, PLAIN, Training, about

Losses = dict[str, list[list[float]]]  # by method, of each seed


def trained(model: Model, method: str, device: torch.device, seed: int, steps: int) -> list[float]:
    """The losses of a training."""
    training = Training(model, method, device, seed)
    losses = [training.step() for _ in range(steps)]
    del training
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return [loss.item() for loss in losses]


def last(losses: list[float]) -> float:
    """The mean of the last tenth."""
    return statistics.fmean(losses[-max(len(losses) // 10, 1) :])


def rows(label: str, losses: Losses) -> list[str]:
    """Of a table: ends of each method, their largest distance from plain, the plain ones' range."""
    plain = [last(each) for each in losses[PLAIN]]
    found = []
    for method, of_seeds in losses.items():
        ends = [last(each) for each in of_seeds]
        off = max(abs(a - b) for a, b in zip(ends, plain, strict=True))
        each = ", ".join(f"{end:.4f}" for end in ends)
        found.append(f"| {label} | {method} | {each} | {off:.4f} | {max(plain) - min(plain):.4f} |")
    return found


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--quick", is_flag=True, help="Small sizes.")
@click.option("--model", "names", multiple=True, type=click.Choice(list(models(quick=True))))
@click.option("--steps", default=100, show_default=True, type=click.IntRange(1))
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(2))
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path())
def main(quick: bool, names: tuple[str, ...], steps: int, seeds: int, out: Path) -> None:
    """Train, and write JSON and a table."""
    if not quick and not torch.cuda.is_available():
        raise click.UsageError("expected a GPU; without one there is --quick")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    lines = [
        "| model | method | last losses | off plain | plain's range |",
        "|---|---|---|---|---|",
    ]
    whole: dict[str, Any] = {"about": about(device), "losses": {}}
    found = models(quick)
    for name, model in ((name, found[name]) for name in names or found):
        losses = {
            method: [trained(model, method, device, seed, steps) for seed in range(seeds)]
            for method in CURVES
        }
        whole["losses"][name] = losses
        lines += rows(model.label, losses)
        click.echo(f"{name} trained", err=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / "train_losses.json").write_text(json.dumps(whole) + "\n")
    (out / "train_losses.md").write_text("\n".join(lines) + "\n")
    click.echo("\n".join(lines))


if __name__ == "__main__":
    main()
