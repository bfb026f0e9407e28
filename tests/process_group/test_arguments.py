# SPDX-License-Identifier: MIT
"""What a group is made from: arguments, the variables of launchers, and NCCL where it is."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from ranks import in_threads

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, GroupError
from cupy_training_ops.process_group import group as module
from cupy_training_ops.process_group.embedded import LAUNCHER, SOCKETS
from cupy_training_ops.process_group.engine import GRACE, Engine

BOTH = r"ProcessGroup\.from_torch\(\).*ProcessGroup\.from_mpi\(\)"  # what serves several machines

# ---- what the constructor takes ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((2, 2), {}, "rank, size: expected none, or 0 and 1 .*, got 2, 2"),
        ((True, 1), {}, "rank, size: expected none, or 0 and 1 .*, got True, 1"),
        ((False, 1), {}, "rank, size: expected none, or 0 and 1 .*, got False, 1"),
        ((0, True), {}, "rank, size: expected none, or 0 and 1 .*, got 0, True"),
        ((0.0, 1), {}, r"rank, size: expected none, or 0 and 1 .*, got 0\.0, 1"),
        ((np.arange(2), 1), {}, "rank, size: expected none, or 0 and 1 "),
        ((0,), {}, "rank, size: expected none, or 0 and 1 .*, got 0, None"),
        ((0, 2, "127.0.0.1:29500"), {}, f"address: ranks meet by no address now: .*{BOTH}"),
        ((0, 2), {"secret": b"s"}, f"secret: ranks meet by no address now: .*{BOTH}"),
        ((0, 1), {"timeout": 0}, "timeout: expected seconds above 0, got 0"),
        ((0, 1), {"timeout": "5"}, "timeout: expected seconds above 0, got '5'"),
        ((0, 1), {"timeout": 10**400}, "timeout: expected seconds above 0, got an integer of"),
        ((0, 1), {"timeout": float("nan")}, "timeout: expected seconds above 0, got nan"),
        ((0, 1), {"data_size": True}, "data_size: expected a number of ranks, got True"),
        ((0, 1), {"data_size": "1"}, "data_size: expected a number of ranks, got '1'"),
        ((0, 1), {"data_size": 2}, "data_size: expected a divisor of the 1 ranks, got 2"),
        ((0, 1), {"local_size": 0}, "local_size: expected a divisor of the 1 ranks, got 0"),
    ],
)
def test_arguments_are_checked(arguments, keywords, message) -> None:
    with pytest.raises(ArgumentError, match=f"^ProcessGroup: {message}"):
        cto.ProcessGroup(*arguments, **keywords)


@pytest.mark.parametrize("n", [0, True, "2", None])
def test_a_wrong_number_of_threads_is_refused(n) -> None:
    with pytest.raises(ArgumentError, match=r"^ProcessGroup\.in_threads: n: expected a number of"):
        cto.ProcessGroup.in_threads(n)


def test_a_group_says_what_carries_its_messages() -> None:
    assert repr(cto.ProcessGroup(0, 1)) == "<ProcessGroup rank 0 of 1, alone>"
    assert in_threads(2, repr) == [f"<ProcessGroup rank {r} of 2, embedded>" for r in (0, 1)]


def test_a_timeout_of_years_is_waited_for() -> None:
    """Longer than what the operating system waits at a time."""

    def call(group) -> float:
        return float(cto.nccl_all_reduce([np.ones(3)], group=group)[0][0])

    groups = cto.ProcessGroup.in_threads(2, 1e9)
    from ranks import gathered

    assert gathered([lambda group=group: call(group) for group in groups], 10) == [2.0, 2.0]
    for group in groups:
        group.close()


# ---- launchers -----------------------------------------------------------------------------------

OURS = {LAUNCHER: str(os.getppid()), "RANK": "0", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, f"no launcher started this process.*{BOTH}"),
        ({"CTO_SECRET": "s"}, f"CTO_SECRET is not used any more: .*{BOTH}"),
        ({"CTO_ADDRESS": "a:1"}, f"CTO_ADDRESS is not used any more: .*{BOTH}"),
        ({"RANK": "0", "WORLD_SIZE": "x"}, "WORLD_SIZE: expected a number, got 'x'"),
        ({"RANK": "0", "WORLD_SIZE": "9" * 5000}, "WORLD_SIZE: expected a number, got '9999"),
        ({"RANK": "0", "WORLD_SIZE": "²"}, "WORLD_SIZE: expected a number, got '²'"),
        (OURS, "a process that launch started makes one group, itself"),
        (OURS | {SOCKETS: "0,,0"}, "a process that launch started makes one group, itself"),
        (OURS | {SOCKETS: ",99999999999999999999"}, "a process that launch started makes one"),
        (OURS | {LAUNCHER: "1", SOCKETS: ",0"}, "a process that launch started makes one group"),
    ],
)
def test_variables_that_make_no_group(variables, message) -> None:
    with pytest.raises(GroupError, match=f"^ProcessGroup: {message}"):
        module.engine_of(dict(variables), 1.0)


def test_a_wrong_timeout_of_the_environment_is_refused(monkeypatch) -> None:
    monkeypatch.setenv("CTO_TIMEOUT", "abc")
    with pytest.raises(GroupError, match="CTO_TIMEOUT: expected a number of seconds, got 'abc'"):
        cto.ProcessGroup(0, 1)
    monkeypatch.setenv("CTO_TIMEOUT", "-1")
    with pytest.raises(ArgumentError, match="timeout: expected seconds above 0, got -1"):
        cto.ProcessGroup(0, 1)
    monkeypatch.setenv("CTO_TIMEOUT", "7")
    assert cto.ProcessGroup(0, 1).timeout == 7


def test_one_process_of_torchrun_is_alone(monkeypatch) -> None:
    monkeypatch.setattr(os, "environ", {"RANK": "0", "WORLD_SIZE": "1"})
    assert repr(cto.ProcessGroup()) == "<ProcessGroup rank 0 of 1, alone>"


def test_variables_that_torch_cannot_use_are_an_error_of_the_group(monkeypatch) -> None:
    """As where a cluster sets RANK and WORLD_SIZE, and nobody an address."""
    pytest.importorskip("torch.distributed")
    for name in ("MASTER_ADDR", "MASTER_PORT", LAUNCHER):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(GroupError, match=r"could not connect the ranks: .*MASTER_ADDR"):
        cto.ProcessGroup(timeout=1)


def test_what_is_no_communicator_is_refused() -> None:
    mpi = pytest.importorskip("mpi4py.MPI")
    for comm in ("world", mpi.COMM_NULL, 3):
        with pytest.raises(ArgumentError, match="comm: expected an open intracommunicator"):
            cto.ProcessGroup.from_mpi(comm)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TimeoutError, "rank 1 is late: it took no message for 5 seconds"),
        (EOFError, "rank 1 closed its group without taking a message"),
    ],
)
def test_a_message_that_nobody_takes_is_said_to_be_one(monkeypatch, error, words) -> None:
    def put(*_: object) -> None:
        raise error

    engine = Engine(0, 1, 5.0)
    monkeypatch.setattr(engine, "put", put)
    with pytest.raises(GroupError, match=words):
        engine.send(1, "")


def test_who_waits_for_the_first_rank_of_a_call_waits_longer(monkeypatch) -> None:
    """So that the words are of the one that is late, and not of who waited for it."""
    engine, waited = Engine(1, 3, 5.0), []
    monkeypatch.setattr(engine, "put", lambda peer, _, seconds: waited.append((peer, seconds)))
    for peer in (0, 2):
        engine.send(peer, "")
    assert waited == [(0, 5.0 + GRACE), (2, 5.0)]


@pytest.mark.parametrize("error", [OSError, EOFError, MemoryError, SystemError])
def test_what_carries_messages_may_raise_the_groups_error(error) -> None:
    """And nothing that a caller would take for its own."""
    group = cto.ProcessGroup(0, 1)
    words = "sum: group: rank 0 stopped in the middle of sum: "
    with pytest.raises(GroupError, match=words), group.call("sum"):
        raise error


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
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "there is NCCL\n" or (
        "NCCL (libnccl.so.2) is not here; install it with: pip install 'cupy-training-ops[nccl1"
    ) in ran.stdout  # fmt: skip
    assert not ran.stderr
