# SPDX-License-Identifier: MIT
"""The engine under stash and hooks: held bytes, entries, pending lengths, error checks."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections import deque
from itertools import accumulate

import numpy as np
import pytest
from late_events import Event

from cupy_training_ops import ArgumentError, get_op
from cupy_training_ops.activations import error_check as checks
from cupy_training_ops.activations import policies
from cupy_training_ops.activations.error_check import ErrorCheck
from cupy_training_ops.activations.pending import (
    Entry,
    HeldBytes,
    PendingCheck,
    PendingChecks,
    PendingLengths,
)

NBYTES = 64
GOOD, BAD = [0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]


class Held(Entry):
    """Bytes of NumPy's; what it is told is written down."""

    def __init__(self, statistics, nbytes=NBYTES, place=None) -> None:
        self.statistics, self.place, self.lacks = statistics, place, []
        self.code = np.arange(nbytes, dtype=np.uint8)
        statistics.add(nbytes)

    def copy_codes(self, nbytes):
        return self.code[:nbytes].copy()

    def reject(self, check, failure) -> None:
        self.lacks.append(failure)
        self.code = None


@pytest.fixture
def statistics():
    return HeldBytes()


# ---- entries and accounts ------------------------------------------------------------------------


def test_an_account_knows_the_most(statistics, rng) -> None:
    changes = rng.integers(-100, 100, 500).tolist()
    for nbytes in changes:
        statistics.add(nbytes)
    assert statistics.held == sum(changes)
    assert statistics.peak == max(0, *accumulate(changes))


def test_threads_share_an_account(statistics) -> None:
    def work() -> None:
        for _ in range(5000):
            statistics.add(3)
            statistics.add(-2)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statistics.held == 20_000
    assert 20_000 <= statistics.peak <= 20_000 + 2 * 4


def test_what_is_behind_codes_is_given_back(statistics) -> None:
    held = Held(statistics)
    before = held.code
    held.shorten(NBYTES)
    assert held.code is before  # nothing is behind them: nothing is copied
    held.shorten(5)
    assert held.code.tobytes() == bytes(range(5))
    assert (statistics.held, statistics.peak) == (5, NBYTES)


# ---- lengths -------------------------------------------------------------------------------------


class Queue:
    """Lengths, with what came of them."""

    def __init__(self) -> None:
        self.lengths, self.statistics, self.told = PendingLengths(), HeldBytes(), []

    def add(self, stream, nbytes, event):
        held = Held(self.statistics)
        self.lengths.add(stream, held, self.told.append, np.array([nbytes]), event)
        return held


def test_lengths_are_waited_for_by_stream() -> None:
    queue, events = Queue(), [Event() for _ in range(3)]
    first, other, second = (
        queue.add(stream, 8 * (i + 1), events[i]) for i, stream in enumerate(["a", "b", "a"])
    )
    assert [event.waits for event in events] == [0, 0, 0]
    queue.lengths.trim("a")
    queue.lengths.trim("of nobody")
    assert [event.waits for event in events] == [1, 0, 1]
    assert [held.code.nbytes for held in (first, other, second)] == [8, NBYTES, 24]
    assert (queue.told, queue.statistics.held) == ([8, 24], 8 + NBYTES + 24)
    queue.lengths.trim_all()
    queue.lengths.trim_all()
    assert (queue.told, queue.statistics.held) == ([8, 24, 16], 8 + 16 + 24)


def test_on_the_host_a_length_is_known_at_once() -> None:
    queue = Queue()
    assert queue.add("host", 16, None).code.nbytes == 16
    assert queue.told == [16]


def test_a_length_is_told_though_its_entry_is_gone() -> None:
    """Nor does waiting for it hold the entry."""
    queue = Queue()
    gone = weakref.ref(queue.add("a", 16, Event()))
    gc.collect()
    assert gone() is None
    queue.lengths.trim("a")
    assert queue.told == [16]


# ---- guards --------------------------------------------------------------------------------------

NEEDS = ("sign", checks.LINEAR, checks.NORMALISED, checks.PRODUCT)


def expected_lack(guard, numbers) -> str:
    """By roots and ratios, as docs/stash.md says it."""
    error, tiles, groups, worst = numbers
    share = np.sqrt(np.array([error / tiles, error / groups, worst]))
    if not share[0] <= 0.03:
        return "tiles"
    if guard.need == checks.NORMALISED and not (guard.grouping and share[2] <= 0.06):
        return "groups"
    is_product = guard.need == checks.PRODUCT
    return "features" if is_product and not (guard.grouping and share[1] <= 0.03) else ""


