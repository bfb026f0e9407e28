# SPDX-License-Identifier: MIT
"""Trains what ONNX Runtime's generate_artifacts wrote, with CuPy or NumPy, and exports a model.

    pip install -e '.[examples,onnx]'
    python examples/onnx_training.py --epochs 3

examples/onnx_digits/ has the artifacts of a small convolutional network for handwritten digits:
training, eval and optimizer graph, and the checkpoint. `--cupy` trains on a GPU, `--graph` there by
replays of captured steps; nothing else changes. What is saved half-way is loaded into a second
session, which goes on bit for bit.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import cupy_training_ops as cto

ARTIFACTS = Path(__file__).resolve().parent / "onnx_digits"
BATCH, RATE, HELD_OUT = 50, 0.005, 297


def images(xp: Any) -> tuple[Any, Any]:
    """Digits as the training model takes them: (n, 1, 8, 8) from 0 to 1, and their classes."""
    from sklearn.datasets import load_digits

    data, target = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(target))
    x = (data.reshape(-1, 1, 8, 8)[order] / 16).astype(np.float32)
    return xp.asarray(x), xp.asarray(target[order].astype(np.int64))


def batches(n: int, epochs: int) -> Iterator[slice]:
    """The examples in their order, again in each epoch."""
    for _ in range(epochs):
        yield from (slice(i, i + BATCH) for i in range(0, n - BATCH + 1, BATCH))


def train(session: cto.onnx.TrainingSession, x: Any, labels: Any, epochs: int) -> list[Any]:
    """Losses, still on the device: nothing waits for them."""
    return [session.step(x[part], labels[part]) for part in batches(len(x), epochs)]


def accuracy(session: cto.onnx.TrainingSession, x: Any, labels: Any) -> float:
    """The share of images whose largest score is that of their class."""
    return float((session.eval(x).argmax(1) == labels).mean())


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, go on in a second session, and run what was exported."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--artifacts", type=Path, default=ARTIFACTS)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--cupy", action="store_true")
    parser.add_argument("--graph", action="store_true")
    options = parser.parse_args(arguments)
    xp = importlib.import_module("cupy") if options.cupy else np
    x, labels = images(xp)
    seen, held_out = slice(None, -HELD_OUT), slice(-HELD_OUT, None)

    session = cto.onnx.TrainingSession(options.artifacts, xp, graph=options.graph)
    session.lr = RATE
    print(f"before: accuracy {accuracy(session, x[held_out], labels[held_out]):.3f}")
    losses = train(session, x[seen], labels[seen], options.epochs)
    print(f"{len(losses)} steps: loss {float(losses[0]):.3f} to {float(losses[-1]):.3f}")
    print(f"after: accuracy {accuracy(session, x[held_out], labels[held_out]):.3f}")

    with tempfile.TemporaryDirectory() as folder:
        state, model = Path(folder) / "state.npz", Path(folder) / "digits.onnx"
        session.save(state)
        other = cto.onnx.TrainingSession(options.artifacts, xp, graph=options.graph)
        other.load(state)
        same = train(session, x[seen], labels[seen], 1) == train(other, x[seen], labels[seen], 1)
        print(f"another epoch of what was saved: the same losses: {same}")
        session.export(model)
        exported = cto.onnx.Session(model, xp).run({"x": x[held_out]})["scores"]
        print(f"exported: accuracy {float((exported.argmax(1) == labels[held_out]).mean()):.3f}")


if __name__ == "__main__":
    main()
