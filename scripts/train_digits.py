# SPDX-License-Identifier: MIT
"""A convolutional network learns to read handwritten digits, on this package's operators alone.

    pip install -e '.[examples]'
    python scripts/train_digits.py --seed 1 --plot loss.png
    python scripts/train_digits.py --stash default

Arrays are NumPy's, or CuPy's on a GPU; no other library computes. It is trained on the
first 1,500 of scikit-learn's digits and tested on the last 297, which other people wrote.
With --stash the layers' outputs are codes from the forward pass to the backward pass.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import click
import numpy as np

import cupy_training_ops as cto
from cupy_training_ops.cli.machine import array_library
from cupy_training_ops.cli.terminal import progress

HELD_OUT = 297
SIDE, CLASSES, BATCH = 8, 10, 50
RATE = 0.1  # at first; it falls to 0 along half a cosine
# Filters, extent of the kernel, stride and padding; the last kernel is as wide as what it reads.
LAYERS = ((32, 3, 1, 1), (64, 3, 2, 1), (CLASSES, 4, 1, 0))


class Digits(NamedTuple):
    """Images with a margin of one pixel, and which digits they are."""

    images: Any
    labels: Any


def loaded() -> tuple[Digits, Digits]:
    """Return (digits to train on, digits held out for a test)."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise click.ClickException(f"{error}: pip install -e '.[examples]'") from None
    result = load_digits()
    images = result.images[:, None].astype(np.float32) / 8 - 1
    margin = ((0, 0), (0, 0), (1, 1), (1, 1))
    whole = Digits(np.pad(images, margin, constant_values=-1), result.target.astype(np.int64))
    return Digits(*(a[:-HELD_OUT] for a in whole)), Digits(*(a[-HELD_OUT:] for a in whole))


class Layer:
    """A convolution with bias; all but the last are followed by a ReLU."""

    def __init__(self, xp: Any, rng: np.random.Generator, n_in: int, shape: Sequence[int]) -> None:
        """n_in: input channels. shape: (output channels, extent of the kernel, stride, padding)."""
        filters, extent, stride, pad = shape
        spread = math.sqrt(6 / (n_in * extent * extent))
        weights = rng.uniform(-spread, spread, (filters, n_in, extent, extent))
        self.weight = xp.asarray(weights.astype(np.float32))
        self.bias = xp.zeros(filters, np.float32)
        self.is_last = filters == CLASSES
        self._attributes = {"strides": (stride, stride), "pads": (pad,) * 4}
        self._xp = xp

    def forward(self, x: Any) -> Any:
        """Return the output for images x."""
        y = cto.conv(x, self.weight, self.bias, **self._attributes)
        return y if self.is_last else self._xp.maximum(y, 0)

    def backward(self, dy: Any, x: Any, y: Any) -> Any:
        """Return the gradient of x; store those of weight and bias in `gradients`.

        dy: gradient of the output y.
        """
        if not self.is_last:
            dy = cto.relu_grad(dy, y)
        dx, *self.gradients = cto.conv_grad(dy, x, self.weight, **self._attributes)
        return dx


class Kept:
    """Storage of activations as they are, in place of cto.ActivationStash."""

    def __init__(self) -> None:
        self._arrays: dict[str, Any] = {}
        self.put, self.get = self._arrays.__setitem__, self._arrays.pop


class Network:
    """The layers, and plain gradient descent."""

    def __init__(
        self, xp: Any, rng: np.random.Generator, stash: cto.ActivationStash | None = None
    ) -> None:
        widths = (1, *(shape[0] for shape in LAYERS))
        self.layers = [Layer(xp, rng, *each) for each in zip(widths, LAYERS, strict=False)]
        self._descent = cto.SGD([p for layer in self.layers for p in (layer.weight, layer.bias)])
        self._stash = stash

    def scores(self, x: Any, put: Callable[[str, Any], None] | None = None) -> Any:
        """Return a row of scores for each image.

        put(layer's number, its output): stores what the next layer's backward pass reads.
        """
        for layer in self.layers:
            x = layer.forward(x)
            if put is not None and not layer.is_last:
                put(str(self.layers.index(layer)), x)
        return x.reshape(-1, CLASSES)

    def step(self, x: Any, labels: Any, rate: float) -> Any:
        """Make a forward and backward pass and an update; return the loss before it."""
        with self._stash or contextlib.nullcontext(Kept()) as codes:
            loss, slope = cto.cross_entropy_loss_and_grad(self.scores(x, codes.put), labels)
            slope, y = slope.reshape(-1, CLASSES, 1, 1), None
            for i, layer in reversed(list(enumerate(self.layers))):
                read = codes.get(str(i - 1)) if i else x
                slope, y = layer.backward(slope, read, y), read
        self._descent.step([g for layer in self.layers for g in layer.gradients], lr=rate)
        return loss


