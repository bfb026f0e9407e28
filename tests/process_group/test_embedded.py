# SPDX-License-Identifier: MIT
"""The engine for one machine: calls are whole or end the group, and nobody else takes part."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import threading
import time

import numpy as np
import pytest
from ranks import LARGE, gathered, in_threads, reduced, results, signals_all_the_time

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, GroupError
from cupy_training_ops.process_group import embedded, engine
from cupy_training_ops.process_group.engine import FAULT

LENGTH = struct.Struct("<Q")  # ahead of a message


class StopError(Exception):
    """As a handler of a signal raises it."""


class Interrupting:
    """An array at whose sight Ctrl-C is pressed."""

    def __dlpack__(self, **_: object) -> None:
        raise KeyboardInterrupt

    __dlpack_device__ = __dlpack__


# ---- P1, P2: a call that is stopped ends the group -----------------------------------------------


def raising(monkeypatch, engine, method: str, error: BaseException, after: bool) -> None:
    """Once, before or after the method did its work."""
    inner = getattr(engine, method)

    def act(*args):
        monkeypatch.setattr(engine, method, inner)
        if after:
            inner(*args)
        raise error

    monkeypatch.setattr(engine, method, act)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("error", [KeyboardInterrupt("Ctrl-C"), StopError("enough"), MemoryError()])
@pytest.mark.parametrize(
    ("method", "after"), [("put", False), ("put", True), ("listen", False), ("listen", True)]
)
def test_after_a_call_that_was_stopped_and_caught_no_sum_is_wrong(
    monkeypatch, victim, error, method, after
) -> None:
    def call(group) -> list[float | str]:
        actual: list[float | str] = []
        if group.rank == victim:
            raising(monkeypatch, group._engine, method, error, after)
        for i in range(3):
            try:
                actual.append(reduced(group, 10.0**i))
            except GroupError as e:
                actual.append(str(e))
            except (KeyboardInterrupt, StopError) as e:
                actual.append(type(e).__name__)
        return actual

    actual = results(in_threads(3, call))
    for rank, values in enumerate(actual):
        for i, value in enumerate(values):
            assert isinstance(value, str) or value == 3 * 10.0**i
        if rank != victim:  # the first may have been answered
            assert f"rank {victim} stopped in the middle of NcclAllReduce: {error!r}" in values[2]
    own = actual[victim]
    assert (
        "group: rank" in own[0]
        if isinstance(error, MemoryError)
        else own[0] == type(error).__name__
    )
    assert all(f"rank {victim} stopped in the middle" in value for value in own[1:])


def test_half_a_message_is_taken_for_none(monkeypatch) -> None:
    """A signal's handler raises while a large array is on its way."""

    inner = embedded._say

    def say(sock, data, seconds):
        if len(data) > 2**14:
            os.write(sock.fileno(), LENGTH.pack(len(data)) + data[:1000])
            raise StopError
        inner(sock, data, seconds)

    monkeypatch.setattr(embedded, "_say", say)

    def call(group) -> str:
        if group.rank == 0:
            time.sleep(1.0)
        for _ in range(2):
            with pytest.raises((StopError, GroupError)) as caught:
                reduced(group, 1.0, LARGE)
        return str(caught.value)

    first, second = results(in_threads(2, call))
    assert "rank 1 is gone: its connection ended" in first or "rank 1 stopped" in first
    assert "rank 1 stopped in the middle of NcclAllReduce: StopError()" in second


def test_what_follows_the_exchange_belongs_to_the_call(monkeypatch) -> None:
    """An interrupt while results are put where they go."""
    from cupy_training_ops.families.collective import reference

    inner = reference.as_arrays

    def call(group) -> str:
        with contextlib.suppress(KeyboardInterrupt, GroupError):
            reduced(group, 1.0)
        with contextlib.suppress(GroupError):
            reduced(group, 1.0)
        with pytest.raises(GroupError) as caught:
            reduced(group, 1.0)
        return str(caught.value)

    def stops(parts, like):
        if threading.current_thread() is victim[0]:
            raise KeyboardInterrupt
        return inner(parts, like)

    victim: list[threading.Thread] = []

    def rank(group) -> str:
        if group.rank == 1:
            victim.append(threading.current_thread())
            monkeypatch.setattr(reference, "as_arrays", stops)
        else:
            while not victim:
                time.sleep(0.01)
        return call(group)

    for words in results(in_threads(2, rank)):
        assert "rank 1 stopped in the middle of NcclAllReduce: KeyboardInterrupt()" in words


