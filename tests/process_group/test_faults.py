# SPDX-License-Identifier: MIT
"""Ranks that are gone, late or of another mind: every other rank is told, in time."""

from __future__ import annotations

import gc
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from ranks import Processes, in_threads, results

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, GroupError, OpError

SCRIPT = Path(__file__).parent / "faulty.py"
GRACE = 2.0  # seconds after the timeout
KILLED = -9


def ones(n: int = 5, dtype=np.float32) -> list[np.ndarray]:
    return [np.ones(n, dtype)]


# ---- a rank that is killed -----------------------------------------------------------------------


def assert_told(n: int, victim: int, moment: str, words: str, timeout: float) -> None:
    with Processes(n, SCRIPT, str(victim), moment, timeout=timeout) as ranks:
        actual = ranks.ended()
    assert actual[victim][0] == KILLED
    for rank, (status, text) in enumerate(actual):
        if rank != victim:
            assert status == 3, text
            assert re.search(words, text)
            assert float(re.search(r"\[([\d.]+) s\]", text)[1]) < timeout + GRACE


@pytest.mark.parametrize(
    ("n", "victim", "moment", "words"),
    [
        (2, 1, "between", "NcclAllReduce: group: rank 1 is gone: "),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in (
                (3, 1, "before", "ProcessGroup: group: rank 1 is gone: "),
                (2, 0, "before", "ProcessGroup: group: rank 0 is gone: "),
                (3, 1, "between", "NcclAllReduce: group: rank 1 is gone: "),
                (3, 0, "between", "NcclAllReduce: group: rank 0 is gone: "),
                (3, 1, "inside", "NcclAllReduce: group: rank 1 is gone: "),
                (3, 0, "inside", "NcclAllReduce: group: rank 0 is gone: "),
            )
        ),
    ],
)
def test_a_killed_rank_is_named_by_the_others(n, victim, moment, words) -> None:
    assert_told(n, victim, moment, words, 4.0)


# ---- a rank that is late, or has left ------------------------------------------------------------


def test_a_rank_that_makes_no_call_is_late() -> None:
    awake = threading.Event()

    def call(group) -> None:
        if group.rank == 1:
            awake.wait(10)  # alive, but in no call
        try:
            cto.nccl_all_reduce(ones(), group=group)
        finally:
            awake.set()

    started = time.monotonic()
    for error in in_threads(3, call, timeout=1.5):
        assert isinstance(error, GroupError)
        assert "group: rank 1 is late: no NcclAllReduce" in str(error)
    assert time.monotonic() - started < 1.5 + GRACE


def test_a_rank_that_fails_tells_the_others() -> None:
    def call(group) -> None:
        if group.rank == 1:
            raise ValueError("no data")
        cto.nccl_all_reduce(ones(), group=group)

    actual = in_threads(2, call)
    assert "group: rank 1 failed: ValueError: no data" in str(actual[0])


def test_a_rank_that_has_closed_its_group_is_named() -> None:
    def call(group) -> None:
        if group.rank == 0:
            cto.nccl_all_reduce(ones(), group=group)

    assert "group: rank 1 closed its group without NcclAllReduce" in str(in_threads(2, call)[0])


def test_a_closed_group_is_refused() -> None:
    def call(group) -> None:
        op = cto.NcclAllReduce(group=group)
        op(ones())
        group.close()
        group.close()
        for refused in (lambda: op(ones()), lambda: cto.nccl_all_reduce(ones(), group=group)):
            with pytest.raises(GroupError, match=r"^NcclAllReduce: group: expected an open group"):
                refused()

    results(in_threads(2, call))


def test_a_closed_group_keeps_nothing_of_what_is_refused() -> None:
    """An operator has its group, which would hold it for ever: by functions, and of new shapes."""
    group = cto.ProcessGroup(0, 1)
    group.close()
    x = np.ones(3, np.float32)
    calls = (
        lambda: cto.nccl_all_reduce([x], group=group),
        lambda: cto.recv(True, 0, group=group, tag=1, element_types=[1]),
    )
    for call in calls:
        with pytest.raises(OpError):
            call()
    gc.collect()
    assert not group.instances


def test_after_a_fault_every_use_says_so() -> None:
    def call(group) -> None:
        x = ones()
        if group.rank == 1:
            group._engine.end("rank 1 is tired")
        with pytest.raises(GroupError, match=r"^NcclAllReduce: group: rank 1 is tired"):
            cto.nccl_all_reduce(x, group=group)
        with pytest.raises(GroupError, match=r"^MegatronF: group: rank 1 is tired"):
            cto.megatron_f(x[0], group=group)
        with pytest.raises(GroupError, match=r"^ProcessGroup: group: rank 1 is tired"):
            group.check()

    results(in_threads(2, call))


def test_no_thread_stays() -> None:
    before = set(threading.enumerate())
    results(in_threads(3, lambda group: cto.nccl_all_reduce(ones(), group=group)))
    deadline = time.monotonic() + 5
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before


