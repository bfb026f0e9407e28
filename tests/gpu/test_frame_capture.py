# SPDX-License-Identifier: MIT
"""CUDA graphs and streams of what losses, optimizers and collectives ask of the frame."""

from __future__ import annotations

import numpy as np
import pytest
from probe.frame_probe import (
    ProbeBorrow,
    ProbeCopy,
    ProbeDecay,
    ProbeEither,
    ProbeFill,
    ProbeShared,
)
from probe.list_probe import (
    ProbeDescend,
    ProbeSpread,
)

from cupy_training_ops import ProviderError
from cupy_training_ops.call.backends import cuda_backend
from cupy_training_ops.testing.compare import assert_matches

pytestmark = pytest.mark.gpu

X = np.arange(1, 301, dtype=np.float32)
REPLAYS = 3


@pytest.fixture
def stream():
    """A stream that waits for no other; current in the test."""
    import cupy

    with cupy.cuda.Stream(non_blocking=True) as current:
        yield current
        current.synchronize()


def placed(*arrays):
    """NumPy arrays on the device, there before anything that follows on any stream."""
    import cupy

    actual = tuple(cupy.asarray(array) for array in arrays)
    cupy.cuda.Device().synchronize()
    return actual


def captured(stream, action):
    """The action's graph; it was run once before, so that its kernels are loaded."""
    action()
    stream.synchronize()
    stream.begin_capture()
    try:
        action()
    finally:
        graph = stream.end_capture()
    return graph


def replayed(stream, graph) -> None:
    graph.launch(stream)
    stream.synchronize()


def expected_either(rate: float, step: int, seed: int, offset: int):
    return (np.float32(rate) * (1 - 0.9**step) * X + seed + offset).astype(np.float32)


def test_a_value_on_the_device_is_read_anew_and_a_state_goes_on(stream) -> None:
    x, y, rate, step, state = placed(
        X, np.zeros_like(X), np.array([0.5], np.float32), np.array([3]), np.array([5, 7], np.uint64)
    )
    op = ProbeEither()
    graph = captured(stream, lambda: op(x, rate, step, state, out=(y, None)))
    step.fill(3)
    state[...] = placed(np.array([5, 7], np.uint64))[0]
    for replay in range(REPLAYS):
        rate.fill(0.25 * (replay + 1))
        replayed(stream, graph)
        assert_matches(y.get(), expected_either(0.25 * (replay + 1), 3 + replay, 5, 7 + replay))
    assert step.get().tolist() == [3 + REPLAYS]
    assert state.get().tolist() == [5, 7 + REPLAYS]


def test_a_number_is_what_it_was_when_captured(stream) -> None:
    x, y, other = placed(X, np.zeros_like(X), np.zeros_like(X))
    op = ProbeEither()
    graph = captured(stream, lambda: op(x, 0.5, 3, (5, 7), out=(y, None)))
    op(x, 0.25, 9, (0, 0), out=(other, None))
    for _ in range(REPLAYS):
        y.fill(0)
        replayed(stream, graph)
        assert_matches(y.get(), expected_either(0.5, 3, 5, 7))


def test_work_and_a_borrowed_kernel_are_captured(stream) -> None:
    x, zeros, y, copied = placed(X, *(np.ones_like(X) for _ in range(3)))
    borrow, copy = ProbeBorrow(), ProbeCopy()

    def action() -> None:
        borrow(x, out=(zeros, y))
        copy(y, out=copied)

    graph = captured(stream, action)
    for replay in range(REPLAYS):
        x.fill(replay)
        zeros.fill(1)
        replayed(stream, graph)
        assert not zeros.get().any()
        assert (copied.get() == replay).all()


def test_lists_are_captured_in_place(stream) -> None:
    first, second, w, *new = placed(X[:3], X[:200], 3 * X[:200], *(X[:n] for n in (3, 200) * 2))
    xs, scaled, negated = [first, second], tuple(new[:2]), tuple(new[2:])
    op = ProbeSpread()
    graph = captured(stream, lambda: op(xs, [None, w], out=(None, None, scaled, negated)))
    before = second.get()
    for _ in range(REPLAYS):
        replayed(stream, graph)
    assert_matches(second.get(), before + REPLAYS)
    assert_matches(negated[1].get(), -(before + REPLAYS - 1))
    assert_matches(scaled[1].get(), (before + REPLAYS - 1) * 3 * X[:200])


def test_a_bound_call_is_captured(stream) -> None:
    x, g, rate = placed(X, np.ones_like(X), np.array([0.5], np.float32))
    bound = ProbeDescend().bound([x], [g], rate)
    graph = captured(stream, bound)
    before = x.get()
    for replay in range(REPLAYS):
        rate.fill(replay)
        replayed(stream, graph)
    assert_matches(x.get(), before - (0 + 1 + 2))


def test_a_bound_call_has_its_outputs_already(stream) -> None:
    (x,) = placed(X)
    bound = ProbeDecay().bound(x, 0.5, 1)
    y = bound()[0]
    graph = captured(stream, lambda: bound(rate=0.25, step=2))
    for _ in range(REPLAYS):
        bound(rate=1.0, step=1)
        replayed(stream, graph)
        assert_matches(y.get(), X * np.float32(0.25 * (1 - 0.9**2)) + 2)


def test_an_open_call_that_would_allocate_is_refused(stream) -> None:
    x, y = placed(X, np.zeros_like(X))
    bound, into = ProbeCopy().bound(...), ProbeCopy().bound(..., out=y)
    bound(X=x)
    graph = captured(stream, lambda: into(X=x))
    stream.begin_capture()
    try:
        with pytest.raises(ProviderError, match="ProbeCopy: out: a call under graph capture needs"):
            bound(X=x)
    finally:
        stream.end_capture()
    y.fill(0)
    replayed(stream, graph)
    assert_matches(y.get(), X)


def test_no_device_input_is_captured(stream) -> None:
    (y,) = placed(np.zeros_like(X))
    op = ProbeFill(n=X.size, value=2.5, provider="cuda")
    graph = captured(stream, lambda: op(out=y))
    for _ in range(REPLAYS):
        y.fill(0)
        replayed(stream, graph)
        assert (y.get() == 2.5).all()


def test_a_hundred_kibibytes_of_shared_memory_are_captured(stream) -> None:
    values = np.arange(25_600, dtype=np.float32)
    most = cuda_backend().device(0).max_shared_nbytes
    if most < values.nbytes:
        pytest.skip(f"{values.nbytes} bytes of shared memory a block needed, {most} found")
    x, y = placed(values, np.zeros_like(values))
    graph = captured(stream, lambda: ProbeShared()(x, out=y))
    for replay in range(REPLAYS):
        x[...] = x + 1
        replayed(stream, graph)
        assert_matches(y.get(), (values + replay + 1)[::-1])


def test_bound_calls_on_two_streams_keep_their_states_apart() -> None:
    import cupy

    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    op, calls, steps = ProbeEither(), [], []
    for first in (1, 100):
        x, y, step, state = placed(X, np.zeros_like(X), np.array([first]), np.zeros(2, np.uint64))
        calls.append(op.bound(x, 0.5, step, state, out=(y, None)))
        steps.append((step, state, y))
    for _ in range(50):
        for stream, call in zip(streams, calls, strict=True):
            with stream:
                call()
    for stream, first, (step, state, y) in zip(streams, (1, 100), steps, strict=True):
        stream.synchronize()
        assert (step.get().tolist(), state.get().tolist()) == ([first + 50], [0, 50])
        assert_matches(y.get(), expected_either(0.5, first + 49, 0, 49))