def test_what_was_never_begun_may_be_called_again() -> None:
    """A call that is refused, or interrupted before others heard of it."""

    def call(group) -> float:
        with pytest.raises(ArgumentError):
            cto.nccl_all_reduce(["x"], group=group)
        with pytest.raises(KeyboardInterrupt):
            cto.NcclAllReduce(group=group)([Interrupting()])
        return reduced(group, 2.0)

    assert results(in_threads(2, call)) == [4.0, 4.0]


# ---- P3: threads ---------------------------------------------------------------------------------


def test_a_call_of_another_thread_is_refused_while_one_is_under_way() -> None:
    is_in = threading.Event()

    def call(group) -> str | float:
        if group.rank == 0:
            is_in.wait(5)
            time.sleep(0.3)
            return reduced(group, 1.0)
        inner = group._engine.listen

        def listen(*args):
            is_in.set()
            return inner(*args)

        group._engine.listen = listen

        def intrude() -> str:
            is_in.wait(5)
            with pytest.raises(GroupError) as caught:
                reduced(group, 100.0)
            return str(caught.value)

        value, words = gathered([lambda: reduced(group, 1.0), intrude], 10)
        assert value == 2.0
        return words

    value, words = results(in_threads(2, call))
    assert value == 2.0
    assert words == "NcclAllReduce: group: a call of another thread is under way"


def test_threads_take_turns() -> None:
    def call(group) -> list[float]:
        turns = [threading.Thread(target=lambda: actual.append(reduced(group, 1.0))) for _ in "ab"]
        actual: list[float] = []
        for turn in turns:
            turn.start()
            turn.join()
        return actual

    assert results(in_threads(2, call)) == [[2.0, 2.0]] * 2


@pytest.mark.parametrize("n", [3, LARGE])  # while it waits for an answer, and in an array
def test_what_another_thread_closes_in_the_middle_of_a_call_ends_it_at_once(n) -> None:
    first, second = cto.ProcessGroup.in_threads(2, 10.0)
    actual: list[str] = []

    def call(group) -> None:
        try:
            reduced(group, 1.0, n)
        except Exception as error:
            actual.append(f"{type(error).__name__}: {error}")

    caller = threading.Thread(target=call, args=(second,), daemon=True)
    caller.start()
    time.sleep(0.3)
    second.close()
    caller.join(3.0)
    assert not caller.is_alive()
    call(first)
    first.close()
    words = "GroupError: NcclAllReduce: group: rank 1 "
    assert actual[0] == f"{words}closed its group in the middle of a call"
    assert actual[1].startswith(words)


def test_words_that_cannot_be_made_leave_no_call_under_way() -> None:
    """An exception whose own words fail, as memory that is out makes them."""

    class MuteError(Exception):
        def __repr__(self) -> str:
            raise MemoryError

    def call(group) -> str:
        with contextlib.suppress(GroupError, MemoryError), group.call("First"):
            raise MuteError
        assert not group.busy.locked()
        with pytest.raises(GroupError) as caught:
            group.check()
        return str(caught.value)

    assert "stopped in the middle of a call" in results(in_threads(1, call))[0]


# ---- P5: nobody else -----------------------------------------------------------------------------


def test_its_sockets_have_no_address_and_no_child_inherits_them() -> None:
    def call(group) -> None:
        for sock in group._engine.sockets.values():
            assert stat.S_ISSOCK(os.fstat(sock.fileno()).st_mode)
            assert not sock.get_inheritable()
            assert sock.family == socket.AF_UNIX
            assert not sock.getsockname()

    results(in_threads(3, call))


# ---- P6: what a peer says ------------------------------------------------------------------------


def lie(number: int, text: str, *sizes: int) -> bytearray:
    return engine.pack(number, text, list(map(bytes, sizes)))


