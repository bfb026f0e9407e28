# SPDX-License-Identifier: MIT
"""Scratch memory: reused, never shared by streams, never freed under a captured graph."""

from __future__ import annotations

import gc
import threading
import types
import weakref

import numpy as np
import pytest

from cupy_training_ops import ArgumentError, ProviderError
from cupy_training_ops.backend import ArrayInfo
from cupy_training_ops.frame.backends import strides
from cupy_training_ops.runtime.workspace import Workspaces, check


class Buffer(np.ndarray):
    """An array that can be watched."""


class FakeBackend:
    """Streams that a test sets, and memory that counts its allocations."""

    name = "fake"

    def __init__(self) -> None:
        self.current_stream = 0
        self.captures = False
        self.allocated: list[int] = []

    def stream(self, device):
        return self.current_stream

    def capturing(self, device):
        return self.captures

    def zeros(self, nbytes, device):
        self.allocated.append(nbytes)
        return np.zeros(nbytes, np.uint8).view(Buffer)


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def workspaces() -> Workspaces:
    return Workspaces("SomeOp")


def test_a_buffer_is_reused_while_it_is_large_enough(backend, workspaces) -> None:
    first = workspaces.get(backend, 0, 100)
    assert workspaces.get(backend, 0, 100) is first
    assert workspaces.get(backend, 0, 1) is first
    assert backend.allocated == [100]
    assert not first.any()


def test_a_buffer_grows(backend, workspaces) -> None:
    first = workspaces.get(backend, 0, 100)
    second = workspaces.get(backend, 0, 101)
    assert second is not first
    assert second.size == 200
    assert workspaces.get(backend, 0, 50) is second


@pytest.mark.parametrize("other", ["stream", "device", "instance", "backend"])
def test_buffers_are_not_shared(backend, workspaces, other) -> None:
    first = workspaces.get(backend, 0, 64)
    backend.current_stream = 7 if other == "stream" else 0
    owner = Workspaces("SomeOp") if other == "instance" else workspaces
    home = FakeBackend() if other == "backend" else backend
    assert owner.get(home, 1 if other == "device" else 0, 64) is not first
    backend.current_stream = 0
    assert workspaces.get(backend, 0, 64) is first


def test_an_outgrown_buffer_lives_as_long_as_the_operator(backend, workspaces) -> None:
    old = weakref.ref(workspaces.get(backend, 0, 10))
    workspaces.get(backend, 0, 20)
    gc.collect()
    assert old() is not None


def test_buffers_go_with_the_operator(backend) -> None:
    workspaces = Workspaces("SomeOp")
    buffers = [weakref.ref(workspaces.get(backend, 0, n)) for n in (10, 20)]
    del workspaces
    gc.collect()
    assert [buffer() for buffer in buffers] == [None, None]


@pytest.mark.parametrize("before", [0, 99])
def test_nothing_is_allocated_under_capture(backend, workspaces, before) -> None:
    if before:
        workspaces.get(backend, 0, before)
    backend.captures = True
    with pytest.raises(ProviderError, match=r"SomeOp: workspace: .* needs 100 bytes .* call once"):
        workspaces.get(backend, 0, 100)
    assert backend.allocated == [before][: bool(before)]


def test_a_buffer_that_exists_serves_a_capture(backend, workspaces) -> None:
    first = workspaces.get(backend, 0, 100)
    backend.captures = True
    assert workspaces.get(backend, 0, 100) is first


def described(array: np.ndarray, device: int = 0) -> ArrayInfo:
    aligned = array.ctypes.data % 16 == 0
    found = strides(array)
    return ArrayInfo(FakeBackend(), array.dtype, array.shape, aligned, found, device)


HOME = described(np.zeros(1))


def test_a_large_enough_workspace_passes() -> None:
    check("SomeOp", described(np.zeros(64, np.uint8)), HOME, 64)


@pytest.mark.parametrize(
    "wrong",
    [
        described(np.zeros(63, np.uint8)),
        described(np.zeros(64, np.int8)),
        described(np.zeros(64, np.float32)),
        described(np.zeros((8, 8), np.uint8)),
        described(np.zeros(128, np.uint8)[::2]),
        described(np.zeros(80, np.uint8)[1:]),
        described(np.zeros(64, np.uint8), device=1),
    ],
    ids=["small", "signed", "float", "rank 2", "strided", "misaligned", "elsewhere"],
)
def test_a_wrong_workspace_is_refused(wrong) -> None:
    with pytest.raises(ArgumentError, match="SomeOp: workspace: expected a uint8 array of at"):
        check("SomeOp", wrong, HOME, 64)


def test_per_thread_default_streams_are_as_many_as_threads(monkeypatch) -> None:
    """One handle names them all; any other handle is one stream."""
    cupy = pytest.importorskip("cupy", reason="CuPy is in the extras")
    from cupy_training_ops.runtime.cuda import BACKEND

    def keys(handle):
        stream = types.SimpleNamespace(ptr=handle)
        monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda _device: stream)
        found = [BACKEND.stream(0)]
        thread = threading.Thread(target=lambda: found.append(BACKEND.stream(0)))
        thread.start()
        thread.join()
        return set(found)

    assert len(keys(cupy.cuda.Stream.ptds.ptr)) == 2
    assert keys(cupy.cuda.Stream.null.ptr) == {0}
    assert keys(12345) == {12345}
