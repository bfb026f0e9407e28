# SPDX-License-Identifier: MIT
"""Calls while other devices and streams are current, some of them captured: without a GPU."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is in the extras")
import cupy

from cupy_training_ops import ProviderError, get_op
from cupy_training_ops.call import backends
from cupy_training_ops.call.bound import OpenCall
from cupy_training_ops.testing.hollow import HollowBackend, HollowDriver

FIRST, ROOM = 2**41, 2**24  # addresses: of the first array, and from one to the next


class Switched(HollowBackend):
    """Two devices; a test says which is current, which stream of each, and what is captured."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Noting(self)
        self.current, self.streams, self.captured = 0, [100, 200], set[int]()
        self.homes: list[tuple[int, int]] = []  # device and stream, by number of the memory
        self.log: list[tuple[str, int, int, list[int]]] = []  # with device, stream, memory

    def array(self, device: int, shape: Any, dtype: Any = np.float32) -> Any:
        """Memory of a device, which belongs to its current stream."""
        address, nbytes = FIRST + ROOM * len(self.homes), ROOM // 2
        self.homes.append((device, self.streams[device]))
        memory = cupy.cuda.UnownedMemory(address, nbytes, None, device)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))

    def note(self, kind: str, stream: int, numbers: Any) -> None:
        memory = {(int(n) - FIRST) // ROOM for n in numbers}
        known = [n for n in memory if 0 <= n < len(self.homes)]
        self.log.append((kind, self.current, stream, known))

    def is_current(self, device):
        return self.current == device

    @contextlib.contextmanager
    def on(self, device):
        before, self.current = self.current, device
        try:
            yield
        finally:
            self.current = before

    def current_device(self):
        return self.current

    def stream(self, device):
        return self.streams[device]

    stream_address = stream

    def capturing(self, device):
        return self.streams[device] in self.captured

    def keeps_memory(self):
        return False

    def empty(self, spec, device):
        array = self.array(device, spec.shape, spec.dtype)
        self.note("made", self.streams[device], [array.data.ptr])
        return array

    def maker(self, spec, device):
        return lambda: self.empty(spec, device)

    def zeros(self, nbytes, device):
        return self.array(device, (nbytes,), np.uint8)

    def fill(self, array, nbytes, byte):
        self.note("fill", self.streams[self.current], [array.data.ptr])


class Noting(HollowDriver):
    """Notes which memory a kernel is given."""

    def __init__(self, backend: Switched) -> None:
        super().__init__([])
        self.backend = backend

    def launch(self, kernel, stream, arguments, _):
        super().launch(kernel, stream, arguments, _)
        ((_, (*values, stream)),) = self.launches
        self.launches.clear()
        words = [np.frombuffer(v.tobytes()[: v.nbytes // 8 * 8], np.uint64) for v in values]
        self.backend.note("launch", stream, np.concatenate([[0], *words]))


@pytest.fixture
def backend(monkeypatch) -> Switched:
    switched = Switched()
    monkeypatch.setitem(backends.BACKENDS, cupy.ndarray, switched)
    return switched


def calls_on(backend: Switched, device: int) -> list[tuple[Any, dict[str, Any], dict[str, Any]]]:
    """Operators with their inputs and `out`, if any: scratch memory, tables, several results."""

    def array(*shape: int, dtype: str = "f4") -> Any:
        return backend.array(device, shape, dtype)

    some = [array(1000), array(300)]
    rows = {"scale": array(128), "mean": array(64, 1), "inv_std_dev": array(64, 1)}
    normed = {"Y_grad": array(64, 128), "X": array(64, 128), **rows}
    gathered = {"shape": (9, 32), "indices": array(64, dtype="i8"), "dY": array(64, 32)}
    return [
        (get_op("GeluGrad")(), {"dY": array(5000), "X": array(5000)}, {"out": array(5000)}),
        (get_op("ReduceAllL2")(), {"X": some}, {}),
        (get_op("InPlaceAccumulator")(), {"old_sum": array(9), "value": array(9)}, {}),
        (get_op("GatherGrad")(), gathered, {"out": array(9, 32)}),
        (get_op("ConcatTraining")(axis=0), {"inputs": some}, {}),
        (get_op("LayerNormalizationGrad")(axis=-1), normed, {}),
        (get_op("InPlaceAccumulatorList")(), {"old_sums": some, "values": [*some]}, {}),
    ]


@pytest.mark.parametrize("seed", range(4))
def test_a_call_goes_where_its_arrays_are(backend, seed) -> None:
    """By the stream that is current there, with scratch memory of that stream, or of its graph."""
    random_ = random.Random(seed)
    cases = [(device, *case) for device in (0, 1) for case in calls_on(backend, device)]
    bound_calls: list[
        Any
    ] = []  # bound calls, each with its device, its operator and what it left open
    of_graphs: set[int] = set()
    seen = {"launch": 0, "fill": 0, "made": 0, "refused": 0}
    for _ in range(300):
        backend.current = was = random_.randrange(2)
        backend.streams = [100 * d + random_.randrange(3) for d in (1, 2)]
        backend.captured = {s for s in backend.streams if random_.random() < 0.2}
        backend.log.clear()
        device, op, inputs, out = random_.choice(cases)
        kind = random_.choice(("call", "workspace", "bind", "bound", "bound"))
        try:
            if kind == "bind":
                left_open = random_.choice([None, *(n for n in inputs if n != "shape")])
                keywords = {n: ... if n == left_open else v for n, v in inputs.items()}
                rest = {} if left_open is None else {left_open: inputs[left_open]}
                bound_calls.append((device, op, op.bound(**keywords, **out), rest))
            elif kind == "bound" and bound_calls:
                device, op, bound, rest = random_.choice(bound_calls)
                is_checked = isinstance(bound, OpenCall) and random_.random() < 0.5
                if is_checked:
                    bound.checked(**rest)()
                else:
                    bound(**rest)
            else:
                nbytes = op.workspace_nbytes(**inputs, **out)
                own = {"workspace": backend.array(device, (nbytes,), np.uint8)}
                op(**inputs, **out, **(own if kind == "workspace" else {}))
        except ProviderError:
            assert backend.capturing(device)
            assert not any(kind == "launch" for kind, *_ in backend.log)
            seen["refused"] += 1
        assert backend.current == was
        stores = op.workspaces._stores.values()
        buffers = (buffer for store in stores for buffer in (store.plain, store.zeros))
        scratch = {(buffer.data.ptr - FIRST) // ROOM for buffer in buffers}
        for kind, at, stream, memory in backend.log:
            assert (at, stream) == (device, backend.streams[device]) or kind == "made"
            assert not (kind == "made" and backend.capturing(device))
            assert {backend.homes[n][0] for n in memory} <= {device}
            for n in scratch.intersection(memory):
                assert backend.homes[n][1] == stream
                assert n not in of_graphs or backend.capturing(device)
                of_graphs |= {n} if backend.capturing(device) else set()
            seen[kind] += 1
    assert all(seen.values()), seen
