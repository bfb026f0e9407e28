# SPDX-License-Identifier: MIT
"""Scratch memory of operators, one for each instance and stream."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable, Iterator

import numpy as np

from ..backend import Array, ArrayInfo, Backend
from ..declare.schema import Spec
from ..dtypes import UINT8
from ..errors import ArgumentError, ProviderError
from ..forks import Locked

POISON = 0xFF  # NaN of every type
_of_graphs: list[Array] = []  # never freed: a graph may outlive its operator
_state = threading.local()  # of the contexts below: `is_behind`, `stores`


@contextlib.contextmanager
def behind_graphs() -> Iterator[None]:
    """Let calls inside use the scratch memory of graphs that were captured on this thread's stream:
    the caller orders them after all replays so far, and before later ones."""
    before, _state.is_behind = _is_behind_graphs(), True
    try:
        yield
    finally:
        _state.is_behind = before


Stores = dict[object, "Store"]  # of one owner, by operator instance, device, depth and sizes


@contextlib.contextmanager
def in_stores(stores: Stores) -> Iterator[None]:
    """Let calls inside use scratch memory in `stores`, adding what is missing.

    Nothing there is replaced, as recorded launches that are made again use it. The owner of
    `stores` orders these one after the other.
    """
    before, _state.stores = getattr(_state, "stores", None), stores
    try:
        yield
    finally:
        _state.stores = before


def _is_behind_graphs() -> bool:
    """Return True inside `behind_graphs`."""
    return getattr(_state, "is_behind", False)


class Store:
    """The scratch memory of one instance and stream: two uint8 arrays on the device.

    plain: arbitrary bytes. zeros: zero between calls, as kernels clear it; after an exception
    `is_zero` is False, and it is cleared before the next call.
    """

    __slots__ = ("is_captured", "is_zero", "plain", "zeros")

    def __init__(self, plain: Array, zeros: Array) -> None:
        self.plain, self.zeros = plain, zeros
        self.is_zero = True
        self.is_captured = False  # replays of a graph write to it

    def serves(self, plain_nbytes: int, zeros_nbytes: int) -> bool:
        """Return True if `zeros` is zero, and both buffers are large enough."""
        fits = self.plain.nbytes >= plain_nbytes and self.zeros.nbytes >= zeros_nbytes
        return self.is_zero and fits


class Workspaces(Locked):
    """The scratch memory of one operator instance.

    A buffer that is too small is retired, not freed, as queued work may still write to it; the next
    has at least twice its size, so that retired buffers together are never larger. Memory that a
    graph captured is never freed or used by eager calls, as replays may run beside these; calls
    inside `behind_graphs` do use it.

    A call holds `lock` from `get` to its last launch, as two threads may have the same stream. A
    finalizer or signal handler may run the operator again between two launches: each `depth` of
    such calls has its own memory.

    In its methods plain_nbytes are bytes of any value, zeros_nbytes bytes that are 0 before and
    after a call; device is a device's number.
    """

    def __init__(self, op: str) -> None:
        super().__init__()
        self._op = op  # its name, for messages
        self.depth = 0  # calls that are between two of their launches
        # By backend, device, stream, depth.
        self._stores: dict[tuple[Backend, int, Hashable, int], Store] = {}
        self._retired: list[Array] = []  # buffers that were too small
        self._poisons = False  # new bytes are POISON, for tests

    def recover(self) -> None:
        """Reset `depth`: no call is between two launches any more."""
        self.depth = 0

    def get(self, backend: Backend, device: int, plain_nbytes: int, zeros_nbytes: int) -> Store:
        """Return scratch memory for a call on the device's current stream, one Store for each.

        Under capture it has to exist already, and belongs to graphs from then on: later calls get
        another one.
        """
        stores: Stores | None = getattr(_state, "stores", None)
        if stores is not None:
            return self._own(stores, backend, device, plain_nbytes, zeros_nbytes)
        key = (backend, device, backend.stream(device), self.depth)
        store = self._stores.get(key)
        if backend.capturing(device):
            if backend.has_tensors:  # from the graph's own pool
                return self._new(backend, device, plain_nbytes, zeros_nbytes)
            return self._capture(store, plain_nbytes, zeros_nbytes)
        if store is not None and (not store.is_captured or _is_behind_graphs()):
            if not store.serves(plain_nbytes, zeros_nbytes):
                self._renew(store, backend, device, plain_nbytes, zeros_nbytes)
            return store
        if store is not None:  # the next capture may need as much
            plain_nbytes = max(plain_nbytes, store.plain.nbytes)
            zeros_nbytes = max(zeros_nbytes, store.zeros.nbytes)
        self._stores[key] = self._new(backend, device, plain_nbytes, zeros_nbytes)
        return self._stores[key]

    def _own(
        self, stores: Stores, backend: Backend, device: int, plain_nbytes: int, zeros_nbytes: int
    ) -> Store:
        """Return the store for a call of these sizes in `stores`, which `in_stores` passed."""
        key = (self, device, self.depth, plain_nbytes, zeros_nbytes)
        if key not in stores:
            stores[key] = self._new(backend, device, plain_nbytes, zeros_nbytes)
        store = stores[key]
        if not store.is_zero:
            self.clear(backend, device, store)
        return store

    def _new(self, backend: Backend, device: int, plain_nbytes: int, zeros_nbytes: int) -> Store:
        plain = self._plain(backend, device, plain_nbytes)
        return Store(plain, backend.zeros(zeros_nbytes, device))

    def _plain(self, backend: Backend, device: int, nbytes: int) -> Array:
        """Allocate uninitialised bytes, or for tests bytes of POISON."""
        memory = backend.empty(Spec((nbytes,), UINT8), device)
        if self._poisons:
            backend.fill(memory, nbytes, POISON)
        return memory

    def _capture(self, store: Store | None, plain_nbytes: int, zeros_nbytes: int) -> Store:
        """Return the store for a call under capture, whose graph owns its memory from now on.

        ProviderError if it is None or too small: nothing can be allocated under capture.
        """
        if store is None or not store.serves(plain_nbytes, zeros_nbytes):
            raise ProviderError(
                f"{self._op}: workspace: a call under graph capture needs {plain_nbytes} bytes of "
                f"scratch memory and {zeros_nbytes} of zeros that exist already: call once before, "
                f"or pass workspace="
            )
        if not store.is_captured:
            _of_graphs.extend((store.plain, store.zeros))
        store.is_captured = True
        return store

    def _renew(
        self, store: Store, backend: Backend, device: int, plain_nbytes: int, zeros_nbytes: int
    ) -> None:
        """Replace buffers of `store` below so many bytes; clear zeros that may not be zero."""
        if store.plain.nbytes < plain_nbytes:
            self._retired.append(store.plain)
            larger = max(plain_nbytes, 2 * store.plain.nbytes)
            store.plain = self._plain(backend, device, larger)
            _of_graphs.extend([store.plain] * store.is_captured)  # later graphs use it
        if store.zeros.nbytes < zeros_nbytes:
            self._retired.append(store.zeros)
            store.zeros = backend.zeros(max(zeros_nbytes, 2 * store.zeros.nbytes), device)
            _of_graphs.extend([store.zeros] * store.is_captured)
            store.is_zero = True
        if not store.is_zero:
            self.clear(backend, device, store)

    def poison(self) -> None:
        """Overwrite all `plain` bytes, also of future stores, as other calls may; for tests."""
        self._poisons = True
        for (backend, device, *_), store in self._stores.items():
            with backend.on(device):
                backend.fill(store.plain, store.plain.nbytes, POISON)

    def count_left(self) -> int:
        """Count bytes of `zeros` that are not zero; waits for queued work; for tests."""
        every = ((key[0], store.zeros) for key, store in self._stores.items())
        return sum(int(np.count_nonzero(backend.to_host(zeros))) for backend, zeros in every)

    @staticmethod
    def clear(backend: Backend, device: int, store: Store) -> None:
        """Queue a memset of the store's `zeros` to 0 on the device's current stream."""
        with backend.on(device):
            backend.fill(store.zeros, store.zeros.nbytes, 0)
        store.is_zero = True


def check(op: str, got: ArrayInfo, home: ArrayInfo, nbytes: int) -> None:
    """Refuse a caller's workspace unless it is contiguous, aligned uint8 of `nbytes` or more.

    op: its name, for messages. got, home: the info of the workspace, and of an array of the call,
    whose device it must have.
    """
    fits = got.dtype == "uint8" and len(got.shape) == 1 and got.shape[0] >= nbytes
    if not (fits and got.strides is None and got.aligned and got.place == home.place):
        raise ArgumentError(
            f"{op}: workspace: expected a uint8 array of at least {nbytes} elements and rank 1 on "
            f"{home.place}, contiguous, aligned to 16 bytes, "
            f"got {got.dtype} of shape {got.shape} on {got.place}"
        )
