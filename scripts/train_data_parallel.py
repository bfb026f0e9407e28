# SPDX-License-Identifier: MIT
"""Data-parallel training of dense layers: each rank has its rows of every batch, and all gradients
are added by one NcclAllReduce a step.

    python scripts/train_data_parallel.py --ranks 2
    python scripts/train_data_parallel.py --ranks 2 --sharded

With --sharded AdamW has its states divided among the ranks, and gradients become means in buckets
as the backward pass finds them.

Classes are points around centres, drawn alike on every rank. Prints the loss of the whole batch at
each step, and at the end a checksum of each rank's parameters.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import click
import numpy as np

import cupy_training_ops as cto
from cupy_training_ops.call.backends import to_host
from cupy_training_ops.cli import main as cupy_training_ops

FEATURES, HIDDEN, CLASSES = 64, 128, 10
BATCH = 96  # rows of all ranks
LEARNING_RATE, ADAM_RATE = 0.2, 0.005
BUCKET = 0.01  # MB: two buckets


class Training:
    """Two dense layers, their gradients, and this rank's rows of a fixed data set."""

    def __init__(
        self, xp: Any, group: cto.ProcessGroup, sharded: bool = False, dtype: str = "float32"
    ) -> None:
        """xp: NumPy or CuPy. sharded: AdamW over ranks, and buckets; else SGD and NCCL's sum."""
        self.xp, self.group = xp, group
        rng = np.random.default_rng(0)
        centres = rng.standard_normal((CLASSES, FEATURES))
        self.labels = rng.integers(0, CLASSES, 20 * BATCH)
        noise = rng.standard_normal((len(self.labels), FEATURES))
        self.rows = (centres[self.labels] + noise).astype(dtype)
        self.parameters = [xp.asarray(array.astype(dtype)) for array in start(rng)]
        self.gradients = [xp.zeros_like(array) for array in self.parameters]
        self.loss = xp.zeros(1, dtype)
        self.optimizer: Any = cto.SGD(self.parameters, LEARNING_RATE)
        self.add_up, self.buckets = cto.NcclAllReduce(group=group), None
        if sharded:
            self.optimizer = cto.AdamW(self.parameters, ADAM_RATE, group=group)
            self.buckets = cto.GradientBuckets(
                self.parameters, group, megabytes=BUCKET, optimizer=self.optimizer
            )

    def step(self, number: int) -> float:
        """Make a step on this rank's rows of a batch; return the loss of the whole batch."""
        own = self._own_rows(number)
        self._differentiate(self.xp.asarray(self.rows[own]), self.xp.asarray(self.labels[own]))
        if self.buckets is None:
            self.add_up([*self.gradients, self.loss])
            self.optimizer.step(self.gradients)
        else:
            self.optimizer.step(self.buckets.wait())
            self.add_up([self.loss])
        return float(self.loss[0])

    def _own_rows(self, number: int) -> slice:
        """Return this rank's rows of the number-th batch."""
        n = BATCH // self.group.size
        first = number * BATCH % len(self.rows) + self.group.rank * n
        return slice(first, first + n)

    def _differentiate(self, x: Any, labels: Any) -> None:
        """Compute loss and gradients of this rank's rows.

        Gradients are summed over ranks later, so divided by their number here; with buckets, which
        average, they are not.
        """
        w1, b1, w2, b2 = self.parameters
        share = 1 / self.group.size
        scale = share if self.buckets is None else 1.0
        hidden = self.xp.maximum(x @ w1 + b1, 0)
        loss, d_scores = cto.cross_entropy_loss_and_grad(hidden @ w2 + b2, labels, loss_scale=scale)
        self.loss[...] = loss * self.loss.dtype.type(share)
        self._ready(3, d_scores.sum(axis=0))
        self._ready(2, hidden.T @ d_scores)
        d_hidden = cto.relu_grad(self.xp.ascontiguousarray(d_scores @ w2.T), hidden)
        self._ready(1, d_hidden.sum(axis=0))
        self._ready(0, x.T @ d_hidden)

    def _ready(self, place: int, value: Any) -> None:
        """Write the gradient of parameters[place], and pass it to the buckets."""
        self.gradients[place][...] = value
        if self.buckets is not None:
            self.buckets.ready(place, self.gradients[place])

    def checksum(self) -> int:
        """Return a checksum of the parameters' bits."""
        host = [to_host(array) for array in self.parameters]
        return zlib.crc32(b"".join(array.tobytes() for array in host))


def start(rng: np.random.Generator) -> list[np.ndarray]:
    """Return the parameters before the first step: weights and biases of both layers."""
    w1 = rng.standard_normal((FEATURES, HIDDEN)) / FEATURES**0.5
    w2 = rng.standard_normal((HIDDEN, CLASSES)) / HIDDEN**0.5
    return [w1, np.zeros(HIDDEN), w2, np.zeros(CLASSES)]


def train(
    xp: Any, group: cto.ProcessGroup, steps: int, sharded: bool = False, dtype: str = "float32"
) -> tuple[list[float], int]:
    """Train; return (the loss of each step, the checksum of the parameters)."""
    training = Training(xp, group, sharded, dtype)
    losses = [training.step(number) for number in range(steps)]
    return losses, training.checksum()


@click.command()
@click.option("--ranks", type=int, help="Start so many processes; else this one is a rank.")
@click.option("--steps", default=50, show_default=True)
@click.option("--provider", type=click.Choice(["cpu", "cuda"]), default="cuda", show_default=True)
@click.option("--sharded", is_flag=True, help="AdamW with states divided among the ranks.")
@click.option("--dtype", type=click.Choice(["float32", "float64"]), default="float32")
def main(ranks: int | None, steps: int, provider: str, sharded: bool, dtype: str) -> None:
    """Train, and print the losses."""
    if ranks is not None:
        own = ["--steps", str(steps), "--provider", provider, "--dtype", dtype]
        own += ["--sharded"] * sharded
        cupy_training_ops(["launch", "--ranks", str(ranks), __file__, *own])
    with cto.ProcessGroup() as group:
        if group.rank == 0:
            print(f"{group.size} ranks, {BATCH // group.size} rows each", flush=True)
        losses, checksum = train(library(provider, group), group, steps, sharded, dtype)
    if group.rank == 0:
        print("losses", *(f"{loss:.9f}" for loss in losses))
    print("checksum", checksum)


def library(provider: str, group: cto.ProcessGroup) -> Any:
    """Return NumPy for "cpu", else CuPy, whose current device becomes the rank's own GPU."""
    if provider == "cpu":
        return np
    import cupy

    cupy.cuda.Device(group.local_rank % cupy.cuda.runtime.getDeviceCount()).use()
    return cupy


if __name__ == "__main__":
    main()
