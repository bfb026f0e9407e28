# SPDX-License-Identifier: MIT
"""Three dense layers that learn to read digits: NumPy-style code, on a GPU where there is one.

    python examples/train_digits.py --optimizer AdamW --graph

With --graph the second step is captured, from the forward pass to the update, and every later one
is a replay of it: batch, learning rate and count of steps are in arrays on the device. The digits
are drawn here, shifted and blurred with noise by a seed.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import cupy_training_ops as cto

FONT = (  # rows of five pixels
    (14, 17, 19, 21, 25, 17, 14), (4, 12, 4, 4, 4, 4, 14), (14, 17, 1, 2, 4, 8, 31),
    (31, 2, 4, 2, 1, 17, 14), (2, 6, 10, 18, 31, 2, 2), (31, 16, 30, 1, 1, 17, 14),
    (6, 8, 16, 30, 17, 17, 14), (31, 1, 2, 4, 8, 8, 8), (14, 17, 17, 14, 17, 17, 14),
    (14, 17, 17, 15, 1, 2, 12),
)  # fmt: skip
SIDE, BATCH, N_IMAGES = 9, 64, 2048
WIDTHS = (SIDE * SIDE, 64, 32, 10)
RATES = {"SGD": 0.2, "Adam": 1e-2, "AdamW": 1e-2, "Lamb": 3e-2}


def drawn_digits(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of digits, somewhere on their canvas, and which digits they are."""
    pixels = (np.array(FONT)[:, :, None] >> np.arange(4, -1, -1)) & 1
    labels = rng.integers(10, size=n)
    images = rng.normal(0, 0.3, (n, SIDE, SIDE)).astype(np.float32)
    shifts = rng.integers((SIDE - 6, SIDE - 4), size=(n, 2))
    for image, label, (top, left) in zip(images, labels, shifts, strict=True):
        image[top : top + 7, left : left + 5] += pixels[label]
    return images.reshape(n, -1), labels


class Product:
    """The matrix product a @ b: the terms of all sums, then the sums."""

    def __init__(self, xp: Any, rows: int, inner: int, columns: int) -> None:
        self._xp, self._terms = xp, xp.empty((rows, inner, columns), np.float32)

    def __call__(self, a: Any, b: Any, out: Any) -> None:
        self._xp.multiply(a[:, :, None], b[None], out=self._terms)
        cto.reduce_sum_training(self._terms, (1,), keepdims=False, out=out)


class Dense:
    """A layer x @ weight + bias; each result has an array of its own, as a graph needs."""

    def __init__(self, xp: Any, rng: np.random.Generator, n_in: int, n_out: int) -> None:
        spread = math.sqrt(6 / n_in)
        self.weight = xp.asarray(rng.uniform(-spread, spread, (n_in, n_out)).astype(np.float32))
        self.bias = xp.zeros(n_out, np.float32)
        self.d_weight, self.d_bias = xp.empty_like(self.weight), xp.empty_like(self.bias)
        self.y, self.dy, self.out = (xp.empty((BATCH, n_out), np.float32) for _ in range(3))
        self.dx = xp.empty((BATCH, n_in), np.float32)
        self._xp = xp
        self._forward = Product(xp, BATCH, n_in, n_out)
        self._to_weight = Product(xp, n_in, BATCH, n_out)
        self._to_input = Product(xp, BATCH, n_out, n_in)

    def forward(self, x: Any) -> Any:
        """The output, with the layer's activation."""
        self.x = x
        self._forward(x, self.weight, self.y)
        return self.activated()

    def backward(self, d_out: Any) -> Any:
        """The gradient of x; those of weight and bias are kept."""
        dy = self.before_activation(d_out)
        cto.reduce_sum_training(dy, (0,), keepdims=False, out=self.d_bias)
        self._to_weight(self.x.T, dy, self.d_weight)
        self._to_input(dy, self.weight.T, self.dx)
        return self.dx

    def activated(self) -> Any:
        """None: the scores themselves."""
        return self._xp.add(self.y, self.bias, out=self.out)

    def before_activation(self, d_out: Any) -> Any:
        """Its gradient."""
        return d_out


class Hidden(Dense):
    """A layer with GELU."""

    def activated(self) -> Any:
        """GELU of the product and the bias."""
        return cto.bias_gelu(self.y, self.bias, out=self.out)

    def before_activation(self, d_out: Any) -> Any:
        """Its gradient."""
        return cto.bias_gelu_grad_dx(d_out, self.y, self.bias, out=self.dy)


