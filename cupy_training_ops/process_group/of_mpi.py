# SPDX-License-Identifier: MIT
"""The engine over MPI, by mpi4py: calls that do not block, looked at in turns.

MPI does not go on without a rank. Whoever notices tells the others while it can, and aborts the job
as it exits.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from typing import Any

from ..errors import GroupError, ProviderError, refuse, shown
from . import wire
from .engine import Engine
from .wire import Message

FAULT, LEFT, FIRST = range(3)  # tags; that of the first channel, and the others' behind it
SPINS = 2000  # looks before the first pause
PAUSE = 2e-4
TELLING = 0.2  # seconds for the words that end the group
READING = 0.5  # and for the launcher to read what it is told: as a job is aborted, it ends at once

_closed: dict[bytes, Any] = {}  # communicators of groups that ended well, by their names


def library() -> Any:
    """mpi4py's MPI; ProviderError says what to install where it is missing."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ProviderError(
            f"ProcessGroup.from_mpi: needs mpi4py and an MPI ({error}); install them with: "
            f"pip install 'cupy-training-ops[mpi]'"
        ) from None
    return MPI


def engine(comm: Any, timeout: float) -> Engine:
    """The engine of a communicator's ranks."""
    mpi = library()
    if comm is not None and (not isinstance(comm, mpi.Intracomm) or comm == mpi.COMM_NULL):
        refuse("ProcessGroup.from_mpi", "comm", "an open intracommunicator of mpi4py", shown(comm))
    said = os.environ.get("SLURM_NTASKS", "1")
    if comm is None and said != "1" and "SLURM_PROCID" in os.environ and mpi.COMM_WORLD.size == 1:
        raise GroupError(
            f"ProcessGroup: Slurm started {shown(said)} processes, of which MPI sees one: start "
            f"them with srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH), or alone with -n 1"
        )
    return Mpi(mpi, comm, timeout)


class Mpi(Engine):
    """A rank of a duplicate of a communicator."""

    name = "MPI"

    def __init__(self, mpi: Any, comm: Any, timeout: float) -> None:
        self._mpi = mpi
        given = mpi.COMM_WORLD if comm is None else comm
        super().__init__(given.Get_rank(), given.Get_size(), timeout)
        self._under_way: list[Any] = []  # requests, and their memory
        atexit.register(self._abort)
        self._comm, made = given.Idup()
        late = f"not all ranks made the group within {timeout:g} seconds"
        try:
            self.until(made.Test, timeout)
        except TimeoutError:
            self.fault = late
            raise GroupError(f"ProcessGroup.from_mpi: {late}") from None
        self._comm.Set_errhandler(mpi.ERRORS_RETURN)
        node = self._comm.Split_type(mpi.COMM_TYPE_SHARED)
        self.local_rank, size = node.Get_rank(), node.Get_size()
        node.Free()
        left = [name for name, comm in _closed.items() if comm.Get_size() == self.size]
        sizes, names, closed = zip(*self._comm.allgather((size, os.urandom(8), left)), strict=True)
        self.local_size = size if len(set(sizes)) == 1 else None
        self._name = names[0]
        for name in sorted(set.intersection(*map(set, closed))):  # by just these ranks
            self._free(_closed.pop(name))

    def put(self, peer: int, channel: int, data: bytes) -> None:
        request = self._comm.Isend([data, self._mpi.BYTE], peer, FIRST + channel)
        self._under_way.append((request, data))
        self.until(request.Test, self.patience(peer), peer, SPINS)
        self._under_way.pop()

    def take(self, peer: int, channel: int, seconds: float) -> Message:
        status, found = self._mpi.Status(), None

        def comes() -> bool:  # also where it is asked again
            nonlocal found
            found = found or self._comm.Improbe(peer, FIRST + channel, status)
            return found is not None

        self.until(comes, seconds, peer, SPINS)
        assert found is not None
        data = bytearray(status.Get_count(self._mpi.BYTE))
        request = found.Irecv([data, self._mpi.BYTE])
        self._under_way.append((request, data))
        self.until(request.Test, self.timeout, peer, SPINS)
        self._under_way.pop()
        return wire.unpacked(data)

    def news(self) -> str:
        status = self._mpi.Status()
        if not self._comm.Iprobe(self._mpi.ANY_SOURCE, FAULT, status):
            return ""
        found = bytearray(status.Get_count(self._mpi.BYTE))
        self._comm.Recv([found, self._mpi.BYTE], status.Get_source(), FAULT)
        return wire.printable(str(found, "utf-8", "replace"))

    def tell(self, words: str) -> None:
        self._say(FAULT, words.encode())

    def has_left(self, peer: int) -> bool:
        return bool(self._comm.Iprobe(peer, LEFT))

    def close(self) -> None:
        if not self.fault:
            self._say(LEFT, b"")
            _closed[self._name] = self._comm

    def abandon(self) -> None:
        atexit.unregister(self._abort)

    def _free(self, comm: Any) -> None:
        """Let go of a communicator that all have closed; what nobody took comes before farewells.

        MPI has some thousand, and freeing one is for all ranks at once: they are where one is made.
        """
        status = self._mpi.Status()
        for peer in (peer for peer in range(self.size) if peer != comm.Get_rank()):
            while status.Get_tag() != LEFT or status.Get_source() != peer:
                message = comm.Mprobe(peer, self._mpi.ANY_TAG, status)
                message.Recv([bytearray(status.Get_count(self._mpi.BYTE)), self._mpi.BYTE])
        comm.Free()

    def _say(self, tag: int, data: bytes) -> None:
        """To all others, whether they listen or not."""
        others = (peer for peer in range(self.size) if peer != self.rank)
        requests = [self._comm.Isend([data, self._mpi.BYTE], peer, tag) for peer in others]
        self._under_way.append((requests, data))
        until = time.monotonic() + TELLING
        while not self._mpi.Request.Testall(requests) and time.monotonic() < until:
            time.sleep(PAUSE)

    def _abort(self) -> None:
        """At the end of the process: MPI would wait for ranks that do not come."""
        if self.fault and not self._mpi.Is_finalized():
            sys.stderr.write(f"cupy-training-ops: rank {self.rank}: {self.fault}; MPI aborts\n")
            sys.stderr.flush()
            time.sleep(READING)
            self._mpi.COMM_WORLD.Abort(1)
