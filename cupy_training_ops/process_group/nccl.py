# SPDX-License-Identifier: MIT
"""NCCL through CuPy's binding: communicators, and what tells whether they are stuck."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..device.streams import allow_queries, is_capturing
from ..errors import GroupError, ProviderError
from .engine import Ranks

if TYPE_CHECKING:
    from .group import ProcessGroup


@functools.cache
def library() -> ModuleType:
    """Return CuPy's module of NCCL, with NCCL loaded; ProviderError says what to install if it is
    missing."""
    import cupy
    from cuda import pathfinder

    with contextlib.suppress(pathfinder.DynamicLibNotFoundError, RuntimeError):
        pathfinder.load_nvidia_dynamic_lib("nccl")  # CuPy looks in other places
    with warnings.catch_warnings(action="ignore"):
        from cupy.cuda import nccl
    if not nccl.available:
        major = cupy.cuda.runtime.runtimeGetVersion() // 1000
        remedy = f"install it with: pip install 'cupy-training-ops[nccl{major}]'"
        raise ProviderError(f"NCCL (libnccl.so.2) is not here; {remedy}")
    return nccl  # type: ignore[no-any-return]


def communicator(group: ProcessGroup, op: str, ranks: Ranks) -> Communicator:
    """Return the group's cached communicator of these ranks; all of them make it at the first call.

    op: name of the calling operator in errors. Each rank connects its current device.
    """
    known: dict[Ranks, Communicator] = group.resources.communicators
    if ranks not in known:
        with group.resources.initialising():
            known[ranks] = connect(group, op, ranks)
        group.device = known[ranks].device
    return known[ranks]


def connect(group: ProcessGroup, op: str, ranks: Ranks) -> Communicator:
    """Make NCCL's communicator of these ranks; the first one sends the others NCCL's unique id.

    group: they are of it. op: the calling operator, for errors. Raises ProviderError while the
    current stream is being captured, GroupError if NCCL fails.
    """
    import cupy

    nccl, device = library(), cupy.cuda.runtime.getDevice()
    if is_capturing(cupy.cuda.get_current_stream()):
        words = "a call under graph capture needs one like it before, because NCCL connects the"
        raise ProviderError(f"{op}: {words} ranks at the first")

    (identity,) = group.exchange(
        op, ranks, f"NCCL for {op}", (), lambda ranks: [[nccl.get_unique_id()]] * len(ranks)
    )
    try:
        made = nccl.NcclCommunicator(len(ranks), bytes(identity), ranks.index(group.rank))
    except nccl.NcclError as error:
        raise GroupError(f"NCCL could not connect the ranks: {error}") from error
    return Communicator(nccl, made, device, group.timeout)


class Communicator:
    """A communicator of NCCL's, and a watch for calls that are overdue.

    Whoever queues a call sets `last_stream`. From time to time the group's watching thread calls
    `trouble`, which records an event after the last call, unless one is still pending. NCCL runs a
    communicator's calls in order on whatever streams, so an event that is pending for longer than
    the timeout means that a call is.

    binding: CuPy's module of NCCL. made: its NcclCommunicator. device: index of the GPU.
    """

    def __init__(self, nccl: ModuleType, made: Any, device: int, timeout: float) -> None:
        """nccl: CuPy's module. made: its NcclCommunicator. timeout: seconds of a call, at most."""
        import cupy

        self.binding, self.made, self.device = nccl, made, device
        self._cuda, self.current_stream = cupy.cuda, cupy.cuda.get_current_stream
        self._timeout, self._end = timeout, threading.Lock()  # `end` takes the lock for good
        self._event = cupy.cuda.Event(disable_timing=True)
        self._marked: float | None = None  # when the event was recorded; None if not pending
        self.last_stream: Any = None  # of the last call, if no event was recorded after it

    def trouble(self) -> str:
        """Describe a failure of NCCL or an overdue call; "" if there is none."""
        try:
            self.made.check_async_error()
        except self.binding.NcclError as error:
            return f"NCCL failed: {error}"
        allow_queries()
        with self._cuda.Device(self.device):
            self._mark()
        if self._marked is not None and time.monotonic() - self._marked > self._timeout:
            return f"a call on the GPU took longer than {self._timeout:g} seconds"
        return ""

    def _mark(self) -> None:
        """Record the event after the last call, if it is not pending and no graph is captured."""
        if self._marked is not None and self._event.done:
            self._marked = None
        stream = self.last_stream
        if self._marked is None and stream is not None and not is_capturing(stream):
            self.last_stream = None
            self._event.record(stream)
            self._marked = time.monotonic()

    def end(self, is_well: bool = False) -> None:
        """Destroy the communicator, once and from any thread.

        is_well: let queued calls end first; else abort them, so that their streams go on.
        """
        if self._end.acquire(blocking=False):
            (self.made.destroy if is_well else self.made.abort)()
