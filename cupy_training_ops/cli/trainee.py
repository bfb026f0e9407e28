# SPDX-License-Identifier: MIT
"""What a training session of ONNX is fed: made batches, or those of a file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..onnx import TrainingSession
from ..onnx.graph import Graph, Value
from .errors import Failure
from .inputs import opened

Batch = dict[str, Any]


def made(session: TrainingSession, size: int, seed: int) -> Iterator[Batch]:
    """One batch, again and again, so that a loss can fall.

    Normal numbers; integers that pick rows pick among those there are; labels are of the shape and
    the classes that the eval model's scores have.
    """
    rng = np.random.default_rng(seed)
    graph = session.graph
    said = {item.name: item for item in graph.inputs}
    labels = session.inputs[1:] if session.evaluates and len(session.inputs) == 2 else ()
    batch = {n: _drawn(rng, graph, said[n], size) for n in session.inputs if n not in labels}
    for name in labels:
        scores = session.eval(**batch)
        batch[name] = _labels(rng, said[name], scores[0] if isinstance(scores, tuple) else scores)
    return itertools.repeat({name: session.xp.asarray(array) for name, array in batch.items()})


def _drawn(rng: Any, graph: Graph, said: Value, size: int) -> Any:
    shape = tuple(extent if isinstance(extent, int) else size for extent in said.shape or ())
    if said.dtype is not None and said.dtype.kind in "iu":
        return rng.integers(0, _rows(graph, said.name), shape).astype(said.dtype)
    return rng.standard_normal(shape).astype(said.dtype or np.float32)


def _rows(graph: Graph, name: str) -> int:
    """How many there are of what an input picks from; 2 where nothing says it."""
    shapes = {item.name: item.shape for item in graph.inputs}
    for node in graph.nodes:
        if node.op_type == "Gather" and node.inputs[1] == name:
            shape, axis = shapes.get(node.inputs[0]) or (), int(node.attributes.get("axis", 0))
            extent = shape[axis] if -len(shape) <= axis < len(shape) else None
            return extent if isinstance(extent, int) and extent else 2
    return 2


def _labels(rng: Any, said: Value, scores: Any) -> Any:
    """Classes, or numbers from 0 to 1 in the shape of the scores."""
    if said.dtype is not None and said.dtype.kind in "iu" and scores.ndim > 1:
        shape = (scores.shape[0], *scores.shape[2:])
        return rng.integers(0, scores.shape[1], shape).astype(said.dtype)
    return rng.random(scores.shape).astype(said.dtype or np.float32)


def given(session: TrainingSession, file: str, size: int) -> Iterator[Batch]:
    """Batches of a file's examples, in their order, and from the first on again."""
    with opened(file) as members:
        arrays = {m.name: m.read(raw=False) for m in members if m.name in session.inputs}
    missing = [name for name in session.inputs if name not in arrays]
    if missing:
        raise Failure(f"{file}: no array {missing[0]!r}, which the training model takes")
    lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    n = min(lengths.values())
    if not n or any(length % n for length in lengths.values()):
        got = ", ".join(f"{length} of {name}" for name, length in lengths.items())
        raise Failure(f"{file}: expected as many examples of each input, got {got}")
    return _cut(session.xp, arrays, n, min(size, n))


def _cut(xp: Any, arrays: Mapping[str, Any], n: int, size: int) -> Iterator[Batch]:
    """Of an input that has several rows for each of the n examples, such as tokens, all of them."""
    for first in itertools.cycle(range(0, n - size + 1, size)):
        yield {
            name: xp.asarray(array[len(array) // n * first : len(array) // n * (first + size)])
            for name, array in arrays.items()
        }