class Training:
    """Layers, optimizer, and the arrays that one step reads: its batch and its learning rate."""

    def __init__(self, xp: Any, optimizer: str, n_steps: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        images, labels = drawn_digits(rng, N_IMAGES)
        self.xp, self.rate, self.n_steps = xp, RATES[optimizer], n_steps
        self.batches = xp.asarray(rng.integers(N_IMAGES, size=(n_steps, BATCH)))
        self.images, self.labels = xp.asarray(images), xp.asarray(labels)
        self.x = xp.empty((BATCH, WIDTHS[0]), np.float32)
        self.t, self.lr = xp.empty(BATCH, np.int64), xp.empty(1, np.float32)
        self.loss = xp.empty((), np.float32)
        self.d_scores = xp.empty((BATCH, WIDTHS[-1]), np.float32)
        kinds = zip((Hidden, Hidden, Dense), WIDTHS, WIDTHS[1:], strict=False)
        self.layers = [kind(xp, rng, n_in, n_out) for kind, n_in, n_out in kinds]
        parameters = [p for layer in self.layers for p in (layer.weight, layer.bias)]
        self.gradients = [g for layer in self.layers for g in (layer.d_weight, layer.d_bias)]
        self.optimizer = getattr(cto, optimizer)(parameters, self.lr)

    def prepare(self, step: int) -> None:
        """The batch and the learning rate of a step, in the arrays that it reads."""
        self.xp.take(self.images, self.batches[step], axis=0, out=self.x)
        self.xp.take(self.labels, self.batches[step], axis=0, out=self.t)
        self.lr.fill(self.rate * 0.5 * (1 + math.cos(math.pi * step / self.n_steps)))

    def step(self) -> None:
        """Forward, backward, update: nothing is allocated after the first time."""
        scores = self.x
        for layer in self.layers:
            scores = layer.forward(scores)
        cto.cross_entropy_loss_and_grad(scores, self.t, out=(self.loss, self.d_scores))
        gradient = self.d_scores
        for layer in reversed(self.layers):
            gradient = layer.backward(gradient)
        self.optimizer.step(self.gradients, max_norm=5.0)

    def captured(self) -> Callable[[], None]:
        """A step as a graph on the current stream; a step on it has been made."""
        stream = self.xp.cuda.get_current_stream()
        stream.begin_capture()
        try:
            self.step()
        finally:
            graph = stream.end_capture()
        return lambda: graph.launch(stream)


def train(
    xp: Any, optimizer: str, n_steps: int, seed: int, graph: bool
) -> tuple[list[float], float]:
    """The loss of each step, and the microseconds that a step took after the first two."""
    training = Training(xp, optimizer, n_steps, seed)
    losses, step, start = xp.empty(n_steps, np.float32), training.step, 0.0
    for i in range(n_steps):
        training.prepare(i)
        if graph and i == 1:
            step = training.captured()
        step()
        losses[i] = training.loss
        if i == 1:
            losses[i].item()  # waits
            start = time.perf_counter()
    found = [float(loss) for loss in losses.tolist()]
    return found, (time.perf_counter() - start) / max(1, n_steps - 2) * 1e6


def array_library(provider: str) -> Any:
    """CuPy where a GPU is to be used, else NumPy."""
    try:
        import cupy
    except ImportError:
        cupy = None
    if provider == "cpu" or (provider == "auto" and not (cupy and cupy.cuda.is_available())):
        return np
    return cupy


def main() -> None:
    """Train, and print what became of the loss."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--optimizer", choices=list(RATES), default="AdamW")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--graph", action="store_true", help="replay one captured step")
    parser.add_argument("--provider", choices=["auto", "cuda", "cpu"], default="auto")
    given = parser.parse_args()
    xp = array_library(given.provider)
    is_cupy = getattr(xp, "__name__", "") == "cupy"
    if not is_cupy and (given.graph or given.provider == "cuda"):
        parser.error("expected a GPU and CuPy, for --graph and --provider cuda")
    if given.steps < 1:
        parser.error("--steps: expected at least 1")
    stream = xp.cuda.Stream(non_blocking=True) if is_cupy else np.errstate()
    with stream:
        losses, us = train(xp, given.optimizer, given.steps, given.seed, given.graph)
    last = losses[-20:]
    print(f"{given.optimizer}: loss {losses[0]:.3f} at first, {sum(last) / len(last):.3f} at last")
    print(f"{'a replay' if given.graph else 'a step'}: {us:.0f} us")


if __name__ == "__main__":
    main()
