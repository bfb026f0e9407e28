# SPDX-License-Identifier: MIT
"""Two hidden layers learn handwritten digits; what the backward pass needs is saved as codes.

    pip install -e '.[examples]'
    python examples/numpy_mlp.py --codec msfp15

The gradient of a layer's weights needs the values of its input: they are saved in a codec. That of
a ReLU needs signs: they are saved in a bit each. With `--codec none` both are saved as they are.
`--cupy` takes CuPy's arrays; nothing else changes.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

import cupy_training_ops as cto

WIDTHS = (64, 256, 128, 10)
BATCH, RATE, HELD_OUT = 100, 0.003, 297
CODECS = ("pack8", "msfp15", "pack16", "none")
Codec = cto.typing.CodecName | Literal["none"]


class Saved:
    """Arrays between forward and backward, and the bytes that they take."""

    def __init__(self) -> None:
        self.before = self.after = 0

    def put(self, x: Any, codec: Codec) -> Any:
        """Return x as codes; with the codec "none" x itself."""
        saved = x if codec == "none" else cto.compress(x, codec)
        self.before += x.nbytes
        self.after += saved.nbytes
        return saved


def get(saved: Any) -> Any:
    """Return the array that was saved."""
    return saved.decompress() if isinstance(saved, cto.Packed) else saved


class Network:
    """Dense layers with a ReLU between each two, and AdamW."""

    def __init__(self, xp: Any, codec: Codec) -> None:
        rng = np.random.default_rng(0)
        shapes = list(itertools.pairwise(WIDTHS))
        draws = [rng.standard_normal(shape) * np.sqrt(2 / shape[0]) for shape in shapes]
        self.weights = [xp.asarray(w.astype(np.float32)) for w in draws]
        self.biases = [xp.zeros(n, np.float32) for _, n in shapes]
        self.optimizer = cto.AdamW([*self.weights, *self.biases], lr=RATE)
        self.xp = xp
        self.codec: Codec = codec

    def step(self, x: Any, labels: Any) -> tuple[Any, Saved]:
        """Forward, backward, update: the loss, and what was saved in between."""
        saved, inputs, signs = Saved(), [], []
        for w, b in zip(self.weights, self.biases, strict=True):
            inputs.append(saved.put(x, self.codec))
            x = x @ w + b
            if w is not self.weights[-1]:
                signs.append(saved.put(x, "none" if self.codec == "none" else "pack1"))
                x = self.xp.maximum(x, 0)
        loss, slope = cto.cross_entropy_loss_and_grad(x, labels, out=(None, x))
        gradients: list[tuple[Any, Any]] = []
        for w, inputs_of in zip(reversed(self.weights), reversed(inputs), strict=True):
            gradients.insert(0, (get(inputs_of).T @ slope, slope.sum(axis=0)))
            if signs:
                slope = cto.relu_grad(slope @ w.T, get(signs.pop()))
        self.optimizer.step([g for group in zip(*gradients, strict=True) for g in group])
        return loss, saved

    def accuracy(self, x: Any, labels: Any) -> float:
        """The share of images that are read as what they are."""
        for w, b in zip(self.weights, self.biases, strict=True):
            x = self.xp.maximum(x @ w + b, 0) if w is not self.weights[-1] else x @ w + b
        return float((x.argmax(axis=1) == labels).mean())


def batches(n: int, epochs: int) -> Iterator[Any]:
    """Images in a new order for each epoch."""
    rng = np.random.default_rng(1)
    for _ in range(epochs):
        order = rng.permutation(n)
        yield from (order[start : start + BATCH] for start in range(0, n, BATCH))


def main() -> None:
    """Print loss, accuracy on images that were not seen, and the bytes of what a step saves."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--codec", choices=CODECS, default="msfp15")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--cupy", action="store_true")
    options = parser.parse_args()
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise SystemExit(f"{error}: pip install -e '.[examples]'") from None
    xp = importlib.import_module("cupy" if options.cupy else "numpy")
    data, target = load_digits(return_X_y=True)
    images = xp.asarray(data.astype(np.float32) / 16)
    labels = xp.asarray(target.astype(np.int64))
    network = Network(xp, options.codec)
    for at in batches(len(images) - HELD_OUT, options.epochs):
        loss, saved = network.step(images[at], labels[at])
    accuracy = network.accuracy(images[-HELD_OUT:], labels[-HELD_OUT:])
    print(f"loss {float(loss):.4f}, {accuracy:.1%} of digits that it has not seen")
    print(f"saved for the backward pass: {saved.after} bytes in place of {saved.before}")


if __name__ == "__main__":
    main()
