# SPDX-License-Identifier: MIT
"""The engine over MPI, by mpi4py: calls that do not block, looked at in turns.

MPI does not go on without a rank: the first that notices tells the others, and aborts the job at
its exit.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from ..errors import GroupError, ProviderError, refuse, shown
from .engine import LEFT, Engine, pack

PAUSE = 2e-4  # seconds between tests of a request
TELLING = 0.2  # seconds for the words that end the group
READING = 0.5  # seconds for the launcher to read stderr, before Abort ends it at once


def library() -> Any:
    """Return the module mpi4py.MPI; ProviderError says what to install if it is missing."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        remedy = "install them with: pip install 'cupy-training-ops[mpi]'"
        words = f"ProcessGroup.from_mpi: needs mpi4py and an MPI ({error}); {remedy}"
        raise ProviderError(words) from None
    return MPI


def engine(comm: Any, timeout: float) -> Engine:
    """Make the engine of the ranks of `comm`, an mpi4py communicator; None: of COMM_WORLD.

    timeout: seconds. Raises GroupError if Slurm started several processes of which MPI sees one.
    """
    mpi = library()
    if comm is not None and (not isinstance(comm, mpi.Intracomm) or comm == mpi.COMM_NULL):
        refuse("ProcessGroup.from_mpi", "comm", "an open intracommunicator of mpi4py", shown(comm))
    said = os.environ.get("SLURM_NTASKS", "1")
    if comm is None and said != "1" and "SLURM_PROCID" in os.environ and mpi.COMM_WORLD.size == 1:
        words = f"ProcessGroup: Slurm started {shown(said)} processes, of which MPI sees one"
        remedy = "srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH), or one alone with -n 1"
        raise GroupError(f"{words}: start them with {remedy}")
    return Mpi(mpi, mpi.COMM_WORLD if comm is None else comm, timeout)


class Channel:
    """A duplicate of a communicator, shared by all groups of the same ranks: MPI has some thousand.

    Messages of a group have its tag; all ranks make groups in the same order, so tags agree.
    """

    def __init__(self, mpi: Any, comm: Any) -> None:
        """mpi: the module mpi4py.MPI. comm: the duplicate; its ranks call this together."""
        comm.Set_errhandler(mpi.ERRORS_RETURN)
        self.comm = comm
        self.tags = itertools.cycle(range(mpi.COMM_WORLD.Get_attr(mpi.TAG_UB) + 1))
        self.closed: list[Mpi] = []  # closed groups to which messages may still come
        node = comm.Split_type(mpi.COMM_TYPE_SHARED)
        self.local_rank, size = node.Get_rank(), node.Get_size()
        node.Free()
        # None if nodes have different numbers of ranks.
        self.local_size = size if set(comm.allgather(size)) == {size} else None


_channels: list[tuple[Any, Channel]] = []  # (MPI group of ranks, its channel)


class Mpi(Engine):
    """A rank of a communicator."""

    name = "MPI"
    pause = PAUSE

    def __init__(self, mpi: Any, comm: Any, timeout: float) -> None:
        """mpi: the module mpi4py.MPI. comm: the communicator. timeout: seconds."""
        super().__init__(comm.Get_rank(), comm.Get_size(), timeout)
        self._mpi, self._pid = mpi, os.getpid()
        self._under_way: list[Any] = []  # (request, its memory) of sends
        # By sender, in order: (request, memory) of messages that are being received. One that stops
        # half-way keeps no other sender's waiting.
        self._coming: defaultdict[int, deque[tuple[Any, bytearray]]] = defaultdict(deque)
        atexit.register(self._abort)
        self._channel = channel = self._channel_of(comm)
        self.local_rank, self.local_size = channel.local_rank, channel.local_size
        self._tag = next(channel.tags)
        channel.closed = [group for group in channel.closed if not group.is_over()]

    def _channel_of(self, comm: Any) -> Channel:
        """Return the channel of the ranks of a communicator; their first group makes it."""
        ranks, mpi = comm.Get_group(), self._mpi
        for own, channel in _channels:
            if mpi.Group.Compare(own, ranks) == mpi.IDENT:
                return channel
        copy, made = comm.Idup()
        if not _wait_for(made.Test, self.timeout):
            self.fault = f"not all ranks made the group within {self.timeout:g} seconds"
            raise GroupError(f"ProcessGroup.from_mpi: {self.fault}")
        _channels.append((ranks, Channel(mpi, copy)))
        return _channels[-1][1]

    def put(self, peer: int, data: bytearray, seconds: float) -> None:
        """Send `data`, a message, to rank `peer` within `seconds`, and listen meanwhile; its memory
        stays referenced if that fails."""
        request = self._channel.comm.Isend([data, self._mpi.BYTE], peer, self._tag)
        self._under_way.append((request, data))
        self.until(request.Test, seconds, peer)
        self._under_way.pop()

    def listen(self, peer: int | None, seconds: float) -> None:
        """Receive messages that have arrived from all ranks; peer, seconds: unused, as nothing
        waits."""
        mpi, comm, status = self._mpi, self._channel.comm, self._mpi.Status()
        while (message := comm.Improbe(mpi.ANY_SOURCE, self._tag, status)) is not None:
            data = bytearray(status.Get_count(mpi.BYTE))
            self._coming[status.Get_source()].append((message.Irecv([data, mpi.BYTE]), data))
        for sender, messages in self._coming.items():
            while messages and messages[0][0].Test():
                self.hear(sender, messages.popleft()[1])

    def is_over(self) -> bool:
        """Return True if all others have left this closed group; receives what has come."""
        self.listen(None, 0)
        return len(self._left) == len(self.others)

    def farewell(self, number: int, words: str) -> None:
        """Send last words, a message with number LEFT or FAULT, to all others, for TELLING seconds
        at most."""
        data, comm, sent = pack(number, words), self._channel.comm, self._mpi.Request.Testall
        requests = [comm.Isend([data, self._mpi.BYTE], peer, self._tag) for peer in self.others]
        self._under_way.append((requests, data))
        # A rank that leaves waits for the others' farewells: UCX warns of messages not received.
        _wait_for(lambda: sent(requests) and (number != LEFT or self.is_over()), TELLING)

    def release(self) -> None:
        """After a clean end, leave what still comes to later groups, and do not abort at exit."""
        if not (self.fault or self.last_words):
            self._channel.closed.append(self)
            atexit.unregister(self._abort)

    def _abort(self) -> None:
        """At the process' exit after a fault, abort the job: MPI would wait for the other ranks."""
        words = self.fault or self.last_words
        if words and os.getpid() == self._pid and not self._mpi.Is_finalized():
            sys.stderr.write(f"cupy-training-ops: rank {self.rank}: {words}; MPI aborts\n")
            sys.stderr.flush()
            time.sleep(READING)
            self._mpi.COMM_WORLD.Abort(1)


def _wait_for(test: Callable[[], bool], seconds: float) -> bool:
    """Call `test` until it is true; return False if it is not within `seconds`."""
    until = time.monotonic() + seconds
    while not (is_true := test()) and time.monotonic() < until:
        time.sleep(PAUSE)
    return is_true
