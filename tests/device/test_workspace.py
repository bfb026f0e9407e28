# SPDX-License-Identifier: MIT
"""Scratch memory: reused, never shared by streams, never freed under a captured graph."""

from __future__ import annotations

import contextlib
import gc
import threading
import types
import weakref

import numpy as np
import pytest

from cupy_training_ops import ArgumentError, ProviderError
from cupy_training_ops.backend import ArrayInfo
from cupy_training_ops.call.backends import strides
from cupy_training_ops.device import workspace
from cupy_training_ops.device.workspace import Workspaces, check


class Buffer(np.ndarray):
    """An array that can be watched."""


class FakeBackend:
    """Streams that a test sets, and memory that counts its allocations."""

    name = "fake"

    def __init__(self) -> None:
        self.current_stream = 0
        self.captures = self.has_tensors = False
        self.allocated: list[tuple[str, int]] = []

    def stream(self, device):
        return self.current_stream

    def capturing(self, device):
        return self.captures

    def on(self, device):
        return contextlib.nullcontext()

    def empty(self, spec, device):
        self.allocated.append(("plain", *spec.shape))
        return np.full(spec.shape, 0xA5, np.uint8).view(Buffer)

    def zeros(self, nbytes, device):
        self.allocated.append(("zeros", nbytes))
        return np.zeros(nbytes, np.uint8).view(Buffer)

    def fill(self, array, nbytes, byte):
        array[:nbytes] = byte

    def to_host(self, array):
        return array


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def workspaces() -> Workspaces:
    return Workspaces("SomeOp")


def test_memory_is_reused_while_it_is_large_enough(backend, workspaces) -> None:
    store = workspaces.get(backend, 0, 100, 8)
    plain, zeros = store.plain, store.zeros
    for sizes in ((100, 8), (1, 1), (0, 8), (100, 0)):
        assert workspaces.get(backend, 0, *sizes) is store
    assert store.plain is plain
    assert store.zeros is zeros
    assert backend.allocated == [("plain", 100), ("zeros", 8)]
    assert not zeros.any()


@pytest.mark.parametrize(("more", "grown"), [((101, 8), "plain"), ((100, 9), "zeros")])
def test_a_buffer_grows_alone(backend, workspaces, more, grown) -> None:
    first = workspaces.get(backend, 0, 100, 8)
    before = {kind: getattr(first, kind) for kind in ("plain", "zeros")}
    store = workspaces.get(backend, 0, *more)
    for kind, buffer in before.items():
        now = getattr(store, kind)
        assert (now is buffer) == (kind != grown)
        assert now.size == buffer.size * (2 if kind == grown else 1)


@pytest.mark.parametrize("other", ["stream", "device", "instance", "backend", "depth"])
def test_memory_is_not_shared(backend, workspaces, other) -> None:
    first = workspaces.get(backend, 0, 64, 4)
    backend.current_stream = 7 if other == "stream" else 0
    workspaces.depth = 1 if other == "depth" else 0
    owner = Workspaces("SomeOp") if other == "instance" else workspaces
    home = FakeBackend() if other == "backend" else backend
    actual = owner.get(home, 1 if other == "device" else 0, 64, 4)
    assert not {id(first.plain), id(first.zeros)} & {id(actual.plain), id(actual.zeros)}
    backend.current_stream = workspaces.depth = 0
    assert workspaces.get(backend, 0, 64, 4) is first


def test_outgrown_buffers_live_as_long_as_the_operator(backend, workspaces) -> None:
    store = workspaces.get(backend, 0, 10, 4)
    old = [weakref.ref(buffer) for buffer in (store.plain, store.zeros)]
    workspaces.get(backend, 0, 20, 8)
    gc.collect()
    assert all(buffer() is not None for buffer in old)


def test_buffers_go_with_the_operator(backend) -> None:
    workspaces = Workspaces("SomeOp")
    buffers = [weakref.ref(workspaces.get(backend, 0, n, n).plain) for n in (10, 20)]
    del workspaces
    gc.collect()
    assert [buffer() for buffer in buffers] == [None, None]


@pytest.mark.parametrize("before", [(), (99, 8), (100, 7)])
def test_nothing_is_allocated_under_capture(backend, workspaces, before) -> None:
    if before:
        workspaces.get(backend, 0, *before)
    allocated = list(backend.allocated)
    backend.captures = True
    expected = r"SomeOp: workspace: .* needs 100 bytes .* and 8 of zeros .* call once"
    with pytest.raises(ProviderError, match=expected):
        workspaces.get(backend, 0, 100, 8)
    assert backend.allocated == allocated


def test_memory_that_exists_serves_a_capture(backend, workspaces) -> None:
    first = workspaces.get(backend, 0, 100, 8)
    backend.captures = True
    assert workspaces.get(backend, 0, 100, 8) is first


