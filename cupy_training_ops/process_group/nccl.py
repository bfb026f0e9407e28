# SPDX-License-Identifier: MIT
"""NCCL through CuPy's binding: communicators, and the thread that watches and ends them."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import operator
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import GroupError, ProviderError
from ..forks import InChild
from ..runtime.streams import allow_queries, is_capturing
from .engine import GRACE, Engine, Ranks

if TYPE_CHECKING:
    from .group import ProcessGroup

ABORT_TIMEOUT = 10.0  # seconds that aborting NCCL may take
MAX_INTERVAL = 1.0  # seconds between looks at what is under way on the GPU, at most
IN_CHILD = "it belongs to the process that forked this one, which has to make its own"

_of_parents: list[object] = []  # what a forked child holds, whose end would be its parent's

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
    known = group.resources.communicators
    if ranks not in known:
        with group.resources.initialising():
            known[ranks] = connect(group, op, ranks)
        group.device = known[ranks].device
    return known[ranks]


def connect(group: ProcessGroup, op: str, ranks: Ranks) -> Communicator:
    """A new one."""
    import cupy

    nccl, device = library(), cupy.cuda.runtime.getDevice()
    if is_capturing(cupy.cuda.get_current_stream()):
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

        self.device, self._timeout = device, timeout
        self._nccl, self._made, self._is_over = nccl, made, False
        self._cuda, self._current_stream = cupy.cuda, cupy.cuda.get_current_stream
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
        allow_queries()
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
        if self._marked is None and stream is not None and not is_capturing(stream):
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


@dataclass(eq=False)
class Prepared:
    """Calls with the addresses of their arrays, and for the last stream those of each method."""

    calls: Sequence[Bound]
    stream: int = -1
    runs: list[tuple[Callable[..., None], list[tuple[int, ...]]]] = field(default_factory=list)


class Resources(InChild):
    """What a group lets go of; it does not know the group, which may be collected.

    A forked child lets go of them at once, without a word to the others: what it did to a
    connection or a communicator would be its parent's doing.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine
        self.communicators: dict[Ranks, Communicator] = {}
        self.busy = threading.Lock()  # while a call is under way
        self._stop, self._is_connected = threading.Event(), threading.Event()
        self._is_connected.set()
        self._watcher: threading.Thread | None = None

    def renew(self) -> None:
        """In a child the group has ended, and nothing is left to close."""
        _of_parents.append((self.engine, list(self.communicators.values())))
        self.communicators.clear()
        self._watcher = None
        self.busy, self.engine.lock = threading.Lock(), threading.Lock()
        self.engine.has_ended, self.engine.fault = True, IN_CHILD
        self.engine.abandon()

    def close(self) -> None:
        """End everything; the others are told by the engine.

        What another thread is at ends first: a farewell in the middle of its message would be taken
        for a part of an array.
        """
        if not self.busy.acquire(blocking=False):
            self.engine.end(f"rank {self.engine.rank} closed its group in the middle of a call")
            self.busy.acquire(timeout=GRACE)  # not for ever: the call may be this thread's own
        self._stop.set()
        found = self.communicators.values()
        if found:
            is_well = not (self.engine.fault or self.engine.last_words)
            _within(ABORT_TIMEOUT, [item.close if is_well else item.abort for item in found])
        self.communicators.clear()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join(ABORT_TIMEOUT)
        if self.engine.fault != IN_CHILD:
            self.engine.close()

    @contextlib.contextmanager
    def initialising(self) -> Iterator[None]:
        """While NCCL connects, there is nothing yet that could be aborted, but who watches."""
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="cto-nccl", daemon=True)
            self._watcher.start()
        self._is_connected.clear()
        try:
            yield
        finally:
            self._is_connected.set()

    def _watch(self) -> None:
        """Notice faults of others and of the GPU while the host may wait for the GPU."""
        engine = self.engine
        try:
            while not engine.fault and not self._stop.wait(min(MAX_INTERVAL, engine.timeout / 4)):
                if words := self._trouble():
                    engine.end(words)
        except BaseException as error:
            engine.end(f"rank {engine.rank}: the thread that watches ended: {error!r}")
        if engine.fault and not self._stop.is_set():
            self._abort(engine.fault)

    def _trouble(self) -> str:
        """What is wrong with another rank, or with calls that are under way on the GPU."""
        engine = self.engine
        if engine.lock.acquire(blocking=False):  # else a call of the host looks itself
            try:
                if words := engine.news():
                    return words
            finally:
                engine.lock.release()
        for communicator in list(self.communicators.values()):
            if words := communicator.trouble():
                return f"rank {engine.rank}: {words}"
        return ""

    def _abort(self, words: str) -> None:
        """End what is under way on the GPU, so that its stream goes on; NCCL may also hang."""
        aborts = [found.abort for found in self.communicators.values()]
        if not _within(ABORT_TIMEOUT, [*aborts, self._is_connected.wait]):
            said = f"cupy-training-ops: rank {self.engine.rank}: {words}; NCCL hangs\n"
            sys.stderr.write(said)
            sys.stderr.flush()
            os._exit(1)


def _within(seconds: float, actions: Sequence[Callable[[], object]]) -> bool:
    """Whether actions that may hang came back in time."""
    every = (action() for action in actions)
    thread = threading.Thread(target=tuple, args=(every,), name="cto-nccl", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()
