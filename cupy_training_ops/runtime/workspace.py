# SPDX-License-Identifier: MIT
"""Scratch memory of one operator instance and stream: never shared, never freed early."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

from ..backend import Array, ArrayInfo, Backend
from ..dtypes import UINT8
from ..errors import ArgumentError, ProviderError
from ..schema import Spec


class Store:
    """The scratch memory of one instance and stream, in a buffer for each kind.

    `plain` may hold anything. `zeros` is zero between two calls, whose kernels leave it so; where a
    call ended with an exception it is not known, and is cleared before the next.
    """

    __slots__ = ("is_captured", "is_zero", "plain", "zeros")

    def __init__(self, plain: Array, zeros: Array) -> None:
        self.plain, self.zeros = plain, zeros
        self.is_zero = True
        self.is_captured = False  # a graph writes to it, whenever it is replayed

    def serves(self, plain_nbytes: int, zeros_nbytes: int) -> bool:
        """Whether it is known, and large enough."""
        fits = self.plain.size >= plain_nbytes and self.zeros.size >= zeros_nbytes
        return self.is_zero and fits


class Workspaces:
    """The scratch memory of one operator instance.

    A buffer that became too small is kept, because queued work or a captured graph may still write
    to it; the next is at least twice as large, so that what is kept is never more than what is
    used. What a graph was captured with is its own: eager calls go on with other memory, so that
    its replays may run at any time, on any stream.

    `lock` is held from `get` to the last launch: two threads may have the same current stream.
    Between two launches of a call a finalizer or a signal handler of the same thread may run the
    operator again: at each `depth` of such calls there is memory of its own.
    """

    def __init__(self, op: str) -> None:
        self._op = op
        self.lock = threading.RLock()
        self.depth = 0
        self._stores: dict[Hashable, Store] = {}
        self._retired: list[Array] = []
        self.has_graphs = False  # that were captured with some of it

    def get(self, backend: Backend, device: int, plain_nbytes: int, zeros_nbytes: int) -> Store:
        """At least so many bytes of each kind for the device's current stream."""
        key = (backend, device, backend.stream(device), self.depth)
        store = self._stores.get(key)
        if backend.capturing(device):
            return self._captured(store, plain_nbytes, zeros_nbytes)
        if store is not None and not store.is_captured:
            if not store.serves(plain_nbytes, zeros_nbytes):
                self._renew(store, backend, device, plain_nbytes, zeros_nbytes)
            return store
        if store is not None:
            self._retired += [store.plain, store.zeros]
        plain = backend.empty(Spec((plain_nbytes,), UINT8), device)
        self._stores[key] = Store(plain, backend.zeros(zeros_nbytes, device))
        return self._stores[key]

    def _captured(self, store: Store | None, plain_nbytes: int, zeros_nbytes: int) -> Store:
        """What is there, from now on the graph's."""
        if store is None or not store.serves(plain_nbytes, zeros_nbytes):
            raise ProviderError(
                f"{self._op}: workspace: a call under graph capture needs {plain_nbytes} bytes of "
                f"scratch memory and {zeros_nbytes} of zeros that exist already: call once before, "
                f"or pass workspace="
            )
        store.is_captured = self.has_graphs = True
        return store

    def _renew(
        self, store: Store, backend: Backend, device: int, plain_nbytes: int, zeros_nbytes: int
    ) -> None:
        """Larger buffers where they are too small, and zeros."""
        if store.plain.size < plain_nbytes:
            self._retired.append(store.plain)
            larger = max(plain_nbytes, 2 * store.plain.size)
            store.plain = backend.empty(Spec((larger,), UINT8), device)
        if store.zeros.size < zeros_nbytes:
            self._retired.append(store.zeros)
            store.zeros = backend.zeros(max(zeros_nbytes, 2 * store.zeros.size), device)
            store.is_zero = True
        if not store.is_zero:
            self.clear(backend, device, store)

    def poison(self) -> None:
        """Overwrite all that may hold anything, as other calls may; for tests."""
        for store in self._stores.values():
            store.plain[...] = 0xFF  # type: ignore[index]

    def left(self) -> int:
        """Count bytes of zeros that calls have not left zero; waits for them; for tests."""
        every: list[Any] = [store.zeros for store in self._stores.values()]
        return sum(int((zeros != 0).sum()) for zeros in every)

    @staticmethod
    def clear(backend: Backend, device: int, store: Store) -> None:
        """Make the zeros zero again behind what is queued."""
        with backend.on(device):
            backend.clear(store.zeros, store.zeros.size)
        store.is_zero = True


def check(op: str, got: ArrayInfo, home: ArrayInfo, nbytes: int) -> None:
    """A caller's workspace: uint8, contiguous, aligned, large enough, where the arrays are.

    `got` and `home` are what `backends.info` says of the workspace and of a call's arrays.
    """
    fits = got.dtype == "uint8" and len(got.shape) == 1 and got.shape[0] >= nbytes
    if not (fits and got.strides is None and got.aligned and got.place == home.place):
        raise ArgumentError(
            f"{op}: workspace: expected a uint8 array of at least {nbytes} elements and rank 1 on "
            f"{home.place}, contiguous, aligned to 16 bytes, "
            f"got {got.dtype} of shape {got.shape} on {got.place}"
        )
