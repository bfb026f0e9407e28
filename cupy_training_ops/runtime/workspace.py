# SPDX-License-Identifier: MIT
"""Scratch memory: one buffer per operator instance and stream, never shared, never freed early."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from ..backend import Array, ArrayInfo, Backend
from ..errors import ArgumentError, ProviderError


class Workspaces:
    """The scratch buffers of one operator instance.

    A buffer starts as zeros and every kernel leaves its ticket counters at zero. A buffer that
    became too small is kept, because a captured graph may still write to it; the next is at least
    twice as large, so that what is kept is never more than what is used.

    `lock` is held from `get` to the last launch: two threads may have the same current stream.
    """

    def __init__(self, op: str) -> None:
        self._op = op
        self.lock = threading.RLock()  # a finalizer may run this operator meanwhile
        self._current: dict[Hashable, Array] = {}
        self._retired: list[Array] = []

    def get(self, backend: Backend, device: int, nbytes: int) -> Array:
        """A buffer of at least `nbytes` for the device's current stream."""
        key = (backend, device, backend.stream(device))
        buffer = self._current.get(key)
        if buffer is not None and buffer.size >= nbytes:
            return buffer
        if backend.capturing(device):
            raise ProviderError(
                f"{self._op}: workspace: a call under graph capture needs {nbytes} bytes of "
                f"scratch memory that exist already: call once before, or pass workspace="
            )
        larger = nbytes if buffer is None else max(nbytes, 2 * buffer.size)
        self._current[key] = backend.zeros(larger, device)
        if buffer is not None:
            self._retired.append(buffer)
        return self._current[key]


def check(op: str, got: ArrayInfo, home: ArrayInfo, nbytes: int) -> None:
    """A caller's workspace: uint8, contiguous, aligned, large enough, where the arrays are.

    `got` and `home` are what `backends.info` says of the workspace and of a call's arrays.
    """
    fits = got.dtype == "uint8" and len(got.shape) == 1 and got.shape[0] >= nbytes
    if not (fits and got.strides is None and got.aligned and got.place == home.place):
        raise ArgumentError(
            f"{op}: workspace: expected a uint8 array of at least {nbytes} elements and rank 1 on "
            f"{home.place}, contiguous, aligned to 16 bytes, zero before its first use, "
            f"got {got.dtype} of shape {got.shape} on {got.place}"
        )
