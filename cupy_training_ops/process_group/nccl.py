# SPDX-License-Identifier: MIT
"""NCCL through CuPy's binding: loading it, communicators, and what tells whether they are stuck."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import itertools
import operator
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import GroupError, ProviderError
from .engine import Ranks

if TYPE_CHECKING:
    from .group import ProcessGroup

RELAXED = 2  # CUstreamCaptureMode

Bound = tuple[str, tuple[int, ...]]  # a method, and its arguments up to the stream


@functools.cache
def library() -> ModuleType:
    """CuPy's binding with NCCL loaded; ProviderError says what to install where it is missing."""
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
    binding: ModuleType = nccl
    return binding


def communicator(group: ProcessGroup, op: str, ranks: Ranks) -> Communicator:
    """That of these ranks, which all of them make together on their current devices."""
    known: dict[Ranks, Communicator] = group.resources.communicators
    if ranks not in known:
        with group.resources.initialising():
            known[ranks] = connect(group, op, ranks)
        group.device = known[ranks].device
    return known[ranks]


def connect(group: ProcessGroup, op: str, ranks: Ranks) -> Communicator:
    """A new one."""
    import cupy

    nccl, device = library(), cupy.cuda.runtime.getDevice()
    stream = cupy.cuda.get_current_stream()
    if stream.ptr not in (0, 1) and stream.is_capturing():
        words = "a call under graph capture needs one like it before, because NCCL connects the"
        raise ProviderError(f"{op}: {words} ranks at the first")

    (identity,) = group.exchange(
        op, ranks, f"NCCL for {op}", (), lambda found: [[nccl.get_unique_id()]] * len(found)
    )
    try:
        made = nccl.NcclCommunicator(len(ranks), bytes(identity), ranks.index(group.rank))
    except nccl.NcclError as error:
        raise GroupError(f"NCCL could not connect the ranks: {error}") from error
    return Communicator(nccl, made, device, group.timeout)


class Communicator:
    """One of NCCL's, and what tells whether its calls are overdue.

    A call only notes its stream. From time to time the group's thread puts an event behind the
    last call, where no event waits yet. NCCL keeps a communicator's calls in order, whatever their
    streams are, so that none behind the event is older.
    """

    def __init__(self, nccl: ModuleType, made: Any, device: int, timeout: float) -> None:
        import cupy

        self.device = device
        self._nccl = nccl
        self._made = made
        self._timeout = timeout
        self._is_over = False
        self._cuda = cupy.cuda
        self._current_stream = cupy.cuda.get_current_stream
        self._event = cupy.cuda.Event(disable_timing=True)
        self._marked: float | None = None  # since when the event waits
        self._last_stream: Any = None  # of a call that no event is behind

    def queue(self, prepared: Prepared, stream: Any = None) -> None:
        """Queue calls on a stream of CuPy's, which is the current one if there is none, as one."""
        stream = stream or self._current_stream()
        if prepared.stream != stream.ptr:
            prepared.stream = stream.ptr
            prepared.runs = [
                (getattr(self._made, method), [(*args, stream.ptr) for _, args in same])
                for method, same in itertools.groupby(prepared.calls, operator.itemgetter(0))
            ]
        if len(prepared.calls) == 1:
            ((method, (args,)),) = prepared.runs
            method(*args)
        else:
            self._nccl.groupStart()
            try:
                for method, arguments in prepared.runs:
                    collections.deque(itertools.starmap(method, arguments), maxlen=0)
            finally:
                self._nccl.groupEnd()
        self._last_stream = stream

    def trouble(self) -> str:
        """What is wrong with calls under way, in words; empty where nothing is."""
        try:
            self._made.check_async_error()
        except self._nccl.NcclError as error:
            return f"NCCL failed: {error}"
        _allow_queries()
        with self._cuda.Device(self.device):
            self._mark()
        if self._marked is not None and time.monotonic() - self._marked > self._timeout:
            return f"a call on the GPU took longer than {self._timeout:g} seconds"
        return ""

    def _mark(self) -> None:
        """Put the event behind the last call, if it waits for none; not into a graph."""
        if self._marked is not None and self._event.done:
            self._marked = None
        stream = self._last_stream
        if self._marked is None and stream is not None:
            if stream.ptr not in (0, 1) and stream.is_capturing():
                return
            self._last_stream = None
            self._event.record(stream)
            self._marked = time.monotonic()

    def abort(self) -> None:
        """End what is under way, from any thread; the stream goes on."""
        if not self._is_over:
            self._is_over = True
            self._made.abort()

    def close(self) -> None:
        """Let go of it; calls that were queued end first."""
        if not self._is_over:
            self._is_over = True
            self._made.destroy()


def _allow_queries() -> None:
    """Let this thread ask for events while another one captures a graph, in whatever mode."""
    mode = ctypes.c_int(RELAXED)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


@dataclass(eq=False)
class Prepared:
    """Calls with the addresses of their arrays, and for the last stream those of each method."""

    calls: Sequence[Bound]
    stream: int = -1
    runs: list[tuple[Callable[..., None], list[tuple[int, ...]]]] = field(default_factory=list)