@pytest.mark.parametrize("grouping", [None, (1, 4, 16)])
@pytest.mark.parametrize("need", NEEDS)
def test_tiles_and_groups_have_limits(rng, need, grouping) -> None:
    guard, seen = ErrorCheck(checks.TILES, need, grouping), set()
    for _ in range(300):
        error, tiles, groups = 1e-3, *(10.0 ** rng.uniform(-1, 2, 2))
        numbers = [error, tiles, groups, 10.0 ** rng.uniform(-4, -1)]
        lack, features = guard.failure(numbers)
        assert lack == expected_lack(guard, numbers)
        assert features == (grouping is not None and error / groups <= 0.03**2)
        assert guard.passes(np.array(numbers)) == (not lack)
        seen.add(lack)
    assert len(seen) >= 2


@pytest.mark.parametrize(
    ("numbers", "does"),
    [
        ([1, 1, 0], True),
        ([65504, 1, 15.9], True),
        ([2**-6, 0, 0], True),
        ([65505, 1, 0], False),
        ([0.0156, 1, 0], False),
        ([1, 1, 16.1], False),
        ([float("nan"), 1, 0], False),
        ([1, float("nan"), 1], False),
    ],
)
def test_16_bits_have_a_range(numbers, does) -> None:
    guard = ErrorCheck(checks.RANGE, checks.PRODUCT)
    assert guard.failure(numbers) == ("" if does else "range", True)
    assert bool(guard.passes(numbers)) == does


def test_indices_are_lost_or_not() -> None:
    guard = ErrorCheck(checks.INDEX, "index")
    assert [guard.failure([actual])[0] for actual in (False, True)] == ["", "index"]


def test_codes_of_policies_tell_what_is_not_finite(rng) -> None:
    """The encoder that measures gives the same codes as the one that does not."""
    x = rng.standard_normal((4, 64)).astype(np.float32)
    x[1, 3] = np.inf
    plain, decoder = policies.coders("msfp15_signed", "float32", x.shape, "", None)
    measuring, same = policies.coders("msfp15_signed", "float32", x.shape, checks.TILES, (1, 4, 64))
    codes, measured = measuring(x)
    assert (codes == plain(x)).all()
    assert same is decoder
    np.testing.assert_array_equal(np.isinf(decoder(codes)), np.isinf(x))
    assert ErrorCheck(checks.TILES, "sign").failure(measured.tolist()) == ("tiles", False)
    assert isinstance(measuring, get_op("GistGuardedMsfp15Encoder"))


def test_a_policy_is_named_or_a_function() -> None:
    def function(*_):
        return None

    named = {"one": object(), "two": object()}
    assert policies.get_policy("Owner", "two", named) is named["two"]
    assert policies.get_policy("Owner", function, named) is function
    with pytest.raises(ArgumentError, match="Owner: policy: expected one of 'one', 'two' or a fun"):
        policies.get_policy("Owner", "default", named)


# ---- the window ----------------------------------------------------------------------------------


