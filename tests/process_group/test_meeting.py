# SPDX-License-Identifier: MIT
"""How ranks meet: who is let in, who is not, and what those are told who wait."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest
from ranks import LOOPBACK, ROOT, free_port, gathered, in_threads, results

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, GroupError
from cupy_training_ops.process_group import greeting, wire
from cupy_training_ops.process_group.address import Address, to_address
from cupy_training_ops.process_group.environment import placed

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


# ---- what the constructor takes ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((2, 2), {}, "rank: expected an integer from 0 to 1, got 2"),
        ((0, 0), {}, "size: expected a number of ranks from 1 on, got 0"),
        ((True, 2), {}, "rank: expected an integer from 0 to 1, got True"),
        ((0, 2), {}, "address: expected 'host:port' where rank 0 listens, got None"),
        ((0, 2, "here"), {}, "address: expected 'host:port' with a port from 1 to 65535, got 'he"),
        ((0, 2, ("a", 0)), {}, "address: expected 'host:port' with a port"),
        ((0, 2, "a:1"), {"timeout": 0}, "timeout: expected seconds above 0, got 0"),
        ((0, 2, "a:1"), {"on_fault": "stop"}, "on_fault: expected 'exit' or 'raise', got 'stop'"),
    ],
)
def test_arguments_are_checked(arguments, keywords, message) -> None:
    with pytest.raises(ArgumentError, match=f"^ProcessGroup: {message}"):
        cto.ProcessGroup(*arguments, **keywords)


def test_addresses() -> None:
    assert to_address("[::1]:5") == Address("::1", 5)
    assert str(Address("::1", 5)) == "[::1]:5"
    assert to_address(("localhost", 29500)) == to_address("localhost:29500")


# ---- launchers -----------------------------------------------------------------------------------

TORCH = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
TORCH |= {"MASTER_ADDR": "one", "MASTER_PORT": "29000"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "123456"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (TORCH, (1, 4, 1, 2, "one:29000")),
        (TORCH | {"TORCHELASTIC_USE_AGENT_STORE": "True"}, (1, 4, 1, 2, "one:29001")),
        (TORCH | {"CTO_ADDRESS": "two:1"}, (1, 4, 1, 2, "two:1")),
        (TORCH | {"MASTER_ADDR": "fe80::1"}, (1, 4, 1, 2, "[fe80::1]:29000")),
        (OPEN_MPI, (3, 4, 3, 4, "127.0.0.1:29500")),
        (OPEN_MPI | {"PMIX_NAMESPACE": "prterun-x-77@1"}, (3, 4, 3, 4, "127.0.0.1:20771")),
        (MPICH, (0, 2, 0, 2, "127.0.0.1:29500")),
        (SLURM | {"MASTER_ADDR": "n1"}, (5, 8, 1, None, "n1:23456")),
        (SLURM | {"SLURM_NNODES": "1"}, (5, 8, 1, 8, "127.0.0.1:23456")),
        ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 1, 0, None, None)),
    ],
)
def test_launchers_variables(variables, expected) -> None:
    assert placed(variables) == expected


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {},
            r"expected variables of a launcher among torchrun's \(RANK, WORLD_SIZE\), .* got none",
        ),
        (SLURM, "Slurm does not say where rank 0 is: set MASTER_ADDR"),
        (TORCH | {"RANK": "one"}, "RANK: expected a number, got 'one'"),
    ],
)
def test_launchers_that_do_not_say_enough(variables, message) -> None:
    with pytest.raises(GroupError, match=f"^ProcessGroup.from_environment: {message}"):
        placed(variables)


# ---- frames --------------------------------------------------------------------------------------


def framed(*, kind=1, length=0, body=b"") -> bytes:
    return struct.pack("<BIIIQ", kind, 1, 0, 0, length) + body


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (framed(kind=77), "a frame of kind 77"),
        (framed(length=2**60), f"a frame of {2**60} bytes"),
        (framed(kind=2, length=2**17), f"a frame of {2**17} bytes"),
        (framed()[:-3], "its connection ended"),
    ],
)
def test_frames_of_a_wrong_length_are_refused(sent, message) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(sent)
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises((wire.WireError, EOFError), match=message):
            wire.read_frame(theirs)


def test_who_says_nothing_or_too_little_is_not_waited_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(3)
        ours.sendall(b"abc")
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            wire.read_exactly(theirs, 10, started + 0.1)
        assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((), "without lengths"),
        ((0, 2**40), f"of {2**40} parts"),
        ((0, 1), "of 1 parts"),
        ((0, 1, 9), "do not add up"),
        ((2**63, 1, 2**63 + 8), "do not add up"),
    ],
)
def test_messages_of_a_wrong_length_are_refused(lengths, message) -> None:
    body = b"".join(struct.pack("<Q", n) for n in lengths) + b"x" * (8 if len(lengths) > 2 else 0)
    with pytest.raises(wire.WireError, match=message):
        wire.unpacked(memoryview(body))


def test_messages_come_back() -> None:
    text, parts = "söme words", [b"", b"abc", bytes(70_000)]
    body = memoryview(b"".join(wire.packed(text, parts)))
    found = wire.unpacked(body)
    assert (found.text, [bytes(part) for part in found.parts]) == (text, parts)


# ---- without NCCL --------------------------------------------------------------------------------

QUIET = """
import sys, warnings
warnings.simplefilter("error")
import numpy as np, cupy_training_ops as cto
x = np.ones(3)
cto.nccl_all_reduce([x], group=cto.ProcessGroup(0, 1))
assert not any(name.startswith("cupy.") for name in sys.modules)
from cupy_training_ops.process_group import nccl
try:
    nccl.library()
    print("there is NCCL")
except cto.ProviderError as error:
    print(error)
"""


def test_without_the_library_nothing_warns_and_a_call_says_which_extra() -> None:
    pytest.importorskip("cupy", reason="CuPy is in the extras")
    command = [sys.executable, "-W", "error", "-c", QUIET]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "there is NCCL\n" or (
        "NCCL (libnccl.so.2) is not here; install it with: pip install 'cupy-training-ops[nccl1"
    ) in ran.stdout  # fmt: skip
    assert not ran.stderr
