# SPDX-License-Identifier: MIT
"""What is queued on NCCL, and when a call is overdue; with NCCL and CUDA played by others."""

from __future__ import annotations

import contextlib
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from cupy_training_ops.dtypes import FLOAT16, FLOAT32
from cupy_training_ops.families.collective import queue
from cupy_training_ops.families.collective.queue import Calls
from cupy_training_ops.process_group.nccl import Communicator

cupy = pytest.importorskip("cupy", reason="CuPy is in the extras")

EVERYONE = (0, 1)


class Event:
    """Waits for what the test says is over."""

    done = True
    recorded = 0

    def __init__(self, **_: object) -> None:
        pass

    def record(self, stream) -> None:
        Event.recorded += 1
        Event.done = False


class Nccl:
    """Notes what is called."""

    class NcclError(RuntimeError):
        pass

    def __init__(self) -> None:
        self.log: list[tuple] = []
        self.error: Exception | None = None

    def __getattr__(self, name: str):
        return lambda *args: self.log.append((name, *args))

    def check_async_error(self) -> None:
        if self.error:
            raise self.error


@pytest.fixture
def played(monkeypatch):
    """A communicator, its NCCL, and the stream that is current."""
    stream = SimpleNamespace(ptr=7, is_capturing=lambda: False)
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: stream)
    monkeypatch.setattr(cupy.cuda, "Event", Event)
    monkeypatch.setattr(cupy.cuda, "Device", lambda _: contextlib.nullcontext())
    Event.done, Event.recorded = True, 0
    binding = Nccl()
    return Communicator(binding, binding, 0, timeout=0.05), binding, stream


def group_of(communicator):
    """What calls need of a group."""
    known = SimpleNamespace(communicators={EVERYONE: communicator})
    given = {"require_open": lambda _: None, "resources": known}
    given |= {"busy": threading.Lock(), "broken": lambda _, error: error}
    return SimpleNamespace(rank=0, begin=lambda _: given["busy"].acquire(False), **given)


def table(*addresses: int) -> np.void:
    struct = np.zeros((), [("at", np.uint64, (max(1, len(addresses)),))])
    struct["at"][: len(addresses)] = addresses
    return struct[()]


def test_one_call_needs_no_group(played) -> None:
    communicator, binding, _ = played
    agreed = []
    rows = [queue.row("allReduce", 5, FLOAT32, queue.SUM)]
    calls = Calls(group_of(communicator), "X", EVERYONE, rows, lambda: agreed.append(1))
    arrays = table(100), table(200)
    calls(*arrays)
    calls(*arrays)
    assert binding.log == [("allReduce", 100, 200, 5, 7, 0, 7)] * 2
    assert agreed == [1]


def test_calls_of_a_list_are_one_group_without_empty_arrays(played) -> None:
    communicator, binding, stream = played
    rows = [
        queue.row("reduce", 5, FLOAT32, queue.SUM, 1),
        queue.row("reduce", 0, FLOAT32, queue.SUM, 0),
        queue.row("broadcast", 3, FLOAT16, 0),
        queue.row("send", 2, FLOAT32, 1),
        queue.row("recv", 2, FLOAT32, 1),
    ]
    calls = Calls(group_of(communicator), "X", EVERYONE, rows, lambda: None)
    arrays = table(1, 2, 3, 4, 5), table(11, 12, 13, 14, 15)
    expected = lambda s: [  # noqa: E731
        ("groupStart",),
        ("reduce", 1, 11, 5, 7, 0, 1, s),
        ("broadcast", 3, 13, 6, 1, 0, s),
        ("send", 4, 8, 1, 1, s),
        ("recv", 15, 8, 1, 1, s),
        ("groupEnd",),
    ]
    calls(*arrays)
    assert binding.log == expected(7)
    binding.log.clear()
    stream.ptr = 9  # another stream is current
    calls(*arrays)
    assert binding.log == expected(9)
    binding.log.clear()
    calls(table(21, 2, 3, 4, 5), arrays[1])  # other arrays
    assert binding.log[1][:3] == ("reduce", 21, 11)


def test_a_swap_receives_into_scratch_memory(played) -> None:
    communicator, binding, _ = played
    rows = [queue.row("send", 3, FLOAT32, 1), queue.row("send", 2, FLOAT32, 1)]
    rows += [queue.row("recv", 3, FLOAT32, 1), queue.row("recv", 2, FLOAT32, 1)]
    parts = [(0, 0, 0), (1, 0, 0), (0, 0, 0), (1, 0, 256)]
    swap = Calls(group_of(communicator), "X", EVERYONE, rows, lambda: None, parts)
    swap(table(10, 20), np.uint64(1000))
    assert binding.log[1:-1] == [
        ("send", 10, 12, 1, 1, 7),
        ("send", 20, 8, 1, 1, 7),
        ("recv", 1000, 12, 1, 1, 7),
        ("recv", 1256, 8, 1, 1, 7),
    ]


def queue_one(communicator) -> None:
    rows = [queue.row("allReduce", 5, FLOAT32, queue.SUM)]
    Calls(group_of(communicator), "X", EVERYONE, rows, lambda: None)(table(1), table(1))


def test_a_call_that_does_not_end_is_overdue(played) -> None:
    communicator, _, _ = played
    assert communicator.trouble() == ""
    assert Event.recorded == 0  # nothing was called
    queue_one(communicator)
    assert communicator.trouble() == ""
    time.sleep(0.06)
    assert communicator.trouble() == "a call on the GPU took longer than 0.05 seconds"


def test_calls_that_end_are_not_overdue_however_many(played) -> None:
    communicator, _, _ = played
    for _ in range(3):
        queue_one(communicator)
        assert communicator.trouble() == ""
        time.sleep(0.03)
        queue_one(communicator)  # behind the event
        Event.done = True
    assert communicator.trouble() == ""
    assert Event.recorded == 4
    time.sleep(0.06)  # the last of them does not end
    assert "longer" in communicator.trouble()


def test_no_event_is_put_into_a_graph(played) -> None:
    communicator, _, stream = played
    stream.is_capturing = lambda: True
    queue_one(communicator)
    assert communicator.trouble() == ""
    assert Event.recorded == 0
    stream.is_capturing = lambda: False
    communicator.trouble()
    assert Event.recorded == 1


def test_an_error_of_nccls_is_a_trouble(played) -> None:
    communicator, binding, _ = played
    binding.error = Nccl.NcclError("unhandled system error")
    assert communicator.trouble() == "NCCL failed: unhandled system error"


def test_it_is_ended_once(played) -> None:
    communicator, binding, _ = played
    communicator.end()
    communicator.end(True)
    communicator.end()
    assert binding.log == [("abort",)]