def batches(rng: np.random.Generator, n_images: int, n_steps: int) -> Iterator[np.ndarray]:
    """Yield the indices of n_steps full batches, in a new order each epoch."""
    order = np.empty(0, np.int64)
    for _ in range(n_steps):
        if len(order) < BATCH:
            order = rng.permutation(n_images)
        yield order[:BATCH]
        order = order[BATCH:]


def cropped(xp: Any, digits: Digits, at: Any, top: int = 1, left: int = 1) -> Any:
    """Return the images with indices `at`, without margins; top, left: 0 to 2, 1 for no shift."""
    return xp.ascontiguousarray(digits.images[at, :, top : top + SIDE, left : left + SIDE])


class Result(NamedTuple):
    """Outcome of a training."""

    losses: list[float]
    correct: int  # held-out images that are read correctly
    stash: dict[str, int] | None = None  # bytes of a step: before, after, at the peak


def train(xp: Any, seed: int, n_steps: int, policy: str | None = None) -> Result:
    """Train a network, and test it on the held-out images; policy: of a stash, None for none."""
    stash = None if policy is None else cto.ActivationStash(policy)
    rng = np.random.default_rng(seed)
    known, unknown = (Digits(*map(xp.asarray, digits)) for digits in loaded())
    network, losses = Network(xp, rng, stash), xp.empty(n_steps, np.float32)
    drawn = enumerate(batches(rng, len(known.labels), n_steps))
    with progress(drawn, "training", lambda item: f"step {item[0] + 1}", n_steps) as steps:
        for i, chosen in steps:
            at, shift = xp.asarray(chosen), rng.integers(3, size=2)
            rate = RATE * 0.5 * (1 + math.cos(math.pi * i / n_steps))
            losses[i] = network.step(cropped(xp, known, at, *shift), known.labels[at], rate)
    scores = network.scores(cropped(xp, unknown, slice(None)))
    correct = (scores.argmax(axis=1) == unknown.labels).sum()
    report = None if stash is None else stash.report()
    sizes = report and {name: report[name] for name in ("before", "after", "peak")}
    return Result(losses.tolist(), int(correct), sizes)


def plot(result: Result, path: Path) -> None:
    """Draw the losses, and their mean over the steps of about an epoch, into a PNG."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise click.ClickException(f"{error}: pip install -e '.[examples]'") from None
    losses = np.array(result.losses)
    width = min(30, len(losses))
    means = np.convolve(losses, np.full(width, 1 / width), "valid")
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.semilogy(np.arange(1, len(losses) + 1), losses, color="0.75", label="each step")
    axes.semilogy(np.arange(width, len(losses) + 1), means, label=f"mean of {width} steps")
    axes.set(xlabel="step", ylabel="cross-entropy", title=f"{share(result):.1%} of held-out digits")
    axes.legend()
    figure.savefig(path, format="png", dpi=120)


def share(result: Result) -> float:
    """Return the share of the held-out images that are read correctly."""
    return result.correct / HELD_OUT


@click.command()
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "cpu"]),
    default="auto",
    show_default=True,
    help="auto is cuda where a GPU can be used, else cpu.",
)
@click.option("--stash", type=click.Choice(["lossless", "default", "small"]), help="A policy.")
@click.option("--steps", type=click.IntRange(1), default=450, show_default=True)
@click.option("--plot", "path", type=click.Path(path_type=Path), help="PNG of the loss curve.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with every loss.")
def main(
    seed: int, device: str, stash: str | None, steps: int, path: Path | None, as_json: bool
) -> None:
    """Train a convolutional network on handwritten digits, and test it on others."""
    xp = array_library(device)
    start = time.perf_counter()
    result = train(xp, seed, steps, stash)
    seconds = time.perf_counter() - start
    if path is not None:
        plot(result, path)
    place = "cpu" if xp is np else "cuda"
    if as_json:
        results = {"seed": seed, "device": place, "seconds": seconds, "accuracy": share(result)}
        click.echo(json.dumps({**results, **result._asdict()}))
        return
    click.echo(f"{result.correct} of {HELD_OUT} held-out images are read correctly")
    click.echo(f"loss {result.losses[0]:.3f} at first, {np.mean(result.losses[-30:]):.3f} at last")
    if result.stash is not None:
        sizes = ", ".join(f"{nbytes} {name}" for name, nbytes in result.stash.items())
        click.echo(f"bytes of a step's activations: {sizes}")
    click.echo(f"{seconds:.1f} s on {place}")


if __name__ == "__main__":
    main()