SUM = "NcclAllReduce, group_type 0, on cpu of 1 arrays; float64 (3,)"
LIES = {
    "nothing": (b"", "a message came whose 0 bytes cannot be read"),
    "a number that is not its turn": (lie(7, SUM, 24), "rank 1 is at message 7, rank 0 at 1"),
    "half a head": (lie(1, "")[:-5], "a message came whose 11 bytes cannot be read"),
    "more parts than lengths": (struct.pack("<QII", 1, 0, 2**31), "cannot be read"),
    "a length of 2^60": (struct.pack("<QIIQ", 1, 0, 1, 2**60), "cannot be read"),
    "a text of other bytes": (struct.pack("<QII", 1, 9, 0) + b"short", "cannot be read"),
    "half an array": (lie(1, SUM, 24)[:-1], "cannot be read"),
    "a byte behind an array": (lie(1, SUM, 24) + b"\0", "cannot be read"),
    "bytes of another array": (lie(1, SUM, 0), "a message came with 0 bytes, not 24"),
    "no array": (lie(1, SUM), "a message came with 0 arrays, not 1"),
    "escapes": (engine.pack(FAULT, "\x1b[31mred\n\x07"), r"\\x1b\[31mred\\n\\x07"),
    "no text": (struct.pack("<QII", 1, 2, 0) + b"\xff\xfe", "the ranks disagree"),
}


@pytest.mark.parametrize("name", LIES)
def test_what_a_lying_peer_sends_is_an_error_of_the_group(name) -> None:
    said, words = LIES[name]

    def call(group) -> str:
        if group.rank == 1:
            with contextlib.suppress(GroupError, BrokenPipeError):  # as soon as the other noticed
                embedded._say(group._engine.sockets[0], said, 1.0)
                group._engine.receive(0, "answer", 2.0)
            return ""
        with pytest.raises(cto.OpError, match=words) as caught:
            reduced(group, 1.0)
        assert caught.value.args[0].isprintable()
        assert len(str(caught.value)) < 1500
        return ""

    results(in_threads(2, call, timeout=1.0))


def test_a_disagreement_that_is_no_text_is_escaped() -> None:
    assert engine.quote("a\x1b[0m\u202eb" + "x" * 5000).startswith("a\\x1b[0m\\u202eb")
    assert len(engine.quote("\x1b" * 5000)) <= 4 * engine.MAX_WORDS


def test_two_arrays_for_one_are_an_error_on_both_ranks() -> None:
    def call(group) -> None:
        keywords = {"group": group, "tag": 1}
        if group.rank == 0:
            two = [np.ones(3, np.float32)] * 2
            cto.send(True, 1, two, element_types=[1, 1], **keywords)
        else:
            cto.recv(True, 0, element_types=[1], arrays="numpy", **keywords)

    for error in in_threads(2, call):
        assert isinstance(error, ArgumentError)
        said = "rank {} calls Send and Recv with tag 1 on cpu of {} arrays"
        assert f"{said.format(1, 1)}, {said.format(0, 2)}" in str(error)


SAID = lie(1, SUM, 24)
HALVES = {
    "a length alone": LENGTH.pack(len(SAID)),
    "a length of 2^60": LENGTH.pack(2**60) + bytes(100),
    "half a length": LENGTH.pack(len(SAID))[:2],
    "half an array": LENGTH.pack(len(SAID)) + SAID[:-11],
}


@pytest.mark.parametrize("what", [*HALVES, "nothing is read"])
def test_signals_all_the_time_do_not_lengthen_a_wait(what) -> None:
    """Of half a message, and of room for one: the kernel's own timeouts begin anew with each."""
    first, second = cto.ProcessGroup.in_threads(2, 0.4)
    at_last = threading.Timer(6.0, second._engine.abandon)  # so that a fault is no hang
    at_last.start()
    started = time.monotonic()
    try:
        with signals_all_the_time():
            if what in HALVES:
                os.write(second._engine.sockets[0].fileno(), HALVES[what])
                with pytest.raises(GroupError, match=r"half a message came, and 0\.4 seconds"):
                    reduced(first, 1.0)
            else:
                late = r"rank 0 is late: it took no message for 0\.4"
                with pytest.raises(GroupError, match=late):
                    reduced(second, 1.0, LARGE)
        assert time.monotonic() - started < 0.4 + 2.0 + 2.0  # on a busy machine
    finally:
        at_last.cancel()
        first.close()
        second.close()
