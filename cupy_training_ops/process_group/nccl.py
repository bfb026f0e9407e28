# SPDX-License-Identifier: MIT
"""NCCL through CuPy's binding: loading it, communicators, and calls that are queued together."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import itertools
import operator
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, UINT8, Dtype
from ..errors import GroupError, ProviderError
from .members import Ranks

if TYPE_CHECKING:
    from .group import ProcessGroup

SUM, MEAN = 0, 4  # ncclRedOp_t
RELAXED = 2  # CUstreamCaptureMode

# ncclDataType_t
INTEGERS: dict[Dtype, int] = {
    np.dtype(name): number for number, name in enumerate(("i1", "u1", "i4", "u4", "i8", "u8"))
}
NUMBERS = INTEGERS | {FLOAT16: 6, FLOAT32: 7, FLOAT64: 8, BFLOAT16: 9}
SUMS = ("allReduce", "reduce", "reduceScatter")  # the others move elements as they are


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
        raise ProviderError(
            f"NCCL (libnccl.so.2) is not here; "
            f"install it with: pip install 'cupy-training-ops[nccl{major}]'"
        )
    binding: ModuleType = nccl
    return binding


class Row(NamedTuple):
    """One call of NCCL: its method, and what follows the arrays."""

    method: str
    rest: tuple[int, ...]


def row(method: str, size: int, dtype: Dtype, *rest: int) -> Row:
    """A call for so many elements of each rank, or in each part of it.

    Behind them "allReduce" and "reduceScatter" have SUM or MEAN, "reduce" that and whose the result
    is, "broadcast" whose the array is, "send" and "recv" the other rank. What is moved is bytes:
    NCCL has not every type of fixed size.
    """
    if method in SUMS:
        return Row(method, (size, NUMBERS[dtype], *rest))
    return Row(method, (size * dtype.itemsize, NUMBERS[UINT8], *rest))


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
        raise ProviderError(
            f"{op}: a call under graph capture needs one like it before, because NCCL connects "
            f"the ranks at the first"
        )

    def same_identity(found: Sequence[object]) -> list[list[bytes]]:
        return [[nccl.get_unique_id()]] * len(found)

    (identity,) = group.exchange(op, ranks, f"NCCL for {op}", (), same_identity)
    try:
        made = nccl.NcclCommunicator(len(ranks), bytes(identity), ranks.index(group.rank))
    except nccl.NcclError as error:
        raise GroupError(f"NCCL could not connect the ranks: {error}") from error
    return Communicator(nccl, made, device, group.timeout)


Bound = tuple[str, tuple[int, ...]]  # a method, and its arguments up to the stream
Run = tuple[Callable[..., None], list[tuple[int, ...]]]  # the same of several, with the stream


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

    def bound(self, row: Row, source: int, target: int) -> Bound:
        """A call for arrays at these addresses."""
        method, rest = row
        if method in ("send", "recv"):
            return method, (source if method == "send" else target, *rest)
        return method, (source, target, *rest)

    def runs(self, calls: Sequence[Bound], stream: int) -> list[Run]:
        """The calls on a stream, those of one method that follow each other together."""
        return [
            (getattr(self._made, method), [(*args, stream) for _, args in same])
            for method, same in itertools.groupby(calls, key=operator.itemgetter(0))
        ]

    def queue(self, prepared: Prepared, stream: Any = None) -> None:
        """Queue calls on a stream of CuPy's, which is the current one if there is none, as one."""
        stream = stream or self._current_stream()
        if prepared.stream != stream.ptr:
            prepared.stream = stream.ptr
            prepared.runs = self.runs(prepared.calls, prepared.stream)
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


class Prepared:
    """Calls with the addresses of their arrays, and the same for the last stream."""

    def __init__(self, calls: Sequence[Bound]) -> None:
        self.calls = calls
        self.stream = -1
        self.runs: list[Run] = []


@dataclass(eq=False)
class Calls:
    """The calls of NCCL that one kind of call of an operator makes, queued as one.

    The first time, `agree` compares with the other ranks. Tables are structs of addresses, or one
    address: the same object has the same addresses.
    """

    group: ProcessGroup
    op: str
    ranks: Ranks
    rows: Sequence[Row]
    agree: Callable[[], object] | None
    # For each row an array, and where it is read and written, in bytes; none: its own, from 0 on.
    parts: Sequence[tuple[int, int, int]] = ()
    each_time: bool = field(default=False, kw_only=True)
    _last: tuple[object, object, Prepared | None] = field(default=(None, None, None), init=False)
    _communicator: Communicator | None = field(default=None, init=False)

    def __call__(self, sources: Any, targets: Any) -> None:
        """Queue the calls for arrays at these addresses."""
        prepared = self.prepared(sources, targets)
        if prepared is None or self.each_time:
            communicator = self._begun()
            n = len(self.rows)  # no fewer than arrays
            read, written = addresses(sources, n), addresses(targets, n)
            prepared = Prepared(list(self._bound(communicator, read, written)))
            self._last = sources, targets, prepared
        self.again(prepared)

    def at(self, found: Sequence[int], stream: Any) -> None:
        """Queue the calls for arrays that are read and written at these addresses, on a stream."""
        self.again(Prepared(list(self._bound(self._begun(), found, found))), stream)

    def prepared(self, sources: object, targets: object) -> Prepared | None:
        """What was queued last, if it was for these tables."""
        known, also, prepared = self._last  # once: another thread may put its own there
        return prepared if known is sources and also is targets else None

    def _begun(self) -> Communicator:
        """What the calls are queued on, once they have been compared."""
        self.group.require_open(self.op)
        if self.agree is not None:
            self.agree()
            if not self.each_time:
                self.agree = None
        if self._communicator is None:
            self._communicator = communicator(self.group, self.op, self.ranks)
        return self._communicator

    def again(self, prepared: Prepared, stream: Any = None) -> None:
        """Queue what was made ready, or the end of the group; on the current stream if on none."""
        group, communicator = self.group, self._communicator
        group.require_open(self.op)
        if not prepared.calls:
            return
        assert communicator is not None
        group.begun += 1
        busy = group.busy
        if not busy.acquire(False):
            raise GroupError(f"{self.op}: group: a call of another thread is under way")
        try:
            communicator.queue(prepared, stream)
        except BaseException as error:
            raise group.broken(self.op, error) from error
        finally:
            busy.release()

    def _bound(
        self, communicator: Communicator, read: Sequence[int], written: Sequence[int]
    ) -> Iterator[Bound]:
        """Each call that moves something, with its addresses."""
        parts = self.parts or [(i, 0, 0) for i in range(len(self.rows))]
        for row, (i, source, target) in zip(self.rows, parts, strict=True):
            if row.rest[0]:
                yield communicator.bound(row, read[i] + source, written[i] + target)


def addresses(table: Any, n: int) -> list[int]:
    """The addresses of a struct of pointers, n at most; of scratch memory one for all."""
    found: list[int] = table["at"][:n].tolist() if isinstance(table, np.void) else [int(table)] * n
    return found
