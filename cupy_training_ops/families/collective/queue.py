# SPDX-License-Identifier: MIT
"""Calls of NCCL that collectives queue: its types, a call for each array, and all calls as one."""

from __future__ import annotations

import collections
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ...dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, UINT8, Dtype
from ...process_group import ProcessGroup, nccl
from ...process_group.engine import Ranks

# A method of CuPy's NcclCommunicator, and its arguments up to the stream.
NcclCall = tuple[str, tuple[int, ...]]

SUM, MEAN = 0, 4  # ncclRedOp_t

# ncclDataType_t
INTEGERS: dict[Dtype, int] = {
    np.dtype(name): number for number, name in enumerate(("i1", "u1", "i4", "u4", "i8", "u8"))
}
NUMBERS = INTEGERS | {FLOAT16: 6, FLOAT32: 7, FLOAT64: 8, BFLOAT16: 9}
SUMS = ("allReduce", "reduce", "reduceScatter")  # the others move elements as they are


class Row(NamedTuple):
    """One call of NCCL: its method, and `rest`, its arguments behind the arrays' addresses."""

    method: str
    rest: tuple[int, ...]

    def call_at(self, source: int, target: int) -> NcclCall:
        """Return the call for arrays at these addresses; "send" and "recv" have one of them."""
        if self.method in ("send", "recv"):
            return self.method, (source if self.method == "send" else target, *self.rest)
        return self.method, (source, target, *self.rest)


def row(method: str, size: int, dtype: Dtype, *rest: int) -> Row:
    """Return the NCCL call `method` for an array of `size` elements of `dtype`.

    size: for "reduceScatter" that of each rank's part.
    rest: SUM or MEAN of "allReduce" and "reduceScatter"; that and the rank with the result of
    "reduce"; the rank with the array of "broadcast"; the other rank of "send" and "recv". Methods
    that sum nothing move bytes: NCCL has not every type of fixed size.
    """
    if method in SUMS:
        return Row(method, (size, NUMBERS[dtype], *rest))
    return Row(method, (size * dtype.itemsize, NUMBERS[UINT8], *rest))


@dataclass(eq=False)
class CallsAtAddresses:
    """NCCL calls with the addresses of their arrays, prepared for the stream of the last use."""

    calls: Sequence[NcclCall]
    stream: int = -1  # cudaStream_t that `runs` is for
    # (bound method, arguments with the stream of each call) of neighbouring calls of one method.
    runs: list[tuple[Callable[..., None], list[tuple[int, ...]]]] = field(default_factory=list)

    def queue(self, communicator: nccl.Communicator, stream: Any) -> None:
        """Queue the calls on a CuPy stream; several are one group of NCCL's."""
        if self.stream != stream.ptr:
            self.stream = stream.ptr
            self.runs = [
                (getattr(communicator.made, method), [(*args, stream.ptr) for _, args in same])
                for method, same in itertools.groupby(self.calls, operator.itemgetter(0))
            ]
        if len(self.calls) == 1:
            ((method, (args,)),) = self.runs
            method(*args)
        else:
            communicator.binding.groupStart()
            try:
                for method, arguments in self.runs:
                    collections.deque(itertools.starmap(method, arguments), maxlen=0)  # calls each
            finally:
                communicator.binding.groupEnd()
        communicator.last_stream = stream


@dataclass(eq=False)
class Calls:
    """The NCCL calls, one for each of `rows`, that a step of a collective queues as one group.

    The first time, `agree` compares with the other ranks; with each_time at every call. Tables
    (sources, targets) are structs of addresses, or one address: the same object has the same
    addresses.
    """

    group: ProcessGroup
    op: str
    ranks: Ranks
    rows: Sequence[Row]
    agree: Callable[[], object] | None
    # For each row (array, offset where it is read, offset where it is written), in bytes; empty:
    # row i has array i from its start on.
    parts: Sequence[tuple[int, int, int]] = ()
    each_time: bool = field(default=False, kw_only=True)
    # (sources, targets, calls) of the last use
    _last: tuple[object, object, CallsAtAddresses | None] = field(
        default=(None, None, None), init=False
    )
    _communicator: nccl.Communicator | None = field(default=None, init=False)

    def __call__(self, sources: Any, targets: Any) -> None:
        """Queue the calls for arrays at the addresses in these tables, on the current stream."""
        prepared = self.last_for(sources, targets)
        if prepared is None or self.each_time:
            self._begin()
            n = len(self.rows)  # no fewer than arrays
            prepared = self._prepare(addresses(sources, n), addresses(targets, n))
            self._last = sources, targets, prepared
        self.again(prepared)

    def at(self, addresses: Sequence[int], stream: Any) -> None:
        """Queue the calls for arrays that are read and written at these addresses, on a stream."""
        self._begin()
        self.again(self._prepare(addresses, addresses), stream)

    def last_for(self, sources: object, targets: object) -> CallsAtAddresses | None:
        """Return the calls that were queued last if they were for these very tables, else None."""
        known, also, prepared = self._last  # once: another thread may put its own there
        return prepared if known is sources and also is targets else None

    def _begin(self) -> None:
        """Compare this rank's calls with the others', and connect, if that is still to be done."""
        self.group.require_open(self.op)
        if self.agree is not None:
            self.agree()
            if not self.each_time:
                self.agree = None
        if self._communicator is None:
            self._communicator = nccl.communicator(self.group, self.op, self.ranks)

    def again(self, prepared: CallsAtAddresses, stream: Any = None) -> None:
        """Queue prepared calls, on the current stream where `stream` is None.

        A call that is stopped on the way ends the group.
        """
        group, communicator = self.group, self._communicator
        if not prepared.calls:
            group.require_open(self.op)
            return
        assert communicator is not None
        group.begin(self.op)
        try:
            prepared.queue(communicator, stream or communicator.current_stream())
        finally:
            group.busy.release()

    def _prepare(self, read: Sequence[int], written: Sequence[int]) -> CallsAtAddresses:
        """Return the calls, but those that would move nothing.

        read, written: addresses of the arrays that are read, and written.
        """
        parts = self.parts or [(i, 0, 0) for i in range(len(self.rows))]
        triples = zip(self.rows, parts, strict=True)
        return CallsAtAddresses(
            [row.call_at(read[i] + a, written[i] + b) for row, (i, a, b) in triples if row.rest[0]]
        )


def addresses(table: Any, n: int) -> list[int]:
    """Return the addresses in a struct of pointers, at most n; n times that of scratch memory."""
    listed: list[int] = table["at"][:n].tolist() if isinstance(table, np.void) else [int(table)] * n
    return listed
