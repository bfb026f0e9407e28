# SPDX-License-Identifier: MIT
"""CUDA graphs: every operator is captured, replayed, and has not touched memory it does not own."""

from __future__ import annotations

import numpy as np
import pytest
from probe.probe import ProbeAxpy, ProbeSum
from runs import Run

from cupy_training_ops import ProviderError, get_op
from cupy_training_ops.testing.compare import assert_matches, poison
from cupy_training_ops.testing.samples import all_samples, flat, mapped_outputs, sampled_operators

pytestmark = pytest.mark.gpu

# Operators whose calls cannot be captured, with the reason.
NOT_CAPTURED: dict[str, str] = {}


def captured(action):
    """The action as a graph on a stream of its own, and that stream."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        try:
            action()
        finally:
            graph = stream.end_capture()
    return graph, stream


def largest(name: str):
    return next(s for s in all_samples()[name] if s.label.endswith("large"))


LAUNCHING = [n for n in sampled_operators() if n not in NOT_CAPTURED and not get_op(n).no_out]


def blank_outputs(op, values, expected):
    """Poisoned arrays; none for a host output, which follows from shapes: it is allocated, like no
    device array may be."""
    import cupy

    return mapped_outputs(op, values, expected, lambda e: poison(cupy.empty_like(e)))


def replayed(op, inputs, out):
    """Capture a call and replay it; arrays that were allocated between the two."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    arrays = [array for array in flat(out) if array is not None]
    with stream:
        op(*inputs, out=out)  # the workspace of this stream exists from here on
        stream.synchronize()
        for array in arrays:
            poison(array)
        stream.begin_capture()
        op(*inputs, out=out)
        graph = stream.end_capture()
        later = [cupy.full(array.nbytes + 512, 0x5A, np.uint8) for array in arrays]
        for _ in range(3):
            graph.launch(stream)
        stream.synchronize()
    return later


@pytest.mark.parametrize("name", LAUNCHING)
def test_replay_computes_and_spares_later_allocations(name: str, rng) -> None:
    import cupy

    sample = largest(name)
    op = get_op(name)(**sample.attributes)
    run = Run("cuda", 0)
    values = sample.make(rng)
    inputs = run.place_inputs(op, values)
    expected = op(*run.place_inputs(op, values))  # some write into their inputs
    out = blank_outputs(op, values, expected)
    cupy.cuda.Device().synchronize()
    later = replayed(op, inputs, out)
    for actual, wanted in zip(flat(out), flat(expected), strict=True):
        if actual is not None:
            assert_matches(sample.comparable(actual.get()), sample.comparable(wanted.get()), 0)
    assert all(bool((array == 0x5A).all()) for array in later)


def test_a_call_that_would_allocate_is_refused() -> None:
    import cupy

    x = cupy.ones(100, np.float32)
    refused = []

    def action() -> None:
        with pytest.raises(ProviderError, match="under graph capture needs out=") as error:
            get_op("GistPack16Encoder")()(x)
        refused.append(error)

    captured(action)
    assert refused


def test_a_workspace_made_under_capture_is_refused() -> None:
    import cupy

    x, y = cupy.ones(1000, np.float32), cupy.empty(1, np.float32)
    refused = []

    def action() -> None:
        with pytest.raises(ProviderError, match=r"under graph capture needs .* scratch") as error:
            ProbeSum()(x, out=y)
        refused.append(error)

    captured(action)
    assert refused


def test_a_captured_workspace_outlives_a_larger_one(rng) -> None:
    import cupy

    op = ProbeSum()
    values = rng.integers(-8, 8, 5000).astype(np.float32)
    x, y = cupy.asarray(values), cupy.zeros(1, np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        op(x, out=y)
        stream.synchronize()
        stream.begin_capture()
        op(x, out=y)
        graph = stream.end_capture()
        op(cupy.ones(3_000_000, np.float32))  # grows the workspace
        later = cupy.full(1 << 16, 0x5A, np.uint8)
        y[...] = 0
        graph.launch(stream)
        stream.synchronize()
    assert float(y[0]) == values.sum()
    assert bool((later == 0x5A).all())


def test_an_alias_is_captured_in_place(rng) -> None:
    import cupy

    x = cupy.asarray(rng.integers(-8, 8, 777).astype(np.float32))
    y = cupy.zeros_like(x)
    op = ProbeAxpy(a=1.0)
    op(x, cupy.zeros_like(x))
    cupy.cuda.Device().synchronize()
    graph, stream = captured(lambda: op(x, y))
    for _ in range(4):
        graph.launch(stream)
    stream.synchronize()
    assert_matches(y.get(), 4 * x.get(), 0)
