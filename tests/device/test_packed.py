# SPDX-License-Identifier: MIT
"""Arguments in memory: what a driver finds there at each launch."""

from __future__ import annotations

import ctypes
import operator
import signal
import threading
from functools import partial

import numpy as np
import pytest

from cupy_training_ops.device.launch import Packed, PackedStep
from cupy_training_ops.device.marks import Marks

ROW = np.dtype([("x", "f4"), ("n", "i8")])
CONSTANTS = [np.int64(-7), np.array((1.5, 9), ROW)[()], np.bool_(True)]
MADE = [np.dtype(np.float32), ROW]
TYPES = [np.dtype(np.uint64)] * 3 + [value.dtype for value in CONSTANTS] + MADE


class Driver:
    """Writes down what each launch finds; `during` runs inside of one."""

    def __init__(self, steps) -> None:
        self.steps, self.found = steps, []
        self.during = lambda: None

    def launch(self, number: int, extent: int, stream: int, arguments: int, extra: int) -> None:
        self.during()
        places = self.steps[number].places
        addresses = (ctypes.c_uint64 * len(places)).from_address(arguments)
        pairs = zip(addresses, places, strict=True)
        values = tuple(value_at(address, TYPES[place]) for address, place in pairs)
        self.found.append((extent, stream, extra, values))


def value_at(address: int, dtype):
    return np.frombuffer((ctypes.c_char * dtype.itemsize).from_address(address), dtype)[0].copy()


def packed(*places):
    steps = [PackedStep((i, 10 + i), each) for i, each in enumerate(places)]
    driver = Driver(steps)
    return Packed(driver, steps, 3, CONSTANTS, MADE), driver


def row(rng):
    """Words, what a call makes, and all values in their order."""
    words = tuple(int(n) for n in rng.integers(0, 2**64, 3, np.uint64))
    made = np.float32(rng.standard_normal()), np.array((rng.standard_normal(), 3), ROW)[()]
    return words, made, (*words, *CONSTANTS, *made)


def test_each_launch_finds_its_values_in_its_order(rng) -> None:
    orders = (4, 0, 6, 2), (7, 1), (5, 3, 3), ()
    plan, driver = packed(*orders)
    for stream in (0, 7):
        words, made, values = row(rng)
        plan.run(words, made, stream)
        expected = [
            (10 + i, stream, 0, tuple(values[place] for place in order))
            for i, order in enumerate(orders)
        ]
        assert driver.found == expected
        driver.found.clear()


def test_values_are_aligned() -> None:
    plan, _ = packed((0, 1, 2, 3, 4, 5, 6, 7))
    for launch, arguments in plan._block().launches:
        assert launch.args == (0, 10)
        addresses = (ctypes.c_uint64 * 8).from_address(arguments)
        pairs = zip(addresses, TYPES, strict=True)
        assert all(address % min(dtype.itemsize, 8) == 0 for address, dtype in pairs)


@pytest.mark.parametrize("n", [1, 3])
def test_notes_are_made_behind_the_first_launch_and_the_last(rng, n) -> None:
    plan, driver = packed(*[(0,)] * n)
    marks = Marks(*[(partial(driver.found.append, name),) for name in Marks._fields])
    plan.run(*row(rng)[:2], 0, marks)
    order = [item if isinstance(item, str) else "launch" for item in driver.found]
    assert order == ["launch", "first", *["launch"] * (n - 1), "last"]


@pytest.mark.parametrize("inside", ["thread", "call"])
def test_calls_that_come_between_two_launches_have_memory_of_their_own(rng, inside) -> None:
    """The driver lets other threads run; a finalizer may make a call in this one."""
    plan, driver = packed((0, 6), (1, 7))
    before, outer, inner = row(rng), row(rng), row(rng)
    plan.run(*before[:2], 0)

    def during() -> None:
        driver.during = lambda: None
        if inside == "call":
            plan.run(*inner[:2], 5)
            return
        thread = threading.Thread(target=plan.run, args=(*inner[:2], 5))
        thread.start()
        thread.join()

    driver.during = during
    plan.run(*outer[:2], 4)
    given = [(stream, values) for _, stream, _, values in driver.found]
    places = (0, 6), (1, 7)
    for stream, (_, _, values) in ((5, inner), (4, outer)):
        own = [found for on, found in given if on == stream]
        assert own == [tuple(values[p] for p in of) for of in places]


def test_a_call_that_is_refused_leaves_no_memory_to_others(rng) -> None:
    plan, driver = packed((0, 1, 2))

    def refuse() -> None:
        raise KeyboardInterrupt

    driver.during = refuse
    with pytest.raises(KeyboardInterrupt):
        plan.run(*row(rng)[:2], 0)
    assert not plan._free
    driver.during = lambda: None
    words, made, _ = row(rng)
    plan.run(words, made, 0)
    assert driver.found[-1][3] == words
    assert len(plan._free) == 1


def test_no_signal_comes_between_two_launches() -> None:
    """An optimizer's step over a list is made as a whole, or not at all."""

    class Library:
        launch = staticmethod(operator.call)

    libc, written = ctypes.CDLL(None), ctypes.create_string_buffer(2)
    first, second = (ctypes.c_void_p(ctypes.addressof(written) + i) for i in range(2))
    interrupt = getattr(libc, "raise"), int(signal.SIGINT)
    heads = (libc.memset, first, 1, 1), interrupt, (libc.memset, second, 1, 1)
    plan = Packed(Library(), [PackedStep(head, ()) for head in heads], 0, [], [])
    with pytest.raises(KeyboardInterrupt):
        plan.run((), (), 0)
    assert written.raw == b"\1\1"


def test_what_was_made_before_may_come_again(rng) -> None:
    """Alone, or with something new beside it."""
    plan, driver = packed((6, 7))
    (words, first, _), (_, second, _) = row(rng), row(rng)
    every = [first, first, (first[0], second[1]), second, first]
    for made in every:
        plan.run(words, made, 0)
    assert [values for *_, values in driver.found] == [tuple(made) for made in every]