class Late:
    """A window of entries whose guards' numbers come late."""

    def __init__(self, limit) -> None:
        self.window, self.statistics, self.events = PendingChecks(limit), HeldBytes(), []

    def add(self, numbers=GOOD, nbytes=NBYTES, place=None, event=None):
        """A new entry; the event None is made."""
        held = Held(self.statistics, nbytes // 4, place)
        held.original = f"the array of {nbytes}"
        self.events.append(event or Event())
        guard = ErrorCheck(checks.TILES, checks.LINEAR)
        waiting = PendingCheck(held, guard, nbytes, np.array(numbers), self.events[-1])
        self.window.add(waiting, held, nbytes // 4)
        return held

    @property
    def waits(self):
        return [event.waits for event in self.events]


def test_numbers_of_the_host_decide_at_once(statistics) -> None:
    window = PendingChecks()
    for numbers, lacks in ((GOOD, []), (BAD, ["tiles"])):
        held = Held(statistics)
        held.original = "the array"
        guard = ErrorCheck(checks.TILES, checks.LINEAR)
        window.add(PendingCheck(held, guard, NBYTES, np.array(numbers), None), held, 0)
        assert held.lacks == lacks
        assert held.original == ("the array" if lacks else None)
        assert not held.pending
    assert window.peak == 0


@pytest.mark.parametrize("looked_by", [lambda x: x.window.read_ready(), lambda x: x.add()])
def test_an_original_goes_when_it_is_known_that_codes_do(looked_by) -> None:
    late = Late(1 << 20)
    held = [late.add(numbers) for numbers in (GOOD, BAD, GOOD)]
    late.window.read_ready()
    assert all(each.original and each.pending for each in held)
    late.events[0].done = late.events[1].done = True
    looked_by(late)
    assert [each.original is None for each in held] == [True, False, False]
    assert [each.lacks for each in held] == [[], ["tiles"], []]
    late.window.finish(held[2])
    assert held[2].original is None
    assert late.waits[:3] == [0, 0, 1]


def test_what_was_decided_says_nothing_of_new_codes() -> None:
    late = Late(1 << 20)
    held = late.add(BAD)
    late.window.finish(held)
    held.code = np.zeros(NBYTES, np.uint8)
    late.window.finish_all()
    assert held.lacks == ["tiles"]
    assert held.original


def test_the_host_waits_where_more_bytes_would() -> None:
    late = Late(3 * NBYTES)
    held = [late.add() for _ in range(5)]
    assert late.waits == [1, 1, 0, 0, 0]
    late.events[2].done = True
    held.append(late.add())
    assert late.waits == [1, 1, 0, 0, 0, 0]
    assert late.window.peak == 3 * NBYTES
    held.append(late.add(nbytes=10 * NBYTES))  # more than the limit, alone
    assert late.waits == [1, 1, 0, 1, 1, 1, 0]
    assert late.window.peak == 10 * NBYTES


def test_what_a_step_held_may_wait_in_the_next(monkeypatch) -> None:
    monkeypatch.setattr("cupy_training_ops.activations.pending.SHARE", 2)
    late = Late(NBYTES)
    for waited in (7, 4):  # half of 8 arrays, and of what is left of their codes, 0.25 each
        late.events.clear()
        held = [late.add() for _ in range(8)]
        assert sum(late.waits) == waited
        late.window.finish_all()
        late.window.end_step()
    assert all(each.original is None for each in held)


def test_who_is_gone_is_not_waited_for() -> None:
    late = Late(2 * NBYTES)
    for _ in range(5):
        late.add()
        gc.collect()
    late.window.finish_all()
    assert late.waits == [0] * 5


def test_a_decision_stands_for_its_place_in_a_step() -> None:
    late, decided = Late(1 << 20), []
    for numbers in (GOOD, BAD, GOOD):
        held = [late.add(numbers, place="a"), late.add(GOOD, place="b")]
        late.window.finish_all()
        decided.append(dict(late.window.decisions))
        assert held
    assert [each["a"] for each in decided] == [True, False, False]  # as soon as it failed once
    assert all(each["b"] for each in decided)


def test_an_error_of_who_fails_leaves_the_window_whole() -> None:
    class RefusedError(Exception):
        """By the entry."""

    class Refusing(Held):
        def reject(self, check, failure) -> None:
            super().reject(check, failure)
            raise RefusedError

    late = Late(1 << 20)
    guard = ErrorCheck(checks.TILES, checks.LINEAR)
    refusing = Refusing(late.statistics)
    late.window.add(PendingCheck(refusing, guard, NBYTES, np.array(BAD), Event()), refusing, 0)
    held = late.add()
    with pytest.raises(RefusedError):
        late.window.finish_all()
    late.window.finish_all()
    assert held.original is None
    late.window.finish(refusing)
    assert refusing.lacks == ["tiles"]


def test_any_order_of_events_decides_the_same(rng) -> None:
    """What is decided follows from the numbers; and no more bytes wait than may."""
    limit, largest = 8 * NBYTES, 4 * NBYTES
    late, expected, held = Late(limit), [], deque()
    for _ in range(300):
        numbers = GOOD if rng.random() < 0.7 else BAD
        held.append(late.add(numbers, nbytes=int(rng.integers(1, 5)) * NBYTES))
        expected.append([] if numbers is GOOD else ["tiles"])
        for event in late.events:
            event.done = event.done or rng.random() < 0.02
        waiting = [each for each in held if each.pending]
        assert sum(each.code.nbytes * 4 for each in waiting) <= limit
        if rng.random() < 0.2:
            late.window.finish(held[int(rng.integers(len(held)))])
    late.window.finish_all()
    assert [each.lacks for each in held] == expected
    assert [each.original is None for each in held] == [not each for each in expected]
    assert late.window.peak <= limit + largest


def test_the_engine_imports_neither_pytorch_nor_cupy() -> None:
    names = ", ".join(("error_check", "pending", "policies"))
    code = (
        f"import sys; from cupy_training_ops.activations import {names};"
        f"print(sorted({{'torch', 'cupy'}} & sys.modules.keys()))"
    )
    actual = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert actual.stdout.strip() == b"[]"
