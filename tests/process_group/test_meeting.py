# SPDX-License-Identifier: MIT
"""How ranks meet: who is let in, who is not, and what those are told who wait."""

from __future__ import annotations

import socket
import struct
import threading
import time

import pytest
from ranks import LOOPBACK, free_port, gathered, in_threads, results

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, GroupError
from cupy_training_ops.process_group import greeting, wire

TIMEOUT = 1.0
ENOUGH = 10.0  # where all ranks come, on a busy machine too


def group(rank: int, size: int, port: int, timeout=TIMEOUT, **keywords) -> cto.ProcessGroup:
    return cto.ProcessGroup(rank, size, f"{LOOPBACK}:{port}", timeout=timeout, **keywords)


def joined(rank: int, size: int, port: int, **keywords) -> int:
    with group(rank, size, port, **keywords) as found:
        return found.size


# ---- who does not come ---------------------------------------------------------------------------


def test_a_missing_rank_is_named() -> None:
    port = free_port()
    found = gathered([lambda r=r: joined(r, 4, port) for r in (0, 2)], 10)
    for error in found:
        assert isinstance(error, GroupError)
        assert "ProcessGroup: ranks 1, 3 did not join within 1 seconds" in str(error)


def test_a_missing_rank_0_is_named() -> None:
    port = free_port()
    with pytest.raises(GroupError, match=rf"rank 0 was not reached at {LOOPBACK}:{port} within 1"):
        group(1, 2, port)


def test_a_port_in_use_is_said_at_once() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        started = time.monotonic()
        with pytest.raises(GroupError, match=f"rank 0 cannot listen on {LOOPBACK}:{port}: Address"):
            group(0, 2, port)
        assert time.monotonic() - started < TIMEOUT
        with pytest.raises(GroupError, match=r"rank 0 was not reached .* within 1 seconds"):
            group(1, 2, port)  # whoever listens there says nothing


# ---- who comes instead ---------------------------------------------------------------------------


def reached(port: int) -> socket.socket:
    """A connection to a rank 0 that may be about to listen."""
    deadline = time.monotonic() + 5
    while True:
        try:
            return socket.create_connection((LOOPBACK, port), timeout=5)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


GARBAGE = {
    "a web browser": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"x" * 200,
    "zeros": bytes(500),
    "another version": struct.pack("<17sH", wire.MAGIC, 99) + bytes(200),
    "nothing": b"",
}


@pytest.mark.parametrize("name", GARBAGE)
def test_strangers_are_sent_away_and_the_group_meets_all_the_same(name) -> None:
    port = free_port()

    def disturb() -> bytes:
        with reached(port) as sock:
            sock.sendall(GARBAGE[name])
            sock.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: sock.recv(4096), b""))

    def rank_1() -> int:
        disturbed.wait(5)
        return joined(1, 2, port, timeout=ENOUGH)

    disturbed = threading.Event()

    def stranger() -> int:
        try:
            return len(disturb())
        except OSError:
            return 0
        finally:
            disturbed.set()

    *sizes, told = results(
        gathered([lambda: joined(0, 2, port, timeout=ENOUGH), rank_1, stranger], 40)
    )
    assert sizes == [2, 2]
    assert told < 200  # the challenge, and no more


def test_a_slow_client_keeps_nobody_waiting() -> None:
    """It says a byte from time to time, and is sent away."""
    port, is_over = free_port(), threading.Event()

    def drip() -> bool:
        with reached(port) as sock:
            for byte in wire.MAGIC * 20:
                try:
                    sock.sendall(bytes([byte]))
                except OSError:
                    return True
                if is_over.wait(0.1):
                    return False
        return False

    def ranks() -> list[int]:
        time.sleep(0.2)  # the slow one is first
        try:
            return gathered([lambda r=r: joined(r, 3, port, timeout=ENOUGH) for r in (1, 2)], 40)
        finally:
            is_over.set()

    found = results(gathered([lambda: joined(0, 3, port, timeout=ENOUGH), ranks, drip], 60))
    assert found[:2] == [3, [3, 3]]