def test_a_graph_keeps_what_it_was_captured_with(backend, workspaces) -> None:
    """Calls of one capture share it; eager calls go on with other memory."""
    first = workspaces.get(backend, 0, 100, 8)
    backend.captures = True
    assert workspaces.get(backend, 0, 100, 8) is workspaces.get(backend, 0, 90, 8) is first
    backend.captures = False
    captured = [weakref.ref(buffer) for buffer in (first.plain, first.zeros)]
    second = workspaces.get(backend, 0, 100, 8)
    del first
    gc.collect()
    assert all(buffer() is not None for buffer in captured)
    assert {id(second.plain), id(second.zeros)}.isdisjoint(id(buffer()) for buffer in captured)
    assert workspaces.get(backend, 0, 100, 8) is second


def test_calls_behind_graphs_have_their_memory(backend, workspaces, monkeypatch) -> None:
    """So that one graph after the other takes no more; what replaces it is kept for graphs, too."""
    monkeypatch.setattr(workspace, "_of_graphs", kept := [])
    for nbytes in (100, 90, 100, 300):
        with workspace.behind_graphs():
            store = workspaces.get(backend, 0, nbytes, 8)
        backend.captures = True
        assert workspaces.get(backend, 0, nbytes, 8) is store
        backend.captures = False
    assert [buffer.nbytes for buffer in kept] == [100, 8, 300]
    assert any(store.plain is buffer for buffer in kept)
    assert workspaces.get(backend, 0, 100, 8) is not store  # an eager call


def test_a_graph_keeps_its_memory_when_the_operator_goes(backend) -> None:
    """As in a function that captures with an operator of its own, and returns the graph."""
    workspaces = Workspaces("SomeOp")
    store = workspaces.get(backend, 0, 100, 8)
    backend.captures = True
    workspaces.get(backend, 0, 100, 8)
    captured = [weakref.ref(buffer) for buffer in (store.plain, store.zeros)]
    del workspaces, store
    gc.collect()
    assert all(buffer() is not None for buffer in captured)


def test_an_eager_call_between_two_captures_may_be_small(backend, workspaces) -> None:
    """An epoch's last batch: what it makes serves the next capture, as large as the first."""
    workspaces.get(backend, 0, 100, 8)
    backend.captures = True
    first = workspaces.get(backend, 0, 100, 8)
    backend.captures = False
    workspaces.get(backend, 0, 10, 4)
    backend.captures = True
    assert workspaces.get(backend, 0, 100, 8) is not first


def test_unknown_zeros_are_cleared_by_the_next_call(backend, workspaces) -> None:
    """A capture would record the clearing, and eager calls before its replay would go without."""
    store = workspaces.get(backend, 0, 100, 8)
    store.zeros[...], store.is_zero = 3, False
    backend.captures = True
    with pytest.raises(ProviderError, match="SomeOp: workspace: a call under graph capture"):
        workspaces.get(backend, 0, 100, 8)
    backend.captures = False
    assert workspaces.get(backend, 0, 100, 8) is store
    assert store.is_zero
    assert not store.zeros.any()


def test_poison_reaches_memory_that_is_made_later(backend, workspaces) -> None:
    """Of a first call, of a larger one, and of one after a capture."""
    workspaces.poison()
    for nbytes in (10, 100):
        assert (workspaces.get(backend, 0, nbytes, 8).plain == 0xFF).all()
    backend.captures = True
    workspaces.get(backend, 0, 100, 8)
    backend.captures = False
    assert (workspaces.get(backend, 0, 100, 8).plain == 0xFF).all()


def test_poison_leaves_zeros(backend, workspaces) -> None:
    store = workspaces.get(backend, 0, 100, 8)
    workspaces.poison()
    assert (store.plain == 0xFF).all()
    assert not store.zeros.any()
    assert workspaces.count_left() == 0
    store.zeros[3:5] = 1
    assert workspaces.count_left() == 2


def described(array: np.ndarray, device: int = 0) -> ArrayInfo:
    aligned = array.ctypes.data % 16 == 0
    actual = strides(array)
    return ArrayInfo(FakeBackend(), array.dtype, array.shape, aligned, actual, device)


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
    from cupy_training_ops.device.cuda import BACKEND

    def keys(handle):
        stream = types.SimpleNamespace(ptr=handle)
        monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda _device: stream)
        actual = [BACKEND.stream(0)]
        thread = threading.Thread(target=lambda: actual.append(BACKEND.stream(0)))
        thread.start()
        thread.join()
        return set(actual)

    assert len(keys(cupy.cuda.Stream.ptds.ptr)) == 2
    assert keys(cupy.cuda.Stream.null.ptr) == {0}
    assert keys(12345) == {12345}
