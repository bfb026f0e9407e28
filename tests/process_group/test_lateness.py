# SPDX-License-Identifier: MIT
"""The engine for one machine: peers that are late, descriptors that are closed, signals."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time

import pytest
from ranks import LARGE, in_threads, reduced, results, signals_all_the_time

import cupy_training_ops as cto
from cupy_training_ops import GroupError


def test_a_peer_that_does_not_read_is_late() -> None:
    """Its socket is full: the sender does not wait for ever."""
    is_over = threading.Event()

    def call(group) -> str:
        if group.rank == 0:
            is_over.wait(10)
            return ""
        started = time.monotonic()
        with pytest.raises(GroupError) as caught:
            reduced(group, 1.0, LARGE)
        is_over.set()
        assert time.monotonic() - started < 1.0 + 2.0 + 2.0  # on a busy machine
        return str(caught.value)

    words = results(in_threads(2, call, timeout=1.0))[1]
    assert "rank 0 is late: it took no message for 1 seconds" in words


def test_descriptors_that_are_closed_end_the_group() -> None:
    together = threading.Barrier(3)

    def call(group) -> str:
        reduced(group, 1.0)
        together.wait(5)
        if group.rank != 1:  # only then: else their descriptors may get the closed ones' numbers
            together.wait(5)
            return words_of_the_second(group)
        for sock in group._engine.sockets.values():
            os.close(sock.fileno())
        words = words_of_the_second(group)
        for sock in group._engine.sockets.values():  # closing would close what another test opens
            sock.detach()
        together.wait(5)
        return words

    def words_of_the_second(group) -> str:
        with contextlib.suppress(GroupError):
            reduced(group, 1.0)
        with pytest.raises(GroupError) as caught:
            reduced(group, 1.0)
        return str(caught.value)

    first, own, last = results(in_threads(3, call, timeout=2.0))
    assert "rank 1 lost its connection to rank 0: Bad file descriptor" in own
    assert "rank 1" in first
    assert "rank 1" in last


def test_no_descriptor_is_left() -> None:
    def descriptors() -> set[str]:
        return set(os.listdir("/proc/self/fd"))

    before = len(descriptors())
    groups = cto.ProcessGroup.in_threads(3)
    assert len(descriptors()) == before + 6
    for group in groups:
        group.close()
    assert len(descriptors()) == before


def test_too_many_descriptors_are_an_error_of_arguments() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 4, hard))
    try:
        with pytest.raises(
            GroupError, match=r"^ProcessGroup: cannot connect 9 ranks: Too many open files"
        ):
            cto.ProcessGroup.in_threads(9)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_signal_that_is_handled_changes_nothing() -> None:
    """A wait goes on after a handler that returns."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals are the main thread's")
    heard: list[int] = []
    first, second = cto.ProcessGroup.in_threads(2, 5.0)
    other = threading.Timer(0.3, lambda: reduced(second, 1.0))
    other.start()
    try:
        with signals_all_the_time(heard.append):
            assert reduced(first, 1.0) == 2.0
    finally:
        other.join()
        first.close()
        second.close()
    assert heard
