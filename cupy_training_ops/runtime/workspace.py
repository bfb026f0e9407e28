# SPDX-License-Identifier: MIT
"""Scratch memory of one operator instance and stream: never shared, never freed early."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from ..backend import Array, ArrayInfo, Backend
from ..dtypes import UINT8
from ..errors import ArgumentError, ProviderError
from ..schema import Spec


class Store:
    """The scratch memory of one instance and stream, in a buffer for each kind.

    `plain` may hold anything. `zeros` is zero between two calls, whose kernels leave it so; where a
    call ended with an exception it is not known, and is cleared before the next.
    """

    __slots__ = ("is_zero", "plain", "zeros")

    def __init__(self, plain: Array, zeros: Array) -> None:
        self.plain, self.zeros = plain, zeros
        self.is_zero = True


class Workspaces:
    """The scratch memory of one operator instance.

    A buffer that became too small is kept, because a captured graph may still write to it; the
    next is at least twice as large, so that what is kept is never more than what is used.

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

    def get(self, backend: Backend, device: int, plain_nbytes: int, zeros_nbytes: int) -> Store:
        """At least so many bytes of each kind for the device's current stream."""
        key = (backend, device, backend.stream(device), self.depth)
        store = self._stores.get(key)
        if (
            store is not None
            and store.is_zero
            and store.plain.size >= plain_nbytes
            and store.zeros.size >= zeros_nbytes
        ):
            return store
        if backend.capturing(device):
            raise ProviderError(
                f"{self._op}: workspace: a call under graph capture needs {plain_nbytes} bytes of "
                f"scratch memory and {zeros_nbytes} of zeros that exist already: call once before, "
                f"or pass workspace="
            )
        if store is None:
            plain = backend.empty(Spec((plain_nbytes,), UINT8), device)
            zeros = backend.zeros(zeros_nbytes, device)
            return self._stores.setdefault(key, Store(plain, zeros))
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
        return store

    def poison(self) -> None:
        """Overwrite all that may hold anything, as other calls may; for tests."""
        for store in self._stores.values():
            store.plain[...] = 0xFF  # type: ignore[index]

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