def test_those_who_wait_are_told_who_was_sent_away() -> None:
    port = free_port()

    def stranger() -> None:
        with reached(port) as sock:
            sock.sendall(GARBAGE["zeros"])
            while sock.recv(4096):
                pass

    error, _ = gathered([lambda: joined(0, 2, port), stranger], 10)
    assert (
        "rank 1 did not join within 1 seconds; refused connections: 127.0.0.1: it sent no"
        in str(error)
    )


# ---- secrets -------------------------------------------------------------------------------------


def test_a_wrong_secret_is_said_on_both_sides() -> None:
    port = free_port()
    secrets = ("right", "wrong")
    found = gathered([lambda r=r: joined(r, 2, port, secret=secrets[r]) for r in (0, 1)], 10)
    assert (
        "rank 1 did not join within 1 seconds; refused connections: 127.0.0.1: its secret"
        in str(found[0])
    )
    assert "refused: the secrets (CTO_SECRET) differ" in str(found[1])


def test_a_rank_0_that_does_not_know_the_secret_is_refused() -> None:
    """One that lets everybody in, and cannot prove that it may."""
    with socket.create_server((LOOPBACK, 0)) as server:

        def pretend() -> None:
            sock, _ = server.accept()
            with sock:
                greeting_of_one = struct.pack("<17sH", wire.MAGIC, wire.VERSION) + bytes(32)
                sock.sendall(greeting_of_one)
                wire.read_exactly(sock, len(greeting_of_one) + 40)
                sock.sendall(struct.pack("<H", 0) + bytes(32))
                sock.recv(1)

        port = server.getsockname()[1]
        _, error = gathered([pretend, lambda: joined(1, 2, port, secret="right")], 10)
    assert "refused: it does not know the secret" in str(error)


def test_the_secret_comes_from_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("CTO_SECRET", "of the job")
    assert results(in_threads(2, lambda g: g.size)) == [2, 2]


def test_beyond_this_machine_a_secret_is_needed() -> None:
    with pytest.raises(GroupError, match=r"192\.0\.2\.1 is no loopback address: set CTO_SECR"):
        cto.ProcessGroup(1, 2, "192.0.2.1:29500", timeout=TIMEOUT)


def test_a_proof_is_of_what_was_said() -> None:
    parts = [bytes([i]) * 32 for i in range(4)]
    proof = greeting._proof(b"key", *parts)
    for i in range(4):
        other = [*parts]
        other[i] = b"x" * 32
        assert greeting._proof(b"key", *other) != proof
    assert greeting._proof(b"other", *parts) != proof


# ---- ranks of other groups -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "size", "words"),
    [
        (1, 3, "refused: rank 1 is of a group of 3, rank 0 of 2"),
        (0, 2, "rank 0 cannot listen"),
    ],
)
def test_ranks_that_do_not_fit_are_refused(rank, size, words) -> None:
    port = free_port()

    def other() -> int:
        reached(port).close()
        return joined(rank, size, port)

    assert words in str(gathered([lambda: joined(0, 2, port), other], 10)[1])


def test_a_rank_that_is_there_twice_is_refused() -> None:
    port = free_port()
    found = gathered([lambda r=r: joined(r, 3, port) for r in (0, 1, 1)], 10)
    assert sum("refused: rank 1 has joined already" in str(error) for error in found) == 1


def test_other_sizes_are_a_disagreement() -> None:
    port = free_port()
    sizes = ({"data_size": 2}, {"horizontal_size": 2})
    ranks = [lambda r=r: joined(r, 2, port, timeout=ENOUGH, **sizes[r]) for r in (0, 1)]
    for error in gathered(ranks, 40):
        assert isinstance(error, ArgumentError)
        assert "the ranks disagree: rank 0 calls ProcessGroup(data_size=2, " in str(error)
