# SPDX-License-Identifier: MIT
"""Calls that another thread makes: what they return and raise, and those that never do."""

from __future__ import annotations

import gc
import threading
import time

import pytest

from cupy_training_ops.process_group.of_torch import Caller

NAME = "cto-test"


def is_there() -> bool:
    until = time.monotonic() + 5
    while any(t.name == NAME for t in threading.enumerate()) and time.monotonic() < until:
        time.sleep(0.01)
    return any(t.name == NAME for t in threading.enumerate())


@pytest.mark.parametrize("ends", [True, False])
def test_calls_are_made_by_one_thread_that_ends(ends) -> None:
    call = Caller(NAME)
    names = [call(5, lambda i=i: (threading.current_thread().name, i)) for i in range(3)]
    assert names == [(NAME, i) for i in range(3)]
    with pytest.raises(ZeroDivisionError):
        call(5, divmod, 1, 0)
    assert call(1e300, divmod, 7, 2) == (3, 1)
    if ends:
        call.end()
    else:
        del call
        gc.collect()
    assert not is_there()


def test_one_that_does_not_return_is_left_alone() -> None:
    call, goes_on = Caller(NAME), threading.Event()
    for _ in range(2):  # those behind it wait, too
        since = time.monotonic()
        with pytest.raises(TimeoutError):
            call(0.05, goes_on.wait)
        assert time.monotonic() - since >= 0.05
    goes_on.set()
    assert call(5, divmod, 7, 2) == (3, 1)  # what came late is nobody's answer
    call.end()
    assert not is_there()
