# SPDX-License-Identifier: MIT
"""Scratch memory: one buffer per operator instance and stream, never shared, never freed early."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError, ProviderError


class Workspaces:
    """The scratch buffers of one operator instance.

    A buffer starts as zeros and every kernel leaves its ticket counters at zero. A buffer that
    became too small is kept, because a captured graph may still write to it.
    """

    def __init__(self, op: str) -> None:
        self._op = op
        self._current: dict[Any, Any] = {}
        self._retired: list[Any] = []

    def get(self, backend: Any, device: int, nbytes: int) -> Any:
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
        if buffer is not None:
            self._retired.append(buffer)
        self._current[key] = backend.zeros(nbytes, device)
        return self._current[key]


def check(op: str, workspace: Any, nbytes: int) -> None:
    """A caller's workspace: uint8, contiguous, large enough."""
    if workspace.dtype != "uint8" or workspace.ndim != 1 or workspace.size < nbytes:
        raise ArgumentError(
            f"{op}: workspace: expected a uint8 array of at least {nbytes} elements and rank 1, "
            f"zero before its first use, got {workspace.dtype} of shape {workspace.shape}"
        )
