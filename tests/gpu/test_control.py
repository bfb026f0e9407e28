# SPDX-License-Identifier: MIT
"""Events between streams of a GPU, in captured graphs too; arrays that pass; a split step."""

from __future__ import annotations

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import SplitStep, YieldOp
from cupy_training_ops.device import streams
from cupy_training_ops.families.control import operators as control

pytestmark = pytest.mark.gpu

SLOW = r"""
extern "C" __global__ void slow(float* x, float value, long long nanoseconds) {
    long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
    x[0] = value;
}
extern "C" __global__ void read(const float* x, float* y) { y[0] = x[0]; }
"""
RUNS = 100


@pytest.fixture(autouse=True)
def table(monkeypatch) -> streams.Events:
    """Events of its own for each test."""
    actual = streams.Events()
    monkeypatch.setattr(control, "EVENTS", actual)
    return actual


class Race:
    """A slow writer on one stream and a reader on another."""

    def __init__(self, milliseconds: int = 50) -> None:
        import cupy

        self.module = cupy.RawModule(code=SLOW)
        self.writer, self.reader = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        self.x, self.y = cupy.zeros(1, np.float32), cupy.zeros(1, np.float32)
        self.nanoseconds = milliseconds * 10**6
        cupy.cuda.Device().synchronize()
        self.launch(-1.0, waits=True)  # what is loaded late is loaded now
        self.synchronize()

    def synchronize(self) -> None:
        for stream in (self.writer, self.reader):
            stream.synchronize()

    def write(self, value: float) -> None:
        arguments = (self.x, np.float32(value), np.int64(self.nanoseconds))
        self.module.get_function("slow")((1,), (1,), arguments)

    def read(self) -> None:
        self.module.get_function("read")((1,), (1,), (self.x, self.y))

    def launch(self, value: float, waits: bool) -> None:
        """Write, record; wait or not, read."""
        with self.writer:
            self.write(value)
            cto.record_event(17, [self.x])
        with self.reader:
            if waits:
                cto.wait_event(17, [self.x], timeout=5)
            self.read()
        if not waits:
            with self.writer:
                cto.wait_event(17, [self.x], timeout=5)

    def right(self, value: float, waits: bool) -> bool:
        """Whether the reader sees what the writer wrote."""
        self.launch(value, waits)
        self.synchronize()
        return float(self.y.get()[0]) == value


def test_a_reader_that_waits_is_right_and_one_that_does_not_is_wrong() -> None:
    race = Race()
    assert all(race.right(float(run), waits=True) for run in range(RUNS))
    assert not all(race.right(1000.0 + run, waits=False) for run in range(RUNS))


def test_the_host_is_back_before_the_kernel_has_ended() -> None:
    race = Race()
    race.launch(5.0, waits=True)
    assert not race.writer.done
    assert not race.reader.done
    race.synchronize()
    assert float(race.y.get()[0]) == 5.0


def test_a_wait_on_the_host_waits_for_the_kernel() -> None:
    race = Race()
    with race.writer:
        race.write(5.0)
        cto.record_event(17, [race.x])
    host = np.zeros(1)
    assert cto.wait_event(17, [host])[0] is host
    assert float(race.x.get()[0]) == 5.0


def test_a_graph_over_two_streams() -> None:
    """The event forks the capture, a second one joins it."""
    race = Race(milliseconds=10)
    race.writer.begin_capture()
    try:
        race.launch(3.0, waits=True)
        with race.reader:
            cto.record_event(18, [race.y])
        with race.writer:
            cto.wait_event(18, [race.y], timeout=5)
    finally:
        graph = race.writer.end_capture()
    for run in range(RUNS):
        with race.reader:
            race.x.fill(-1)
            race.y.fill(run)
        race.reader.synchronize()
        graph.launch(race.writer)
        assert not race.writer.done
        race.writer.synchronize()
        assert float(race.y.get()[0]) == 3.0


def test_events_on_the_default_stream_and_in_turn(table) -> None:
    import cupy

    x = cupy.zeros(1 << 20, np.float32)
    other = cupy.cuda.Stream(non_blocking=True)
    for step in range(200):
        x += 1
        cto.record_event(step % 7, [x])
        with other:
            cto.wait_event(step % 7, [x])
            x += 1
            cto.record_event(4095, [x])
        cto.wait_event(4095, [x])
    assert bool((x == 400).all())
    assert not table._marks


def test_the_very_arrays_come_back() -> None:
    import cupy

    whole = cupy.arange(64, dtype=np.int64).reshape(8, 8)
    arrays = [whole, whole.T, whole[:, ::2], cupy.zeros((0, 3), np.float16), cupy.array(1j)]
    for actual in (
        cto.pass_through(arrays),
        cto.record_event(3, arrays),
        cto.wait_event(3, arrays),
        cto.record_event(-1, arrays),
    ):
        assert all(a is b and a.data.ptr == b.data.ptr for a, b in zip(actual, arrays, strict=True))
    done = cto.group(arrays)
    assert isinstance(done, np.ndarray)
    assert done.tolist() == [True]


def test_zeros_for_gradients_that_are_none() -> None:
    import cupy

    def echo(*outputs):
        gradients = yield YieldOp(full_shape_outputs=[0])(outputs)
        return gradients

    step = SplitStep(echo)
    step.run_forward(cupy.ones((3, 4), np.float16), cupy.ones(5))
    first, second = step.run_backward(None, None)
    assert (first.shape, first.dtype, second.shape, second.dtype) == ((3, 4), "f2", (), "f8")
    assert not first.any()
    assert not second.any()


@pytest.mark.multi_gpu
def test_events_of_another_device() -> None:
    import cupy

    with cupy.cuda.Device(1):
        x = cupy.zeros(1 << 20, np.float32)
    y = cupy.zeros(1 << 20, np.float32)
    with cupy.cuda.Device(1):
        x += 1
    cto.record_event(3, [x])  # the arrays' device counts, not the current one
    cto.wait_event(3, [y])
    cupy.cuda.get_current_stream().synchronize()
    with cupy.cuda.Device(1):
        assert bool((x == 1).all())
