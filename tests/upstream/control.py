# SPDX-License-Identifier: MIT
"""Calls of control flow that onnxruntime answers on the CPU too, and why it answers no others.

A WaitEvent without its RecordEvent hangs there: of those that wait a test asks in pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from cupy_training_ops.dtypes import BOOL, FLOAT16, FLOAT32, INT64
from cupy_training_ops.families.tensor.samples import values
from cupy_training_ops.samples import Generator, Sample

WITHOUT_ORACLE = {
    "YieldOp": "onnxruntime loads it and leaves its output empty: a training session runs it",
    "PythonOp": "onnxruntime loads it, and has no functions without PyTorch and its own extension",
    "PythonOpGrad": "onnxruntime loads it, and has no contexts without PyTorch",
    "TritonOp": "it is in no CPU build of onnxruntime",
}
# Upstream a graph's input may not be its output.
BETWEEN = ("PassThrough", "RecordEvent", "WaitEvent")


def samples() -> Iterator[Sample]:
    """Arrays of several types and shapes; no event."""
    for name in ("Group", "PassThrough"):
        yield Sample(name, "several", _arrays)
    yield from events(-1)


def events(number: int) -> Iterator[Sample]:
    """The record of an event, and its wait."""
    for name in ("RecordEvent", "WaitEvent"):
        yield Sample(name, f"several-{number}", partial(_data, number=number))


def _arrays(rng: Generator) -> tuple[Any, ...]:
    rows = (((3, 5), FLOAT32), ((2, 0), INT64), ((), FLOAT16), ((7,), BOOL))
    return ([values(rng, *row) for row in rows],)


def _data(rng: Generator, number: int) -> tuple[Any, ...]:
    return (number, *_arrays(rng))
