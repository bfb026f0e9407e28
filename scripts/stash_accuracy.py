# SPDX-License-Identifier: MIT
"""What compressed activations cost in accuracy: the digits of `train_digits.py`, over ten seeds.

    python scripts/stash_accuracy.py --out docs

FOLDER gets stash_digits.json, and stash_digits.png with all curves and the share of the held-out
images that each training reads.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import click
import numpy as np
from train_digits import Result, share, train

from cupy_training_ops.cli.machine import array_library

POLICIES = (None, "default", "small")
WINDOW = 30  # steps of an epoch, over which a curve is the mean


def name_of(policy: str | None) -> str:
    """A policy in words."""
    return policy or "plain"


def row(policy: str | None, results: list[Result]) -> dict[str, Any]:
    """What became of all seeds under a policy."""
    accuracies = [share(result) for result in results]
    return {
        "policy": name_of(policy),
        "mean_accuracy": statistics.mean(accuracies),
        "accuracies": accuracies,
        "bytes": results[0].stash,
        "curves": [curve(result.losses) for result in results],
    }


def curve(losses: list[float]) -> list[float]:
    """Means over the steps of about an epoch, every tenth."""
    width = min(WINDOW, len(losses))
    means = np.convolve(losses, np.full(width, 1 / width), "valid")
    return [round(float(mean), 5) for mean in means[::10]]


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """The curves of all seeds, and where each of them ends."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    losses, accuracies = figure.subplots(1, 2, width_ratios=(2, 1))
    for place, found in enumerate(rows):
        color, label = f"C{place}", f"{found['policy']}: {found['mean_accuracy']:.2%}"
        for i, means in enumerate(found["curves"]):
            steps = WINDOW + 10 * np.arange(len(means))
            width = 2 * len(rows) - 2 * place - 1  # they lie on each other
            losses.semilogy(steps, means, color=color, lw=width, label="" if i else label)
        shares = 100 * np.array(found["accuracies"])
        accuracies.plot(place + np.linspace(-0.15, 0.15, len(shares)), shares, "o", color=color)
        accuracies.hlines(shares.mean(), place - 0.3, place + 0.3, color=color)
    losses.set(xlabel="step", ylabel=f"cross-entropy, mean of {WINDOW} steps")
    losses.legend(title="held-out images, mean of all seeds")
    names = [found["policy"] for found in rows]
    accuracies.set(ylabel="held-out images read correctly, %", xticks=range(len(rows)))
    accuracies.set_xticklabels(names)
    figure.savefig(path, format="png", dpi=110)


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--seeds", type=click.IntRange(1), default=10, show_default=True)
@click.option("--steps", type=click.IntRange(1), default=450, show_default=True)
@click.option("--device", type=click.Choice(["auto", "cuda", "cpu"]), default="auto")
@click.option("--replot", is_flag=True, help="Only draw what was measured before.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path())
def main(seeds: int, steps: int, device: str, replot: bool, out: Path) -> None:
    """Train with each policy and seed, and write what became of it."""
    path = out / "stash_digits.json"
    if replot:
        rows = json.loads(path.read_text())["rows"]
    else:
        xp = array_library(device)
        rows = [row(p, [train(xp, seed, steps, p) for seed in range(seeds)]) for p in POLICIES]
        about = {"seeds": seeds, "steps": steps, "device": "cpu" if xp is np else "cuda"}
        path.write_text(json.dumps({**about, "rows": rows}) + "\n")
    plot(rows, path.with_suffix(".png"))
    for found in rows:
        click.echo(f"{found['policy']}: {found['mean_accuracy']:.2%}, bytes {found['bytes']}")


if __name__ == "__main__":
    main()
