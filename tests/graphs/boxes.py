# SPDX-License-Identifier: MIT
"""A device that lends nobody its arrays, with NumPy behind it.

A Box stands for an array on a device: NumPy computes nothing of it. What runs a node on the device
takes boxes and returns boxes, but for what its declaration says is on the host.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops.onnx import program
from cupy_training_ops.onnx.graph import subgraphs


class Box:
    """An array on the device, which says its form alone."""

    __array_ufunc__ = None

    def __init__(self, inside: np.ndarray) -> None:
        assert isinstance(inside, np.ndarray)
        self.inside, self.dtype = inside, inside.dtype
        self.shape, self.ndim, self.size = inside.shape, inside.ndim, inside.size
        self.flags, self.nbytes = inside.flags, inside.nbytes

    def __getitem__(self, place: slice) -> Box:
        return Box(self.inside[place])

    def __setitem__(self, place: Any, value: Box) -> None:
        self.inside[place] = value.inside

    def view(self, dtype: Any) -> Box:
        return Box(self.inside.view(dtype))

    def reshape(self, shape: Any) -> Box:
        return Box(self.inside.reshape(shape))

    def copy(self) -> Box:
        return Box(self.inside.copy())

    def fill(self, value: Any) -> None:
        self.inside[...] = value

    def set(self, array: np.ndarray) -> None:
        assert array.shape == self.shape
        assert array.dtype == self.dtype
        self.inside[...] = array

    def get(self) -> np.ndarray:
        return self.inside.copy()


class Device:
    """An array module whose arrays are boxes."""

    ndarray = Box

    def __init__(self) -> None:
        self.sent: list[Box] = []
        self.fetched: list[np.ndarray] = []

    def asarray(self, array: Any) -> Box:
        if isinstance(array, Box):
            return array
        self.sent.append(Box(np.array(array)))
        return self.sent[-1]

    def asnumpy(self, box: Box) -> np.ndarray:
        self.fetched.append(box.inside.copy())
        return self.fetched[-1]

    def zeros(self, shape: Any, dtype: Any) -> Box:
        return Box(np.zeros(shape, dtype))

    def stack(self, boxes: list[Box], axis: int = 0) -> Box:
        return Box(np.stack([opened(box) for box in boxes], axis))

    def empty(self, shape: Any, dtype: Any) -> Box:
        return Box(np.empty(shape, dtype))

    def zeros_like(self, box: Box, dtype: Any = None) -> Box:
        return Box(np.zeros_like(box.inside, dtype))


class CapturedDevice(Device):
    """A device whose steps may be captured, which refuses copies with the host meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.cuda = SimpleNamespace(using_allocator=lambda _: contextlib.nullcontext())

    def get_default_memory_pool(self) -> Any:
        return SimpleNamespace(malloc=None)


def opened(value: Any) -> Any:
    assert isinstance(value, Box), f"{type(value).__name__} where a device array is needed"
    return value.inside


def each(value: Any, function: Any) -> Any:
    return [function(v) for v in value] if isinstance(value, list | tuple) else function(value)


def runners(graph: Any, *arguments: Any, **options: Any) -> Any:
    """Runners of nodes, on the device by NumPy behind its back; nodes that run graphs see the
    device themselves."""
    actual = program.node_runners(graph, *arguments, **options)
    return {i: known if subgraphs(graph.nodes[i]) else _boxed(known) for i, known in actual.items()}


def _boxed(known: Any) -> Any:
    return replace(known, make=lambda xp: _run_of(known, xp))


def _run_of(known: Any, xp: Any) -> Any:
    run = known.make(np)
    if xp is np:
        return lambda values, **over: run([_checked_on_host(v) for v in values], **over)

    def on_device(values, out=None):
        inside = [_unboxed(known, k, value) for k, value in enumerate(values)]
        outs = None if out is None else {k: opened(a) for k, a in out.items()}
        results = run(inside) if outs is None else run(inside, out=outs)
        return [r if k in known.makes_host else each(r, _box) for k, r in enumerate(results)]

    return on_device


def _box(value: Any) -> Any:
    return None if value is None else Box(value)


def _checked_on_host(value: Any) -> Any:
    assert value is None or isinstance(value, np.ndarray | list)
    return value


def _unboxed(known: Any, k: int, value: Any) -> Any:
    if value is None:
        return None
    if k in known.host:
        return _checked_on_host(value)
    if known.shapes_only or k in known.either:
        return value.inside if isinstance(value, Box) else value
    return each(value, opened)


# ---- what tests of noted and of captured steps share ---------------------------------------------

DATA = Path(__file__).parent / "data"
SLOW = [pytest.param(name, marks=pytest.mark.thorough) for name in ("gpt", "tied", "mse")]


def opened_beside(name: str, device: Device, **options: Any) -> tuple[Any, Any, dict]:
    """A graph's session of the device, NumPy's with the same seed, and its answers."""
    with np.load(DATA / name / "answers.npz") as file:
        answers = dict(file)
    of_device = cto.onnx.TrainingSession(DATA / name, device, seed=3, **options)
    return of_device, cto.onnx.TrainingSession(DATA / name, seed=3), answers


def state(trained: Any) -> dict[str, bytes]:
    """All that a session's next steps depend on."""
    arrays = trained._state_arrays().items()
    return {n: (a.inside if isinstance(a, Box) else a).tobytes() for n, a in arrays}


def batch(rng: np.random.Generator, answers: dict[str, np.ndarray], i: int) -> tuple[Any, Any]:
    """Inputs and labels, at times without the first sample."""
    x, labels = answers["x"][i % 10], answers["labels"][i % 10]
    if len(x) == len(labels) and rng.integers(3) == 0:
        return x[1:], labels[1:]
    return x, labels


def placed(rng: np.random.Generator, *arrays: np.ndarray) -> list[Any]:
    """The arrays, on the host or the device."""
    return [Box(a.copy()) if rng.integers(2) else a for a in arrays]
