# SPDX-License-Identifier: MIT
"""What ranks say to each other: descriptions that agree, now or later, and those that do not."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from ranks import in_threads, results

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, GroupError
from cupy_training_ops.families.collective.messages import (
    agree_each_time,
    next_description,
    shapes_in,
)

PAIR = 1, 0  # receiver and sender
SAID = "the ranks disagree: rank {} calls {}, rank {} calls {}"


def say(group, *texts: str) -> None:
    for text in texts:
        agree_each_time(group, "Send", PAIR, text)


def test_a_sender_waits_only_for_the_first_of_a_kind() -> None:
    is_said = threading.Event()

    def call(group) -> int:
        say(group, "a")
        if group.rank == 0:
            say(group, *"aaa")
            is_said.set()
        is_said.wait(5)  # the receiver calls nothing meanwhile
        return group._engine.sent[1 - group.rank]

    assert results(in_threads(2, call)) == [4, 1]


@pytest.mark.parametrize(
    ("of_sender", "of_receiver", "words"),
    [
        ("aba", "abb", SAID.format(0, "once more a", 1, "once more b")),
        ("aa", "ab", SAID.format(1, "b", 0, "once more a")),
        ("ab", "aa", SAID.format(0, "b", 1, "once more a")),
    ],
)
def test_what_differs_from_what_was_not_waited_for_ends_the_group(
    of_sender, of_receiver, words
) -> None:
    def call(group) -> None:
        say(group, *(of_receiver if group.rank else of_sender))
        cto.nccl_all_reduce([np.ones(3)], group=group)

    error = in_threads(2, call, timeout=1.0)[1]  # the first may have had all that it waits for
    assert isinstance(error, GroupError)
    assert words in str(error)


def test_what_differs_the_first_time_is_an_error_on_both_that_ends_nothing() -> None:
    def call(group) -> float:
        with pytest.raises(ArgumentError, match=SAID.format(1, "b", 0, "a")):
            say(group, "b" if group.rank else "a")
        say(group, "c", "c")
        return float(cto.nccl_all_reduce([np.ones(3)], group=group)[0][0])

    assert results(in_threads(2, call)) == [2.0, 2.0]


def test_what_is_announced_is_not_taken() -> None:
    def call(group) -> str:
        say(group, "a", "a")
        actual = next_description(group, "Recv", 0) if group.rank else ""
        say(group, "b")
        return actual

    assert results(in_threads(2, call)) == ["", "b"]


def test_two_that_both_send_first_are_told_so() -> None:
    """Neither takes the other's message for an answer."""

    def call(group) -> None:
        group.agree("Send", (1 - group.rank, group.rank), "a message")

    for error in in_threads(2, call, timeout=5.0):
        assert isinstance(error, GroupError)


def test_shapes_are_read_from_a_description() -> None:
    assert shapes_in("Send of 3 arrays; float32 (3,); int8 (); float16 (2, 0, 5)") == (
        (3,), (), (2, 0, 5))  # fmt: skip
    with pytest.raises(GroupError, match="description cannot be read"):
        shapes_in(f"Send of 1 arrays; float32 ({'9' * 5000},)")