# ---- what is under way on a GPU ------------------------------------------------------------------


class Communicator:
    """In NCCL's place; notes how it ends."""

    def __init__(self, group: cto.ProcessGroup) -> None:
        self.how = ""
        self.words = ""
        self.has_ended = threading.Event()
        with group.resources.initialising():
            group.resources.communicators[group.everyone] = self

    def trouble(self) -> str:
        return self.words

    def end(self, is_well: bool = False) -> None:
        self.how = self.how or ("closed" if is_well else "aborted")
        self.has_ended.set()


def test_communicators_end_with_their_group() -> None:
    first, second = cto.ProcessGroup.in_threads(2)
    own, other = Communicator(first), Communicator(second)
    with pytest.raises(ValueError, match="no data"), first:
        raise ValueError("no data")
    assert own.how == "aborted"
    assert other.has_ended.wait(10)  # while its host is in no call
    with pytest.raises(GroupError, match="rank 0 failed: ValueError: no data"):
        second.check()
    second.close()
    (alone,) = cto.ProcessGroup.in_threads(1)
    last = Communicator(alone)
    alone.close()
    assert last.how == "closed"


def test_a_call_on_the_gpu_that_is_overdue_ends_the_group_for_all() -> None:
    first, second = cto.ProcessGroup.in_threads(2)
    own, other = Communicator(first), Communicator(second)
    own.words = "a call on the GPU took longer than 4 seconds"
    assert own.has_ended.wait(10)
    assert other.has_ended.wait(10)
    for group in (first, second):
        with pytest.raises(GroupError, match="rank 0: a call on the GPU took longer than 4 sec"):
            group.check()
        group.close()


def test_a_thread_that_watches_and_dies_ends_the_group() -> None:
    first, second = cto.ProcessGroup.in_threads(2)
    own = Communicator(first)

    def dies() -> str:
        raise MemoryError

    own.trouble = dies
    assert own.has_ended.wait(10)
    with pytest.raises(GroupError, match=r"the thread that watches ended: MemoryError\(\)"):
        first.check()
    first.close()
    second.close()


# ---- ranks that disagree -------------------------------------------------------------------------


def calls(group, by_rank) -> None:
    for call in by_rank[min(group.rank, 1)]:
        call(group)


def reduce_all(x):
    return lambda group: cto.nccl_all_reduce(x, group=group)


DIFFERENCES = {
    "shape": (
        ([reduce_all(ones(5))], [reduce_all(ones(6))]),
        r"rank 0 calls NcclAllReduce.*number 0 float32 \(5,\), rank 1 calls .*float32 \(6,\)",
    ),
    "type": (
        ([reduce_all(ones())], [reduce_all(ones(5, np.float16))]),
        r"number 0 float32 \(5,\), rank 1 calls .*float16 \(5,\)",
    ),
    "number": (
        ([reduce_all(ones())], [reduce_all(ones() + ones())]),
        r"of 1 arrays, rank 1 calls NcclAllReduce, .* of 2 arrays",
    ),
    "operator": (
        ([reduce_all(ones())], [lambda g: cto.nccl_all_gather(ones(), group=g)]),
        "rank 0 calls NcclAllReduce, .* rank 1 calls NcclAllGather, ",
    ),
    "order": (
        ([reduce_all(ones(5)), reduce_all(ones(6))], [reduce_all(ones(6)), reduce_all(ones(5))]),
        r"float32 \(5,\), rank 1 calls .*float32 \(6,\)",
    ),
    "empty": (
        ([reduce_all(ones(0))], [reduce_all(ones(6))]),
        r"float32 \(0,\), rank 1 calls .*float32 \(6,\)",
    ),
    "attribute": (
        (
            [lambda g: cto.adasum_all_reduce(ones(), group=g, reduce_algo=0)],
            [lambda g: cto.adasum_all_reduce(ones(), group=g, reduce_algo=1)],
        ),
        r"reduce_algo=0\).*reduce_algo=1\)",
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_what_differs_is_an_error_on_every_rank(name) -> None:
    by_rank, words = DIFFERENCES[name]
    n = 2 if name == "attribute" else 3
    for error in in_threads(n, lambda group: calls(group, by_rank)):
        assert isinstance(error, ArgumentError)
        assert re.search(f": the ranks disagree: .*{words}", str(error))


def test_a_group_goes_on_after_a_disagreement() -> None:
    def call(group) -> float:
        with pytest.raises(ArgumentError, match="the ranks disagree"):
            cto.nccl_all_reduce(ones(5 + group.rank), group=group)
        return float(cto.nccl_all_reduce(ones(), group=group)[0][0])

    assert results(in_threads(3, call)) == [3.0] * 3


def test_descriptions_are_compared_once_on_a_gpu() -> None:
    """What the first call of a kind says is not said again."""

    def call(group) -> int:
        members = group.everyone
        for _ in range(3):
            group.agree("X", members, "X of 1 arrays; float32 (3,)")
        return len(group._agreed)

    assert results(in_threads(2, call)) == [1, 1]
