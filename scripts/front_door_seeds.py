# SPDX-License-Identifier: MIT
"""Losses of trainings through PyTorch's front door beside plain ones of the same seeds.

    python scripts/front_door_seeds.py --model gpt --seeds 3
    python scripts/front_door_seeds.py --model little --steps 200 --rate 3e-3   (on a CPU, too)

Dropout stays PyTorch's, so that a seed's masks are the same and what is left is arithmetic: a mean
of differences is then told from noise by few seeds. With `--masks` it is swapped as well. Prints
the mean of the last tenth of the losses, its range over the seeds, and the differences from plain.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import click
import front_door_training as training
import torch
from front_door_models import GPT, TASKS, Task, text
from front_door_training import Method
from train_losses import last

METHODS = {
    "plain": Method(),
    "ours": Method(is_ours=True),
    "8bit": Method(is_ours=True, state="8bit"),
    "chunked": Method(is_ours=True, is_chunked=True),
    "compressed": Method(is_ours=True, is_compressed=True),
}


def little(_: bool) -> Task:
    """Small enough for a CPU."""
    return Task(
        "GPT, 2 layers, 64 wide, 4 x 32 tokens of 64",
        lambda: GPT(2, 64, 4, 64, 32),
        text(4, 32, 64),
        lambda model: model.blocks,
        lambda model, tokens: model(tokens),
        lambda model, tokens: (model.features(tokens), model.head.weight),
    )


def end_of(task: Task, method: Method, device: torch.device, seed: int, steps: int) -> float:
    """Where the losses of one training end."""
    found = training.Training(task, method, device, seed, 0)
    torch.manual_seed(1000 + seed)  # of masks, whatever making the model has drawn
    return last(torch.stack([found.step() for _ in range(steps)]).tolist())


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--model", type=click.Choice(["little", *TASKS]), default="little", show_default=True)
@click.option("--method", "methods", multiple=True, type=click.Choice(list(METHODS)))
@click.option("--seeds", default=10, show_default=True, type=click.IntRange(2))
@click.option("--steps", default=100, show_default=True, type=click.IntRange(1))
@click.option("--rate", default=training.LEARNING_RATE, show_default=True, help="Of learning.")
@click.option("--masks", is_flag=True, help="Swap Dropout, too.")
def main(
    model: str, methods: tuple[str, ...], seeds: int, steps: int, rate: float, masks: bool
) -> None:
    """Print a row for each method."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    training.LEARNING_RATE = rate
    training.SKIPPED = () if masks else ("Dropout",)
    task = (little if model == "little" else TASKS[model])(False)
    plain = [end_of(task, METHODS["plain"], device, seed, steps) for seed in range(seeds)]
    click.echo(f"{task.label}, {steps} steps, {seeds} seeds")
    click.echo("| method | mean | range | minus plain: mean | sd | median | each |\n|" + "---|" * 7)
    for name in methods or METHODS:
        ends = [end_of(task, METHODS[name], device, seed, steps) for seed in range(seeds)]
        off = [a - b for a, b in zip(ends, plain, strict=True)]
        each = " ".join(f"{difference:+.6f}" for difference in off)
        numbers = (statistics.fmean(off), statistics.stdev(off), statistics.median(off))
        shown = " | ".join(f"{number:+.6f}" for number in numbers)
        about = f"{statistics.fmean(ends):.6f} | {max(ends) - min(ends):.6f}"
        click.echo(f"| {name} | {about} | {shown} | {each} |")


if __name__ == "__main__":
    main()
