# SPDX-License-Identifier: MIT
"""Events: what waits for what, and what a fault leaves."""

from __future__ import annotations

import functools
import time

import numpy as np
import pytest
from forks import forking, holding, status_of_child

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, ProviderError
from cupy_training_ops.device import streams
from cupy_training_ops.families.control import operators as control

from .threads import LIMIT, WAITS, X, threads_of


def test_one_record_is_for_one_wait(place) -> None:
    x = place(X)
    for _ in range(3):
        cto.record_event(7, [x])
        with pytest.raises(
            ArgumentError, match="RecordEvent: EventIdentifier: expected an event th"
        ):
            cto.record_event(7, [x])
        cto.wait_event(7, [x])
        with pytest.raises(ProviderError, match=r"^WaitEvent: event 7: expected a RecordEvent wi"):
            cto.wait_event(7, [x], timeout=0.02)


def test_the_wait_takes_its_time(place) -> None:
    start = time.monotonic()
    with pytest.raises(ProviderError, match=r"within 0.3 s, got none"):
        cto.wait_event(7, [place(X)], timeout=0.3)
    assert 0.3 <= time.monotonic() - start < 5


def test_minus_one_is_no_event(place, table) -> None:
    x = place(X)
    for _ in range(2):
        cto.record_event(-1, [x])
        cto.wait_event(-1, [x], timeout=0)
    assert not table._marks


def test_on_cupy_the_stream_is_marked_and_waits() -> None:
    pytest.importorskip("cupy", reason="CuPy is in the extras")
    from cupy_training_ops.testing.hollow import hollow, hollow_launches

    with hollow_launches() as result:
        x = hollow((3,), np.float32)
        for number in (-1, 5):
            cto.record_event(number, [x])
            cto.wait_event(number, [x])
    assert [name for name, _ in result] == ["record", "wait"]
    assert type(result[1][1][0]) is object  # the very mark


def test_the_host_waits_for_an_event_of_a_gpu(table) -> None:
    waited = []
    mark = type("Mark", (), {"synchronize": lambda self: waited.append(self)})()
    table.record(7, lambda: mark)
    cto.wait_event(7, [X])
    assert waited == [mark]


def test_an_event_that_cannot_be_waited_for_is_named(table) -> None:
    """And it is gone, so that it may be recorded again."""

    def fails(_):
        raise RuntimeError("cudaErrorCapturedEvent")

    table.record(7, lambda: type("Mark", (), {"synchronize": fails})())
    with pytest.raises(
        ProviderError, match=r"^WaitEvent: event 7: cudaErrorCapturedEvent"
    ) as caught:
        cto.wait_event(7, [X])
    assert isinstance(caught.value.__cause__, RuntimeError)
    cto.record_event(7, [X])


def test_a_mark_that_cannot_be_made_records_nothing(table, monkeypatch) -> None:
    def fails(*_):
        raise RuntimeError("no stream")

    monkeypatch.setattr(control.BACKENDS[np.ndarray], "record", fails, raising=False)
    with pytest.raises(ProviderError, match=r"^RecordEvent: event 7: no stream"):
        cto.record_event(7, [X])
    assert not table._marks


def until(condition) -> None:
    """Wait until it is so, 5 seconds at most."""
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end, "it never is so"
        time.sleep(0.001)


@LIMIT
def test_200_events_in_any_order(place, rng, table) -> None:
    x, order = place(X), rng.permutation(200).tolist()
    record, wait = cto.RecordEvent(), cto.WaitEvent(**WAITS)
    assert not threads_of(
        lambda: [record(i, [x]) for i in range(200)], lambda: [wait(i, [x]) for i in order]
    )
    assert not table._marks


@LIMIT
def test_a_second_waiter_waits_for_the_next_record(place, table) -> None:
    x, passed = place(X), []
    wait = cto.WaitEvent(**WAITS)

    def waiter() -> None:
        wait(7, [x])
        passed.append(1)

    def recorder() -> None:
        for n in (1, 2, 3):
            cto.record_event(7, [x])
            until(lambda n=n: len(passed) >= n)
            time.sleep(0.02)
            assert len(passed) == n  # nobody else passed

    assert not threads_of(waiter, waiter, waiter, recorder)
    assert not table._marks


@LIMIT
def test_who_waits_for_another_event_waits_on(place, table) -> None:
    """A record wakes its own waiter, whoever came first."""
    x, passed = place(X), []
    wait = cto.WaitEvent(**WAITS)

    def waiter(number: int) -> None:
        wait(number, [x])
        passed.append(number)

    def recorder() -> None:
        for n in range(3):
            until(lambda n=n: len(table._changed._waiters) == 3 - n)
            cto.record_event(3 - n, [x])
            until(lambda n=n: len(passed) > n)

    assert not threads_of(*(functools.partial(waiter, n) for n in (1, 2, 3)), recorder)
    assert passed == [3, 2, 1]


@LIMIT
def test_of_many_records_one_is_first(place, table) -> None:
    x, record = place(X), cto.RecordEvent()
    errors = threads_of(*[lambda: record(7, [x])] * 8)
    assert len(errors) == 7
    assert all(isinstance(error, ArgumentError) for error in errors)
    assert list(table._marks) == [7]


@LIMIT
@forking
def test_a_forked_child_has_events_of_its_own() -> None:
    """Also where another thread holds the parent's lock."""
    result = streams.EVENTS
    result.record(4000, lambda: None)

    def records() -> int:
        empty = not result._marks
        recorded = result.record(1, lambda: None)
        return 0 if empty and recorded else 1

    status = status_of_child(holding(result._changed), records)
    result.take(4000, 0)
    assert status == 0
