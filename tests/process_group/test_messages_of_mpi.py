# SPDX-License-Identifier: MIT
"""Messages over MPI that come in parts, on a communicator that is played: no MPI is needed."""

from __future__ import annotations

from types import SimpleNamespace as Played

import pytest

from cupy_training_ops import GroupError
from cupy_training_ops.process_group import of_mpi
from cupy_training_ops.process_group.engine import pack


class Status:
    """Of a message that is there: who sends it, and how long it is."""

    def Get_source(self) -> int:  # noqa: N802
        return self.message["peer"]

    def Get_count(self, _: object) -> int:  # noqa: N802
        return len(self.message["data"])


class Communicator:
    """That of rank 0 of 3; `coming` are the messages to it, which is told when each is whole."""

    def __init__(self) -> None:
        self.coming: list[dict] = []

    def say(self, peer: int, number: int, text: str, *, is_whole: bool = True) -> dict:
        self.coming.append({"peer": peer, "data": pack(number, text), "is_whole": is_whole})
        return self.coming[-1]

    def Improbe(self, _source: int, _tag: int, status: Status) -> object:  # noqa: N802
        if not self.coming:
            return None
        message = status.message = self.coming.pop(0)

        def receive(given: list) -> object:
            given[0][:] = message["data"]
            return Played(Test=lambda: message["is_whole"])

        return Played(Irecv=receive)


@pytest.fixture
def engine(monkeypatch):
    """Rank 0 of 3, that waits a moment."""
    comm = Communicator()
    monkeypatch.setattr(of_mpi.Mpi, "_channel_of", lambda *_: channel)
    channel = Played(comm=comm, tags=iter([0]), closed=[], local_rank=0, local_size=3)
    given = Played(Get_rank=lambda: 0, Get_size=lambda: 3)
    mpi = Played(BYTE=None, ANY_SOURCE=-1, Status=Status)
    made = of_mpi.Mpi(mpi, given, 0.05)
    yield made
    of_mpi.atexit.unregister(made._abort)


def test_a_message_that_stops_half_way_keeps_no_other_rank_waiting(engine) -> None:
    comm = engine._channel.comm
    comm.say(2, 1, "half", is_whole=False)
    comm.say(1, 1, "whole")
    assert engine.receive(1, "answer", 0.05).text == "whole"
    with pytest.raises(GroupError, match="rank 2 is late"):
        engine.receive(2, "answer", 0.05)


def test_messages_of_a_rank_are_heard_in_their_order(engine) -> None:
    comm = engine._channel.comm
    first = comm.say(1, 1, "first", is_whole=False)
    comm.say(1, 2, "second")
    for _ in range(3):
        engine.listen(1, 0)
    assert not engine._inbox[1]
    first["is_whole"] = True
    assert [engine.receive(1, "answer", 0.05).text for _ in range(2)] == ["first", "second"]
    assert engine.told == ""
